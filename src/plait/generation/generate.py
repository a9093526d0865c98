"""`plait.generate()`: from prompts and a model's name to text, with the plan, the prediction and the measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from plait.errors import PlanError
from plait.generation.answer import Launch, Request, answer
from plait.generation.emulated import EmulatedHosts, planned_hosts
from plait.generation.launch import ProcessRanks
from plait.generation.machine import Machine, ThisMachine
from plait.generation.memory import with_generation_memory
from plait.generation.opened import encode_all, open_model
from plait.generation.planning import CostsFor, Options, make_plan, measured_costs, model_name, read_plan
from plait.generation.record import run_record
from plait.generation.verify import verify
from plait.generation.watch import Unwatched, Watch
from plait.plans.plan import Plan
from plait.ranks.runs import reserved_run
from plait.simulator.simulate import simulate
from plait.spec.emulation import NOT_UNDER_A_LAUNCHER
from plait.timeline.record import RunRecord


@dataclass(frozen=True, slots=True)
class Result:
    """What came out: the texts, the run's record and its place, and the JSON that `plait generate --json` prints."""

    texts: tuple[str, ...]
    json: Mapping[str, Any]
    record: RunRecord
    run: Path


def generate(
    prompts: Sequence[str],
    options: Options | None = None,
    *,
    costs_for: CostsFor | None = None,
    launch: Launch = ProcessRanks,
    watch: Watch | None = None,
    run: Path | None = None,
    check: bool = False,
    machine: Machine | None = None,
) -> Result:
    """Answer `prompts` with a model that is split by a plan, and keep a record of the run.

    `machine`: what the plan runs on, this host where it is not given; `launch` starts ranks there.
    With `check` the split's logits on the first prompt are compared with one process's before. Errors: UsageError for
    what cannot work, before anything is started; ParityError where they differ; RunError for what broke.
    """
    options, watch = options or Options(), watch or Unwatched()
    given, emulated = read_plan(options), _emulated(options, watch, machine)
    if emulated is not None:
        costs_for, launch = costs_for or emulated.costs_for, emulated.launch
        given = given and emulated.placed(given)
    costs_for = costs_for or partial(measured_costs, say=watch.say)
    with reserved_run(run) as place:
        return _generate(prompts, options, given, place, costs_for, launch, watch, check, machine, emulated)


def _emulated(options: Options, watch: Watch, machine: Machine | None) -> EmulatedHosts | None:
    """What the options' emulated links change. Errors: PlanError where ranks are not started here; SpecError."""
    if options.emulate is None:
        return None
    if machine is not None:
        raise PlanError(NOT_UNDER_A_LAUNCHER)
    return EmulatedHosts(options.emulate, watch.say, planned_hosts(options.plan))


def _generate(
    prompts: Sequence[str],
    options: Options,
    given: Plan | None,
    place: Path,
    costs_for: CostsFor,
    launch: Launch,
    watch: Watch,
    check: bool,
    machine: Machine | None,
    emulated: EmulatedHosts | None,
) -> Result:
    opened = open_model(model_name(options, given), watch.say)
    encoded = encode_all(opened, prompts, options.users, options.chat)
    plan, others = make_plan(opened, encoded, options, costs_for, given, machine)
    plan = replace(plan, slots=min(plan.slots, len(encoded)))
    requests = [Request(ids, options.max_tokens, opened.stop, options.sampling) for ids in encoded]
    watch.planned(plan, opened.tokenizer, len(requests))
    if emulated is not None:
        watch.say(f"as if on {emulated.words(plan)}")
    if check:
        alone = launch if machine is None else ProcessRanks
        watch.say(str(verify(plan, opened.index, encoded[0], launch=launch, reference=alone, machine=machine)))
    costs = costs_for(plan, opened.spec)
    free = (machine or ThisMachine()).free_bytes(plan.layout)
    outcome = answer(plan, opened.index, requests, launch, watch)
    predicted = simulate(plan.layout, outcome.rounds, costs, opened.spec)
    predicted = with_generation_memory(predicted, outcome.rounds, plan, opened.spec, free_bytes=free)
    texts = tuple(opened.tokenizer.decode(one.tokens) for one in outcome.answers)
    record = run_record(opened, plan, outcome, predicted, texts, others)
    if emulated is not None:
        record = emulated.record(record, plan)
    record.save(place)
    return Result(texts, {**record.result, "run": str(place)}, record, place)
