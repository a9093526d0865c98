"""Seconds of what the ranks of a tensor group exchange on one host, measured over bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plait.costs.curves import Curve
from plait.plans.exchanges import Collective, Op


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Of each collective behind a computation, over the bytes of its whole tensor, with the wait for the others.

    Of a gather the whole is what comes out.
    """

    all_reduce: Curve
    reduce_scatter: Curve
    all_gather: Curve

    def seconds(self, exchanges: Iterable[Collective]) -> float:
        """All of them, one after another."""
        curves = {
            Op.ALL_REDUCE: self.all_reduce,
            Op.REDUCE_SCATTER: self.reduce_scatter,
            Op.ALL_GATHER: self.all_gather,
        }
        return sum(curves[one.op].value(one.rows * one.row_items * one.item_bytes) for one in exchanges)
