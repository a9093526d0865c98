"""Runs a case with ranks as processes of this host: over shared memory, or over TCP on the loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import cast

import msgspec

from plait.certifier.case import Case
from plait.certifier.held import Report
from plait.errors import RunError
from plait.plans.training import TrainingPlan
from plait.ranks.failures import Failed
from plait.ranks.listener import Listener, rank_name
from plait.ranks.processes import RankProcesses

LIMIT_S = 300.0
"""How long nothing may be heard of any rank. Starting torch alone takes seconds."""


class Setup(msgspec.Struct, tag="setup"):
    """The only word to a rank's process: the case, and the mesh's shared memory or the port of the store."""

    rank: int
    case: Case
    mesh: dict[str, object]
    port: int


class Measured(msgspec.Struct, tag="measured"):
    """A rank's last word."""

    report: Report


ToFront = Measured | Failed


def run_processes(case: Case, plan: TrainingPlan) -> list[Report]:
    """What each rank has seen, in rank order. Errors: the one that began it, where a rank failed or died."""
    with ExitStack() as stack:
        port = stack.enter_context(_store(plan.layout.ranks)) if case.transport == "c10d" else 0

        def setup(rank: int, mesh: Mapping[str, object]) -> Setup:
            return Setup(rank, case, dict(mesh), port)

        ranks: RankProcesses[Setup, ToFront] = RankProcesses("plait.certifier.rank", plan.layout, ToFront, setup)
        stack.callback(ranks.stop)
        listener: Listener[ToFront] = Listener(ranks, Measured, lambda rank: rank_name(plan.layout, rank))
        stack.callback(listener.close)
        return _reports(listener, plan.layout.ranks)


def _reports(listener: Listener[ToFront], size: int) -> list[Report]:
    found: dict[int, Report] = {}
    while len(found) < size:
        heard = listener.arrived(LIMIT_S)
        if not heard:
            waiting = ", ".join(str(rank) for rank in range(size) if rank not in found)
            raise RunError(f"the mesh is stuck: nothing was heard of ranks {waiting} for {LIMIT_S:g} s")
        found |= {one.report.rank: one.report for one in cast(list[Measured], heard)}
    return [found[rank] for rank in range(size)]


@contextmanager
def _store(size: int) -> Iterator[int]:
    """torch.distributed's store on a free port of the loopback, as torchrun keeps one for its ranks."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield int(store.port)
    del store


def launched(setup: Setup, size: int) -> Mapping[str, str]:
    """The variables that torchrun would set if each rank had a host of its own: then all goes by TCP."""
    rank = str(setup.rank)
    return {
        "RANK": rank,
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": rank,
        "GROUP_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(setup.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0"),
    }
