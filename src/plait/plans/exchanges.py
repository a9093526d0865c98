"""What the ranks of a tensor group exchange inside one forward, and the bytes that each of them puts on its links.

Exchanges are not listed in a round: they follow from the shard table and the micro-batch. nn calls them in this order,
comm counts what it writes, costs and simulator read the same rule here, so that measured and predicted bytes can differ
only where one of them is wrong.

Without `sequence` every rank has all activations [tokens, hidden] between the blocks, and sums stand after attention
and MLP (Shoeybi et al., "Megatron-LM" (2019), section 3). With it each has its rows (`even_rows`), which are gathered
before a block and summed and scattered behind it (Korthikanti et al., "Reducing Activation Recomputation" (2022),
section 4.2.2). From the last layer's attention on, both are the same: only sampled rows are left, on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec
from plait.spec.shards import even_rows

AT_ONCE_BYTES = 1 << 14
"""Up to here every rank of a group sends all to all others and adds everything itself; so do two ranks at any size."""

BLOCK_BYTES = 1 << 19
"""A rank's part of a block of a larger sum: blocks go round one after the other, so that each is still in the cache."""

CANDIDATE_BYTES = 16
"""A sampled candidate: score and token id, two float64."""


class Op(Enum):
    """The collectives that stand inside an action."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"


class Collective(NamedTuple):
    """An exchange of `rows` rows of `row_items` items of `item_bytes`; of a gather `rows` are those of all ranks.

    `even`: rows are divided by `even_rows`; otherwise every rank brings as many.
    """

    op: Op
    rows: int
    row_items: int
    item_bytes: int
    even: bool = True


class Sharing(NamedTuple):
    """How a tensor group shares activations: over `ranks`, `sequence` split or not, in items of `item_bytes`."""

    ranks: int
    sequence: bool
    item_bytes: int


def forward_exchanges(spec: ModelSpec, layout: Layout, stage: int, micro_batch: MicroBatch) -> Iterator[Collective]:
    """The exchanges of a stage's forward in order, with sampling where every row is greedy or draws from all tokens.

    Top-k and top-p exchange more candidates, as their values ask for.
    """
    where, tokens, sampled = layout.stages[stage], micro_batch.tokens, micro_batch.sampled
    if layout.tp == 1:
        return
    sharing = Sharing(layout.tp, layout.sequence, DTYPE_BYTES[where.dtype])
    first, end = where.layers
    yield from entry_exchanges(spec, sharing, tokens, is_first=first == 0)
    for layer in range(first, end):
        yield from layer_exchanges(spec, sharing, layer, tokens, sampled)


def entry_exchanges(spec: ModelSpec, sharing: Sharing, tokens: int, *, is_first: bool) -> Iterator[Collective]:
    """What stands before a stage's layers."""
    if is_first:
        yield _sum(spec, sharing, tokens)  # of the embedding's parts
    elif not sharing.sequence:
        yield Collective(Op.ALL_GATHER, tokens, spec.hidden, sharing.item_bytes)  # of what came from the stage before


def layer_exchanges(spec: ModelSpec, sharing: Sharing, layer: int, tokens: int, sampled: int) -> Iterator[Collective]:
    """What a layer exchanges; the last one with the head and sampling behind it."""
    item = sharing.item_bytes
    if sharing.sequence:
        yield Collective(Op.ALL_GATHER, tokens, spec.hidden, item)
    if spec.qk_norm == "full":  # the squares of all queries, and of all keys
        yield Collective(Op.ALL_REDUCE, tokens, 2, max(4, item))
    if layer == spec.layers - 1:
        if sampled:
            yield Collective(Op.ALL_REDUCE, sampled, spec.hidden, item)
            yield Collective(Op.ALL_REDUCE, sampled, spec.hidden, item)
            yield Collective(Op.ALL_GATHER, sampled * sharing.ranks, CANDIDATE_BYTES // 8, 8, even=False)
        return
    yield _sum(spec, sharing, tokens)
    if sharing.sequence:
        yield Collective(Op.ALL_GATHER, tokens, spec.hidden, item)
    yield _sum(spec, sharing, tokens)


def _sum(spec: ModelSpec, sharing: Sharing, tokens: int) -> Collective:
    op = Op.REDUCE_SCATTER if sharing.sequence else Op.ALL_REDUCE
    return Collective(op, tokens, spec.hidden, sharing.item_bytes)


def sent_bytes(one: Collective, ranks: int) -> tuple[int, ...]:
    """Payload that each rank of a group puts on its links for an exchange."""
    if one.op is Op.ALL_REDUCE:
        return all_reduce_bytes(one.rows * one.row_items, one.item_bytes, ranks)
    row_bytes = one.row_items * one.item_bytes
    rows = even_rows(one.rows, ranks) if one.even else (one.rows // ranks,) * ranks
    if one.op is Op.ALL_GATHER:
        return tuple((ranks - 1) * mine * row_bytes for mine in rows)
    return tuple((one.rows - mine) * row_bytes for mine in rows)


def all_reduce_bytes(items: int, item_bytes: int, ranks: int) -> tuple[int, ...]:
    """Payload that each rank sends in a sum of `items`.

    At once: all to all others. Otherwise block by block: each rank is sent its piece by the others, adds it and sends
    it to them: the block without its own piece, and its own piece to each other.
    """
    size = items * item_bytes
    if size <= AT_ONCE_BYTES or ranks <= 2:
        return ((ranks - 1) * size,) * ranks
    block = BLOCK_BYTES // item_bytes * ranks
    sent = [0] * ranks
    for first in range(0, items, block):
        count = min(block, items - first)
        for index in range(ranks):
            piece = count * (index + 1) // ranks - count * index // ranks
            sent[index] += (count + (ranks - 2) * piece) * item_bytes
    return tuple(sent)


def forward_bytes(spec: ModelSpec, layout: Layout, stage: int, micro_batch: MicroBatch) -> tuple[int, ...]:
    """Payload that each rank of a stage's tensor group sends inside one forward."""
    total = [0] * layout.tp
    for one in forward_exchanges(spec, layout, stage, micro_batch):
        for index, size in enumerate(sent_bytes(one, layout.tp)):
            total[index] += size
    return tuple(total)
