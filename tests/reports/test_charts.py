"""Charts: what stands in the SVG is what was given; two of them may stand in one page; what cannot be drawn is said."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from plait.errors import UsageError
from plait.reports.charts import Chart, Series, chart_svg, describe, spread, write_chart

LINKS = ("10 Gb/s", "1 Gb/s", "100 Mb/s")
LINES = Chart(
    "Tokens/s < against the link",
    "link",
    "tokens/s",
    (
        Series("tensor", LINKS, (60.0, 20.0, 2.3)),
        Series("tensor, predicted", LINKS, (63.0, 21.0, 2.2), measured=False),
        Series("layer-wise", LINKS, (69.0, 66.0, 50.0)),
    ),
    y_log=True,
)
BARS = Chart(
    "The braid",
    "order",
    "tokens/s",
    (Series("predicted", ("a", "b"), (12.0, 33.0), measured=False), Series("measured", ("a", "b"), (11.0, 31.0))),
    bars=True,
)
NUMBERS = Chart(
    "Bubble", "micro-batches", "bubble", (Series("gpipe", (1, 2, 4, 8), (0.75, 0.6, 0.43, 0.27)),), x_log=True
)


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def ids(svg: str) -> list[str]:
    return [element.get("id", "") for element in ET.fromstring(svg).iter() if element.get("id")]


@pytest.mark.parametrize("chart", [LINES, BARS, NUMBERS], ids=["lines", "bars", "numbers"])
def test_an_svg_to_put_into_a_page(chart: Chart) -> None:
    svg = chart_svg(chart)
    root = ET.fromstring(svg)
    assert svg.startswith("<svg ")
    assert root.get("role") == "img"
    named = [element for element in root if element.get("id") in (root.get("aria-labelledby") or "").split()]
    assert [element.text for element in named] == [chart.title, describe(chart)]
    assert "<style" not in svg
    assert "<metadata" not in svg
    assert len(ids(svg)) == len(set(ids(svg)))
    assert svg == chart_svg(chart)
    assert not re.search(r"20\d\d-\d\d-\d\d", svg)


def test_every_reference_has_its_target() -> None:
    svg = chart_svg(BARS)
    used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
    assert used
    assert used <= set(ids(svg))


def test_two_charts_in_a_page_share_no_id() -> None:
    assert not set(ids(chart_svg(LINES))) & set(ids(chart_svg(BARS)))
    other = NUMBERS._replace(series=(NUMBERS.series[0]._replace(ys=(0.75, 0.6, 0.43, 0.28)),))
    assert not set(ids(chart_svg(NUMBERS))) & set(ids(chart_svg(other)))


def test_lines_have_their_names_at_their_ends_and_words_along_the_axis() -> None:
    found = words(chart_svg(LINES))
    assert {"tensor", "layer-wise", "measured", "predicted", *LINKS, "tokens/s", "link"} <= set(found)


def test_ticks_are_the_numbers_themselves_where_they_are_few() -> None:
    found = words(chart_svg(NUMBERS))
    assert [word for word in found if word in ("1", "2", "4", "8", "16")] == ["1", "2", "4", "8"]


def test_bars_carry_their_figures() -> None:
    found = words(chart_svg(BARS))
    assert {"12", "33", "11", "31", "a", "b"} <= set(found)
    hollow = [one for one in ET.fromstring(chart_svg(BARS)).iter() if "url(#" in (one.get("style") or "")]
    assert len(hollow) == 3, "two bars and the legend's"


def test_a_predicted_line_is_dashed_and_hollow_in_its_subjects_colour() -> None:
    lines = [
        element.get("style", "")
        for element in ET.fromstring(chart_svg(LINES)).iter("{http://www.w3.org/2000/svg}path")
        if "fill: none" in element.get("style", "") and "stroke: #0072b2" in element.get("style", "")
    ]
    assert [style for style in lines if "stroke-dasharray" in style]
    assert [style for style in lines if "stroke-dasharray" not in style]


def test_all_figures_in_words() -> None:
    assert describe(LINES) == (
        "tokens/s by link. tensor, measured: 10 Gb/s: 60; 1 Gb/s: 20; 100 Mb/s: 2.3. tensor, predicted: 10 Gb/s: 63; "
        "1 Gb/s: 21; 100 Mb/s: 2.2. layer-wise, measured: 10 Gb/s: 69; 1 Gb/s: 66; 100 Mb/s: 50."
    )


def test_files_by_their_suffix(tmp_path: Path) -> None:
    write_chart(BARS, tmp_path / "new" / "braid.svg")
    root = ET.parse(tmp_path / "new" / "braid.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    write_chart(BARS, tmp_path / "braid.PNG")
    with Image.open(tmp_path / "braid.PNG") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.size == (1000, 680)
    first = (tmp_path / "braid.PNG").read_bytes()
    write_chart(BARS, tmp_path / "braid.PNG")
    assert (tmp_path / "braid.PNG").read_bytes() == first


def test_a_persons_own_settings_change_nothing() -> None:
    before = chart_svg(LINES)
    with matplotlib.rc_context({"font.size": 30.0, "svg.fonttype": "path", "axes.grid": True, "lines.marker": "x"}):
        assert chart_svg(LINES) == before
        assert matplotlib.rcParams["font.size"] == 30.0


def test_pyplot_is_not_loaded() -> None:
    program = (
        "import sys; from plait.reports.charts import *; assert 'matplotlib' not in sys.modules;"
        "chart_svg(Chart('t', 'x', 'y', (Series('s', (1.0,), (2.0,)),))); print('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("chart", "message"),
    [
        (
            NUMBERS._replace(series=()),
            "cannot draw the chart 'Bubble': it has no figures; at least one series must have a point",
        ),
        (
            NUMBERS._replace(series=(Series("gpipe", (1.0, 2.0), (0.5,)),)),
            "cannot draw the chart 'Bubble': 'gpipe' has 2 xs and 1 ys; give one y for each x",
        ),
        (
            NUMBERS._replace(series=(Series("gpipe", (2.0,), (float("nan"),)),)),
            "cannot draw the chart 'Bubble': 'gpipe' has nan at 2; leave out what is not known",
        ),
        (
            NUMBERS._replace(series=(Series("gpipe", (0.0,), (0.5,)),)),
            "cannot draw the chart 'Bubble': 'gpipe' has 0.5 at 0, and an axis of powers of ten begins above 0; leave "
            "the point out, or draw it without",
        ),
        (
            BARS._replace(series=(Series("measured", ("a",), (0.0,)),), y_log=True),
            "cannot draw the chart 'The braid': 'measured' has 0 at a, and an axis of powers of ten begins above 0; "
            "leave the point out, or draw it without",
        ),
    ],
)
def test_what_cannot_be_drawn(chart: Chart, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        chart_svg(chart)
    assert str(caught.value) == message


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_chart(BARS, tmp_path / "braid.sgv")
    assert str(caught.value) == (
        f"cannot draw {tmp_path}/braid.sgv: .sgv is no format of pictures; known are .png and .svg: give a name such "
        "as braid.svg"
    )
    with pytest.raises(UsageError) as caught:
        write_chart(BARS, tmp_path / "braid")
    assert str(caught.value) == (
        f"cannot draw {tmp_path}/braid: the name says no format; known are .png and .svg: give a name such as braid.svg"
    )


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(UsageError) as caught:
        write_chart(BARS, tmp_path / "a.svg")
    assert str(caught.value) == f"cannot write {tmp_path}/a.svg: Is a directory; give another place"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        chart_svg(BARS)
    assert str(caught.value) == (
        "pictures need matplotlib, which is not installed; pip install 'plait[report]' adds it, and the terminal's "
        "report needs none"
    )


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=10))
def test_names_at_the_ends_of_lines_do_not_overlap(at: list[float]) -> None:
    heights = {str(index): height for index, height in enumerate(at)}
    found = spread(heights, 0.1)
    assert found.keys() == heights.keys()
    ascending = sorted(found.values())
    assert all(two - one >= 0.1 - 1e-9 for one, two in pairwise(ascending))
    order = sorted(heights, key=heights.__getitem__)
    assert order == sorted(order, key=found.__getitem__)
    assert all(-1e-9 <= height <= 1 + 1e-9 for height in ascending)
