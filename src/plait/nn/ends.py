"""What a tensor group does where activations come into a stage and leave it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import embedding

from plait.spec.shards import Range


def part_of_embedding(ids: Tensor, rows: Tensor, held: Range) -> Tensor:
    """A rank's part of the embedding of `ids` [T], [T, hidden]: `rows` are those of the ids it has; zeros elsewhere.

    The parts of all ranks add up to the embedding, without any rounding.
    """
    if not held.size:
        return rows.new_zeros(len(ids), rows.shape[1])
    places = ids - held.first
    elsewhere = (places < 0) | (places >= held.size)
    return embedding(places.masked_fill(elsewhere, 0), rows).masked_fill_(elsewhere[:, None], 0)


def own_rows(x: Tensor, sizes: Sequence[int], index: int) -> Tensor:
    """The rows of rank `index`, where the ranks have `sizes` of them: a view."""
    first = sum(sizes[:index])
    return x[first : first + sizes[index]]
