"""Whose tokens come to the first stage: known when a round begins, asked when they are there."""

from __future__ import annotations

from plait.plans.round import Round


class Arrivals:
    """The requests of every micro-batch whose tokens are on their way to this rank, one of the first stage."""

    def __init__(self, stages: int) -> None:
        self._single = stages == 1
        self._requests: dict[tuple[int, int], list[int]] = {}

    def expect(self, one: Round) -> None:
        """A round begins: the last stage tells the first of some micro-batches, a single stage itself of all."""
        told = {carried.micro_batch for carried in one.carried_out if carried.round == one.number}
        for index in range(len(one.work)) if self._single else told:
            self._requests[one.number, index] = [row.request for row in one.work[index].rows if row.samples]

    def take(self, number: int, micro_batch: int) -> list[int]:
        """The requests, in order, of the tokens of a micro-batch that have come."""
        return self._requests.pop((number, micro_batch))
