"""What the ranks of a probe say to each other: msgpack structs, as control messages of their mesh.

rank → rank 0   Greeting, then an answer to each order: Pong, Computed, PairDone
rank 0 → rank   Ping, Compute, Pair, Leave
"""

from __future__ import annotations

import msgspec

from plait.prober.spread import Figure


class Greeting(msgspec.Struct, tag="greeting", frozen=True):
    """A rank's first word. `host`: what it counts as; `machine`: the real one, which several emulated hosts share.

    `cores`: their numbers. `threads`: how many it computes with. `memory_bytes`: all that the machine has, or the
    container; `free_bytes`: what is free of it now.
    """

    rank: int
    host: int
    machine: int
    name: str
    cpu: str
    cores: tuple[int, ...]
    threads: int
    memory_bytes: int
    free_bytes: int


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """What does your clock say?"""


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """This: seconds since 1970."""

    clock_s: float


class Compute(msgspec.Struct, tag="compute", frozen=True):
    """Measure your device, all ranks at the same time, for about `budget_s`. `weight_bytes`: of each dtype."""

    budget_s: float
    weight_bytes: int


class Usage(msgspec.Struct, frozen=True):
    """Meanwhile: seconds that the machine's cores were busy, that this process computed, and that passed."""

    busy_s: float
    our_s: float
    elapsed_s: float


class Threads(msgspec.Struct, frozen=True):
    """What so many threads of a rank reach: FLOP/s, and bytes/s of weights that they read, for each dtype."""

    threads: int
    flops: dict[str, Figure]
    read_bytes_per_s: dict[str, Figure]


class FoundBeside(msgspec.Struct, frozen=True):
    """What operations take beside their FLOP and bytes (`spec.cluster.Beside`)."""

    operation_s: Figure
    weight_reads: Figure
    activation_bytes_per_s: Figure


class Computed(msgspec.Struct, tag="computed", frozen=True):
    """A rank's device, for ascending numbers of threads up to the rank's own; and `beside` for each dtype, with all."""

    by_threads: list[Threads]
    usage: Usage
    beside: dict[str, FoundBeside]


class Pair(msgspec.Struct, tag="pair", frozen=True):
    """Measure the links with `peer`, which is told the same, both ways, for about `budget_s`."""

    peer: int
    budget_s: float


class Point(msgspec.Struct, frozen=True):
    """A message of so many bytes takes so many seconds one way: the median, and its spread."""

    bytes: int
    seconds: float
    spread: float


class Sent(msgspec.Struct, frozen=True):
    """What the sender of a link found: half of an empty round trip, and messages of several sizes."""

    latency_s: Figure
    points: list[Point]


class PairDone(msgspec.Struct, tag="pair_done", frozen=True):
    """One end of a pair: what it found of the link to its peer, and the bandwidth, in bytes/s, of the link from it."""

    sent: Sent
    received_bytes_per_s: Figure


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """Nothing follows."""


Order = Ping | Compute | Pair | Leave
Answer = Greeting | Pong | Computed | PairDone
