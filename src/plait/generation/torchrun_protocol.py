"""What rank 0 and the other ranks of a mesh that torchrun has started say to each other, beside rounds.

rank → rank 0   Greeting, then Pong, Measured, and in a session all that a rank tells the front
rank 0 → rank   Ping, Measure, Start (a session follows: `generation.protocol`), Leave

All of it goes as control messages of the mesh: msgpack structs, never pickles.
"""

from __future__ import annotations

import msgspec

from plait.generation.protocol import Finished, Logits, Progress, Ready, Token
from plait.ranks.failures import Failed
from plait.ranks.same_model import Fingerprint

CAPACITY = 64
"""Messages that each link of such a mesh holds: it is joined before there is a plan, and the plan says the same."""


class Greeting(msgspec.Struct, tag="greeting"):
    """A rank's first word: on which host it is (the launcher's number, and its name), and what it has there."""

    rank: int
    node: int
    name: str
    local_size: int
    cores: int
    free_bytes: int


class Ping(msgspec.Struct, tag="ping"):
    """What does your clock say?"""


class Pong(msgspec.Struct, tag="pong"):
    """This."""

    clock_s: float


class Measure(msgspec.Struct, tag="measure"):
    """Measure the link with `peer`, which is told the same."""

    peer: int


class Measured(msgspec.Struct, tag="measured"):
    """What both ends of a link measured: latency in seconds, bandwidth in bytes/s."""

    latency_s: float
    bandwidth_bytes_per_s: float


class Start(msgspec.Struct, tag="start"):
    """A session begins: open the model, compare it, run your part of the plan. `host` is what yours is called."""

    plan: str
    fingerprint: Fingerprint
    host: str
    trace: bool


class Leave(msgspec.Struct, tag="leave"):
    """Nothing follows. `failed`: end with an error; rank 0 has said which."""

    failed: bool


FromRankZero = Ping | Measure | Start | Leave
ToRankZero = Greeting | Pong | Measured | Progress | Ready | Token | Logits | Finished | Failed
