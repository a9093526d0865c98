"""The page's text: whole in itself, escaped, and what is said where something is missing."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from plait.errors import UsageError
from plait.plans.layout import Layout
from plait.plans.notation import parse_action
from plait.reports.page import drawn, render_page, tables, write_page
from plait.reports.page.drawn import make_drawn
from plait.reports.page.geometry import MOST_PIXELS, labels, make_geometry
from plait.reports.page.page import script_json
from plait.reports.page.ranks import coordinates
from plait.reports.view import LinkLine, LinkUse, Source, StageLine
from plait.timeline.compare import Shares
from plait.timeline.span import Span
from plait.timeline.timeline import Clock, MemoryTrack, Timeline

from .views import decoding, layout, view_of, wide_view


class Outline(HTMLParser):
    """Tags with their attributes, and what stands between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(
        view_of(
            layout(),
            decoding("predicted", 4),
            decoding("measured", 4, forward_s=2e-3),
            "demo: <b>pp</b> 4",
            missing=("The run ended early.",),
            reasons=("It is fast & simple.",),
        )
    )


def test_nothing_is_fetched_from_anywhere(text: str) -> None:
    outline = Outline(text)
    for tag, attributes in outline.tags:
        for name in ("src", "href"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, value)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(styles) == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]


def test_language_title_headings_and_landmarks(text: str) -> None:
    outline = Outline(text)
    names = [tag for tag, _ in outline.tags]
    assert ("html", {"lang": "en"}) in outline.tags
    assert [name for name in names if re.fullmatch(r"h\d", name)] == ["h1", "h2", "h2", "h2", "h2", "h2"]
    assert {"header", "main", "footer", "title"} <= set(names)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in outline.tags
    numbered = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(numbered) == len(set(numbered))
    for _, attributes in outline.tags:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert attributes.get(name) is None or attributes[name] in numbered


def test_names_are_escaped(text: str) -> None:
    assert "<b>pp</b> 4" not in text.replace("&lt;", "<&")
    assert "demo: <b>pp</b> 4" in Outline(text).text
    assert "It is fast & simple." in Outline(text).text
    assert "Missing. The run ended early." in Outline(text).text


def test_json_cannot_leave_its_script() -> None:
    value = {"</script><!--": "<script>&\u2028"}
    written = script_json(value)
    assert not re.search(r"[<>&]", written)
    assert json.loads(written) == value
    with pytest.raises(ValueError):
        script_json({"end_s": float("nan")})


def test_every_rank_of_a_stage_in_figures(text: str) -> None:
    said = Outline(text).text
    # 4 rounds of 4 × (1 + 0.1) ms predicted, 4 × (2 + 0.1) ms measured; a tenth of each forward is an exchange, and
    # each rank sends and receives 4 messages of 0.1 ms
    assert "predicted 3.6 ms 1.2 ms 12.8 ms 79.5 %" in said
    assert "measured 7.2 ms 1.6 ms 24.8 ms 78.6 %" in said
    assert "difference +3.6 ms +400 µs +12 ms −1.0 points" in said
    assert "wait +12 ms forward +3.6 ms over 4 actions exchange +400 µs over 4 actions" in said


def test_a_view_without_anything_says_so_for_each() -> None:
    view = replace(view_of(layout(), None, None), stages=(), links=(), missing=("Nothing was run.",))
    said = Outline(render_page(view)).text
    for sentence in (
        "Missing. Nothing was run.",
        "There is no timeline to draw.",
        "There are no figures of stages.",
        "Nothing was sent.",
        "Memory over time is not known of this run.",
        "There is no plan file.",
    ):
        assert sentence in said
    assert "<script" not in render_page(view)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "report.html"
    with pytest.raises(UsageError) as caught:
        write_page(view_of(layout(), decoding("predicted", 1), None), path)
    assert str(caught.value) == (
        f"the page cannot be written to {path}: No such file or directory; give a file in a folder that is there, "
        "as in -o report.html"
    )


def test_without_bokeh_the_page_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(UsageError) as caught:
        render_page(view_of(layout(), None, None))
    assert str(caught.value) == (
        "the page needs bokeh, which is not installed; type: pip install 'plait[report]', "
        "or read the report in the terminal with --text"
    )


# --- memory ---------------------------------------------------------------------------------------------------------


def tracked(source: str, tracks: dict[int, MemoryTrack]) -> Timeline:
    return replace(decoding(source, 1), memory=tracks)


def decoded(column: dict[str, str]) -> list[float]:
    from base64 import b64decode

    return np.frombuffer(b64decode(column["data"]), dtype=column["type"]).tolist()


def test_a_prediction_of_memory_stands_on_what_the_process_held_before() -> None:
    predicted = tracked("predicted", {0: MemoryTrack((0.0, 1e-3), (100, 300), 1000)})
    measured = tracked("measured", {0: MemoryTrack((0.0, 2e-3), (150, 380), 1000, 50)})
    found = make_drawn(view_of(layout(), predicted, measured))
    assert found is not None
    (rank,) = found.data["memory"]["ranks"]
    assert (rank["rank"], rank["limit"], rank["base"]) == (0, 1000, 50)
    assert [decoded(track["y"]) for track in rank["tracks"]] == [[150, 350], [150, 380]]
    assert [decoded(track["x"]) for track in rank["tracks"]] == [[0, 1e-3], [0, 2e-3]]
    assert tables.memory(view_of(layout(), predicted, measured)) == [
        tables.MemoryCells(0, "stage 0", ("300 B", "380 B"), (30.0, 38.0), "1000 B", "50 B")
    ]


def test_the_fullest_rank_comes_first_and_what_has_no_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "MAX_MEMORY_POINTS", 4)
    tracks = {rank: MemoryTrack((0.0, 1e-3), (0, 100 * rank), 1000) for rank in range(3)}
    found = make_drawn(view_of(layout(), tracked("predicted", {**tracks, 3: MemoryTrack((), ())}), None))
    assert found is not None
    assert found.memory_ranks == (2, 1)
    assert found.notes == ("Of 1 ranks the page has the highest point of memory alone, not its course.",)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_bars_add_up_to_all_of_the_time() -> None:
    # 2 ranks × 10 s: 8 s computing, 4 s talking of which 1 s meanwhile, 9 s waiting
    assert tables.bar(Shares(8.0, 4.0, 9.0, 0.6)) == (40.0, 15.0, 45.0)
    assert tables.bar(Shares(0.0, 1.0, 3.0, 1.0)) == (0.0, 25.0, 75.0)
    assert tables.bar(Shares(0.0, 0.0, 0.0, 0.0)) == (0.0, 0.0, 0.0)


def test_sources_beyond_the_first_four_are_added_up() -> None:
    shares = Shares(1.0, 1.0, 1.0, 0.5)
    sources = tuple(Source(name, 3 - at, 1.0, 1.0 + (5 - at) * 1e-3) for at, name in enumerate("abcde"))
    line = StageLine(0, (0, 4), (0, 1, 2), shares, Shares(1.5, 1.0, 0.5, 0.25), (*sources, Source("f", 1, 1.0, 1.0)))
    (cells,) = tables.stages(
        replace(view_of(layout(), decoding("predicted", 1), decoding("measured", 1)), stages=(line,))
    )
    assert cells.difference == ("+500 ms", "±0 s", "−500 ms", "−25.0 points")
    assert cells.sources == (
        "a +5 ms over 3 actions",
        "b +4 ms over 2 actions",
        "c +3 ms over 1 actions",
        "d +2 ms",
        "1 others +1 ms",
    )
    assert (cells.layers, cells.ranks) == ("0 to 3", "0 to 2")


def test_a_link_that_one_timeline_lacks_has_a_dash() -> None:
    line = LinkLine("0→1", "pp", (0, 1), None, LinkUse(2048, 0.25))
    view = replace(view_of(layout(), decoding("predicted", 1), decoding("measured", 1)), links=(line,))
    assert tables.links(view)[0].uses == (("–", "–", 0.0), ("2.0 KiB", "25.0 %", 25.0))


def test_figures_say_how_far_off_the_prediction_was() -> None:
    figures = {
        "predicted": {"step_s": 0.9, "bubble": 0.25, "mfu": None, "comm_bytes": 2048, "stages": []},
        "measured": {"step_s": 1.0, "bubble": 0.30, "peak_bytes": 1 << 30, "comm_bytes": 2048},
    }
    view = replace(view_of(layout(), None, None), figures=figures)
    assert tables.figures(view) == [
        tables.Figure("time of a step", "900 ms", "1 s", "+11.1 %"),
        tables.Figure("bubble", "25.0 %", "30.0 %", "+5.0 points"),
        tables.Figure("bytes sent", "2.0 KiB", "2.0 KiB", "+0.0 %"),
        tables.Figure("peak memory", "–", "1.0 GiB", "–"),
    ]


def test_the_last_card_says_what_it_is_of() -> None:
    figures = {"predicted": {"makespan_s": 1e-3, "stages": []}, "measured": {"makespan_s": 25e-3}}
    once, twice = decoding("predicted", 1), decoding("measured", 2)
    view = replace(view_of(layout(), once, twice), figures=figures)
    assert tables.figures(view) == [tables.Figure("whole run", "1 ms", "25 ms", ">10x")]
    assert [one.name for one in tables.figures(replace(view, task="train"))] == ["2 steps shown"]
    assert [one.name for one in tables.figures(replace(view, task="train", measured=None))] == ["step shown"]


def test_the_convention_is_said_once(text: str) -> None:
    said = Outline(text).text
    assert said.count("Differences are measured − predicted, and their percentages of the predicted.") == 1
    assert said.count("measured − predicted") == 1


def test_a_busy_share_that_is_little_is_told_apart_from_none() -> None:
    shares = [tables.busy_text(LinkUse(1, share)) for share in (0.0, 1e-6, 4.9e-4, 5e-4, 0.25)]
    assert shares == ["0.0 %", "<0.1 %", "<0.1 %", "0.1 %", "25.0 %"]


def test_critical_paths_on_the_page_are_the_texts() -> None:
    """4 rounds on 4 stages follow each other: 0.9 ms of a forward computes, 0.1 ms exchanges, a hop takes 0.1 ms."""
    found = make_drawn(view_of(layout(), decoding("predicted", 4), None))
    assert found is not None
    (words,) = found.data["paths"]
    assert words.startswith("Critical path, predicted: 48 spans on 4 ranks, 17.6 ms: forward 14.4 ms (82 %), ")


def test_the_memory_table_says_what_its_figures_hold() -> None:
    predicted = tracked("predicted", {0: MemoryTrack((0.0, 1e-3), (100, 300), 1000)})
    measured = tracked("measured", {0: MemoryTrack((0.0, 2e-3), (150, 380), 1000, 50)})
    view = view_of(layout(), predicted, measured, figures={"measured": {"stages": [{"peak_bytes": 400}]}})
    said = Outline(render_page(view)).text
    assert "Measured with the 50 B that a process holds before it loads anything, predicted without." in said
    assert "Peak memory is the most that a process held in all its life" in said


def test_ranks_that_a_damaged_run_leaves_out_are_not_in_the_way() -> None:
    shape = Layout({"pp": 2}, (layout(1).stages[0], replace(layout(1).stages[0], ranks=(1, 7))))
    spans = tuple(Span(0, parse_action(f"0:{at}F0"), rank, 0.0, 1.0) for at, rank in ((0, 0), (1, 1), (1, 7)))
    assert "Stages" in render_page(view_of(shape, Timeline("measured", spans), None))


def test_clocks_are_told_where_there_are_several_hosts() -> None:
    one, two = decoding("measured", 1), {"front": Clock(), "box2": Clock(-2e-3, 3e-5)}
    assert tables.clocks(view_of(layout(), None, replace(one, clocks={"front": Clock()}))) == []
    view = view_of(layout(), None, replace(one, clocks=two))
    assert tables.clocks(view) == [("box2", "−2 ms", "± 30 µs"), ("front", "±0 s", "± 0 µs")]
    assert "host offset error box2 −2 ms ± 30 µs front ±0 s ± 0 µs" in Outline(render_page(view)).text


def test_ranks_in_words() -> None:
    assert tables.ranks_text((3,)) == "3"
    assert tables.ranks_text((0, 2)) == "0, 2"
    assert tables.ranks_text(tuple(range(192, 384))) == "192 to 383"
    assert tables.ranks_text((0, 2, 4, 6)) == "0, 2 and 2 more"


# --- rows and ranks -------------------------------------------------------------------------------------------------


def test_coordinates_of_3_072_ranks_say_who_shares_a_stage_with_whom() -> None:
    shape = wide_view().layout
    places = coordinates(shape)
    for rank in (0, 7, 8, 191, 192, 1234, 3071):
        same = [
            other
            for other in range(shape.ranks)
            if all(places[axis][other] == places[axis][rank] for axis in ("dp", "pp"))
        ]
        assert tuple(same) == shape.tensor_group(rank // 192, rank)
    every = set(zip(*(places[axis].tolist() for axis in ("dp", "pp", "tp")), strict=True))
    assert every == {(dp, pp, tp) for dp in range(24) for pp in range(16) for tp in range(8)}


def test_experts_lie_within_replicas_and_axes_to_come_outside() -> None:
    stages = replace(layout(1).stages[0], ranks=tuple(range(24)))
    places = coordinates(Layout({"dp": 2, "tp": 2, "ep": 3, "later": 2}, (stages,)))
    rank = 1 + 2 * 2 + 6 * 1 + 12 * 1
    assert {axis: int(place[rank]) for axis, place in places.items()} == {"dp": 1, "tp": 1, "ep": 2, "later": 1}


def test_rows_fit_as_long_as_they_can_be_read() -> None:
    few, many = make_geometry(4, 2), make_geometry(200, 2)
    assert few.line_pixels == 26
    assert few.shown == few.height == 9.5
    assert many.line_pixels == 9
    assert many.shown * many.line_pixels == pytest.approx(MOST_PIXELS)
    assert many.height == 199 * 2.5 + 2
    assert list(labels(few, "ab", ["predicted", "measured"]).values()) == [
        "a   predicted", "measured", "b   predicted", "measured",
    ]  # fmt: skip
    assert labels(many, "ab", ["predicted", "measured"]) == {1.0: "a", 3.5: "b"}


def test_a_timeline_of_no_time_is_drawn() -> None:
    view = view_of(layout(1), Timeline("predicted", (Span(0, parse_action("0:0F0"), 0, 5.0, 5.0),)), None)
    found = make_drawn(view)
    assert found is not None
    assert found.data["end_s"] == 0.0
    assert "Stages" in render_page(view)
