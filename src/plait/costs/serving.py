"""The time of generation on any cluster: a roofline for each device, latency and bandwidth for each link.

An operation takes as long as its FLOP or its bytes do, whichever is longer (Williams, Waterman, Patterson, "Roofline"
(2009)). Weights are read once a micro-batch, caches once a row, so that decoding is bound by memory bandwidth (Pope et
al., "Efficiently Scaling Transformer Inference" (2022), section 2.1). What a tensor group exchanges, and the bytes of
it, are the rule's of `plans.exchanges`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from plait.costs.forward import Rows, Sizes, forward_operations, rows_of
from plait.costs.memory import FORMAT_BYTES
from plait.costs.operations import Work, embedding_operations, head_operations
from plait.costs.protocol import FREE, Exchange, LinkCost, Load, Running
from plait.costs.serving_rates import Rates, note_of, profiles_of, rates_of
from plait.costs.shares import Share, held_values, rank_shares, whole
from plait.costs.tensor_group import Wires, share_of
from plait.costs.work import cache_values
from plait.errors import PlanError, SpecError, nearest
from plait.plans.action import Kind
from plait.plans.exchanges import Collective, Op, Sharing, entry_exchanges, layer_exchanges, sent_bytes
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch
from plait.plans.rules import TOKEN_BYTES
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.spec.shards import even_rows
from plait.spec.tensors import has_experts, layer_tensors

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value in the dtypes that activations and caches can have."""

Part = float | Share
"""What a device holds of a tensor group's layers: a share, or the part of the query heads."""


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
        self._exchanged: dict[object, Exchange] = {}
        self._layer_s: dict[tuple[Rates, object, tuple[Rows, ...], Share], float] = {}

    def with_links(self, cluster: Cluster) -> ServingModel:
        """The same on a cluster that has other links, or fewer hosts: what layers take is known already."""
        model = copy(self)
        model.cluster, model.wires = cluster, Wires(cluster, self._profiles)
        model._exchanged = {}
        return model

    @property
    def note(self) -> str:
        """How far the figures are calibrated."""
        return note_of(self.cluster.devices)

    # seconds on one device

    def layer_s(self, device: str, layer: int, tokens: int, rows: int, cached: float, share: Part = 1.0) -> float:
        """One layer's forward: `tokens` positions of `rows` requests, each with `cached` positions before them.

        `share`: the part of the query heads, and of the MLP, that the device holds of a tensor group's.
        """
        return self._layer(device, layer, (Rows(rows, tokens / rows, cached),), share_of(self.spec, share))

    def first_s(self, device: str, tokens: int, rows: int = 0, share: Part = 1.0) -> float:
        """The embedding of `tokens` positions: every rank of a tensor group makes as many values, of its own rows."""
        work = Work(tokens, 0.0, whole(self.spec), item_bytes=self.sizes.item_bytes)
        return self._of(device).seconds(embedding_operations(self.spec, work))

    def last_s(self, device: str, tokens: int, rows: int, share: Part = 1.0) -> float:
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
        """The activations [tokens, hidden] from one stage to the next, between two of their devices."""
        return self.wires.transfer_s(source, to, tokens * self.spec.hidden * self.sizes.item_bytes)

    def token_back_s(self, source: str, to: str, rows: int) -> float:
        """The sampled tokens from the last stage to the first."""
        return self.wires.transfer_s(source, to, rows * TOKEN_BYTES)

    def entry_exchange(
        self, devices: Sequence[str], tokens: int, *, is_first: bool, sequence: bool = False
    ) -> Exchange:
        """What a tensor group exchanges before a stage's layers: the embedding's sum, or the rows that came."""
        if len(devices) < 2:
            return Exchange()
        key = tuple(devices), is_first, tokens, sequence
        if key not in self._exchanged:
            sharing = self._sharing(devices, sequence)
            self._exchanged[key] = self._together(
                devices, entry_exchanges(self.spec, sharing, tokens, is_first=is_first)
            )
        return self._exchanged[key]

    def layer_exchange(
        self, devices: Sequence[str], layer: int, tokens: int, sampled: int, *, sequence: bool = False
    ) -> Exchange:
        """What a tensor group exchanges in a layer; in the last one with the candidates of `sampled` rows."""
        if len(devices) < 2:
            return Exchange()
        at = layer if layer == self.spec.layers - 1 else 0
        key = tuple(devices), "layer", at, tokens, sampled, sequence
        if key not in self._exchanged:
            sharing = self._sharing(devices, sequence)
            self._exchanged[key] = self._together(devices, layer_exchanges(self.spec, sharing, layer, tokens, sampled))
        return self._exchanged[key]

    # a stage

    def stage_s(
        self,
        devices: Sequence[str],
        layers: tuple[int, int],
        micro_batch: MicroBatch,
        shares: Sequence[float] = (),
        *,
        sequence: bool = False,
    ) -> float:
        """A stage's forward: the slowest device of its tensor group, and what they exchange."""
        parts = rank_shares(self.spec, len(devices), shares, self.weights)
        compute_s = max(
            self._rank_s(device, layers, micro_batch, part) for device, part in zip(devices, parts, strict=True)
        )
        return compute_s + self.stage_exchange(devices, layers, micro_batch, sequence=sequence).seconds

    def stage_exchange(
        self, devices: Sequence[str], layers: tuple[int, int], micro_batch: MicroBatch, *, sequence: bool = False
    ) -> Exchange:
        """All that a tensor group exchanges in a stage's forward."""
        if len(devices) < 2:
            return Exchange()
        (first, end), tokens, sampled = layers, micro_batch.tokens, micro_batch.sampled
        found = self.entry_exchange(devices, tokens, is_first=first == 0, sequence=sequence)
        seconds, sent = found.seconds, found.by_rank(len(devices))
        ends = {end - 1: 1, first: end - first - 1}  # all but the last one exchange the same
        for layer, times in ends.items() if end - first > 1 else ((first, 1),):
            each = self.layer_exchange(devices, layer, tokens, sampled, sequence=sequence)
            seconds += times * each.seconds
            sent = tuple(a + times * b for a, b in zip(sent, each.by_rank(len(devices)), strict=True))
        return Exchange.of(seconds, sent)

    def _together(self, devices: Sequence[str], collectives: Iterable[Collective]) -> Exchange:
        """One after the other: bytes as the rule says, each as fast as the wires allow."""
        seconds, sent = 0.0, (0,) * len(devices)
        for one in collectives:
            seconds += self._collective_s(devices, one)
            sent = tuple(map(sum, zip(sent, sent_bytes(one, len(devices)), strict=True)))
        return Exchange.of(seconds, sent)

    def _collective_s(self, devices: Sequence[str], one: Collective) -> float:
        row_bytes = one.row_items * one.item_bytes
        if one.op is Op.ALL_REDUCE:
            return self.wires.all_reduce(devices, one.rows * row_bytes).seconds
        ranks = len(devices)
        rows = even_rows(one.rows, ranks)[0] if one.even else one.rows // ranks
        return self.wires.spread(devices, rows * row_bytes).seconds

    def _sharing(self, devices: Sequence[str], sequence: bool) -> Sharing:
        return Sharing(len(devices), sequence, int(self.sizes.item_bytes))

    def _rank_s(self, device: str, layers: tuple[int, int], micro_batch: MicroBatch, share: Share) -> float:
        rows = rows_of(micro_batch)
        seconds = self.fixed_s(device)
        if layers[0] == 0:
            seconds += self.first_s(device, micro_batch.tokens)
        if layers[1] == self.spec.layers:
            seconds += self.last_s(device, micro_batch.tokens, micro_batch.sampled, share)
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

    def _of(self, device: str) -> Rates:
        if device not in self._rates:
            self.cluster.device(device)  # says which name is nearest
        return self._rates[device]

    # bytes

    def weight_bytes(self, layer: int, share: Part = 1.0) -> float:
        """One layer's weights on a rank with this share."""
        part = share_of(self.spec, share)
        tensors = layer_tensors(self.spec, layer).items()
        return sum(held_values(self.spec, name, shape, part) for name, shape in tensors) * self.sizes.weight_bytes

    def kv_bytes(self, layer: int, rows: int, context: int, share: Part = 1.0) -> float:
        """One layer's cache of `rows` requests of `context` positions. A sliding window does not shrink it."""
        kv_heads = share_of(self.spec, share).kv_heads
        return rows * context * cache_values(self.spec, kv_heads) * self.sizes.item_bytes

    def first_bytes(self, share: Part = 1.0) -> float:
        """The embedding, which is cut along the vocabulary, and learned positions, which are whole on every rank."""
        positions = self.spec.max_positions if self.spec.learned_positions else 0
        rows = share_of(self.spec, share).of(self.spec.vocab) + positions
        return rows * self.spec.hidden * self.sizes.weight_bytes

    def last_bytes(self, share: Part = 1.0) -> float:
        """Final norm and LM head, which is cut along the vocabulary; a tied one is held beside the embedding."""
        rows = share_of(self.spec, share).of(self.spec.vocab)
        return (rows + 1) * self.spec.hidden * self.sizes.weight_bytes

    def workspace_bytes(self, tokens: int, sampled: int, context: int, share: Part = 1.0) -> float:
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
        values = tokens * (3 * spec.hidden + 2 * (part.heads + part.kv_heads) * spec.head_dim + 3 * part.part * wide)
        return values * self.sizes.item_bytes + 4 * tokens * context + 8 * sampled * part.part * spec.vocab

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
            self.model.stage_s(group, where.layers, micro_batch, where.shares, sequence=layout.sequence)
            for group in _groups(layout, stage)
        )

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """That of the slowest group."""
        where = layout.stages[stage]
        return max(
            self.model.stage_exchange(group, where.layers, micro_batch, sequence=layout.sequence)
            for group in _groups(layout, stage)
        )

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
