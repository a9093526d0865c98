"""Bytes that lie on each rank while a model answers: of every rank of a tensor group its own share."""

from __future__ import annotations

from dataclasses import dataclass

from plait.costs.memory import group_weights_bytes, position_bytes, share_workspace_bytes
from plait.costs.shares import Share, rank_shares
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch
from plait.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one rank holds of a stage. `position_bytes`: of a position of one slot in the KV cache.

    `reserved`: the whole cache is taken at the start, as on devices other than a CPU, where pages are committed as they
    are written.
    """

    spec: ModelSpec
    stage: Stage
    share: Share
    weights_bytes: int
    position_bytes: int

    @property
    def reserved(self) -> bool:
        """Is the cache there from the start?"""
        return self.stage.device != "cpu"

    def working_bytes(self, micro_batch: MicroBatch) -> int:
        """What is there beside weights and cache while a micro-batch is computed (`memory.workspace_bytes`)."""
        reach = max((row.start + row.length for row in micro_batch.rows), default=0)
        return share_workspace_bytes(self.stage, self.spec, self.share, micro_batch.tokens, micro_batch.sampled, reach)


def stage_memories(layout: Layout, spec: ModelSpec, stage: int) -> tuple[StageMemory, ...]:
    """Of the ranks of a stage's tensor group, in their order; every replica's are the same. Errors: PlanError."""
    where, tp, ep = layout.stages[stage], layout.tp, layout.axes.get("ep", 1)
    shares = rank_shares(spec, tp, where.shares, where.weights)
    weights = group_weights_bytes(where, spec, tp, ep)
    return tuple(
        StageMemory(spec, where, share, size, position_bytes(where, spec, share))
        for share, size in zip(shares, weights, strict=True)
    )
