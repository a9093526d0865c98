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
    tp: int = 1,
    shares: tuple[int, ...] = (),
    sequence: bool = False,
) -> Plan:
    """A plan whose stages hold so many layers each, on `tp` ranks each."""
    dtypes = (dtypes,) * len(counts) if isinstance(dtypes, str) else dtypes
    ends = [0, *accumulate(counts)]
    stages = tuple(
        Stage(cut, tuple(range(tp * at, tp * at + tp)), dtype, dtype, shares=shares)
        for at, (cut, dtype) in enumerate(zip(pairwise(ends), dtypes, strict=True))
    )
    axes = {"pp": len(counts)} if tp == 1 else {"pp": len(counts), "tp": tp}
    layout = Layout(axes, stages, 2 * micro_batches + 2, sequence=sequence)
    return Plan("test", layout, schedule, micro_batches, chunk, context, slots)


def tokens_of(plan: Plan, index: WeightsIndex, requests: list[Request]) -> list[list[int]]:
    """The answers' tokens, ranks as threads."""
    return [one.tokens for one in answer(plan, index, requests, ThreadRanks).answers]
