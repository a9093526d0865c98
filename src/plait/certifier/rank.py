"""One rank of a case: it trains, and measures after every step how far all that it holds is off one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from plait.certifier.case import Case
from plait.certifier.compare import whole_steps
from plait.certifier.data import sequences
from plait.certifier.held import Comparison, Report
from plait.certifier.models import small_spec, small_tensors
from plait.certifier.planned import plan_of
from plait.certifier.processes import Measured, Setup, ToFront, launched
from plait.certifier.reference import DECAY, RATE, work_of
from plait.comm.contract import Endpoint
from plait.comm.shm import ShmDescription, ShmEndpoint
from plait.plans.round import Round
from plait.plans.training import TrainingPlan
from plait.ranks.channel import Channel
from plait.ranks.process import run_process
from plait.spec.tensors import Shape
from plait.trainer.batch import Batch
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings


def settings_of(case: Case) -> Settings:
    """How the case's weights are updated: plain SGD, since Adam hides a wrong scale of the gradients."""
    return Settings(
        rate=Rate(RATE),
        optimizer="sgd",
        weight_decay=DECAY,
        clip=case.clip or None,
        frozen=case.frozen,
        dropout=case.dropout,
        seed=case.seed,
        check_every=1 if case.steps > 1 else 0,  # the first step begins with copies that nobody has updated
    )


def run_rank(
    case: Case, plan: TrainingPlan, endpoint: Endpoint, stalled: Callable[[str], None], first: Round | None = None
) -> Report:
    """Train the case's steps as the endpoint's rank; `stalled` is told of long waits.

    `first`: a round of the plan, where many ranks of this process share it. Errors: RunError.
    """
    spec, tensors = small_spec(case.small), small_tensors(case.small)

    def whole(name: str, shape: Shape) -> Tensor:
        assert tensors[name].shape == shape, f"{name} is asked for as {shape}"
        return tensors[name]

    trainer = TrainingRank(
        plan, spec, settings_of(case), endpoint, whole, buckets=case.buckets, stalled=stalled, first=first
    )
    report = Report(endpoint.rank)
    for number, expected in enumerate(whole_steps(work_of(case))):
        given = sequences(spec.vocab, case.sequences, number, case.seed)
        result = trainer.step(number, Batch(given.tokens, given.targets))
        Comparison(spec, plan.layout, expected, number, report).run(trainer, result)
    return report


def endpoint_of(setup: Setup, plan: TrainingPlan) -> Endpoint:
    """This process's side of the mesh."""
    if setup.case.transport == "shm":
        return ShmEndpoint.attach(cast(ShmDescription, setup.mesh))
    from plait.comm.cluster import environment, join

    os.environ.update(launched(setup, plan.layout.ranks))
    here = environment()
    assert here is not None
    return join(here, plan.layout.link_capacity)


def _run(setup: Setup, channel: Channel[ToFront, Setup]) -> None:
    plan = plan_of(setup.case)
    torch.set_num_threads(1)
    with endpoint_of(setup, plan) as endpoint:
        channel.send(Measured(run_rank(setup.case, plan, endpoint, lambda text: print(text, file=sys.stderr))))


if __name__ == "__main__":
    sys.exit(run_process(Setup, _run))
