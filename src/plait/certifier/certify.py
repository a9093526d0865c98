"""The verb: compares meshes with one process, and says where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plait.certifier.case import Case, Transport
from plait.certifier.compare import WHATS, Bounds, Deviation, What, bounds
from plait.certifier.held import Report
from plait.certifier.planned import plan_of
from plait.certifier.reference import work_of
from plait.errors import PlaitError, UsageError
from plait.plans.training import TrainingPlan

Run = Callable[[Case, TrainingPlan], list[Report]]
Watch = Callable[["Outcome"], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's largest errors, or why it came to no end.

    `apart`: what several ranks hold and must hold to the same bit, but do not.
    """

    case: Case
    bounds: Bounds
    deviations: dict[What, Deviation]
    apart: str = ""
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Within the bounds, in all."""
        if self.failure or self.apart or len(self.deviations) < len(WHATS):
            return False
        return all(self.within(what) for what in WHATS)

    def within(self, what: What) -> bool:
        """Whether errors of this kind are."""
        return self.deviations[what].error <= self.bounds.of(what)

    @property
    def worst(self) -> tuple[What, Deviation] | None:
        """The error nearest to its bound, or furthest beyond, of equal ones a parameter's; None where nothing ran."""

        def badness(one: tuple[What, Deviation]) -> tuple[float, str]:
            what, found = one
            return found.error / self.bounds.of(what), found.name

        return max(self.deviations.items(), key=badness, default=None)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was compared, case by case."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """All cases are within their bounds, and there are some."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)


def certify(*cases: Case, jobs: int = 1, watch: Watch | None = None) -> Certificate:
    """Train each case's small model on its mesh and in one process, and compare everything after every step.

    `jobs`: processes that share the cases. `watch` is called with each outcome, in the order in which they come; the
    certificate has them in the order of the cases.

    Errors: UsageError for a case that cannot run, before any has run. A mesh that breaks is an outcome.
    """
    plans = [plan_of(case) for case in cases]
    if jobs > 1 and len(cases) > 1:
        from plait.certifier.jobs import share

        return Certificate(tuple(share(cases, jobs, watch)))
    outcomes = []
    for case, plan in zip(cases, plans, strict=True):
        outcomes.append(compared(case, plan))
        if watch is not None:
            watch(outcomes[-1])
    return Certificate(tuple(outcomes))


def compared(case: Case, plan: TrainingPlan, run: Run | None = None) -> Outcome:
    """Run a case on its mesh. What breaks there is told in the outcome."""
    work = work_of(case)
    try:
        reports = (run or _run_over(case.transport))(case, plan)
    except UsageError:
        raise
    except PlaitError as error:
        return Outcome(case, bounds(work), {}, failure=str(error))
    deviations = {what: max(_of(reports, what), key=lambda one: one.error) for what in WHATS}
    allowed = bounds(work, {what: found.error for what, found in deviations.items()})
    return Outcome(case, allowed, deviations, apart=_apart(reports))


def _run_over(transport: Transport) -> Run:
    if transport == "threads":
        from plait.certifier.threads import run_threads

        return run_threads
    from plait.certifier.processes import run_processes

    return run_processes


def _of(reports: Iterable[Report], what: What) -> list[Deviation]:
    return [report.deviations[what] for report in reports if what in report.deviations]


def _apart(reports: Sequence[Report]) -> str:
    """The first thing that ranks hold differently, in words; empty where all copies are equal."""
    for step, held in enumerate(zip(*(report.copies for report in reports), strict=True)):
        known: dict[str, tuple[int, int]] = {}
        for report, copies in zip(reports, held, strict=True):
            for what, checksum in copies.items():
                first, rank = known.setdefault(what, (checksum, report.rank))
                if first != checksum:
                    return f"after step {step} ranks {rank} and {report.rank} hold different bits of {what}"
    return ""


def certificate_json(certificate: Certificate) -> dict[str, Any]:
    """`bound` is the largest that was used; of a case `bounds` says each."""
    cases = [_outcome_json(outcome) for outcome in certificate.outcomes]
    bound = max((max(case["bounds"].values()) for case in cases), default=0.0)
    return {"passed": certificate.passed, "bound": bound, "cases": cases}


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    found: dict[str, float | None] = {
        what: outcome.deviations[what].error if what in outcome.deviations else None for what in WHATS
    }
    return {
        "passed": outcome.passed,
        "mesh": case.mesh,
        "schedule": case.schedule,
        "micro_batches": case.micro_batches,
        "dtype": case.dtype,
        **found,
        "worst": _worst_json(outcome),
        "bounds": {what: outcome.bounds.of(what) for what in WHATS},
        "why": outcome.bounds.why,
        "error": outcome.failure or outcome.apart or None,
        "command": case.command(),
    }


def _worst_json(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.worst is None:
        return None
    what, found = outcome.worst
    return {"what": what, "parameter": found.name or None, **found._asdict()}
