"""The ranks beside rank 0 on the first stage: they keep the same tokens, without being told which of them count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from plait.comm.contract import Endpoint
from plait.executor.executor import Executor
from plait.generation.arrivals import Arrivals
from plait.generation.follower import Follower
from plait.generation.lead import Lead
from plait.generation.protocol import Admitted, EndOfRounds, RoundMessage, Submit, ToFollower
from plait.generation.worker import StageWorker
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.sampling import SamplingParams
from plait.schedules.generation import LAYERWISE, PIPELINED, make_round
from plait.timeline.record import RoundRecipe
from tests.generation.splits import split

WORK = (
    MicroBatch((Row(4, 0, 9, 1, True), Row(7, 1, 0, 5, False), Row(2, 2, 3, 1, True))),
    MicroBatch((Row(5, 3, 0, 64, False),)),
)


@pytest.mark.parametrize(
    ("stages", "schedule", "wanted"),
    [
        (1, PIPELINED, {0: [4, 2], 1: []}),
        (2, PIPELINED, {0: [4, 2]}),
        (3, LAYERWISE, {0: [4, 2], 1: []}),
    ],
)
def test_whose_tokens_come(stages: int, schedule: str, wanted: dict[int, list[int]]) -> None:
    """A single stage hears of every micro-batch; a pipeline of those whose end the last stage tells."""
    arrivals = Arrivals(stages)
    arrivals.expect(make_round(6, stages, WORK, (), schedule))
    found = {}
    for index in range(2):
        try:
            found[index] = arrivals.take(6, index)
        except KeyError:
            continue
    assert found == wanted
    with pytest.raises(KeyError):
        arrivals.take(6, 0)


class Mail:
    """An endpoint whose control messages are there already; `posted` holds what is sent to each rank."""

    def __init__(self, rank: int, size: int, *messages: object) -> None:
        self.rank, self.size = rank, size
        self.messages = [msgspec.msgpack.encode(message) for message in messages]
        self.posted: dict[int, list[Any]] = {}

    def poll(self, source: int) -> bytes:
        assert source == 0
        return self.messages.pop(0)

    def post(self, to: int, message: bytes) -> None:
        self.posted.setdefault(to, []).append(msgspec.msgpack.decode(message, type=ToFollower))


def decoding(number: int, *requests: int) -> RoundRecipe:
    return RoundRecipe(number, (MicroBatch(tuple(Row(one, one, 3, 1, True) for one in requests)),))


def test_a_follower_keeps_the_tokens_and_forgets_who_is_gone() -> None:
    """Request 1 ends in round 0; the token of round 1 is surplus and stays unread; in round 2 it is gone."""
    greedy = SamplingParams()
    admitted = [Admitted(0, greedy, False, [8, 8]), Admitted(1, greedy, False, [9])]
    rounds = [RoundMessage(decoding(0, 0, 1), admitted), RoundMessage(decoding(1, 0, 1))]
    mail = Mail(1, 2, *rounds, RoundMessage(decoding(2, 0), [], [1]), EndOfRounds())
    follower = Follower(split(6, tp=2), cast(Endpoint, mail))
    model = SimpleNamespace(end=1, spec=SimpleNamespace(layers=1))
    worker = StageWorker(cast(Any, model), cast(Any, None), 1, follower.on_tokens, cast(Any, None))
    seen: list[dict[int, list[int]]] = []

    def run(one: Round, front: int) -> None:
        assert front == 0
        follower.on_tokens(one.number, 0, [10 * one.number + row.request for row in one.work[0].rows])
        seen.append({request: list(tokens) for request, tokens in worker.sequences.items()})

    executor = SimpleNamespace(run=run, wait=lambda ready, *rest: ready(), drain=lambda: None)
    follower.run(worker, cast(Executor, executor))
    assert seen == [{0: [8, 8, 0], 1: [9, 1]}, {0: [8, 8, 0, 10], 1: [9, 1, 11]}, {0: [8, 8, 0, 10, 20]}]


def test_prompts_travel_to_the_first_stage_alone() -> None:
    """Ranks 0 and 1 are stage 0: rank 1 needs the prompt, ranks 2 and 3 only how the request is sampled."""
    mail = Mail(0, 4)
    lead = Lead(split(3, 3, tp=2), cast(Endpoint, mail), cast(Any, None))
    lead._worker = cast(Any, SimpleNamespace(admit=lambda admitted: None))
    lead._submit(Submit(0, [5, 6, 7], 4, [], SamplingParams(seed=3), True))
    made = lead._source.next(lambda action: None)
    assert made is not None
    lead._announce(lead._begin(*made))
    for rank, prompt in ((1, [5, 6, 7]), (2, []), (3, [])):
        (message,) = mail.posted[rank]
        assert message.admitted == [Admitted(0, SamplingParams(seed=3), True, prompt)]
        assert message.recipe.make(2) == made[0]
