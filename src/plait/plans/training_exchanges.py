"""What the ranks of a tensor group exchange inside the actions of a training step, and all bytes of a step by axis.

As in generation (`exchanges`), exchanges inside an action are not listed in a round: they follow from the shard table,
the cut and the micro-batch. nn calls them in this order, comm counts what it writes.

Forward and backward are conjugate (Shoeybi et al., "Megatron-LM" (2019), section 3; Korthikanti et al., "Reducing
Activation Recomputation" (2022), section 4.2.2): with `sequence_split` every rank has its rows (`even_rows`) between
the blocks, gathers them before a block and in the backward behind it, and sums and scatters behind a block and in the
backward before it; it keeps its own rows, and gathers them once more for the weight's product. Without it all ranks
have all rows there, and the sums alone are left. Between stages each rank
sends its rows in both ways, which are gathered where all are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from plait.plans.action import Kind
from plait.plans.exchanges import Collective, Op, Sharing, entry_exchanges, sent_bytes
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Row
from plait.plans.rules import DTYPE_BYTES
from plait.plans.split import TrainingSetup
from plait.plans.storage import Part, layer_runs, make_storage
from plait.plans.training import BUCKETS, TrainingPlan
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, Unit, make_shards, shard_tensors, tensor_cut

LOSS_NUMBERS = 3
"""What ranks tell each other of a token's loss: largest logit, sum of exponentials, the target's logit."""

NORM_BYTES = 7 * 8
"""What a rank tells all others in N: squares, loss, and the first trouble that it saw, 7 float64. Checksums of copies,
every so many steps, come beside it."""


def action_exchanges(
    spec: ModelSpec,
    layout: Layout,
    setup: TrainingSetup,
    stage: int,
    kind: Kind,
    micro_batch: MicroBatch,
    part: int | None = None,
    parts: int = 1,
) -> Iterator[Collective]:
    """The exchanges of F, B or I of a stage, in order; all other kinds have none, but for `complete_exchanges`.

    `part` of `parts`: of a backward that is cut, where part 0 has the last layers; None is all of it.
    """
    if layout.tp == 1:
        return
    layers, tokens = layout.stages[stage].layers, micro_batch.tokens
    sharing = _sharing(layout, setup, stage)
    if kind is Kind.FORWARD:
        yield from entry_exchanges(spec, sharing, tokens, is_first=layers[0] == 0)
        for _ in range(*layers):
            yield from _layer_forward(spec, sharing, tokens)
        if layers[1] == spec.layers:
            yield from _gathered(spec, sharing, tokens)
            yield Collective(Op.ALL_GATHER, tokens * layout.tp, LOSS_NUMBERS, _wide(sharing), even=False)
    elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        for one in range(parts) if part is None else (part,):
            yield from _part_backward(spec, sharing, setup, layers, tokens, one, parts)


def complete_exchanges(
    spec: ModelSpec, layout: Layout, setup: TrainingSetup, stage: int, part: int | None = None, parts: int = 1
) -> Iterator[Collective]:
    """What completes gradients of which every rank of a tensor group has a part, inside the stage's last B or W.

    One sum a part: norms of single heads; with `sequence_split` all that is whole on every rank; and KV heads that
    several ranks hold. `part`: of so many `parts`; None is all of them. Nothing is frozen.
    """
    if layout.tp == 1:
        return
    shards = make_shards(spec, layout.tp, layout.stages[stage].shares)
    wide = _wide(_sharing(layout, setup, stage))
    for one in range(parts) if part is None else (part,):
        place = _storage_parts(spec, layout, stage, shards[0], parts)[one]
        items = (place.whole if setup.sequence_split else place.by_head) - place.first
        items += _kv_copies(spec, shards) * _kv_items(spec, layer_runs(*layout.stages[stage].layers, parts)[one])
        if items:
            yield Collective(Op.ALL_REDUCE, items, 1, wide)


def exchanged_bytes(exchanges: Iterator[Collective], ranks: int) -> tuple[int, ...]:
    """Payload that each of so many ranks sends in all of them."""
    total = [0] * ranks
    for one in exchanges:
        for index, size in enumerate(sent_bytes(one, ranks)):
            total[index] += size
    return tuple(total)


def step_bytes(spec: ModelSpec, plan: TrainingPlan, buckets: int = BUCKETS) -> dict[str, int]:
    """Payload that all ranks send in a step as the trainer runs it, by axis: dp, pp and tp.

    dp: gradients over replicas and over the ends of a tied embedding, ZeRO's gathers, and the norm; but what the norm
    tells ranks of the same tensor group is tp's. Nothing is frozen, and nothing checked in the norm.
    """
    layout, ranks = plan.layout, plan.layout.ranks
    found = {"dp": 0, "pp": 0, "tp": ranks * (layout.tp - 1) * NORM_BYTES}
    found["dp"] += ranks * (ranks - layout.tp) * NORM_BYTES + (tied_bytes(spec, layout) if spec.tied else 0)
    for stage, parts in enumerate(plan.parts(buckets)):
        found["dp"] += reduced_bytes(spec, layout, plan.setup, stage) + gathered_bytes(spec, layout, plan.setup, stage)
        found["pp"] += _message_bytes(spec, plan, stage)
        found["tp"] += _tensor_bytes(spec, plan, stage, parts)
    return found


def reduced_bytes(spec: ModelSpec, layout: Layout, setup: TrainingSetup, stage: int) -> int:
    """What all ranks of a stage send in its G: 2 (n - 1) times the gradients for n replicas, with ZeRO half of that.

    Without a tied embedding that has its T.
    """
    where = layout.stages[stage]
    others, wide = len(where.ranks) // layout.tp - 1, max(4, DTYPE_BYTES[where.dtype])
    return others * learned_items(spec, layout, stage) * wide * (1 if setup.zero else 2)


def gathered_bytes(spec: ModelSpec, layout: Layout, setup: TrainingSetup, stage: int) -> int:
    """What all ranks of a stage send in its A, where ZeRO has one: the updated weights of each to all others."""
    if not setup.zero:
        return 0
    where = layout.stages[stage]
    return (len(where.ranks) // layout.tp - 1) * learned_items(spec, layout, stage) * DTYPE_BYTES[where.dtype]


def tied_bytes(spec: ModelSpec, layout: Layout) -> int:
    """What all that hold a part of a tied embedding on the first or the last stage send in T; 0 where they are one."""
    first, last = layout.stages[0], layout.stages[-1]
    if first is last:
        return 0
    holders = len({*first.ranks, *last.ranks}) // layout.tp
    return 2 * (holders - 1) * spec.vocab * spec.hidden * max(4, DTYPE_BYTES[first.dtype])


# --- inside an action ---------------------------------------------------------------------------------------


def _sharing(layout: Layout, setup: TrainingSetup, stage: int) -> Sharing:
    return Sharing(layout.tp, setup.sequence_split, DTYPE_BYTES[layout.stages[stage].dtype])


def _wide(sharing: Sharing) -> int:
    """Bytes of a statistic or a gradient: at least float32."""
    return max(4, sharing.item_bytes)


def _layer_forward(spec: ModelSpec, sharing: Sharing, tokens: int) -> Iterator[Collective]:
    yield from _gathered(spec, sharing, tokens)
    yield from _query_key_norm(spec, sharing, tokens)
    yield _summed(spec, sharing, tokens)
    yield from _gathered(spec, sharing, tokens)
    yield _summed(spec, sharing, tokens)


def _layer_backward(spec: ModelSpec, sharing: Sharing, tokens: int, *, kept_whole: bool) -> Iterator[Collective]:
    for attention in (False, True):
        yield from _gathered(spec, sharing, tokens)
        if attention:
            yield from _query_key_norm(spec, sharing, tokens)
        if not kept_whole:
            yield from _gathered(spec, sharing, tokens)  # inputs, for the product of weights
        yield _summed(spec, sharing, tokens)


def _part_backward(
    spec: ModelSpec,
    sharing: Sharing,
    setup: TrainingSetup,
    layers: tuple[int, int],
    tokens: int,
    part: int,
    parts: int,
) -> Iterator[Collective]:
    if part == 0 and layers[1] < spec.layers and not sharing.sequence:
        yield Collective(Op.ALL_GATHER, tokens, spec.hidden, sharing.item_bytes)  # of what the stage after sent
    elif part == 0 and layers[1] == spec.layers:
        yield from _gathered(spec, sharing, tokens)  # the head's inputs
        yield _summed(spec, sharing, tokens)
    first, end = layer_runs(*layers, parts)[part]
    again = setup.recompute == "full"
    for _ in range(first, end):
        if again:
            yield from _layer_forward(spec, sharing, tokens)
        yield from _layer_backward(spec, sharing, tokens, kept_whole=again)
    if part == parts - 1 and layers[0] == 0:
        yield from _gathered(spec, sharing, tokens)  # each rank learns its rows of the embedding from all tokens


def _gathered(spec: ModelSpec, sharing: Sharing, tokens: int) -> Iterator[Collective]:
    """Before a product that is cut by its outputs, and behind one cut by its inputs."""
    if sharing.sequence:
        yield Collective(Op.ALL_GATHER, tokens, spec.hidden, sharing.item_bytes)


def _summed(spec: ModelSpec, sharing: Sharing, tokens: int) -> Collective:
    op = Op.REDUCE_SCATTER if sharing.sequence else Op.ALL_REDUCE
    return Collective(op, tokens, spec.hidden, sharing.item_bytes)


def _query_key_norm(spec: ModelSpec, sharing: Sharing, tokens: int) -> Iterator[Collective]:
    """One number a token of all queries, one of all keys."""
    if spec.qk_norm == "full":
        yield Collective(Op.ALL_REDUCE, tokens, 2, _wide(sharing))


# --- gradients ----------------------------------------------------------------------------------------------


def _storage_parts(spec: ModelSpec, layout: Layout, stage: int, shard: Shard, parts: int) -> tuple[Part, ...]:
    layers = layout.stages[stage].layers
    return make_storage(spec, layers, shard_tensors(spec, *layers, shard), shard, parts, frozenset()).parts


def learned_items(spec: ModelSpec, layout: Layout, stage: int) -> int:
    """Items of the flat storages of all ranks of a tensor group, but for a tied embedding; cuts into parts add none."""
    shards = make_shards(spec, layout.tp, layout.stages[stage].shares)
    return sum(_storage_parts(spec, layout, stage, shard, 1)[-1].end for shard in shards)


def _kv_copies(spec: ModelSpec, shards: tuple[Shard, ...]) -> int:
    """KV heads that several ranks hold."""
    held = Counter(head for shard in shards for head in range(*shard.kv_heads))
    return sum(ranks > 1 for ranks in held.values())


def _kv_items(spec: ModelSpec, layers: tuple[int, int]) -> int:
    """Items of one KV head in what is cut by KV heads, over all of these layers."""
    shapes = shard_tensors(spec, *layers, make_shards(spec, 1)[0])
    found = 0
    for name, piece in shapes.items():
        cut = tensor_cut(spec, name)
        if cut is not None and cut.unit is Unit.KV_HEAD:
            found += _items(piece.shape) // spec.kv_heads
    return found


def _items(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


# --- a whole step -------------------------------------------------------------------------------------------


def _tensor_bytes(spec: ModelSpec, plan: TrainingPlan, stage: int, parts: int) -> int:
    """What all replicas of a stage exchange inside its actions; it does not matter which of them are cut."""
    layout, setup, tp = plan.layout, plan.setup, plan.layout.tp
    work = MicroBatch(tuple(Row(each, each, 0, plan.sequence, False) for each in range(setup.micro_batch)))
    each = sum(
        sum(exchanged_bytes(action_exchanges(spec, layout, setup, stage, kind, work), tp))
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    once = sum(exchanged_bytes(complete_exchanges(spec, layout, setup, stage, None, parts), tp))
    return setup.split.dp * (setup.micro_batches * each + once)


def _message_bytes(spec: ModelSpec, plan: TrainingPlan, stage: int) -> int:
    """Activations to the stage after, and their gradients back, where it stands on another position."""
    stages, setup = plan.layout.stages, plan.setup
    if stage == len(stages) - 1 or stages[stage].ranks == stages[stage + 1].ranks:
        return 0
    tokens = setup.micro_batch * plan.sequence
    return 2 * setup.split.dp * setup.micro_batches * tokens * spec.hidden * DTYPE_BYTES[stages[stage].dtype]
