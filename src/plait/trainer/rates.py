"""The learning rate over the steps of a run."""

from __future__ import annotations

import math

from plait.errors import UsageError
from plait.trainer.settings import Rate


def learning_rate(rate: Rate, step: int) -> float:
    """The rate of step `step`, of which the first is 0.

    It rises in a straight line over the first `warmup` steps and is `peak` at step `warmup`; from there it falls to
    floor × peak at step `steps`, in a straight line or as half a cosine (Loshchilov and Hutter, "SGDR" (2017), equation
    5), and stays there.
    """
    if step < rate.warmup:
        return rate.peak * (step + 1) / (rate.warmup + 1)
    if rate.decay == "constant":
        return rate.peak
    gone = min(1.0, (step - rate.warmup) / (rate.steps - rate.warmup))
    left = 1 - gone if rate.decay == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return rate.peak * (rate.floor + (1 - rate.floor) * left)


def check_rate(rate: Rate) -> None:
    """A rate that every step has. Errors: UsageError."""
    if not (rate.peak >= 0 and math.isfinite(rate.peak)):
        raise UsageError(f"the learning rate is {rate.peak:g}, but must be a number from 0 on")
    if not 0 <= rate.floor <= 1:
        raise UsageError(f"the floor of the learning rate is {rate.floor:g} of its peak, but must be from 0 to 1")
    if rate.warmup < 0:
        raise UsageError(f"the learning rate warms up over {rate.warmup} steps, but must over 0 or more")
    if rate.decay != "constant" and rate.steps <= rate.warmup:
        raise UsageError(
            f"a {rate.decay} learning rate falls until step {rate.steps}, but its warm-up takes {rate.warmup} steps: "
            f"give it more than {rate.warmup} steps"
        )
