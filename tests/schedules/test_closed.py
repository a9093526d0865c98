"""The closed forms against the orders themselves: their replay, and what they really hold."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.schedules.clock import even_run, tick
from plait.schedules.closed import bubble_s, exact, in_flight, step_s
from plait.schedules.order import held_peak
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED, compute_order


def replayed_s(schedule: str, positions: int, virtual: int, micro_batches: int, *seconds: float) -> float:
    ticks = tick([even_run(compute_order(schedule, positions, virtual, micro_batches), *seconds)])[0]
    return float((ticks.begin_s + ticks.seconds).max())


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    schedule = draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 2 if schedule in V_SHAPED else 1 if schedule in ONE_STAGE else draw(st.integers(1, 4))
    positions = draw(st.integers(1, 9))
    micro_batches = draw(st.integers(1, 6)) * positions if draw(st.booleans()) else draw(st.integers(1, 30))
    return schedule, positions, virtual, micro_batches


@settings(max_examples=400)
@given(shapes(), st.floats(0.1, 4), st.floats(0.1, 4), st.floats(0.05, 4))
@example(("dualpipe-v", 4, 2, 18), 1.822, 0.547, 0.966)
@example(("zb-v", 5, 2, 14), 0.57, 1.9, 0.3)
@example(("zb-h2", 5, 1, 9), 1.0, 2.12, 1.37)
def test_equal_to_the_replay_or_a_bound(
    shape: tuple[str, int, int, int], forward_s: float, input_s: float, weight_s: float
) -> None:
    closed = step_s(*shape, forward_s, input_s, weight_s)
    real = replayed_s(*shape, forward_s, input_s, weight_s)
    if exact(*shape):
        assert closed == pytest.approx(real, rel=1e-9)
    else:
        assert closed <= real * (1 + 1e-9)


@settings(max_examples=200)
@given(shapes())
def test_in_flight_is_what_the_order_holds_or_a_bound(shape: tuple[str, int, int, int]) -> None:
    held = held_peak(compute_order(*shape))
    if exact(*shape):
        assert in_flight(*shape) == held
    else:
        assert all(real <= closed for real, closed in zip(held, in_flight(*shape), strict=True))


@pytest.mark.parametrize(
    ("schedule", "virtual", "published"),
    [
        ("gpipe", 1, lambda p, f, i, w: (p - 1) * (f + i + w)),
        ("1f1b", 1, lambda p, f, i, w: (p - 1) * (f + i + w)),
        # per virtual stage: the published (p − 1)(F + B) ÷ v counts whole positions
        ("interleaved", 3, lambda p, f, i, w: (p - 1) * (f + i + w)),
        ("zb-h1", 1, lambda p, f, i, w: (p - 1) * (f + i - w)),
    ],
)
def test_the_published_bubbles(schedule: str, virtual: int, published: object) -> None:
    """Sources: shared table bubble_formulas. W is about as long as F and I there."""
    assert callable(published)
    for p in (2, 4, 8):
        for seconds in ((1.0, 1.0, 1.0), (1.1, 1.05, 0.9)):
            assert bubble_s(schedule, p, *seconds) == pytest.approx(published(p, *seconds), rel=1e-12)
            assert exact(schedule, p, virtual, 4 * p)


def test_the_published_spans_of_the_others() -> None:
    """ZB-H2 (p − 1)(F + I − 2W), ZB-V none with F = I = W: of the longest span; the step ends (p − 1) F later."""
    for p in (2, 4, 8):
        spare_s = {"zb-h2": (p - 1) * (1.05 + 1.1 - 2 * 0.8), "zb-v": 0.0}
        for schedule, virtual, seconds in (("zb-h2", 1, (1.05, 1.1, 0.8)), ("zb-v", 2, (1.0, 1.0, 1.0))):
            order = compute_order(schedule, p, virtual, 4 * p)
            ticks = tick([even_run(order, *seconds)])[0]
            first, last = order.bounds[:-1], order.bounds[1:] - 1
            spans = ticks.begin_s[last] + ticks.seconds[last] - ticks.begin_s[first]
            busy_s = 4 * p * virtual * sum(seconds)
            assert spans.max() - busy_s == pytest.approx(spare_s[schedule], abs=1e-9)


def test_dualpipe_v_counts_a_forward_beside_a_backward_as_one_block() -> None:
    """Published: (PP/2 − 1)(F&B + B − 3W), PP = 2p stages on p devices, B = I + W, where F&B hands over when both end.

    Ours hands over what ends first, so its bubble is (p − 1)(F + I − W). With F = I = W = 1 that is 2 and 1 a position.
    """
    for p in (2, 4, 8):
        assert _blocks_s(p, 4 * p) - 4 * p * 2 * 3 == (p - 1) * (3 + 2 - 3)
        assert bubble_s("dualpipe-v", p, 1, 1, 1) == p - 1


def _blocks_s(positions: int, micro_batches: int) -> int:
    """The step's time with unit times where a forward and the whole backward right after it are one block."""
    order = compute_order("dualpipe-v", positions, 2, micro_batches)
    lanes = [_blocks(lane) for lane in order.actions()]
    ends: dict[tuple[str, int, int], int] = {}
    free, at = [0] * positions, [0] * positions
    while any(at[q] < len(lane) for q, lane in enumerate(lanes)):
        for q, lane in enumerate(lanes):
            while at[q] < len(lane):
                needs = [need for action in lane[at[q]] for need in _need(action, order.stages)]
                if any(need not in ends for need in needs):
                    break
                start = max([free[q], *(ends[need] for need in needs)])
                free[q] = start + sum(2 if action.kind is Kind.BACKWARD else 1 for action in lane[at[q]])
                for action in lane[at[q]]:
                    kind = "B" if action.kind is Kind.BACKWARD_INPUT else action.kind.value
                    ends[kind, action.stage, action.micro_batch] = free[q]
                at[q] += 1
    return max(free)


def _blocks(lane: tuple[Action, ...]) -> list[list[Action]]:
    blocks: list[list[Action]] = []
    for action in lane:
        if action.kind is Kind.BACKWARD and blocks and [a.kind for a in blocks[-1]] == [Kind.FORWARD]:
            blocks[-1].append(action)
        else:
            blocks.append([action])
    return blocks


def _need(action: Action, stages: int) -> list[tuple[str, int, int]]:
    if action.kind is Kind.FORWARD:
        return [("F", action.stage - 1, action.micro_batch)] if action.stage else []
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        return [("B", action.stage + 1, action.micro_batch)] if action.stage < stages - 1 else []
    return []


def test_refusals_are_the_schedules() -> None:
    for function in (lambda: step_s("1f2b", 2, 1, 4, 1, 1, 1), lambda: in_flight("1f2b", 2, 1, 4)):
        with pytest.raises(PlanError) as error:
            function()
        assert str(error.value) == "unknown schedule '1f2b' for training: did you mean '1f1b'?"
