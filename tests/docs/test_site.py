"""The site that `make docs` builds: without a warning, no page unreachable, and nothing asked of another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plait.spec.cluster_file import cluster_from_toml

from .tools import DOCS, ROOT, tool

screenshot = tool("screenshot")

LOADING = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return place


class _Loaded(HTMLParser):
    """What a browser loads for a page without being asked: not what a reader may click."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADING and values.get(LOADING[tag]):
            self.found.append(str(values[LOADING[tag]]))
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(str(values.get("href")))


def loaded(page: str) -> list[str]:
    parser = _Loaded()
    parser.feed(page)
    return parser.found


def _elsewhere(targets: list[str]) -> list[str]:
    return [target for target in targets if re.match(r"(\w+:)?//", target)]


def test_what_a_page_loads_is_found() -> None:
    page = '<link rel="stylesheet" href="//a/b.css"><img src="c.png"><a href="https://d/">e</a><script src="f.js">'
    assert loaded(page) == ["//a/b.css", "c.png", "f.js"]
    assert _elsewhere(loaded(page)) == ["//a/b.css"]


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert _elsewhere(loaded(page.read_text())) == [], page.name
    for sheet in site.rglob("*.css"):
        assert _elsewhere(re.findall(r"url\([\"']?([^\"')]+)", sheet.read_text())) == [], sheet.name


def test_tools_are_not_published(site: Path) -> None:
    assert not (site / "tools").exists()


def _linked(page: Path) -> Iterator[Path]:
    for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()):
        if "://" not in target:
            yield (page.parent / target).resolve()


def test_every_page_can_be_reached() -> None:
    """From mkdocs.yml (strict: every page but decisions is in it), and decisions from their list."""
    nav = (ROOT / "mkdocs.yml").read_text().split("nav:\n")[1]
    reached = {(DOCS / name).resolve() for name in re.findall(r"([\w/-]+\.md)", nav)}
    reached |= set(_linked(DOCS / "decisions" / "README.md"))
    assert {page.resolve() for page in DOCS.rglob("*.md")} == reached


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_cluster_files_of_the_pages_can_be_read(page: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        assert cluster_from_toml(tomllib.loads(block)).devices


def test_the_readme_opens_with_a_real_report() -> None:
    before = (ROOT / "README.md").read_text().split("\n## ")[0]
    assert "](docs/figures/report.png)" in before


def test_pages_in_a_browser(site: Path) -> None:
    """A reader on a phone: no error, no request, nothing to scroll sideways."""
    try:
        browser_path = screenshot.find_browser()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(screenshot.FLAGS))
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
        for name in ("index.html", "concepts/pipeline.html", "reference/cli.html"):
            page.goto((site / name).as_uri())
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        browser.close()
    assert said == []
