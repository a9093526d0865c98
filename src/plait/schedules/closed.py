"""Closed forms of a step's time and of the activations in flight, for stages that are equal and links that are free.

The planner looks at all candidates with them; a test holds them equal to the replay of the orders. `exact` says where
they are exact; elsewhere `step_s` is a lower bound and `in_flight` an upper one.

Sources of the bubbles: GPipe arXiv 1811.06965 section 2.3; 1F1B and interleaved arXiv 2104.04473 section 2.2; ZB-H1 and
ZB-H2 arXiv 2401.10241 table 2; DualPipe-V the README of deepseek-ai/DualPipe. The zero-bubble ones hold in their source
for W about as long as F and I; the other terms of each maximum are the longest paths through the same orders when it
is not, found and checked by replay. Theirs is the longest span of a stage, ours the whole step: ZB-H2 and ZB-V end
(positions − 1) · F later than their longest span, since the last position begins so much later. DualPipe-V's source
counts a forward beside a backward as one block, which hands over when both end; ours hands over what ends first.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plait.schedules.training import SPLIT_BACKWARD, require_training_schedule


def step_s(
    schedule: str,
    positions: int,
    virtual: int,
    micro_batches: int,
    forward_s: float,
    input_s: float,
    weight_s: float,
) -> float:
    """Seconds of one step, from those of one (virtual) stage and one micro-batch. Errors: PlanError."""
    require_training_schedule(schedule, virtual)
    one_s = forward_s + input_s + weight_s
    through_s = positions * virtual * one_s
    if schedule == "layerwise":
        return micro_batches * through_s
    # of one micro-batch alone only the W of the first stage, whose I comes last, is on the way
    split = schedule in SPLIT_BACKWARD
    alone_s = through_s - (positions * virtual - 1) * weight_s if split else through_s
    busy_s = micro_batches * virtual * one_s
    if schedule in ("zb-v", "dualpipe-v") and not exact(schedule, positions, virtual, micro_batches):
        return max(busy_s + (positions - 1) * forward_s, alone_s)
    return max(busy_s + bubble_s(schedule, positions, forward_s, input_s, weight_s), alone_s)


def bubble_s(schedule: str, positions: int, forward_s: float, input_s: float, weight_s: float) -> float:
    """Seconds in which the position that is done last is idle, with micro-batches enough (`exact`); not layer-wise."""
    f, i, w = forward_s, input_s, weight_s
    n = positions - 1
    if n == 0:
        return 0.0
    match schedule:
        case "zb-h1":
            return n * max(f + i - w, f, i)
        case "zb-h2":
            return n * max(f, f + i - 2 * w, i - f)
        case "zb-v":
            return max(
                n * i,
                2 * n * (i - w),
                max(f, i) + (n - 1) * w,
                (2 * n - 1) * f - (n - 1) * i,
                (2 * n - 1) * f + i - 2 * n * w,
                2 * n * f - n * i - w,
                2 * n * f - (2 * n + 1) * w,
            )
        case "dualpipe-v":
            return max(
                n * f,
                n * (f + i - w),
                n * (2 * f - i - w),
                2 * n * (f - w),
                2 * n * i - n * w - f,
                n * i - f,
            )
        case _:
            return n * (f + i + w)


def exact(schedule: str, positions: int, virtual: int, micro_batches: int) -> bool:
    """True where `step_s` and `in_flight` are exact: micro-batches as many, and of such a number, as it likes."""
    match schedule:
        case "interleaved":
            return micro_batches % positions == 0
        case "zb-h1":
            return micro_batches >= positions
        case "zb-h2" | "zb-v":
            return micro_batches >= 2 * positions - 1
        case "dualpipe-v":
            return micro_batches >= 2 * positions
        case _:
            return True


def in_flight(schedule: str, positions: int, virtual: int, micro_batches: int) -> tuple[float, ...]:
    """For each position the most activations it holds at once, in those of one micro-batch in one of its stages.

    They are held from F until B, or until W where the backward is split. Errors: PlanError.
    """
    require_training_schedule(schedule, virtual)
    most = float(virtual * micro_batches)
    return tuple(min(_held(schedule, positions, virtual, position, most), most) for position in range(positions))


Count = TypeVar("Count", float, NDArray[np.float64])


def heads_in_flight(schedule: str, virtual: int, flying: Count, micro_batches: Count) -> Count:
    """The most micro-batches whose logits the last stage holds at once, where its position holds `flying` activations.

    They are held from F until B, or until W where the backward is split: GPipe holds those of all, and where B follows
    F at once there is one. Of split backwards it is an upper bound, as `in_flight`. Also of arrays.
    """
    if schedule == "gpipe":
        return micro_batches
    return flying / virtual if schedule in SPLIT_BACKWARD else micro_batches**0


def _held(schedule: str, positions: int, virtual: int, position: int, most: float) -> float:
    match schedule:
        case "layerwise":
            return float(virtual)
        case "1f1b":
            return float(positions - position)
        case "interleaved":
            return 2.0 * (positions - 1 - position) + (virtual - 1) * positions + 1
        case "zb-h1":
            return float(positions)
        case "zb-h2":
            return 2.0 * positions - 1
        case "zb-v":
            return 2.0 * positions
        case "dualpipe-v":
            return 2.0 * positions + 1
        case _:
            return most
