"""What launchers say, and joining what they started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest
import torch

from plait.comm import cluster
from plait.comm.cluster import Environment, environment, join
from plait.comm.contract import Endpoint, Group
from plait.comm.joined import Joined
from plait.errors import RunError, UsageError
from tests.comm.together import together

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "3",
    "MASTER_ADDR": "one",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,2,1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "MASTER_ADDR": "one",
    "MASTER_PORT": "29500",
}
HOW = "start the ranks with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"


def without(given: dict[str, str], *names: str, **changed: str) -> dict[str, str]:
    return {**{name: value for name, value in given.items() if name not in names}, **changed}


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({}, None),
        ({"MASTER_ADDR": "one"}, None),
        (TORCHRUN, Environment(5, 6, 1, 2, 2, 3, "one", 29500, "torchrun", "none/1")),
        # a launcher that gives each rank a container, and says nothing of hosts
        (
            without(TORCHRUN, *(name for name in TORCHRUN if "LOCAL" in name or "GROUP" in name or "TORCH" in name)),
            Environment(5, 6, 0, 1, 5, 6, "one", 29500, "torchrun", "/"),
        ),
        # one that says nothing of groups: ranks of a host follow each other
        (
            without(TORCHRUN, "GROUP_RANK", "GROUP_WORLD_SIZE"),
            Environment(5, 6, 1, 2, 4, 3, "one", 29500, "torchrun", "none/1"),
        ),
        (SLURM, Environment(5, 7, 1, 2, 1, 3, "one", 29500, "SLURM", "77/0")),
        (
            without(SLURM, "SLURM_STEP_TASKS_PER_NODE", SLURM_TASKS_PER_NODE="4,3"),
            Environment(5, 7, 1, 3, 1, 2, "one", 29500, "SLURM", "77/0"),
        ),
        (
            without(SLURM, "SLURM_STEP_TASKS_PER_NODE", SLURM_TASKS_PER_NODE="3(x2),1"),
            Environment(5, 7, 1, 3, 1, 3, "one", 29500, "SLURM", "77/0"),
        ),
        # a batch script, or a shell on a node, is no rank of a larger run
        (without(SLURM, SLURM_NTASKS="1"), None),
    ],
)
def test_what_launchers_say(given: dict[str, str], right: Environment | None) -> None:
    assert environment(given) == right


MISSING = "though this looks like a rank of a larger run"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"RANK": "0"}, f"WORLD_SIZE is not set, {MISSING}: {HOW}"),
        ({"WORLD_SIZE": "2"}, f"RANK is not set, {MISSING}: {HOW}"),
        (without(TORCHRUN, "LOCAL_WORLD_SIZE"), f"LOCAL_WORLD_SIZE is not set, {MISSING}: {HOW}"),
        (without(TORCHRUN, "MASTER_PORT"), f"MASTER_PORT is not set, {MISSING}: {HOW}"),
        ({"SLURM_PROCID": "0"}, f"SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set, {MISSING}: {HOW}"),
        (without(TORCHRUN, RANK="first"), f"RANK must be a number from 0, not 'first': {HOW}"),
        (
            without(TORCHRUN, RANK="6"),
            f"torchrun's variables do not fit: rank 6 of 6, on its host 1 of 2; ranks count from 0: {HOW}",
        ),
        (
            without(SLURM, "MASTER_ADDR"),
            "MASTER_ADDR is not set: all ranks need the host name of rank 0 in MASTER_ADDR and a free port of it in "
            "MASTER_PORT; under SLURM: export MASTER_PORT=29500 "
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)",
        ),
    ],
)
def test_what_does_not_fit_is_told(given: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        environment(given)
    assert str(caught.value) == text


def test_without_a_table_it_is_the_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert environment() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    found = environment()
    assert found is not None
    assert found.rank == 5


# --- joining, with ranks as threads of this process -------------------------------------------------------


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run_of(hosts: list[int], program: Callable[[Endpoint], object], turns: int = 1) -> list[Callable[[], object]]:
    """A run's ranks, as functions: each joins, does its program and leaves, `turns` times."""
    port = free_port()

    def main(rank: int) -> object:
        here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        places = (rank, len(hosts), here.index(rank), len(here), hosts[rank], len(set(hosts)))
        outcome = None
        for _ in range(turns):
            with join(Environment(*places, "127.0.0.1", port, "the test"), 2, timeout_s=30) as endpoint:
                outcome = program(endpoint)
        return outcome

    return [lambda rank=rank: main(rank) for rank in range(len(hosts))]  # type: ignore[misc]


def add_ranks(endpoint: Endpoint) -> tuple[str, float]:
    group = Group(tuple(range(endpoint.size)))
    return type(endpoint).__name__, float(endpoint.all_reduce(group, torch.tensor([endpoint.rank + 1.0])))


def test_two_runs_on_one_host_never_meet_and_a_run_may_join_again() -> None:
    outcomes = together(*run_of([0, 0], add_ranks, turns=2), *run_of([0, 1, 0], add_ranks))
    assert outcomes == [("Joined", 3.0)] * 2 + [("Joined", 6.0), ("C10dEndpoint", 6.0), ("Joined", 6.0)]


def test_a_run_of_one_rank() -> None:
    assert together(*run_of([0], add_ranks)) == [("C10dEndpoint", 1.0)]


def test_ranks_of_one_host_talk_over_shared_memory_alone() -> None:
    def program(endpoint: Endpoint) -> list[int]:
        assert isinstance(endpoint, Joined)
        endpoint.all_reduce(Group((0, 1)), torch.zeros(10))
        return [endpoint.traffic(1 - endpoint.rank).payload_bytes, endpoint._far.traffic(1 - endpoint.rank)[1]]

    assert together(*run_of([3, 3], program)) == [[40, 0]] * 2


def test_who_cannot_reach_the_others_is_told() -> None:
    port = free_port()
    with pytest.raises(RunError) as caught:
        join(Environment(1, 2, 0, 1, 1, 2, "127.0.0.1", port, "the test"), 2, timeout_s=0.5)
    text = str(caught.value)
    assert text.startswith(f"rank 1 of 2 could not connect to the others through 127.0.0.1:{port} within 0.5 s (")
    assert text.endswith(
        "). Are all ranks started, and do the hosts reach each other? On a host with several networks name the "
        "interface to use: GLOO_SOCKET_IFNAME=eth0 (`ip -br address` lists them)"
    )


def test_groups_of_cuda_devices_need_a_torch_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed, "ProcessGroupNCCL", raising=False)
    with pytest.raises(RunError) as caught:
        cluster._nccl(torch.distributed.HashStore(), 0, (0, 1))
    assert str(caught.value) == (
        "groups of CUDA devices need NCCL, which this torch was built without: install torch for CUDA"
    )
