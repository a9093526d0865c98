"""A browser for the page's tests: the system's Chromium, where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "docs" / "tools")]

Open = Callable[..., AbstractContextManager["Page"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright
    from screenshot import FLAGS, find_browser

    try:
        executable = find_browser()
    except FileNotFoundError as error:
        pytest.skip(f"a page is tested in a real browser: {error}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def show(browser: Browser) -> Open:
    """A page in a window of its own; after it, nothing was asked of a network, and nothing complained."""

    @contextmanager
    def opened(html: Path, width: int = 1280, height: int = 900, **more: object) -> Iterator[Page]:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)  # type: ignore[arg-type]
        said: list[str] = []
        asked: list[str] = []
        context.route(lambda url: not url.startswith(("file:", "data:")), lambda route: route.abort())
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(html.as_uri())
        page.wait_for_function("document.body.dataset.state !== 'drawing'")
        assert page.evaluate("document.body.dataset.state") == "ready"
        yield page
        assert said == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        context.close()

    return opened
