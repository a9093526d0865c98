"""The page of a report: one file of HTML with all that it needs, which opens from a disk, without a network.

The pictures are Bokeh's. Bokeh draws 20,000 rectangles in 90 ms, which stutters; so the page holds all spans as typed
columns, and on every move its own JavaScript gives Bokeh only what can be seen: what lies in the window, and what is
narrower than a few pixels taken together.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from plait.errors import UsageError
from plait.reports.change import CONVENTION
from plait.reports.colours import COLOURS
from plait.reports.memory_words import memory_words
from plait.reports.moments import ASSUMED
from plait.reports.page import palette, tables
from plait.reports.page.drawn import make_drawn
from plait.reports.view import View

SCRIPTS = ("data.js", "words.js", "collect.js", "picture.js", "tooltip.js", "memory.js", "ranks.js", "main.js")
"""In this order: each may use what stands before it."""


def write_page(view: View, path: Path) -> None:
    """Write the page. Errors: UsageError: what draws is not installed, or `path` cannot be written."""
    text = render_page(view)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the page cannot be written to {path}: {error.strerror or error}; give a file in a folder that is there, "
            "as in -o report.html"
        ) from error


def render_page(view: View) -> str:
    """The page's text. Errors: UsageError: Bokeh or Jinja2 is not installed."""
    try:
        import bokeh  # noqa: F401
        import jinja2
    except ImportError as error:
        raise UsageError(
            f"the page needs {error.name}, which is not installed; type: pip install 'plait[report]', "
            "or read the report in the terminal with --text"
        ) from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    drawn = make_drawn(view)
    return environment.from_string(_asset("page.html")).render(
        view=view,
        notes=drawn.notes if drawn else (),
        tables=_tables(view),
        sources=[timeline.source for timeline in view.timelines],
        legend=drawn.legend if drawn else (),
        style=_style(),
        bokeh_script=_bokeh(),
        script="\n".join(_asset(name) for name in SCRIPTS),
        data=script_json(drawn.data if drawn else None),
        has_picture=drawn is not None,
        convention=CONVENTION.replace("measured - predicted", "measured − predicted"),
        memory_words=tuple(memory_words(view, with_base=True)),
        memory_ranks=drawn.memory_ranks if drawn else (),
        spread=drawn is not None and drawn.spread,
        placed=ASSUMED if drawn is not None and drawn.placed else "",
        has_path=drawn is not None and drawn.has_path,
    )


def script_json(value: object) -> str:
    """JSON that may stand in a script element: nothing in it ends the element or begins another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (resources.files("plait.reports.page") / name).read_text(encoding="utf-8")


def _bokeh() -> str:
    """Bokeh's own script, without what the page does not use (widgets, WebGL, MathJax)."""
    from bokeh.resources import Resources

    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _style() -> str:
    light = palette.css(palette.LIGHT, COLOURS)
    dark = palette.css(palette.DARK, palette.DARK_SORTS)
    themes = f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    return themes + _asset("page.css")


def _tables(view: View) -> dict[str, Any]:
    return {
        "figures": tables.figures(view),
        "stages": tables.stages(view),
        "links": tables.links(view),
        "memory": tables.memory(view),
        "clocks": tables.clocks(view),
    }
