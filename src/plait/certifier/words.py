"""A certificate in words: a line for each case of many, a small table for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.certifier.case import Case
from plait.certifier.certify import Outcome
from plait.certifier.compare import BROKEN, WHATS, Deviation, What
from plait.certifier.data import LENGTH

_NAMES: dict[What, str] = {"loss": "loss", "grad": "gradients", "norm": "gradient norm", "weights": "weights"}


def described(case: Case) -> str:
    """``dp 2 × pp 2 × tp 1, 1f1b, 4 micro-batches, float64: llama of 3 layers, 2 steps of 16 sequences, threads``."""
    virtual = f" × {case.virtual} virtual stages" if case.virtual > 1 else ""
    mesh = f"dp {case.dp} × pp {case.pp} × tp {case.tp}{virtual}"
    work = f"{case.micro_batches} micro-batch{'es' * (case.micro_batches > 1)}"
    steps = f"{case.steps} step{'s' * (case.steps > 1)} of {case.sequences} sequences of {LENGTH} tokens"
    model = f"{'tied ' * case.tied}{case.model} of {case.small.layers} layers"
    return f"{mesh}, {case.schedule}, {work}, {case.dtype}: {model}, {steps}, over {case.transport}"


def line(outcome: Outcome) -> str:
    """``equal   4.4e-15 of 1.0e-10  gradients of layers.1.q.weight  plait certify --dp 2``."""
    command = outcome.case.command()
    if outcome.failure or outcome.apart:
        return f"FAILED  {outcome.failure or outcome.apart}  {command}"
    if outcome.worst is None:
        return f"FAILED  nothing was compared  {command}"
    what, found = outcome.worst
    where = f"{_NAMES[what]} of {found.name}" if found.name else _NAMES[what]
    verdict = "equal " if outcome.passed else "FAILED"
    return f"{verdict}  {figure(found.error)} of {figure(outcome.bounds.of(what))}  {where}  {command}"


def table(outcome: Outcome) -> Iterator[str]:
    """Of one case: what was compared, the largest error and the bound of each kind, where it is, and the verdict."""
    yield described(outcome.case)
    if outcome.failure:
        yield f"FAILED: {outcome.failure}"
        return
    yield f"{'':<14}{'largest error':>14}{'bound':>10}"
    for what in WHATS:
        found = outcome.deviations[what]
        row = f"{_NAMES[what]:<14}{figure(found.error):>14}{figure(outcome.bounds.of(what)):>10}"
        yield row + ("" if outcome.within(what) else "  FAILED") + _where(found)
    yield f"bound: {outcome.bounds.why}"
    if outcome.apart:
        yield f"FAILED: {outcome.apart}"
    yield "equal to one process" if outcome.passed else "NOT equal to one process"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Of many cases: how many, and how to repeat what failed."""
    total, failed = len(outcomes), [outcome for outcome in outcomes if not outcome.passed]
    if not failed:
        yield f"all {total} meshes are equal to one process"
        return
    yield f"{len(failed)} of {total} meshes FAILED; to repeat each alone:"
    yield from (f"  {outcome.case.command()}" for outcome in failed)


def figure(error: float) -> str:
    """``4.4e-15``."""
    return "no number" if error == BROKEN else f"{error:.1e}"


def _where(found: Deviation) -> str:
    place = f"  {found.name} of stage {found.stage}," if found.name else " "
    return f"{place} rank {found.rank}, step {found.step}" if found.error else ""
