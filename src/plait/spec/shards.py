"""Which tensor is cut on which axis in which unit when a tensor group shares a layer: declared once, as data.

nn, the loader, costs, rules, checkpoints and reports read it here. The arrangement is that of Shoeybi et al.,
"Megatron-LM" (2019), section 3: the first product of a pair is cut by its outputs, the second by its inputs, so that
one sum after attention and one after the MLP is all that a layer exchanges.

Heads are dealt in order, whole ones; a rank holds every KV head that one of its query heads reads, so that a KV head
whose query heads are divided lies on both ranks (docs/decisions/0014 says why query heads and not KV groups are dealt).
Any number of units goes over any number of ranks: a rank may hold none of a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import gcd, lcm
from types import MappingProxyType
from typing import NamedTuple

from plait.errors import PlanError
from plait.spec.model import ModelSpec
from plait.spec.tensors import Shape, stage_tensors


class Unit(Enum):
    """What is dealt to the ranks of a tensor group, and never divided."""

    HEAD = "query head"
    KV_HEAD = "KV head"
    COLUMN = "MLP column"
    EXPERT_COLUMN = "column of every expert"
    SHARED_COLUMN = "column of the shared experts"
    VOCAB_ROW = "vocabulary row"


class Cut(NamedTuple):
    """A weight is cut along `axis`, in units of `unit`."""

    axis: int
    unit: Unit


CUTS: Mapping[str, Cut] = MappingProxyType(
    {
        "embed": Cut(0, Unit.VOCAB_ROW),
        "head": Cut(0, Unit.VOCAB_ROW),
        "q": Cut(0, Unit.HEAD),
        "k": Cut(0, Unit.KV_HEAD),
        "v": Cut(0, Unit.KV_HEAD),
        "q_up": Cut(0, Unit.HEAD),
        "kv_up": Cut(0, Unit.HEAD),
        "o": Cut(1, Unit.HEAD),
        "gate": Cut(0, Unit.COLUMN),
        "up": Cut(0, Unit.COLUMN),
        "down": Cut(1, Unit.COLUMN),
        "experts.gate": Cut(1, Unit.EXPERT_COLUMN),
        "experts.up": Cut(1, Unit.EXPERT_COLUMN),
        "experts.down": Cut(2, Unit.EXPERT_COLUMN),
        "shared.gate": Cut(0, Unit.SHARED_COLUMN),
        "shared.up": Cut(0, Unit.SHARED_COLUMN),
        "shared.down": Cut(1, Unit.SHARED_COLUMN),
    }
)
"""Weights by their name within a layer. What is not named is whole on every rank: norms, learned positions, routers,
the down projections of latent attention. A bias is cut with the outputs of its weight, and whole where the weight is
cut by its inputs: it is added once, after the sum."""

FULL_QK_NORMS: Mapping[str, Cut] = MappingProxyType({"q_norm": Cut(0, Unit.HEAD), "k_norm": Cut(0, Unit.KV_HEAD)})
"""Norms of queries and keys over the whole projection go with their heads; those of one head are whole."""


class Grain(NamedTuple):
    """The least multiples at which a weight can be cut: along its inputs (K) and along its outputs (N)."""

    inputs: int
    outputs: int


GRAINS: Mapping[str, Grain] = MappingProxyType({"int8": Grain(32, 16), "int4": Grain(32, 16)})
"""Formats whose packed kernels want multiples (torch's _weight_int8pack_mm: K % 16 = 0; _weight_int4pack_mm:
N % 16 = 0, groups of 32 along K). All others can be cut anywhere."""

_ANYWHERE = Grain(1, 1)


class Range(NamedTuple):
    """Units [first, end)."""

    first: int
    end: int

    @property
    def size(self) -> int:
        """How many."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Shard:
    """What rank `index` of a tensor group of `size` ranks holds. `part`: the share of the work meant for it."""

    index: int
    size: int
    part: float
    units: Mapping[Unit, Range]

    @property
    def heads(self) -> Range:
        """Its query heads."""
        return self.units[Unit.HEAD]

    @property
    def kv_heads(self) -> Range:
        """The KV heads that they read."""
        return self.units[Unit.KV_HEAD]

    @property
    def columns(self) -> Range:
        """Its columns of the MLP."""
        return self.units[Unit.COLUMN]

    @property
    def vocab(self) -> Range:
        """Its rows of the vocabulary."""
        return self.units[Unit.VOCAB_ROW]


class Piece(NamedTuple):
    """A rank's part of a tensor: `shape` of the part, which is [first, end) along `axis`; axis None: all of it."""

    shape: Shape
    axis: int | None = None
    first: int = 0
    end: int = 0


def tensor_cut(spec: ModelSpec, name: str) -> Cut | None:
    """How a tensor of `plait.spec.tensors` (with or without ``layers.N.``) is cut; None where every rank has all."""
    short = name.split(".", 2)[2] if name.startswith("layers.") else name
    stem, _, kind = short.rpartition(".")
    if spec.qk_norm == "full" and stem in FULL_QK_NORMS:
        return FULL_QK_NORMS[stem]
    cut = CUTS.get(stem)
    if cut is None or kind == "weight":
        return cut
    outputs = 1 if stem.startswith("experts.") else 0  # where a weight's outputs are: [out, in] or [experts, out, in]
    return cut if cut.axis == outputs else None


def unit_count(spec: ModelSpec, unit: Unit) -> int:
    """How many of a unit a layer, or the vocabulary, has."""
    experts = spec.experts
    match unit:
        case Unit.HEAD:
            return spec.heads
        case Unit.KV_HEAD:
            return spec.kv_heads
        case Unit.COLUMN:
            return spec.intermediate
        case Unit.EXPERT_COLUMN:
            return 0 if experts is None else experts.intermediate
        case Unit.SHARED_COLUMN:
            return 0 if experts is None else experts.shared * experts.shared_intermediate
        case Unit.VOCAB_ROW:
            return spec.vocab


def deal(count: int, ranks: int, shares: Sequence[float] = (), grain: int = 1) -> tuple[Range, ...]:
    """`count` units over the ranks, in order, as near to the proportions `shares` as whole multiples of `grain` allow.

    Largest remainders get what is left (Hamilton's method), of equal ones the lowest rank. Shares that are whole
    numbers and add up to the count are dealt exactly.
    """
    grains = -(-count // grain)
    parts = shares or [1.0] * ranks
    total = sum(parts)
    quotas = [grains * part / total for part in parts]
    held = [int(quota + 1e-9) for quota in quotas]
    left = grains - sum(held)
    for rank in sorted(range(ranks), key=lambda rank: (held[rank] - quotas[rank], rank))[:left]:
        held[rank] += 1
    found, first = [], 0
    for number in held:
        end = min(count, first + number * grain)
        found.append(Range(first, end))
        first = end
    return tuple(found)


def make_shards(spec: ModelSpec, tp: int, shares: Sequence[float] = (), weights: str = "float32") -> tuple[Shard, ...]:
    """What each of `tp` ranks holds; `shares` are in proportion to their speed, without them all get the same.

    `weights`: the format that they are stored in, which may want cuts at multiples. Errors: PlanError.
    """
    if tp < 1:
        raise PlanError(f"tp is {tp}, but must be at least 1")
    if shares and (len(shares) != tp or min(shares) <= 0):
        raise PlanError(
            f"shares {', '.join(f'{share:g}' for share in shares)} do not fit a tensor group of {tp} ranks: "
            f"write {tp} numbers above 0, in proportion to the devices' speed"
        )
    return _shards(spec, tp, tuple(shares), GRAINS.get(weights, _ANYWHERE))


@lru_cache(maxsize=512)
def _shards(spec: ModelSpec, tp: int, shares: tuple[float, ...], grain: Grain) -> tuple[Shard, ...]:
    dealt = {unit: deal(unit_count(spec, unit), tp, shares, _grain_of(spec, unit, grain)) for unit in Unit}
    dealt[Unit.KV_HEAD] = tuple(_read_by(heads, spec, grain) for heads in dealt[Unit.HEAD])
    total = sum(shares)
    parts = [share / total for share in shares] or [1 / tp] * tp
    return tuple(
        Shard(rank, tp, parts[rank], MappingProxyType({unit: ranges[rank] for unit, ranges in dealt.items()}))
        for rank in range(tp)
    )


def _grain_of(spec: ModelSpec, unit: Unit, grain: Grain) -> int:
    """Units that have to stay together. Heads and columns are outputs of one weight and inputs of the next."""
    if unit is Unit.VOCAB_ROW:
        return grain.outputs
    both = lcm(grain.inputs, grain.outputs)
    if unit is Unit.HEAD:
        return both // gcd(both, spec.head_dim)
    return both


def _read_by(heads: Range, spec: ModelSpec, grain: Grain) -> Range:
    """The KV heads that a range of query heads reads, widened to where their weights can be cut."""
    if not heads.size:
        return Range(0, 0)
    group = spec.heads // spec.kv_heads
    together = grain.outputs // gcd(grain.outputs, spec.head_dim)
    first, end = heads.first // group, -(-heads.end // group)
    return Range(first // together * together, min(spec.kv_heads, -(-end // together) * together))


def whole_shard(spec: ModelSpec) -> Shard:
    """All of it, on one rank."""
    return make_shards(spec, 1)[0]


def shard_tensors(spec: ModelSpec, first: int, end: int, shard: Shard) -> dict[str, Piece]:
    """Name to the piece that a rank holds of a stage with layers [first, end)."""
    return {name: piece_of(spec, name, shape, shard) for name, shape in stage_tensors(spec, first, end).items()}


def piece_of(spec: ModelSpec, name: str, shape: Shape, shard: Shard) -> Piece:
    """A rank's piece of one tensor, whose whole shape is `shape`."""
    cut = tensor_cut(spec, name)
    if cut is None or shard.size == 1:
        return Piece(shape)
    axis, units = cut.axis, shard.units[cut.unit]
    if name.endswith(".bias"):
        axis = len(shape) - 1
    width = shape[axis] // unit_count(spec, cut.unit)  # of one unit
    begin, stop = units.first * width, units.end * width
    return Piece((*shape[:axis], stop - begin, *shape[axis + 1 :]), axis, begin, stop)


def even_rows(rows: int, ranks: int) -> tuple[int, ...]:
    """Rows of each rank where activations are split along the sequence: as even as they divide, the first have more."""
    return tuple(rows // ranks + (rank < rows % ranks) for rank in range(ranks))
