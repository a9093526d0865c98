"""The ``plait`` command: one file a verb."""

from __future__ import annotations

import typer

from plait.cli.generate import generate
from plait.cli.report import report
from plait.cli.simulate import simulate

app = typer.Typer(
    help="Splits one transformer over many devices: plans the split, runs it, and shows it, all from one plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(simulate)
app.command()(report)


def main() -> None:
    """Entry point of the console script."""
    app()
