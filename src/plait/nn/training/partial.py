"""Gradients of which every rank of a tensor group has computed a part: one sum over the group completes them.

- Norms of single heads: every rank has seen its own heads.
- With activations split along the sequence, all that is whole on every rank (norms, biases behind a sum): each has seen
  its own rows. Forgetting this is case T10 of the public faults: ranks drift apart while the loss looks right.
- KV heads that several ranks hold: each has seen the queries of its own heads.

What is left out is either cut, and nobody else has it, or computed by all from the same numbers in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from plait.nn.group import TensorGroup
from plait.nn.training.parameters import Parameters
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, Unit, tensor_cut


class Partial:
    """Completes the gradients of `parameters`. Making it is a call of the whole group: ranks tell their KV heads."""

    def __init__(
        self, spec: ModelSpec, parameters: Parameters, shard: Shard, group: TensorGroup, sequence: bool
    ) -> None:
        self._group, self._parameters = group, parameters
        shared = _shared(shard, group)
        parts = range(len(parameters.storage.parts))
        self._sums = [_Sum(spec, parameters, part, shard, shared, sequence) for part in parts]

    def complete(self, part: int) -> None:
        """Sum one part's over the group, once a step, when all its gradients are there."""
        self._parameters.fill(part)
        one = self._sums[part]
        if self._group.size == 1 or not one.items:
            return
        one.put_back(self._group.all_reduce(one.gathered()))


class _Sum:
    """What one part of the storage has to sum: its first items, then shared KV heads."""

    def __init__(
        self, spec: ModelSpec, parameters: Parameters, part: int, shard: Shard, shared: list[int], sequence: bool
    ) -> None:
        place = parameters.storage.parts[part]
        self._mine = parameters.flat.gradients[place.first : place.whole if sequence else place.by_head]
        held = [head for head in shared if shard.kv_heads.first <= head < shard.kv_heads.end]
        self._copies: list[tuple[Tensor, int, int]] = []  # a KV head's gradient, and where it lies in the sum
        at = len(self._mine)
        for name, width in _of_kv_heads(spec, parameters, part):
            heads = parameters.gradient(name).view(-1, width)
            for head in held:
                start = at + shared.index(head) * width
                self._copies.append((heads[head - shard.kv_heads.first], start, start + width))
            at += len(shared) * width
        self.items = at

    def gathered(self) -> Tensor:
        """This rank's items of the sum."""
        parts = torch.cat([self._mine, self._mine.new_zeros(self.items - len(self._mine))])
        for gradient, start, end in self._copies:
            parts[start:end] = gradient
        return parts

    def put_back(self, total: Tensor) -> None:
        """Write the sum where its parts were."""
        self._mine.copy_(total[: len(self._mine)])
        for gradient, start, end in self._copies:
            gradient.copy_(total[start:end])


def _shared(shard: Shard, group: TensorGroup) -> list[int]:
    """KV heads that several ranks hold."""
    if group.size == 1:
        return []
    ranges = group.all_gather(torch.tensor([list(shard.kv_heads)]), (1,) * group.size)  # [ranks, 2]
    holders = Counter(head for first, end in ranges.tolist() for head in range(first, end))
    return sorted(head for head, ranks in holders.items() if ranks > 1)


def _of_kv_heads(spec: ModelSpec, parameters: Parameters, part: int) -> Iterator[tuple[str, int]]:
    """Names of what is cut by KV head and learns in a part, with the items of one head."""
    blocks = (block for block in parameters.storage.blocks if block.learns and block.part == part)
    for name in (name for block in blocks for name in block.names):
        cut = tensor_cut(spec, name)
        if cut is not None and cut.unit is Unit.KV_HEAD:
            yield name, spec.head_dim * (spec.hidden if name.endswith(("k.weight", "v.weight")) else 1)
