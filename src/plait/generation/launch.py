"""Starts the ranks of a plan on this host: a process each, or a thread each where a test wants it small and quick."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from plait.generation.places import HERE, Places
from plait.generation.protocol import Setup, ToFront, ToRank
from plait.plans.file import dump_plan
from plait.plans.plan import Plan
from plait.ranks.channel import Channel
from plait.ranks.failures import failure
from plait.ranks.processes import EXIT_WAIT_S, RankProcesses
from plait.spec.emulation import Emulation, host_names
from plait.weights.index import WeightsIndex

if TYPE_CHECKING:
    from plait.comm.contract import Endpoint

RankChannel = Channel[ToRank, ToFront]
FrontChannel = Channel[ToFront, ToRank]


class Ranks(Protocol):
    """Started ranks, and the channels to them, rank by rank; `places` are known once all have finished."""

    channels: list[RankChannel]

    @property
    def places(self) -> Places:
        """Where they run."""

    def death(self, rank: int) -> str | None:
        """How a rank ended where it did not end well, in words; None while it lives or where it ended as it should."""

    def stop(self) -> None:
        """End what still runs, and wait for it."""


class ProcessRanks(RankProcesses[ToRank, ToFront]):
    """Each rank a process of this host, linked by shared memory, or as if over the links of an emulation."""

    def __init__(
        self, plan: Plan, index: WeightsIndex, *, trace: bool = True, emulation: Emulation | None = None
    ) -> None:
        self.places = HERE if emulation is None else Places(host_names(emulation))
        text, weights = dump_plan(plan), index.to_bytes()
        super().__init__(
            "plait.generation.rank",
            plan.layout,
            ToFront,
            lambda rank, mesh: Setup(rank, text, weights, dict(mesh), trace),
            beside=plan.layout.tp,
            emulation=emulation,
        )


class ThreadRanks:
    """Each rank a thread of this process: no start-up, no isolation. torch computes with one thread then.

    `endpoints`: of the ranks, one for each; over the memory of this process where they are not given.
    """

    places = HERE

    def __init__(
        self, plan: Plan, index: WeightsIndex, *, trace: bool = True, endpoints: Sequence[Endpoint] | None = None
    ) -> None:
        import torch

        from plait.comm.threads import thread_mesh

        torch.set_num_threads(1)
        endpoints = endpoints or thread_mesh(plan.layout.ranks, plan.layout.link_capacity)
        self.channels: list[RankChannel] = []
        self._threads: list[threading.Thread] = []
        for rank, endpoint in enumerate(endpoints):
            mine, theirs = socket.socketpair()
            self.channels.append(Channel(mine, ToFront))
            channel: FrontChannel = Channel(theirs, ToRank)
            arguments = (rank, plan, index, endpoint, channel, trace)
            self._threads.append(threading.Thread(target=_thread_rank, args=arguments, daemon=True))
        for thread in self._threads:
            thread.start()

    def death(self, rank: int) -> str | None:
        """See `Ranks`: a thread's failure is always told."""
        return None

    def stop(self) -> None:
        """See `Ranks`."""
        for channel in self.channels:
            channel.shut_down()
        for thread in self._threads:
            thread.join(EXIT_WAIT_S)
        for channel in self.channels:
            channel.close()


def _thread_rank(
    rank: int, plan: Plan, index: WeightsIndex, endpoint: Endpoint, channel: FrontChannel, trace: bool
) -> None:
    from plait.generation.rank import run_rank

    try:
        run_rank(rank, plan, index, endpoint, channel, trace=trace)
    except BaseException as error:
        endpoint.fail(str(error))
        with suppress(EOFError):
            channel.send(failure(rank, error))
    finally:
        endpoint.close()
        channel.close()
