"""Charts: lines and bars of figures, predicted beside measured, as a picture that also stands in a page."""

from __future__ import annotations

from typing import NamedTuple


class Series(NamedTuple):
    """A line or a row of bars: measured, or predicted."""

    name: str
    xs: tuple[float | str, ...]
    ys: tuple[float, ...]
    measured: bool = True


class Chart(NamedTuple):
    """A picture of an experiment. With `bars` the xs are words."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bars: bool = False
    x_log: bool = False
    y_log: bool = False
