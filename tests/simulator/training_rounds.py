"""Rounds of training made by hand for tests of the simulator: an order of computing, lowered in the plainest way."""

from __future__ import annotations

from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.rules import positions_by_stage
from plait.plans.split import Split, TrainingSetup
from plait.schedules.step import make_training_round
from plait.schedules.training import compute_order
from plait.spec.model import ModelSpec

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)
PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def work_of(micro_batches: int, length: int = 64) -> tuple[MicroBatch, ...]:
    return tuple(MicroBatch((Row(index, 0, 0, length, False),)) for index in range(micro_batches))


def make_step(
    schedule: str,
    positions: int,
    micro_batches: int,
    virtual: int = 1,
    *,
    reduces: bool = False,
    capacity: int | None = None,
    ranks_each: int = 1,
) -> tuple[Layout, Round]:
    """A training step: receive right before, send right after, and all reductions and updates at the end."""
    order = compute_order(schedule, positions, virtual, micro_batches)
    stages = order.stages
    position_of = positions_by_stage(order.placement)
    made = []
    for position, computed in enumerate(order.actions()):
        actions: list[Action] = []
        for action in computed:
            actions += around(action, stages, position_of)
        if reduces:
            for stage in order.placement[position]:
                kinds = (Kind.REDUCE_GRADIENTS, Kind.OPTIMIZER, Kind.GATHER_PARAMETERS)
                actions += [Action(0, stage, kind, 0) for kind in kinds]
        made.append(tuple(actions))
    ranks = [tuple(range(q * ranks_each, (q + 1) * ranks_each)) for q in range(positions)]
    layout = Layout(
        {"pp": positions, "dp": ranks_each},
        tuple(Stage((s, s + 1), ranks[position_of[s]], host=f"box{position_of[s]}") for s in range(stages)),
        capacity or 4 * stages,
    )
    return layout, Round(0, work_of(micro_batches), tuple(made))


def make_lowered_step(
    schedule: str,
    positions: int,
    micro_batches: int,
    virtual: int,
    *,
    capacity: int,
    replicas: int,
    buckets: int,
    tied: bool = False,
    norm: bool = False,
) -> tuple[Layout, Round]:
    """The same step as the passes of `schedules` make it: of `replicas`, with reductions, updates and ZeRO's gather."""
    plain, _ = make_step(schedule, positions, micro_batches, virtual, capacity=capacity, ranks_each=replicas)
    setup = TrainingSetup(Split(dp=replicas, pp=positions), schedule, 1, micro_batches, virtual, zero=1)
    return plain, make_training_round(0, plain, setup, work_of(micro_batches), buckets, tied=tied, norm=norm)


def around(action: Action, stages: int, position_of: tuple[int, ...]) -> list[Action]:
    """The action, with the messages that it needs and makes."""
    before, after = action.stage - 1, action.stage + 1
    has_before = before >= 0 and position_of[before] != position_of[action.stage]
    has_after = after < stages and position_of[after] != position_of[action.stage]
    if action.kind is Kind.FORWARD:
        taken, sent = Kind.RECEIVE_FORWARD, Kind.SEND_FORWARD
        takes, sends = has_before, has_after
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        taken, sent = Kind.RECEIVE_BACKWARD, Kind.SEND_BACKWARD
        takes, sends = has_after, has_before
    else:
        return [action]
    return [
        *([action._replace(kind=taken)] if takes else []),
        action,
        *([action._replace(kind=sent)] if sends else []),
    ]


def of_lane(actions: tuple[Action, ...], lane: Lane) -> list[Action]:
    return [action for action in actions if action.kind.lane is lane]


def seconds_of(
    stages: int, forward: float = 1.0, backward: float = 2.0, weight: float = 1.0
) -> dict[tuple[int, Kind], float]:
    """The same seconds on every stage: F, I and W as given, B as I and W together."""
    by_kind = {
        Kind.FORWARD: forward,
        Kind.BACKWARD: backward,
        Kind.BACKWARD_INPUT: backward - weight,
        Kind.BACKWARD_WEIGHT: weight,
    }
    return {(stage, kind): seconds for stage in range(stages) for kind, seconds in by_kind.items()}
