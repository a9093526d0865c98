"""Reductions made of messages: exact sums, the same bits on every rank, the bytes of the formula, and real overlap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.comm.contract import Tag
from plait.costs.protocol import FixedCosts
from plait.errors import RunError
from plait.executor import reducing
from plait.executor.reduce_lane import ReduceLane
from plait.executor.reducing import Reducing
from plait.executor.reduction import Op, Reduction
from plait.executor.virtual import TransferTime, VirtualMessages, VirtualWorld
from plait.plans.action import Action, Kind, Lane
from plait.simulator.simulate import simulate
from tests.executor.steps import Case, VirtualSteps, in_order, piece_sizes, uneven
from tests.simulator.training_rounds import TINY

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@st.composite
def bounds(draw: st.DrawFn, ranks: int) -> tuple[int, ...]:
    """Pieces of any sizes, empty ones too."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=ranks, max_size=ranks))
    return tuple(sum(sizes[:index]) for index in range(ranks + 1))


def run_together(
    op: Op,
    flats: list[torch.Tensor],
    cut: tuple[int, ...],
    *,
    capacity: int = 2,
    wait_s: Callable[[int], float] = lambda rank: 0.0,
    transfer: TransferTime = lambda source, to, size: (0.0, 0.0),
    ranks: tuple[int, ...] | None = None,
) -> tuple[list[Reducing], float]:
    """The reduction on a virtual clock, each rank beginning after its own wait. Flats are changed in place."""
    group = ranks or tuple(range(len(flats)))
    world = VirtualWorld(max(group) + 1, capacity, transfer)
    found: dict[int, Reducing] = {}

    def body(rank: int) -> None:
        if rank not in group:
            return
        world.sleep(rank, wait_s(rank))
        messages = VirtualMessages(world, rank)
        reduction = Reduction(op, group, flats[group.index(rank)], cut)
        one = found[rank] = Reducing(
            reduction, rank, Tag(0, 3, 7), messages, lambda peer: True, capacity, measured=True
        )
        messages.wait(lambda: one.advance() or None, "its end")

    world.run([lambda rank=rank: body(rank) for rank in range(world.size)])  # type: ignore[misc]
    assert not any(link.messages for link in world.links.values())
    return [found[rank] for rank in group], world.now


def sent_sizes(op: Op, cut: tuple[int, ...], rank: int) -> int:
    """Items that a rank must send: each other's piece to it, and its own piece to each other."""
    sizes, others = piece_sizes(cut), len(cut) - 2
    scattered = sum(sizes) - sizes[rank]
    gathered = others * sizes[rank]
    return {Op.REDUCE_SCATTER: scattered, Op.ALL_GATHER: gathered, Op.ALL_REDUCE: scattered + gathered}[op]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(Op), st.integers(1, 4), st.integers(1, 3), st.sampled_from(DTYPES))
def test_sums_are_exact_in_rank_order_and_the_same_everywhere(
    data: st.DataObject, op: Op, ranks: int, capacity: int, dtype: torch.dtype
) -> None:
    cut = data.draw(bounds(ranks))
    delays = data.draw(st.lists(st.sampled_from((0.0, 0.4, 9.0)), min_size=ranks, max_size=ranks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducing, "SMALLEST_BYTES", data.draw(st.sampled_from((8, 24, 1 << 19))))
        patch.setattr(reducing, "LARGEST_BYTES", data.draw(st.sampled_from((24, 40, 1 << 23))))
        begun = [awkward(cut[-1], rank, dtype) for rank in range(ranks)]
        flats = [flat.clone() for flat in begun]
        done, _ = run_together(
            op, flats, cut, capacity=capacity, wait_s=lambda rank: delays[rank], transfer=lambda s, t, z: (z / 16, 0.3)
        )
    total = in_order(begun)
    for rank, flat in enumerate(flats):
        wanted = begun[rank].clone()
        for piece in range(ranks):
            own = slice(cut[piece], cut[piece + 1])
            if op is Op.ALL_REDUCE or (op is Op.REDUCE_SCATTER and piece == rank):
                wanted[own] = total[own]
            elif op is Op.ALL_GATHER:
                wanted[own] = begun[piece][own]
        assert torch.equal(flat, wanted)
        assert done[rank].sent_bytes == sent_sizes(op, cut, rank) * dtype.itemsize


def awkward(items: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different sizes: added in another order they give other bits."""
    index = torch.arange(items, dtype=torch.float64)
    return (torch.sin(index * 7.1 + rank * 1.7) * 10.0 ** ((index * 5 + rank * 3) % 9 - 4)).to(dtype)


def test_another_order_gives_other_bits() -> None:
    """What the test above relies on."""
    parts = [awkward(100, rank, torch.float32) for rank in range(3)]
    assert not torch.equal(in_order(parts), in_order(parts[::-1]))


def test_ranks_need_not_be_neighbours() -> None:
    flats = [torch.full((10,), float(rank)) for rank in (1, 4, 6)]
    run_together(Op.ALL_REDUCE, flats, (0, 2, 2, 10), ranks=(1, 4, 6))
    assert all(torch.equal(flat, torch.full((10,), 11.0)) for flat in flats)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_even_pieces_cost_what_the_formula_says(ranks: int) -> None:
    """2 (n - 1) ÷ n of the tensor for each rank."""
    items = 12 * ranks
    cut = tuple(12 * index for index in range(ranks + 1))
    done, _ = run_together(Op.ALL_REDUCE, [torch.ones(items) for _ in range(ranks)], cut)
    assert [one.sent_bytes for one in done] == [2 * (ranks - 1) * items * 4 // ranks] * ranks


def test_two_ranks_need_one_turn() -> None:
    """Both send everything at once: the sum is there after one latency."""
    _, end_s = run_together(
        Op.ALL_REDUCE, [torch.ones(8), torch.ones(8)], (0, 4, 8), transfer=lambda source, to, size: (0.0, 3.0)
    )
    assert end_s == 3.0


def test_three_ranks_need_two_turns() -> None:
    flats = [torch.ones(9) for _ in range(3)]
    _, end_s = run_together(Op.ALL_REDUCE, flats, (0, 3, 6, 9), transfer=lambda source, to, size: (0.0, 3.0))
    assert end_s == 6.0


def test_adding_goes_on_while_the_rest_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link carries 100 s of pieces, then 100 s of sums. In chunks, the first sums are there to follow at once."""
    transfer: TransferTime = lambda source, to, size: (size / 4, 50.0)  # noqa: E731
    cut = (0, 100, 200, 300)
    times = []
    for smallest, capacity in ((1 << 19, 1), (4, 100)):
        monkeypatch.setattr(reducing, "SMALLEST_BYTES", smallest)
        flats = [torch.ones(300) for _ in range(3)]
        times.append(run_together(Op.ALL_REDUCE, flats, cut, capacity=capacity, transfer=transfer)[1])
    assert times == [100 + 50 + 100 + 50, 100 + 100 + 50]


# --- in a step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp", [2, 3, 4])
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_replicas_are_summed(dp: int, zero: int, dtype: torch.dtype) -> None:
    """Uneven pieces, the first empty; buckets; the weights are equal after the gather, to the bit."""
    for schedule, buckets in (("1f1b", 1), ("zb-h1", 3), ("zb-v", 4)):
        case = Case(schedule, 2, 3, dp=dp, buckets=buckets, zero=zero, norm=True, tied=True, items=11, dtype=dtype)
        run = VirtualSteps(case)
        run.require_planned(run.run(case.round(0), case.round(1)))
        for stage in range(len(case.layout.stages)):
            holders = case.layout.stages[stage].ranks
            copies = [run.workers[rank].weights[stage] for rank in holders]
            assert all(torch.equal(copies[0], other) for other in copies[1:])
            assert copies[0].abs().sum() > 0


@pytest.mark.parametrize("dp", [2, 3, 4])
@pytest.mark.parametrize("zero", [0, 1])
def test_measured_bytes_are_the_formulas(dp: int, zero: int) -> None:
    case = Case("1f1b", 2, 2, dp=dp, zero=zero, items=10, tied=True)
    timeline = VirtualSteps(case).run()
    cut = uneven(10, dp)
    for span in timeline.spans:
        replica = case.layout.stages[span.action.stage].ranks.index(span.rank)
        wanted = {
            Kind.REDUCE_GRADIENTS: sent_sizes(Op.REDUCE_SCATTER if zero else Op.ALL_REDUCE, cut, replica) * 8,
            Kind.GATHER_PARAMETERS: sent_sizes(Op.ALL_GATHER, cut, replica) * 8,
            Kind.REDUCE_TIED: sent_sizes(Op.ALL_REDUCE, uneven(3, 2 * dp), span.rank) * 8,
            Kind.SEND_FORWARD: 8,
            Kind.SEND_BACKWARD: 8,
        }
        assert span.payload_bytes == wanted.get(span.action.kind, 0)


def overlapping(buckets: int, zero: int = 0) -> tuple[VirtualSteps, float, float]:
    """Two replicas; a backward of 10 s, and links that need 8 s for all gradients. Also what the simulator says."""
    case = Case("gpipe", 1, 1, dp=2, buckets=buckets, zero=zero, items=16)

    def seconds(rank: int, action: Action) -> float:
        return {Kind.FORWARD: 3.0, Kind.BACKWARD: 10.0 / buckets}.get(action.kind, 0.0)

    run = VirtualSteps(case, seconds, lambda source, to, size: (size / 16, 0.0))
    measured = run.run()
    by_kind = {(0, Kind.FORWARD): 3.0, (0, Kind.BACKWARD): 10.0, (0, Kind.REDUCE_GRADIENTS): 8.0}
    predicted = simulate(case.layout, run.rounds, FixedCosts(kind_seconds=by_kind), TINY)
    return run, measured.makespan_s, predicted.makespan_s


def test_a_bucket_is_reduced_while_the_backward_goes_on() -> None:
    """Whole, the reduction stands behind the backward; in two, half of it; in four, a quarter."""
    found = [overlapping(buckets)[1:] for buckets in (1, 2, 4)]
    assert found == [(3 + 10 + 8, 3 + 10 + 8), (3 + 10 + 4, 3 + 10 + 4), (3 + 10 + 2, 3 + 10 + 2)]


def test_the_spans_of_buckets_lie_over_the_backward() -> None:
    run, *_ = overlapping(2)
    spans = {
        (e[0].kind.value, e[0].part): (e[1], e[3]) for e in run.tracers[0].events if e[0].kind.lane is not Lane.P2P
    }
    assert spans["B", 0] == (3, 8)
    assert spans["B", 1] == (8, 13)
    assert spans["G", 0] == (8, 13)
    assert spans["G", 1] == (13, 17)


def test_a_reductions_span_is_a_transfer() -> None:
    run, *_ = overlapping(1)
    (span,) = (span for span in run.tracers[0].spans() if span.action.kind is Kind.REDUCE_GRADIENTS)
    assert span.parts == ()
    assert span.action.kind.lane is Lane.REDUCE
    assert (span.start_s, span.end_s, span.payload_bytes) == (13, 21, 16 * 8)


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_tied_reduction_does_not_fill_the_link_of_a_pipeline(
    capacity: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two positions share one link. The last stage ends long before stage 0, which still needs a gradient from there.

    Without the rule that a reduction sends after the step's messages, its chunks would fill that link.
    """
    monkeypatch.setattr(reducing, "SMALLEST_BYTES", 8)
    monkeypatch.setattr(reducing, "LARGEST_BYTES", 8)
    for schedule, virtual in (("interleaved", 2), ("1f1b", 1), ("zb-h2", 1), ("interleaved", 3)):
        case = Case(schedule, 2, micro_batches, virtual, capacity=capacity, tied=True, dp=2, norm=True)
        run = VirtualSteps(case, lambda rank, action: 1.0 + action.stage)
        run.require_planned(run.run(case.round(0), case.round(1)))


def test_without_that_rule_it_would_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded fault: the last stage's end of the tied reduction sends while stage 0 still waits for a gradient."""
    monkeypatch.setattr(reducing, "SMALLEST_BYTES", 8)
    monkeypatch.setattr(reducing, "LARGEST_BYTES", 8)
    case = Case("interleaved", 2, 2, 2, capacity=1, tied=True)
    VirtualSteps(case, lambda rank, action: 1.0).run()
    monkeypatch.setattr(ReduceLane, "_may_send", lambda self, peer: True)
    with pytest.raises(RunError) as caught:
        VirtualSteps(case, lambda rank, action: 1.0).run()
    assert str(caught.value) == "deadlock: ranks [0, 1] wait for messages that nobody sends"
