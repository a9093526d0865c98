"""The orders as the papers draw them, and what holds for all of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.schedules.clock import Run, even_run, tick
from plait.schedules.order import KINDS, Column, Order, held_peak, loop, v_shape
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED, compute_order


def drawn(order: Order, backward: int) -> list[str]:
    """A line a position, a cell a unit of time: F takes 1, B `backward` (its halves 1 each, or half a unit)."""
    ticks = tick([even_run(order, 1, backward / 2, backward / 2)])[0]
    return [_line(order, position, ticks.begin_s, ticks.seconds) for position in range(order.positions)]


def _line(order: Order, position: int, begin: np.ndarray, seconds: np.ndarray) -> str:
    first = int(order.bounds[position])
    cells: list[str] = []
    width = 2 if order.stages == order.positions else 3
    for offset, action in enumerate(order.actions()[position]):
        name = f"{'' if width == 2 else action.stage}{action.kind.value}{action.micro_batch}"
        cells += ["·" * width] * (round(begin[first + offset]) - len(cells)) + [name]
        cells += ["=" * width] * (round(seconds[first + offset]) - 1)
    return " ".join(cells)


@pytest.mark.parametrize(
    ("schedule", "positions", "virtual", "micro_batches", "backward", "picture"),
    [
        (
            "layerwise", 2, 1, 2, 1,
            """
            F0 ·· ·· B0 F1 ·· ·· B1
            ·· F0 B0 ·· ·· F1 B1
            """,
        ),
        (
            "gpipe", 3, 1, 3, 1,
            """
            F0 F1 F2 ·· ·· ·· ·· B2 B1 B0
            ·· F0 F1 F2 ·· ·· B2 B1 B0
            ·· ·· F0 F1 F2 B2 B1 B0
            """,
        ),
        (
            "1f1b", 3, 1, 4, 1,
            """
            F0 F1 F2 ·· ·· B0 F3 B1 ·· B2 ·· B3
            ·· F0 F1 ·· B0 F2 B1 F3 B2 ·· B3
            ·· ·· F0 B0 F1 B1 F2 B2 F3 B3
            """,
        ),
        (
            "interleaved", 2, 2, 4, 1,
            """
            0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ··· 2B2 ··· 2B3 0B2 0B3
            ··· 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
            """,
        ),
        (
            "interleaved", 2, 2, 2, 1,
            """
            0F0 0F1 2F0 2F1 ··· 2B0 ··· 2B1 0B0 0B1
            ··· 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
            """,
        ),
        (
            "zb-h1", 3, 1, 4, 2,
            """
            F0 F1 F2 ·· ·· I0 W0 F3 I1 W1 I2 W2 I3 W3
            ·· F0 F1 ·· I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
            ·· ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
            """,
        ),
        (
            "zb-h2", 2, 1, 4, 2,
            """
            F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
            ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
            """,
        ),
        (
            "zb-v", 2, 2, 3, 2,
            """
            0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
            ··· 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
            """,
        ),
        (
            "dualpipe-v", 2, 2, 4, 2,
            """
            0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 === 3F2 0B0 === 3B2 === 3F3 ··· 0B1 === 3B3 === 0I2 0W2 0I3 0W3
            ··· 1F0 2F0 1F1 2F1 1F2 2B0 === 2F2 1B0 === 1F3 2B1 === 2F3 1B1 === 2B2 === 1B2 === 2I3 1I3 2W3 1W3
            """,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else None,
)  # fmt: skip
def test_the_picture(
    schedule: str, positions: int, virtual: int, micro_batches: int, backward: int, picture: str
) -> None:
    order = compute_order(schedule, positions, virtual, micro_batches)
    assert drawn(order, backward) == [line.strip() for line in picture.strip().splitlines()]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    schedule = draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 2 if schedule in V_SHAPED else 1 if schedule in ONE_STAGE else draw(st.integers(1, 4))
    return compute_order(schedule, draw(st.integers(1, 9)), virtual, draw(st.integers(1, 25)))


@given(orders())
def test_every_stage_computes_every_micro_batch_once(order: Order) -> None:
    done = Counter(
        (KINDS[kind].value, stage, micro_batch)
        for position in range(order.positions)
        for kind, stage, micro_batch in zip(*(column.tolist() for column in order.column(position)), strict=True)
        if stage in order.placement[position]
    )
    assert set(done.values()) == {1}
    for stage in range(order.stages):
        for micro_batch in range(order.micro_batches):
            kinds = [kind for kind in "FBIW" if (kind, stage, micro_batch) in done]
            assert kinds in (["F", "B"], ["F", "I", "W"])
    assert sum(done.values()) == len(order.columns.kinds)


@given(orders(), st.data())
def test_the_clock_is_the_longest_path(order: Order, data: st.DataObject) -> None:
    """The reference looks at one action after another, as often as it takes."""
    seconds = st.floats(0.1, 3)
    stages = [data.draw(st.lists(seconds, min_size=order.stages, max_size=order.stages)) for _ in range(3)]
    between = [data.draw(st.lists(seconds, min_size=order.stages - 1, max_size=order.stages - 1)) for _ in range(2)]
    run = Run(order, *stages, *between)
    assert tick([run])[0].begin_s == pytest.approx(_begins(run), rel=1e-12)


def _begins(run: Run) -> list[float]:
    order = run.order
    place = {stage: position for position, held in enumerate(order.placement) for stage in held}
    lanes, ends, begins, at = order.actions(), {}, [[] for _ in order.placement], [0] * order.positions
    cost = {"F": run.forward_s, "I": run.input_s, "W": run.weight_s}
    while any(at[q] < len(lane) for q, lane in enumerate(lanes)):
        for q, lane in enumerate(lanes):
            while at[q] < len(lane):
                action = lane[at[q]]
                kind, stage, micro_batch = action.kind.value, action.stage, action.micro_batch
                given, lag = None, 0.0
                if kind == "F" and stage > 0:
                    given, lag = ("F", stage - 1, micro_batch), run.onward_s[stage - 1]
                elif kind in "BI" and stage < order.stages - 1:
                    given, lag = ("B", stage + 1, micro_batch), run.back_s[stage]
                if given is not None and given not in ends:
                    break
                lag = lag if given is not None and place[given[1]] != q else 0.0
                ready = max(begins[q][-1][1] if begins[q] else 0.0, ends[given] + lag if given else 0.0)
                took = run.input_s[stage] + run.weight_s[stage] if kind == "B" else cost[kind][stage]
                begins[q].append((ready, ready + took))
                ends["B" if kind == "I" else kind, stage, micro_batch] = ready + took
                at[q] += 1
    return [begin for lane in begins for begin, _ in lane]


def test_many_runs_together_are_as_they_are_alone() -> None:
    runs = [
        even_run(compute_order(name, 2 + index, 2 if name in V_SHAPED else 1, 3 * index + 2), 1.1, 1.3, 0.7, 0.05)
        for index, name in enumerate(TRAINING_SCHEDULES)
    ]
    for run, together in zip(runs, tick(runs), strict=True):
        assert together.begin_s.tolist() == tick([run])[0].begin_s.tolist()
    assert tick([]) == []


def faulty(order: Order, rows: list[int]) -> Order:
    columns = Column(*(column[rows] for column in order.columns))
    lengths = np.diff(order.bounds)
    lengths[-1] += len(rows) - len(order.columns.kinds)
    return Order("by hand", order.placement, order.micro_batches, columns, np.cumsum([0, *lengths], dtype=np.int32))


@pytest.mark.parametrize(
    ("schedule", "positions", "rows", "message"),
    [
        ("1f1b", 1, [1, 0], "schedule by hand: what 0B0 needs is not there, or stands after it"),
        ("1f1b", 1, [1], "schedule by hand: what 0B0 needs is not there, or stands after it"),
        ("zb-h1", 1, [0, 2, 1], "schedule by hand: what 0W0 needs is not there, or stands after it"),
        ("1f1b", 2, [0, 1, 3], "schedule by hand: what 1B0 needs is not there, or stands after it"),
        ("1f1b", 2, [1, 0, 2, 3], "schedule by hand: what 0B0 needs is not there, or stands after it"),
    ],
)
def test_an_order_that_cannot_be(schedule: str, positions: int, rows: list[int], message: str) -> None:
    with pytest.raises(PlanError) as error:
        tick([even_run(faulty(compute_order(schedule, positions, 1, 1), rows), 1, 1, 1)])
    assert str(error.value) == message


def test_an_order_that_gets_stuck() -> None:
    """Position 0 wants micro-batch 1 back first, position 1 micro-batch 0 there first, and both only then go on."""
    order = compute_order("1f1b", 2, 1, 2)
    assert [a.kind.value + str(a.micro_batch) for a in order.actions()[0]] == ["F0", "F1", "B0", "B1"]
    with pytest.raises(PlanError) as error:
        tick([even_run(faulty(order, [0, 2, 1, 3, 6, 7, 4, 5]), 1, 1, 1)])
    assert str(error.value) == "schedule by hand gets stuck at 0B0"


def test_placements() -> None:
    assert loop(2, 3) == ((0, 2, 4), (1, 3, 5))
    assert v_shape(3) == ((0, 5), (1, 4), (2, 3))


@given(orders())
def test_a_surplus_is_dropped_and_nothing_else_changes(order: Order) -> None:
    """The order of fewer micro-batches is a part of that of the next number that the schedule likes."""
    p, m = order.positions, order.micro_batches
    fewest = {"zb-h1": p, "zb-h2": 2 * p - 1, "zb-v": 2 * p - 1, "dualpipe-v": 2 * p}
    more = -(-m // p) * p if order.schedule == "interleaved" else max(m, fewest.get(order.schedule, 1))
    whole = compute_order(order.schedule, p, order.stages // p, more)
    kept = [[action for action in lane if action.micro_batch < m] for lane in whole.actions()]
    assert [list(lane) for lane in order.actions()] == kept


def test_what_is_held() -> None:
    """Known from the papers: 1F1B p − i, GPipe m, ZB-H1 p, ZB-H2 2p − 1, ZB-V 2p and DualPipe-V 2p + 1 half stages."""
    peaks = {
        name: held_peak(compute_order(name, 4, 2 if name in V_SHAPED else 1, 12))
        for name in TRAINING_SCHEDULES
        if name != "interleaved"
    }
    assert peaks == {
        "layerwise": (1, 1, 1, 1),
        "gpipe": (12, 12, 12, 12),
        "1f1b": (4, 3, 2, 1),
        "zb-h1": (4, 4, 4, 4),
        "zb-h2": (7, 7, 7, 7),
        "zb-v": (8, 8, 8, 8),
        "dualpipe-v": (9, 9, 9, 9),
    }
    # arXiv 2205.05198: p stages' worth times 1 + (p − 1) ÷ (p v), at the first position
    assert held_peak(compute_order("interleaved", 4, 2, 12))[0] == 4 * 2 + 4 - 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("zbv", 4, 2, 8), "unknown schedule 'zbv' for training: did you mean 'zb-v'?"),
        (
            ("pipedream", 4, 1, 8),
            "unknown schedule 'pipedream' for training: "
            "known: 1f1b, dualpipe-v, gpipe, interleaved, layerwise, zb-h1, zb-h2, zb-v",
        ),
        (("zb-v", 4, 1, 8), "schedule zb-v has two stages a position, not 1: type --virtual 2"),
        (("1f1b", 4, 2, 8), "schedule 1f1b has one stage a position, not 2: type --virtual 1"),
        (("1f1b", 0, 1, 8), "positions is 0, but must be at least 1"),
        (("gpipe", 4, 1, 0), "micro_batches is 0, but must be at least 1"),
        (("interleaved", 4, 0, 8), "virtual is 0, but must be at least 1"),
    ],
)
def test_what_is_refused(given: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(PlanError) as error:
        compute_order(*given)
    assert str(error.value) == message
