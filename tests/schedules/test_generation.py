"""The rounds as a reader would draw them."""

from __future__ import annotations

import pytest

from plait.errors import PlanError
from plait.plans.notation import format_actions
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round, require_schedule


def rows(*requests: int, samples: bool = True) -> MicroBatch:
    return MicroBatch(tuple(Row(request, request, 10, 1, samples) for request in requests))


def drawn(one: Round) -> list[str]:
    return [format_actions(actions, one.number) for actions in one.actions]


def test_one_stage_only_computes() -> None:
    assert drawn(make_round(3, 1, (rows(0), rows(1)))) == ["0F0 0F1"]


def test_pipelined_rounds_interlock() -> None:
    """
    stage 0   F0 F1   F0 F1        a round begins when the first micro-batch's tokens are back
    stage 1      F0 F1   F0 F1
    """
    work = (rows(0, 1), rows(2))
    first = make_round(0, 2, work)
    second = make_round(1, 2, work, first.carried_out)
    assert drawn(first) == ["0F0 0SF0 0F1 0SF1", "1RF0 1F0 1ST0 1RF1 1F1 1ST1"]
    assert drawn(second) == ["0:0RT0 0F0 0SF0 0:0RT1 0F1 0SF1", "1RF0 1F0 1ST0 1RF1 1F1 1ST1"]
    assert drawn(make_round(2, 2, (), second.carried_out)) == ["1:0RT0 1:0RT1", ""]


def test_a_chunk_that_samples_nothing_is_not_answered_but_layer_wise() -> None:
    work = (rows(0, samples=False),)
    assert drawn(make_round(0, 3, work)) == ["0F0 0SF0", "1RF0 1F0 1SF0", "2RF0 2F0"]
    first = make_round(0, 3, work, schedule="layerwise")
    assert drawn(first) == ["0F0 0SF0", "1RF0 1F0 1SF0", "2RF0 2F0 2ST0"]
    assert drawn(make_round(1, 3, work, first.carried_out, "layerwise"))[0] == "0:0RT0 0F0 0SF0"


def test_tokens_that_nothing_needs_stay_in_flight_until_they_are_old() -> None:
    """Request 0 has its first token at round 0; rounds 1 to 3 are chunks of request 1 and do not wait for it."""
    one = make_round(0, 2, (rows(0),))
    receives = []
    for number in range(1, 5):
        one = make_round(number, 2, (rows(1, samples=False),), one.carried_out)
        receives.append(drawn(one)[0])
    assert receives == ["0F0 0SF0", "0F0 0SF0", "0:0RT0 0F0 0SF0", "0F0 0SF0"]


def test_requests_dealt_anew_bring_all_earlier_tokens_along() -> None:
    first = make_round(0, 2, (rows(0, 1), rows(2, 3)))
    second = make_round(1, 2, (rows(1, 2), rows(3)), first.carried_out)
    assert drawn(second)[0] == "0:0RT0 0:0RT1 0F0 0SF0 0F1 0SF1"


def test_an_unknown_schedule() -> None:
    with pytest.raises(PlanError) as error:
        require_schedule("pipeline")
    assert str(error.value) == "unknown schedule 'pipeline' for generation: did you mean 'pipelined'?"
    with pytest.raises(PlanError) as error:
        require_schedule("zigzag")
    assert str(error.value) == "unknown schedule 'zigzag' for generation: known: layerwise, pipelined"
