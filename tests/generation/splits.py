"""Plans for tests: any cut, any schedule."""

from __future__ import annotations

from itertools import accumulate, pairwise

from plait.generation.answer import Request, answer
from plait.generation.launch import ThreadRanks
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.weights.index import WeightsIndex


def split(
    *counts: int,
    schedule: str = "pipelined",
    micro_batches: int = 1,
    chunk: int = 64,
    slots: int = 4,
    context: int = 512,
    dtypes: str | tuple[str, ...] = "float32",
) -> Plan:
    """A plan whose stages hold so many layers each."""
    dtypes = (dtypes,) * len(counts) if isinstance(dtypes, str) else dtypes
    ends = [0, *accumulate(counts)]
    stages = tuple(
        Stage(cut, (rank,), dtype, dtype) for rank, (cut, dtype) in enumerate(zip(pairwise(ends), dtypes, strict=True))
    )
    layout = Layout({"pp": len(counts)}, stages, 2 * micro_batches + 2)
    return Plan("test", layout, schedule, micro_batches, chunk, context, slots)


def tokens_of(plan: Plan, index: WeightsIndex, requests: list[Request]) -> list[list[int]]:
    """The answers' tokens, ranks as threads."""
    return [one.tokens for one in answer(plan, index, requests, ThreadRanks).answers]
