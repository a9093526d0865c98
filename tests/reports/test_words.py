import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_timelines import timelines

from plait.plans.notation import parse_action
from plait.reports.words import sentences
from plait.timeline.span import Span
from plait.timeline.timeline import Clock, Timeline


def test_a_stage_with_less_work_waits_for_the_one_with_more(make_timeline):
    # stage 0 computes 8 × 1 of 17 ms, stage 1 8 × 2; together they compute in the 8 ms that stage 0 does, but the first
    assert sentences(None, make_timeline("measured", (1.0, 2.0))) == [
        "29 % of the 2 stages' time went without computing: stage 0 53 % and stage 1 6 %.",
        "Stage 0 waited 53 % of the time: its work is 0.50 of stage 1's.",
    ]


def test_stages_that_take_turns():
    spans = [
        Span(0, parse_action(f"{i}:{stage}F0"), stage, 2 * i + stage, 2 * i + stage + 1)
        for i in range(5)
        for stage in (0, 1)
    ]
    assert sentences(Timeline("predicted", tuple(spans)), None) == [
        "50 % of the 2 stages' time would go without computing: stage 0 50 % and stage 1 50 %.",
        "The stages took turns: two or more computed at once for only 0 % of the time, "
        "so that 2 stages lose at least 50 %.",
    ]


def test_equal_stages_lose_what_filling_and_draining_take(make_timeline):
    # 2 rounds: 4 of 5 ms each; stage 1 waits in the first, stage 0 has nothing to do in the last
    assert sentences(None, make_timeline("measured", rounds=2)) == [
        "20 % of the 2 stages' time went without computing: stage 0 20 % and stage 1 20 %.",
        "Stage 0 waited 20 % of the time, though it has as much work as any: 20 % of the time passed before its first "
        "and after its last computation.",
    ]


def test_one_stage_computes():
    spans = (Span(0, parse_action("0F0"), 0, 0.0, 0.9), Span(0, parse_action("0RT0"), 0, 0.9, 1.0))
    assert sentences(None, Timeline("measured", spans)) == [
        "Stage 0 computed 90 % of the time.",
        "Transfers took 10 % of stage 0's time.",
    ]


def test_how_far_the_prediction_was_off(make_timeline):
    assert sentences(make_timeline("predicted"), make_timeline("measured", (1.0, 1.5)))[-2:] == [
        "It took 44.4 % longer than predicted (13 ms, not 9 ms), and the bubble was 12.0 points larger.",
        "Of computing, stage 1's is furthest off: it took 4 ms longer than the 8 ms predicted.",
    ]


def test_computing_that_is_furthest_off_says_that_it_is_summed(make_timeline):
    def both_ranks(timeline):
        again = tuple(span._replace(rank=span.rank + 2) for span in timeline.spans)
        return Timeline(timeline.source, timeline.spans + again)

    said = sentences(both_ranks(make_timeline("predicted")), both_ranks(make_timeline("measured", (1.0, 1.5))))
    assert said[-1] == (
        "Of computing, stage 1's is furthest off: it took 8 ms longer than the 16 ms predicted, summed over its 2 "
        "ranks."
    )


def test_a_right_prediction_is_called_right(make_timeline):
    assert sentences(make_timeline("predicted"), make_timeline("measured"))[-1] == (
        "It took 0.0 % longer than predicted (9 ms, not 9 ms), and the bubble was 0.0 points larger."
    )


def test_what_only_one_timeline_has_is_counted(make_timeline):
    longer, shorter = make_timeline("predicted", rounds=5), make_timeline("measured", rounds=4)
    assert sentences(longer, shorter)[-1] == "10 actions were predicted but not measured, in round 4."
    assert sentences(shorter, longer)[-1] == "10 actions were measured but not predicted, in round 4."


def test_how_sure_the_clocks_are(make_timeline):
    one = make_timeline("measured")
    unsure = Timeline("measured", one.spans, {0: "a", 1: "b"}, {"a": Clock(), "b": Clock(3.0, 0.0004)})
    assert sentences(None, unsure)[-1] == "Hosts' times may be shifted against each other: host b by up to 400 µs."


@pytest.mark.parametrize("timeline", [None, Timeline("measured", ())])
def test_no_timeline_is_said(timeline):
    assert sentences(None, timeline) == ["The run has no timeline: nothing can be said of where its time went."]


@given(st.none() | timelines("predicted"), st.none() | timelines("measured"))
def test_any_timelines_can_be_told(predicted, measured):
    assert all(sentence.endswith(".") for sentence in sentences(predicted, measured))
