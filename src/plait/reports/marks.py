"""What stands in a cell of a picture: compute of a micro-batch, transfer, wait, or nothing; and how it is written.

No meaning lies in colour alone: every mark has its own character.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class What(IntEnum):
    """In the order of what is shown where several things happen at once."""

    COMPUTE = 0
    TRANSFER = 1
    WAIT = 2
    IDLE = 3


class Mark(NamedTuple):
    """`what` goes on; `micro_batch` is 0 but for compute. The smallest mark is shown where several go on."""

    what: What
    micro_batch: int = 0


TRANSFER, WAIT, IDLE = Mark(What.TRANSFER), Mark(What.WAIT), Mark(What.IDLE)


class Glyphs(NamedTuple):
    """The characters of a picture. Micro-batches begin again at the first where there are more than characters."""

    compute: str
    transfer: str
    wait: str
    line: str
    tick: str

    def of(self, mark: Mark) -> str:
        """The character of a mark."""
        if mark.what is What.COMPUTE:
            return self.compute[mark.micro_batch % len(self.compute)]
        return {What.TRANSFER: self.transfer, What.WAIT: self.wait, What.IDLE: " "}[mark.what]


UNICODE = Glyphs("█▒▓░▚▞▙▜", "━", "·", "─", "┬")
ASCII = Glyphs("0123456789", "=", ".", "-", "+")

_COMPUTE_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red", "bright_cyan", "bright_yellow")
_STYLES: Mapping[What, str] = {What.TRANSFER: "bright_white", What.WAIT: "dim", What.IDLE: ""}


def style_of(mark: Mark) -> str:
    """The colour of a mark, for rich."""
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
