"""What a rank holds after a step, against one process: loss, norm, every gradient, every weight, every copy."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.certifier.compare import BROKEN, Deviation, What, Whole, off, relative
from plait.nn.training.stage import TrainingStage
from plait.plans.layout import Layout
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, Unit, make_shards, shard_tensors, tensor_cut
from plait.trainer.held import Span, overlaps
from plait.trainer.rank import TrainingRank
from plait.trainer.worker import StepResult

Spans = Sequence[Span]


@dataclass(slots=True)
class Report:
    """What a rank has seen over all steps.

    `copies`: of each step, checksums of the weights that other ranks may hold too, by what they are.
    """

    rank: int
    deviations: dict[What, Deviation] = field(default_factory=dict)
    copies: list[dict[str, int]] = field(default_factory=list)

    def add(self, what: What, found: Deviation) -> None:
        """Keep the largest."""
        if what not in self.deviations or found.error > self.deviations[what].error:
            self.deviations[what] = found


class Comparison:
    """Of one rank after one step."""

    def __init__(self, spec: ModelSpec, layout: Layout, whole: Whole, step: int, report: Report) -> None:
        self._spec, self._layout, self._whole, self._step, self._report = spec, layout, whole, step, report

    def run(self, trainer: TrainingRank, result: StepResult) -> None:
        """Loss, norm, and all that each of the rank's stages holds."""
        expected = self._whole.expected
        self._add("loss", relative(result.loss, expected.loss))
        self._add("norm", relative(result.grad_norm, expected.norm))
        copies: dict[str, int] = {}
        for number, stage in trainer.stages.items():
            shard = self._shard(number)
            pieces = shard_tensors(self._spec, stage.first, stage.end, shard)
            updated = sorted(trainer.updated(number))
            self._gradients(number, stage, pieces, updated)
            self._weights(number, stage, pieces, updated)
            for name, weight in stage.weights.items():
                copies |= _checksums(self._spec, name, weight, pieces[name], shard)
        self._report.copies.append(copies)

    def _shard(self, number: int) -> Shard:
        stage, tp = self._layout.stages[number], self._layout.tp
        return make_shards(self._spec, tp, stage.shares)[stage.ranks.index(self._report.rank) % tp]

    def _add(self, what: What, error: float, name: str = "", stage: int = 0) -> None:
        self._report.add(what, Deviation(error, name, self._step, stage, self._report.rank))

    def _gradients(self, number: int, stage: TrainingStage, pieces: Mapping[str, Piece], updated: Spans) -> None:
        """Whole, or with ZeRO-1 what this rank updates of them; clipping has scaled them."""
        coefficient, whole = self._whole.expected.coefficient, self._whole.gradients
        for name in pieces:
            if (name in whole.values) != (name in stage.places):
                self._add("grad", BROKEN, name, number)  # it learns in one, and is frozen in the other
        for name, span in stage.places.items():
            if name not in whole.values:
                continue
            theirs = _cut(whole.values[name], pieces[name]).flatten()
            for first, end in overlaps([span], updated):
                part = theirs[first - span[0] : end - span[0]] * coefficient
                error = off(stage.flat.gradients[first:end], part, whole.scales[name] * coefficient)
                self._add("grad", error, name, number)

    def _weights(self, number: int, stage: TrainingStage, pieces: Mapping[str, Piece], updated: Spans) -> None:
        """What is computed with; where that is narrower, the masters that this rank updates and what they round to."""
        whole, flat = self._whole.weights, stage.flat
        for name, weight in stage.weights.items():
            theirs, scale = _cut(whole.values[name], pieces[name]), whole.scales[name]
            span = stage.places.get(name)
            if span is None or weight.dtype == theirs.dtype:
                self._add("weights", off(weight, theirs, scale), name, number)
                continue
            for first, end in overlaps([span], updated):
                masters = flat.masters[first:end]
                part = theirs.flatten()[first - span[0] : end - span[0]]
                rounded = torch.equal(masters.to(weight.dtype), flat.weights[first:end])
                self._add("weights", off(masters, part, scale) if rounded else BROKEN, name, number)


def _cut(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor if piece.axis is None else tensor.narrow(piece.axis, piece.first, piece.end - piece.first)


def _checksums(spec: ModelSpec, name: str, weight: Tensor, piece: Piece, shard: Shard) -> dict[str, int]:
    """Of a piece, by what other ranks call the same: its place in the tensor, or each KV head's."""
    cut = tensor_cut(spec, name)
    if cut is not None and cut.unit is Unit.KV_HEAD and shard.kv_heads.size:
        heads = zip(range(*shard.kv_heads), weight.chunk(shard.kv_heads.size), strict=True)
        return {f"KV head {head} of {name}": _checksum(part) for head, part in heads}
    return {name if piece.axis is None else f"{piece.first} to {piece.end} of {name}": _checksum(weight)}


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
