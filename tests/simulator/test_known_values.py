"""Values that are known before the simulator runs: from a formula, or worked out by hand beside the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from plait.costs.protocol import FixedCosts, LinkCost
from plait.errors import PlanError
from plait.plans.layout import Layout, Stage
from plait.plans.round import Carried, MicroBatch, Round, Row
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.compare import summarise
from plait.timeline.timeline import Timeline

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)


def layout_of(stages: int, capacity: int = 2, threads: int = 1, hosts: Sequence[str] | None = None) -> Layout:
    made = tuple(
        Stage((i, i + 1), (i,), threads=threads, host=hosts[i] if hosts else f"host{i}") for i in range(stages)
    )
    return Layout({"pp": stages}, made, link_capacity=capacity)


def prefill(micro_batches: int, tokens: int = 64) -> tuple[MicroBatch, ...]:
    """Micro-batches whose tokens nobody waits for."""
    return tuple(MicroBatch((Row(i, i, 0, tokens, False),)) for i in range(micro_batches))


def decoding(micro_batches: int, start: int = 100) -> tuple[MicroBatch, ...]:
    return tuple(MicroBatch((Row(i, i, start, 1, True),)) for i in range(micro_batches))


def rounds_of(
    stages: int, works: Sequence[tuple[MicroBatch, ...]], schedule: str = "pipelined", drain: bool = True
) -> list[Round]:
    """One round each, and further ones without work until no token message is in flight."""
    rounds: list[Round] = []
    carried: tuple[Carried, ...] = ()
    waiting = list(works)
    while waiting or (drain and carried):
        work = waiting.pop(0) if waiting else ()
        rounds.append(make_round(len(rounds), stages, work, carried, schedule))
        carried = rounds[-1].carried_out
    return rounds


def ends(timeline: Timeline, kind: str, stage: int) -> list[float]:
    return [span.end_s for span in timeline.spans if (span.action.kind.value, span.action.stage) == (kind, stage)]


def starts(timeline: Timeline, kind: str, stage: int) -> list[float]:
    return [span.start_s for span in timeline.spans if (span.action.kind.value, span.action.stage) == (kind, stage)]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7])
def test_forward_only_pipeline(stages: int, micro_batches: int) -> None:
    """Equal stages, no communication: bubble (p−1)/(m+p−1), makespan (m+p−1) × stage time."""
    rounds = rounds_of(stages, [prefill(micro_batches)])
    costs = FixedCosts(dict.fromkeys(range(stages), 0.25))
    summary = summarise(simulate(layout_of(stages), rounds, costs, TINY))
    assert summary.makespan_s == pytest.approx(0.25 * (micro_batches + stages - 1))
    assert summary.whole.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_layerwise_keeps_one_stage_busy(stages: int) -> None:
    """Layer-wise: bubble 1 − 1/p, and each stage computes 1/p of the time."""
    rounds = rounds_of(stages, [decoding(1)] * 6, "layerwise")
    summary = summarise(simulate(layout_of(stages), rounds, FixedCosts(dict.fromkeys(range(stages), 1.0)), TINY))
    assert summary.makespan_s == pytest.approx(6.0 * stages)
    assert summary.whole.bubble == pytest.approx(1 - 1 / stages)
    assert [one.shares.compute_s for one in summary.stages] == pytest.approx([6.0] * stages)


def test_pipelined_decoding_fills_both_stages() -> None:
    """Two micro-batches over two equal stages: each stage is idle once, at the end or at the begin.

    stage 0  F0 F1 F0 F1 F0 F1 ··
    stage 1  ·· F0 F1 F0 F1 F0 F1
    """
    rounds = rounds_of(2, [decoding(2)] * 3)
    summary = summarise(simulate(layout_of(2), rounds, FixedCosts({0: 1.0, 1: 1.0}), TINY))
    assert summary.makespan_s == pytest.approx(7.0)
    assert summary.whole.bubble == pytest.approx(1 - 12 / 14)


def test_unequal_stages_are_bound_by_the_slowest() -> None:
    """m micro-batches, stages 1 s, 3 s, 2 s: first through takes 6 s, each further one 3 s."""
    rounds = rounds_of(3, [prefill(4)])
    timeline = simulate(layout_of(3), rounds, FixedCosts({0: 1.0, 1: 3.0, 2: 2.0}), TINY)
    assert timeline.makespan_s == pytest.approx(6.0 + 3 * 3.0)


def test_transfer_by_hand() -> None:
    """64 tokens × 64 hidden × 4 bytes = 16384 B at 16384 B/s: 1 s on the link, 0.5 s latency.

    0F0 0-1, its send 1-2, there at 2.5; 1RF0 waits 0-2.5, 1F0 2.5-3.5. Second: 0F1 1-2, its send 2-3, there at 3.5.
    """
    costs = FixedCosts({0: 1.0, 1: 1.0}, any_link=LinkCost(0.5, 16384.0))
    timeline = simulate(layout_of(2), rounds_of(2, [prefill(2)]), costs, TINY)
    assert (starts(timeline, "SF", 0), ends(timeline, "SF", 0)) == ([1.0, 2.0], [2.0, 3.0])
    assert (starts(timeline, "RF", 1), ends(timeline, "RF", 1)) == ([0.0, 2.5], [2.5, 3.5])
    assert starts(timeline, "F", 1) == [2.5, 3.5]
    assert [span.payload_bytes for span in timeline.spans if span.action.kind.sends] == [16384, 16384]
    stage = summarise(timeline).stages[0].shares
    assert (stage.compute_s, stage.transfer_s) == (2.0, 2.0)
    assert stage.wait_s == pytest.approx(4.5 - 3.0)  # compute 0-2, transfer 1-3, of 4.5 s


def test_token_message_goes_back() -> None:
    """One row: 8 bytes at 8 B/s and 1 s latency back; activations of 256 B at 256 B/s. A token takes 1+2+1+2 s."""
    links = {(0, 1): LinkCost(1.0, 256.0), (1, 0): LinkCost(1.0, 8.0)}
    rounds = rounds_of(2, [decoding(1)] * 3, "layerwise")
    timeline = simulate(layout_of(2), rounds, FixedCosts({0: 1.0, 1: 1.0}, links), TINY)
    assert starts(timeline, "F", 0) == [0.0, 6.0, 12.0]
    assert timeline.end_s == pytest.approx(18.0)


def test_who_waited_long_wakes_late() -> None:
    """Layer-wise, 1 s a stage; each hand-over wakes a sleeper in 0.25 s, activations and tokens alike."""
    costs = FixedCosts({0: 1.0, 1: 1.0}, any_link=LinkCost(0.0, float("inf"), 0.25))
    timeline = simulate(layout_of(2), rounds_of(2, [decoding(1)] * 2, "layerwise"), costs, TINY)
    assert starts(timeline, "F", 0) == [0.0, 2.5]
    assert starts(timeline, "F", 1) == [1.25, 3.75]


def test_who_hardly_waited_is_still_awake() -> None:
    """Half a millisecond is not enough to fall asleep."""
    costs = FixedCosts({0: 0.0005, 1: 0.0005}, any_link=LinkCost(0.0, float("inf"), 0.25))
    timeline = simulate(layout_of(2), rounds_of(2, [decoding(1)] * 2, "layerwise"), costs, TINY)
    assert starts(timeline, "F", 1) == pytest.approx([0.0005, 0.0015])


def test_a_send_waits_for_room() -> None:
    """Stage 0 takes 0 s, stage 1 takes 10 s, the link nothing, so receives run ahead by the lane alone.

    Receives end as soon as the message is there: with k=1 or 2 nothing waits, since a receive never waits for compute.
    """
    for capacity in (1, 2):
        costs = FixedCosts({1: 10.0})
        timeline = simulate(layout_of(2, capacity), rounds_of(2, [prefill(4)]), costs, TINY)
        assert ends(timeline, "SF", 0) == [0.0] * 4
        assert timeline.makespan_s == 40.0


def test_k_decides_how_far_a_sender_runs_ahead() -> None:
    """Stage 1's lane is 1RF0 1SF0 1RF1 1SF1 …: it cannot receive 1 before it sent 0, which ends at 10 with 1F0.

    Stages take 0, 10, 0 s. With k=1, message 0 is received at 0, message 1 lies unreceived until 10, so message 2 is
    sent at 10 and message 3 at 20. With k=2, message 2 is sent at 0 and message 3 at 10.
    """
    ended = {
        capacity: ends(
            simulate(layout_of(3, capacity), rounds_of(3, [prefill(4)]), FixedCosts({1: 10.0}), TINY), "SF", 0
        )
        for capacity in (1, 2, 3)
    }
    assert ended == {1: [0.0, 0.0, 10.0, 20.0], 2: [0.0, 0.0, 0.0, 10.0], 3: [0.0] * 4}


def test_room_costs_latency_when_k_is_one() -> None:
    """Latency 1 s, nothing else costs: with k=1 each message waits until the one before it arrived."""
    for capacity, expected in ((1, 4.0), (2, 2.0), (4, 1.0)):
        costs = FixedCosts(any_link=LinkCost(1.0, float("inf")))
        timeline = simulate(layout_of(2, capacity), rounds_of(2, [prefill(4)]), costs, TINY)
        assert ends(timeline, "RF", 1)[-1] == expected


def test_waiting_for_room_is_a_part_of_the_send() -> None:
    costs = FixedCosts(any_link=LinkCost(1.0, float("inf")))
    timeline = simulate(layout_of(2, 1), rounds_of(2, [prefill(2)]), costs, TINY)
    second = [span for span in timeline.spans if span.action.kind.value == "SF"][1]
    assert [(part.what, part.start_s, part.end_s) for part in second.parts] == [
        ("wait", 0.0, 1.0),
        ("transfer", 1.0, 1.0),
    ]


def test_a_rank_that_comes_later_slows_the_others() -> None:
    """Two-thread ranks on two cores: 0F0 alone 0-2; then 0F1 and 1F0 at half speed, 2 s of work each: 2-6; 1F1 6-8."""
    layout = layout_of(2, threads=2, hosts=["box"] * 2)
    timeline = simulate(layout, rounds_of(2, [prefill(2)]), FixedCosts({0: 2.0, 1: 2.0}, cores=2), TINY)
    assert ends(timeline, "F", 0) == pytest.approx([2.0, 6.0])
    assert ends(timeline, "F", 1) == pytest.approx([6.0, 8.0])


def test_ranks_of_different_hosts_do_not_share() -> None:
    layout = layout_of(2, threads=2)
    timeline = simulate(layout, rounds_of(2, [prefill(2)]), FixedCosts({0: 2.0, 1: 2.0}, cores=2), TINY)
    assert timeline.makespan_s == 6.0


def test_rounds_that_get_stuck_name_their_actions() -> None:
    rounds = rounds_of(2, [decoding(1)] * 2)[1:]  # the token message of round 0 is carried in: it is there
    assert simulate(layout_of(2), rounds, FixedCosts(), TINY).spans
    lost = [replace(rounds[0], carried_in=()), *rounds[1:]]
    with pytest.raises(PlanError) as raised:
        simulate(layout_of(2), lost, FixedCosts(), TINY)
    assert "0:0RT0 waits for 0:1ST0" in str(raised.value)
    assert "1:0F0 waits for 0:0RT0" in str(raised.value)


def test_no_rounds_no_spans() -> None:
    assert simulate(layout_of(2), [], FixedCosts(), TINY).spans == ()


@pytest.mark.parametrize(("buffered", "makespan_s"), [(False, 1 + 2 + 4 * 3 + 1), (True, 1 + 4 * 2 + 1 + 2 + 1)])
def test_a_card_sends_while_the_stage_computes(buffered: bool, makespan_s: float) -> None:
    """Three stages of 1 s and messages of 2 s, four micro-batches.

    Copied, the middle stage's lane receives, computes for 1 s and sends for 2 s, so that a micro-batch comes every 3 s;
    by a card the link alone binds, every 2 s.
    """
    layout, work = layout_of(3, capacity=8), prefill(4)
    link = LinkCost(0.0, 64 * 64 * 4 / 2.0, buffered=buffered)
    costs = FixedCosts(dict.fromkeys(range(3), 1.0), any_link=link)
    timeline = simulate(layout, rounds_of(3, [work]), costs, TINY)
    assert timeline.makespan_s == pytest.approx(makespan_s)
