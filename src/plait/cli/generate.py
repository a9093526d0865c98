"""``plait generate``: run a model that is split over local processes, or over those that torchrun has started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.emulate import EMULATE_HELP, require_no_launcher
from plait.cli.output import RUN_EXIT, verb, words, write_json
from plait.cli.watch import Watch
from plait.comm.launcher import Environment, environment
from plait.errors import PlanError, RequestError

if TYPE_CHECKING:
    from plait.generation.generate import Result
    from plait.generation.planning import Options

_LAYERS_HELP = "Layers of each stage, as in 12,18; or their proportions, as in 3:3:2."

_SHARES_HELP = "What each of those ranks gets, in proportion to its speed, as in 2,1."
_SEQUENCE_HELP = "With --tp: activations between the blocks are split over those ranks, too."


def parse_layers(text: str | None) -> tuple[tuple[int, ...] | None, bool]:
    """``12,18`` becomes (12, 18), exactly; ``3:3:2`` becomes (3, 3, 2) and True: in proportion. Errors: PlanError."""
    if text is None:
        return None, False
    shares = ":" in text
    try:
        return tuple(int(piece) for piece in text.split(":" if shares else ",")), shares
    except ValueError:
        raise PlanError(
            f"--layers {text!r} is not a list of numbers: write the layers of each stage, as in 12,18, "
            "or their proportions, as in 3:3:2"
        ) from None


def parse_shares(text: str | None) -> tuple[int, ...] | None:
    """``2,1`` becomes (2, 1). Errors: PlanError."""
    if text is None:
        return None
    try:
        return tuple(int(piece) for piece in text.split(","))
    except ValueError:
        raise PlanError(
            f"--shares {text!r} is not a list of whole numbers: write one for each rank of a tensor group, "
            "in proportion to its speed, as in 2,1"
        ) from None


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompt, or one a line of the file (blank lines left out). Errors: RequestError."""
    if prompt is not None and file is not None:
        raise RequestError("both a prompt and --prompt-file were given: give one of them")
    if file is None:
        return [] if prompt is None else [prompt]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--prompt-file {file} cannot be read: {error}") from None
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise RequestError(f"--prompt-file {file} holds no prompt: write one a line")
    return prompts


@verb
def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to ask.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option(help="demo (also where none is given), a directory, a .gguf file, a Hugging Face id.")
    ] = None,
    pp: Annotated[int | None, typer.Option("--pp", "--stages", help="Pipeline stages.")] = None,
    layers: Annotated[str | None, typer.Option(help=_LAYERS_HELP)] = None,
    tp: Annotated[int | None, typer.Option("--tp", "--tensor", help="Ranks that share each layer.")] = None,
    shares: Annotated[str | None, typer.Option(help=_SHARES_HELP)] = None,
    sequence: Annotated[bool, typer.Option("--sequence", help=_SEQUENCE_HELP)] = False,
    plan: Annotated[Path | None, typer.Option(help="A plan file; it decides on the split.")] = None,
    users: Annotated[int, typer.Option(min=1, help="Ask each prompt for so many users at once.")] = 1,
    prompt_file: Annotated[Path | None, typer.Option(help="Prompts, one a line.")] = None,
    schedule: Annotated[str, typer.Option(help="auto, layerwise or pipelined.")] = "auto",
    micro_batches: Annotated[int | None, typer.Option(min=1, help="In flight together.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens that make up this share.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many likeliest tokens; 0 from all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text on any split.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    context: Annotated[int | None, typer.Option(min=1, help="Positions a request may take.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each rank.")] = None,
    chat: Annotated[bool | None, typer.Option("--chat/--raw", help="As a chat, or text to go on.")] = None,
    emulate: Annotated[str | None, typer.Option(help=EMULATE_HELP)] = None,
    run: Annotated[Path | None, typer.Option(help="Where to keep the run's record.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="First compare the logits with one process's.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Run a model split over local processes, and show what each stage did, predicted and measured."""
    from plait.generation.planning import Options
    from plait.plans.sampling import SamplingParams
    from plait.spec.emulation import parse_emulation

    counts, proportional = parse_layers(layers)
    options = Options(
        model=model,
        stages=pp,
        layers=counts,
        proportional=proportional,
        tp=tp,
        shares=parse_shares(shares),
        sequence=sequence,
        plan=plan,
        users=users,
        schedule=schedule,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed),
        dtype=dtype,
        context=context,
        threads=threads,
        chat=chat,
        emulate=None if emulate is None else parse_emulation(emulate),
    )
    here = environment()
    require_no_launcher(here, emulate)
    if here is not None and here.rank > 0:
        _follow(here, options)
    else:
        prompts = partial(read_prompts, prompt, prompt_file)
        _run(here, prompts, options, run, verify=verify, as_json=json)


def _follow(here: Environment, options: Options) -> None:
    """A rank of a launcher: all that it has to say, rank 0 says."""
    from plait.generation.torchrun import follow

    if not follow(here, options):
        raise typer.Exit(RUN_EXIT)


def _run(
    here: Environment | None,
    prompts: Callable[[], list[str]],
    options: Options,
    run: Path | None,
    *,
    verify: bool,
    as_json: bool,
) -> None:
    from plait.reports.terminal import report

    console = words()
    watch = Watch(console, options.max_tokens, as_json=as_json)
    with watch:
        result = _generated(here, prompts, options, watch, run, check=verify)
    if as_json:
        write_json(result.json)
        return
    console.print()
    report(result.record, console)
    console.print(f"run kept in {result.run} (plait report {result.run})", soft_wrap=True)


def _generated(
    here: Environment | None,
    prompts: Callable[[], list[str]],
    options: Options,
    watch: Watch,
    run: Path | None,
    *,
    check: bool,
) -> Result:
    """With ranks of its own, or where a launcher has started this one, with all of the launcher's."""
    if here is None:
        from plait.generation.generate import generate as run_generate

        return run_generate(prompts(), options, watch=watch, run=run, check=check)
    from plait.generation.torchrun import lead

    return lead(here, prompts, options, watch=watch, run=run, check=check)
