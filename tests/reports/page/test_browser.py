"""The page in a real browser: 20,000 spans, 3,072 ranks, narrow and wide, by hand and by keys."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.reports.moments import ASSUMED, Moments
from plait.reports.page import write_page
from plait.reports.page.geometry import COMPUTES
from plait.timeline.span import Part, Span
from plait.timeline.timeline import MemoryTrack, Timeline
from plait.units import format_bytes, format_seconds

from .conftest import Open
from .views import decoding, layout, long_view, rows_of, view_of, wide_view

MOST_RECTANGLES, MOST_LETTERS = 4000, 260
STATE = "({ ...plait.picture.state, start: plait.picture.plot.x_range.start, end: plait.picture.plot.x_range.end })"


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """833 rounds of 4 stages, forwards of 1 ms predicted and 1.2 ms measured, hops of 0.1 ms."""
    path = tmp_path_factory.mktemp("page") / "long.html"
    write_page(long_view(20_000), path)
    return path


@pytest.fixture(scope="module")
def wide_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "wide.html"
    write_page(wide_view(), path)
    return path


def test_zooming_in_20_000_spans_draws_few_of_them_and_pointing_names_them(show: Open, long_page: Path) -> None:
    with show(long_page) as page:
        assert page.evaluate("plait.timelines.map(one => one.start.length)") == [9996, 9996]
        counts = []
        for factor in [1] + [0.5] * 9:
            before = page.evaluate(STATE)
            page.evaluate(f"plait.picture.zoom({factor}, 2.2)")
            state = page.evaluate(STATE)
            assert state["draws"] - before["draws"] == (factor != 1)
            counts.append(state["rectangles"])
        assert max(counts) <= MOST_RECTANGLES
        assert 20 < counts[-1] < 200
        # 4.4 ms a round: 2F0 of round 500 begins at 500 × 4.4 + 2 × 1.1 = 2202.2 ms
        place = page.evaluate(
            "(() => { const one = plait.timelines[0]; const i = one.start.findIndex((start, at) => "
            "plait.notation(plait.data.words, one, at) === '500:2F0'); return plait.picture.screenOf(0, i); })()"
        )
        page.mouse.move(place["x"], place["y"])
        lines = page.locator("#tooltip > *").all_inner_texts()
        assert lines == [
            "500:2F0 forward",
            "rank 2, predicted",
            "begins at 2.202200 s, lasts 1 ms",
            "of that exchanges 100 µs",
            "sends 64 B",
            "waited for the end of 500:2RF0 on rank 2",
            "measured 1.2 ms (measured +20 %)",
        ]


def test_pointing_at_what_is_put_together_sums_it_up(show: Open, long_page: Path) -> None:
    with show(long_page) as page:
        box = page.locator("#picture").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
        first, second = page.locator("#tooltip > *").all_inner_texts()[:2]
        actions, length, busy = first.split(", ")
        # one forward of 0.9 ms (and an exchange) every 4.4 ms
        count = int(actions.removesuffix(" actions"))
        assert 2 <= count <= 40
        expected_ms = 4.4 * (count - 1) + 1
        assert float(length.removesuffix(" ms")) == pytest.approx(expected_ms, rel=0.01)
        assert int(busy.removesuffix(" % computing")) == pytest.approx(100 * 0.9 * count / expected_ms, abs=1)
        assert second.startswith("rank 0, predicted, from ")


def test_the_wheel_zooms_where_the_pointer_is_and_dragging_moves(show: Open, long_page: Path) -> None:
    with show(long_page) as page:
        whole = page.evaluate(STATE)
        box = page.locator("#picture").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] * 0.75, box["y"] + 60
        page.mouse.move(x, y)
        for _ in range(4):
            page.mouse.wheel(0, -120)
        page.wait_for_function(f"plait.picture.plot.x_range.end < {whole['end'] * 0.95}")
        near = page.evaluate(STATE)
        assert near["end"] - near["start"] < 0.8 * (whole["end"] - whole["start"])
        assert near["start"] - whole["start"] > whole["end"] - near["end"]
        page.mouse.down()
        page.mouse.move(x - 200, y, steps=3)
        page.mouse.up()
        page.wait_for_function(f"plait.picture.plot.x_range.start > {near['start']} + 1e-6")
        assert page.evaluate(STATE)["rectangles"] <= MOST_RECTANGLES


def test_all_of_it_by_keys(show: Open, long_page: Path) -> None:
    with show(long_page) as page:
        focused = []
        for _ in range(14):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert focused[:3] == ["To the tables", "−", "+"]
        assert "picture" in focused
        page.locator("#picture").focus()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        whole = page.evaluate(STATE)
        page.keyboard.press("+")
        page.keyboard.press("+")
        near = page.evaluate(STATE)
        assert near["end"] - near["start"] == pytest.approx((whole["end"] - whole["start"]) / 4)
        page.keyboard.press("ArrowRight")
        moved = page.evaluate(STATE)
        assert moved["start"] - near["start"] == pytest.approx(0.2 * (near["end"] - near["start"]))
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(STATE)["start"] == pytest.approx(near["start"])
        page.keyboard.press("0")
        assert page.evaluate(STATE)["end"] == pytest.approx(whole["end"])
        page.keyboard.press("]")
        assert page.locator("#said").inner_text().startswith("0:0F0 forward. rank 0, predicted. begins at 0.000 ms")
        page.keyboard.press("]")
        page.keyboard.press("]")
        page.keyboard.press("[")
        assert page.locator("#said").inner_text().startswith("1:0F0 forward. rank 0, predicted. begins at 4.400 ms")
        seen = page.evaluate(STATE)
        assert seen["start"] <= 0.0044 <= seen["end"]
        page.keyboard.press("?")
        assert page.locator("#keys table").is_visible()


def test_the_critical_path_comes_and_goes(show: Open, long_page: Path) -> None:
    with show(long_page) as page:
        button = page.locator("#path-button")
        assert button.get_attribute("aria-pressed") == "false"
        page.keyboard.press("c")
        assert button.get_attribute("aria-pressed") == "true"
        # one user: forwards, sends and receives follow each other to the end, on all stages
        path = page.evaluate(
            "plait.timelines.map(one => [one.critical.length, Math.max(...one.critical), "
            "[...one.critical].reduce((sum, i) => sum + one.length[i] * "
            "(plait.placeOf(one, plait.data.geometry, i).band ? 0 : 1), 0)])"
        )
        assert path[0][2] == pytest.approx(833 * 4 * 1e-3)
        assert path[1][2] == pytest.approx(833 * 4 * 1.2e-3)
        words = page.locator("#path-words").inner_text()
        # of each forward 0.9 × 1.2 ms computes; a text says the same
        assert "Critical path, measured: 9,996 spans on 4 ranks, 4.33 s: forward 3.6 s (83 %)" in words
        page.evaluate("plait.picture.zoom(0.002, 1)")
        named = "plait.picture.plot.document.get_model_by_name"
        assert page.evaluate(f"{named}('path').data.x.length") > 10
        assert 0 < page.evaluate(f"{named}('critical').data.left.length") <= MOST_RECTANGLES
        assert page.evaluate(f"{named}('drawn-glyphs').glyph.fill_alpha.value") < 0.5
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert page.evaluate(f"{named}('critical').data.left.length") == 0
        assert page.evaluate(f"{named}('drawn-glyphs').glyph.fill_alpha.value") == 1


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["long_page", "wide_page"])
def test_nothing_is_wider_than_the_window(show: Open, which: str, width: int, request: pytest.FixtureRequest) -> None:
    with show(request.getfixturevalue(which), width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(
            "[...document.querySelectorAll('main p, main td, main th, button, dd, li')]"
            ".map(one => parseFloat(getComputedStyle(one).fontSize))"
        )
        assert min(sizes) >= 12
        box = page.locator("#picture canvas").first.bounding_box()
        assert box is not None
        assert box["width"] > 0.9 * (width - 60)
        assert page.evaluate("plait.picture.view.frame.bbox.width") > 0.7 * width - 60


def test_any_of_3_072_ranks_on_demand(show: Open, wide_page: Path) -> None:
    with show(wide_page) as page:
        page.fill("#rank", "1234")
        page.keyboard.press("Enter")
        facts = dict(
            page.evaluate(
                "[...document.querySelectorAll('#rank-facts dl > div')]"
                ".map(one => [...one.children].map(each => each.innerText))"
            )
        )
        # 192 ranks a position: 1234 = 6 × 192 + 10 × 8 + 2
        assert facts == {
            "rank": "1234",
            "dp": "10 (of 0 to 23)",
            "pp": "6 (of 0 to 15)",
            "tp": "2 (of 0 to 7)",
            "stage": "6",
            "layers": "12 to 13",
            "device": "cuda",
            "host": "box144",
            "dp group": "1154, 1162, 1170, 1178, 1186, 1194, 1202, 1210, 1218, 1226 … 1338 (24)",
            "pp group": "82, 274, 466, 658, 850, 1042, 1234, 1426, 1618, 1810 … 2962 (16)",
            "tp group": ", ".join(map(str, range(1232, 1240))),
            "drawn as": "rank 1152, which stands for 192 ranks",
        }
        assert page.evaluate("plait.picture.state.row") == 6
        assert page.evaluate("plait.picture.plot.document.get_model_by_name('row').visible")
        page.fill("#rank", "3072")
        page.keyboard.press("Enter")
        assert page.locator("#rank-facts").inner_text() == "There is no rank 3072: the ranks are 0 to 3071."
        assert page.locator("#rank").get_attribute("aria-invalid") == "true"
        assert not page.evaluate("plait.picture.plot.document.get_model_by_name('row').visible")


def test_names_are_text_and_a_page_without_a_timeline_says_so(show: Open, tmp_path: Path) -> None:
    evil = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
    span = Span(0, parse_action("0:0F0"), 0, 0.0, 1.0)
    view = view_of(layout(1), Timeline("predicted", (span,)), None, evil)
    rows = tuple(row._replace(label=evil) for row in view.rows)
    for number, one in enumerate((view, view_of(layout(1), None, None, evil))):
        path = tmp_path / f"{number}.html"
        write_page(type(view)(evil, "train", ((evil, evil),), one.layout, rows, one.predicted, None, plan=evil), path)
        with show(path) as page:
            assert page.evaluate("window.owned") is None
            assert page.locator("h1").inner_text() == evil
            assert page.locator("#picture").count() == 1 - number
    assert "There is no timeline to draw." in path.read_text()


def test_dark_and_light_are_dressed_alike(show: Open, wide_page: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        with show(wide_page, color_scheme=scheme) as page:
            colours[scheme] = page.evaluate(
                "[getComputedStyle(document.body).backgroundColor, plait.picture.plot.left[0].major_label_text_color]"
            )
    assert colours == {"light": ["rgb(255, 255, 255)", "#5a6169"], "dark": ["rgb(20, 23, 26)", "#a4abb3"]}


AREA = """
(() => {
  const { geometry, words } = plait.data, sorts = words.sort_names, tall = geometry.bands[0][1] - geometry.bands[0][0];
  const { left, right, top, bottom, sort } = plait.picture.plot.document.get_model_by_name("drawn").data;
  const found = { forward: 0, exchange: 0 };
  for (let i = 0; i < left.length; i++) {
    const name = sorts[sort[i]];
    if (name in found) found[name] += (right[i] - left[i]) * (bottom[i] - top[i]) / tall;
  }
  return found;
})()
"""


def test_what_is_put_together_covers_as_much_as_it_took(show: Open, tmp_path: Path) -> None:
    """Of 2,000 rounds on two stages: 0.9 ms of each forward computing, 0.1 ms exchanging, whatever the window."""
    write_page(view_of(layout(2), decoding("predicted", 2000, stages=2), None), tmp_path / "page.html")
    with show(tmp_path / "page.html") as page:
        whole = page.evaluate(AREA)
        assert page.evaluate("plait.picture.state.rectangles") < 200
        assert whole["forward"] == pytest.approx(2 * 2000 * 0.9e-3, rel=0.01)
        assert whole["exchange"] == pytest.approx(2 * 2000 * 0.1e-3, rel=0.01)
        # 20 rounds of 2.2 ms, of which the window cuts at most one on each side
        page.evaluate("plait.picture.plot.x_range.setv({ start: 1.1, end: 1.144 })")
        near = page.evaluate(AREA)
        assert near["forward"] == pytest.approx(2 * 20 * 0.9e-3, rel=0.08)
        assert near["exchange"] == pytest.approx(2 * 20 * 0.1e-3, rel=0.12)


def test_spans_that_overlap_or_take_no_time_are_drawn_and_found(show: Open, tmp_path: Path) -> None:
    """3,000 spans as no rank makes them, with parts that reach outside: nothing is lost, nothing is no number."""
    chance = random.Random(6)
    kinds = ["F", "B", "W", "O", "N", "SF", "RF", "SB", "G"]
    spans = []
    for number in range(3000):
        begin, length = chance.random(), chance.choice([0.0, 1e-6, 1e-3, 0.3]) * chance.random()
        cut = begin + length * chance.random() * 1.2
        parts = (Part("wait", begin, cut), Part("transfer", cut, begin + length)) if chance.random() < 0.5 else ()
        action = parse_action(f"{number // 100}:{number % 2}{chance.choice(kinds)}{number}")
        spans.append(Span(0, action, number % 2, begin, begin + length, 10, parts))
    timeline = Timeline("measured", tuple(sorted(spans, key=lambda span: span.start_s)))
    write_page(replace(view_of(layout(2), None, None), measured=timeline, rows=rows_of(2)), tmp_path / "page.html")
    with show(tmp_path / "page.html") as page:
        for _ in range(12):
            count, odd = page.evaluate(
                "(({ left, right, top, bottom }) => [left.length, [...left].filter((from, i) => "
                "!(right[i] > from && bottom[i] > top[i])).length])"
                "(plait.picture.plot.document.get_model_by_name('drawn').data)"
            )
            assert 0 < count <= MOST_RECTANGLES
            assert odd == 0
            page.evaluate("plait.picture.zoom(0.4, 0.5)")
        page.evaluate("plait.picture.showAll()")
        found = page.evaluate(
            "plait.timelines[0].start.reduce((all, _, i) => { const { x, y } = plait.picture.screenOf(0, i);"
            " const hit = plait.picture.at(x, y); return all + (hit !== null); }, 0)"
        )
        assert found == 3000


def test_a_finger_scrolls_the_page(show: Open, wide_page: Path) -> None:
    with show(wide_page, 390, 500, has_touch=True) as page:
        style = "getComputedStyle(plait.picture.view.canvas_view.events_el).touchAction"
        assert page.evaluate(style) == "pan-y"


def test_neighbours_are_told_apart(show: Open, tmp_path: Path) -> None:
    """Three forwards without a pause, a fifth of each an exchange: three blocks of two colours, 0.9 pixels apart."""
    parts = [(Part("compute", at, at + 0.8), Part("transfer", at + 0.8, at + 1.0)) for at in range(3)]
    spans = tuple(Span(0, parse_action(f"0:0F{at}"), 0, at, at + 1.0, 8, parts[at]) for at in range(3))
    write_page(view_of(layout(1), Timeline("predicted", spans), None), tmp_path / "page.html")
    with show(tmp_path / "page.html") as page:
        drawn = page.evaluate(
            "(({ left, right, top, bottom }) => [...left].map((from, i) => [from, right[i], bottom[i] - top[i]]))"
            "(plait.picture.plot.document.get_model_by_name('drawn').data)"
        )
        second = page.evaluate("plait.picture.view.frame.bbox.width") / 3.06  # pixels
        high = COMPUTES[1] - COMPUTES[0]
        expected = [[at, at + 1 - 0.9 / second, high * share] for at in range(3) for share in (0.8, 0.2)]
        for found, wanted in zip(drawn, expected, strict=True):
            # the gap is not of the time: shares are of the whole
            assert found == pytest.approx(wanted, abs=1e-4)
        texts = "[...plait.picture.plot.document.get_model_by_name('letters').data.text]"
        assert page.evaluate(texts) == ["0F0", "0F1", "0F2"]


def test_predicted_exchanges_stand_where_layers_have_them(show: Open, tmp_path: Path) -> None:
    """A forward of one layer, 6 s computing and 2 s exchanging; then 500 of 30 layers, far more than is drawn."""
    inside = (Part("compute", 0.0, 6.0), Part("transfer", 6.0, 8.0))
    one = Timeline("predicted", (Span(0, parse_action("0:0F0"), 0, 0.0, 8.0, 8, inside),))
    shape = Layout({"pp": 1}, (Stage((0, 1), (0,)),))
    view = replace(view_of(shape, one, None), moments=Moments(shape))
    write_page(view, tmp_path / "page.html")
    with show(tmp_path / "page.html") as page:
        assert any(ASSUMED in words for words in page.locator("p.dim").all_inner_texts())
        drawn = page.evaluate(
            "(({ left, right, sort }) => [...left].map((from, i) => "
            "[plait.data.words.sort_names[sort[i]], from, right[i]]))"
            "(plait.picture.plot.document.get_model_by_name('drawn').data)"
        )
        assert [name for name, _, _ in drawn] == ["exchange", "forward", "exchange", "forward", "exchange"]
        third = 2 / 3
        assert [start for _, start, _ in drawn] == pytest.approx([0, third, 2 + third, 2 + 2 * third, 6 + 2 * third])
        assert drawn[-1][2] == pytest.approx(8, abs=0.02)  # but for what tells neighbours apart
    many, shape = decoding("predicted", 250, stages=2), Layout({"pp": 2}, (Stage((0, 30), (0,)), Stage((30, 60), (1,))))
    write_page(replace(view_of(shape, many, None), moments=Moments(shape)), tmp_path / "many.html")
    with show(tmp_path / "many.html") as page:
        whole = page.evaluate(AREA)
        assert whole["exchange"] == pytest.approx(500 * 0.1e-3, rel=0.01)
        for factor in (1, *[0.6] * 12):
            page.evaluate(f"plait.picture.zoom({factor}, 0.2761)")  # in a forward
            assert 0 < page.evaluate("plait.picture.state.rectangles") <= MOST_RECTANGLES
        near = page.evaluate(STATE)
        area = page.evaluate(AREA)
        assert area["exchange"] / (area["exchange"] + area["forward"]) == pytest.approx(0.1, abs=0.03)
        assert near["end"] - near["start"] < 2e-3


def test_more_rows_than_fit_are_moved_through(show: Open, tmp_path: Path) -> None:
    shape = layout(60)
    view = view_of(shape, decoding("predicted", 2, stages=60), decoding("measured", 2, stages=60))
    write_page(view, tmp_path / "page.html")
    rows = "[plait.picture.plot.y_range.end, plait.picture.plot.y_range.start]"
    with show(tmp_path / "page.html") as page:
        top, bottom = page.evaluate(rows)
        assert top == 0
        assert bottom < 60 * 2.5 - 0.5
        page.locator("#picture").focus()
        page.keyboard.press("ArrowDown")
        assert page.evaluate(rows) == pytest.approx([2.5, bottom + 2.5])
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        assert page.evaluate(rows)[0] == 0
        page.fill("#rank", "59")
        page.keyboard.press("Enter")
        assert page.evaluate(rows) == pytest.approx([60 * 2.5 - 0.5 - bottom, 60 * 2.5 - 0.5])
        assert page.evaluate("document.querySelector('#picture').getBoundingClientRect().height") < 720


def test_memory_of_the_rank_that_is_asked_for(show: Open, tmp_path: Path) -> None:
    """Rank 0 has 30 % of its limit; the limit of rank 1 is 100 times what it has, and is told, not drawn."""
    tracks = {
        0: MemoryTrack((0.0, 2e-3), (100 << 20, 300 << 20), 1000 << 20),
        1: MemoryTrack((0.0, 1e-3), (1 << 20, 10 << 20), 1000 << 20),
    }
    timeline = replace(decoding("predicted", 2), memory=tracks)
    write_page(view_of(layout(), timeline, None), tmp_path / "page.html")
    with show(tmp_path / "page.html") as page:
        named = "plait.memory.plot.document.get_model_by_name"
        assert page.evaluate(f"{named}('limit').visible")
        assert page.evaluate(f"{named}('limit').location") == 1000 << 20
        assert page.evaluate(f"[...{named}('memory-predicted').data.x]") == pytest.approx([0, 2e-3, 8.8e-3])
        page.select_option("#memory-rank", "1")
        assert not page.evaluate(f"{named}('limit').visible")
        assert page.evaluate("plait.memory.plot.y_range.end") == pytest.approx((10 << 20) * 1.08)
        assert page.locator("#memory-words").inner_text() == "The limit of the device, 1000.0 MiB, is far above."
        page.evaluate("plait.picture.zoom(0.5)")
        ranges = "[plait.memory.plot, plait.picture.plot].map(one => [one.x_range.start, one.x_range.end])"
        memory, timeline_ = page.evaluate(ranges)
        assert memory == timeline_


def test_lines_of_many_points_are_thinned_and_keep_their_peaks(show: Open, wide_page: Path) -> None:
    with show(wide_page) as page:
        points, top, last = page.evaluate(
            "(() => { const x = Float64Array.from({ length: 100000 }, (_, i) => i);"
            " const y = x.map(i => i === 77777 ? 9 : i % 2);"
            " const one = plait.thinned(x, y, 10, 99990); return [one.x.length, Math.max(...one.y), one.x.at(-1)]; })()"
        )
        assert points <= 3001
        assert top == 9
        assert last >= 99990


def test_seconds_and_bytes_read_as_everywhere(show: Open, wide_page: Path) -> None:
    values = [0.0, 1e-7, 0.0009999, 0.0123, 0.99951, 1.5, 999.6, 12345.6, -0.0023]
    sizes = [0, 1023, 1536, 1 << 20, 5e15, 3e18]
    with show(wide_page) as page:
        assert page.evaluate("values => values.map(plait.seconds)", values) == [format_seconds(each) for each in values]
        assert page.evaluate("values => values.map(plait.bytes)", sizes) == [format_bytes(each) for each in sizes]
