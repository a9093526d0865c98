"""What the ranks of a tensor group take to exchange on this host: measured once, and kept."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from plait.costs.exchange_times import ExchangeTimes
from plait.prober.emulated import own_link
from plait.prober.host import cpu_model, usable_cores
from plait.prober.kept import kept
from plait.spec.emulation import EmulatedLinks

if TYPE_CHECKING:
    from plait.comm.mesh import Mesh

_FORMAT = 3
"""Counts up when what is measured changes: older files are measured again."""

ROWS = (1, 4, 16, 64, 512)
"""Of how many rows exchanges are measured."""


def measure_exchanges(
    threads: int, tp: int, dtype: str, *, all_threads: int | None = None, fresh: bool = False
) -> ExchangeTimes:
    """Seconds of collectives among `tp` processes of this host, of `threads` threads each, between computations.

    `all_threads` compute in the whole plan. Kept in the user's cache directory; `fresh` measures again.
    """
    cores = usable_cores()
    all_threads = max(tp * threads, all_threads or 0)
    crowded = all_threads > cores
    host = f"{platform.node()} {cpu_model()} {cores} {threads} {tp} {dtype} {crowded} {_FORMAT}"
    return kept("exchanges", host, ExchangeTimes, lambda: _measure(threads, tp, dtype, all_threads), fresh=fresh)


def measure_framed_exchanges(
    threads: int, tp: int, dtype: str, links: EmulatedLinks, *, all_threads: int, fresh: bool = False
) -> ExchangeTimes:
    """As `measure_exchanges`, of processes that talk as if over such links."""
    wire = links.wire
    crowded = max(tp * threads, all_threads) > usable_cores()
    host = (
        f"{platform.node()} {cpu_model()} {usable_cores()} {threads} {tp} {dtype} {crowded} "
        f"{wire.latency_s} {wire.bandwidth} {links.per_host} {_FORMAT}"
    )

    def measure() -> ExchangeTimes:
        from plait.comm.emulated_mesh import EmulatedMesh

        every = max(tp * threads, all_threads)
        mesh = EmulatedMesh.create(2, links.among(tp), threads=every, own=own_link(every).hand_over)
        return _measure(threads, tp, dtype, all_threads, mesh=mesh)

    return kept("framed-exchanges", host, ExchangeTimes, measure, fresh=fresh)


def _measure(
    threads: int, tp: int, dtype: str, all_threads: int, rows: Sequence[int] = ROWS, mesh: Mesh | None = None
) -> ExchangeTimes:
    from plait.prober.ranks import run_ranks

    said = run_ranks("plait.prober.exchanging", tp, threads, all_threads, [dtype, *map(str, rows)], tp, mesh)
    return msgspec.json.decode(said, type=ExchangeTimes)
