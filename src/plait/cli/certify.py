"""``plait certify``: prove a mesh equal to one process."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from plait.cli.output import RUN_EXIT, verb, words, write_json
from plait.errors import PlanError

if TYPE_CHECKING:
    from plait.certifier.case import Case
    from plait.certifier.certify import Certificate, Outcome

_SCHEDULE_HELP = "layerwise, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v or dualpipe-v."
_MODEL_HELP = "The small model: llama, grouped, gpt2, gemma, mistral, olmo2, phi3, qwen2 or qwen3."
_LAYERS_HELP = "Layers of the model, or of each stage, as in 2,1,1; none: one a stage, and one more."
_TRANSPORT_HELP = "threads: ranks as threads of one process. shm: processes. c10d: over TCP, as between hosts."
_ALL_HELP = "Compare a grid of over 2,000 meshes and schedules; of the other options --dtype, --seed and --jobs count."


_WITH_ALL = ("everything", "dtype", "seed", "jobs", "json")


@verb
def certify(
    context: typer.Context,
    dp: Annotated[int, typer.Option(help="Replicas.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline positions.")] = 1,
    tp: Annotated[int, typer.Option(help="Ranks that share each layer.")] = 1,
    virtual: Annotated[int, typer.Option(help="Stages a position holds.")] = 1,
    schedule: Annotated[str, typer.Option(help=_SCHEDULE_HELP)] = "1f1b",
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step, in each replica.")] = 1,
    zero: Annotated[int, typer.Option(min=0, help="1: each replica updates a part of the weights.")] = 0,
    recompute: Annotated[Literal["none", "selective", "full"], typer.Option(help="What is computed again.")] = "none",
    tied: Annotated[bool, typer.Option("--tied", help="The embedding is the head's weight, too.")] = False,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.9, help="The share of values that is dropped.")] = 0.0,
    sequence: Annotated[bool, typer.Option("--sequence", help="With --tp: activations are split, too.")] = False,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16"] | None, typer.Option(help="What is computed in (float64).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps, each of which is compared.")] = 2,
    transport: Annotated[Literal["threads", "shm", "c10d"], typer.Option(help=_TRANSPORT_HELP)] = "threads",
    model: Annotated[str, typer.Option(help=_MODEL_HELP)] = "llama",
    layers: Annotated[str | None, typer.Option(help=_LAYERS_HELP)] = None,
    batch: Annotated[int, typer.Option(min=0, help="Sequences of a step over the mesh; 0: two a micro-batch.")] = 0,
    buckets: Annotated[int, typer.Option(min=1, help="Parts in which a stage's gradients are reduced.")] = 2,
    capacity: Annotated[int, typer.Option(help="Messages that a link holds.")] = 2,
    clip: Annotated[float, typer.Option(min=0.0, help="Gradient norm to scale down to; 0: none.")] = 0.0,
    shares: Annotated[str | None, typer.Option(help="What each rank of a tensor group gets, as in 2,1.")] = None,
    frozen: Annotated[str | None, typer.Option(help="Tensors that do not learn, as in embed*,*norm*.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches, dropout, and what --all draws.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help=_ALL_HELP)] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="With --all: processes that share the cases.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")] = False,
) -> None:
    """Train a small model on a mesh and in one process: loss, gradients, norm and weights must be equal."""
    from plait.certifier.certify import certificate_json
    from plait.certifier.words import summary, table

    certificate = _all(context, jobs, as_json=json) if everything else _one(context)
    if json:
        write_json(certificate_json(certificate))
    else:
        lines = summary(certificate.outcomes) if everything else table(certificate.outcomes[0])
        sys.stdout.writelines(f"{each}\n" for each in lines)
    if not certificate.passed:
        raise typer.Exit(RUN_EXIT)


def _one(context: typer.Context) -> Certificate:
    from plait.certifier.certify import certify as compare

    if context.params["jobs"] is not None:
        raise PlanError("--jobs is for many cases: give it with --all")
    return compare(case_of(context))


def case_of(context: typer.Context) -> Case:
    """What was typed. Errors: PlanError for what is no list of numbers."""
    from plait.certifier.case import Case

    values = {field.name: context.params[field.name] for field in fields(Case)}
    values["dtype"] = values["dtype"] or "float64"
    values["layers"] = _numbers("layers", values["layers"], "the layers of the model, or of each stage, as in 2,1,1")
    values["shares"] = _numbers("shares", values["shares"], "one for each rank of a tensor group, as in 2,1")
    values["frozen"] = tuple(values["frozen"].split(",")) if values["frozen"] else ()
    return Case(**values)


def _numbers(name: str, text: str | None, what: str) -> tuple[int, ...]:
    """``2,1,1`` becomes (2, 1, 1). Errors: PlanError."""
    if text is None:
        return ()
    try:
        found = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise PlanError(f"--{name} {text!r} is not a list of whole numbers from 1 on: write {what}")
    return found


def _all(context: typer.Context, jobs: int | None, *, as_json: bool) -> Certificate:
    """The grid, a line a case as it is done."""
    from plait.certifier.certify import certify as compare
    from plait.certifier.grid import grid
    from plait.certifier.words import line
    from plait.prober.host import usable_cores

    _refuse_others(context)
    cases = list(grid(context.params["seed"], context.params["dtype"]))
    with _bar(words(), len(cases)) as bar:

        def watch(outcome: Outcome) -> None:
            bar.advance(TaskID(0))
            if not as_json:
                sys.stdout.write(line(outcome) + "\n")
                sys.stdout.flush()

        return compare(*cases, jobs=jobs or usable_cores(), watch=watch)


def _refuse_others(context: typer.Context) -> None:
    """Errors: PlanError for options of one case."""
    given = [
        f"--{name.replace('_', '-')}" for name in context.params if name not in _WITH_ALL and _typed(context, name)
    ]
    if given:
        raise PlanError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} of one case, and --all draws them for each: "
            "leave out one or the other"
        )


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _bar(console: Console, total: int) -> Progress:
    """A bar where somebody looks at a terminal; lines stay data on stdout where that goes elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.add_task("meshes", total=total)
    return bar
