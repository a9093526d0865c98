"""The plan of a generation on this host: from a plan file, or the fastest one that the options allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from plait.costs.protocol import Costs
from plait.errors import CapacityError, PlanError, RequestError, WeightsError, nearest
from plait.generation.machine import Machine, ThisMachine
from plait.generation.opened import Opened
from plait.planner.capacity import require_memory
from plait.planner.cut import proportional_layers
from plait.planner.local import LocalChoice, Wishes, choose_local, draft_plan
from plait.planner.local_words import ONE_PROCESS, Beaten, beaten_ways
from plait.plans.file import load_plan
from plait.plans.layout import DTYPES
from plait.plans.plan import GRID, Plan, check_plan
from plait.plans.sampling import SamplingParams
from plait.schedules.batching import check_request
from plait.schedules.generation import LAYERWISE
from plait.schedules.prove import prove_plan
from plait.spec.emulation import EmulatedLinks
from plait.spec.model import ModelSpec
from plait.spec.preset_files import preset_words

CostsFor = Callable[[Plan, ModelSpec], Costs]


@dataclass(frozen=True, slots=True)
class Options:
    """What `plait generate` takes; None lets Plait choose. `chat` None: where the model has a template.

    `layers`: layers of each stage, or with `proportional` their proportions. `tp`: ranks of each stage's tensor group;
    `shares`: what each of them gets, in proportion; `sequence`: activations between the blocks are split over them.
    `users` repeats each prompt with as many request numbers. With `plan` the plan file decides on the split.
    `emulate`: ranks are processes of this host that talk as if over such links; where the plan file names several
    hosts, the links are between these.
    """

    model: str | None = None
    stages: int | None = None
    layers: tuple[int, ...] | None = None
    proportional: bool = False
    tp: int | None = None
    shares: tuple[int, ...] | None = None
    sequence: bool = False
    plan: Path | None = None
    users: int = 1
    schedule: str = "auto"
    micro_batches: int | None = None
    chunk: int | None = None
    max_tokens: int = 256
    sampling: SamplingParams = field(default_factory=SamplingParams)
    dtype: str = "auto"
    context: int | None = None
    threads: int | None = None
    chat: bool | None = None
    emulate: EmulatedLinks | None = None


_DECIDED_BY_PLAN = {
    "stages": None,
    "layers": None,
    "tp": None,
    "shares": None,
    "sequence": False,
    "schedule": "auto",
    "micro_batches": None,
    "chunk": None,
    "dtype": "auto",
    "context": None,
    "threads": None,
}
"""What a plan file says itself, and the value of the option where nobody gave it."""


class Planned(NamedTuple):
    """A plan, and the ways that lost against it; none where the plan was given."""

    plan: Plan
    others: tuple[Beaten, ...] = ()


def measured_costs(plan: Plan, spec: ModelSpec, say: Callable[[str], None] | None = None) -> Costs:
    """What this host was measured to take, or is measured now."""
    from plait.prober.local import local_costs

    return local_costs(plan.layout, spec, -(-plan.slots // plan.micro_batches), say=say)


def make_plan(
    opened: Opened,
    prompts: Sequence[Sequence[int]],
    options: Options,
    costs_for: CostsFor,
    given: Plan | None = None,
    machine: Machine | None = None,
) -> Planned:
    """The plan `given`, checked, or the fastest. Errors: PlanError, RequestError, CapacityError; nothing is started."""
    machine = machine or ThisMachine()
    if given is None:
        planned = _chosen(opened, prompts, options, costs_for, machine)
    else:
        planned = Planned(_from_file(given, opened, machine))
    for number, prompt in enumerate(prompts):
        check_request(number, len(prompt), options.max_tokens, planned.plan.context)
    return planned


def read_plan(options: Options) -> Plan | None:
    """The plan of the options' file, if they name one. Errors: PlanError, also for options that it would overrule."""
    if options.plan is None:
        return None
    overruled = [
        f"--{name.replace('_', '-')}" for name, unset in _DECIDED_BY_PLAN.items() if getattr(options, name) != unset
    ]
    if overruled:
        raise PlanError(f"the plan file decides on the split, so {', '.join(overruled)} cannot be given beside --plan")
    return load_plan(options.plan)


def model_name(options: Options, plan: Plan | None) -> str:
    """The model asked for: by name, by the plan, or else the demo. Errors: WeightsError for a preset."""
    name = options.model or (plan.model if plan is not None else "demo")
    if name not in preset_words("models") or Path(name).exists():
        return name
    what, instead = name, ""
    if options.model is None:
        what, instead = f"the plan is for {name}, which", ", or look at the plan with plait simulate"
    raise WeightsError(
        f"{what} is a preset: figures to plan with, without weights to run; give the model itself with --model "
        f"(a directory, a .gguf file or a Hugging Face id){instead}"
    )


def _from_file(plan: Plan, opened: Opened, machine: Machine) -> Plan:
    check_plan(plan, opened.spec)
    plan = machine.placed(plan)
    prove_plan(plan)
    require_memory(plan, opened.spec, machine.free_bytes(plan.layout))
    return plan


def _chosen(
    opened: Opened, prompts: Sequence[Sequence[int]], options: Options, costs_for: CostsFor, machine: Machine
) -> Planned:
    """float32, unless only bfloat16 fits in memory or the options say so."""
    unfit: list[Beaten] = []
    dtypes = ("float32", "bfloat16") if options.dtype == "auto" else (_known_dtype(options.dtype),)
    for dtype in dtypes:
        wishes = _wishes(opened, prompts, options, dtype, machine.threads)
        for number, prompt in enumerate(prompts):
            check_request(number, len(prompt), options.max_tokens, wishes.context)
        draft = machine.placed(draft_plan(opened.spec, wishes, LAYERWISE, 1, GRID))
        try:  # on one host the cut hardly matters; asked before anything is measured
            require_memory(draft, opened.spec, machine.free_bytes(draft.layout))
        except CapacityError as error:
            if dtype == dtypes[-1]:
                raise
            unfit.append(Beaten(dtype, str(error)))
        else:
            break
    choice = choose_local(opened.spec, wishes, lambda draft: costs_for(draft, opened.spec))
    plan = machine.placed(choice.plan)
    if unfit:
        plan = replace(plan, reason=f"{plan.reason}; bfloat16, as float32 does not fit")
    return Planned(plan, (*_beaten(choice, opened.spec, machine), *unfit))


def _beaten(choice: LocalChoice, spec: ModelSpec, machine: Machine) -> Iterator[Beaten]:
    """The ways that lost, one process among them where ranks are started here; or why it does not fit."""
    alone = choice.alone if isinstance(machine, ThisMachine) else None
    try:
        if alone is not None:
            require_memory(alone.plan, spec, machine.free_bytes(alone.plan.layout))
    except CapacityError as error:
        yield from beaten_ways(replace(choice, alone=None))
        yield Beaten(ONE_PROCESS, str(error))
    else:
        yield from beaten_ways(replace(choice, alone=alone))


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise PlanError(f"unknown dtype {name!r}: {nearest(name, ('auto', *DTYPES))}")
    return name


def _wishes(opened: Opened, prompts: Sequence[Sequence[int]], options: Options, dtype: str, threads: int) -> Wishes:
    longest = max(map(len, prompts))
    _require_positions(opened.spec, longest, options.max_tokens)
    shares = options.shares or ()
    layers = options.layers
    if layers is not None and options.proportional:
        layers = proportional_layers(layers, opened.spec.layers)
    context = options.context or min(_on_grid(longest + options.max_tokens), opened.spec.max_positions)
    return Wishes(
        model=opened.name,
        prompts=tuple(map(len, prompts)),
        max_tokens=options.max_tokens,
        context=context,
        stages=options.stages,
        layers=layers,
        tp=max(1, len(shares)) if options.tp is None else options.tp,
        shares=shares,
        sequence=options.sequence,
        schedule=options.schedule,
        micro_batches=options.micro_batches,
        chunk=options.chunk,
        threads=options.threads,
        dtype=dtype,
        cores=threads,
    )


def _require_positions(spec: ModelSpec, prompt: int, max_tokens: int) -> None:
    most = spec.max_positions - prompt
    if most < 1:
        raise RequestError(
            f"a prompt of {prompt} tokens leaves no room for an answer: {spec.name} was made for {spec.max_positions} "
            f"positions, {prompt + 1 - spec.max_positions} too few"
        )
    if max_tokens > most:
        raise RequestError(
            f"a prompt of {prompt} tokens and {max_tokens} more make {prompt + max_tokens}, but {spec.name} was made "
            f"for {spec.max_positions} positions: {max_tokens - most} too many (--max-tokens {most} is the most)"
        )


def _on_grid(positions: int) -> int:
    return -(-positions // GRID) * GRID
