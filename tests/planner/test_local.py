"""Schedule, micro-batches, chunk and cut: chosen by simulation, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from plait.costs.protocol import FREE, Exchange, LinkCost, Load, Running, core_shares
from plait.errors import PlanError
from plait.planner.local import Wishes, plan_local
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch
from plait.spec.model import ModelSpec, Rope

SPEC = ModelSpec("tiny", "llama", 12, 64, 4, 4, 16, 128, 1000, 4096, 1e-5, Rope(10_000.0, 16), (None,) * 12)


@dataclass(frozen=True)
class Weighing:
    """Costs by formula: each layer `base_s` + `row_s` a position, the head as `head_layers` layers, by threads."""

    base_s: float = 0.001
    row_s: float = 0.0
    head_layers: int = 0
    links: Mapping[tuple[int, int], LinkCost] = field(default_factory=dict)

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        one = layout.stages[stage]
        layers = one.layer_count + (self.head_layers if one.layers[1] == SPEC.layers and micro_batch.sampled else 0)
        return layers * (self.base_s + self.row_s * micro_batch.tokens) / one.threads

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        return Exchange()

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        raise AssertionError("generation reduces nothing")

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        raise AssertionError("generation reduces nothing")

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        return core_shares(layout, running, 2)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        return FREE


def wishes(**changes: object) -> Wishes:
    base = Wishes("tiny", (40,) * 4, 20, 128, stages=2, cores=2)
    return replace(base, **changes)  # type: ignore[arg-type]


def chosen(costs: Weighing, **changes: object) -> Plan:
    return plan_local(SPEC, wishes(**changes), lambda plan: costs)


def test_where_weights_are_read_once_for_all_users_one_micro_batch_wins() -> None:
    """A micro-batch costs the same however many rows it has: halves would read the weights twice.

    By hand, 12 layers of 1 ms, 4 prompts of a chunk each, 20 tokens, the first of them with its chunk. Layer-wise with
    two threads 6 ms a pass: 4 × 6 + 19 × 6. One-thread stages of 6 ms: (4 + 1) × 6 + 19 × 12, with one micro-batch
    (two passes of 6) as with two (two micro-batches of 6 each).
    """
    plan = chosen(Weighing(base_s=0.001, row_s=0.0))
    assert (plan.schedule, plan.micro_batches, plan.layout.stages[0].threads) == ("layerwise", 1, 2)
    assert plan.reason == (
        "layer-wise: predicted 138 ms for the job; pipelined with 1 micro-batch 258 ms; "
        "pipelined with 2 micro-batches 258 ms"
    )


def test_where_threads_do_not_help_a_pipeline_wins() -> None:
    """Half the threads a stage, but all rows cost: two micro-batches keep both stages at work, and the head's too."""

    @dataclass(frozen=True)
    class OneThread(Weighing):
        def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
            return super().compute_s(layout, stage, micro_batch, kind) * layout.stages[stage].threads

    plan = chosen(OneThread(base_s=0.0, row_s=0.001))
    assert (plan.schedule, plan.micro_batches, plan.layout.stages[0].threads) == ("pipelined", 2, 1)
    assert plan.reason.startswith("pipelined with 2 micro-batches: predicted ")
    assert "; layer-wise " in plan.reason


@pytest.mark.parametrize("row_s", [0.0, 0.0001, 0.001, 0.01])
@pytest.mark.parametrize("users", [1, 2, 5, 8])
def test_auto_is_never_slower_than_what_is_asked_for(row_s: float, users: int) -> None:
    """By its own figures: the first in the reason is the least of all."""
    plan = chosen(Weighing(row_s=row_s), prompts=(40,) * users, stages=3)
    seconds = [_seconds(part) for part in plan.reason.replace("predicted", "").replace("for the job", "").split(";")]
    assert seconds[0] == min(seconds)


def _seconds(part: str) -> float:
    value, unit = part.split()[-2:]
    return float(value) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]


def test_the_cut_makes_room_for_the_head() -> None:
    assert chosen(Weighing(), schedule="pipelined").layout.cut == ((0, 6), (6, 12))
    assert chosen(Weighing(head_layers=4), schedule="pipelined", max_tokens=80).layout.cut == ((0, 8), (8, 12))


def test_what_is_asked_for_is_what_is_planned() -> None:
    plan = chosen(Weighing(), layers=(3, 9), schedule="pipelined", micro_batches=3, threads=1, chunk=192)
    assert plan.layout.cut == ((0, 3), (3, 12))
    assert (plan.schedule, plan.micro_batches, plan.chunk) == ("pipelined", 3, 192)
    assert plan.layout.link_capacity >= plan.micro_batches
    assert plan.reason.endswith("for the job, as asked")


def test_more_micro_batches_on_one_stage_are_a_pipeline_of_one() -> None:
    plan = chosen(Weighing(), stages=1, micro_batches=2)
    assert (plan.schedule, plan.micro_batches) == ("pipelined", 2)


def test_layerwise_has_one_micro_batch() -> None:
    with pytest.raises(PlanError) as error:
        chosen(Weighing(), schedule="layerwise", micro_batches=2)
    assert str(error.value) == (
        "2 micro-batches were asked for, but layer-wise has one in flight: "
        "--schedule pipelined --micro-batches 2 has them all"
    )


def test_stages_of_tensor_groups() -> None:
    plan = chosen(Weighing(), stages=2, tp=3, shares=(2, 1, 1), sequence=True, schedule="pipelined", micro_batches=2)
    assert dict(plan.layout.axes) == {"pp": 2, "tp": 3}
    assert [stage.ranks for stage in plan.layout.stages] == [(0, 1, 2), (3, 4, 5)]
    assert [stage.shares for stage in plan.layout.stages] == [(2, 1, 1)] * 2
    assert plan.layout.sequence
    assert [plan.layout.tensor_group(1, rank) for rank in (3, 5)] == [(3, 4, 5)] * 2
    assert plan.reason.startswith("pipelined with 2 micro-batches, tp 3: predicted ")


def test_without_a_group_a_plan_is_as_it_was() -> None:
    plan = chosen(Weighing(), stages=2, tp=1, shares=(3,))
    assert dict(plan.layout.axes) == {"pp": 2}
    assert [(stage.ranks, stage.shares) for stage in plan.layout.stages] == [((0,), ()), ((1,), ())]
    assert not plan.layout.sequence
    assert ", tp" not in plan.reason


@pytest.mark.parametrize(
    ("tp", "schedule", "cores", "threads"),
    [
        (2, "layerwise", 8, 4),  # one stage computes at a time
        (2, "pipelined", 8, 2),  # both stages do
        (2, "layerwise", 2, 1),
        (2, "pipelined", 2, 1),  # more ranks than cores: one thread each
        (3, "layerwise", 8, 2),
    ],
)
def test_the_cores_are_shared_by_what_computes_at_once(tp: int, schedule: str, cores: int, threads: int) -> None:
    plan = chosen(Weighing(), stages=2, tp=tp, schedule=schedule, micro_batches=None, cores=cores)
    assert {stage.threads for stage in plan.layout.stages} == {threads}
    assert chosen(Weighing(), stages=2, tp=tp, schedule=schedule, threads=5).layout.stages[1].threads == 5


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tp": 0}, "--tp 0 was asked for, but a layer needs at least one rank: --tp 1 leaves it whole"),
        (
            {"shares": (2, 1)},
            "--shares 2,1 is for 2 ranks, but --tp makes groups of 1: --tp 2, or 1 number",
        ),
        (
            {"tp": 3, "shares": (2, 1)},
            "--shares 2,1 is for 2 ranks, but --tp makes groups of 3: --tp 2, or 3 numbers",
        ),
        (
            {"tp": 2, "shares": (2, 0)},
            "--shares 2,0 gives rank 1 of a group nothing: every share is at least 1",
        ),
        (
            {"sequence": True},
            "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one",
        ),
    ],
)
def test_groups_that_cannot_be(asked: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError) as error:
        chosen(Weighing(), **asked)
    assert str(error.value) == message
