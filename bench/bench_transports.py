"""Shared memory against gloo, side by side: two processes, each pinned to a core, through the contract.

    python bench/bench_transports.py [--json] [--sizes 1024,16384] [--rounds 7]

One way: half a ping-pong. All-reduce: float32, in place. The transports take turns within every round; the figures are
medians over rounds of the mean over a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from harness import verdict

from plait.comm.contract import Group, Tag
from plait.comm.shm import ShmDescription, ShmEndpoint, ShmMesh
from plait.units import format_bytes, format_seconds

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 25))
BATCH_S = 0.03
BOTH = Group((0, 1))

Run = Callable[[int], float]


class Row(NamedTuple):
    """One line of the table."""

    what: str
    size_bytes: int
    shm_s: float
    gloo_s: float

    @property
    def ratio(self) -> float:
        return self.gloo_s / self.shm_s


# --- what is measured: each runs `count` times and returns seconds ------------------------------------------


def shm_one_way(endpoint: ShmEndpoint, tensor: torch.Tensor) -> Run:
    other = 1 - endpoint.rank
    tag = Tag(0, 0, 0)

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            if endpoint.rank == 0:
                endpoint.send(other, tag, tensor)
                endpoint.receive(other, tag)
            else:
                endpoint.send(other, tag, endpoint.receive(other, tag))
        return (time.perf_counter() - start) / 2

    return run


def gloo_one_way(rank: int, tensor: torch.Tensor) -> Run:
    other = 1 - rank

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            if rank == 0:
                dist.send(tensor, other)
                dist.recv(torch.empty_like(tensor), other)
            else:
                received = torch.empty_like(tensor)
                dist.recv(received, other)
                dist.send(received, other)
        return (time.perf_counter() - start) / 2

    return run


def repeated(call: Callable[[], object]) -> Run:
    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start

    return run


# --- one rank's process ------------------------------------------------------------------------------------


def batch_of(endpoint: ShmEndpoint, run: Run) -> int:
    """How often `run` fits into a batch: rank 0's clock decides for both."""
    run(2)
    count = torch.tensor([max(2, min(5000, int(BATCH_S * 4 / max(run(4), 1e-7))))])
    return int(endpoint.broadcast(BOTH, count, 0))


def measure(endpoint: ShmEndpoint, sizes: list[int], rounds: int) -> list[Row]:
    rows = []
    for size in sizes:
        tensor = torch.zeros(size // 4)
        cases: dict[str, tuple[Run, Run]] = {
            "one way": (shm_one_way(endpoint, tensor), gloo_one_way(endpoint.rank, tensor)),
            "all-reduce": (
                repeated(lambda tensor=tensor: endpoint.all_reduce(BOTH, tensor)),
                repeated(lambda tensor=tensor: dist.all_reduce(tensor)),
            ),
        }
        counts = {what: tuple(batch_of(endpoint, run) for run in pair) for what, pair in cases.items()}
        taken: dict[str, list[list[float]]] = {what: [[], []] for what in cases}
        for _ in range(rounds):
            for what, pair in cases.items():
                for which, run in enumerate(pair):
                    endpoint.barrier(BOTH)
                    taken[what][which].append(run(counts[what][which]) / counts[what][which])
        rows += [Row(what, size, *(statistics.median(times) for times in taken[what])) for what in cases]
    return rows


def rank_main(description: ShmDescription, meeting: str, sizes: list[int], rounds: int) -> None:
    rank = description["rank"]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with ShmEndpoint.attach(description) as endpoint:
        rows = measure(endpoint, sizes, rounds)
        if rank == 0:
            print(json.dumps(rows))
        endpoint.barrier(BOTH)
    dist.destroy_process_group()


# --- the launcher ------------------------------------------------------------------------------------------


def run_both(sizes: list[int], rounds: int) -> list[Row]:
    mesh = ShmMesh.create(2, capacity=2)
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in (0, 1):
            given = json.dumps([mesh.description(rank), str(Path(folder, "meeting")), sizes, rounds])
            command = [sys.executable, __file__, "--rank", given]
            environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
            ranks.append(
                subprocess.Popen(
                    command, pass_fds=mesh.descriptors(rank), stdout=subprocess.PIPE, text=True, env=environment
                )
            )
        mesh.close_parent()
        output = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed; its error stands above")
    return [Row(*row) for row in json.loads(output[0])]


def table(rows: list[Row]) -> str:
    lines = ["| | bytes | shm | gloo | gloo ÷ shm |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row.what != "one way", row.size_bytes)):
        slower = "" if row.ratio >= 1 else " **slower than gloo**"
        lines.append(
            f"| {row.what} | {format_bytes(row.size_bytes)} | {format_seconds(row.shm_s)} | "
            f"{format_seconds(row.gloo_s)} | {row.ratio:.1f} ×{slower} |"
        )
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    """The section of docs/benchmarks.md."""
    wanted = {"one way": 10.0, "all-reduce": 40.0}
    met = "; ".join(
        f"{row.what} at 1 KB: {verdict(row.ratio, wanted[row.what])}" for row in rows if row.size_bytes == 1 << 10
    )
    pinned = "Two processes, each pinned to a core, through the contract; float32, medians."
    return f"## Shared memory against gloo\n\n{pinned}\n\n{table(rows)}\n\n{met}."


def as_json(rows: list[Row]) -> str:
    return json.dumps([{**row._asdict(), "ratio": round(row.ratio, 2)} for row in rows], indent=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(*json.loads(given.rank))
        return
    rows = run_both([int(size) for size in given.sizes.split(",")], given.rounds)
    print(as_json(rows) if given.json else page(rows))


if __name__ == "__main__":
    main()
