"""Where the exchanges inside a predicted computation stand: what the page and the trace draw of a tensor group.

A prediction says how long a computation exchanges, and has it at the end of the span. When it does follows from the
stage's layers, here of two layers with the head behind them, `x` an exchange:

    as simulated  [attention mlp attention mlp head xxxxx]
    F             [x attention x mlp x attention x mlp x head]
    B, I          [head x mlp x attention x mlp x attention x]      part 0.0 of a cut one has the last layers

Nothing is measured or simulated anew. Taken for granted: layers are equal; an attention multiplies 4 · hidden², an MLP
8 · hidden² a token (Kaplan et al., "Scaling Laws" (2020), table 1), the head vocabulary · hidden for every token that
is sampled; computing takes time as its products do, and all exchanges of a span take as long. Sums are as predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.storage import layer_runs
from plait.timeline.compare import COMPUTE, TRANSFER
from plait.timeline.record import RoundRecipe
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

ASSUMED = (
    "Predicted exchanges stand where equal layers have them, after each attention and each MLP, which compute for a "
    "third and two thirds of a layer; how long they take together is what is predicted."
)
"""What a picture says of them."""

MOST_PLACED = 2_000_000
"""Exchanges of one timeline that are placed where each is written down; of later spans they are left at the end."""

_ATTENTION, _MLP = 1 / 3, 2 / 3
_PRODUCTS = 12
"""Products of a layer, in hidden²."""
_PLACED = frozenset((Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT))
_NOTHING = 1e-12
"""A smaller part of a span is rounding, not time."""

_STEPS = 64
"""Shares of sampled tokens are told apart to so many parts of one."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of a run's prediction.

    `head`: what the LM head takes for a token, in layers. `sampled`: the share of a round's micro-batch that the head
    sees, 1 where it is not named. `parts`: of each stage's backward, where it is cut.
    """

    layout: Layout
    head: float = 0.0
    sampled: Mapping[tuple[int, int], float] = field(default_factory=dict)
    parts: Mapping[int, int] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[float, ...]] = field(default_factory=dict, compare=False, repr=False)

    def of(self, span: Span) -> tuple[float, ...]:
        """The share of the span's computing that is done before each of its exchanges, in order.

        Empty for what is no computation with its exchanges at the end.
        """
        action = span.action
        if action.kind not in _PLACED or tuple([part.what for part in span.parts]) != (COMPUTE, TRANSFER):
            return ()
        forward = action.kind is Kind.FORWARD
        share = round(self.sampled.get((action.round, action.micro_batch), 1.0) * _STEPS) / _STEPS if forward else 1.0
        key = action.stage, forward, action.part, share
        known = self._known.get(key)
        if known is None:
            layers = self._layers(action.stage, None if forward else action.part)
            head = self.head * share if self._has_head(action.stage, action.part) else 0.0
            known = self._known[key] = _forward(layers, head) if forward else _backward(layers, head)
        return known

    def placed(self, span: Span) -> tuple[Part, ...]:
        """The span's parts with its exchanges where they are; those that it has, where nothing is known of them."""
        at = self.of(span)
        if not at:
            return span.parts
        (_, start_s, turn_s), (_, _, end_s) = span.parts
        each_s, nothing_s = (end_s - turn_s) / len(at), (end_s - start_s) * _NOTHING
        found: list[Part] = []
        moment_s = start_s
        for number, share in enumerate(at):
            done_s = start_s + share * (turn_s - start_s)
            begin_s, stop_s = done_s + number * each_s, done_s + (number + 1) * each_s
            if begin_s - moment_s > nothing_s:
                found.append(Part(COMPUTE, moment_s, begin_s))
                moment_s = begin_s
            if end_s - stop_s <= nothing_s:
                stop_s = end_s
            if stop_s > moment_s:
                found.append(Part(TRANSFER, moment_s, stop_s))
                moment_s = stop_s
        return (*found, Part(COMPUTE, moment_s, end_s)) if end_s > moment_s else tuple(found)

    def _layers(self, stage: int, part: int | None) -> int:
        first, end = self.layout.stages[stage].layers
        count = self.parts.get(stage, 1)
        if part is None or not part < count <= end - first:
            return end - first
        begin, stop = layer_runs(first, end, count)[part]
        return stop - begin

    def _has_head(self, stage: int, part: int | None) -> bool:
        last = max(one.layers[1] for one in self.layout.stages)
        return self.layout.stages[stage].layers[1] == last and not part


def _forward(layers: int, head: float) -> tuple[float, ...]:
    """One before the layers, of the embedding's parts or of what came in; two a layer; the head after the last."""
    return _shares([0.0, *[_ATTENTION, _MLP] * layers], head)


def _backward(layers: int, head: float) -> tuple[float, ...]:
    """The other way round: the head, then one, of its input's gradient or of what came in; two a layer."""
    return _shares([head, *[_MLP, _ATTENTION] * layers], 0.0)


def _shares(before: Sequence[float], after: float) -> tuple[float, ...]:
    """From what is computed before each exchange, after the one before it, to shares of all that is computed."""
    whole = sum(before) + after
    found, done = [], 0.0
    for each in before:
        done += each
        found.append(min(1.0, done / whole))
    return tuple(found)


def make_moments(
    layout: Layout, model: Mapping[str, Any], rounds: Sequence[RoundRecipe], predicted: Timeline | None
) -> Moments | None:
    """Those of a run; None where nothing is predicted. `model`: what the record says of it, as far as it does."""
    if predicted is None:
        return None
    parts: dict[int, int] = {}
    for span in predicted.spans:
        _, stage, kind, _, part = span.action
        if part is not None and kind in _PLACED:
            parts[stage] = max(parts.get(stage, 1), part + 1)
    return Moments(layout, _head(model), dict(_sampled(rounds)), parts)


def _head(model: Mapping[str, Any]) -> float:
    """0 where the record does not say how large the model is."""
    hidden, vocab = model.get("hidden"), model.get("vocab")
    if not isinstance(hidden, int) or not isinstance(vocab, int) or hidden < 1 or vocab < 1:
        return 0.0
    return vocab / (_PRODUCTS * hidden)


def _sampled(rounds: Sequence[RoundRecipe]) -> Iterator[tuple[tuple[int, int], float]]:
    for one in rounds:
        for number, micro_batch in enumerate(one.work):
            yield (one.number, number), _share(micro_batch)


def _share(micro_batch: MicroBatch) -> float:
    return micro_batch.sampled / micro_batch.tokens if micro_batch.tokens else 1.0
