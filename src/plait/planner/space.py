"""Every way to split a training step that the search looks at: the axes, and how a step goes through them.

What is searched does not depend on how many devices there are, only on the model, the batch and the size of a host:
with more devices the space grows and loses nothing, so the best of it never gets worse.

- `tp` divides the devices of a host, or fills whole hosts in powers of two; at most one rank a head, of equal or
  unequal shards.
- `ep` divides the number of experts (1 without experts).
- `pp` is at most the layers: every number to 16, beyond it those that divide the layers, or the layers and one or two
  more (one layer fewer on the first or the last stage), and 2^a, 3 · 2^a.
- `dp`: dp × ep divides the batch.
- a micro-batch has 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 or 64 sequences, of at most 32,768 tokens together (or one
  sequence), where that divides a replica's share.
- a position holds 1 stage, or 2, 3, 4, 6 or 8 (interleaved; equal ones, or one layer fewer on the first or the last),
  or 2 (the V schedules).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from plait.plans.split import RECOMPUTE, Recompute, Split
from plait.schedules.training import V_SHAPED, require_training_schedule
from plait.spec.model import ModelSpec

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sequences that a micro-batch may have."""

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "layerwise")
"""Schedules that are searched, the plainest first: of equally fast ones it is chosen."""

_VIRTUAL = (2, 3, 4, 6, 8)
_EVERY_PP = 16
_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class TrainingLimits:
    """What the search is held to. None: anything that can be. Raises PlanError for a schedule that is not there.

    `devices`: how many of the cluster's devices may be used. `zero` 2 and 3 are planned only: searched when named here.
    """

    devices: int | None = None
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    ep: int | None = None
    virtual: int | None = None
    micro_batch: int | None = None
    schedules: tuple[str, ...] = SCHEDULES
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero: tuple[int, ...] = (0, 1)
    sequence_split: bool | None = None

    def __post_init__(self) -> None:
        for schedule in self.schedules:
            require_training_schedule(schedule, 2 if schedule in V_SHAPED else 1)

    def loosened(self) -> TrainingLimits:
        """The same without those that cost memory: any micro-batch, any recompute, ZeRO-1."""
        zero = tuple(sorted({*self.zero, 0, 1}))
        return replace(self, micro_batch=None, recompute=RECOMPUTE, zero=zero, sequence_split=None)


class Way(NamedTuple):
    """How a step goes through the stages: a schedule, and the stages that a position holds."""

    schedule: str
    virtual: int

    def allows(self, pp: int, layers: int) -> bool:
        """True where it makes sense for so many positions, and every stage has a layer.

        One position alone has nothing to schedule: it counts as 1F1B.
        """
        if pp == 1:
            return self.schedule == "1f1b"
        return pp * self.virtual <= layers and (self.schedule != "interleaved" or self.is_even(pp, layers))

    def is_even(self, pp: int, layers: int) -> bool:
        """True where all stages but the first and the last can be equal: interleaved ones wait for the largest."""
        return any((layers + fewer) % (pp * self.virtual) == 0 for fewer in range(3))


def ways(limits: TrainingLimits) -> list[Way]:
    """Schedules with their numbers of virtual stages; none that was not asked for, not even for one position alone."""
    found = []
    for schedule in limits.schedules:
        if schedule == "interleaved":
            found += [Way(schedule, virtual) for virtual in _within(list(_VIRTUAL), limits.virtual) if virtual > 1]
        else:
            found.append(Way(schedule, 2 if schedule in V_SHAPED else 1))
    if limits.virtual is not None:
        found = [way for way in found if way.virtual == limits.virtual]
    return found


def micro_batch_sizes(sequence: int, limits: TrainingLimits) -> tuple[int, ...]:
    """Sequences that a micro-batch may have; products no longer grow more efficient beyond so many tokens."""
    if limits.micro_batch is not None:
        return (limits.micro_batch,)
    return tuple(size for size in MICRO_BATCHES if size == 1 or size * sequence <= _TOKENS)


def splits(spec: ModelSpec, batch: int, devices: int, per_host: int, limits: TrainingLimits) -> list[Split]:
    """Every split over at most `devices` devices, hosts having `per_host` each, within the limits."""
    found = []
    replicas = divisors(batch)
    for tp in _within(tensor_degrees(spec.heads, per_host), limits.tp):
        for ep in _within(expert_degrees(spec), limits.ep):
            for pp in _within(pipeline_degrees(spec.layers), limits.pp):
                room = devices // (tp * ep * pp)
                for share in replicas:
                    dp, rest = divmod(share, ep)
                    if not rest and dp <= room and limits.dp in (None, dp):
                        found.append(Split(dp, pp, tp, ep))
    return found


def tensor_degrees(heads: int, per_host: int) -> list[int]:
    """Sizes of a tensor group: divisors of a host's devices, and whole hosts in powers of two."""
    found = [size for size in divisors(per_host) if size <= heads]
    size = 2 * per_host
    while size <= heads:
        found.append(size)
        size *= 2
    return found


def expert_degrees(spec: ModelSpec) -> list[int]:
    """Ways to divide the experts."""
    return divisors(spec.experts.count) if spec.experts else [1]


def pipeline_degrees(layers: int) -> list[int]:
    """Numbers of positions that are looked at."""
    found = set(range(1, min(layers, _EVERY_PP) + 1))
    for more in range(3):
        found |= set(divisors(layers + more))
    for base in (1, 3):
        found |= {base * 2**exponent for exponent in range(layers.bit_length())}
    return sorted(number for number in found if number <= layers)


def divisors(number: int) -> list[int]:
    """All of them, in order."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def kind_of(split: Split) -> str:
    """The sort of split, by the axes that it uses: ``data + pipeline``."""
    names = (("data", split.dp), ("expert", split.ep), ("pipeline", split.pp), ("tensor", split.tp))
    return " + ".join(name for name, size in names if size > 1) or "one device"


def _within(sizes: list[int], asked: int | None) -> Iterator[int]:
    """The size that was asked for, if any; also where the search itself would not look."""
    yield from sizes if asked is None else [asked]
