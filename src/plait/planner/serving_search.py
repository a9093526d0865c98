"""All ways to split a generation that are worth a closed form, and those that cannot be, with what rules them out.

Units (devices, or tensor groups of one size) are ordered and cut by the exact search. Where all hosts are equal, their
number does not matter: units follow each other as they stand, the first pipeline fills the first hosts, and replicas
are laid around it. Of two such pipelines whose longest stage has as many layers only the shorter one is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, comb

from plait.planner.cut import Cut
from plait.planner.exact import Problem, best_in_order, best_latency, best_throughput
from plait.planner.result import Objective, Rejected
from plait.planner.serving_cuts import Ask, every_cut
from plait.planner.serving_figures import Way, chunks, figures, fits
from plait.planner.serving_groups import Units, unit_sets
from plait.planner.serving_memory import impossible, refusal
from plait.planner.serving_units import Demand, Unit, World, problem
from plait.schedules.generation import LAYERWISE, PIPELINED

_EXACT_UNITS = 16
_EVERY_COUNT = 6
MOST_CHUNK = 2048
"""The most positions of a prompt that are computed together."""

_Devices = tuple[int, tuple[tuple[str, ...], ...]]
"""So many stages of these units, whatever heads their devices have."""

Replicas = tuple[tuple[Unit, ...], ...]


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What the search is held to; None: anything that can be.

    `full`: every micro-batch holds all of the job's users, as when requests never end; otherwise they are divided.
    None: full for throughput.
    """

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    schedule: str | None = None
    full: bool | None = None

    def allow(self, way: Way) -> bool:
        """The way has the axes and the schedule that were asked for."""
        split = way.split
        asked = ((self.dp, split.dp), (self.pp, split.pp), (self.tp, split.tp), (self.schedule, way.schedule))
        return all(wanted in (None, has) for wanted, has in asked)


@dataclass(frozen=True, slots=True)
class Found:
    """A way with its figures, and the same with every schedule and number of micro-batches, the best first.

    `exact`: no other order and cut of its units is better.
    """

    way: Way
    figures: Mapping[str, float]
    others: tuple[tuple[Way, Mapping[str, float]], ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Ranked:
    """A way as simulated, and its kind of split."""

    found: Found
    kind: str
    predicted: Mapping[str, float]

    @property
    def way(self) -> Way:
        """The way."""
        return self.found.way


def value(objective: Objective, found: Mapping[str, float]) -> float:
    """Seconds that are to be few: a token's, those to the first one, or everyone's together for one token."""
    if objective == "throughput":
        return 1 / found["decode_tokens_per_s"]
    return found["ttft_s" if objective == "ttft" else "time_per_token_s"]


def rank(objective: Objective, way: Way, found: Mapping[str, float]) -> tuple[float, ...]:
    """The order of ways: by the objective; of equals the one with the fewest devices, stages, micro-batches.

    A pipeline of one user decodes as fast with one micro-batch as layer-wise; the first token comes sooner where pieces
    of the prompt follow each other, and where that is the same, too, layer-wise is simpler.
    """
    split = way.split
    second = found["time_per_token_s" if objective == "ttft" else "ttft_s"]
    simple = way.schedule != LAYERWISE
    return (_rounded(value(objective, found)), split.ranks, split.pp, way.micro_batches, _rounded(second), simple)


def _rounded(number: float) -> float:
    """Sums in another order are the same."""
    return float(f"{number:.9g}")


@dataclass
class Search:
    """The search for one objective: `found` and `rejected` fill up."""

    world: World
    objective: Objective
    limits: ServingLimits = field(default_factory=ServingLimits)
    found: list[Found] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    _able: set[_Devices] = field(default_factory=set)
    _refused: dict[_Devices, Units] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """True where every micro-batch holds all users."""
        return self.objective == "throughput" if self.limits.full is None else self.limits.full

    @property
    def users(self) -> int:
        """Requests at the same time."""
        return self.world.job.users

    def run(self) -> Search:
        """Look at everything."""
        self.rejected.extend(impossible(self.world))
        prefill = self.objective == "ttft"
        for units in unit_sets(self.world, self._demand(1), prefill=prefill, tp=self.limits.tp):
            if self.world.equal_hosts is not None and not units.whole_only:  # those overlap
                self._regular(units)
            if self.world.equal_hosts is None or len(self.world.devices) <= _EXACT_UNITS:
                self._any(units)
        self.found.sort(key=lambda one: rank(self.objective, one.way, one.figures))
        self._reject()
        return self

    def _reject(self) -> None:
        """What fits with no heads that were dealt: the same devices may have been looked at with others."""
        whole: dict[int, list[Unit]] = {}
        for (stages, devices), units in self._refused.items():
            if (stages, devices) in self._able:
                continue
            if stages == 1:
                whole.setdefault(units.tp, []).extend(units.units)
            else:
                ways = comb(len(units.units), stages)
                self.rejected.append(refusal(self.world, units, stages, ways, self._demand(stages)))
        for tp, alone in whole.items():
            self.rejected.append(refusal(self.world, Units(tp, tuple(alone)), 1, len(alone), self._demand(1)))

    # any devices: the exact search

    def _any(self, units: Units) -> None:
        whole = ((0, self.world.spec.layers),)
        for unit in self._distinct(units.units):
            if self._try(((unit,),), whole):
                self._able.add((1, (unit.devices,)))
            else:
                self._refused.setdefault((1, (unit.devices,)), Units(units.tp, (unit,)))
        if not units.whole_only:
            self._copies(units.units)
            self._pipelines(units)

    def _distinct(self, units: Sequence[Unit]) -> list[Unit]:
        """One of each sort where links do not matter, which is of single devices."""
        if len(units[0].devices) > 1:
            return list(units)
        sorts: dict[object, Unit] = {}
        for unit in units:
            sorts.setdefault(self.world.signature(unit.devices[0]), unit)
        return list(sorts.values())

    def _copies(self, units: Sequence[Unit]) -> None:
        """Data over units that hold the whole model each: the fastest 2, 3, …

        Ranks of a stage have one deal of heads for all replicas: each one's is tried for all.
        """
        if not self.full and self.users == 1:
            return
        whole = ((0, self.world.spec.layers),)
        for shares in {unit.shares: None for unit in units}:
            same = [Unit(unit.devices, shares) for unit in units]
            ways = [self._way(((unit,),), whole, LAYERWISE, 1) for unit in same]
            able = sorted(
                (way for way in ways if fits(self.world, way)),
                key=lambda way: value(self.objective, figures(self.world, way)),
            )
            for count in range(2, len(able) + 1):
                if self.full or count <= self.users:
                    self._try(tuple(way.replicas[0] for way in able[:count]), whole)

    def _pipelines(self, units: Units) -> None:
        most = min(len(units.units), self.world.spec.layers)
        counts = range(2, most + 1)
        if self.limits.pp is not None:
            counts = range(max(2, self.limits.pp), min(most, self.limits.pp) + 1)
        if not counts:
            return
        found: dict[tuple[tuple[int, ...], Cut], bool] = {}
        for prefill in (False, True) if self.objective == "ttft" else (False,):
            best = best_latency(self._problem(units, 1, prefill), counts)
            if best is not None:
                found[best.machines, best.cut] = best.exact
            for some in self._counts(counts):
                best = best_throughput(self._problem(units, some[-1], prefill), some)
                if best is not None:
                    found[best.machines, best.cut] = best.exact
                elif not prefill:
                    for stages in some:
                        self._refused.setdefault((stages, tuple(unit.devices for unit in units.units)), units)
        ways = {(tuple(units.units[at] for at in machines), cut): exact for (machines, cut), exact in found.items()}
        for count in counts:
            ways |= dict.fromkeys(every_cut(self.world, units.units, count, list(self._asks(count))), True)
        for (pipeline, cut), exact in ways.items():
            if self._try((pipeline,), cut, exact=exact):
                self._able.add((len(cut), tuple(unit.devices for unit in units.units)))

    def _asks(self, stages: int) -> Iterator[Ask]:
        """What a pipeline of so many stages may be asked for: each is best with a cut of its own."""
        sizes, world = chunks(self.world.job.prompt_tokens, MOST_CHUNK), self.world
        prefill = self.objective == "ttft"
        seen: set[Ask] = set()
        for schedule, micro_batches in self._options(stages):
            users = self.users * micro_batches if self.full else self.users
            for size in sizes if prefill else sizes[-1:]:
                demand = Demand(ceil(users / micro_batches), users, world.middle, size, world.job.positions)
                count = 1 if prefill else micro_batches  # which matters for its rows alone
                ask = Ask(schedule, count, demand, prefill)
                if ask not in seen and (prefill or schedule == LAYERWISE or micro_batches > 1):
                    seen.add(ask)
                    yield ask

    def _problem(self, units: Units, micro_batches: int, prefill: bool) -> Problem:
        """Decoding, or a prompt in its largest pieces."""
        demand = self._demand(micro_batches)
        if prefill:
            demand = replace(demand, chunk=chunks(self.world.job.prompt_tokens, MOST_CHUNK)[0])
        return problem(self.world, units.units, demand, prefill=prefill)

    def _counts(self, counts: range) -> Sequence[range]:
        """Numbers of stages of which each is searched alone; many together."""
        if len(counts) < _EXACT_UNITS:
            return [range(count, count + 1) for count in counts]
        return [counts]

    def _demand(self, stages: int) -> Demand:
        """Of a pipeline with as many micro-batches as stages."""
        job = self.world.job
        rows = self.users if self.full else ceil(self.users / stages)
        slots = self.users * stages if self.full else self.users
        return Demand(rows, slots, self.world.middle, chunks(job.prompt_tokens, MOST_CHUNK)[-1], job.positions)

    # equal hosts: units as they stand

    def _regular(self, units: Units) -> None:
        for stages in self._lengths(min(len(units.units), self.world.spec.layers)):
            replicas = self._laid(units, stages)
            if not replicas:
                continue
            demand = self._demand(stages)
            best = best_in_order(problem(self.world, replicas[0], demand, in_order=True))
            if best is None and stages > 1 and self.full:
                best = best_in_order(problem(self.world, replicas[0], self._demand(1), in_order=True))
            if best is None:
                if len(self.world.devices) > _EXACT_UNITS:  # else `_any` counts them
                    self.rejected.append(refusal(self.world, units, stages, 1, demand))
                continue
            for count in self._replica_counts(len(replicas)):
                self._try(replicas[:count], best.cut, alike=True)

    def _lengths(self, most: int) -> list[int]:
        """The least number of stages for each length of the longest one, or the number that was asked for."""
        if self.limits.pp is not None:
            return [self.limits.pp] if self.limits.pp <= most else []
        layers = self.world.spec.layers
        return sorted({ceil(layers / ceil(layers / stages)) for stages in range(1, most + 1)})

    def _laid(self, units: Units, stages: int) -> Replicas:
        """As many pipelines as there is room for; each begins with a host, or several lie within one."""
        per_host = (self.world.equal_hosts or 1) // units.tp
        step = per_host * ceil(stages / per_host) if per_host and stages > per_host else stages
        room = per_host if per_host and stages <= per_host else len(units.units)
        starts = (
            first + at
            for first in range(0, len(units.units), room)
            for at in range(0, min(room, len(units.units) - first) - stages + 1, step)
        )
        return tuple(units.units[at : at + stages] for at in starts)

    def _replica_counts(self, most: int) -> list[int]:
        if self.limits.dp is not None:
            return [self.limits.dp] if self.limits.dp <= most else []
        if self.full:
            return sorted({1, most})
        least = min(most, self.users)
        return sorted({1, least, *(2**power for power in range(least.bit_length()) if 2**power <= least)})

    # one way

    def _try(self, replicas: Replicas, cut: Cut, *, alike: bool = False, exact: bool = True) -> bool:
        """The best of the schedules and numbers of micro-batches; False where none fits."""
        looked: list[tuple[Way, Mapping[str, float]]] = []
        for schedule, micro_batches in self._options(len(cut)):
            way = self._way(replicas, cut, schedule, micro_batches, alike=alike)
            looked.extend((fitting, figures(self.world, fitting)) for fitting in self._fitting(way))
        looked.sort(key=lambda one: rank(self.objective, *one))
        allowed = [one for one in looked if self.limits.allow(one[0])]
        if allowed:
            self.found.append(Found(allowed[0][0], allowed[0][1], tuple(looked), exact))
        return bool(looked)

    def _options(self, stages: int) -> Iterator[tuple[str, int]]:
        yield LAYERWISE, 1
        if stages == 1:
            return
        counts = {1, 2, ceil(stages / 2), stages, stages + 1} | ({2 * stages} if self.full else set())
        if stages < _EVERY_COUNT:
            counts |= set(range(1, stages + 2))
        for count in sorted(counts):
            if self.full or count <= self.users:
                yield PIPELINED, count

    def _way(self, replicas: Replicas, cut: Cut, schedule: str, micro_batches: int, *, alike: bool = False) -> Way:
        users = self.users * micro_batches if self.full else ceil(self.users / len(replicas))
        largest = chunks(self.world.job.prompt_tokens, MOST_CHUNK)[0]
        everyone = None if self.full else self.users
        return Way(replicas, cut, schedule, min(micro_batches, users), users, largest, alike, everyone)

    def _fitting(self, way: Way) -> Iterator[Way]:
        """With the largest piece of a prompt for which there is memory; for the first token's time with each."""
        for size in chunks(self.world.job.prompt_tokens, MOST_CHUNK):
            sized = replace(way, chunk=size)
            if fits(self.world, sized):
                yield sized
                if self.objective != "ttft":
                    return
