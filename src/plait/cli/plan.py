"""``plait plan``: rank the ways to split a model over a cluster, and say why the others lose."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from plait.cli.output import require_writable, verb, words, write_json
from plait.errors import SpecError

if TYPE_CHECKING:
    from plait.planner.result import Choice, Objective
    from plait.spec.cluster import Cluster
    from plait.spec.job import Job, TrainingJob
    from plait.spec.model import ModelSpec

_MODEL_HELP = "A preset (--list), demo, a config.json, a model's directory, a .gguf file, a Hugging Face id."
_PROMPT_TOKENS, _MAX_TOKENS, _SEQUENCE = 512, 256, 2048


@verb
def plan(
    model: Annotated[str | None, typer.Argument(help=_MODEL_HELP, show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="A cluster file, or a preset (--list).")] = None,
    gpus: Annotated[int | None, typer.Option(help="Devices of the cluster: of a file the first ones.")] = None,
    task: Annotated[Literal["generate", "train"], typer.Option(help="What the model is to do.")] = "generate",
    objective: Annotated[
        str | None,
        typer.Option(
            help="latency: a token's time for the users given. throughput: users without end, --users in a "
            "micro-batch. ttft: the first token. step: training.",
            show_default="latency",
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Positions a request may take.")] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Requests at the same time (1).")] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of each prompt (512).")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of each answer (256).")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Training: sequences of a step, over all devices.")] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Training: tokens of a sequence (2048).")] = None,
    dtype: Annotated[str | None, typer.Option(help="What is computed in: bfloat16, float32.")] = None,
    weights: Annotated[str | None, typer.Option(help="Format of stored weights, as in q4_0.")] = None,
    dp: Annotated[int | None, typer.Option(help="Only so many data-parallel replicas.")] = None,
    pp: Annotated[int | None, typer.Option(help="Only so many pipeline positions.")] = None,
    tp: Annotated[int | None, typer.Option(help="Only tensor groups of so many.")] = None,
    ep: Annotated[int | None, typer.Option(help="Only expert groups of so many.")] = None,
    virtual: Annotated[int | None, typer.Option(help="Training: only so many stages a position.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Training: only micro-batches of so many sequences.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Training: only this schedule.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Plans that are simulated and ranked.")] = 10,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the chosen plan to this file.")] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Show all presets, and plan nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a page.")] = False,
) -> None:
    """Rank every way to split a model over a cluster: the best one, and why each other kind loses."""
    if list_presets:
        _list(as_json=json)
        return
    from plait.planner.plan import Limits
    from plait.planner.plan import plan as make_plan
    from plait.planner.result import choice_json

    if output is not None:
        require_writable(output)
    spec, machines = _model(model), _cluster(cluster, gpus)
    generation = _Generation(prompt, max_tokens, users, context)
    job: Job | TrainingJob
    if task == "train":
        job = _training_job(spec, machines, generation, batch, seq, dtype)
    else:
        job = _job(spec, generation, batch, seq)
    limits = Limits(dp=dp, pp=pp, tp=tp, ep=ep, virtual=virtual, micro_batch=micro_batch, schedule=schedule)
    choice = make_plan(
        spec,
        machines,
        job,
        _objective(objective),
        top=top,
        dtype=dtype if task == "generate" else None,
        weights=weights,
        limits=limits,
    )
    if output is not None:
        _write(choice, machines, job, output)
    if json:
        write_json(choice_json(choice))
        return
    _print(choice)
    if output is not None:
        words().print(f"plan written to {output} (plait simulate {output})", soft_wrap=True)


def _model(name: str | None) -> ModelSpec:
    from plait.weights.model import model_spec

    if name is None:
        raise SpecError("no model was given: type one, as in plait plan llama3-70b, or plait plan --list")
    return model_spec(name)


def _cluster(name: str | None, gpus: int | None) -> Cluster:
    """A file where there is one of that name, else a preset."""
    from plait.spec.cluster import first_devices
    from plait.spec.cluster_file import read_cluster
    from plait.spec.presets import cluster_preset

    if name is None:
        raise SpecError(
            "no cluster was given: type --cluster and a cluster file or a preset, as in --cluster h100 --gpus 16; "
            "plait plan --list shows the presets"
        )
    path = Path(name).expanduser()
    if path.suffix == ".toml" or path.is_file():
        found = read_cluster(path)
        return found if gpus is None else first_devices(found, gpus)
    return cluster_preset(name, gpus)


class _Generation(NamedTuple):
    """The options of generation, None where nobody gave them."""

    prompt: int | None
    max_tokens: int | None
    users: int | None
    context: int | None


def _training_job(
    spec: ModelSpec, cluster: Cluster, generation: _Generation, batch: int | None, seq: int | None, dtype: str | None
) -> TrainingJob:
    from plait.planner.plan import usual_dtype
    from plait.spec.job import TrainingJob

    _refuse(generation._asdict(), "generation: --task generate")
    if batch is None:
        raise SpecError("training needs --batch: sequences of one step over all devices, as in --batch 512")
    return TrainingJob(batch, seq or min(_SEQUENCE, spec.max_positions), dtype or usual_dtype(cluster))


def _job(spec: ModelSpec, generation: _Generation, batch: int | None, seq: int | None) -> Job:
    """What was asked for; what was not is shorter where the context, or the model, has no room for the usual."""
    from plait.spec.job import Job

    _refuse({"batch": batch, "seq": seq}, "training: --task train")
    prompt, answer, users, context = generation
    room = min(context or spec.max_positions, spec.max_positions)
    if prompt is None:
        left = room - answer if answer is not None else room * 2 // 3
        prompt = max(1, min(_PROMPT_TOKENS, left))
    if answer is None:
        answer = max(1, min(_MAX_TOKENS, room - prompt))
    return Job(prompt, answer, users or 1, context)


def _refuse(options: Mapping[str, int | None], whose: str) -> None:
    """Errors: SpecError for options that are of the other task."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise SpecError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} of {whose}")


def _objective(name: str | None) -> Objective | None:
    from plait.errors import nearest
    from plait.planner.plan import OBJECTIVES

    if name is None:
        return None
    for known in OBJECTIVES:
        if name == known:
            return known
    raise SpecError(f"unknown objective {name!r}: {nearest(name, OBJECTIVES)}")


def _write(choice: Choice, cluster: Cluster, job: Job | TrainingJob, output: Path) -> None:
    from plait.plans.file import save_plan

    save_plan(choice.chosen.plan, output, cluster, _served(choice, job))


def _served(choice: Choice, job: Job | TrainingJob) -> Job | None:
    """The job with the users that the figures are of: for throughput every micro-batch holds all that were asked for.

    None for training: its plan says all.
    """
    from plait.plans.plan import Plan

    plan = choice.chosen.plan
    if job.task == "train" or not isinstance(plan, Plan):
        return None
    users = plan.slots * plan.layout.axes.get("dp", 1) if choice.objective == "throughput" else job.users
    return replace(job, users=users)


def _print(choice: Choice) -> None:
    from rich.console import Console

    from plait.reports.choice import choice_page
    from plait.reports.marks import glyphs_for

    console = Console(file=sys.stdout, highlight=False)
    console.print(choice_page(choice, console.width, glyphs_for(console.encoding)), soft_wrap=True)


def _list(*, as_json: bool) -> None:
    from plait.reports.choice import list_page
    from plait.spec.presets import preset_names

    names = preset_names()
    if as_json:
        write_json({sort: dict(presets) for sort, presets in names.items()})
        return
    sys.stdout.write(list_page(names) + "\n")
