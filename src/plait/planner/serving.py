"""The planner for generation: every way to split over dp × pp × tp, ranked, explained, and what rules others out."""

from __future__ import annotations

from dataclasses import replace

from plait.costs.serving import ServingModel
from plait.errors import PlanError
from plait.planner.result import Candidate, Choice, DeviceMemory, Objective
from plait.planner.serving_break_even import break_even
from plait.planner.serving_capacity import refuse
from plait.planner.serving_figures import chunks, figures, fits, memory, plan_of, simulated
from plait.planner.serving_memory import merged
from plait.planner.serving_search import MOST_CHUNK, Found, Ranked, Search, ServingLimits, rank
from plait.planner.serving_units import World
from plait.planner.serving_words import chosen_words, losing_words
from plait.planner.space import kind_of
from plait.spec.cluster import Cluster
from plait.spec.job import Job
from plait.spec.model import ModelSpec

BEAM = "order and cut are a beam search's: more machines than the exact search takes, a better way may exist"

_AGAIN = 3
"""How many ways are simulated, beside the best of every kind, to see whether a break-even is true."""

__all__ = ["ServingLimits", "plan_serving"]


def plan_serving(
    spec: ModelSpec,
    cluster: Cluster,
    job: Job,
    objective: Objective = "latency",
    *,
    dtype: str = "bfloat16",
    weights: str | None = None,
    top: int = 10,
    limits: ServingLimits | None = None,
    break_evens: bool = True,
) -> Choice:
    """The best way to generate with a model on a cluster, the best of every other kind, and what cannot be.

    `latency`: one token's time for every user. `throughput`: tokens a second while requests never end, so that every
    micro-batch holds all of the job's users (`ServingLimits.full` changes that). `ttft`: mean time to the first token.
    The `top` best by closed forms, and the best of every kind, are simulated; a plan that is slower than one device
    alone is never chosen. `break_evens`: look for them, which takes a few plans more. Errors: CapacityError where
    nothing fits, with the shortfall; PlanError.
    """
    _require(spec, job, objective)
    world = World(spec, cluster, job, ServingModel(spec, cluster, dtype, weights))
    search = Search(world, objective, limits or ServingLimits()).run()
    if not search.found:
        refuse(search)
    ranked = _simulated(search, top)
    reason = chosen_words(search, ranked)
    chosen = _candidate(search, ranked[0])
    chosen = replace(chosen, plan=replace(chosen.plan, reason=reason))
    others = (_candidate(search, one, losing_words(search, ranked[0], one)) for one in ranked[1:])
    turns = break_even(search, ranked, lambda again: _simulated(again, min(top, _AGAIN))) if break_evens else ()
    return Choice(objective, chosen, (chosen, *others), merged(search.rejected), turns, reason)


def _require(spec: ModelSpec, job: Job, objective: str) -> None:
    if objective not in ("latency", "throughput", "ttft"):
        raise PlanError(f"objective {objective!r} is not of generation: latency, throughput or ttft is")
    if job.positions > spec.max_positions:
        raise PlanError(
            f"context is {job.positions} positions, but {spec.name} was made for at most {spec.max_positions}: "
            f"{job.positions - spec.max_positions} too many"
        )


def _simulated(search: Search, top: int) -> list[Ranked]:
    """The best ways, each simulated: `top` of them, and the best of every kind; in order of what the simulator says.

    Among them is the best single device, so that nothing slower than it can come first.
    """
    seen: set[object] = set()
    kinds: set[str] = set()
    ranked = []
    for found in search.found:
        kind, way = kind_of(found.way.split), found.way
        one = (way.cut, way.replicas[0], len(way.replicas))
        if one not in seen and (len(seen) < top or kind not in kinds):
            seen.add(one)
            kinds.add(kind)
            sized = _sized(search, found)
            ranked.append(Ranked(sized, kind, simulated(search.world, sized.way)))
    return sorted(ranked, key=lambda one: rank(search.objective, one.way, one.predicted))


def _sized(search: Search, found: Found) -> Found:
    """With the piece of a prompt that gives the first token soonest, which changes nothing else."""
    ways = [replace(found.way, chunk=size) for size in chunks(search.world.job.prompt_tokens, MOST_CHUNK)]
    able = [(way, figures(search.world, way)) for way in ways if fits(search.world, way)]
    way, predicted = min(able, key=lambda one: one[1]["ttft_s"])
    return replace(found, way=way, figures=predicted)


def _candidate(search: Search, one: Ranked, loses: str = "") -> Candidate:
    world, way = search.world, one.way
    needs = memory(world, way)
    held = tuple(
        DeviceMemory(name, need, world.devices[name].memory_bytes)
        for units in (way.replicas[:1] if way.alike else way.replicas)
        for unit, of_stage in zip(units, needs, strict=True)
        for name, need in zip(unit.devices, of_stage, strict=True)
    )
    devices = tuple(
        tuple(name for units in way.replicas for name in units[index].devices) for index in range(len(way.cut))
    )
    return Candidate(
        kind=one.kind,
        split=way.split,
        cut=way.cut,
        devices=devices,
        schedule=way.schedule,
        micro_batches=way.micro_batches,
        recompute="none",
        zero=0,
        predicted=one.predicted,
        memory=held,
        plan=plan_of(world, way, loses),
        simulated=True,
        loses=loses,
        note="; ".join((world.model.note, *(() if one.found.exact else (BEAM,)))),
    )
