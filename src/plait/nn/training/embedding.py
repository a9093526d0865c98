"""The embedding, each rank with its own rows of the vocabulary, and learned positions."""

from __future__ import annotations

from torch import Tensor

from plait.nn.training.collectives import Exchange
from plait.nn.training.parameters import Parameter
from plait.spec.shards import Range


class Embedding:
    """`rows`: of the vocabulary, that this rank has."""

    def __init__(self, weight: Parameter, positions: Parameter | None, rows: Range) -> None:
        self._weight, self._positions, self._rows = weight, positions, rows

    def forward(self, tokens: Tensor, exchange: Exchange) -> Tensor:
        """Token ids [batch, length] to what lies between the blocks."""
        at, local = self._mine(tokens)
        parts = self._weight.weight.new_zeros(tokens.numel(), self._weight.weight.shape[1])
        parts[at] = self._weight.weight[local]
        x = exchange.summed(parts)
        if self._positions is None:
            return x
        places = self._positions.weight[: tokens.shape[1]].repeat(len(tokens), 1)
        return x.add_(exchange.mine(places) if exchange.sequence else places)

    def backward(self, gradient: Tensor, tokens: Tensor, exchange: Exchange) -> None:
        """Add the gradients. Learned positions see all tokens' rows, so that all ranks have the same."""
        whole = exchange.whole(gradient)
        if self._weight.learns:
            at, local = self._mine(tokens)
            held = self._weight.filled()
            held.index_add_(0, local, whole[at].to(held.dtype))
        if self._positions is not None and self._positions.learns:
            length, held = tokens.shape[1], self._positions.filled()
            held[:length].add_(whole.view(len(tokens), length, -1).sum(0, dtype=held.dtype))

    def _mine(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are this rank's, and their places in its rows."""
        local = tokens.flatten() - self._rows.first
        at = ((local >= 0) & (local < self._rows.size)).nonzero()[:, 0]
        return at, local[at]
