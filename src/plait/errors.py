"""Every error that Plait raises on purpose.

    PlaitError
    ├── UsageError (also a ValueError): what a person gave cannot work
    │   ├── SpecError       a model, cluster or job description
    │   ├── PlanError       a cut, a schedule, a plan file
    │   ├── WeightsError    a weights file: missing, corrupt, not what the model needs
    │   ├── CapacityError   memory: need, free and shortfall
    │   ├── DataError       a text to train on
    │   └── RequestError    a prompt or its options
    └── RunError (also a RuntimeError): a run broke
        ├── PeerLost        a rank died or cannot be reached
        ├── WaitTimeout     a rank waited longer than it may
        └── ParityError     results differ from one process by more than the bound

A message says what was given, what is needed, by how much it falls short, and what to type next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlaitError(Exception):
    """Base of all errors that Plait raises on purpose."""


class UsageError(PlaitError, ValueError):
    """What a person gave cannot work; the message says what would."""


class SpecError(UsageError):
    """A model, cluster or job description that cannot be read or cannot be right."""


class PlanError(UsageError):
    """A layout, schedule, round or plan file that cannot work."""


class WeightsError(UsageError):
    """A weights file that is missing, corrupt, unsafe, or not what the model needs."""


class CapacityError(UsageError):
    """Not enough memory: the message holds need, free and shortfall."""


class DataError(UsageError):
    """A text to train on that cannot be read, or is too short."""


class RequestError(UsageError):
    """A prompt or its options that cannot be served."""


class RunError(PlaitError, RuntimeError):
    """A run broke after it had started."""


class PeerLost(RunError):
    """Another rank died or cannot be reached any more. `rank` names it."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class WaitTimeout(RunError):
    """A rank waited longer than it may; the message says for what and for whom."""


class ParityError(RunError):
    """Results differ from one process by more than the bound."""


def nearest(given: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them: ``did you mean 'llama'?``."""
    words = sorted(known)
    close = difflib.get_close_matches(given, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(words)
