"""All ways to split at once: rows of arrays, with the bytes that each needs and a lower bound of its step's seconds.

A row is a split, a micro-batch, and what is recomputed and split along the sequence; a `Way` (schedule, virtual stages)
and a ZeRO stage are gone through one after another over all rows. What follows the last backward counts by the bytes of
its rings alone, so a row's seconds are a bound; the best ones are then computed in full (`scoring`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.costs.topology import gradient_reach
from plait.costs.training import TrainingModel
from plait.planner.balance import Floats, Weights, best_shape
from plait.planner.space import TrainingLimits, Way, kind_of, micro_batch_sizes, splits, ways
from plait.planner.step_times import Phases, held, step_seconds
from plait.planner.tables import SMALL_MESH, Key, layer_table, parameter_table
from plait.plans.split import RECOMPUTE, Recompute, Split, TrainingSetup
from plait.schedules.closed import heads_in_flight
from plait.schedules.training import V_SHAPED

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Found(NamedTuple):
    """The rows that one way and ZeRO stage allow [n], the bytes each needs, and its step's seconds.

    `bound_s`: at least so many by the closed form. `least_s`: at least so many whatever the order of computing.
    """

    way: Way
    zero: int
    rows: Ints
    need_bytes: Floats
    bound_s: Floats
    least_s: Floats


class _Held(NamedTuple):
    """What a position holds, by row: parameters that dp × ep ranks share, experts', and all other bytes."""

    there: Flags | None
    dense: Floats
    experts: Floats
    others: Floats


class Variant(NamedTuple):
    """What is recomputed, and whether activations are split along the sequence."""

    recompute: Recompute
    sequence_split: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Columns: which split, micro-batch and variant; and the figures of each that are needed again and again."""

    split: Ints
    size: Ints
    variant: Ints
    key: Ints
    dp: Floats
    ep: Floats
    pp: Floats
    count: Floats
    hop_s: Floats
    group: Ints

    def only(self, rows: Ints) -> _Rows:
        """Some of them."""
        return _Rows(*(getattr(self, name)[rows] for name in self.__slots__))


class Grid:
    """Every way to split one training step over at most `devices` equal devices, within limits."""

    def __init__(self, model: TrainingModel, devices: int, limits: TrainingLimits) -> None:
        self.model, self.limits = model, limits
        per_host = model.machine.devices_per_host
        self.splits = splits(model.spec, model.job.batch, devices, per_host, limits)
        self.kinds = [kind_of(split) for split in self.splits]
        self.ways = ways(limits)
        self._sizes = micro_batch_sizes(model.job.sequence, limits)
        self._variants = _variants(model, limits)
        self._states: dict[int, tuple[Floats, Floats]] = {}
        self._tails: dict[int, Floats] = {}
        self.with_experts = model.spec.experts is not None
        self._axes = np.array([(s.dp, s.pp, s.tp, s.ep) for s in self.splits], dtype=np.int64).reshape(-1, 4)
        self._build()

    def setup(self, row: int, way: Way, zero: int) -> TrainingSetup:
        """The setup of one row."""
        rows, variant = self.rows, self._variants[self.rows.variant[row]]
        return TrainingSetup(
            split=self.splits[rows.split[row]],
            schedule=way.schedule,
            micro_batch=self._sizes[rows.size[row]],
            micro_batches=int(rows.count[row]),
            virtual=way.virtual,
            recompute=variant.recompute,
            zero=zero,
            sequence_split=variant.sequence_split,
            fused_attention=self.model.job.attention == "fused",
        )

    def families(self) -> tuple[Ints, list[tuple[str, str]]]:
        """Which (kind, recompute) each row is of, and their names."""
        kinds = sorted(set(self.kinds))
        recompute = sorted({variant.recompute for variant in self._variants})
        kind = np.array([kinds.index(one) for one in self.kinds], dtype=np.int64)
        again = np.array([recompute.index(variant.recompute) for variant in self._variants], dtype=np.int64)
        codes = kind[self.rows.split] * len(recompute) + again[self.rows.variant]
        return codes, [(one, other) for one in kinds for other in recompute]

    def model_splits(self) -> tuple[Ints, list[tuple[int, int, int]]]:
        """Which (pp, tp, ep) each row is of, and those."""
        unique, index = _unique(self._axes[:, 1:])
        return index[self.rows.split], [(pp, tp, ep) for pp, tp, ep in unique.tolist()]

    def search(self) -> Iterator[Found]:
        """Every way and ZeRO stage, over all rows that they allow."""
        for way in self.ways:
            allowed = np.flatnonzero(self._allowed(way))
            if not len(allowed):
                continue
            part = _Part(self, allowed, way)
            for zero in self.limits.zero:
                # with one replica there is nothing to shard
                kept = np.flatnonzero(part.rows.dp * part.rows.ep > 1) if zero else slice(None)
                need, bound, least = (
                    column[kept] for column in (part.need_bytes(zero), part.bound_s(zero), part.least_s(zero))
                )
                if len(need):
                    yield Found(way, zero, allowed[kept], need, bound, least)

    def state_bytes(self, zero: int) -> tuple[Floats, Floats]:
        """Bytes a parameter, by row: of those that dp × ep ranks hold, and of those of experts."""
        if zero not in self._states:
            recipe, rows = self.model.recipe, self.rows
            sharded = (recipe.optimizer_bytes, recipe.gradient_bytes, recipe.weight_bytes)
            dense, experts = np.zeros(len(rows.dp)), np.zeros(len(rows.dp))
            for least, each in enumerate(sharded, 1):
                dense += each / (rows.dp * rows.ep if zero >= least else 1)
                experts += each / (rows.dp if zero >= least else 1)
            self._states[zero] = dense, experts
        return self._states[zero]

    def tail_s(self, zero: int) -> Floats:
        """By row: reductions by the bytes of their rings, and the optimizer, of the mean position."""
        if zero not in self._tails:
            self._tails[zero] = self._tail_s(zero)
        return self._tails[zero]

    def _tail_s(self, zero: int) -> Floats:
        rows, profile, table = self.rows, self.model.profile, self.parameters
        both, ends = table.both[rows.group], table.first[rows.group] + table.last[rows.group]
        ends = np.where((rows.pp == 1)[:, None], both, np.minimum(both, ends))
        mean = (self.model.spec.layers * table.layer[rows.group] + ends) / rows.pp[:, None]
        ring = self.rings[rows.split]
        ranks = (rows.dp * rows.ep, rows.dp)
        reduced = profile.reduced_bytes * (1 - profile.hidden_reduction)
        gathered: Floats | float = self.model.item_bytes
        if zero >= 2:  # after every micro-batch; ZeRO-3 gathers before every forward and backward
            exposed = 1 - profile.hidden_reduction
            gathered = (2 * exposed * rows.count if zero == 3 else 1.0) * gathered + (rows.count - 1) * reduced
        each = reduced + gathered if zero else 2 * reduced
        stepped_s = self.model.rates.moved_s(profile.stepped_bytes)
        seconds = np.zeros(len(rows.split))
        for column in range(1 + self.with_experts):
            seconds += mean[:, column] * (stepped_s / (ranks[column] if zero else 1) + ring[:, column] * each)
        return seconds

    # building

    def _allowed(self, way: Way) -> Flags:
        allowed = np.array([way.allows(int(pp), self.model.spec.layers) for pp in self._axes[:, 1]], dtype=bool)
        return np.asarray(allowed[self.rows.split])

    def _build(self) -> None:
        dp, pp, tp, ep = self._axes.T
        share = self.model.job.batch // (dp * ep) if len(dp) else dp
        fits = share[:, None] % np.array(self._sizes)[None, :] == 0
        which, size = np.nonzero(fits)
        wide = np.array([variant.sequence_split for variant in self._variants])
        asked = self.limits.sequence_split is None
        fitting = (tp[which] > 1)[:, None] | ~wide[None, :] | (not asked)
        pair, variant = np.nonzero(fitting)
        which, size = which[pair], size[pair]
        key, keys = self._keys(which, size, variant)
        self.layers = layer_table(self.model, keys)
        groups, group = np.unique(self._axes[:, 2:], axis=0, return_inverse=True)
        self.parameters = parameter_table(self.model.spec, [(int(a), int(b)) for a, b in groups])
        self.rows = _Rows(
            which,
            size,
            variant,
            key,
            dp[which].astype(float),
            ep[which].astype(float),
            pp[which].astype(float),
            share[which] / np.array(self._sizes, dtype=float)[size],
            self._hops(which, size, wide[variant]),
            group.ravel()[which],
        )
        self.rings = _rings(self.model, self.splits)

    def _keys(self, which: Ints, size: Ints, variant: Ints) -> tuple[Ints, list[Key]]:
        ranks = np.minimum(self._axes.prod(axis=1), SMALL_MESH)
        parts = np.stack([self._axes[which, 2], self._axes[which, 3], ranks[which], size, variant], axis=1)
        unique, key = _unique(parts)
        keys = [Key(tp, ep, mesh, self._sizes[i], *self._variants[b]) for tp, ep, mesh, i, b in unique.tolist()]
        return key, keys

    def _hops(self, which: Ints, size: Ints, wide: Flags) -> Floats:
        """Seconds of a message to the next position: the slowest of a split's."""
        host = self.model.machine.devices_per_host
        dp, pp, tp, ep = self._axes[which].T
        stride = dp * tp * ep
        inside = stride * pp <= host
        parts = np.stack([tp, np.minimum(stride, host), inside, size, wide, pp > 1], axis=1)
        unique, index = _unique(parts)
        examples = np.zeros(len(unique), dtype=np.int64)
        examples[index[::-1]] = np.arange(len(which))[::-1]
        found = np.array([self._hop_s(int(which[one]), int(size[one]), bool(wide[one])) for one in examples])
        return found[index] if len(found) else np.zeros(0)

    def _hop_s(self, which: int, size: int, wide: bool) -> float:
        split, host = self.splits[which], self.model.machine.devices_per_host
        if split.pp == 1:
            return 0.0
        stride = split.ranks // split.pp
        # positions enough for one hop to leave the host, if any does
        pp = 2 if split.ranks <= host else min(split.pp, max(2, host // stride + 2))
        setup = TrainingSetup(
            Split(split.dp, pp, split.tp, split.ep), "1f1b", self._sizes[size], 1, sequence_split=wide
        )
        return self.model.hand_over_s(setup)


class _Part:
    """The rows that one way allows: what their cut is, and what follows from it."""

    def __init__(self, grid: Grid, allowed: Ints, way: Way) -> None:
        self.grid, self.allowed, self.way = grid, allowed, way
        self.rows = rows = grid.rows.only(allowed)
        self.folded = way.schedule in V_SHAPED
        layers, table = grid.model.spec.layers, grid.layers
        unique, index = _unique(np.stack([rows.key, rows.pp.astype(np.int64)], axis=1))
        key, pp = unique[:, 0], unique[:, 1].astype(float)
        layer, first, last = (phases.at(key) for phases in (table.layer, table.first, table.last))
        shape = best_shape(layers, pp, way.virtual, Weights(layer.total, first.total, last.total), self.folded)
        beside = grid.model.profile.micro_batch_s * way.virtual
        mean = layer.times(layers).plus(first).plus(last).times(1 / pp)
        mean = Phases(mean.forward + beside, mean.input + beside, mean.weight)
        self.first, self.last, self.between = shape.first[index], shape.last[index], shape.between[index]
        self.slowest_s = (shape.slowest_s + 2 * beside)[index]
        self.mean = mean.at(index)
        self.alone = rows.pp == 1
        self._held = list(self._positions())

    def need_bytes(self, zero: int) -> Floats:
        """Bytes of the fullest device."""
        dense, experts = self.grid.state_bytes(zero)
        dense = dense[self.allowed]
        need = np.zeros(len(self.allowed))
        for one in self._held:
            mine = one.dense * dense + one.others
            if self.grid.with_experts:
                mine += one.experts * experts[self.allowed]
            need = np.maximum(need, mine if one.there is None else np.where(one.there, mine, 0.0))
        return need

    def _positions(self) -> Iterator[_Held]:
        """The positions that may be the fullest: both ends, and the first of the smaller and of the larger between."""
        pp, rows, parameters = self.rows.pp, self.rows, self.grid.parameters
        both = self.alone | self.folded
        group = rows.group
        ends = np.where(both[:, None], parameters.both[group], parameters.first[group])
        yield self._position(None, 0 * pp, self.first, ends, 1.0, both)
        head = parameters.last[group] * (not self.folded)
        yield self._position(pp > 1, pp - 1, self.last, head, 0.0, float(not self.folded))
        size = np.floor(self.between / np.maximum(pp - 2, 1))
        larger = self.between - size * (pp - 2)
        yield self._position((pp > 2) & (larger < pp - 2), 0 * pp + 1, size, 0 * head, 0.0, 0.0)
        yield self._position((pp > 2) & (larger > 0), pp - 1 - larger, size + 1, 0 * head, 0.0, 0.0)

    def _position(
        self,
        there: Flags | None,
        position: Floats,
        count: Floats,
        ends: Floats,
        first: float,
        last: Flags | float,
    ) -> _Held:
        """A position of `count` layers; `ends`: its parameters beside them; `first`, `last`: it holds those stages."""
        rows, table, virtual = self.rows, self.grid.layers, self.way.virtual
        layer = self.grid.parameters.layer[rows.group]
        kept = count * table.kept[rows.key]
        if first:
            kept = kept + table.kept_first[rows.key]
        flying = held(self.way.schedule, rows.pp, virtual, position, rows.count)
        heads = last * heads_in_flight(self.way.schedule, virtual, flying, rows.count)
        others = flying * kept / virtual + table.working[rows.key] + heads * table.kept_last[rows.key]
        return _Held(there, count * layer[:, 0] + ends[:, 0], count * layer[:, 1] + ends[:, 1], others)

    def bound_s(self, zero: int) -> Floats:
        """A lower bound of the step's seconds."""
        return self._running_s + self.grid.tail_s(zero)[self.allowed]

    def least_s(self, zero: int) -> Floats:
        """As if the slowest position never waited."""
        busy: Floats = self.rows.count * self.slowest_s * (1 + self._residue)
        return busy + self.grid.model.profile.step_s + self.grid.tail_s(zero)[self.allowed]

    @cached_property
    def _residue(self) -> Floats:
        share = self.grid.model.profile.residue.get(self.way.schedule, 0.0)
        return np.where(self.alone, 0.0, share)

    @cached_property
    def _running_s(self) -> Floats:
        rows, way, profile = self.rows, self.way, self.grid.model.profile
        count = rows.count
        running = step_seconds(way.schedule, rows.pp, way.virtual, count, self.slowest_s, self.mean, rows.hop_s)
        seconds: Floats = running * (1 + self._residue) + profile.step_s
        return seconds


def _variants(model: TrainingModel, limits: TrainingLimits) -> list[Variant]:
    """Recompute × sequence split. Fused attention keeps no scores: selective recompute is then the same as none."""
    recompute = [one for one in RECOMPUTE if one in limits.recompute]
    if model.job.attention == "fused" and "none" in recompute:
        recompute = [one for one in recompute if one != "selective"]
    wide = (False, True) if limits.sequence_split is None else (limits.sequence_split,)
    return [Variant(one, sequence) for one in recompute for sequence in wide]


def _rings(model: TrainingModel, found: list[Split]) -> Floats:
    """Seconds a byte around the rings that reduce gradients, of dp × ep ranks and of dp (experts) [splits, 2]."""
    fabric, host = model.fabric, model.machine.devices_per_host
    known: dict[tuple[int, int, int, int], float] = {}

    def ring(split: Split, experts: bool) -> float:
        place = gradient_reach(split, host, experts=experts)
        key = place.inside, place.hosts, place.size, min(host, split.ranks)
        if key not in known:
            within, between = fabric.within.link, fabric.between(key[3]).link
            if place.hosts == 1:
                known[key] = (place.size - 1) / place.size / within.bandwidth_bytes_per_s
            else:
                hosts = -(-place.size // place.inside)
                inner = (place.inside - 1) / place.inside / within.bandwidth_bytes_per_s
                outer = (hosts - 1) / hosts / place.inside / between.bandwidth_bytes_per_s
                known[key] = inner + outer
        return known[key]

    rows = [(ring(split, False), ring(split, True)) for split in found]
    made: Floats = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return made


def _unique(parts: Ints) -> tuple[Ints, Ints]:
    """The different rows, and which of them each row is."""
    if not len(parts):
        return parts, np.zeros(0, dtype=np.int64)
    spans = parts.max(axis=0) + 1
    code = np.zeros(len(parts), dtype=np.int64)
    for column, span in zip(parts.T, spans, strict=True):
        code = code * span + column
    _, example, index = np.unique(code, return_index=True, return_inverse=True)
    return parts[example], index
