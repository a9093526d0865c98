"""What each action waits for, in the notation: written down by hand, and against a plain look-up for generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout, Stage
from plait.plans.notation import format_action, parse_action
from plait.plans.round import MicroBatch, Row
from plait.plans.rules import (
    Link,
    follows,
    link,
    meetings,
    message_bytes,
    part_counts,
    partner,
    positions_by_stage,
    waits,
)
from plait.schedules.generation import make_round


def named(text: str) -> tuple[Action, ...]:
    return tuple(parse_action(word) for word in text.split())


def needed(text: str, which: object) -> dict[str, str]:
    """Of each action that needs anything: what."""
    assert callable(which)
    actions = named(text)
    return {
        format_action(action, with_round=False): " ".join(
            "?" if i < 0 else format_action(actions[i], with_round=False) for i in found
        )
        for action, found in zip(actions, which(actions), strict=True)
        if found
    }


def test_a_middle_stage_waits_for_its_messages() -> None:
    text = "1RF0 1F0 1SF0 1RB0 1B0 1SB0 1G0 1O0 1A0"
    assert needed(text, waits) == {
        "1F0": "1RF0",
        "1SF0": "1F0",
        "1B0": "1RB0",
        "1SB0": "1B0",
        "1G0": "1B0",
        "1O0": "1G0",
        "1A0": "1O0",
    }
    assert needed(text, follows) == {"1B0": "1F0", "1O0": "1B0"}


def test_a_split_backward() -> None:
    text = "1RF0 1F0 1SF0 1RB0 1I0 1SB0 1W0 1G0 1O0"
    assert needed(text, waits) == {
        "1F0": "1RF0",
        "1SF0": "1F0",
        "1I0": "1RB0",
        "1SB0": "1I0",
        "1G0": "1W0",
        "1O0": "1G0",
    }
    assert needed(text, follows) == {"1I0": "1F0", "1W0": "1I0", "1O0": "1W0"}


def test_the_turn_of_a_v_has_order_and_no_waits() -> None:
    """Stages 1 and 2 of 0 to 3 are on one position: nothing is sent between them."""
    text = "1RF0 1F0 2F0 2SF0 2RB0 2I0 2W0 1I0 1SB0 1W0 1O0 2O0"
    assert needed(text, waits) == {"1F0": "1RF0", "2SF0": "2F0", "2I0": "2RB0", "1SB0": "1I0"}
    assert needed(text, follows) == {
        "2F0": "1F0",
        "2I0": "2F0",
        "2W0": "2I0",
        "1I0": "1F0 2I0",
        "1W0": "1I0",
        "1O0": "1W0",
        "2O0": "2W0",
    }


def test_the_last_backward_in_parts() -> None:
    """A gradient bucket is reduced while the next part of the backward runs; the message leaves after the last."""
    text = "1RF0 1F0 1RB0 1B0.0 1G0.0 1B0.1 1G0.1 1SB0 1O0"
    assert needed(text, waits) == {
        "1F0": "1RF0",
        "1B0.0": "1RB0",
        "1G0.0": "1B0.0",
        "1G0.1": "1B0.1",
        "1SB0": "1B0.1",
        "1O0": "1G0.0 1G0.1",
    }
    assert needed(text, follows) == {"1B0.0": "1F0", "1B0.1": "1B0.0", "1O0": "1B0.1"}
    assert part_counts(named(text)) == (1, 1, 1, 2, 2, 2, 2, 1, 1)


def test_reductions_in_parts_after_a_whole_backward() -> None:
    assert needed("0F0 0B0 0F1 0B1 0G0.0 0G0.1 0O0", waits) == {
        "0G0.0": "0B1",
        "0G0.1": "0B1",
        "0O0": "0G0.0 0G0.1",
    }


def test_a_tied_embedding_and_the_norm() -> None:
    """T waits for its stage's last backward, not for other reductions; N for all that its position reduces."""
    text = "0RB1 0B1.0 0G0.0 0B1.1 0G0.1 0T0 0N0 0O0 0A0".replace("0RB1", "0F1 0RB1")
    assert needed(text, waits) == {
        "0B1.0": "0RB1",
        "0G0.0": "0B1.0",
        "0G0.1": "0B1.1",
        "0T0": "0B1.1",
        "0N0": "0G0.0 0G0.1 0T0",
        "0O0": "0G0.0 0G0.1 0T0",
        "0A0": "0O0",
    }
    assert needed(text, follows) == {"0B1.0": "0F1", "0B1.1": "0B1.0", "0N0": "0B1.1", "0O0": "0B1.1 0N0"}


def test_the_norm_of_a_position_of_two_stages() -> None:
    """Every stage's update waits for its own reductions, and stands behind the one norm."""
    text = "3RF0 0F0 0SF0 3F0 3I0 3SB0 3W0 3G0 0RB0 0I0 0W0 0G0 3T0 0T0 0N0 3O0 0O0"
    found = needed(text, waits)
    assert {name: found[name] for name in ("3T0", "0T0", "0N0", "3O0", "0O0")} == {
        "3T0": "3W0",
        "0T0": "0W0",
        "0N0": "3G0 3T0 0G0 0T0",
        "3O0": "3G0 3T0",
        "0O0": "0G0 0T0",
    }
    after = needed(text, follows)
    assert {name: after[name] for name in ("0N0", "3O0", "0O0")} == {
        "0N0": "3W0 0W0",
        "3O0": "3W0 0N0",
        "0O0": "0W0 0N0",
    }
    assert needed("0T0 0O0", waits) == {"0T0": "?", "0O0": "? 0T0"}


def test_who_meets_whom() -> None:
    """All N of a round; the two T of different positions. On one position they are one after the other."""
    apart = [named("0T0 0N0"), named("1N0"), named("2T0 2N0")]
    both, all_ = named("0T0 2T0"), named("0N0 1N0 2N0")
    assert meetings(apart) == dict.fromkeys(both, both) | dict.fromkeys(all_, all_)
    in_v = [named("3T0 0T0 0N0"), named("1N0")]
    assert meetings(in_v) == dict.fromkeys(named("0N0 1N0"), named("0N0 1N0"))
    assert meetings([named("1T0 0T0 0N0")]) == {}
    assert meetings([named("0F0 0B0 0G0 0O0")]) == {}


def test_what_is_missing_is_minus_one() -> None:
    assert needed("1F0 1SB0 1W0 1G0 1A0", waits) == {"1F0": "?", "1SB0": "?", "1W0": "?", "1G0": "1W0", "1A0": "?"}
    assert needed("0B0", waits) == {"0B0": "?"}


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_generation_waits_as_it_did(stages: int, micro_batches: int, front: int) -> None:
    """Against a plain look-up over the whole list, of rounds with tokens carried over."""
    work = tuple(MicroBatch((Row(i, i, 3, 1, True),)) for i in range(micro_batches))
    first = make_round(0, stages, work)
    second = make_round(1, stages, work, first.carried_out, front=min(front, len(first.carried_out)))
    for actions in second.actions:
        assert waits(actions) == tuple(_plain(actions, index) for index in range(len(actions)))
        assert not any(follows(actions))


def _plain(actions: tuple[Action, ...], index: int) -> tuple[int, ...]:
    action = actions[index]
    if action.kind is Kind.FORWARD and action.stage == 0:
        return tuple(i for i in range(index) if actions[i].kind is Kind.RECEIVE_TOKENS)
    wanted = Kind.RECEIVE_FORWARD if action.kind is Kind.FORWARD else Kind.FORWARD
    if action.kind.receives:
        return ()
    return (actions.index(action._replace(kind=wanted)),)


def test_partners_and_links() -> None:
    send = parse_action("3:1SB2")
    assert partner(send, 4) == parse_action("3:0RB2")
    assert partner(partner(send, 4), 4) == send
    assert link(send, 4) == Link(1, 0)
    assert link(partner(send, 4), 4) == Link(1, 0)
    in_v = positions_by_stage(((0, 3), (1, 2)))
    assert in_v == (0, 1, 1, 0)
    assert link(parse_action("2SF0"), 4, in_v) == Link(1, 0)
    assert link(parse_action("3SB0"), 4, in_v) == Link(0, 1)
    assert link(parse_action("1RB0"), 4, positions_by_stage(((0, 2), (1, 3)))) == Link(0, 1)


def test_bytes_of_messages() -> None:
    """A gradient is as large as the activations that it is of: in the dtype of the stage that made those."""
    layout = Layout({"pp": 2}, (Stage((0, 1), (0,), "bfloat16"), Stage((1, 2), (1,), "float32")))
    work = MicroBatch((Row(0, 0, 0, 10, False), Row(1, 1, 0, 10, True)))
    expected = {
        "0SF0": 20 * 8 * 2,
        "1RF0": 20 * 8 * 2,
        "1SB0": 20 * 8 * 2,
        "0RB0": 20 * 8 * 2,
        "1ST0": 8,
        "0G0": 0,
        "0F0": 0,
    }
    assert {text: message_bytes(parse_action(text), work, layout, 8) for text in expected} == expected


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_lane(kind: Kind) -> None:
    assert kind.lane in Lane
    assert (kind.sends or kind.receives) == (kind.lane is Lane.P2P)
