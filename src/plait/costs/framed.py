"""Seconds that the wires between hosts keep a collective over frames: `comm.framed`, whose steps these are.

In each step every rank gives each other rank its part, all at the same time. Ranks of one host share the wire to
another host; a step is over when the last part is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from plait.plans.exchanges import AT_ONCE_BYTES, Collective, Op
from plait.spec.emulation import Emulation
from plait.spec.shards import even_rows

Part = Callable[[int, int], float]
"""Bytes that member i of a group gives member j."""


def framed_s(one: Collective, ranks: Sequence[int], emulation: Emulation) -> float:
    """Seconds on the wires of an exchange of a tensor group; what ranks of one host give each other takes none."""
    row_bytes, size = one.row_items * one.item_bytes, len(ranks)
    rows = even_rows(one.rows, size) if one.even else (one.rows // size,) * size
    whole = one.rows * row_bytes
    if one.op is Op.ALL_GATHER:
        return step_s(ranks, emulation, lambda source, _: rows[source] * row_bytes)
    if one.op is Op.REDUCE_SCATTER:
        return step_s(ranks, emulation, lambda _, target: rows[target] * row_bytes)
    if size == 2 or whole <= AT_ONCE_BYTES:
        return step_s(ranks, emulation, lambda *_: whole)
    return 2 * step_s(ranks, emulation, lambda *_: whole / size)


def step_s(ranks: Sequence[int], emulation: Emulation, part_bytes: Part) -> float:
    """Seconds until the last part is there, of a step that all begin together."""
    hosts = emulation.hosts
    carried: Counter[tuple[int, int]] = Counter()
    for i, source in enumerate(ranks):
        for j, target in enumerate(ranks):
            if emulation.wire(source, target) is not None:
                carried[hosts[source], hosts[target]] += part_bytes(i, j)  # type: ignore[assignment]
    wires = emulation.wires
    return max((wires[pair].latency_s + size / wires[pair].bandwidth for pair, size in carried.items()), default=0.0)


def crosses(ranks: Sequence[int], emulation: Emulation) -> bool:
    """Whether the ranks are on more than one host."""
    return len({emulation.hosts[rank] for rank in ranks}) > 1
