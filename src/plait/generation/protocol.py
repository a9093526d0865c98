"""What the front and the ranks say to each other: msgpack structs, never pickles.

front → rank   Setup, then to rank 0 Submit …, Finish
rank → front   Progress …, Ready, from rank 0 Token …, from the last stage Logits …, Finished; Failed at any time
rank 0 → rank  RoundMessage …, to the first stage also ReceiveNow …, EndOfRounds
"""

from __future__ import annotations

import msgspec

from plait.plans.action import Action
from plait.plans.sampling import SamplingParams
from plait.ranks.failures import Failed
from plait.timeline.record import RoundRecipe


class Setup(msgspec.Struct, tag="setup"):
    """Which rank a process is, of what plan, over what transport and weights."""

    rank: int
    plan: str
    index: bytes
    mesh: dict[str, object]
    trace: bool


class Submit(msgspec.Struct, tag="submit"):
    """A request: prompt tokens, how many more at most, the tokens that end it, and whether its logits are wanted."""

    request: int
    prompt: list[int]
    max_tokens: int
    stop: list[int]
    sampling: SamplingParams
    logits: bool = False


class Finish(msgspec.Struct, tag="finish"):
    """Answer what was submitted, then leave."""


class Progress(msgspec.Struct, tag="progress"):
    """How many of its weight bytes a rank has loaded."""

    rank: int
    done_bytes: int
    total_bytes: int


class Ready(msgspec.Struct, tag="ready"):
    """The rank holds its stage and can answer."""

    rank: int
    load_s: float
    weight_bytes: int


class Token(msgspec.Struct, tag="token"):
    """The next token of a request; `finish_reason` on its last one: "stop" or "length"."""

    request: int
    token: int
    finish_reason: str | None


class Logits(msgspec.Struct, tag="logits"):
    """What a token was drawn from, for the token at `position`: float32 [vocab] as bytes. From the last stage.

    Of a tensor group each rank tells its own rows of the vocabulary, from `first` on.
    """

    request: int
    position: int
    values: bytes
    first: int = 0


class Finished(msgspec.Struct, tag="finished"):
    """A rank's last word: its spans, what it sent to each rank, its peak memory; from rank 0 also the rounds."""

    rank: int
    spans: bytes
    sent_bytes: list[int]
    peak_bytes: int
    rounds: list[RoundRecipe]


class Admitted(msgspec.Struct, array_like=True):
    """What the other ranks must know of a request: how it is sampled, and those of the first stage its prompt."""

    request: int
    sampling: SamplingParams
    logits: bool = False
    prompt: list[int] = []


class RoundMessage(msgspec.Struct, tag="round"):
    """All that a rank needs to make the same round as rank 0, and the requests that come and go with it."""

    recipe: RoundRecipe
    admitted: list[Admitted] = []
    retired: list[int] = []


class ReceiveNow(msgspec.Struct, tag="receive"):
    """To the other ranks of the first stage: rank 0 takes these tokens before it makes the next round; so do you.

    Else they would lie on the link until that round is announced, which may wait for what the link has no room for.
    """

    action: Action


class EndOfRounds(msgspec.Struct, tag="end"):
    """No further round comes."""


ToRank = Setup | Submit | Finish
ToFront = Progress | Ready | Token | Logits | Finished | Failed
ToFollower = RoundMessage | ReceiveNow | EndOfRounds
