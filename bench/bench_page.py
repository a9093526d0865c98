"""How long a frame of a report's page takes in a browser without a GPU, while one zooms, moves and points."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from harness import table, verdict

from plait.reports.page import write_page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs" / "tools"), str(ROOT / "tests" / "reports" / "page")]

from screenshot import find_browser, open_page  # noqa: E402
from views import long_view  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

TARGET_MS = 50
FRAMES = 120

# Frames one after another, each with a move: what lies between two of them is what the eye sees.
MOVING = """
async ([frames, kind]) => {
  const picture = plait.picture, range = picture.plot.x_range;
  const next = () => new Promise(done => requestAnimationFrame(done));
  picture.showAll();
  await next(); await next();
  const whole = range.end - range.start, deltas = [];
  let rectangles = 0;
  let last = await next();
  for (let i = 0; i < frames; i++) {
    if (kind === "zoom") picture.zoom(i % 60 < 30 ? 0.85 : 1 / 0.85, whole * 0.37);
    else { if (i === 0) picture.zoom(0.3); picture.pan(i % 40 < 20 ? 0.03 : -0.03); }
    const now = await next();
    deltas.push(now - last);
    last = now;
    rectangles = Math.max(rectangles, picture.state.rectangles);
  }
  return { deltas, rectangles };
}
"""

POINTING = """
async (frames) => {
  const element = document.getElementById("picture"), box = element.getBoundingClientRect(), deltas = [];
  const next = () => new Promise(done => requestAnimationFrame(done));
  let last = await next();
  for (let i = 0; i < frames; i++) {
    const x = box.left + 140 + (i * 7) % (box.width - 160), y = box.top + 20 + (i * 3) % (box.height - 60);
    element.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    const now = await next();
    deltas.push(now - last);
    last = now;
  }
  return { deltas, rectangles: plait.picture.state.rectangles };
}
"""

WHEEL = """
() => {
  window.frames_ = [];
  let last = performance.now();
  const tick = now => { window.frames_.push(now - last); last = now; window.ticking_ = requestAnimationFrame(tick); };
  window.ticking_ = requestAnimationFrame(tick);
}
"""


def wheel(page: Page) -> dict[str, Sequence[float]]:
    """Real wheel events, as a hand makes them."""
    box = page.locator("#picture").bounding_box()
    assert box is not None
    page.evaluate("plait.picture.showAll()")
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
    page.evaluate(WHEEL)
    for turn in range(FRAMES // 2):
        page.mouse.wheel(0, -80 if turn % 40 < 20 else 80)
    return {"deltas": page.evaluate("(cancelAnimationFrame(window.ticking_), window.frames_)")}


class Cpu:
    """CPU seconds of the page's own thread: the main one of the browser's process that draws pages."""

    def __init__(self) -> None:
        drawing = [
            process
            for process in psutil.Process().children(recursive=True)
            if "--type=renderer" in process.cmdline() and "--extension-process" not in process.cmdline()
        ]
        self._process = max(drawing, key=lambda process: process.memory_info().rss)

    def seconds(self) -> float:
        """Until now."""
        main = next(thread for thread in self._process.threads() if thread.id == self._process.pid)
        return float(main.user_time + main.system_time)


def row(name: str, spans: int, cpu: Cpu, run: Callable[[], dict[str, Sequence[float]]]) -> list[object]:
    begin_s = cpu.seconds()
    found = run()
    deltas = sorted(found["deltas"])
    return [
        name,
        spans,
        round(statistics.median(deltas), 1),
        round(deltas[int(0.95 * (len(deltas) - 1))], 1),
        round(deltas[-1], 1),
        round((cpu.seconds() - begin_s) * 1e3 / len(deltas), 1),
        found.get("rectangles", ""),
    ]


def measure(spans: int, folder: Path) -> list[list[object]]:
    html = folder / f"{spans}.html"
    write_page(long_view(spans), html)
    with open_page(html) as page:
        cpu = Cpu()
        page.evaluate(MOVING, [20, "zoom"])  # warm
        return [
            row("zooming", spans, cpu, lambda: page.evaluate(MOVING, [FRAMES, "zoom"])),
            row("moving", spans, cpu, lambda: page.evaluate(MOVING, [FRAMES, "move"])),
            row("wheel", spans, cpu, lambda: wheel(page)),
            row("pointing", spans, cpu, lambda: page.evaluate(POINTING, FRAMES)),
        ]


def main() -> None:
    try:
        find_browser()
    except FileNotFoundError as error:
        sys.stdout.write(f"## The page of a report\n\nNot measured: {error}.\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [line for spans in (20_000, 200_000) for line in measure(spans, Path(folder))]
    headings = ["", "spans", "median ms", "95 % ms", "longest ms", "CPU ms", "rectangles"]
    worst, own = (max(float(str(line[at])) for line in rows if line[1] == 20_000) for at in (3, 5))
    sections = [
        "## The page of a report",
        "Time from frame to frame in Chromium without a GPU, 1,280 pixels wide, while every frame shows another part\n"
        "of the timeline. CPU: what a frame takes of the page's own thread, whatever else the machine does.\n"
        f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        table(headings, rows),
        f"20,000 spans, 95 of 100 frames: {verdict(worst, TARGET_MS, ' ms', at_most=True)}; "
        f"CPU of the page's own thread: {verdict(own, TARGET_MS, ' ms', at_most=True)}.",
    ]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
