"""Measures the link between two processes of this host, as ranks have it, and keeps the answer."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import platformdirs

from plait.costs.protocol import FREE, LinkCost
from plait.errors import RunError
from plait.prober.host import Others, cpu_model, doubtful, rank_environment, usable_cores

_FORMAT = 2
"""Counts up when what is measured changes: older files are measured again."""


class _Kept(msgspec.Struct, frozen=True):
    """The file's content: what was measured, on which host, and beside how much work of others."""

    host: str
    latency_s: float
    bandwidth_bytes_per_s: float
    wake_s: float
    others: float
    measured_at_s: float


MOST_RANKS = 4
"""Ranks that are measured taking turns, at most."""


def measure_shm_link(threads: int = 1, ranks: int = 2, dtype: str = "float32", *, fresh: bool = False) -> LinkCost:
    """Latency and bandwidth between two processes of this host, over shared memory, and the hand-over among `ranks`.

    Each has `threads` threads and computes in `dtype`. Kept in the user's cache directory; `fresh` measures again.
    """
    ranks = min(ranks, MOST_RANKS)
    host = f"{platform.node()} {cpu_model()} {usable_cores()} {threads} {ranks} {dtype} {_FORMAT}"
    path = _path(host)
    known = None if fresh else _read(path)
    if known is None or known.host != host or doubtful(known.others, known.measured_at_s):
        with Others() as others:
            one = _measure(threads, ranks, dtype)
        known = _Kept(host, one.latency_s, one.bandwidth_bytes_per_s, one.wake_s, others.share, time.time())
        _write(known, path)
    return LinkCost(known.latency_s, known.bandwidth_bytes_per_s, known.wake_s)


def _path(host: str) -> Path:
    digest = hashlib.sha256(host.encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("plait")) / "calibrations" / f"shm-link-{digest}.json"


def _read(path: Path) -> _Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(kept: _Kept, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(msgspec.json.encode(kept))
    os.replace(partial, path)


def _measure(threads: int, ranks: int, dtype: str) -> LinkCost:
    from plait.comm.shm import ShmMesh

    mesh = ShmMesh.create(ranks, 2, threads=ranks * threads)
    try:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "plait.prober.links", json.dumps(mesh.description(rank)), str(threads), dtype],
                pass_fds=mesh.descriptors(rank),
                env=rank_environment(threads, ranks * threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
    finally:
        mesh.close_parent()
    said = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode:
            raise RunError(f"measuring the link failed: {errors.decode(errors='replace').strip().splitlines()[-1:]}")
    return LinkCost(*msgspec.json.decode(said[0][0], type=tuple[float, float, float]))


def main() -> int:
    """One of the ranks: its arguments are what `ShmEndpoint.attach` needs, its threads and its dtype."""
    import torch

    from plait.comm.measure import measure_link
    from plait.comm.shm import ShmEndpoint
    from plait.nn.dtypes import TORCH_DTYPES
    from plait.prober.handover import hand_over_s

    torch.set_num_threads(int(sys.argv[2]))
    endpoint = ShmEndpoint.attach(json.loads(sys.argv[1]))
    measured = measure_link(endpoint, 1 - endpoint.rank) if endpoint.rank < 2 else FREE
    wake_s = hand_over_s(endpoint, range(endpoint.size), TORCH_DTYPES[sys.argv[3]]) - measured.latency_s
    sys.stdout.write(json.dumps([measured.latency_s, measured.bandwidth_bytes_per_s, max(0.0, wake_s)]))
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
