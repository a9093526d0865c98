"""``plait report``: a kept run on one page, predicted above measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from plait.cli.output import verb, write_json


@verb
def report(
    run: Annotated[Path, typer.Argument(help="The run's directory, as `plait generate` printed it.")],
    rounds: Annotated[str | None, typer.Option(help="Rounds to draw, as in 0:8.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a page.")] = False,
) -> None:
    """Show what each stage of a run did, predicted and measured."""
    from plait.reports.terminal import parse_rounds, report_json
    from plait.reports.terminal import report as print_report
    from plait.timeline.record import RunRecord

    record = RunRecord.load(run)
    if json:
        write_json(report_json(record))
        return
    print_report(record, Console(file=sys.stdout, highlight=False), None if rounds is None else parse_rounds(rounds))
