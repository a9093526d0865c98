"""Memory over time while a model answers: weights, a KV cache that fills, and what each forward works in.

1 slot, 3 positions a chunk, then one a token; w weights, c a position's keys and values, x what a forward works in

w + 5c + x                          ┌─┐
w + 4c + x                  ┌─┐     │ │
w + 4c                      │ └─────┘ └── w + 5c
w + 3c + x ┌─────┐          │
w + 3c     │     └──────────┘
w        ──┘
             F0               1F0     2F0
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from plait.costs.generation_memory import StageMemory, stage_memories
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Round
from plait.simulator.memory import MemoryCurve
from plait.spec.model import ModelSpec
from plait.timeline.timeline import Timeline


def generation_memory(
    timeline: Timeline, rounds: Sequence[Round], layout: Layout, spec: ModelSpec, slots: int, context: int
) -> dict[int, MemoryCurve]:
    """The curve of every rank that has spans in the timeline, predicted or measured, of these rounds.

    `slots` requests of at most `context` positions each. On a CPU the cache takes what was ever written of each slot, a
    slot that is used again nothing new; on other devices it is all there from the start. Errors: PlanError.
    """
    work = {one.number: one.work for one in rounds}
    ranks = {rank: _Rank(memory, slots, context) for rank, memory in _memories(timeline, layout, spec).items()}
    for span in timeline.spans:
        action = span.action
        if action.kind is Kind.FORWARD and span.rank in ranks:
            ranks[span.rank].forward(span.start_s, span.end_s, work[action.round][action.micro_batch])
    return {rank: one.curve() for rank, one in sorted(ranks.items())}


def _memories(timeline: Timeline, layout: Layout, spec: ModelSpec) -> Mapping[int, StageMemory]:
    shown = frozenset(timeline.ranks)
    found: dict[int, StageMemory] = {}
    for number, stage in enumerate(layout.stages):
        if shown.isdisjoint(stage.ranks):
            continue
        of_group = stage_memories(layout, spec, number)
        found |= {rank: of_group[place % layout.tp] for place, rank in enumerate(stage.ranks) if rank in shown}
    return found


class _Rank:
    """What lies on one rank, forward by forward."""

    def __init__(self, memory: StageMemory, slots: int, context: int) -> None:
        self._memory = memory
        self._static = memory.weights_bytes
        if memory.reserved:
            self._static += slots * context * memory.position_bytes
        self._written: defaultdict[int, int] = defaultdict(int)
        self._held = self._static
        self._times_s: list[float] = []
        self._used_bytes: list[int] = []

    def forward(self, start_s: float, end_s: float, micro_batch: MicroBatch) -> None:
        if not self._memory.reserved:
            self._write(micro_batch)
        self._times_s += (start_s, end_s)
        self._used_bytes += (self._held + self._memory.working_bytes(micro_batch), self._held)

    def _write(self, micro_batch: MicroBatch) -> None:
        for row in micro_batch.rows:
            end = row.start + row.length
            if end > self._written[row.slot]:
                self._held += (end - self._written[row.slot]) * self._memory.position_bytes
                self._written[row.slot] = end

    def curve(self) -> MemoryCurve:
        return MemoryCurve(self._static, np.array(self._times_s), np.array(self._used_bytes, dtype=np.int64))
