"""Schedules of a training step, by name: from positions, virtual stages and micro-batches to the order of computing.

Any number of micro-batches works: a schedule makes the next number that it likes, and the surplus is dropped.
"""

from __future__ import annotations

from plait.errors import PlanError, nearest
from plait.schedules.dualpipe_v import dualpipe_v
from plait.schedules.gpipe import gpipe
from plait.schedules.interleaved import interleaved
from plait.schedules.layerwise import layerwise
from plait.schedules.one_f_one_b import one_f_one_b
from plait.schedules.order import Order
from plait.schedules.zb_v import zb_v
from plait.schedules.zero_bubble import zb_h1, zb_h2

TRAINING_SCHEDULES = ("layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
SPLIT_BACKWARD = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")
"""Schedules that do I and W apart (dualpipe-v: some of them)."""
V_SHAPED = ("zb-v", "dualpipe-v")
"""Schedules whose positions hold two stages in a V."""
ONE_STAGE = ("gpipe", "1f1b", "zb-h1", "zb-h2")
"""Schedules whose positions hold one stage."""


def compute_order(schedule: str, positions: int, virtual: int, micro_batches: int) -> Order:
    """What each of `positions` pipeline positions, `virtual` stages each, computes in one step, in order.

    Errors: PlanError for a name that is not known (with the nearest), for numbers below 1, and for a number of
    virtual stages that the schedule cannot have.
    """
    require_training_schedule(schedule, virtual)
    for name, value in (("positions", positions), ("virtual", virtual), ("micro_batches", micro_batches)):
        if value < 1:
            raise PlanError(f"{name} is {value}, but must be at least 1")
    match schedule:
        case "layerwise":
            return layerwise(positions, virtual, micro_batches)
        case "gpipe":
            return gpipe(positions, micro_batches)
        case "1f1b":
            return one_f_one_b(positions, micro_batches)
        case "interleaved":
            return interleaved(positions, virtual, micro_batches)
        case "zb-h1":
            return zb_h1(positions, micro_batches)
        case "zb-h2":
            return zb_h2(positions, micro_batches)
        case "zb-v":
            return zb_v(positions, micro_batches)
        case _:
            return dualpipe_v(positions, micro_batches)


def require_training_schedule(schedule: str, virtual: int) -> str:
    """`schedule`, if it is one of training's and can have `virtual` stages a position. Errors: PlanError."""
    if schedule not in TRAINING_SCHEDULES:
        raise PlanError(f"unknown schedule {schedule!r} for training: {nearest(schedule, TRAINING_SCHEDULES)}")
    wanted = 2 if schedule in V_SHAPED else 1
    if schedule in V_SHAPED + ONE_STAGE and virtual != wanted:
        stages = "one stage" if wanted == 1 else "two stages"
        raise PlanError(f"schedule {schedule} has {stages} a position, not {virtual}: type --virtual {wanted}")
    return schedule
