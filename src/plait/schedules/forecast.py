"""The rounds that requests will take if every one runs to its full length: what a prediction is made of."""

from __future__ import annotations

from collections.abc import Sequence

from plait.plans.action import Action
from plait.plans.plan import Plan
from plait.plans.round import Round
from plait.schedules.batching import Batcher
from plait.schedules.rounds import RoundSource


def forecast_rounds(plan: Plan, prompts: Sequence[int], max_tokens: int) -> list[Round]:
    """Rounds for prompts of the given lengths, all there from the start. Errors: RequestError as `Batcher.add`."""
    batcher = Batcher(plan.slots, plan.context, plan.chunk, plan.micro_batches)
    for request, length in enumerate(prompts):
        batcher.add(request, length, max_tokens)
    source = RoundSource(plan, batcher)
    rounds: list[Round] = []

    def receive(action: Action) -> None:
        for row in rounds[action.round].work[action.micro_batch].rows:
            if row.samples and batcher.in_flight(row.request):
                batcher.received(row.request, ends=False)

    while (made := source.next(receive)) is not None:
        one, front = made
        rounds.append(one)
        for action in one.actions[0][front:]:
            if action.kind.receives:
                receive(action)
        if len(one.actions) == 1:
            for action in one.actions[0]:
                receive(action)
    return rounds
