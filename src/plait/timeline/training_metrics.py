"""A training step's figures, read off its timeline: the same way for predicted and measured runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plait.plans.action import Kind, Lane
from plait.plans.layout import Layout
from plait.timeline.compare import COMPUTE, WAIT
from plait.timeline.timeline import Timeline


@dataclass(slots=True)
class Intervals:
    """Begins and ends of what a rank did, in any order."""

    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def add(self, start_s: float, end_s: float) -> None:
        """One more."""
        self.starts_s.append(start_s)
        self.ends_s.append(end_s)

    @property
    def total_s(self) -> float:
        """The sum of their lengths."""
        return float(np.sum(np.array(self.ends_s) - np.array(self.starts_s)))

    @property
    def extent_s(self) -> float:
        """From the first begin to the last end."""
        return max(self.ends_s) - min(self.starts_s) if self.starts_s else 0.0

    def covered_s(self, other: Intervals) -> float:
        """Seconds in which at least one of these or of the other's runs."""
        starts = np.array(self.starts_s + other.starts_s)
        ends = np.array(self.ends_s + other.ends_s)
        order = np.argsort(starts, kind="stable")
        reached: NDArray[np.float64] = np.concatenate([[-np.inf], np.maximum.accumulate(ends[order])])[:-1]
        return float(np.maximum(0.0, ends[order] - np.maximum(starts[order], reached)).sum())


@dataclass(slots=True)
class _OfRank:
    """What one rank computed and transferred, and its forwards and backwards as a whole."""

    computing: Intervals = field(default_factory=Intervals)
    moving: Intervals = field(default_factory=Intervals)
    passes: Intervals = field(default_factory=Intervals)
    sent_bytes: int = 0


def training_metrics(
    timeline: Timeline,
    layout: Layout,
    *,
    steps: int = 1,
    model_flops: float | None = None,
    peak_flops: float | None = None,
    peak_bytes: int | None = None,
) -> dict[str, float]:
    """The design's keys for `steps` training steps; `mfu` and `peak_bytes` where their figures are given.

    Seconds and bytes are sums over all ranks of the layout, also where the timeline has each position's first rank
    alone. `compute_s`: parts that compute. `transfer_s`: messages, reductions and exchanges inside actions, in so far
    as the rank computes nothing meanwhile. `wait_s`: the rest. So the three add up to ranks × makespan, and `bubble`
    is 1 − compute_s ÷ that.

    `span_bubble`, as papers on zero-bubble schedules count it: 1 − the busiest rank's forwards and backwards ÷ the
    longest span of a rank, from its first forward to its last backward; (cost − m (T_F + T_B + T_W)) ÷ cost of Qi et
    al., arXiv 2401.10241, section 5.3.

    `model_flops`: of one step over all ranks; `peak_flops`: FLOP/s of all devices together. `mfu` is
    model_flops ÷ (step_s × peak_flops); Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B.
    """
    ranks = _by_rank(timeline)
    weights = _stands_for(layout, ranks)
    makespan_s = _makespan_s(ranks.values())
    wall_s = makespan_s * sum(weights.values())
    compute_s = sum(weights[rank] * one.computing.total_s for rank, one in ranks.items())
    active_s = sum(weights[rank] * one.computing.covered_s(one.moving) for rank, one in ranks.items())
    metrics = {
        "step_s": makespan_s / steps,
        "bubble": 1 - compute_s / wall_s if wall_s > 0 else 0.0,
        "span_bubble": _span_bubble(ranks.values()),
        "comm_bytes": sum(weights[rank] * one.sent_bytes for rank, one in ranks.items()),
        "compute_s": compute_s,
        "transfer_s": max(0.0, active_s - compute_s),
        "wait_s": max(0.0, wall_s - active_s),
    }
    if model_flops is not None and peak_flops is not None:
        metrics["mfu"] = model_flops * steps / (makespan_s * peak_flops) if makespan_s > 0 else 0.0
    if peak_bytes is not None:
        metrics["peak_bytes"] = float(peak_bytes)
    return metrics


def _by_rank(timeline: Timeline) -> Mapping[int, _OfRank]:
    ranks: dict[int, _OfRank] = defaultdict(_OfRank)
    for _, action, rank, start_s, end_s, payload_bytes, parts in timeline.spans:
        one = ranks[rank]
        one.sent_bytes += payload_bytes
        letters = action[2]._value_  # an enum's hash is slow Python
        if letters in _PASSES:
            one.passes.add(start_s, end_s)
        if parts:
            for what, begin_s, finish_s in parts:
                if what != WAIT:
                    (one.computing if what == COMPUTE else one.moving).add(begin_s, finish_s)
        else:
            (one.computing if letters in _COMPUTING else one.moving).add(start_s, end_s)
    return ranks


def _stands_for(layout: Layout, seen: Iterable[int]) -> dict[int, float]:
    """How many ranks each rank that has spans stands for: 1, or all of its position where it is the only one."""
    members = {rank: stage.ranks for stage in layout.stages for rank in stage.ranks}
    shown = Counter(members[rank] for rank in seen)
    return {rank: len(members[rank]) / shown[members[rank]] for rank in seen}


def _makespan_s(ranks: Iterable[_OfRank]) -> float:
    """From the first begin of what is not a wait to the last end."""
    everything = [each for one in ranks for each in (one.computing, one.moving) if each.starts_s]
    first_s = min((min(each.starts_s) for each in everything), default=0.0)
    return max((max(each.ends_s) for each in everything), default=0.0) - first_s


def _span_bubble(ranks: Iterable[_OfRank]) -> float:
    passes = [one.passes for one in ranks]
    longest_s = max((each.extent_s for each in passes), default=0.0)
    return 1 - max(each.total_s for each in passes) / longest_s if longest_s > 0 else 0.0


_PASSES = frozenset(kind.value for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT))
_COMPUTING = frozenset(kind.value for kind in Kind if kind.lane is Lane.COMPUTE)
