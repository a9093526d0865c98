"""Why a way to split a generation wins, and why another loses: in words, with seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from plait.planner.result import Objective
from plait.planner.serving_figures import Way, figures, fits
from plait.planner.serving_search import Ranked, Search, value
from plait.planner.serving_units import World
from plait.schedules.generation import LAYERWISE
from plait.units import format_bytes, format_rate, format_seconds

_NAMED = 8
_NOTHING = 1e-6
_WHOLE = 100
_CLOSE = 1.01
"""What comes as near as this is as good: it needs no word."""

_MATTERS = 0.02
"""Differences below this part of the whole are not given as a cause."""


def format_bits(bytes_per_s: float) -> str:
    """A network's bandwidth as it is sold: ``3.1 Gb/s``."""
    for factor, unit in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bytes_per_s * 8 >= factor:
            return f"{bytes_per_s * 8 / factor:.3g} {unit}"
    return f"{bytes_per_s * 8:.3g} b/s"


def way_words(world: World, way: Way) -> str:
    """``pipeline over a + b, 20/20 layers, layer-wise``; one device is ``a alone``."""
    split = way.split
    names = [name for units in way.replicas for unit in units for name in unit.devices]
    if len(names) == 1:
        return f"{names[0]} alone"
    parts = []
    if split.dp > 1:
        parts.append(f"{split.dp} replicas")
    if split.pp > 1:
        parts.append(f"pipeline of {split.pp}")
    if split.tp > 1:
        parts.append(f"tensor groups of {split.tp}" if split.dp * split.pp > 1 else f"tensor group of {split.tp}")
    over = " + ".join(names) if len(names) <= _NAMED else f"{len(names)} devices"
    words = f"{' × '.join(parts)} over {over}"
    if split.pp > 1:
        words += f", layers {'/'.join(str(end - first) for first, end in way.cut)}, {_schedule(way)}"
    shares = way.replicas[0][0].shares
    if shares:
        words += f", heads {'/'.join(map(str, shares))}"
    return words


def _schedule(way: Way) -> str:
    if way.schedule == LAYERWISE:
        return "layer-wise"
    return f"pipelined with {_count(way.micro_batches, 'micro-batch')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{('es' if what.endswith('ch') else 's') * (number != 1)}"


def figure_words(objective: Objective, predicted: Mapping[str, float]) -> str:
    """What the objective asks for."""
    if objective == "throughput":
        rate = predicted["decode_tokens_per_s"]
        return f"{rate:,.0f} tokens/s" if rate >= _WHOLE else f"{rate:.3g} tokens/s"
    if objective == "ttft":
        return f"{format_seconds(predicted['ttft_s'])} to the first token"
    return f"{format_seconds(predicted['time_per_token_s'])} a token"


def chosen_words(search: Search, ranked: list[Ranked]) -> str:
    """The winner, the best single device or the best of several beside it, and the number of micro-batches' reason."""
    best = ranked[0]
    words = f"{way_words(search.world, best.way)}: predicted {figure_words(search.objective, best.predicted)}"
    if best.way.split.ranks == 1:
        words = f"use {words}"
    alone = best.way.split.ranks == 1
    other = next((one for one in ranked[1:] if (one.way.split.ranks == 1) != alone), None)
    if other is not None:
        words += f"; {way_words(search.world, other.way)} {figure_words(search.objective, other.predicted)}"
    reasons = (_micro_batches(search, best), _in_all(search, best), _left_out(search, best))
    return "; ".join((words, *(each for reason in reasons for each in reason), *_uncertain(search, ranked)))


def _uncertain(search: Search, ranked: list[Ranked]) -> Iterator[str]:
    """Where figures were measured, and vary by more than what lies between the two best ways."""
    if len(ranked) < 2:
        return
    best, other = ranked[:2]
    used = {name for one in (best, other) for name in _devices(one.way)}
    spread = max(part for name in used for part in (0.0, *search.world.devices[name].spread.values()))
    lacks = value(search.objective, other.found.figures) / value(search.objective, best.found.figures) - 1
    if lacks < spread:
        yield (
            f"that is not certain: {way_words(search.world, other.way)} lies {lacks:.1%} behind, and the devices' "
            f"figures were measured to ± {spread:.0%}"
        )


def _devices(way: Way) -> Iterator[str]:
    return (name for units in way.replicas for unit in units for name in unit.devices)


def _micro_batches(search: Search, best: Ranked) -> Iterator[str]:
    """What the same pipeline takes with other schedules and numbers of micro-batches."""
    if best.way.split.pp == 1:
        return
    seen = {(best.way.schedule, best.way.micro_batches)}
    close_s = value(search.objective, best.found.figures) * _CLOSE
    others = []
    for way, found in best.found.others:
        if (way.schedule, way.micro_batches) not in seen and value(search.objective, found) > close_s:
            seen.add((way.schedule, way.micro_batches))
            others.append(f"{_schedule(way)} {figure_words(search.objective, found)}")
    if others:
        yield "of its schedules: " + ", ".join(others[:3])
    if not search.full and search.users > 1 and best.way.micro_batches < min(search.users, best.way.split.pp):
        yield "more micro-batches would read the weights more often for the same users"


def _in_all(search: Search, best: Ranked) -> Iterator[str]:
    """Full micro-batches: how many users that are, and what is best for no more than the job's."""
    way = best.way
    if not search.full or way.micro_batches * len(way.replicas) == 1:
        return
    everyone = way.served
    yield f"this serves {everyone} users in all, {way.rows} in each micro-batch"
    few = [one for found in search.found for one in found.others if one[0].served <= search.users]
    for count in range(1, min(way.micro_batches, search.users) + 1):
        cut = replace(way, replicas=way.replicas[:1], users=search.users, micro_batches=count, everyone=None)
        if fits(search.world, cut):
            few.append((cut, figures(search.world, cut)))
    if few:
        most, found = max(few, key=lambda one: one[1]["decode_tokens_per_s"])
        yield (
            f"for no more than {_count(search.users, 'user')} in all the most is "
            f"{figure_words('throughput', found)}, with {way_words(search.world, most)}"
        )


def _left_out(search: Search, best: Ranked) -> Iterator[str]:
    used, there = best.way.split.ranks, len(search.world.devices)
    if 1 < used < there:
        yield f"{there - used} of {there} devices stay out"


def losing_words(search: Search, best: Ranked, other: Ranked) -> str:
    """What makes this one lose: how much it lacks, the causes, and where a rank's time goes instead."""
    least_s = _NOTHING * best.predicted["time_per_token_s"]
    keys = ("compute_s", "transfer_s", "wait_s")
    parts = {key: other.predicted[key] - best.predicted[key] for key in keys}
    parts = {key: seconds if abs(seconds) > least_s else 0.0 for key, seconds in parts.items()}
    detail = ", ".join(f"{key[:-2]} {_signed(seconds)}" for key, seconds in parts.items())
    words = [_lacks(search.objective, best.predicted, other.predicted), *list(_causes(search, best, other, parts))[:2]]
    return f"{'; '.join(words)} (of a rank's time a token: {detail})"


def _lacks(objective: Objective, best: Mapping[str, float], other: Mapping[str, float]) -> str:
    words = figure_words(objective, other)
    if objective == "throughput":
        return f"{words}, {1 - other['decode_tokens_per_s'] / best['decode_tokens_per_s']:.1%} fewer"
    key = "ttft_s" if objective == "ttft" else "time_per_token_s"
    return f"{words}, {format_seconds(max(0.0, other[key] - best[key]))} more"


def _causes(search: Search, best: Ranked, other: Ranked, parts: Mapping[str, float]) -> Iterator[str]:
    way, whole_s = other.way, other.predicted["time_per_token_s"]
    split, tokens = way.split, search.world.job.prompt_tokens if search.objective == "ttft" else way.rows
    if search.objective == "throughput" and 2 * split.ranks <= best.way.split.ranks:
        yield f"it uses {_count(split.ranks, 'device')}, not {best.way.split.ranks}"
    if split.tp > 1 and (parts["transfer_s"] > _MATTERS * whole_s or search.objective == "ttft"):
        size = tokens * search.world.spec.hidden * search.world.model.sizes.item_bytes
        link = search.world.model.wires.link(*way.replicas[0][0].devices[:2])
        yield (
            f"its {2 * search.world.spec.layers} all-reduces of {format_bytes(size)} cross links of "
            f"{format_rate(link.bandwidth)} and {format_seconds(link.latency_s)}"
        )
    if split.pp > 1 and way.schedule == LAYERWISE and parts["wait_s"] > _MATTERS * whole_s:
        yield f"one stage computes while the others wait, {other.predicted['bubble']:.0%} of the time"
    if split.pp > 1 and way.micro_batches > 1 and not search.full:
        yield f"its weights are read for each of {way.micro_batches} micro-batches"
    slow, fast = _slowest(search.world, way), _slowest(search.world, best.way)
    if slow[0] < fast[0]:
        yield f"{slow[1]} reads {format_rate(slow[0])} from its memory, the chosen's slowest {format_rate(fast[0])}"
    if split.pp > 1 and parts["transfer_s"] > _MATTERS * whole_s:
        links = [search.world.link(one, after) for one, after in pairwise(way.replicas[0])]
        slowest = min(links, key=lambda one: one.bandwidth_bytes_per_s)
        rate = format_rate(slowest.bandwidth_bytes_per_s)
        yield f"each token crosses {_count(len(links), 'link')}, the slowest of {rate}"


def _slowest(world: World, way: Way) -> tuple[float, str]:
    names = (name for unit in way.replicas[0] for name in unit.devices)
    return min((world.devices[name].memory_bandwidth, name) for name in names)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds)) if seconds else '0'}"
