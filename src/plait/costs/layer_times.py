"""Seconds of every layer for one micro-batch on one rank: its operations through a profile, and what it exchanges.

They depend on the split within a stage (tp, ep, cp), the micro-batch and what is recomputed, never on the cut or the
schedule: a search over thousands of setups computes them a few dozen times. Sums over the layers before each layer make
any stage's seconds one subtraction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple

from plait.costs.collectives import Group, all_gather_s, all_reduce_s, all_to_all_s, sent_bytes
from plait.costs.operations import (
    Operation,
    Work,
    backward_input,
    backward_weight,
    embedding_operations,
    head_operations,
    layer_operations,
)
from plait.costs.profiles import DeviceRates
from plait.costs.shares import Share, largest_share
from plait.costs.states import layer_rank_parameters
from plait.costs.work import attended_pairs
from plait.plans.split import Recompute, TrainingSetup
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts


class Inside(NamedTuple):
    """What decides the seconds of a layer: the split within a stage, and how a micro-batch is computed."""

    tp: int
    ep: int
    cp: int
    micro_batch: int
    recompute: Recompute
    sequence_split: bool
    fused: bool

    @classmethod
    def of(cls, setup: TrainingSetup) -> Inside:
        """A setup's."""
        split = setup.split
        return cls(
            split.tp,
            split.ep,
            split.cp,
            setup.micro_batch,
            setup.recompute,
            setup.sequence_split,
            setup.fused_attention,
        )


class Groups(NamedTuple):
    """Where the exchanges inside a stage go."""

    tensor: Group
    experts: Group
    context: Group


class Times(NamedTuple):
    """Seconds of a forward, of both halves of a backward (what it recomputes in the first), and exchanges within those.

    `forward_sent_bytes`, `input_sent_bytes`: what a rank sends for the exchanges.
    """

    forward_s: float = 0.0
    input_s: float = 0.0
    weight_s: float = 0.0
    forward_exchange_s: float = 0.0
    input_exchange_s: float = 0.0
    forward_sent_bytes: float = 0.0
    input_sent_bytes: float = 0.0

    def plus(self, other: Times) -> Times:
        """Both together."""
        return Times._make(map(add, self, other))

    def minus(self, other: Times) -> Times:
        """This without the other."""
        return Times._make(map(sub, self, other))


class _Exchanged(NamedTuple):
    seconds: float
    sent_bytes: float
    starts: int


def layer_work(
    spec: ModelSpec, layer: int, sequence: int, inside: Inside, share: Share, item_bytes: int, *, dropout: bool
) -> Work:
    """What a rank with this share computes of a layer, for one micro-batch of sequences of so many tokens."""
    pairs = attended_pairs(sequence, spec.windows[layer], causal=inside.fused)
    return Work(
        tokens=inside.micro_batch * sequence / inside.cp,
        pairs=inside.micro_batch * pairs / inside.cp,
        share=share,
        ep=inside.ep,
        split=inside.tp if inside.sequence_split else 1,
        fused=inside.fused,
        dropout=dropout,
        item_bytes=item_bytes,
        weight_bytes=item_bytes,
    )


class LayerTimes:
    """The seconds of a model's layers, its embedding and its head, for one `Inside`. Errors: PlanError (tp > heads)."""

    def __init__(
        self, spec: ModelSpec, sequence: int, rates: DeviceRates, groups: Groups, inside: Inside, item_bytes: int
    ) -> None:
        self.spec, self.rates, self.groups, self.inside = spec, rates, groups, inside
        self.sequence, self.item_bytes = sequence, item_bytes
        self.share = largest_share(spec, inside.tp)
        self.tokens = inside.micro_batch * sequence / inside.cp
        known: dict[tuple[bool, int | None], Times] = {}
        each = []
        for layer in range(spec.layers):
            kind = has_experts(spec, layer), spec.windows[layer]
            if kind not in known:
                known[kind] = self._layer(layer)
            each.append(known[kind])
        self.layers = tuple(each)
        self.first = self._embedding()
        self.last = self._head()

    @cached_property
    def before(self) -> tuple[Times, ...]:
        """The sums over the layers before each, and over all."""
        return tuple(accumulate(self.layers, Times.plus, initial=Times()))

    def total(self, first: int, end: int) -> Times:
        """Layers [first, end) together: most are alike, so that a search needs no sums over each for this."""
        kinds = {id(one): one for one in self.layers}
        counts = Counter(map(id, self.layers[first:end]))
        found = Times()
        for kind, count in counts.items():
            found = found.plus(Times._make(count * value for value in kinds[kind]))
        return found

    def stage(self, layers: tuple[int, int]) -> Times:
        """A stage's, with the embedding on the first and the head on the last, and what a micro-batch takes beside."""
        beside = self.rates.profile.micro_batch_s
        found = self.before[layers[1]].minus(self.before[layers[0]]).plus(Times(beside, beside))
        if layers[0] == 0:
            found = found.plus(self.first)
        return found.plus(self.last) if layers[1] == self.spec.layers else found

    def work(self, layer: int) -> Work:
        """What a rank computes of a layer."""
        dropout = self.spec.family == "gpt2"
        return layer_work(self.spec, layer, self.sequence, self.inside, self.share, self.item_bytes, dropout=dropout)

    def _layer(self, layer: int) -> Times:
        spec, inside, profile = self.spec, self.inside, self.rates.profile
        operations = layer_operations(spec, layer, self.work(layer))
        exchanged = self._exchanged(layer)
        forward = self._with_host_s(operations, exchanged)
        backs = [back for one in operations for back in backward_input(one)]
        weights = [back for one in operations for back in backward_weight(one)]
        hidden = exchanged._replace(seconds=exchanged.seconds * (1 - profile.hidden_backward))
        back_input = self._with_host_s(backs, hidden)
        parameters = layer_rank_parameters(spec, layer, self.share, inside.ep).total
        back_weight = self._with_host_s(weights) + self.rates.moved_s(parameters * profile.accumulated_bytes)
        times = Times(
            forward,
            back_input,
            back_weight,
            exchanged.seconds,
            hidden.seconds,
            exchanged.sent_bytes,
            exchanged.sent_bytes,
        )
        if inside.recompute == "full":
            again = Times(0.0, forward, 0.0, 0.0, exchanged.seconds, 0.0, exchanged.sent_bytes)
            return times.plus(again)
        if inside.recompute == "selective" and not inside.fused:
            return times.plus(Times(0.0, self._with_host_s([one for one in operations if one.kind == "attention"])))
        return times

    def _with_host_s(self, operations: Sequence[Operation], exchanged: _Exchanged | None = None) -> float:
        """Operations and exchanges, one after another on the device; the host starts them meanwhile, or holds up."""
        profile, fused = self.rates.profile, self.inside.fused
        device_s = sum(self.rates.operation_s(one, fused=fused) for one in operations)
        host_s = profile.launch_s * len(operations)
        if exchanged is not None:
            device_s += exchanged.seconds
            late = profile.rendezvous_s * (max(self.inside.tp, self.inside.ep, self.inside.cp) - 1)
            host_s += exchanged.starts * (profile.launch_s + late)
        return self.rates.longer_s(device_s, host_s)

    def _exchanged(self, layer: int) -> _Exchanged:
        """A forward's exchanges; a backward has as many.

        Tensor: two all-reduces of [tokens, hidden] (Shoeybi et al., "Megatron-LM" (2019), section 3); with sequence
        split each is a reduce-scatter and an all-gather (Korthikanti et al. 2022, section 4.2.2). Experts: tokens go to
        them and back. Context: keys and values of the other ranks (Liu et al., "Ring Attention" (2023)).
        """
        profile, inside = self.rates.profile, self.inside
        rows = self.tokens * self.spec.hidden * self.item_bytes
        seconds = sent = 0.0
        count = 0
        if inside.tp > 1:
            factor = profile.split_exchange if inside.sequence_split else 1.0
            seconds += 2 * (profile.exchange_s + factor * all_reduce_s(rows, self.groups.tensor))
            sent += 2 * sent_bytes("all_reduce", rows, inside.tp)
            count += 2
        if inside.ep > 1 and self.spec.experts is not None and has_experts(self.spec, layer):
            routed = rows * self.spec.experts.per_token
            seconds += 2 * (profile.exchange_s + all_to_all_s(routed, self.groups.experts))
            sent += 2 * sent_bytes("all_to_all", routed, inside.ep)
            count += 2
        if inside.cp > 1:
            keys = 2 * self.share.kv_heads * self.spec.head_dim * self.tokens * self.item_bytes * inside.cp
            seconds += profile.exchange_s + all_gather_s(keys, self.groups.context)
            sent += sent_bytes("all_gather", keys, inside.cp)
            count += 1
        return _Exchanged(seconds, sent, count)

    def _embedding(self) -> Times:
        operations = embedding_operations(self.spec, self.work(0))
        forward = self._with_host_s(operations)
        back = self._with_host_s([one for each in operations for one in backward_input(each)])
        return Times(forward, 0.0, back)

    def _head(self) -> Times:
        """Final norm, LM head and loss. A tensor group all-reduces the gradient of its input."""
        operations = head_operations(self.spec, self.work(0))
        rows = self.tokens * self.spec.hidden * self.item_bytes
        reduced, sent = 0.0, 0.0
        if self.inside.tp > 1:
            reduced = self.rates.profile.exchange_s + all_reduce_s(rows, self.groups.tensor)
            sent = sent_bytes("all_reduce", rows, self.inside.tp)
        exchanged = _Exchanged(reduced, sent, int(self.inside.tp > 1))
        return Times(
            self._with_host_s(operations),
            self._with_host_s([back for one in operations for back in backward_input(one)], exchanged),
            self._with_host_s([back for one in operations for back in backward_weight(one)]),
            0.0,
            reduced,
            0.0,
            sent,
        )
