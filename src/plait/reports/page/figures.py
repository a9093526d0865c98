"""The page's two pictures as Bokeh figures without data: the page's own JavaScript fills in what can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plait.reports.page.geometry import Geometry, labels
from plait.reports.page.palette import drawn

if TYPE_CHECKING:
    from bokeh.plotting import figure

MARGIN = 34
"""Pixels below the rows: the axis."""

FONT = "ui-sans-serif, system-ui, sans-serif"

_QUADS = ("left", "right", "top", "bottom", "sort")


def timeline_item(geometry: Geometry, end_s: float, names: Sequence[str], sources: Sequence[str]) -> Any:
    """The timeline as Bokeh's JSON. `names`: of each row."""
    from bokeh.embed import json_item
    from bokeh.models import PanTool, WheelZoomTool

    pixels = round(geometry.shown * geometry.line_pixels) + MARGIN
    plot = _plot(end_s, pixels, (geometry.shown, 0.0), (-0.3, geometry.height + 0.3))
    dimensions = "both" if geometry.shown < geometry.height else "width"
    plot.add_tools(PanTool(dimensions=dimensions), WheelZoomTool(dimensions="width"))
    plot.toolbar.active_drag, plot.toolbar.active_scroll = plot.tools
    wide = labels(geometry, names, sources)
    plot.yaxis.ticker = sorted(wide)
    plot.yaxis.major_label_overrides = wide
    _rows_and_path(plot)
    return json_item(plot)


def memory_item(end_s: float) -> Any:
    """Memory of one rank over time, as Bokeh's JSON."""
    from bokeh.embed import json_item
    from bokeh.models import AdaptiveTicker, ColumnDataSource, PanTool, Span, WheelZoomTool

    plot = _plot(end_s, 190, (0.0, 1.0), None)
    plot.add_tools(PanTool(dimensions="width"), WheelZoomTool(dimensions="width"))
    plot.toolbar.active_drag, plot.toolbar.active_scroll = plot.tools
    plot.yaxis.formatter = _formatter("bytes")
    plot.yaxis.ticker = AdaptiveTicker(base=1024, mantissas=[2**power for power in range(10)], desired_num_ticks=5)
    for name, dash in (("predicted", "dashed"), ("measured", "solid")):
        source = ColumnDataSource({"x": [], "y": []}, name=f"memory-{name}")
        plot.step("x", "y", source=source, mode="after", line_width=1.6, line_dash=dash, name=f"memory-{name}-glyphs")
    plot.add_layout(
        Span(location=0, dimension="width", line_width=1.4, line_dash="dotdash", visible=False, name="limit")
    )
    return json_item(plot)


def _plot(end_s: float, pixels: int, y_range: tuple[float, float], y_bounds: tuple[float, float] | None) -> figure:
    """An empty figure over the run's time, without a toolbar: the page has buttons and keys of its own."""
    from bokeh.models import Range1d
    from bokeh.plotting import figure

    end_s = end_s or 1e-6
    slack = end_s * 0.01
    plot = figure(
        height=pixels,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        output_backend="canvas",
        x_range=Range1d(-slack, end_s + slack, bounds=(-slack, end_s + slack), min_interval=end_s * 1e-6),
        y_range=Range1d(*y_range, bounds=y_bounds),
        min_border_left=4,
        min_border_right=8,
        min_border_top=2,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        lod_threshold=None,
    )
    plot.ygrid.grid_line_color = None
    plot.axis.axis_line_color = None
    plot.axis.minor_tick_line_color = None
    plot.axis.major_tick_line_color = None
    plot.axis.major_label_text_font = FONT
    plot.axis.major_label_text_font_size = "11px"
    plot.xaxis.formatter = _formatter("seconds")
    plot.xaxis.ticker.desired_num_ticks = 8
    return plot


def _formatter(what: str) -> Any:
    from bokeh.models import CustomJSTickFormatter

    return CustomJSTickFormatter(code=f"return plait.ticks.{what}(tick, ticks)")


def _rows_and_path(plot: figure) -> None:
    """The layers, from the back: the row asked for, what is done, the critical path, letters, the span chosen."""
    from bokeh.core.properties import value
    from bokeh.models import BoxAnnotation, ColumnDataSource
    from bokeh.transform import linear_cmap

    colours, letters = drawn(dark=False)

    def by_sort(palette: list[str]) -> Any:
        return linear_cmap("sort", palette, low=-0.5, high=len(palette) - 0.5)

    def source(name: str, columns: Sequence[str]) -> ColumnDataSource:
        return ColumnDataSource({column: [] for column in columns}, name=name)

    sides = {"left": "left", "right": "right", "top": "top", "bottom": "bottom"}
    plot.add_layout(BoxAnnotation(name="row", visible=False, fill_alpha=1.0, line_color=None, level="underlay"))
    for name in ("drawn", "critical"):
        plot.quad(
            **sides, source=source(name, _QUADS), fill_color=by_sort(colours), line_color=None, name=f"{name}-glyphs"
        )
    plot.line("x", "y", source=source("path", ("x", "y")), line_width=1.5, name="path-glyphs")
    plot.text(
        "x",
        "y",
        "text",
        source=source("letters", ("x", "y", "text", "sort")),
        text_color=by_sort(letters),
        text_align="center",
        text_baseline="middle",
        text_font=value(FONT),
        text_font_size="10px",
        name="letters-glyphs",
    )
    plot.quad(**sides, source=source("chosen", _QUADS), fill_color=None, line_width=2, name="chosen-glyphs")
