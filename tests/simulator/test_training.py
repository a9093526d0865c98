"""Training steps whose times one can work out by hand, or by the published formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from plait.costs.protocol import Exchange, FixedCosts, LinkCost
from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Round, Row
from plait.simulator.simulate import simulate
from plait.timeline.span import Part
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from tests.simulator.training_rounds import TINY, make_lowered_step, make_step, seconds_of, work_of


def when(timeline: Timeline, letters: str, stage: int) -> list[tuple[float, float]]:
    return [
        (span.start_s, span.end_s)
        for span in timeline.spans
        if span.action.kind.value == letters and span.action.stage == stage
    ]


def figures(schedule: str, positions: int, micro_batches: int, virtual: int = 1, **seconds: float) -> dict[str, float]:
    layout, one = make_step(schedule, positions, micro_batches, virtual)
    costs = FixedCosts(kind_seconds=seconds_of(len(layout.stages), **seconds))
    return training_metrics(simulate(layout, [one], costs, TINY), layout)


@pytest.mark.parametrize(("positions", "micro_batches"), [(1, 3), (2, 2), (4, 8), (8, 24)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b(schedule: str, positions: int, micro_batches: int) -> None:
    """(p − 1) ÷ (m + p − 1): arXiv 1811.06965, arXiv 2104.04473."""
    got = figures(schedule, positions, micro_batches)
    assert got["bubble"] == pytest.approx((positions - 1) / (micro_batches + positions - 1))
    assert got["step_s"] == pytest.approx(3.0 * (micro_batches + positions - 1))


@pytest.mark.parametrize(("positions", "virtual", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 12)])
def test_bubble_of_interleaved(positions: int, virtual: int, micro_batches: int) -> None:
    """(p − 1) ÷ (v m + p − 1): arXiv 2104.04473, section 2.2."""
    got = figures("interleaved", positions, micro_batches, virtual)
    assert got["bubble"] == pytest.approx((positions - 1) / (virtual * micro_batches + positions - 1))


@pytest.mark.parametrize(("schedule", "weights"), [("1f1b", 0), ("zb-h1", 2), ("zb-h2", 3)])
def test_span_bubble_of_zero_bubble_schedules(schedule: str, weights: int) -> None:
    """Idle (p − 1)(F + I + W − n W) of the longest span: arXiv 2401.10241, table 2 (where B is our I)."""
    p, m, forward, gradient, weight = 4, 12, 1.0, 1.2, 0.8
    got = figures(schedule, p, m, forward=forward, backward=gradient + weight, weight=weight)
    idle = (p - 1) * (forward + gradient + weight - weights * weight)
    busy = m * (forward + gradient + weight)
    assert got["span_bubble"] == pytest.approx(idle / (busy + idle))


def test_a_step_by_hand() -> None:
    """Two positions, 1F1B, two micro-batches; F 1 s, B 2 s; 1 s of latency each way; G 0.5, O 0.25, A 0.125 s.

    stage 0: F0 0-1, F1 1-2, then B0 when stage 1's gradient is there; stage 1: F0 2-3, B0 3-5, F1 5-6, B1 6-8.
    Gradients at 6 and 9: stage 0 does B0 6-8, B1 9-11, G 11-11.5, O to 11.75, A to 11.875.
    """
    layout, one = make_step("1f1b", 2, 2, reduces=True)
    ends = {Kind.REDUCE_GRADIENTS: 0.5, Kind.OPTIMIZER: 0.25, Kind.GATHER_PARAMETERS: 0.125}
    seconds = seconds_of(2) | {(stage, kind): s for stage in (0, 1) for kind, s in ends.items()}
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds, any_link=LinkCost(1.0, float("inf"))), TINY)
    assert when(timeline, "F", 0) == [(0.0, 1.0), (1.0, 2.0)]
    assert when(timeline, "F", 1) == [(2.0, 3.0), (5.0, 6.0)]
    assert when(timeline, "B", 1) == [(3.0, 5.0), (6.0, 8.0)]
    assert when(timeline, "B", 0) == [(6.0, 8.0), (9.0, 11.0)]
    assert when(timeline, "G", 0) == [(11.0, 11.5)]
    assert when(timeline, "O", 0) == [(11.5, 11.75)]
    assert when(timeline, "A", 0) == [(11.75, 11.875)]
    got = training_metrics(timeline, layout)
    assert got["step_s"] == 11.875
    assert got["compute_s"] == 2 * (2 * 3.0 + 0.25)
    assert got["transfer_s"] == 2 * (0.5 + 0.125)
    assert got["wait_s"] == pytest.approx(2 * 11.875 - got["compute_s"] - got["transfer_s"])
    assert got["bubble"] == pytest.approx(1 - got["compute_s"] / (2 * 11.875))


def test_a_reduction_runs_beside_computing() -> None:
    """B is cut in two: the first half's gradients are reduced (4 s) while the second half (1 s) runs.

    F 0-1, B.0 1-2, B.1 2-3; G.0 2-4, G.1 4-6; O 6-6.5. Of the 4 s of reductions 1 s is hidden.
    """
    cut = [Action(0, 0, kind, 0, part) for part in (0, 1) for kind in (Kind.BACKWARD, Kind.REDUCE_GRADIENTS)]
    actions = (Action(0, 0, Kind.FORWARD, 0), *cut, Action(0, 0, Kind.OPTIMIZER, 0))
    seconds = seconds_of(1) | {(0, Kind.REDUCE_GRADIENTS): 4.0, (0, Kind.OPTIMIZER): 0.5}
    exchanges = {(0, Kind.REDUCE_GRADIENTS): Exchange(sent_bytes=1000)}
    layout = Layout({"dp": 1}, (Stage((0, 1), (0,)),))
    costs = FixedCosts(kind_seconds=seconds, exchanges=exchanges)
    timeline = simulate(layout, [Round(0, work_of(1), (actions,))], costs, TINY)
    assert when(timeline, "B", 0) == [(1.0, 2.0), (2.0, 3.0)]
    assert when(timeline, "G", 0) == [(2.0, 4.0), (4.0, 6.0)]
    assert when(timeline, "O", 0) == [(6.0, 6.5)]
    got = training_metrics(timeline, layout, model_flops=13e12, peak_flops=4e12, peak_bytes=77)
    assert (got["compute_s"], got["transfer_s"], got["wait_s"]) == (3.5, 3.0, 0.0)
    assert (got["comm_bytes"], got["mfu"], got["peak_bytes"]) == (1000, 0.5, 77)


def test_a_tied_embedding_and_the_norm_by_hand() -> None:
    """1F1B over 3 positions, one micro-batch, F 1 s, B 2 s, no latency; T 0.5 s, N 0.25 s (0.125 exchanged), O 0.125 s.

    F 0-1, 1-2, 2-3; B of stage 2 at 3-5, of 1 at 5-7, of 0 at 7-9. T of stage 2 waits from 5, of stage 0 from 9: both
    until 9.5. Stage 1 comes to its N at 7, the others at 9.5: all until 9.75. Then O.
    """
    layout, one = make_lowered_step("1f1b", 3, 1, 1, capacity=2, replicas=1, buckets=1, tied=True, norm=True)
    ends = {Kind.REDUCE_TIED: 0.5, Kind.NORM: 0.25, Kind.OPTIMIZER: 0.125}
    seconds = seconds_of(3) | {(stage, kind): s for stage in range(3) for kind, s in ends.items()}
    exchanges = {(stage, Kind.NORM): Exchange(0.125, 112) for stage in range(3)}
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds, exchanges=exchanges), TINY)
    assert [when(timeline, "T", stage) for stage in range(3)] == [[(9.0, 9.5)], [], [(5.0, 9.5)]]
    assert [when(timeline, "N", stage) for stage in range(3)] == [[(9.5, 9.75)], [(7.0, 9.75)], [(9.5, 9.75)]]
    assert [when(timeline, "O", stage) for stage in range(3)] == [[(9.75, 9.875)]] * 3
    by_name = {(span.action.kind.value, span.action.stage): span for span in timeline.spans}
    assert by_name["N", 1].payload_bytes == 112
    assert by_name["N", 1].parts == (
        Part("wait", 7.0, 9.5),
        Part("compute", 9.5, 9.625),
        Part("transfer", 9.625, 9.75),
    )
    assert by_name["T", 2].parts == (Part("wait", 5.0, 9.0), Part("transfer", 9.0, 9.5))
    assert by_name["T", 0].parts == (Part("transfer", 9.0, 9.5),)
    got = training_metrics(timeline, layout)
    assert got["compute_s"] == pytest.approx(3 * (3.0 + 0.125 + 0.125))
    assert got["transfer_s"] == pytest.approx(2 * 0.5 + 3 * 0.125)


def test_one_position_with_both_ends_meets_nobody_in_t() -> None:
    """A V over 2 positions: behind all G the T of stage 3 does nothing, that of stage 0 is the exchange; N meets N."""
    layout, one = make_lowered_step("zb-v", 2, 1, 2, capacity=2, replicas=2, buckets=1, tied=True, norm=True)
    seconds = seconds_of(4) | {(0, Kind.REDUCE_TIED): 0.5}
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds), TINY, replicas=False)
    (first,), (last,) = when(timeline, "T", 0), when(timeline, "T", 3)
    (end_0,) = when(timeline, "W", 0)
    assert last == (end_0[1], end_0[1])
    assert first == (end_0[1], end_0[1] + 0.5)
    assert {end for _, end in (*when(timeline, "N", 0), *when(timeline, "N", 1))} == {first[1]}


def test_positions_of_one_host_meet_too() -> None:
    """Two positions on one core, a micro-batch: 6 s of passes one after another; then both N at half speed."""
    layout, one = make_lowered_step("1f1b", 2, 1, 1, capacity=2, replicas=1, buckets=1, norm=True)
    together = replace(layout, stages=tuple(replace(stage, host="box") for stage in layout.stages))
    seconds = seconds_of(2) | {(stage, Kind.NORM): 0.5 for stage in (0, 1)}
    timeline = simulate(together, [one], FixedCosts(kind_seconds=seconds, cores=1), TINY)
    assert when(timeline, "N", 0) == [pytest.approx((6.0, 7.0))]
    assert when(timeline, "N", 1) == [pytest.approx((4.0, 7.0))]


def test_a_norm_that_one_position_never_comes_to() -> None:
    layout, one = make_lowered_step("1f1b", 2, 1, 1, capacity=2, replicas=1, buckets=1, tied=True, norm=True)
    late = [action for action in one.actions[0] if action.kind is not Kind.NORM]
    late.insert(0, Action(0, 0, Kind.NORM, 0))
    with pytest.raises(PlanError) as raised:
        simulate(layout, [replace(one, actions=(tuple(late), one.actions[1]))], FixedCosts(), TINY)
    assert str(raised.value) == (
        "deadlock: 0:0N0 waits for 0:0T0; 0:0SF0 waits for 0:0F0; 0:0T0 waits for 0:0B0; 0:1F0 waits for 0:1RF0; "
        "0:1RF0 waits for 0:0SF0; 0:1T0 waits for 0:1B0"
    )
    bare = tuple(tuple(a for a in of if a.kind is not Kind.REDUCE_TIED) for of in (late, one.actions[1]))
    with pytest.raises(PlanError, match=r"^deadlock: 0:0N0 waits for 0:1N0; "):
        simulate(layout, [replace(one, actions=bare)], FixedCosts(), TINY)


def test_stages_of_one_position_send_each_other_nothing() -> None:
    """A V over 2 positions: stages 0 3 and 1 2. Only 0→1, 2→3 and back cross a link."""
    layout, one = make_step("zb-v", 2, 3, 2)
    assert layout.positions == ((0, 3), (1, 2))
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds_of(4)), TINY)
    sent = {(span.action.stage, span.action.kind.value) for span in timeline.spans if span.action.kind.sends}
    assert sent == {(0, "SF"), (2, "SF"), (1, "SB"), (3, "SB")}
    assert {span.rank for span in timeline.spans if span.action.stage in (0, 3)} == {0}


def test_virtual_stages_share_their_positions_link() -> None:
    """Two positions, stages 0 2 and 1 3: the activations 0→1 and 2→3 go over one link of capacity 1.

    All sends cost 1 s on the link and nothing computes long: they follow each other.
    """
    layout, one = make_step("interleaved", 2, 2, 2)
    sent_bytes = 64 * 64 * 4
    timeline = simulate(layout, [one], FixedCosts(any_link=LinkCost(0.0, sent_bytes)), TINY)
    forward = sorted(when(timeline, "SF", 0) + when(timeline, "SF", 2))
    assert len(forward) == 4
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(forward))


def test_exchanges_inside_an_action_are_transfer_and_not_busy() -> None:
    """F takes 1 s, of which its tensor group exchanges 0.25 s."""
    actions = (Action(0, 0, Kind.FORWARD, 0), Action(0, 0, Kind.BACKWARD, 0))
    layout = Layout({"tp": 2}, (Stage((0, 1), (0, 1)),))
    exchanges = {(0, Kind.FORWARD): Exchange(0.25, 640)}
    costs = FixedCosts(kind_seconds=seconds_of(1), exchanges=exchanges)
    timeline = simulate(layout, [Round(0, work_of(1), (actions,))], costs, TINY)
    first = timeline.spans[0]
    assert [(part.what, part.start_s, part.end_s) for part in first.parts] == [
        ("compute", 0.0, 0.75),
        ("transfer", 0.75, 1.0),
    ]
    got = training_metrics(timeline, layout)
    assert (got["compute_s"], got["transfer_s"], got["comm_bytes"]) == (5.5, 0.5, 1280)
    assert got["bubble"] == pytest.approx(0.5 / 6)


def test_the_first_rank_stands_for_all() -> None:
    layout, one = make_step("1f1b", 3, 5, reduces=True, ranks_each=4)
    seconds = seconds_of(3) | {(stage, Kind.REDUCE_GRADIENTS): 0.5 for stage in range(3)}
    costs = FixedCosts(kind_seconds=seconds, any_link=LinkCost(0.125, 1e6))
    everyone = simulate(layout, [one], costs, TINY)
    few = simulate(layout, [one], costs, TINY, replicas=False)
    assert len(everyone.spans) == 4 * len(few.spans)
    assert few.ranks == (0, 4, 8)
    assert set(few.spans) <= set(everyone.spans)
    assert training_metrics(few, layout) == pytest.approx(training_metrics(everyone, layout))


def test_steps_follow_each_other() -> None:
    """Two rounds: nothing of the second begins before the first's in its lane, and step_s is the mean."""
    layout, one = make_step("1f1b", 2, 2)
    again = replace(one, number=1, actions=tuple(tuple(a._replace(round=1) for a in of) for of in one.actions))
    timeline = simulate(layout, [one, again], FixedCosts(kind_seconds=seconds_of(2)), TINY)
    assert when(timeline, "F", 0)[2] == (9.0, 10.0)
    assert training_metrics(timeline, layout, steps=2)["step_s"] == pytest.approx(timeline.end_s / 2)


def test_a_step_that_gets_stuck_names_its_actions() -> None:
    """Stage 1 never sends its gradient; stage 0 waits for it, and its optimizer for the reduction."""
    layout, one = make_step("1f1b", 2, 1, reduces=True)
    kept = tuple(action for action in one.actions[1] if action.kind is not Kind.SEND_BACKWARD)
    with pytest.raises(PlanError) as raised:
        simulate(layout, [replace(one, actions=(one.actions[0], kept))], FixedCosts(), TINY)
    assert str(raised.value) == ("deadlock: 0:0B0 waits for 0:0RB0; 0:0RB0 waits for 0:1SB0; 0:0G0 waits for 0:0B0")


def test_a_missing_action_is_named() -> None:
    layout, one = make_step("1f1b", 2, 1, reduces=True)
    kept = tuple(action for action in one.actions[0] if action.kind is not Kind.BACKWARD)
    with pytest.raises(PlanError) as raised:
        simulate(layout, [replace(one, actions=(kept, one.actions[1]))], FixedCosts(), TINY)
    assert str(raised.value) == "0:0G0 waits for an action that is not there"


def test_costs_are_asked_once_a_shape() -> None:
    """Three sequences of 64 tokens and one of 32; who they are does not matter, how long and from where does."""
    asked: list[tuple[Kind, MicroBatch]] = []

    class Asked(FixedCosts):
        def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
            asked.append((kind, micro_batch))
            return float(micro_batch.tokens + sum(row.start for row in micro_batch.rows))

    layout, one = make_step("gpipe", 1, 4)
    lengths, begins = (64, 64, 32, 64), (0, 0, 0, 8)
    rows = [Row(i, i, begin, length, False) for i, (begin, length) in enumerate(zip(begins, lengths, strict=True))]
    one = replace(one, work=tuple(MicroBatch((row,)) for row in rows))
    timeline = simulate(layout, [one], Asked(), TINY)
    assert [end - start for start, end in when(timeline, "F", 0)] == [64.0, 64.0, 32.0, 72.0]
    assert [kind for kind, _ in asked] == [Kind.FORWARD] * 3 + [Kind.BACKWARD] * 3


def test_positions_of_one_host_slow_each_other() -> None:
    """Two positions on one core: 1F1B of two micro-batches, F 1 s, B 2 s; all of 12 s of work, one core never idle."""
    layout, one = make_step("1f1b", 2, 2)
    together = replace(layout, stages=tuple(replace(stage, host="box") for stage in layout.stages))
    costs = FixedCosts(kind_seconds=seconds_of(2), cores=1)
    assert simulate(together, [one], costs, TINY).end_s == pytest.approx(12.0)
