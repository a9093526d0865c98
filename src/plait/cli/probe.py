"""``plait probe``: measure this machine, or all that a launcher has started ranks on, and write a cluster file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from plait.cli.output import RUN_EXIT, USAGE_EXIT, require_writable, verb, words, write_json
from plait.comm.launcher import Environment, environment
from plait.errors import PeerLost, UsageError

if TYPE_CHECKING:
    from rich.status import Status

    from plait.prober.probed import Probed

_RANKS_HELP = "Measure this machine as so many devices, each with its share of the cores, and all links between them."
_EMULATE_HELP = "Links between hosts that are not there, as in 1gbit,200us; @2 makes two ranks a host."
_OUTPUT_HELP = "Write the cluster file here; without it the file goes to standard output."
_SECONDS = 20.0


class _Files(NamedTuple):
    """Where results go; None: nowhere."""

    output: Path | None
    svg: Path | None
    png: Path | None


@verb
def probe(
    ranks: Annotated[int | None, typer.Option(help=_RANKS_HELP, show_default="1")] = None,
    emulate: Annotated[str | None, typer.Option(help=_EMULATE_HELP)] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, about; slow links take longer.")] = _SECONDS,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=_OUTPUT_HELP)] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the links as a picture, .svg.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the links as a picture, .png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a file.")] = False,
) -> None:
    """Measure devices and links, and write them as a cluster file, each figure with its spread.

    Under torchrun or SLURM every rank is measured, on every host.
    """
    here, files = environment(), _Files(output, svg, png)
    if here is None:
        found = _here(1 if ranks is None else ranks, emulate, seconds, files)
    elif here.rank:
        _follow(here, ranks, emulate, seconds)
        return
    else:
        found = _lead(here, ranks, emulate, seconds, files)
    if output is not None:
        output.write_text(found.toml, encoding="utf-8")
    _draw(found, files)
    if json:
        write_json(found.json)
    else:
        _print(found, files)


def _here(ranks: int, emulate: str | None, seconds: float, files: _Files) -> Probed:
    """This machine, with ranks of our own."""
    from plait.prober.probe import probe as measure
    from plait.prober.probe import require_asked
    from plait.spec.emulation import parse_emulation

    links = None if emulate is None else parse_emulation(emulate)
    require_asked(ranks, links, seconds)
    _require_files(files, ranks)
    console = words()
    with console.status("starting") as status:
        return measure(ranks, emulate=links, seconds=seconds, say=_teller(console, status))


def _lead(here: Environment, ranks: int | None, emulate: str | None, seconds: float, files: _Files) -> Probed:
    """Rank 0 of all that a launcher has started. What it cannot do, the others hear from it."""
    from plait.prober.probe import lead_launched
    from plait.ranks.grace import grace

    _refuse_ranks(here, ranks, emulate)
    console = words()
    with grace():
        return lead_launched(
            here,
            seconds=seconds,
            say=lambda text: console.print(text, soft_wrap=True),
            ready=lambda: _require_files(files, here.size),
        )


def _follow(here: Environment, ranks: int | None, emulate: str | None, seconds: float) -> None:
    """Another rank: all that it has to say, rank 0 says, where that is on the same host or lives."""
    from plait.prober.probe import follow_launched
    from plait.ranks.grace import grace

    try:
        _refuse_ranks(here, ranks, emulate)
    except UsageError:
        raise typer.Exit(USAGE_EXIT) from None
    try:
        with grace():
            follow_launched(here, seconds=seconds)
    except PeerLost as error:
        if error.rank == 0 or here.host != 0:
            raise
        raise typer.Exit(RUN_EXIT) from None


def _refuse_ranks(here: Environment, ranks: int | None, emulate: str | None) -> None:
    """Errors: UsageError for what is of ranks of our own."""
    if ranks is not None or emulate is not None:
        given = "--ranks" if ranks is not None else "--emulate"
        raise UsageError(
            f"{given} does not go with {here.launcher}, which has started {here.size} ranks with real links: "
            f"leave {given} out, or type plait probe without {here.launcher}"
        )


def _teller(console: Console, status: Status) -> Callable[[str], None]:
    """A line that changes where somebody looks at a terminal; else a line each."""

    def tell(text: str) -> None:
        if console.is_terminal:
            status.update(text)
        else:
            console.print(text, soft_wrap=True)

    return tell


def _require_files(files: _Files, ranks: int) -> None:
    """All results have a place to go, before anything is measured. Errors: UsageError."""
    if files.output is not None:
        require_writable(files.output, usual="cluster.toml")
    for option, path in (("--svg", files.svg), ("--png", files.png)):
        if path is not None:
            _require_picture(option, path, ranks)


def _require_picture(option: str, path: Path, ranks: int) -> None:
    from plait.reports.canvas import picture_suffix

    if ranks < 2:
        raise UsageError(f"{option} draws links, and one rank has none: measure several, as in --ranks 2")
    suffix = f".{option[2:]}"
    if path.suffix.lower() != suffix:
        raise UsageError(f"{option} {path} does not end in {suffix}: write {option} {path.with_suffix(suffix)}")
    picture_suffix(path)
    require_writable(path, option, f"links{suffix}")


def _draw(found: Probed, files: _Files) -> None:
    from plait.reports.link_picture import draw_links

    for path in (files.svg, files.png):
        if path is not None:
            draw_links(found.cluster, path)
            words().print(f"links drawn in {path}", soft_wrap=True)


def _print(found: Probed, files: _Files) -> None:
    """The page to standard output, or the file itself where nobody named one: then the page is words beside it."""
    from plait.reports.marks import glyphs_for
    from plait.reports.probe_page import probe_page

    console = words() if files.output is None else Console(file=sys.stdout, highlight=False)
    page = probe_page(found.cluster, found.notes, found.doubts, console.width, glyphs_for(console.encoding))
    console.print(page, soft_wrap=True, highlight=False)
    if files.output is None:
        sys.stdout.write(found.toml)
    else:
        words().print(
            f"cluster file written to {files.output} (plait plan demo --cluster {files.output})", soft_wrap=True
        )
