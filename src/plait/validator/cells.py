"""A line of a table, and what stands in its cells, with type and bounds: every error names line and column."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import isfinite

from plait.errors import SpecError, UsageError, nearest

Record = dict[str, str]
"""A line of a table: column to text."""

_LEAST, _MOST = 1e-9, 1e15
_MOST_WHOLE = 10**9
_SHOWN_COLUMNS = 4


class Line(dict[str, str]):
    """A line that knows its place, ``table x.csv, line 7``, and what the table's header says of the hardware."""

    def __init__(self, values: Record, where: str, hardware: str = "") -> None:
        super().__init__(values)
        self.where = where
        self.hardware = hardware


def where(record: Record) -> str:
    """The line's place in words: of a file its number, otherwise its first columns."""
    if isinstance(record, Line):
        return record.where
    return "the row " + ", ".join(f"{column} {text}" for column, text in list(record.items())[:_SHOWN_COLUMNS])


def has(record: Record, column: str) -> bool:
    """True where the line says something in that column."""
    return bool((record.get(column) or "").strip())


def text(record: Record, column: str, known: Collection[str] | None = None) -> str:
    """The words in a column. Errors: SpecError where there are none, or none of the `known` ones."""
    if not has(record, column):
        raise SpecError(f"{where(record)}: {column} is missing")
    found = record[column].strip()
    if known is not None and found not in known:
        raise SpecError(f"{where(record)}: unknown {column} {found!r}: {nearest(found, known)}")
    return found


def number(record: Record, column: str, *, least: float | None = None) -> float:
    """The figure in a column, above 0, or from `least` on. Errors: SpecError."""
    found = text(record, column)
    needed = "a number above 0" if least is None else f"a number from {least:g} on"
    try:
        value = float(found)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or (value <= 0 if least is None else value < least):
        raise SpecError(f"{where(record)}: {column} is {found!r}, but must be {needed}")
    if value > _MOST or (least is None and value < _LEAST):
        raise SpecError(f"{where(record)}: {column} is {found!r}, but must be a number from {_LEAST:g} to {_MOST:g}")
    return value


def whole(record: Record, column: str, *, least: int = 1, most: int = _MOST_WHOLE) -> int:
    """The whole number in a column, from `least` to `most`. Errors: SpecError."""
    found = text(record, column)
    try:
        value = float(found)
    except ValueError:
        value = float("nan")
    if not (least <= value <= most and value == int(value)):
        raise SpecError(f"{where(record)}: {column} is {found!r}, but must be a whole number from {least} to {most:,}")
    return int(value)


@contextmanager
def reading(record: Record) -> Iterator[None]:
    """Errors inside name the line, if they do not yet. Errors: SpecError."""
    try:
        yield
    except UsageError as cause:
        if str(cause).startswith(where(record)):
            raise
        raise SpecError(f"{where(record)}: {cause}") from cause
