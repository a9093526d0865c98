"""Small passes that lower an order of training to all that a rank does. Each can be printed and checked alone.

Where a message is received. Sends and receives of a position share a lane, and a receive in front of a send keeps it
waiting until its message is there; so a receive comes as late as it can: right before what needs it. But it comes
before the send of the computation just before that, if its message is there by then: nobody needs to wait for a send
to end. And it comes no later than the sender makes the k-th message after it for the same link, which would not fit.

That is free of deadlock for every k from 1 on. Take the times of the order with F = I = W and hand-overs that take a
little. At each time T come first the receives, then the sends of what ends at T, then what begins at T. Each of these
needs only what stands before it in that list: a message that is received was made, and sent, at an earlier time; a send
fits, since the k-th message before it was received at T at the latest. So all can be done, one after another, and lanes
that keep this order can wait for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plait.plans.action import Kind
from plait.schedules.clock import even_run, tick
from plait.schedules.lowered import WHOLE, Lowered, insert, lower
from plait.schedules.order import KINDS, B, F, I, Order, W

Places = NDArray[np.intp]
Floats = NDArray[np.float64]

_SF, _RF, _SB, _RB, _G, _T, _N, _O, _A = (
    KINDS.index(kind)
    for kind in (
        Kind.SEND_FORWARD,
        Kind.RECEIVE_FORWARD,
        Kind.SEND_BACKWARD,
        Kind.RECEIVE_BACKWARD,
        Kind.REDUCE_GRADIENTS,
        Kind.REDUCE_TIED,
        Kind.NORM,
        Kind.OPTIMIZER,
        Kind.GATHER_PARAMETERS,
    )
)
_RECEIVES, _SENDS, _COMPUTES = range(3)
"""What comes first at one time."""

_COMPUTE, _HAND_OVER = 16, 1
"""Times by which receives are placed: whole numbers, so that what is at the same time is equal.

Hand-overs take a little, or a receive would come after the send of a computation that ends just as its message is made;
but behind a stage that was itself held up by the same hand-over the message is there by then.
"""


def add_messages(order: Order, capacity: int) -> Lowered:
    """Sends and receives between stages on different positions, for links that hold `capacity` messages."""
    ticks = tick([even_run(order, _COMPUTE, _COMPUTE, _COMPUTE, _HAND_OVER)])[0]
    begin_s, end_s = ticks.begin_s, ticks.begin_s + ticks.seconds
    whole = lower(order)
    made, used, to = _messages(whole)
    received_s = np.minimum(begin_s[used], _full_s(whole.position[made], to, end_s[made], capacity))
    forward = whole.kinds[made] == F
    rows = np.concatenate([np.arange(len(whole)), made, used])
    both = whole.at(rows)
    kinds = np.concatenate([whole.kinds, np.where(forward, _SF, _SB), np.where(forward, _RF, _RB)])
    when = np.concatenate([begin_s, end_s[made], received_s])
    phase = np.repeat([_COMPUTES, _SENDS, _RECEIVES], [len(whole), len(made), len(made)])
    first = np.concatenate([begin_s, end_s[made], end_s[made]])
    sort = np.lexsort((first, phase, when, both.position))
    placed = Lowered(order, both.position, kinds.astype(np.int32), both.stages, both.micro_batches, both.parts)
    return placed.at(sort)


def _messages(whole: Lowered) -> tuple[Places, Places, NDArray[np.int32]]:
    """Of each message: the row that makes it, the row that needs it, the position of that."""
    order = whole.order
    shape = (2, order.stages, order.micro_batches)
    back = (whole.kinds == B) | (whole.kinds == I)
    at = np.zeros(shape, np.intp)
    rows = np.flatnonzero((whole.kinds == F) | back)
    at[back[rows].astype(int), whole.stages[rows], whole.micro_batches[rows]] = np.arange(len(whole))[rows]
    made = np.concatenate([at[0, :-1].ravel(), at[1, 1:].ravel()])
    used = np.concatenate([at[0, 1:].ravel(), at[1, :-1].ravel()])
    crossing = whole.position[made] != whole.position[used]
    return made[crossing], used[crossing], whole.position[used[crossing]]


def _full_s(source: NDArray[np.int32], to: NDArray[np.int32], made_s: Floats, capacity: int) -> Floats:
    """When the `capacity`-th message after this one is made for the same link; infinity where there is none."""
    sort = np.lexsort((made_s, to, source))
    full_s = np.full(len(sort), np.inf)
    if len(sort) > capacity:
        now, later = sort[:-capacity], sort[capacity:]
        same = (source[now] == source[later]) & (to[now] == to[later])
        full_s[now[same]] = made_s[later[same]]
    return full_s


def cut_last_backwards(lowered: Lowered, parts: int | Sequence[int]) -> Lowered:
    """The last B or W of each stage in parts, so that the gradients of one are reduced during the next.

    `parts`: of every stage, or one number a stage; 1 leaves a stage's whole.
    """
    last = _last_backwards(lowered)
    of_stage = np.broadcast_to(np.asarray(parts, np.intp), lowered.order.stages)
    counts = np.ones(len(lowered), np.intp)
    counts[last] = of_stage[lowered.stages[last]]
    rows = np.repeat(np.arange(len(lowered)), counts)
    part = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return lowered.at(rows, np.where(counts[rows] > 1, part, WHOLE).astype(np.int32))


def add_reductions(lowered: Lowered) -> Lowered:
    """Gradients are reduced over the replicas: after each stage's last B or W, in as many parts as that has."""
    last = np.zeros(lowered.order.stages, np.intp)
    last[lowered.stages[_last_backwards(lowered)]] = _last_backwards(lowered)
    of_last = last[lowered.stages]
    same = (lowered.kinds == lowered.kinds[of_last]) & (lowered.micro_batches == lowered.micro_batches[of_last])
    after = np.flatnonzero(same)
    return insert(lowered, after, _G, lowered.parts[after])


def add_tied(lowered: Lowered) -> Lowered:
    """The gradient of an embedding that the first and the last stage share is summed over both, and over the replicas.

    It stands behind all that its position computes and reduces: the exchange waits for the other stage, and would keep
    waiting what stands behind it in the lane. Where one position holds both stages it has a T of each, in the order in
    which their last backwards end; the second is the exchange. One stage alone shares nothing.
    """
    final = lowered.order.stages - 1
    last = _last_backwards(lowered)
    ends = last[np.isin(lowered.stages[last], (0, final))]
    return _at_end(lowered, _T, ends) if final else lowered


def add_norm(lowered: Lowered) -> Lowered:
    """The gradient norm of the whole mesh, which every position's update waits for: one a position, of its first stage.

    It stands behind all that the position computes; add it before the optimizer.
    """
    rows = np.arange(len(lowered))
    first = [rows[lowered.stages == held[0]][0] for held in lowered.order.placement]
    return _at_end(lowered, _N, np.array(first, np.intp))


def add_optimizer(lowered: Lowered) -> Lowered:
    """Weights are updated when all is computed: stages in the order in which their last backwards ended."""
    return _at_end(lowered, _O, _last_backwards(lowered))


def add_gathers(lowered: Lowered) -> Lowered:
    """Updated weights that lie in shards over the replicas (ZeRO) are gathered: after each stage's O."""
    after = np.flatnonzero(lowered.kinds == _O)
    return insert(lowered, after, _A, np.full(len(after), WHOLE, np.int32))


def _at_end(lowered: Lowered, kind: int, rows: Places) -> Lowered:
    """An action of `kind`, of a whole stage, for the stage of each of `rows`, behind all that its position does."""
    ends = lowered.bounds[1:] - 1
    of_rows = lowered.at(rows)
    codes, zeros = np.full(len(rows), kind, np.int32), np.zeros(len(rows), np.int32)
    added = Lowered(lowered.order, of_rows.position, codes, of_rows.stages, zeros, zeros + WHOLE)
    return _after(lowered, ends[of_rows.position], added)


def _after(lowered: Lowered, after: Places, added: Lowered) -> Lowered:
    """`added`, each of its rows after the row of `lowered` named."""
    sort = np.argsort(np.concatenate([np.arange(len(lowered)), after]), kind="stable")
    columns = ("position", "kinds", "stages", "micro_batches", "parts")
    joined = [np.concatenate([getattr(lowered, name), getattr(added, name)])[sort] for name in columns]
    return Lowered(lowered.order, *joined)


def _last_backwards(lowered: Lowered) -> Places:
    """The row of each stage's last B or W (of its last part), in the order of rows."""
    rows = np.flatnonzero((lowered.kinds == B) | (lowered.kinds == W))
    last = np.zeros(lowered.order.stages, np.intp)
    np.maximum.at(last, lowered.stages[rows], rows)
    return np.sort(last)
