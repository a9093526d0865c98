"""What emulated links cost: exchanges by the wire, messages by who shares it, and what was measured beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from plait.costs.curves import Curve
from plait.costs.emulated import BASE, EmulatedCosts, FramedTimes, wire_link
from plait.costs.emulated_training import EmulatedTrainingCosts
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.framed import framed_s, step_s
from plait.costs.measured import Kernel
from plait.costs.protocol import Exchange, FixedCosts, LinkCost
from plait.plans.action import Kind
from plait.plans.exchanges import AT_ONCE_BYTES, Collective, Op, forward_exchanges
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks, Emulation
from plait.spec.model import ModelSpec, Rope

WIRE = Wire(1e-3, 1e6)
"""1 ms, and 1 byte a µs."""
APART = EmulatedLinks(WIRE)
SPEC = ModelSpec("m", "llama", 30, 576, 9, 3, 64, 1536, 1000, 4096, 1e-5, Rope(10_000.0, 64), (None,) * 30)
NOTHING = ExchangeTimes(*[Curve((1.0, 2.0), (0.0, 0.0))] * 3)
SHM = LinkCost(5e-6, 5e9, wake_s=1e-4)


def total(rows: int, items: int, op: Op = Op.ALL_REDUCE) -> Collective:
    return Collective(op, rows, items, 4)


def test_two_ranks_swap_a_sum_of_any_size() -> None:
    for rows in (1, 1000):
        assert framed_s(total(rows, 576), (0, 1), APART.among(2)) == pytest.approx(1e-3 + rows * 2304e-6)


def test_more_ranks_take_two_turns_of_a_large_sum() -> None:
    small, large = AT_ONCE_BYTES // 4, AT_ONCE_BYTES // 4 + 1
    emulation = APART.among(4)
    assert framed_s(total(small, 1), range(4), emulation) == pytest.approx(1e-3 + AT_ONCE_BYTES * 1e-6)
    assert framed_s(total(large, 1), range(4), emulation) == pytest.approx(2 * (1e-3 + (AT_ONCE_BYTES + 4) / 4 * 1e-6))


def test_gathers_and_scatters_take_the_largest_part() -> None:
    emulation = APART.among(2)  # 5 rows are 3 and 2, or 2 and 3
    for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
        assert framed_s(total(5, 100, op), (0, 1), emulation) == pytest.approx(1e-3 + 3 * 400e-6)


def test_ranks_of_a_host_share_its_wire_and_need_none_between_them() -> None:
    two_hosts = EmulatedLinks(WIRE, 2).among(4)
    assert step_s((0, 1), two_hosts, lambda *_: 1000) == 0
    assert step_s((0, 2), two_hosts, lambda *_: 1000) == pytest.approx(2e-3)
    assert step_s(range(4), two_hosts, lambda *_: 1000) == pytest.approx(1e-3 + 4 * 1e-3)  # 2 × 2 parts, one wire


def test_a_slow_wire_among_fast_ones_ends_the_step() -> None:
    wires = dict.fromkeys([(a, b) for a in range(3) for b in range(3) if a != b], WIRE)
    slow = Emulation((0, 1, 2), {**wires, (2, 0): Wire(50e-3, 1e3)})
    assert step_s(range(3), slow, lambda *_: 100) == pytest.approx(50e-3 + 0.1)
    assert step_s((0, 1), slow, lambda *_: 100) == pytest.approx(1e-3 + 1e-4)


def test_what_was_measured_beyond_a_known_wire_comes_on_top() -> None:
    one = total(1, 576)
    known_s = BASE.wire.latency_s + 2304 / BASE.wire.bandwidth
    measured = ExchangeTimes(*[Curve((1.0, 1e6), (known_s + 40e-6, known_s + 40e-6))] * 3)
    assert FramedTimes(measured).seconds(one, (0, 1), APART.among(2)) == pytest.approx(1e-3 + 2304e-6 + 40e-6)


# --- links ----------------------------------------------------------------------------------------------


def layout(pp: int, tp: int) -> Layout:
    width = 30 // pp
    stages = tuple(Stage((width * s, width * s + width), tuple(range(s * tp, s * tp + tp))) for s in range(pp))
    return Layout({"pp": pp, "tp": tp}, stages)


def test_stages_on_one_host_keep_its_memory() -> None:
    assert wire_link(SHM, layout(4, 1), 0, 1, EmulatedLinks(WIRE, 2).among(4)) == SHM
    assert wire_link(SHM, layout(4, 1), 1, 2, EmulatedLinks(WIRE, 2).among(4)) == LinkCost(1e-3, 1e6, 1e-4, True)


def test_a_tensor_group_shares_the_wire_of_its_host() -> None:
    shared, own = EmulatedLinks(WIRE, 2).among(4), EmulatedLinks(WIRE).among(4)
    assert wire_link(SHM, layout(2, 2), 0, 1, shared).bandwidth_bytes_per_s == 0.5e6
    assert wire_link(SHM, layout(2, 2), 0, 1, own).bandwidth_bytes_per_s == 1e6


# --- a plan's costs -------------------------------------------------------------------------------------

ONE_TOKEN = MicroBatch((Row(0, 0, 63, 1, True),))


def within(seconds: float) -> FixedCosts:
    """A stage's forward takes 1 s, of which its exchanges over shared memory are `seconds`."""
    exchanges = {(0, Kind.FORWARD): Exchange(seconds, 123, (123, 45))}
    return FixedCosts({0: 1.0}, exchanges=exchanges, any_link=SHM)


def test_a_group_over_hosts_exchanges_over_the_wire_and_computes_as_before() -> None:
    plan = layout(1, 2)
    costs = EmulatedCosts(SPEC, within(0.1), APART.among(2), {Kernel.of(plan, 0): FramedTimes(NOTHING)})
    exchanges = list(forward_exchanges(SPEC, plan, 0, ONE_TOKEN))
    expected = sum(framed_s(one, (0, 1), APART.among(2)) for one in exchanges)
    assert len(exchanges) == 62
    assert expected == pytest.approx(62 * 1e-3 + (61 * 2304 + 16) * 1e-6)
    assert costs.exchange(plan, 0, ONE_TOKEN, Kind.FORWARD) == (pytest.approx(expected), 123, (123, 45))
    assert costs.compute_s(plan, 0, ONE_TOKEN) == pytest.approx(0.9 + expected)


def test_a_group_on_one_host_is_as_it_was() -> None:
    costs = EmulatedCosts(SPEC, within(0.1), EmulatedLinks(WIRE, 2).among(2))
    assert costs.compute_s(layout(1, 2), 0, ONE_TOKEN) == 1.0
    assert costs.exchange(layout(1, 2), 0, ONE_TOKEN, Kind.FORWARD).seconds == 0.1


@dataclass(frozen=True, slots=True)
class Reducing(FixedCosts):
    """`MeasuredTrainingCosts` as far as reductions go: each rank of a stage sends `sent` bytes."""

    sent: int = 6000
    zero: int = 0
    near_s: float = 0.123
    asked: list[int] = field(default_factory=list)

    @property
    def plan(self) -> Reducing:
        return self

    @property
    def setup(self) -> Reducing:
        return self

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        return self.near_s

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        return self.sent // parts


def reduce_s(ranks: tuple[int, ...], links: EmulatedLinks, kind: Kind, tp: int = 1, zero: int = 0) -> float:
    plan = Layout({"dp": len(ranks) // tp, "pp": 1, "tp": tp}, (Stage((0, 30), ranks),))
    inside = Reducing(zero=zero)
    costs = EmulatedTrainingCosts(inside, links.among(len(ranks)))  # type: ignore[arg-type]
    return costs.reduce_s(plan, 0, kind)


def test_replicas_reduce_over_the_wire() -> None:
    assert reduce_s((0, 1), EmulatedLinks(WIRE, 2), Kind.REDUCE_GRADIENTS) == 0.123  # on one host
    assert reduce_s((0, 1), APART, Kind.REDUCE_GRADIENTS) == pytest.approx(1e-3 + 6e-3)  # they swap
    # three: two turns, in each of which half of it goes to each of the two others
    assert reduce_s((0, 1, 2), APART, Kind.REDUCE_GRADIENTS) == pytest.approx(2 * (1e-3 + 1.5e-3))
    assert reduce_s((0, 1, 2), APART, Kind.REDUCE_GRADIENTS, zero=1) == pytest.approx(1e-3 + 3e-3)
    assert reduce_s((0, 1, 2), APART, Kind.GATHER_PARAMETERS, zero=1) == pytest.approx(1e-3 + 3e-3)


def test_tensor_ranks_of_a_host_reduce_over_one_wire() -> None:
    ranks = (0, 1, 2, 3)  # two replicas of two tensor ranks, a host each
    assert reduce_s(ranks, EmulatedLinks(WIRE, 2), Kind.REDUCE_GRADIENTS, tp=2) == pytest.approx(1e-3 + 12e-3)
    assert reduce_s(ranks, APART, Kind.REDUCE_GRADIENTS, tp=2) == pytest.approx(1e-3 + 6e-3)


def test_both_ends_of_a_tied_embedding_reduce_over_the_wire() -> None:
    stages = (Stage((0, 15), (0,)), Stage((15, 30), (1,)))
    plan = Layout({"pp": 2}, stages)
    costs = EmulatedTrainingCosts(Reducing(), APART.among(2))  # type: ignore[arg-type]
    assert costs.reduce_s(plan, 0, Kind.REDUCE_TIED) == pytest.approx(7e-3)
    nothing = replace(costs, inside=Reducing(sent=0))
    assert nothing.reduce_s(plan, 0, Kind.REDUCE_TIED) == 0
