"""All-reduce of a small tensor between two ranks: what decoding with two tensor shards does twice a layer.

It is one step of `exchange` written out, since here every Python call counts: both parts are added where they lie in
shared memory, in rank order, into a scratch array, and copied into the tensor by address. What does not change between
calls of one size is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from plait.comm.exchange import NUMPY_CODES, Steps, as_array
from plait.comm.region import STRONG_ORDER, move
from plait.plans.exchanges import AT_ONCE_BYTES

_RECIPES = 256


class PairSum:
    """The sums of this rank with one other."""

    def __init__(self, steps: Steps) -> None:
        (self._pair,) = steps.pairs
        self._steps = steps
        self._words = self._pair.words
        self._at_mine, self._at_theirs = self._pair.mine.at, self._pair.theirs.at
        self._out = self._pair.mine.addresses
        self._tell = self._pair.tell
        self._scratch = bytearray(AT_ONCE_BYTES)
        self._scratch_address = torch.frombuffer(self._scratch, dtype=torch.uint8).data_ptr()
        self._recipes: dict[int, tuple[Callable[..., Any], Any, Any, Any]] = {}

    def add(self, tensor: torch.Tensor, size: int, call: int) -> None:
        """Add the other's tensor to ours, in rank order."""
        pair, words, at = self._pair, self._words, self._at_theirs
        pair.step = step = pair.step + 1
        parity = step & 1
        address = tensor.data_ptr()
        move(self._out[parity], address, size)
        words[self._at_mine + 2 + parity] = call
        if not STRONG_ORDER:
            self._steps.fence()
        words[self._at_mine] = step
        self._tell()
        pair.outgoing.payload_bytes += size
        turns = self._steps.spins
        while words[at] < step:
            turns -= 1
            if turns < 0:
                self._steps.sleep(pair, call)
        if not STRONG_ORDER:
            self._steps.fence()
        if words[at + 2 + parity] != call:
            raise self._steps.differs(pair, call)
        function, first, second, total = self._recipes.get(call << 1 | parity) or self._recipe(call, size, parity)
        function(first, second, total)
        move(address, self._scratch_address, size)

    def _recipe(self, call: int, size: int, parity: int) -> tuple[Callable[..., Any], Any, Any, Any]:
        """What adds, the parts in rank order, and where the sum goes."""
        code = call >> 4 & 15
        total = as_array(self._scratch, code, AT_ONCE_BYTES)
        count = size // total.itemsize
        parts = [side.view(parity, code)[:count] for side in (self._pair.mine, self._pair.theirs)]
        if self._steps.index == 1:
            parts.reverse()
        if len(self._recipes) >= _RECIPES:
            self._recipes.clear()
        function: Callable[..., Any] = np.add if code in NUMPY_CODES else _add_into
        recipe = self._recipes[call << 1 | parity] = (function, parts[0], parts[1], total[:count])
        return recipe


def _add_into(first: torch.Tensor, second: torch.Tensor, total: torch.Tensor) -> None:
    torch.add(first, second, out=total)
