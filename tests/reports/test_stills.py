"""Stills: every span that is shown is a box of its colour, at its place; the same bytes every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from PIL import Image
from random_timelines import timelines

from plait.errors import UsageError
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.reports.colours import COLOURS
from plait.reports.stills import MOST_ROWS, Drawing, plan_drawing, write_still
from plait.reports.view import Row, View
from plait.reports.window import RoundRange
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

SVG = "{http://www.w3.org/2000/svg}"
TWO = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,))))


def rows(count: int) -> tuple[Row, ...]:
    return tuple(Row(rank, f"stage {rank}", rank, (rank,), (rank,), "localhost", "cpu") for rank in range(count))


def view_of(*timelines: Timeline, task: str = "generate", ranks: int = 2) -> View:
    found = {one.source: one for one in timelines}
    return View("a run", task, (), TWO, rows(ranks), found.get("predicted"), found.get("measured"))  # type: ignore[arg-type]


def a_step() -> Timeline:
    """One of each sort: F 0-2, B 2-5 of which a third is an exchange, W, N that waits, O; a message, a reduction."""
    names = [
        ("3:0F0", 0.0, 2.0, ()),
        ("3:0SF0", 2.0, 2.5, ()),
        ("3:0B0", 2.0, 5.0, (Part("compute", 2.0, 4.0), Part("transfer", 4.0, 5.0))),
        ("3:0W0", 5.0, 6.0, ()),
        ("3:0G0", 5.5, 6.5, ()),
        ("3:0N0", 6.0, 8.0, (Part("wait", 6.0, 7.0), Part("compute", 7.0, 7.5), Part("transfer", 7.5, 8.0))),
        ("3:0O0", 8.0, 9.0, ()),
        ("3:1RF0", 0.0, 2.5, (Part("wait", 0.0, 2.0), Part("transfer", 2.0, 2.5))),
        ("3:1F0", 2.5, 9.0, ()),
    ]
    return Timeline(
        "measured",
        tuple(Span(0, parse_action(name), int(name[2]), start, end, 0, parts) for name, start, end, parts in names),
    )


def boxes_in(path: Path) -> Counter[str]:
    """Boxes of each sort in an SVG."""
    found: Counter[str] = Counter()
    for group in ET.parse(path).getroot().iter(f"{SVG}g"):
        sort = group.get("id", "").partition("-")[2]
        if sort in COLOURS:
            # one box alone is a shape and its use; several are shapes
            drawn = list(group.iter(f"{SVG}use")) or list(group.iter(f"{SVG}path"))
            assert all(COLOURS[sort] in one.get("style", "") for one in drawn)
            found[sort] += len(drawn)
    return found


def words_in(path: Path) -> list[str]:
    return [one.text or "" for one in ET.parse(path).getroot().iter(f"{SVG}text")]


def test_every_span_is_a_box_of_its_colour(tmp_path: Path, make_timeline: Callable[..., Timeline]) -> None:
    predicted, measured = make_timeline("predicted"), make_timeline("measured", (1.0, 1.5))
    write_still(view_of(predicted, measured), tmp_path / "a.svg", rounds=RoundRange())
    spans = [span for timeline in (predicted, measured) for span in timeline.spans if span.end_s > span.start_s]
    forwards = [span for span in spans if span.action.kind.value == "F"]
    waits = [part for span in spans for part in span.parts if part.what == "wait"]
    assert forwards
    assert waits
    assert boxes_in(tmp_path / "a.svg") == {"forward": len(forwards), "wait": len(waits)}


def test_a_step_has_all_sorts_at_their_places(tmp_path: Path) -> None:
    drawing = plan_drawing(view_of(a_step(), task="train"))
    of_sort = {
        sort: [(box.start_s, box.end_s) for line in drawing.lines for box in line.boxes if box.sort == sort]
        for sort in COLOURS
    }
    assert of_sort == {
        "forward": [(0.0, 2.0), (2.5, 9.0)],
        "backward": [(2.0, 5.0)],
        "weight": [(5.0, 6.0)],
        "optimizer": [(7.0, 7.5), (8.0, 9.0)],
        "message": [(2.0, 2.5), (2.0, 2.5)],
        "reduction": [(5.5, 6.5)],
        "exchange": [(2.0, 5.0), (7.5, 8.0)],
        "wait": [(6.0, 7.0), (0.0, 2.0)],
    }
    backward = next(box for box in drawing.lines[0].boxes if box.sort == "backward")
    band = next(box for box in drawing.lines[0].boxes if box.sort == "exchange")
    assert (band.high - band.low) / (backward.high - backward.low) == pytest.approx(1 / 3)
    assert [round(line.busy, 6) for line in drawing.lines] == [round((2 + 2 + 1 + 0.5 + 1) / 9, 6), round(6.5 / 9, 6)]
    write_still(view_of(a_step(), task="train"), tmp_path / "step.svg")
    assert boxes_in(tmp_path / "step.svg") == {sort: len(found) for sort, found in of_sort.items()}


def test_names_axis_and_legend(tmp_path: Path, make_timeline: Callable[..., Timeline]) -> None:
    write_still(
        view_of(make_timeline("predicted"), make_timeline("measured")), tmp_path / "a.svg", rounds=RoundRange(0, 2)
    )
    words = words_in(tmp_path / "a.svg")
    assert {"a run", "stage 0 predicted", "stage 1 predicted", "measured", "ms", "busy", "forward", "wait"} <= set(
        words
    )
    assert "backward" not in words
    assert {"0", "1"} <= set(words), "micro-batches in their boxes"
    assert any(word.startswith("Shown: rounds 0 to 1 of 4") for word in words)
    root = ET.parse(tmp_path / "a.svg").getroot()
    assert root.get("role") == "img"
    said = next(one.text or "" for one in root.iter(f"{SVG}desc"))
    assert re.search(r"stage 0, predicted: computes \d+ % of the time\. stage 0, measured: ", said)


def test_predicted_stands_above_measured() -> None:
    predicted, measured = replace(a_step(), source="predicted"), a_step()
    lines = plan_drawing(view_of(predicted, measured, task="train")).lines
    assert [(line.label, line.source) for line in lines] == [
        ("stage 0", "predicted"),
        ("", "measured"),
        ("stage 1", "predicted"),
        ("", "measured"),
    ]


def test_a_long_answer_shows_its_prompt_and_a_few_tokens(make_timeline: Callable[..., Timeline]) -> None:
    drawing = plan_drawing(view_of(make_timeline("measured", rounds=12)))
    assert drawing.notes[0].startswith("Shown: rounds 0 to 4 of 12")
    assert all(box.end_s <= drawing.duration_s for line in drawing.lines for box in line.boxes)


def test_prompts_in_chunks_are_shown_to_their_first_token() -> None:
    """Rounds 0 to 2 send no tokens: with round 3, the prompt; then four more."""
    each = [(number, stage) for number in range(12) for stage in (0, 1)]
    starts = {(number, stage): number + stage * 0.4 for number, stage in each}
    spans = [Span(0, parse_action(f"{n}:{s}F0"), s, starts[n, s], starts[n, s] + 0.3) for n, s in each]
    spans += [Span(0, parse_action(f"{n}:1ST0"), 1, n + 0.7, n + 0.8) for n in range(3, 12)]
    drawing = plan_drawing(view_of(Timeline("measured", tuple(spans))))
    assert drawing.notes[0].startswith("Shown: rounds 0 to 7 of 12")


def test_of_training_the_first_step_is_shown() -> None:
    first = a_step()
    later = [
        span._replace(action=span.action._replace(round=5), start_s=span.start_s + 9, end_s=span.end_s + 9, parts=())
        for span in first.spans
    ]
    drawing = plan_drawing(view_of(replace(first, spans=(*first.spans, *later)), task="train"))
    assert drawing.notes == (
        "Shown: step 3 of the 2 kept, steps 3 to 5 (9000 of 18000 ms), from the beginning of step 3; --rounds "
        "first:end shows others.",
    )
    whole = plan_drawing(view_of(replace(first, spans=(*first.spans, *later)), task="train"), RoundRange())
    assert whole.notes == ("Shown: steps 3 to 5, all that were kept.",)


def test_more_ranks_than_can_be_told_apart() -> None:
    spans = tuple(Span(0, parse_action(f"{rank}F0"), rank, 0.0, 1.0) for rank in range(100))
    drawing = plan_drawing(view_of(Timeline("predicted", spans), ranks=100))
    labels = [line.label for line in drawing.lines]
    assert len(labels) == len(set(labels)) == MOST_ROWS
    assert (labels[0], labels[-1]) == ("stage 0", "stage 99")
    assert drawing.notes == ("All of the run: round 0.", "48 of 100 ranks are shown, evenly chosen.")


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    empty = replace(view_of(), missing=("Nothing was measured: all figures are predicted.",))
    write_still(empty, tmp_path / "none.svg")
    words = words_in(tmp_path / "none.svg")
    assert "Nothing is drawn: the run has no timeline." in words
    assert "Nothing was measured: all figures are predicted." in words
    assert plan_drawing(view_of(Timeline("measured", ()))) == Drawing(
        "a run", (), 0.0, ("Nothing is drawn: the run has no timeline.",)
    )


def test_pictures_are_of_their_size_and_the_same_every_time(tmp_path: Path) -> None:
    view = view_of(a_step(), task="train")
    for suffix in ("png", "svg"):
        one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
        write_still(view, one)
        write_still(view, two)
        assert one.read_bytes() == two.read_bytes()
    write_still(view, tmp_path / "small.png", width_in=4)
    for name, width in (("one", 2000), ("small", 800)):
        with Image.open(tmp_path / f"{name}.png") as picture:
            picture.load()
            assert (picture.format, picture.width) == ("PNG", width)
            colours = {pixel[:3] for _, pixel in picture.convert("RGB").getcolors(10**6)}  # type: ignore[index]
            shown = {tuple(bytes.fromhex(COLOURS[sort][1:])) for sort in ("forward", "backward", "weight", "exchange")}
            assert shown <= colours


def test_other_formats_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_still(view_of(a_step()), tmp_path / "run.pdf")
    assert str(caught.value) == (
        f"cannot draw {tmp_path}/run.pdf: .pdf is no format of pictures; known are .png and .svg: give a name such as "
        "run.svg"
    )


def test_rounds_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_still(view_of(a_step()), tmp_path / "a.svg", rounds=RoundRange(7, 9))
    assert str(caught.value) == ("the run has none of the rounds 7:9: it has round 3; '3:' shows the last, '3:' all")
    assert not (tmp_path / "a.svg").exists()


@given(timelines("measured", min_size=1), timelines("predicted"))
@settings(max_examples=50, deadline=None)
def test_whatever_the_timelines_boxes_lie_in_the_window(measured: Timeline, predicted: Timeline) -> None:
    drawing = plan_drawing(view_of(predicted, measured, ranks=8))
    for line in drawing.lines:
        assert 0 <= line.busy <= 1 + 1e-9
        for box in line.boxes:
            assert 0 <= box.start_s < box.end_s <= drawing.duration_s + 1e-12
            assert 0 <= box.low < box.high <= 1
