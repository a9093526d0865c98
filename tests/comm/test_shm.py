"""What is particular to shared memory: processes, descriptors, what is left behind, bells."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.comm import control, exchange, link, pair_sum, shm
from plait.comm.bells import Bells
from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.shm import ShmEndpoint, ShmMesh
from plait.errors import RunError, WaitTimeout
from tests.comm.test_collectives import everyone
from tests.comm.test_storm import storm

TAG = Tag(0, 0, 1)

SCRIPT = """
import json, sys, torch
from plait.comm.contract import Group, Tag
from plait.comm.shm import ShmEndpoint
torch.set_num_threads(1)
with ShmEndpoint.attach(json.loads(sys.argv[1])) as endpoint:
    group = Group(tuple(range(endpoint.size)))
    tensor = endpoint.all_reduce(group, torch.full((3,), endpoint.rank + 1.0))
    print(tensor.tolist(), flush=True)
    if sys.argv[2] == "wait":
        endpoint.wait(lambda: None, "nothing", 60)
    endpoint.barrier(group)
"""


def start(size: int, what: str) -> list[subprocess.Popen[str]]:
    mesh = ShmMesh.create(size, capacity=2)
    processes = []
    for rank in range(size):
        command = [sys.executable, "-c", SCRIPT, json.dumps(mesh.description(rank)), what]
        processes.append(
            subprocess.Popen(
                command, pass_fds=mesh.descriptors(rank), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    mesh.close_parent()
    mesh.close_parent()
    return processes


COLLECTIVE = """
import json, os, signal, sys, time, torch
from plait.comm.contract import Group
from plait.comm.shm import ShmEndpoint
from plait.errors import PeerLost
torch.set_num_threads(1)
with ShmEndpoint.attach(json.loads(sys.argv[1])) as endpoint:
    group, count, victim = Group(tuple(range(endpoint.size))), int(sys.argv[2]), int(sys.argv[3])
    tensor, calls = torch.zeros(count), 0
    try:
        while True:
            endpoint.all_reduce(group, tensor)
            calls += 1
            if calls == 50 and endpoint.rank == victim:
                print("going", flush=True)
    except PeerLost as error:
        print(error.rank, flush=True)
"""


def start_summing(size: int, count: int, victim: int) -> list[subprocess.Popen[str]]:
    """Ranks that sum for ever; the victim says when it is in the midst of it."""
    mesh = ShmMesh.create(size, capacity=2)
    processes = []
    for rank in range(size):
        command = [sys.executable, "-c", COLLECTIVE, json.dumps(mesh.description(rank)), str(count), str(victim)]
        processes.append(subprocess.Popen(command, pass_fds=mesh.descriptors(rank), stdout=subprocess.PIPE, text=True))
    mesh.close_parent()
    return processes


def kill_one(size: int, count: int, victim: int) -> None:
    processes = start_summing(size, count, victim)
    out = processes[victim].stdout
    assert out is not None
    assert out.readline() == "going\n"
    processes[victim].send_signal(signal.SIGKILL)
    others = [process for rank, process in enumerate(processes) if rank != victim]
    assert [process.communicate(timeout=5)[0] for process in others] == [f"{victim}\n"] * (size - 1)
    processes[victim].communicate()


def test_a_kill_inside_a_collective_stops_the_others() -> None:
    kill_one(3, 600, victim=1)


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("count", [600, 1_000_000])
def test_a_kill_inside_any_collective_stops_the_others(size: int, count: int) -> None:
    for victim in range(size):
        kill_one(size, count, victim)


LAUNCHER = """
import signal, sys, tests.comm.test_shm as here
processes = here.start_summing(2, 600, 0)
processes[0].stdout.readline()
print(*(process.pid for process in processes), flush=True)
signal.pause()
"""


def test_nothing_is_left_after_the_launcher_and_all_ranks_are_killed(tmp_path: Path) -> None:
    """Processes, named memory, files: all as before. Killing the launcher alone does not end ranks that are well."""
    named = left_over()[0]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert launcher.stdout is not None
    ranks = [int(word) for word in launcher.stdout.readline().split()]
    assert len(ranks) == 2
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    deadline = time.monotonic() + 10
    while any(runs(rank) for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(runs(rank) for rank in ranks)
    assert left_over()[0] == named
    assert list(tmp_path.iterdir()) == []


def runs(pid: int) -> bool:
    """Whether the process is there, and is not one that only waits for its end to be noted."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def left_over() -> tuple[list[str], int]:
    """Named shared memory of this host, and this process's open descriptors."""
    named = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return sorted(named), len(os.listdir("/dev/fd"))


def test_nothing_is_left_after_all_ranks_are_killed() -> None:
    before = left_over()
    processes = start(2, "wait")
    assert [process.stdout.readline() for process in processes if process.stdout] == ["[3.0, 3.0, 3.0]\n"] * 2
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert left_over() == before


def test_two_meshes_at_once_never_meet() -> None:
    started = [start(2, "go"), start(1, "go")]
    outputs = [[process.communicate(timeout=240) for process in processes] for processes in started]
    assert outputs == [[("[3.0, 3.0, 3.0]\n", "")] * 2, [("[1.0, 1.0, 1.0]\n", "")]]


@pytest.fixture
def pair() -> Iterator[tuple[ShmEndpoint, ShmEndpoint]]:
    """Two ranks of one process: both sides of every link are at hand."""
    mesh = ShmMesh.create(2, capacity=2)
    first, second = mesh.attach(0), mesh.attach(1)
    mesh.close_parent()
    yield first, second
    first.close()
    second.close()


def test_a_launcher_that_is_itself_a_rank(pair: tuple[ShmEndpoint, ShmEndpoint]) -> None:
    first, second = pair
    first.send(1, TAG, torch.ones(2))
    assert second.receive(0, TAG).tolist() == [1, 1]


def test_closing_gives_all_descriptors_back() -> None:
    gc.collect()
    before = left_over()
    mesh = ShmMesh.create(3, capacity=1)
    endpoints = [mesh.attach(rank) for rank in range(3)]
    mesh.close_parent()
    for endpoint in endpoints:
        endpoint.close()
    del endpoint, endpoints, mesh
    gc.collect()
    assert left_over() == before


def test_memory_is_taken_only_where_messages_were(pair: tuple[ShmEndpoint, ShmEndpoint]) -> None:
    """A mesh of 8 ranks with 16 MB slots spans gigabytes, and takes next to nothing."""
    mesh = ShmMesh.create(8, capacity=4, slot_bytes=1 << 24)
    assert os.fstat(mesh.descriptors(0)[0]).st_size > 4 << 30
    assert os.fstat(mesh.descriptors(0)[0]).st_blocks * 512 < 1 << 20
    mesh.close_parent()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"size": 0, "capacity": 1}, "a mesh of 0 ranks with capacity 1 cannot work: both must be at least 1"),
        ({"size": 2, "capacity": 0}, "a mesh of 2 ranks with capacity 0 cannot work: both must be at least 1"),
        (
            {"size": 2, "capacity": 1, "slot_bytes": 5000},
            "slot_bytes must be a power of two and at least 4096, not 5000",
        ),
    ],
)
def test_an_impossible_mesh_is_refused(given: dict[str, int], text: str) -> None:
    with pytest.raises(RunError) as caught:
        ShmMesh.create(**given)
    assert str(caught.value) == text


def test_small_slots_carry_any_message() -> None:
    mesh = ShmMesh.create(2, capacity=3, slot_bytes=4096)
    endpoints = [mesh.attach(0), mesh.attach(1)]
    mesh.close_parent()
    sent = [torch.arange(count) for count in (1, 127, 128, 129, 512, 513, 4099, 100_000)]

    def send(endpoint: Endpoint) -> None:
        for index, tensor in enumerate(sent):
            endpoint.send(1, Tag(0, index, 0), tensor)
        endpoint.all_reduce(Group((0, 1)), torch.ones(5000))

    def receive(endpoint: Endpoint) -> None:
        for index, tensor in enumerate(sent):
            assert torch.equal(endpoint.receive(0, Tag(0, index, 0)), tensor)
        assert endpoint.all_reduce(Group((0, 1)), torch.ones(5000)).unique().tolist() == [2]

    both(endpoints, send, receive)


def both(endpoints: list[ShmEndpoint], *programs: Callable[[Endpoint], None]) -> None:
    """Run a program on each endpoint, in threads of this process."""
    failures: list[BaseException] = []

    def main(endpoint: ShmEndpoint, program: Callable[[Endpoint], None]) -> None:
        try:
            with endpoint:
                program(endpoint)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=main, args=pair) for pair in zip(endpoints, programs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_an_abandoned_large_message_does_not_block_the_link(pair: tuple[ShmEndpoint, ShmEndpoint]) -> None:
    """A send that its caller never finishes (a re-plan) is finished by the link; another may then follow."""
    first, second = pair
    large, small = Tag(0, 0, 1), Tag(1, 0, 2)
    assert not first.try_send(1, large, torch.ones(1 << 22))
    assert not first.try_send(1, small, torch.ones(1))
    received = None
    for _ in range(20):
        received = second.try_receive(0, small)
        if received is None:
            first.try_send(1, small, torch.ones(1))
    assert first.traffic(1).dropped == 1


def test_a_large_message_that_ended_beside_another_is_told_to_its_sender(pair: tuple[ShmEndpoint, ShmEndpoint]) -> None:
    """The receiver takes it while its sender tries another message: that one waits until the sender has asked."""
    first, second = pair
    large, small = Tag(0, 0, 1), Tag(0, 0, 2)
    tensor, received = torch.arange(1 << 21), None
    assert not first.try_send(1, large, tensor)
    while received is None:
        received = second.try_receive(0, large)
        assert not first.try_send(1, small, torch.ones(1))
    assert first.try_send(1, large, tensor)
    assert first.try_send(1, small, torch.ones(1))
    assert torch.equal(received, tensor)
    assert second.try_receive(0, small) is not None
    assert first.traffic(1).messages == 2


def wake_s(pair: tuple[ShmEndpoint, ShmEndpoint], timeout_s: float = 1.0) -> float:
    """Seconds from a send until a rank that sleeps has it."""
    first, second = pair
    woken: list[float] = []

    def sleeper() -> None:
        try:
            second.receive(0, TAG, timeout_s)
            woken.append(time.perf_counter())
        except WaitTimeout:
            woken.append(float("inf"))

    thread = threading.Thread(target=sleeper)
    thread.start()
    time.sleep(0.05)
    sent = time.perf_counter()
    first.send(1, TAG, torch.zeros(1))
    thread.join()
    return woken[0] - sent


def test_a_bell_wakes_and_a_lost_bell_is_caught(
    pair: tuple[ShmEndpoint, ShmEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded fault: without bells, and without the look every 20 ms, the sleeper would not wake."""
    monkeypatch.setattr(shm, "LOOK_AGAIN_S", 60.0)
    assert wake_s(pair, 30.0) < 10  # long before its wait or the next look is over
    monkeypatch.setattr(Bells, "_ring", lambda bells, rank: None)
    assert wake_s(pair, 0.3) > 0.2  # its last look when time is up


def test_a_lost_bell_costs_20_ms_at_most(
    pair: tuple[ShmEndpoint, ShmEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bells, "_ring", lambda bells, rank: None)
    assert wake_s(pair) < 0.1


def test_no_bell_is_rung_for_who_is_awake(
    pair: tuple[ShmEndpoint, ShmEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[int] = []
    monkeypatch.setattr(Bells, "_ring", lambda bells, rank: rung.append(rank))
    first, second = pair
    for index in range(10):
        first.send(1, Tag(0, index, 0), torch.zeros(1))
        second.receive(0, Tag(0, index, 0))
    assert rung == []


@pytest.mark.soak
def test_the_bench_runs() -> None:
    bench = Path(__file__).parents[2] / "bench" / "bench_transports.py"
    command = [sys.executable, str(bench), "--json", "--sizes", "1024,65536", "--rounds", "3"]
    rows: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [(row["what"], row["size_bytes"]) for row in rows] == [
        *((what, size) for size in (1024, 65536) for what in ("one way", "all-reduce")),
        ("dist.all_reduce", 1024),
        ("all-reduce, 4 ranks", 1024),
    ]
    assert all(row["shm_s"] > 0 and row["gloo_s"] > 0 for row in rows)  # how fast is for `make bench` to say


def test_machines_of_weak_order_and_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of ARM and of macOS are run here too; that the order suffices there is argued, not tested."""
    for module in (link, control, exchange, pair_sum):
        monkeypatch.setattr(module, "STRONG_ORDER", False)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "sched_yield", raising=False)
    mesh = ShmMesh.create(2, capacity=2)
    endpoints = [mesh.attach(0), mesh.attach(1)]
    mesh.close_parent()

    def program(endpoint: Endpoint) -> None:
        assert storm(endpoint, seed=1, acts=30) == []

    both(endpoints, program, program)


def test_collectives_on_machines_of_weak_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every collective with its fences, pairs and larger groups, small and large."""
    for module in (exchange, pair_sum):
        monkeypatch.setattr(module, "STRONG_ORDER", False)
    for size in (2, 3):
        mesh = ShmMesh.create(size, capacity=2)
        endpoints = [mesh.attach(rank) for rank in range(size)]
        mesh.close_parent()

        def program(endpoint: Endpoint) -> None:
            assert everyone(endpoint, [0, 7, 4097, 70_001], ["float32", "bfloat16"]) == []

        both(endpoints, *[program] * size)
