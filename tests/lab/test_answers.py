"""Figures of decoding, ways that take turns, and what they are predicted with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.costs.curves import Curve
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import FREE, LinkCost
from plait.errors import CapacityError
from plait.lab import answers
from plait.lab.answers import Bench, Way, beside_s, decoding, loaded, median, take_turns
from plait.lab.benches import opened, over, small_model
from plait.lab.links import LINKS, SHORT_MOST_S, SHORT_SLOWER, named_link
from plait.plans.action import Action, Kind
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

from .figures import figures

LINK = EmulatedLinks(Wire(0.01, 1e6))


def silent(words: str) -> None:
    """Nobody listens."""


def decoded(number: int, users: int) -> Round:
    return make_round(number, 2, (MicroBatch(tuple(Row(user, user, 8 + number, 1, True) for user in range(users))),))


def prefilled(number: int) -> Round:
    return make_round(number, 2, (MicroBatch((Row(0, 0, 0, 8, True),)),))


def spans(number: int, begin_s: float, *, late_s: float = 0.0) -> list[Span]:
    """Two stages of 3 and 2 s, each message on its way for half a second; the token comes `late_s` later."""
    return [
        Span(0, Action(number, 0, Kind.FORWARD, 0), 0, begin_s, begin_s + 3),
        Span(0, Action(number, 0, Kind.SEND_FORWARD, 0), 0, begin_s + 3, begin_s + 3.5, 100),
        Span(
            0,
            Action(number, 1, Kind.FORWARD, 0),
            1,
            begin_s + 3.5,
            begin_s + 6,
            40,
            (Part("compute", begin_s + 3.5, begin_s + 5.5), Part("transfer", begin_s + 5.5, begin_s + 6)),
        ),
        Span(0, Action(number, 1, Kind.SEND_TOKENS, 0), 1, begin_s + 6, begin_s + 6.5, 8),
        Span(0, Action(number, 0, Kind.RECEIVE_TOKENS, 0), 0, begin_s + 3, begin_s + 6.5 + late_s),
    ]


def test_figures_are_of_the_rounds_in_which_all_users_decode() -> None:
    rounds = [prefilled(0), decoded(1, 1), *(decoded(number, 2) for number in range(2, 6))]
    timeline = Timeline("measured", tuple(span for one in rounds for span in spans(one.number, 7.0 * one.number)))

    found = decoding(timeline, rounds, 2)

    assert found.round_s == pytest.approx(7.0)
    assert found.tokens_per_s == pytest.approx(2 / 7)
    assert found.compute_s == pytest.approx((3.0, 2.0))
    assert found.bubble == pytest.approx(1 - 5 / 14)
    assert (found.users, found.sent_bytes, found.forwards) == (2, 148, 1)


def test_one_token_that_is_late_moves_no_figure() -> None:
    rounds = [decoded(number, 1) for number in range(7)]
    late = (span for one in rounds for span in spans(one.number, 7.0 * one.number, late_s=90.0 * (one.number == 6)))

    assert decoding(Timeline("measured", tuple(late)), rounds, 1).round_s == pytest.approx(7.0)


def test_a_single_round_has_no_time_between_tokens() -> None:
    with pytest.raises(AssertionError, match="1 rounds of 1 decode 1 tokens, so there is no time between"):
        decoding(Timeline("measured", tuple(spans(0, 0.0))), [decoded(0, 1)], 1)


def test_the_median_is_figure_by_figure() -> None:
    found = median([figures(1.0, 5, 0.1), figures(3.0, 6, 0.3), figures(2.0, 7, 0.2)])

    assert (found.round_s, found.sent_bytes, found.compute_s) == (2.0, 6, (0.2,))


def test_beside_shared_memory_only_what_a_link_adds_is_predicted() -> None:
    assert beside_s(figures(0.5), figures(0.2), figures(0.3)) == pytest.approx(0.6)


def test_a_link_adds_latency_and_bytes_over_bandwidth_to_every_exchange() -> None:
    kernel = Kernel("float32", "float32", 1, 2)
    near = ExchangeTimes(*(Curve((1000.0, 2000.0), (1e-3, 2e-3)) for _ in range(3)))
    costs = over(MeasuredCosts(None, {}, FREE, {kernel: near}), LINK)  # type: ignore[arg-type]

    assert costs.any_link == LinkCost(0.01, 1e6)
    assert costs.exchanges[kernel].all_reduce.value(2000) == pytest.approx(2e-3 + 0.01 + 2e-3)
    assert costs.exchanges[kernel].all_gather.value(2000) == pytest.approx(2e-3 + 0.01 + 1e-3)
    assert costs.exchanges[kernel].all_reduce.value(0) == pytest.approx(1e-3 + 0.01)


def test_the_links_of_the_short_form_are_slower() -> None:
    for name in LINKS:
        full, short = named_link(name, "full").link.wire, named_link(name, "short").link.wire
        assert short.latency_s == min(SHORT_MOST_S, SHORT_SLOWER * full.latency_s) > full.latency_s
        assert short.bandwidth == full.bandwidth


def test_the_small_model_is_the_same_each_time(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        assert small_model(folder).spec.layers == 4
        files.append((folder / "model.safetensors").read_bytes())

    assert files[0] == files[1]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """The short form's."""
    with opened("short", silent) as made:
        yield made


def test_ways_answer_in_turn_and_their_figures_are_told_apart(bench: Bench) -> None:
    with loaded(bench, Way(2, users=2), users=2) as near, loaded(bench, Way(2, users=2, link=LINK), users=2) as far:
        take_turns((near, far), 2, "first", users=(1, 2))
        take_turns((far,), 1, "second")
        near.finish()
        far.finish()

    assert [asked[:1] + asked[2:] for asked in far._asked] == [
        (answers.WARM_UP, 2),
        *[("first", 1), ("first", 2)] * 2,
        ("second", 1),
    ]
    assert len(list(far.timelines("first", 2))) == 2
    assert far.measured("first", 2).users == 2
    assert far.measured("second").sent_bytes == bench.predicted(far.way).sent_bytes == 64 * 4 + 8
    assert far.measured("first").round_s > 2 * 0.01 > bench.predicted(near.way).round_s
    assert sum(far.weight_bytes) == sum(near.weight_bytes) > 0


def test_what_was_never_asked_has_no_figures(bench: Bench) -> None:
    with loaded(bench, Way()) as one:
        one.finish()

    with pytest.raises(AssertionError, match="nobody asked for 1 users in turn 'never'"):
        one.measured("never")


def test_a_way_that_memory_does_not_hold_is_refused_before_it_starts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "free_memory_here", lambda: 1 << 20)

    refused = pytest.raises(CapacityError, match=r"does not fit on .*: it needs .*, 1.0 MiB are free, .* are missing; ")
    with refused, loaded(bench, Way(2)):
        pass
