"""What a stage of generation computes: embedding or activations in, activations or sampled tokens out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from plait.generation.protocol import Admitted
from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.group import TensorGroup
from plait.nn.sampling import sample
from plait.plans.action import Action, Kind
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.sampling import SamplingParams
from plait.spec.shards import Shard

Tokens = Callable[[int, int, list[int]], None]
"""Called with (round, micro-batch, its sampled tokens)."""

LogitsOf = Callable[[int, int, bytes], None]
"""Called with (request, position of the token that is drawn, float32 [this rank's rows of the vocabulary] as bytes)."""

Exchanges = tuple[int, Sequence[tuple[float, float]]]
"""Bytes that this rank sent, and when each exchange began and ended."""


class CountedGroup(TensorGroup, Protocol):
    """A tensor group that counts what it exchanges."""

    def take(self) -> Exchanges:
        """What was exchanged since this was last asked."""


class Part(NamedTuple):
    """A rank's part of a stage that is a tensor group."""

    shard: Shard
    group: CountedGroup


class StageWorker:
    """The executor's worker on one rank of a split model; `part` where its stage is a tensor group.

    `sequences` (request to its tokens so far) is read on the first stage. The last one samples, and gives `on_logits`
    the logits of the requests that want them.
    """

    def __init__(
        self,
        model: StageModel,
        cache: KVCache,
        stages: int,
        on_tokens: Tokens,
        on_logits: LogitsOf,
        part: Part | None = None,
    ) -> None:
        self._model, self._cache, self._part = model, cache, part
        self._on_logits = on_logits
        self._single = stages == 1
        self._last = model.end == model.spec.layers
        self._on_tokens = on_tokens
        self.sequences: dict[int, list[int]] = {}
        self._sampling: dict[int, SamplingParams] = {}
        self._watched: set[int] = set()

    def admit(self, admitted: Admitted) -> None:
        """A request comes with the next round."""
        self._sampling[admitted.request] = admitted.sampling
        if admitted.prompt:
            self.sequences[admitted.request] = list(admitted.prompt)
        if admitted.logits:
            self._watched.add(admitted.request)

    def forget(self, request: int) -> None:
        """No row of the request comes any more."""
        self.sequences.pop(request, None)
        del self._sampling[request]
        self._watched.discard(request)

    @torch.inference_mode()
    def forward(self, one: Round, micro_batch: int, message: torch.Tensor | None) -> torch.Tensor:
        """See `executor.Worker`."""
        work = one.work[micro_batch]
        inputs = self._token_ids(work) if message is None else message
        output: torch.Tensor = self._model.forward(Batch.of(work, self._model.device), inputs, self._cache)
        if not self._last:
            return output
        tokens = self._sample(output, work)
        if self._single:
            self._on_tokens(one.number, micro_batch, tokens.tolist())
        return tokens

    def tokens(self, action: Action, tokens: torch.Tensor) -> None:
        """See `executor.Worker`."""
        assert action.kind is Kind.RECEIVE_TOKENS
        self._on_tokens(action.round, action.micro_batch, tokens.tolist())

    def exchanged(self) -> Exchanges:
        """See `executor.Worker`."""
        return (0, ()) if self._part is None else self._part.group.take()

    def _token_ids(self, work: MicroBatch) -> torch.Tensor:
        ids: list[int] = []
        for row in work.rows:
            ids += self.sequences[row.request][row.start : row.start + row.length]
        return torch.tensor(ids, dtype=torch.int64, device=self._model.device)  # [tokens]

    def _sample(self, logits: torch.Tensor, work: MicroBatch) -> torch.Tensor:
        rows = [row for row in work.rows if row.samples]
        if not rows:
            return torch.empty(0, dtype=torch.int64)
        if self._watched:
            self._show(logits, rows)
        params = [self._sampling[row.request] for row in rows]
        requests, positions = [row.request for row in rows], [row.start + row.length for row in rows]
        if self._part is None:
            return sample(logits, params, requests, positions)  # [sampled]
        return sample(logits, params, requests, positions, self._part.shard, self._part.group)

    def _show(self, logits: torch.Tensor, rows: list[Row]) -> None:
        for row, values in zip(rows, logits, strict=True):
            if row.request in self._watched:
                self._on_logits(row.request, row.start + row.length, values.float().cpu().numpy().tobytes())
