"""A layer as a list of operations: what one rank multiplies, attends and moves, forward and backward.

The list is what a roofline needs: of each operation its FLOP, the bytes that it moves at least (each operand read once,
each result written once; Williams et al., "Roofline" (2009)), and the shape that decides how well a device does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from plait.costs.shares import Share
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts

OperationKind = Literal["matmul", "attention", "memory"]


class Operation(NamedTuple):
    """`times` products of [rows, inner] by [inner, columns], or attention, or something that only moves bytes.

    Attention has the query tokens as rows, the mean number of keys as columns, a head's dimensions as inner, and heads
    as times. `flops`, `moved_bytes` and `backward_bytes` (what the gradient of its input moves) are of all `times`.
    `weights`: one of the operands is a weight. `scores_flops`: the part of attention that a fused backward computes
    once more.
    """

    name: str
    kind: OperationKind
    rows: float
    columns: float
    inner: float
    times: float
    flops: float
    moved_bytes: float
    backward_bytes: float
    weights: bool = False
    scores_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank computes of a layer for one micro-batch.

    `tokens`: positions computed (with context split: of this rank). `pairs`: query-key pairs over all of them.
    `share`: what the rank holds of the layer. `ep`: ranks that the experts are dealt to; each of them brings as many
    tokens. `split`: ranks that norms and residuals are divided over (tp with sequence split, else 1). `fused`: scores
    are never stored. `absorbed`: latent attention works on the latent itself, as decoding does. `item_bytes` of an
    activation, `weight_bytes` of a weight.
    """

    tokens: float
    pairs: float
    share: Share
    ep: int = 1
    split: int = 1
    fused: bool = True
    dropout: bool = False
    absorbed: bool = False
    item_bytes: float = 2.0
    weight_bytes: float = 2.0


def layer_operations(spec: ModelSpec, layer: int, work: Work) -> tuple[Operation, ...]:
    """The forward of one layer."""
    attention = _attention(spec, work) if spec.latent is None else _latent_attention(spec, work)
    return (
        _norm("attn_norm", spec, work),
        *attention,
        _residual("attn_residual", spec, work),
        _norm("mlp_norm", spec, work),
        *(_experts(spec, work) if has_experts(spec, layer) else _mlp(spec, work, "", spec.intermediate)),
        _residual("mlp_residual", spec, work),
    )


def head_operations(spec: ModelSpec, work: Work) -> tuple[Operation, ...]:
    """Final norm, LM head and loss for the work's tokens; logits are float32 and divided over the vocabulary."""
    vocab = work.share.of(spec.vocab)
    return (
        _norm("final_norm", spec, work),
        _matmul("head", work, work.tokens, vocab, spec.hidden),
        _moved("loss", 3 * 4 * work.tokens * vocab),  # written, read for the maximum and the sum, written as gradient
    )


def embedding_operations(spec: ModelSpec, work: Work) -> tuple[Operation, ...]:
    """A row of the table read and written for every token; positions too where they are learned."""
    rows = 3 if spec.learned_positions else 2
    return (_moved("embedding", rows * work.tokens * spec.hidden * work.item_bytes),)


def backward_input(operation: Operation) -> tuple[Operation, ...]:
    """What the gradient of an operation's input takes: [rows, columns] by [columns, inner] for a matrix product."""
    back = operation._replace(
        name=f"{operation.name}_input",
        flops=operation.flops,
        moved_bytes=operation.backward_bytes,
        weights=False,
        scores_flops=0.0,
    )
    if operation.kind == "matmul":
        return (back._replace(columns=operation.inner, inner=operation.columns),)
    if operation.kind == "attention":
        return (back._replace(flops=2 * operation.flops + operation.scores_flops),)
    return (back,)


def backward_weight(operation: Operation) -> tuple[Operation, ...]:
    """What the gradient of an operation's weight takes: [columns, rows] by [rows, inner]; nothing without weights."""
    if not operation.weights:
        return ()
    turned = operation._replace(rows=operation.columns, columns=operation.inner, inner=operation.rows, weights=False)
    return (turned._replace(name=f"{operation.name}_weight"),)


def _attention(spec: ModelSpec, work: Work) -> tuple[Operation, ...]:
    queries, keys = work.share.heads * spec.head_dim, work.share.kv_heads * spec.head_dim
    projected = queries + 2 * keys
    rotated = work.tokens * (queries + keys) * work.item_bytes
    between = [_moved("qk_norm", 2 * rotated, 3 * rotated)] if spec.qk_norm else []
    if spec.rope is not None:
        between.append(_moved("rope", 2 * rotated, 2 * rotated))
    return (
        _matmul("qkv", work, work.tokens, projected, spec.hidden),
        *between,
        _attend(work, spec.head_dim, spec.head_dim, work.tokens * queries, work.share.kv_heads * spec.head_dim),
        _matmul("o", work, work.tokens, spec.hidden, queries),
    )


def _latent_attention(spec: ModelSpec, work: Work) -> tuple[Operation, ...]:
    """Queries, keys and values by way of their latents, which every rank of a tensor group computes whole.

    Absorbed, a head's query is brought into the latent's space and its result back out of it by the same weights
    (DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.2): as many products, but scores over kv_rank + rope_dim dimensions.
    """
    latent, heads, tokens = spec.latent, work.share.heads, work.tokens
    assert latent is not None
    query = latent.nope_dim + latent.rope_dim
    rank = spec.hidden if latent.query_rank is None else latent.query_rank
    down = [] if latent.query_rank is None else [_matmul("q_down", work, tokens, rank, spec.hidden)]
    stored = latent.kv_rank + latent.rope_dim
    up = heads * (latent.nope_dim + latent.value_dim)
    if work.absorbed:
        attend = _attend(work, stored, latent.kv_rank, tokens * heads * latent.kv_rank, stored / 2)
    else:
        attend = _attend(work, query, latent.value_dim, tokens * heads * latent.value_dim, heads * query)
    moved = tokens * (rank + stored) * work.item_bytes
    return (
        *down,
        _matmul("kv_down", work, tokens, stored, spec.hidden),
        _moved("latent_norm", 2 * moved, 3 * moved),
        _matmul("q_up" if down else "q", work, tokens, heads * query, rank),
        _matmul("kv_up", work, tokens, up, latent.kv_rank),
        attend,
        _matmul("o", work, tokens, spec.hidden, heads * latent.value_dim),
    )


def _attend(work: Work, query_dim: int, value_dim: int, result: float, keys: float) -> Operation:
    """Scores and values. `result`: values of the output; `keys`: width of the keys of one position, as of its values.

    Unfused, each score is written by the first product, read and written by the softmax and read by the second product;
    with dropout it is read and written once more, beside a mask of one byte.
    """
    heads, item = work.share.heads, work.item_bytes
    scores = 2.0 * heads * work.pairs * query_dim
    values = 2.0 * heads * work.pairs * value_dim
    mean_keys = work.pairs / work.tokens if work.tokens else 0.0
    moved = (2 * result + 2 * keys * work.tokens) * item
    if not work.fused:
        moved += heads * work.pairs * ((6 * item + 1) if work.dropout else 4 * item)
    return Operation(
        name="attention",
        kind="attention",
        rows=work.tokens,
        columns=mean_keys,
        inner=(query_dim + value_dim) / 2,
        times=heads,
        flops=scores + values,
        moved_bytes=moved,
        backward_bytes=2 * moved,
        scores_flops=scores if work.fused else 0.0,
    )


def _mlp(spec: ModelSpec, work: Work, prefix: str, size: int) -> tuple[Operation, ...]:
    inner = work.share.of(size)
    up = 2 * inner if spec.mlp == "gated" else inner
    return (
        _matmul(f"{prefix}up", work, work.tokens, up, spec.hidden),
        _activation(f"{prefix}activation", work, work.tokens, up, inner),
        _matmul(f"{prefix}down", work, work.tokens, spec.hidden, inner),
    )


def _experts(spec: ModelSpec, work: Work) -> tuple[Operation, ...]:
    """Router, the rank's experts on the tokens that come to it, shared experts.

    Routing is taken as even: as many tokens come as go, and every expert has as many.
    """
    experts = spec.experts
    assert experts is not None
    inner = work.share.of(experts.intermediate)
    up = 2 * inner if spec.mlp == "gated" else inner
    routed = work.tokens * experts.per_token
    held = experts.count / work.ep
    each = routed / held
    moved = 2 * routed * spec.hidden * work.item_bytes
    shared = _mlp(spec, work, "shared_", experts.shared * experts.shared_intermediate) if experts.shared else ()
    return (
        _matmul("router", work, work.tokens, experts.count, spec.hidden),
        _moved("dispatch", moved),
        _matmul("experts_up", work, each, up, spec.hidden, held),
        _activation("experts_activation", work, routed, up, inner),
        _matmul("experts_down", work, each, spec.hidden, inner, held),
        _moved("combine", moved),
        *shared,
    )


def _matmul(name: str, work: Work, rows: float, columns: float, inner: float, times: float = 1) -> Operation:
    values = rows * (columns + inner) * work.item_bytes
    moved = times * (columns * inner * work.weight_bytes + values)
    flops = 2.0 * times * rows * columns * inner
    return Operation(name, "matmul", rows, columns, inner, times, flops, moved, moved, weights=True)


def _moved(name: str, moved_bytes: float, backward_bytes: float | None = None) -> Operation:
    back = moved_bytes if backward_bytes is None else backward_bytes
    return Operation(name, "memory", 0, 0, 0, 1, 0.0, moved_bytes, back)


def _norm(name: str, spec: ModelSpec, work: Work) -> Operation:
    """Reads and writes [tokens, hidden]; its backward reads input and gradient and writes one."""
    moved = work.tokens / work.split * spec.hidden * work.item_bytes
    return _moved(name, 2 * moved, 3 * moved)


def _residual(name: str, spec: ModelSpec, work: Work) -> Operation:
    """Adds two [tokens, hidden], in the backward two gradients; dropout's mask is one byte a value."""
    values = work.tokens / work.split * spec.hidden
    moved = values * (3 * work.item_bytes + (1 if work.dropout else 0))
    return _moved(name, moved)


def _activation(name: str, work: Work, rows: float, up: float, inner: float) -> Operation:
    item = rows * work.item_bytes
    return _moved(name, item * (up + inner), item * (2 * up + inner))
