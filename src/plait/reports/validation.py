"""Published runs beside their predictions, as a page of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from plait.reports.marks import ASCII, UNICODE, Glyphs
from plait.reports.picture import wrapped
from plait.validator.table import Compared, Validation

LISTED_ROWS = 40
"""A longer table shows the rows it was fitted on and its worst ones, unless every row is asked for."""

_WORST = 10
_FITTED = " *"


def validation_page(found: Sequence[Validation], width: int, glyphs: Glyphs = UNICODE, *, every: bool = False) -> Text:
    """Row by row published, predicted and error of each quantity of each table, and all in a few lines at the end."""
    parts = [Text("\n").join(_lines(one, width, every)) for one in found]
    parts.append(Text("\n").join(_summary(found)))
    page = Text("\n\n", no_wrap=True, overflow="ignore").join(parts)
    if glyphs is ASCII:
        page.plain = page.plain.replace("µ", "u").replace("×", "x").encode("ascii", "replace").decode("ascii")
    return page


def _lines(one: Validation, width: int, every: bool) -> Iterator[Text]:
    yield Text(f"{one.table}: {one.quantity}", "bold")
    yield from wrapped(f"calibrated on: {one.calibrated_on or 'nothing'}".split(), " ", width)
    common = _common(one.rows)
    for note in (one.note, "; ".join(common)):
        yield from wrapped(note.split(), " ", width) if note else ()
    shown, said = _shown(one, every)
    yield Text(f"{'published':>12}{'predicted':>12}  {'unit':<6}{'error':>9}  row", "dim")
    for row in shown:
        yield _row(row, common)
    if said:
        yield Text(said, "dim")
    yield Text(_figures(one))


def _common(rows: Sequence[Compared]) -> list[str]:
    """What the notes of all rows say: it is told once."""
    if len(rows) < 2:
        return []
    others = [set(_pieces(row.note)) for row in rows[1:]]
    return [piece for piece in _pieces(rows[0].note) if all(piece in other for other in others)]


def _pieces(note: str) -> list[str]:
    return [piece for piece in note.split("; ") if piece]


def _shown(one: Validation, every: bool) -> tuple[Sequence[Compared], str]:
    if every or len(one.rows) <= LISTED_ROWS:
        return one.rows, ""
    worst = sorted(one.judged, key=lambda row: -abs(row.error_pct))[:_WORST]
    fitted = [row for row in one.rows if row.calibrated]
    said = f"of {len(one.rows)} rows those that it was fitted on (*) and the {_WORST} worst; --rows shows all"
    return [*fitted, *worst], said if fitted else said.replace("those that it was fitted on (*) and ", "")


def _row(row: Compared, common: Sequence[str]) -> Text:
    name = row.name + (_FITTED if row.calibrated else "")
    note = "; ".join(piece for piece in _pieces(row.note) if piece not in common)
    figures = f"{row.published:>12.5g}{row.predicted:>12.5g}  {row.unit:<6}{row.error_pct:>+7.1f} %"
    return Text(f"{figures}  {name}" + (f": {note}" if note else ""))


def _figures(one: Validation) -> str:
    """``mean error 3.21 %, worst 8.00 % (over 10 rows)``, and what was chosen by it."""
    text = f"mean error {one.mean_abs_error_pct:.2f} %, worst {one.worst_pct:.2f} % (over {len(one.judged)} rows)"
    if one.regret_pct is not None:
        text += f", regret {one.regret_pct:.2f} %"
    if one.rank_correlation is not None:
        text += f", rank correlation {one.rank_correlation:.3f}"
    return text


def _summary(found: Sequence[Validation]) -> Iterator[Text]:
    names = [f"{one.table}: {one.quantity}" for one in found]
    wide = max((len(name) for name in names), default=0)
    yield Text("All of it", "bold")
    for name, one in zip(names, found, strict=True):
        yield Text(f"{name:<{wide}}  mean {one.mean_abs_error_pct:6.2f} %   worst {one.worst_pct:6.2f} %")
