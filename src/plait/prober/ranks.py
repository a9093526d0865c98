"""Measuring processes that talk to each other as the ranks of a plan on this host do: over shared memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import torch

from plait.comm.attach import attach
from plait.comm.contract import Endpoint
from plait.comm.mesh import Mesh
from plait.comm.shm import ShmMesh
from plait.errors import RunError
from plait.prober.host import rank_environment


def run_ranks(
    module: str,
    ranks: int,
    threads: int,
    all_threads: int,
    arguments: Sequence[str],
    tp: int = 1,
    mesh: Mesh | None = None,
) -> bytes:
    """What the first of `ranks` processes of `module` prints, each computing with `threads` threads.

    `all_threads` compute in all, also in ranks that are not measured; `tp` of them are a tensor group. `mesh`: between
    them, shared memory where it is not given. Errors: RunError with what a process said.
    """
    mesh = mesh or ShmMesh.create(ranks, 2, threads=all_threads)
    try:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(mesh.description(rank)), str(threads), *arguments],
                pass_fds=mesh.descriptors(rank),
                env=rank_environment(threads, all_threads, rank % tp, tp),
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
    return said[0][0]


def this_rank() -> Endpoint:
    """In such a process: its endpoint, with its threads set."""
    torch.set_num_threads(int(sys.argv[2]))
    return attach(json.loads(sys.argv[1]))
