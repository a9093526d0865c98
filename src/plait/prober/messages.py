"""What the prober and its measuring processes say to each other: one JSON object a line."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from plait.spec.model import ModelSpec


class Job(msgspec.Struct, frozen=True):
    """What a process holds: `share` layers for when others compute beside it, and the rest of `layers` (0: no rest).

    `slots` × `context` positions are in the cache. `packed_for`: rows that decode together, usually. Of a tensor group
    of `tp` ranks it holds the largest shard; `mesh` is what it needs to talk to them.
    """

    spec: ModelSpec
    dtype: str
    threads: int
    share: int
    layers: int
    slots: int
    context: int
    packed_for: int
    tp: int = 1
    shares: tuple[int, ...] = ()
    sequence: bool = False
    mesh: dict[str, int | bool | list[int]] | None = None


class Work(NamedTuple):
    """A forward to measure: `rows` of `length` positions each, from `start` on. One row where the length is above 1.

    `samples`: each row yields a token.
    """

    rows: int
    length: int
    start: int
    samples: bool = True


class Alone(msgspec.Struct, tag="alone", frozen=True):
    """Measure each of `works`, taking turns, `least` times and until `budget_s` is spent; in prefill on few layers."""

    works: tuple[Work, ...]
    least: int
    budget_s: float


class Beside(msgspec.Struct, tag="beside", frozen=True):
    """Repeat `work` on the share from `begin_s` until `end_s` of the system's monotonic clock."""

    work: Work
    begin_s: float
    end_s: float


Request = Alone | Beside


class Timed(NamedTuple):
    """Seconds: what a forward takes beside its layers, one layer, the last stage's last layer with the head."""

    action_s: float
    layer_s: float
    last_s: float
