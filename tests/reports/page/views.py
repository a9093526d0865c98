"""Views that the page's tests draw: a pipeline of any length, 3,072 ranks, and a run of generation."""

from __future__ import annotations

from collections.abc import Sequence

from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.reports.differences import stage_lines
from plait.reports.links import link_lines
from plait.reports.stands import stood_for
from plait.reports.view import Lost, Row, View
from plait.timeline.causes import find_causes
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Clock, MemoryTrack, Timeline

MS = 1e-3


def decoding(source: str, rounds: int, stages: int = 4, forward_s: float = 1 * MS, hop_s: float = 0.1 * MS) -> Timeline:
    """One micro-batch goes round: a forward on each stage (a tenth of it an exchange), and a message to the next.

    Spans: `rounds` × `stages` × 3.
    """
    spans: list[Span] = []
    moment = 0.0
    waited = [forward_s + hop_s] + [0.0] * (stages - 1)  # since its last send
    for number in range(rounds):
        for stage in range(stages):
            end = moment + forward_s
            middle = moment + 0.9 * forward_s
            inside = (Part("compute", moment, middle), Part("transfer", middle, end))
            spans.append(Span(0, parse_action(f"{number}:{stage}F0"), stage, moment, end, 64, inside))
            send, receive, to = ("ST", "RT", 0) if stage == stages - 1 else ("SF", "RF", stage + 1)
            spans.append(Span(0, parse_action(f"{number}:{stage}{send}0"), stage, end, end + hop_s, 1024))
            moment = end + hop_s
            parts = (Part("wait", waited[to], end), Part("transfer", end, moment))
            spans.append(Span(0, parse_action(f"{number}:{to}{receive}0"), to, waited[to], moment, 0, parts))
            waited[to] = moment + forward_s + hop_s
    return Timeline(source, tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s))))


def layout(stages: int = 4, hosts: Sequence[str] = ("localhost",)) -> Layout:
    made = tuple(Stage((7 * at, 7 * at + 7), (at,), host=hosts[at % len(hosts)]) for at in range(stages))
    return Layout({"pp": stages}, made)


def rows_of(ranks: int) -> tuple[Row, ...]:
    return tuple(Row(rank, f"stage {rank}", rank, (rank,), (rank,), "box", "cpu") for rank in range(ranks))


def view_of(
    shape: Layout, predicted: Timeline | None, measured: Timeline | None, title: str = "demo: pp 4", **more: object
) -> View:
    timelines = [one for one in (predicted, measured) if one is not None]
    stands = stood_for(shape, {rank for one in timelines for rank in one.ranks})
    rows = [
        Row(rank, f"stage {shape.stage_of(rank)}", shape.stage_of(rank), (shape.stage_of(rank),), ranks, "box", "cpu")
        for rank, ranks in sorted(stands.items())
    ]
    return View(
        title,
        "generate",
        (("schedule", "layerwise"), ("ranks", str(shape.ranks))),
        shape,
        tuple(rows),
        predicted,
        measured,
        {one.source: find_causes(one, shape) for one in timelines},
        stage_lines(shape, predicted, measured),
        link_lines(shape, predicted, measured),
        **more,  # type: ignore[arg-type]
    )


def long_view(spans: int) -> View:
    """So many spans, half of them predicted, half measured; the measured forwards take a fifth longer."""
    rounds = spans // 2 // 12
    memory = {0: MemoryTrack((0.0, 0.5, 1.0), (100 << 20, 300 << 20, 200 << 20), 512 << 20, 50 << 20)}
    predicted, measured = decoding("predicted", rounds), decoding("measured", rounds, forward_s=1.2 * MS)
    measured = Timeline("measured", measured.spans, {}, {"a": Clock(), "b": Clock(2e-3, 3e-5)}, memory)
    figures = {"predicted": {"bubble": 0.77, "makespan_s": 4.4}, "measured": {"bubble": 0.80, "makespan_s": 5.2}}
    return view_of(
        layout(),
        predicted,
        measured,
        figures=figures,
        plan='model = "demo"\n',
        reasons=("One user cannot fill a pipeline.",),
        lost=(Lost("one device", "12 tokens/s", "memory: 1 GiB short"),),
    )


def wide_view() -> View:
    """3,072 ranks, dp 24 × pp 16 × tp 8: a step of 1F1B's beginning, of each position's first rank alone."""
    stages = tuple(
        Stage((2 * at, 2 * at + 2), tuple(range(192 * at, 192 * at + 192)), device="cuda", host=f"box{24 * at}")
        for at in range(16)
    )
    shape = Layout({"dp": 24, "pp": 16, "tp": 8}, stages)
    spans = []
    for stage in range(16):
        for micro_batch in range(8):
            begin = (stage + 3 * micro_batch) * MS
            spans.append(Span(0, parse_action(f"0:{stage}F{micro_batch}"), 192 * stage, begin, begin + MS))
            spans.append(Span(0, parse_action(f"0:{stage}B{micro_batch}"), 192 * stage, begin + MS, begin + 3 * MS))
    timeline = Timeline("predicted", tuple(sorted(spans, key=lambda span: span.start_s)))
    return view_of(shape, timeline, None, "large: dp 24 × pp 16 × tp 8")
