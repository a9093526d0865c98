"""The time of generation on any cluster: a roofline for each device, latency and bandwidth for each link.

An operation takes as long as its FLOP or its bytes do, whichever is longer (Williams, Waterman, Patterson, "Roofline"
(2009)). Weights are read once a micro-batch, caches once a row, so that decoding is bound by memory bandwidth (Pope et
al., "Efficiently Scaling Transformer Inference" (2022), section 2.1). A tensor group adds two all-reduces a layer
(Shoeybi et al., "Megatron-LM" (2019), section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod

from plait.costs.forward import Rows, Sizes, forward_operations, rows_of
from plait.costs.memory import FORMAT_BYTES
from plait.costs.operations import Work, embedding_operations, head_operations
from plait.costs.protocol import FREE, Exchange, LinkCost, Load, Running
from plait.costs.serving_rates import Rates, note_of, profiles_of, rates_of
from plait.costs.shares import Share, rank_shares, whole
from plait.costs.tensor_group import Wires, share_of
from plait.costs.work import cache_values
from plait.errors import PlanError, SpecError, nearest
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch
from plait.plans.rules import TOKEN_BYTES
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts, layer_tensors

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value in the dtypes that activations and caches can have."""

_CANDIDATE_BYTES = 16
"""A sampled candidate: score and token, of which each rank of a tensor group sends its best."""

_WHOLE = ("norm", "router", "q_down", "kv_down")
"""Parts of the names of tensors that every rank of a tensor group holds whole."""


class ServingModel:
    """Seconds and bytes of one model's generation on the devices and links of a cluster.

    `dtype`: of activations and caches, and of what is computed. `weights`: the format that weights are stored and read
    in, by default `dtype`. What devices and links reach of their figures is their profile's; without one they are taken
    as they are. Errors: SpecError for dtypes, formats and devices never heard of.
    """

    def __init__(self, spec: ModelSpec, cluster: Cluster, dtype: str = "bfloat16", weights: str | None = None) -> None:
        self.spec, self.cluster, self.dtype, self.weights = spec, cluster, dtype, weights or dtype
        item_bytes = _known(dtype, ITEM_BYTES, "dtype")
        self.sizes = Sizes(_known(self.weights, FORMAT_BYTES, "weight format"), item_bytes)
        self._profiles = profiles_of(cluster.devices)
        self.wires = Wires(cluster, self._profiles)
        self._rates = rates_of(cluster.devices, dtype, self._profiles)
        self._layer_s: dict[tuple[Rates, object, tuple[Rows, ...], Share], float] = {}

    def with_links(self, cluster: Cluster) -> ServingModel:
        """The same on a cluster that has other links, or fewer hosts: what layers take is known already."""
        model = copy(self)
        model.cluster, model.wires = cluster, Wires(cluster, self._profiles)
        return model

    @property
    def note(self) -> str:
        """How far the figures are calibrated."""
        return note_of(self.cluster.devices)

    # seconds on one device

    def layer_s(self, device: str, layer: int, tokens: int, rows: int, cached: float, share: float = 1.0) -> float:
        """One layer's forward: `tokens` positions of `rows` requests, each with `cached` positions before them.

        `share`: the part of the query heads, and of the MLP, that the device holds of a tensor group's.
        """
        return self._layer(device, layer, (Rows(rows, tokens / rows, cached),), share_of(self.spec, share))

    def first_s(self, device: str, tokens: int, rows: int = 0, share: float = 1.0) -> float:
        """The embedding of `tokens` positions; every rank of a tensor group does all of it."""
        work = Work(tokens, 0.0, whole(self.spec), item_bytes=self.sizes.item_bytes)
        return self._of(device).seconds(embedding_operations(self.spec, work))

    def last_s(self, device: str, tokens: int, rows: int, share: float = 1.0) -> float:
        """Final norm, LM head and sampling of the `rows` positions that yield a token; 0 where none does."""
        if not rows:
            return 0.0
        part, sizes = share_of(self.spec, share), self.sizes
        work = Work(rows, 0.0, part, item_bytes=sizes.item_bytes, weight_bytes=sizes.weight_bytes)
        return self._of(device).seconds(head_operations(self.spec, work))

    def fixed_s(self, device: str) -> float:
        """What a stage's forward takes beside its layers, whatever it computes."""
        return self._of(device).action_s

    # seconds on links

    def hand_over_s(self, source: str, to: str, tokens: int) -> float:
        """The activations [tokens, hidden] from one stage to the next."""
        return self.wires.transfer_s(source, to, tokens * self.spec.hidden * self.sizes.item_bytes)

    def token_back_s(self, source: str, to: str, rows: int) -> float:
        """The sampled tokens from the last stage to the first."""
        return self.wires.transfer_s(source, to, rows * TOKEN_BYTES)

    def tensor_exchange_s(self, devices: Sequence[str], tokens: int) -> float:
        """The two all-reduces of one layer, of activations [tokens, hidden]."""
        return 2 * self._all_reduce(devices, tokens).seconds

    def sample_exchange_s(self, devices: Sequence[str], rows: int) -> float:
        """The best candidate of each part of the vocabulary, gathered on the last stage of a tensor group."""
        return self.wires.all_reduce(devices, rows * _CANDIDATE_BYTES).seconds if rows else 0.0

    # a stage

    def stage_s(
        self, devices: Sequence[str], layers: tuple[int, int], micro_batch: MicroBatch, shares: Sequence[int] = ()
    ) -> float:
        """A stage's forward: the slowest device of its tensor group, and what they exchange."""
        parts = rank_shares(self.spec, len(devices), shares)
        compute_s = max(
            self._rank_s(device, layers, micro_batch, part) for device, part in zip(devices, parts, strict=True)
        )
        return compute_s + self.stage_exchange(devices, layers, micro_batch).seconds

    def stage_exchange(self, devices: Sequence[str], layers: tuple[int, int], micro_batch: MicroBatch) -> Exchange:
        """All that a tensor group exchanges in a stage's forward."""
        if len(devices) < 2:
            return Exchange()
        times = 2 * (layers[1] - layers[0])
        each = self._all_reduce(devices, micro_batch.tokens)
        seconds, sent = times * each.seconds, times * each.sent_bytes
        if layers[1] == self.spec.layers and micro_batch.sampled:
            last = self.wires.all_reduce(devices, micro_batch.sampled * _CANDIDATE_BYTES)
            seconds, sent = seconds + last.seconds, sent + last.sent_bytes
        return Exchange(seconds, sent)

    def _rank_s(self, device: str, layers: tuple[int, int], micro_batch: MicroBatch, share: Share) -> float:
        rows = rows_of(micro_batch)
        seconds = self.fixed_s(device)
        if layers[0] == 0:
            seconds += self.first_s(device, micro_batch.tokens)
        if layers[1] == self.spec.layers:
            seconds += self.last_s(device, micro_batch.tokens, micro_batch.sampled, share.part)
        return seconds + sum(self._layer(device, layer, rows, share) for layer in range(*layers))

    def _layer(self, device: str, layer: int, rows: tuple[Rows, ...], share: Share) -> float:
        rates = self._of(device)
        key = rates, self._alike(layer), rows, share
        known = self._layer_s.get(key)
        if known is None:
            operations = forward_operations(self.spec, layer, rows, share, self.sizes)
            known = self._layer_s[key] = rates.seconds(operations)
        return known

    def _alike(self, layer: int) -> object:
        """Layers with the same cost have the same."""
        return has_experts(self.spec, layer), self.spec.windows[layer]

    def _all_reduce(self, devices: Sequence[str], tokens: int) -> Exchange:
        return self.wires.all_reduce(devices, tokens * self.spec.hidden * self.sizes.item_bytes)

    def _of(self, device: str) -> Rates:
        if device not in self._rates:
            self.cluster.device(device)  # says which name is nearest
        return self._rates[device]

    # bytes

    def weight_bytes(self, layer: int, share: float = 1.0) -> float:
        """One layer's weights on a rank with this share."""
        part = share_of(self.spec, share)
        held = 0.0
        for name, shape in layer_tensors(self.spec, layer).items():
            if any(word in name for word in _WHOLE):
                held += prod(shape)
            elif name.startswith(("k.", "v.")):
                held += prod(shape) * part.kv_heads / self.spec.kv_heads
            else:
                held += prod(shape) * part.part
        return held * self.sizes.weight_bytes

    def kv_bytes(self, layer: int, rows: int, context: int, share: float = 1.0) -> float:
        """One layer's cache of `rows` requests of `context` positions. A sliding window does not shrink it."""
        kv_heads = share_of(self.spec, share).kv_heads
        return rows * context * cache_values(self.spec, kv_heads) * self.sizes.item_bytes

    def first_bytes(self, share: float = 1.0) -> float:
        """The embedding, whole on every rank of the first stage."""
        positions = self.spec.max_positions if self.spec.learned_positions else 0
        return (self.spec.vocab + positions) * self.spec.hidden * self.sizes.weight_bytes

    def last_bytes(self, share: float = 1.0) -> float:
        """Final norm and LM head, which is cut along the vocabulary; a tied one is held beside the embedding."""
        return (share * self.spec.vocab + 1) * self.spec.hidden * self.sizes.weight_bytes

    def workspace_bytes(self, tokens: int, sampled: int, context: int, share: float = 1.0) -> float:
        """The most that lies beside weights and cache while `tokens` positions go through: an upper bound.

        Input, residual and normed values [tokens, hidden]; queries, keys and values; gate, up and their product; one
        head's scores in float32 at a time, as fused attention needs at most; logits in float32, twice.
        """
        spec, part = self.spec, share_of(self.spec, share)
        wide = (
            spec.intermediate
            if spec.experts is None
            else max(spec.intermediate, spec.experts.per_token * spec.experts.intermediate)
        )
        values = tokens * (3 * spec.hidden + 2 * (part.heads + part.kv_heads) * spec.head_dim + 3 * share * wide)
        return values * self.sizes.item_bytes + 4 * tokens * context + 8 * sampled * share * spec.vocab

    def costs(self) -> ServingCosts:
        """What the simulator asks, for layouts whose stages name devices of this cluster."""
        return ServingCosts(self)


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """`Costs` by a serving model. `Stage.devices` holds tensor groups one after the other, each of tp devices."""

    model: ServingModel

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """The stage's forward on its slowest group."""
        where = layout.stages[stage]
        return max(
            self.model.stage_s(group, where.layers, micro_batch, where.shares) for group in _groups(layout, stage)
        )

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """The all-reduces of the slowest group."""
        where = layout.stages[stage]
        return max(self.model.stage_exchange(group, where.layers, micro_batch) for group in _groups(layout, stage))

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Generation reduces no gradients."""
        return 0.0

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """Generation reduces no gradients."""
        return 0

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Always the same: stages share a device evenly."""
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """Stages on the same device share it evenly; others do not disturb each other."""
        devices = [set(_devices(layout.stages[one.stage], one.stage)) for one in running]
        return tuple(1 / sum(bool(own & other) for other in devices) for own in devices)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The slowest of the links between the devices of the two stages that talk to each other.

        Network cards and DMA engines send: a stage computes and receives while its messages are on the link.
        """
        links = [
            self.model.wires.link(one, other)
            for one, other in zip(
                _devices(layout.stages[source], source), _devices(layout.stages[to], to), strict=False
            )
            if one != other
        ]
        if not links:
            return FREE
        latency_s, bandwidth = max(link.latency_s for link in links), min(link.bandwidth for link in links)
        return LinkCost(latency_s, bandwidth, buffered=True)


def _devices(stage: Stage, number: int) -> tuple[str, ...]:
    if len(stage.devices) != len(stage.ranks):
        raise PlanError(
            f"stage {number} has {len(stage.ranks)} ranks but names {len(stage.devices)} devices of the cluster: "
            "each rank needs one to be simulated on"
        )
    return stage.devices


def _groups(layout: Layout, stage: int) -> list[tuple[str, ...]]:
    devices = _devices(layout.stages[stage], stage)
    tp = layout.axes.get("tp", 1)
    return [devices[first : first + tp] for first in range(0, len(devices), tp)]


def _known(name: str, known: Mapping[str, float], what: str) -> float:
    if name not in known:
        raise SpecError(f"unknown {what} {name!r}: {nearest(name, known)}")
    return known[name]
