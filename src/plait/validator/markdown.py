"""Published runs beside their predictions, as a Markdown page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from plait.validator.table import Compared, Validation

LISTED_ROWS = 20
"""A longer table is summed up on the page: by groups, the worst rows, and the rows it was fitted on."""

_WORST = 5
_NOTES = 3

SELENE = ("korthikanti2022_tables3_5", "megatron2021_table1")
"""One machine in two years: their step times are also judged together."""


def validation_markdown(validations: Sequence[Validation]) -> str:
    """A page: a line for every quantity, then row by row published, predicted and error, long tables by groups."""
    lines = [
        "# Published runs, and what Plait predicts for them",
        "",
        "Made by `python -m plait.validator.page`. `plait validate` prints the same, and `plait validate TABLE --rows`",
        "every row of a table. Errors are over the judged rows: those that nothing was fitted on. Where that is none,",
        "the errors are of the fit itself and no test of it. Rows that something was fitted on are marked with *.",
        "",
        "| table | quantity | rows | judged | mean error % | worst % | regret % | rank correlation |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        *(_summary(each) for each in [*validations, *_together(validations)]),
    ]
    for each in validations:
        lines += ["", f"## {each.table}: {each.quantity}", "", *_words(each), "", *_rows(each)]
    return "\n".join(lines) + "\n"


def _together(validations: Sequence[Validation]) -> list[Validation]:
    both = [each for each in validations if each.table in SELENE]
    if len(both) < len(SELENE):
        return []
    rows = tuple(row for each in both for row in each.rows)
    return [Validation(" + ".join(SELENE), "step time", rows, both[0].calibrated_on)]


def _summary(each: Validation) -> str:
    regret = "" if each.regret_pct is None else f"{each.regret_pct:.2f}"
    ranks = "" if each.rank_correlation is None else f"{each.rank_correlation:.3f}"
    return (
        f"| {each.table} | {each.quantity} | {len(each.rows)} | {len(each.unseen) or 'none'} "
        f"| {each.mean_abs_error_pct:.2f} | {each.worst_pct:.2f} | {regret} | {ranks} |"
    )


def _words(each: Validation) -> list[str]:
    """What it was calibrated on, how many rows are judged, and what the rows' notes say, each once."""
    judged = f"{len(each.unseen)} of {len(each.rows)} rows" if each.unseen else "none: it was fitted on all rows"
    words = [f"Calibrated on: {each.calibrated_on}. Judged: {judged}."]
    if each.note:
        words += ["", f"{each.note[0].upper()}{each.note[1:]}."]
    notes = Counter(piece for row in each.rows for piece in _pieces(row) if _is_bar(piece))
    several = [note for note in notes if "not calibrated" in note]
    if len(several) > _NOTES:
        count = sum(notes[note] for note in several)
        notes = Counter({f"{several[0]}; and alike": count, **{n: c for n, c in notes.items() if n not in several}})
    for note, count in notes.items():
        rows = f" ({count} of {len(each.rows)} rows)" if count < len(each.rows) or len(notes) > 1 else ""
        words += ["", f"{note[0].upper()}{note[1:]}{rows}."]
    return words


def _pieces(row: Compared) -> list[str]:
    """The parts of a row's note; a semicolon in brackets parts nothing."""
    return [piece for piece in re.split(r"; (?![^(]*\))", row.note) if piece]


def _is_bar(piece: str) -> bool:
    """True for what says how far a row is calibrated."""
    return "calibrated" in piece or "±" in piece or "no device named" in piece


def _rows(each: Validation) -> list[str]:
    if len(each.rows) <= LISTED_ROWS:
        return _listed(each.rows)
    worst = sorted(each.judged, key=lambda row: -abs(row.error_pct))[:_WORST]
    groups: dict[str, list[Compared]] = {}
    for row in each.judged:
        groups.setdefault(row.group or "all", []).append(row)
    lines = [
        "| judged rows | rows | mean error % | mean of signed errors % | worst % |",
        "|---|--:|--:|--:|--:|",
        *(_group(name, rows) for name, rows in sorted(groups.items(), key=lambda each: _natural(each[0]))),
        "",
        f"The {_WORST} worst of {len(each.judged)}:",
        "",
        *_listed(worst),
    ]
    fitted = [row for row in each.rows if row.calibrated and each.unseen]
    if fitted:
        lines += ["", f"The {len(fitted)} that it was fitted on:", "", *_listed(fitted)]
    return lines


def _group(name: str, rows: Sequence[Compared]) -> str:
    errors = [row.error_pct for row in rows]
    signed, size = fmean(errors), fmean(map(abs, errors))
    return f"| {name} | {len(rows)} | {size:.1f} | {signed:+.1f} | {max(map(abs, errors)):.1f} |"


def _natural(words: str) -> list[tuple[int, str]]:
    """Figures in words in the order of figures."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", words)]


def _listed(rows: Sequence[Compared]) -> list[str]:
    notes = ["; ".join(piece for piece in _pieces(row) if not _is_bar(piece)) for row in rows]
    more, line = (" note |", "---|") if any(notes) else ("", "")
    return [
        f"| row | unit | published | predicted | error % |{more}",
        f"|---|---|--:|--:|--:|{line}",
        *(
            f"| {row.name}{' *' if row.calibrated else ''} | {row.unit} | {row.published:.4g} | {row.predicted:.4g} "
            f"| {row.error_pct:+.1f} |{f' {note} |' if more else ''}"
            for row, note in zip(rows, notes, strict=True)
        ),
    ]
