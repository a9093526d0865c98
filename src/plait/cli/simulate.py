"""``plait simulate``: the predicted timeline of a plan file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from plait.cli.output import verb, write_json


@verb
def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of each prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 16,
    users: Annotated[int | None, typer.Option(min=1, help="Requests; the plan's slots by default.")] = None,
    rounds: Annotated[str | None, typer.Option(help="Rounds to draw, as in 0:8.")] = None,
    actions: Annotated[bool, typer.Option("--actions", help="Print every round's actions.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a page.")] = False,
) -> None:
    """Predict a plan's timeline, without running it."""
    from plait.generation.forecast import forecast
    from plait.reports.terminal import actions_text, parse_rounds, report_json
    from plait.reports.terminal import report as print_report

    record = forecast(plan, prompt, max_tokens, users)
    if json:
        values = report_json(record)
        write_json({**values, "actions": actions_text(record.make_rounds()).splitlines()} if actions else values)
        return
    if actions:
        sys.stdout.write(actions_text(record.make_rounds()) + "\n")
    print_report(record, Console(file=sys.stdout, highlight=False), None if rounds is None else parse_rounds(rounds))
