"""A rank of a probe on this host: a process whose arguments are its mesh's description and its job, both JSON.

Rank 0 prints lines of JSON: what it is doing, then what was found, or what it failed with.
"""

from __future__ import annotations

import json
import platform
import sys

import msgspec

from plait.errors import PeerLost, PlaitError
from plait.prober.host import core_numbers, cpu_model, free_memory_here, memory_here, usable_cores
from plait.prober.probe_messages import Computed, Greeting, Point
from plait.prober.probed import FoundDevice, FoundLink, Probed
from plait.prober.spread import Figure
from plait.timeline.timeline import Clock


class Job(msgspec.Struct, frozen=True):
    """What a rank's process is: on which host, with how many threads, for about how many seconds."""

    rank: int
    host: int
    threads: int
    seconds: float


class Doing(msgspec.Struct, tag="doing", frozen=True):
    """What rank 0 is at, in words."""

    words: str


class Found(msgspec.Struct, tag="found", frozen=True):
    """All of it: `Probed` but for what only the front knows."""

    greetings: list[Greeting]
    computed: list[Computed]
    links: list[tuple[int, int, Figure, Figure, list[Point]]]
    clocks: dict[int, Clock]
    at_s: float
    elapsed_s: float

    @staticmethod
    def of(one: Probed) -> Found:
        """What rank 0 found."""
        return Found(
            [device.rank for device in one.devices],
            [device.computed for device in one.devices],
            [
                (link.source, link.target, link.latency_s, link.bandwidth_bytes_per_s, list(link.points))
                for link in one.links
            ],
            dict(one.clocks),
            one.at_s,
            one.elapsed_s,
        )

    def probed(self, emulated: str | None) -> Probed:
        """The same, for the front."""
        devices = [FoundDevice(rank, found) for rank, found in zip(self.greetings, self.computed, strict=True)]
        links = [FoundLink(*link) for link in self.links]
        return Probed(devices, links, self.clocks, self.at_s, self.elapsed_s, emulated)


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """What a rank failed with. `kind`: an error of `plait.errors`. `lost`: the rank whose loss it is."""

    kind: str
    message: str
    lost: int | None


Said = Doing | Found | Broken


def greeting(rank: int, host: int, machine: int, threads: int) -> Greeting:
    """What this rank has; to be asked before torch is imported, which may bind this thread to a core of its own."""
    cores = core_numbers() or tuple(range(usable_cores()))
    memory = memory_here(), free_memory_here()
    return Greeting(rank, host, machine, platform.node(), cpu_model(), cores, threads, *memory)


def main() -> int:
    """The process; returns its exit status."""
    job = msgspec.json.decode(sys.argv[2], type=Job)
    try:
        _run(job)
    except PlaitError as error:
        lost = error.rank if isinstance(error, PeerLost) else None
        _say(Broken(type(error).__name__, str(error), lost))
        return 1
    return 0


def _run(job: Job) -> None:
    own = greeting(job.rank, job.host, 0, job.threads)
    import torch

    from plait.comm.attach import attach
    from plait.prober.probe_mesh import follow_probe, lead_probe

    torch.set_num_threads(job.threads)
    with attach(json.loads(sys.argv[1])) as endpoint:
        if job.rank:
            follow_probe(endpoint, own)
        else:
            _say(Found.of(lead_probe(endpoint, own, job.seconds, lambda words: _say(Doing(words)))))


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
