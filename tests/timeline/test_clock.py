import pytest

from plait.timeline.clock import Exchange, offset_from_exchanges
from plait.timeline.timeline import Clock


def test_the_host_s_timestamp_lies_in_the_middle_of_the_round_trip():
    # reference 10.0 ──> host 112.0 ──> reference 14.0: the middle is 12.0, so the host is 100 s ahead, give or take 2 s
    assert offset_from_exchanges([Exchange(10.0, 112.0, 14.0)]) == Clock(offset_s=100.0, error_s=2.0)


def test_the_shortest_round_trip_decides():
    samples = [Exchange(0.0, -49.0, 4.0), Exchange(8.0, -41.5, 9.0), Exchange(10.0, -37.0, 13.0)]
    assert offset_from_exchanges(samples) == Clock(offset_s=-50.0, error_s=0.5)


def test_the_true_offset_lies_within_the_error_however_lopsided_the_way():
    true_offset_s = 7.0
    for there_s, back_s in [(0.0, 1.0), (1.0, 0.0), (0.25, 0.75)]:
        clock = offset_from_exchanges([Exchange(3.0, 3.0 + there_s + true_offset_s, 3.0 + there_s + back_s)])
        assert abs(clock.offset_s - true_offset_s) <= clock.error_s


def test_no_exchange_is_an_error():
    with pytest.raises(ValueError) as caught:
        offset_from_exchanges([])
    assert str(caught.value) == "a clock's offset needs at least 1 exchange of timestamps, and 0 were given"


def test_an_answer_before_its_question_is_an_error():
    with pytest.raises(ValueError) as caught:
        offset_from_exchanges([Exchange(2.0, 5.0, 1.5)])
    assert str(caught.value) == (
        "an exchange was received 0.5 s before it was sent: Exchange(sent_s=2.0, remote_s=5.0, received_s=1.5)"
    )
