"""No way to split fits: what each device is short of, and the context and the weight format that would fit."""

from __future__ import annotations

from typing import NoReturn

from plait.costs.memory import FORMAT_BYTES
from plait.costs.serving import ServingModel
from plait.errors import CapacityError, PlanError
from plait.planner.cut import proportional_layers
from plait.planner.exact import best_in_order, best_throughput
from plait.planner.serving_figures import chunks
from plait.planner.serving_groups import unit_sets
from plait.planner.serving_search import MOST_CHUNK, Search, ServingLimits
from plait.planner.serving_units import Demand, Unit, World, problem
from plait.plans.plan import GRID
from plait.units import format_bytes

_LISTED = 8


def refuse(search: Search) -> NoReturn:
    """Errors: CapacityError with need, free and shortfall; PlanError where only what was asked for cannot be."""
    world = search.world
    if search.limits != ServingLimits(full=search.limits.full):
        free = Search(world, search.objective, ServingLimits(full=search.limits.full)).run()
        if free.found:
            split = free.found[0].way.split
            raise PlanError(
                f"no way to split {world.spec.name} over {len(world.devices)} devices has {_asked(search.limits)}"
                f"{_why(search)}; without it the best is --dp {split.dp} --pp {split.pp} --tp {split.tp}"
            )
    raise CapacityError(f"{world.spec.name} does not fit: {_shortfalls(world)}; {_what_fits(world)}")


def _asked(limits: ServingLimits) -> str:
    values = {"--dp": limits.dp, "--pp": limits.pp, "--tp": limits.tp, "--schedule": limits.schedule}
    return " ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _why(search: Search) -> str:
    spec, limits, there = search.world.spec, search.limits, len(search.world.devices)
    needed = (limits.dp or 1) * (limits.pp or 1) * (limits.tp or 1)
    if needed > there:
        return f" (it takes {needed} devices)"
    for asked, have, what in ((limits.tp, spec.heads, "query heads"), (limits.pp, spec.layers, "layers")):
        if asked is not None and asked > have:
            return f" (there are {have} {what})"
    return f" ({search.rejected[0].reason})" if search.rejected else ""


def _demand(world: World, context: int | None = None) -> Demand:
    job = world.job
    chunk = chunks(job.prompt_tokens, MOST_CHUNK)[-1]
    return Demand(job.users, job.users, world.middle, chunk, context or job.positions)


def _shortfalls(world: World) -> str:
    """Need, free and shortfall in all and of every device, with layers in proportion to memory."""
    units = [Unit((name,)) for name in world.devices]
    units = sorted(units, key=lambda unit: -world.free_bytes(unit)[0])[: world.spec.layers]
    shares = [max(1, world.free_bytes(unit)[0] // 2**20) for unit in units]
    counts = proportional_layers(shares, world.spec.layers)
    demand, first, rows = _demand(world), 0, []
    for unit, count in zip(units, counts, strict=True):
        need = world.need_bytes(unit, (first, first + count), demand)[0]
        rows.append((unit.devices[0], need, world.free_bytes(unit)[0]))
        first += count
    need, free = sum(row[1] for row in rows), sum(row[2] for row in rows)
    where = f"on {len(rows)} devices " if len(rows) > 1 else ""
    words = f"it needs {format_bytes(need)} {where}and {format_bytes(free)} are free"
    if need > free:
        words += f", {format_bytes(need - free)} are missing"
    each = [
        f"{name} needs {format_bytes(need)}, has {format_bytes(free)}{_missing(need, free)}"
        for name, need, free in rows
    ]
    rest = f"; and {len(each) - _LISTED} more" if len(each) > _LISTED else ""
    return f"{words} ({'; '.join(each[:_LISTED])}{rest})"


def _missing(need: int, free: int) -> str:
    return f", misses {format_bytes(need - free)}" if need > free else ""


def _what_fits(world: World) -> str:
    """The largest context as things are, and the widest weight format with which the asked one fits."""
    parts = []
    context = _largest_context(world)
    if context:
        parts.append(f"a context of {context} would fit (--context {context})")
    formats = _smaller_formats(world)
    for name in formats:
        if _fits(_stored(world, name), world.job.positions):
            parts.append(f"with weights in {name} it would fit (--weights {name})")
            break
    else:
        context = _largest_context(_stored(world, formats[-1])) if formats else 0
        if context:
            parts.append(
                f"with weights in {formats[-1]} a context of {context} would fit "
                f"(--weights {formats[-1]} --context {context})"
            )
    return (
        "; ".join(parts)
        or "no context and no weight format that Plait has would fit: use a smaller model or more machines"
    )


def _smaller_formats(world: World) -> list[str]:
    """Formats with fewer bytes a weight, the widest first."""
    here = FORMAT_BYTES[world.model.weights]
    return sorted((name for name, size in FORMAT_BYTES.items() if size < here), key=lambda name: -FORMAT_BYTES[name])


def _stored(world: World, weights: str) -> World:
    model = ServingModel(world.spec, world.cluster, world.model.dtype, weights)
    return World(world.spec, world.cluster, world.job, model)


def _largest_context(world: World) -> int:
    """The largest on the grid, below the one asked for, with which something fits; 0 where nothing does."""
    low, high = 0, (world.job.positions - 1) // GRID
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(world, middle * GRID) else (low, middle - 1)
    return low * GRID


def _fits(world: World, context: int) -> bool:
    """Some pipeline of single devices or of tensor groups holds the model, its caches and one micro-batch."""
    demand = _demand(world, context)
    for units in unit_sets(world, demand, prefill=False):
        most = 1 if units.whole_only else min(len(units.units), world.spec.layers)
        if world.equal_hosts is not None:
            one = problem(world, units.units[:most], demand, in_order=True)
            if best_in_order(one) is not None:
                return True
        elif best_throughput(problem(world, units.units, demand), range(1, most + 1)) is not None:
            return True
    return False
