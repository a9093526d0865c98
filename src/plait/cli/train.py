"""``plait train``: train a model on a mesh of local processes, or of those that torchrun has started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.emulate import EMULATE_HELP, require_no_launcher
from plait.cli.output import RUN_EXIT, verb, words
from plait.comm.launcher import Environment, environment

if TYPE_CHECKING:
    from plait.trainer.train import TrainResult
    from plait.trainer.train_options import TrainOptions
    from plait.trainer.train_watch import TrainWatch

_MODEL_HELP = (
    "One line, as in llama:layers=4,hidden=256,heads=4, a preset or a config.json, which begin with random weights; "
    "a model's directory, a .gguf file, a Hugging Face id or demo, which begin with their own."
)
_DATA_HELP = "A UTF-8 text, or a directory of .txt files; may be given several times."
_SCHEDULE_HELP = "1f1b, gpipe, interleaved, zb-h1, zb-h2, zb-v or layerwise."
_MICRO_HELP = "Through each pipeline in a step."
_SEQUENCE_HELP = "With --tp: activations between the blocks are split over those ranks, too."
_TIMELINE_HELP = "Steps whose timelines are kept and shown, as in 5, or 3,10-12; the last one where none is named."


@verb
def train(
    model: Annotated[str | None, typer.Option(help=_MODEL_HELP)] = None,
    data: Annotated[list[Path] | None, typer.Option(help=_DATA_HELP)] = None,
    dp: Annotated[int | None, typer.Option(help="Replicas, each of which gets a part of the batch.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline positions.")] = None,
    tp: Annotated[int | None, typer.Option(help="Ranks that share each layer.")] = None,
    virtual: Annotated[int | None, typer.Option(help="Stages of each position.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="1f1b, gpipe, interleaved, zb-h1, zb-h2, zb-v, layerwise.")
    ] = None,
    micro_batches: Annotated[int | None, typer.Option(help=_MICRO_HELP)] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences of a step, over the whole mesh.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of a sequence; 128 where not given.")] = None,
    sequence: Annotated[bool | None, typer.Option("--sequence/--no-sequence", help=_SEQUENCE_HELP)] = None,
    zero: Annotated[int | None, typer.Option(help="1: optimizer states are sharded over the replicas.")] = None,
    recompute: Annotated[str | None, typer.Option(help="none, selective or full.")] = None,
    dropout: Annotated[float, typer.Option(help="Share of what is dropped; 0 for none.")] = 0.0,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 1e-3 with random weights, else 2e-5.")] = None,
    lr_schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "constant",
    warmup: Annotated[int, typer.Option(min=0, help="Steps until the learning rate is reached.")] = 0,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.")] = "adamw",
    weight_decay: Annotated[float, typer.Option(help="Of matrices; norms and biases have none.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Gradient norm that is not exceeded; 0 never clips.")] = 1.0,
    freeze: Annotated[list[str] | None, typer.Option(help="Tensors that do not learn, as in 'layers.0.*'.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same losses on any mesh.")] = 0,
    steps: Annotated[int, typer.Option(help="How many steps are trained.")] = 100,
    plan: Annotated[Path | None, typer.Option(help="A plan file; it decides on mesh and batch.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each rank.")] = None,
    check_every: Annotated[int, typer.Option(min=0, help="Steps between comparisons of replicas; 0 never.")] = 10,
    timeline: Annotated[str | None, typer.Option(help=_TIMELINE_HELP)] = None,
    emulate: Annotated[str | None, typer.Option(help=EMULATE_HELP)] = None,
    run: Annotated[Path | None, typer.Option(help="Where to keep the run's record.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a step instead of text.")] = False,
) -> None:
    """Train a model on a text, split over data, pipeline and tensor ranks, and show where each step's time went."""
    from plait.spec.emulation import parse_emulation
    from plait.trainer.train_options import TrainOptions, parse_steps

    options = TrainOptions(
        dp=dp,
        pp=pp,
        tp=tp,
        virtual=virtual,
        schedule=schedule,
        micro_batches=micro_batches,
        batch=batch,
        sequence_length=sequence_length,
        sequence=sequence,
        zero=zero,
        recompute=recompute,
        dtype=dtype,
        threads=threads,
        plan=plan,
        dropout=dropout,
        lr=lr,
        lr_schedule=lr_schedule,
        warmup=warmup,
        optimizer=optimizer,
        weight_decay=weight_decay,
        clip=clip,
        freeze=tuple(freeze or ()),
        seed=seed,
        steps=steps,
        check_every=check_every,
        timeline=None if timeline is None else parse_steps(timeline),
        emulate=None if emulate is None else parse_emulation(emulate),
    )
    here = environment()
    require_no_launcher(here, emulate)
    if here is not None and here.rank > 0:
        _follow(here, model, data or [], options)
        return
    _run(here, model, data or [], options, run, as_json=json)


def _follow(here: Environment, model: str | None, data: list[Path], options: TrainOptions) -> None:
    """A rank of a launcher: all that it has to say, rank 0 says."""
    from plait.trainer.torchrun import follow

    if not follow(here, model, data, options):
        raise typer.Exit(RUN_EXIT)


def _run(
    here: Environment | None,
    model: str | None,
    data: list[Path],
    options: TrainOptions,
    run: Path | None,
    *,
    as_json: bool,
) -> None:
    from plait.cli.train_watch import StepWatch
    from plait.reports.terminal import report

    console = words()
    with StepWatch(console, as_json=as_json) as watch:
        result = _trained(here, model, data, options, watch, run)
    console.print(f"run kept in {result.run} (plait report {result.run})", soft_wrap=True)
    if not as_json:
        report(result.record, console)


def _trained(
    here: Environment | None,
    model: str | None,
    data: list[Path],
    options: TrainOptions,
    watch: TrainWatch,
    run: Path | None,
) -> TrainResult:
    """With ranks of its own, or where a launcher has started this one, with all of the launcher's."""
    if here is None:
        from plait.trainer.train import train as run_train

        return run_train(model, data, options, watch=watch, run=run)
    from plait.trainer.torchrun import lead

    return lead(here, model, data, options, watch=watch, run=run)
