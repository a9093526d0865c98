"""Plait splits one transformer over many devices: plans the split, runs it, and shows it, all from one plan.

The verbs are functions, loaded when they are first used: what needs no torch imports none.

    plait.generate(["What is gravity?"], plait.Options(stages=2))
    plait.train("llama:layers=4,hidden=256,heads=4", "text.txt", plait.TrainOptions(dp=2, pp=2, steps=100))
    plait.certify(plait.Case(dp=2, pp=2, schedule="zb-h1", micro_batches=4))
    plait.plan("llama3-70b", "home", plait.Job(prompt_tokens=512, max_tokens=256))
    plait.simulate(layout, rounds, costs, spec)
    plait.report(result.record, page="report.html")
    plait.plan("demo", plait.probe(ranks=2).cluster, plait.Job())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.certifier.case import Case
    from plait.certifier.certify import certify
    from plait.generation.generate import Result, generate
    from plait.generation.planning import Options
    from plait.generation.reporting import report
    from plait.planner.plan import plan
    from plait.prober.probe import probe
    from plait.simulator.simulate import simulate
    from plait.spec.job import Job, TrainingJob
    from plait.trainer.train import TrainResult, train
    from plait.trainer.train_options import TrainOptions

__all__ = [
    "Case",
    "Job",
    "Options",
    "Result",
    "TrainOptions",
    "TrainResult",
    "TrainingJob",
    "certify",
    "generate",
    "plan",
    "probe",
    "report",
    "simulate",
    "train",
]

_HOMES = {
    "Case": "plait.certifier.case",
    "Job": "plait.spec.job",
    "Options": "plait.generation.planning",
    "Result": "plait.generation.generate",
    "TrainOptions": "plait.trainer.train_options",
    "TrainResult": "plait.trainer.train",
    "TrainingJob": "plait.spec.job",
    "certify": "plait.certifier.certify",
    "generate": "plait.generation.generate",
    "plan": "plait.planner.plan",
    "probe": "plait.prober.probe",
    "report": "plait.generation.reporting",
    "simulate": "plait.simulator.simulate",
    "train": "plait.trainer.train",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
