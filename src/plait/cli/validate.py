"""``plait validate``: published, measured runs beside what the cost model predicts for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.output import verb, words, write_json
from plait.errors import SpecError, nearest

if TYPE_CHECKING:
    from plait.validator.table import Validation

_TABLES_HELP = "Tables to compare: names of those that come with Plait, or CSV files. None: all that come with it."


@verb
def validate(
    tables: Annotated[list[str] | None, typer.Argument(help=_TABLES_HELP, show_default=False)] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Every row, also of long tables.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write a Markdown page to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a page.")] = False,
) -> None:
    """Compare published runs with what Plait predicts for them, row by row."""
    from plait.validator.markdown import validation_markdown
    from plait.validator.validate import validate_tables, validations_json

    found = validate_tables(_paths(tables) if tables else None)
    if output is not None:
        output.write_text(validation_markdown(found), encoding="utf-8")
        words().print(f"page written to {output}", soft_wrap=True)
    if json:
        write_json(validations_json(found))
    elif output is None:
        _print(found, every=rows)


def _paths(names: list[str]) -> list[Path]:
    """Files as they are, names among the tables that come with Plait. Errors: SpecError."""
    from plait.validator.validate import table_paths

    known = {path.stem: path for path in table_paths()}
    found = []
    for name in names:
        if name in known:
            found.append(known[name])
        elif name.endswith(".csv") or Path(name).exists():
            found.append(Path(name))
        else:
            raise SpecError(f"unknown table {name!r} ({nearest(name, known)}); a file of your own ends in .csv")
    return found


def _print(found: list[Validation], *, every: bool) -> None:
    from rich.console import Console

    from plait.reports.marks import glyphs_for
    from plait.reports.validation import validation_page

    console = Console(file=sys.stdout, highlight=False)
    page = validation_page(found, console.width, glyphs_for(console.encoding), every=every)
    console.print(page, soft_wrap=True, highlight=False)
