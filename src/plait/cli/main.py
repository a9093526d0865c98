"""The ``plait`` command: one file a verb."""

from __future__ import annotations

import typer

from plait.cli.certify import certify
from plait.cli.generate import generate
from plait.cli.lab import lab
from plait.cli.plan import plan
from plait.cli.probe import probe
from plait.cli.report import report
from plait.cli.simulate import simulate
from plait.cli.train import train
from plait.cli.validate import validate

app = typer.Typer(
    help="Splits one transformer over many devices: plans the split, runs it, and shows it, all from one plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(train)
app.command()(plan)
app.command()(simulate)
app.command()(report)
app.command()(validate)
app.command()(certify)
app.command()(probe)
app.command()(lab)


def main() -> None:
    """Entry point of the console script."""
    app()
