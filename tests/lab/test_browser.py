"""The lab's page in a real browser, wide and narrow, light and dark; and that its colours can be read."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from plait.lab.page import page_html

from .made import FAILS, experiment, known, outcome, results

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "tools"))


@pytest.fixture
def page_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known(monkeypatch, [experiment("one"), experiment("two")])
    page = tmp_path / "index.html"
    page.write_text(page_html(results(outcome("one"), outcome("two", FAILS))), encoding="utf-8")
    return page


def test_it_fits_its_window_and_opens_by_keyboard(page_file: Path) -> None:
    from screenshot import find_browser, open_page

    try:
        find_browser()
    except FileNotFoundError as error:
        pytest.skip(f"a page is tested in a real browser: {error}")
    for width, dark in ((390, False), (1280, True)):
        with open_page(page_file, width, dark=dark) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("document.querySelectorAll('figure svg').length") == 2
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(24, 24, 27)" if dark else "rgb(255, 255, 255)")
            opened = "document.querySelector('#one details').open"
            assert page.evaluate(opened) is False
            page.focus("#one details summary")
            page.keyboard.press("Enter")
            assert page.evaluate(opened) is True
            assert page.evaluate("document.querySelector('#two details').open") is True  # what failed is shown


def luminance(colour: str) -> float:
    """Of #rgb or #rrggbb: WCAG 2.1, relative luminance."""
    digits = colour.lstrip("#")
    parts = [digits[at] * 2 for at in range(3)] if len(digits) == 3 else [digits[at : at + 2] for at in (0, 2, 4)]
    linear = [
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(part, 16) / 255 for part in parts)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_stand_out_from_their_paper_in_both_schemes() -> None:
    text = (files("plait.lab") / "page.html").read_text(encoding="utf-8")
    schemes = re.findall(r":root \{(.*?)\}", text)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w+)", scheme))
        for ink in ("ink", "soft", "good", "bad", "link"):
            for paper in ("paper", "band"):
                light, dark = sorted((luminance(colours[ink]), luminance(colours[paper])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper, scheme)
