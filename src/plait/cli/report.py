"""``plait report``: a run or a plan as text, one page, pictures or a trace, predicted above measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.output import verb, words, write_json

_RUN_HELP = "A run's directory, as `plait generate` and `plait train` name it, or a plan file, which is simulated."


@verb
def report(
    run: Annotated[Path, typer.Argument(help=_RUN_HELP)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write one page of HTML here.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the timeline here, as PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the timeline here, as SVG.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the text, also beside files.")] = False,
    rounds: Annotated[str | None, typer.Option(help="Rounds that text and pictures show, as in 0:8.")] = None,
    search: Annotated[
        bool, typer.Option(help="Look again for other ways to split, and say why they lose (a few seconds).")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Show what a run did, or a plan would do: predicted and measured, stage by stage, and where they differ.

    Without an option the text is printed.
    """
    from plait.generation.reporting import (
        look_at,
        print_report,
        require_beside,
        require_drawable,
        require_outputs,
        write_output,
    )
    from plait.reports.terminal import parse_rounds
    from plait.reports.view_json import view_json

    named = {"page": output, "perfetto": perfetto, "png": png, "svg": svg}
    outputs = {name: path for name, path in named.items() if path is not None}
    require_outputs(outputs)
    require_beside(run, outputs)
    shown = None if rounds is None else parse_rounds(rounds)
    found = look_at(run, search=search)
    require_drawable(found.view, outputs, shown)
    for name, path in outputs.items():
        write_output(found.view, name, path, shown)
        words().print(f"{_NAMES[name]} written to {path}", soft_wrap=True)
    if json:
        write_json(view_json(found.view))
    elif text or not outputs:
        print_report(found, None, shown)
        if not outputs:
            words().print(f"plait report {run} -o report.html draws this as a page", soft_wrap=True)


_NAMES = {"page": "page", "perfetto": "trace", "png": "picture", "svg": "picture"}
