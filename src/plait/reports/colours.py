"""The colours of pictures, and what is drawn in which: the same on the page, in stills and in charts.

After Okabe and Ito, "Color Universal Design" (2008): eight colours that people with any common colour blindness tell
apart. Yellow is left out: on white it can hardly be seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.plans.action import Kind

SKY, BLUE, ORANGE, VERMILION = "#56b4e9", "#0072b2", "#e69f00", "#d55e00"
GREEN, PURPLE, BLACK, GREY = "#009e73", "#cc79a7", "#333333", "#d5d5d5"

COLOURS: Mapping[str, str] = {
    "forward": SKY,
    "backward": ORANGE,
    "weight": GREEN,
    "optimizer": PURPLE,
    "message": BLUE,
    "reduction": BLACK,
    "exchange": VERMILION,
    "wait": GREY,
}
"""The colour of each sort of work, in the order of a legend. Waiting is light: what is not work recedes."""

WORDS: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "weight": "backward of weights",
    "optimizer": "norm and optimizer",
    "message": "message",
    "reduction": "reduction",
    "exchange": "exchange inside an action",
    "wait": "wait",
}
"""What a legend says of each."""

SORTS: Mapping[Kind, str] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "weight",
    Kind.OPTIMIZER: "optimizer",
    Kind.NORM: "optimizer",
    Kind.REDUCE_GRADIENTS: "reduction",
    Kind.REDUCE_TIED: "reduction",
    Kind.GATHER_PARAMETERS: "reduction",
    Kind.SEND_FORWARD: "message",
    Kind.RECEIVE_FORWARD: "message",
    Kind.SEND_BACKWARD: "message",
    Kind.RECEIVE_BACKWARD: "message",
    Kind.SEND_TOKENS: "message",
    Kind.RECEIVE_TOKENS: "message",
}
"""The sort of work that each kind of action is."""

SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)
"""Of the lines and bars of a chart, in their order."""


def sort_of(kind: Kind, part: str) -> str:
    """What a part ("compute", "transfer" or "wait") of an action is drawn as: a key of `COLOURS`."""
    if part == "wait":
        return "wait"
    sort = SORTS[kind]
    inside = part == "transfer" and sort not in ("message", "reduction")
    return "exchange" if inside else sort
