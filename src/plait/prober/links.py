"""Measures the link between two processes of this host, as ranks have it, and keeps the answer."""

from __future__ import annotations

import json
import platform
import sys

import msgspec

from plait.costs.protocol import FREE, LinkCost
from plait.prober.host import cpu_model, usable_cores
from plait.prober.kept import kept

_FORMAT = 3
"""Counts up when what is measured changes: older files are measured again."""

MOST_RANKS = 4
"""Ranks that are measured taking turns, at most."""


def measure_shm_link(
    threads: int = 1, ranks: int = 2, dtype: str = "float32", *, beside: int = 1, fresh: bool = False
) -> LinkCost:
    """Latency and bandwidth between two processes of this host, over shared memory, and the hand-over among `ranks`.

    Each has `threads` threads and computes in `dtype`; in the plan each is one of `beside` that have their turn
    together. Kept in the user's cache directory; `fresh` measures again.
    """
    ranks = min(ranks, MOST_RANKS)
    host = f"{platform.node()} {cpu_model()} {usable_cores()} {threads} {ranks} {dtype} {beside} {_FORMAT}"
    figures = kept(
        "shm-link", host, tuple[float, float, float], lambda: _measure(threads, ranks, dtype, beside), fresh=fresh
    )
    return LinkCost(*figures)


def _measure(threads: int, ranks: int, dtype: str, beside: int) -> tuple[float, float, float]:
    from plait.prober.ranks import run_ranks

    said = run_ranks(__name__, ranks, threads, ranks * threads * beside, [dtype])
    return msgspec.json.decode(said, type=tuple[float, float, float])


def main() -> int:
    """One of the ranks: its arguments are what `this_rank` needs, and its dtype."""
    from plait.comm.measure import measure_link
    from plait.nn.dtypes import TORCH_DTYPES
    from plait.prober.handover import hand_over_s
    from plait.prober.ranks import this_rank

    endpoint = this_rank()
    measured = measure_link(endpoint, 1 - endpoint.rank) if endpoint.rank < 2 else FREE
    wake_s = hand_over_s(endpoint, range(endpoint.size), TORCH_DTYPES[sys.argv[3]]) - measured.latency_s
    sys.stdout.write(json.dumps([measured.latency_s, measured.bandwidth_bytes_per_s, max(0.0, wake_s)]))
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
