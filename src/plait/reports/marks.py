"""What stands in a cell of a picture: compute of a micro-batch, transfer, wait, or nothing; and how it is written.

No meaning lies in colour alone: every mark has its own character. In a training step a character says both the
micro-batch and the pass: 0 to 9 a forward, a to j its backward, A to J its weight gradients where they are apart; % is
the norm, # the optimizer. Reductions (G, T, A) are transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple


class What(IntEnum):
    """In the order of what is shown where several things happen at once."""

    COMPUTE = 0
    EXCHANGE = 1
    TRANSFER = 2
    WAIT = 3
    IDLE = 4


class Mark(NamedTuple):
    """`what` goes on; `micro_batch` is 0 but for compute, of which `letters` are the notation's: F, B, I, W, N, O.

    The smallest mark is shown where several go on.
    """

    what: What
    micro_batch: int = 0
    letters: str = "F"


EXCHANGE, TRANSFER, WAIT, IDLE = Mark(What.EXCHANGE), Mark(What.TRANSFER), Mark(What.WAIT), Mark(What.IDLE)


class Glyphs(NamedTuple):
    """The characters of a picture. Micro-batches begin again at the first where there are more than characters."""

    compute: str
    transfer: str
    wait: str
    line: str
    tick: str
    exchange: str

    def of(self, mark: Mark, *, training: bool = False) -> str:
        """The character of a mark; in a training step it says the pass as well."""
        if mark.what is What.COMPUTE:
            characters = PASSES[mark.letters] if training else self.compute
            return characters[mark.micro_batch % len(characters)]
        others = {What.EXCHANGE: self.exchange, What.TRANSFER: self.transfer, What.WAIT: self.wait, What.IDLE: " "}
        return others[mark.what]


UNICODE = Glyphs("█▒▓░▚▞▙▜", "━", "·", "─", "┬", "╪")
ASCII = Glyphs("0123456789", "=", ".", "-", "+", "x")

PASSES: Mapping[str, str] = {
    "F": "0123456789",
    "B": "abcdefghij",
    "I": "abcdefghij",
    "W": "ABCDEFGHIJ",
    "N": "%",
    "O": "#",
}
"""A training step's characters, in every encoding."""

PASS_WORDS: Mapping[str, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward of inputs",
    "W": "backward of weights",
    "N": "norm of the mesh",
    "O": "optimizer",
}
"""What a computation does, by its letters. Without commas: sentences list them."""

ACTION_WORDS: Mapping[str, str] = {
    **PASS_WORDS,
    "SF": "send activations",
    "RF": "receive activations",
    "SB": "send gradients",
    "RB": "receive gradients",
    "ST": "send tokens",
    "RT": "receive tokens",
    "G": "reduce gradients",
    "A": "gather parameters",
    "T": "reduce the tied embedding",
}
"""What an action of any kind does, by its letters."""

_PASS_STYLES: Mapping[str, str] = {"F": "cyan", "B": "yellow", "I": "yellow", "W": "green", "N": "red", "O": "magenta"}
_COMPUTE_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red", "bright_cyan", "bright_yellow")
_STYLES: Mapping[What, str] = {
    What.EXCHANGE: "bright_red",
    What.TRANSFER: "bright_white",
    What.WAIT: "dim",
    What.IDLE: "",
}


def is_training(marks: Iterable[Mark]) -> bool:
    """True where something else than forwards is computed."""
    return any(mark.what is What.COMPUTE and mark.letters != "F" for mark in marks)


def style_of(mark: Mark, *, training: bool = False) -> str:
    """The colour of a mark, for rich: of its micro-batch, in a training step of its pass."""
    if mark.what is What.COMPUTE and training:
        return _PASS_STYLES[mark.letters]
    if mark.what is What.COMPUTE:
        return _COMPUTE_STYLES[mark.micro_batch % len(_COMPUTE_STYLES)]
    return _STYLES[mark.what]


def glyphs_for(encoding: str) -> Glyphs:
    """Unicode where `encoding` has all of its characters, else ASCII."""
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE
