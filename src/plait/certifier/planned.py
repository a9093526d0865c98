"""The plan of a case."""

from __future__ import annotations

from plait.certifier.case import Case
from plait.certifier.data import LENGTH
from plait.certifier.models import small_spec
from plait.certifier.reference import require_learning, work_of
from plait.planner.training_local import local_training_plan
from plait.plans.training import TrainingPlan


def plan_of(case: Case) -> TrainingPlan:
    """The case's plan. Errors: SpecError, PlanError."""
    spec = small_spec(case.small)
    require_learning(work_of(case))
    return local_training_plan(
        spec,
        case.setup,
        case.sequences,
        LENGTH,
        case.dtype,
        cut=case.cut,
        capacity=case.capacity,
        shares=case.shares,
    )
