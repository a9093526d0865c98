"""Shared memory against gloo, side by side: processes, each pinned to a core, through the contract.

    python bench/bench_transports.py [--json] [--sizes 1024,16384] [--rounds 7]

One way: half a ping-pong. All-reduce: float32, in place. `dist.all_reduce` is torch's function, over our backend and
over gloo. Four ranks share the cores there are. The transports take turns within every round; the figures are medians
over rounds of the mean over a batch.
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

from plait.comm import process_group
from plait.comm.contract import Group, Tag
from plait.comm.shm import ShmDescription, ShmEndpoint, ShmMesh
from plait.units import format_bytes, format_seconds

SIZES = tuple(1 << power for power in (10, 12, 14, 16, 18, 20, 22, 25))
FEW_SIZES = (1 << 10, 1 << 14, 1 << 20)
BATCH_S = 0.03
SUM_US = 10.0
"""What a sum of 16 KB between two processes may take."""

Case = tuple[str, int]
"""What is measured, and its bytes."""
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


def batch_of(endpoint: ShmEndpoint, everyone: Group, run: Run) -> int:
    """How often `run` fits into a batch: rank 0's clock decides for all."""
    run(2)
    count = torch.tensor([max(2, min(5000, int(BATCH_S * 4 / max(run(4), 1e-7))))])
    return int(endpoint.broadcast(everyone, count, 0))


def runs_of(
    endpoint: ShmEndpoint, everyone: Group, ours: dist.ProcessGroup | None, what: str, size: int
) -> tuple[Run, Run]:
    """Of one case, over shared memory and over gloo."""
    tensor, ranks = torch.zeros(size // 4), endpoint.size
    if what == "one way":
        return shm_one_way(endpoint, tensor), gloo_one_way(endpoint.rank, tensor)
    share, counts = torch.zeros(len(tensor) // ranks), [len(tensor) // ranks] * ranks
    if what == "reduce-scatter":
        return (
            repeated(lambda: endpoint.reduce_scatter(everyone, tensor, counts)),
            repeated(lambda: dist.reduce_scatter_single(share, tensor)),
        )
    if what == "all-gather":
        return (
            repeated(lambda: endpoint.all_gather(everyone, share, counts)),
            repeated(lambda: dist.all_gather_single(tensor, share)),
        )
    over_gloo = repeated(lambda: dist.all_reduce(tensor))
    if what == "dist.all_reduce":
        return repeated(lambda: dist.all_reduce(tensor, group=ours)), over_gloo
    return repeated(lambda: endpoint.all_reduce(everyone, tensor)), over_gloo


def measure(endpoint: ShmEndpoint, ours: dist.ProcessGroup | None, cases: list[Case], rounds: int) -> list[Row]:
    everyone, rows = Group(tuple(range(endpoint.size))), []
    for what, size in cases:
        pair = runs_of(endpoint, everyone, ours, what, size)
        counts = [batch_of(endpoint, everyone, run) for run in pair]
        taken: list[list[float]] = [[], []]
        for _ in range(rounds):
            for run, count, times in zip(pair, counts, taken, strict=True):
                endpoint.barrier(everyone)
                times.append(run(count) / count)
        name = what if endpoint.size == 2 else f"{what}, {endpoint.size} ranks"
        rows.append(Row(name, size, *(statistics.median(times) for times in taken)))
    return rows


def rank_main(description: ShmDescription, meeting: str, cases: list[Case], rounds: int) -> None:
    rank, size = description["rank"], description["size"]
    torch.set_num_threads(1)
    process_group.register()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    ours = dist.new_group(backend=process_group.NAME)  # before pinning: it looks how many cores there are
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    with ShmEndpoint.attach(description) as endpoint:
        rows = measure(endpoint, ours, cases, rounds)
        if rank == 0:
            print(json.dumps(rows))
        endpoint.barrier(Group(tuple(range(size))))
    dist.destroy_process_group()


# --- the launcher ------------------------------------------------------------------------------------------


def run_ranks(size: int, cases: list[Case], rounds: int) -> list[Row]:
    mesh = ShmMesh.create(size, capacity=2)
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            given = json.dumps([mesh.description(rank), str(Path(folder, "meeting")), cases, rounds])
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


def run_all(sizes: list[int], rounds: int) -> list[Row]:
    """Two ranks at all sizes, and what else there is at few."""
    few = [size for size in FEW_SIZES if size in sizes]
    cases = [(what, size) for size in sizes for what in ("one way", "all-reduce")]
    cases += [("dist.all_reduce", size) for size in few]
    cases += [(what, size) for size in few if size == 1 << 20 for what in ("reduce-scatter", "all-gather")]
    return run_ranks(2, cases, rounds) + (run_ranks(4, [("all-reduce", size) for size in few], rounds) if few else [])


def table(rows: list[Row]) -> str:
    lines = ["| | bytes | shm | gloo | gloo ÷ shm |", "|---|---|---|---|---|"]
    order = list(dict.fromkeys(row.what for row in rows))
    for row in sorted(rows, key=lambda row: (order.index(row.what), row.size_bytes)):
        slower = "" if row.ratio >= 1 else " **slower than gloo**"
        lines.append(
            f"| {row.what} | {format_bytes(row.size_bytes)} | {format_seconds(row.shm_s)} | "
            f"{format_seconds(row.gloo_s)} | {row.ratio:.1f} ×{slower} |"
        )
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    """The section of docs/benchmarks.md."""
    pinned = "Processes, each pinned to a core, through the contract; float32, medians."
    return f"## Shared memory against gloo\n\n{pinned}\n\n{table(rows)}\n\n{'; '.join(verdicts(rows))}."


def verdicts(rows: list[Row]) -> list[str]:
    """What was wanted, and whether it was met."""
    by_case = {(row.what, row.size_bytes): row for row in rows}
    wanted = [("one way", 1 << 10, 10.0), ("all-reduce", 1 << 10, 40.0)]
    wanted += [("all-reduce, 4 ranks", size, 1.0) for size in FEW_SIZES]
    wanted += [("dist.all_reduce", size, 1.0) for size in FEW_SIZES]
    lines = [
        f"{what} at {format_bytes(size)}: {verdict(by_case[what, size].ratio, least)}"
        for what, size, least in wanted
        if (what, size) in by_case
    ]
    row = by_case.get(("all-reduce", 1 << 14))
    if row:
        lines.append(f"all-reduce at 16 KB: {verdict(row.shm_s * 1e6, SUM_US, ' µs', at_most=True)}")
    return lines


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
    rows = run_all([int(size) for size in given.sizes.split(",")], given.rounds)
    print(as_json(rows) if given.json else page(rows))


if __name__ == "__main__":
    main()
