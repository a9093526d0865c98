"""Why a plan is as it is: the planner is asked again, and tells what else there was and why it lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from plait.errors import UsageError
from plait.planner.plan import plan as make_plan
from plait.planner.result import Candidate, Choice, Objective
from plait.plans.file import PlanFile
from plait.plans.plan import Plan
from plait.plans.training import TrainingPlan
from plait.reports.choice import (
    OBJECTIVE_KEY,
    best_of_kinds,
    figure,
    rejected_ways,
    split_text,
    telling_break_evens,
    telling_rejections,
    why_it_cannot_be,
    why_it_loses,
)
from plait.reports.view import Lost
from plait.reports.view_of import Why, own_reason
from plait.spec.job import Job, TrainingJob
from plait.spec.model import ModelSpec

_GENERATION: tuple[Objective, ...] = ("latency", "throughput", "ttft")
"""A plan file does not say for what it was chosen: it is the first of these that chooses it."""

_FOR = {"latency": "the time of a token", "throughput": "tokens a second", "ttft": "the first token", "step": "a step"}


def ask_again(file: PlanFile, spec: ModelSpec, job: Job | None = None) -> Why:
    """What a search without limits says of the plan. `job`: of generation, where the file has none.

    A plan of this machine has no cluster to search: it is told with its own reason.
    """
    own = own_reason(file)
    if file.cluster is None:
        return Why(own)
    try:
        choice = _choice(file, spec, file.job or job)
    except UsageError as error:
        return Why(own, (), (f"Why other ways lose is not told, since the search ended: {error}.",))
    place = _place(choice, file.plan)
    if place == 0:
        return Why((choice.reason, *_break_evens(choice)), tuple(_lost(choice)))
    return Why((*own, _another(choice, place)), tuple(_lost(choice)))


def _choice(file: PlanFile, spec: ModelSpec, job: Job | None) -> Choice:
    """The search whose answer the plan is; where none is, that for the usual objective."""
    assert file.cluster is not None
    plan = file.plan
    if isinstance(plan, TrainingPlan):
        attention: Literal["fused", "unfused"] = "fused" if plan.setup.fused_attention else "unfused"
        asked = TrainingJob(plan.batch, plan.sequence, plan.layout.stages[0].dtype, attention)
        return make_plan(spec, file.cluster, asked, "step")
    first, found = plan.layout.stages[0], []
    weights = None if first.weights == first.dtype else first.weights
    for objective in _GENERATION:
        wanted = _asked(plan, job, objective)
        found.append(make_plan(spec, file.cluster, wanted, objective, dtype=first.dtype, weights=weights))
        if _place(found[-1], plan) == 0:
            return found[-1]
    return found[0]


def _asked(plan: Plan, job: Job | None, objective: Objective) -> Job:
    """The job; of throughput with the users of a micro-batch (decision 0013)."""
    usual = job or Job(max(1, plan.context * 2 // 3), max(1, plan.context // 3), plan.slots, plan.context)
    if objective != "throughput":
        return usual
    return replace(usual, users=max(1, plan.slots // plan.micro_batches))


def _place(choice: Choice, plan: Plan | TrainingPlan) -> int | None:
    """Where the plan stands among the candidates; None where it is none of them."""
    same = (number for number, one in enumerate(choice.candidates) if _is_same(one, plan))
    return next(same, None)


def _is_same(candidate: Candidate, plan: Plan | TrainingPlan) -> bool:
    other = candidate.plan
    alike = [(stage.layers, stage.ranks, stage.devices) for stage in plan.layout.stages]
    if [(stage.layers, stage.ranks, stage.devices) for stage in other.layout.stages] != alike:
        return False
    if isinstance(plan, TrainingPlan) and isinstance(other, TrainingPlan):
        return plan.setup == other.setup
    return (plan.schedule, plan.micro_batches) == (other.schedule, other.micro_batches)


def _lost(choice: Choice) -> Iterator[Lost]:
    """The best of every other kind, then the ways that cannot be."""
    for one in best_of_kinds(choice):
        yield Lost(_named(one), _figure(choice, one), why_it_loses(one))
    for rejected in telling_rejections(choice):
        yield Lost(rejected_ways(rejected), "cannot be", why_it_cannot_be(rejected))


def _named(one: Candidate) -> str:
    """Its kind, and the axes where they say more."""
    split = split_text(one)
    return one.kind if split == one.kind else f"{one.kind} ({split})"


def _figure(choice: Choice, one: Candidate) -> str:
    key = OBJECTIVE_KEY[choice.objective]
    return figure(key, one.predicted[key]) if key in one.predicted else "-"


def _break_evens(choice: Choice) -> Sequence[str]:
    return [one.text for one in telling_break_evens(choice)]


def _another(choice: Choice, place: int | None) -> str:
    """That the search chooses another plan, and what it says of this one."""
    chosen = choice.chosen
    said = (
        f"This is not what a search without limits chooses for {_FOR[choice.objective]}: {_named(chosen)}, "
        f"{_figure(choice, chosen)}"
    )
    if place is None:
        return f"{said}; this plan is not among the {len(choice.candidates)} that it ranks"
    own = choice.candidates[place]
    return f"{said}; this plan is number {place + 1}: {why_it_loses(own) or _figure(choice, own)}"
