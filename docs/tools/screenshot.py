"""Pictures of pages that Plait wrote, as a browser shows them: ``python docs/tools/screenshot.py PAGE.html OUT.png``.

The browser is the system's Chromium, without a network; playwright drives it.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


def find_browser() -> str:
    """Path of the system's Chromium. Errors: FileNotFoundError: there is none."""
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise FileNotFoundError(f"none of {', '.join(BROWSERS)} is installed; type: apt-get install chromium")


@contextlib.contextmanager
def open_page(
    html: Path, width: int = 1280, height: int = 900, *, dark: bool = False, scale: float = 1
) -> Iterator[Page]:
    """`html` in a browser without a network, when what it draws has settled.

    Errors: FileNotFoundError: no page or no browser; RuntimeError: the page reported an error.
    """
    from playwright.sync_api import sync_playwright

    if not html.is_file():
        raise FileNotFoundError(f"there is no page {html}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            device_scale_factor=scale,
            reduced_motion="reduce",
            offline=True,
        )
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(html.resolve().as_uri())
        page.wait_for_function("!document.body.dataset.state || document.body.dataset.state === 'ready'")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if errors:
            raise RuntimeError(f"{html} reported: {'; '.join(errors)}")
        yield page
        browser.close()


def screenshot(
    html: Path,
    png: Path,
    width: int = 1280,
    height: int = 900,
    *,
    dark: bool = False,
    scale: float = 1,
    whole: bool = False,
    element: str | None = None,
) -> None:
    """Write `png`: the first `height` pixels of the page, all of it (`whole`), or one `element` (a CSS selector).

    Errors: as `open_page`.
    """
    with open_page(html, width, height, dark=dark, scale=scale) as page:
        if element is None:
            page.screenshot(path=png, full_page=whole)
        else:
            page.locator(element).first.screenshot(path=png)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("html", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--scale", type=float, default=1, help="device pixels a pixel")
    parser.add_argument("--whole", action="store_true", help="the whole page, however long")
    parser.add_argument("--element", help="only this element (a CSS selector)")
    asked = parser.parse_args()
    screenshot(
        asked.html,
        asked.png,
        asked.width,
        asked.height,
        dark=asked.dark,
        scale=asked.scale,
        whole=asked.whole,
        element=asked.element,
    )


if __name__ == "__main__":
    main()
