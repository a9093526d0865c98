"""What a rank of a tensor group exchanges around a block, with and without activations split along the sequence.

Forward and backward are conjugate (Shoeybi et al., "Megatron-LM" (2019), figure 3; Korthikanti et al., "Reducing
Activation Recomputation" (2022), section 4.2.2): a product cut by its outputs takes `whole` inputs and gives back
`summed` gradients, one cut by its inputs gives `summed` outputs and takes `whole` gradients.
"""

from __future__ import annotations

from torch import Tensor

from plait.nn.group import TensorGroup
from plait.spec.shards import even_rows


class Exchange:
    """The exchanges of a micro-batch of `tokens` tokens. With `sequence` a rank has its `even_rows` between blocks."""

    def __init__(self, group: TensorGroup, sequence: bool, tokens: int) -> None:
        self.group, self.sequence = group, sequence
        self.sizes = even_rows(tokens, group.size)
        self._first = sum(self.sizes[: group.index])

    def whole(self, rows: Tensor) -> Tensor:
        """All tokens' rows of what lies between the blocks."""
        return self.gathered(rows) if self.sequence else rows

    def summed(self, parts: Tensor) -> Tensor:
        """The sum of all ranks' parts [tokens, …], as it lies between the blocks. `parts` may be overwritten."""
        if self.group.size == 1:
            return parts
        return self.group.reduce_scatter(parts, self.sizes) if self.sequence else self.group.all_reduce(parts)

    def gathered(self, rows: Tensor) -> Tensor:
        """All tokens' rows [tokens, …] of every rank's `even_rows`."""
        return rows if self.group.size == 1 else self.group.all_gather(rows, self.sizes)

    @property
    def rows(self) -> tuple[int, int]:
        """The rows [first, end) that a rank has between the blocks."""
        first = self._first if self.sequence else 0
        return first, first + self.sizes[self.group.index] if self.sequence else sum(self.sizes)

    def mine(self, whole: Tensor) -> Tensor:
        """This rank's `even_rows` of all tokens' rows."""
        return whole[self._first : self._first + self.sizes[self.group.index]]
