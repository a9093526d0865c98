import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import RunError
from plait.plans.action import Action, Kind
from plait.plans.notation import parse_action
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Clock
from plait.tracer.tracer import Tracer, merge


def traced(rank, host="localhost", *events):
    tracer = Tracer(rank, epoch=3, host=host)
    for name, start_s, ready_s, end_s, payload_bytes in events:
        tracer.finished(parse_action(name), start_s, ready_s, end_s, payload_bytes)
    return tracer


def test_a_compute_action_becomes_a_span_without_parts():
    tracer = traced(1, "a", ("7:1F0", 2.0, 2.0, 3.0, 0))
    assert tracer.spans() == (Span(3, Action(7, 1, Kind.FORWARD, 0), 1, 2.0, 3.0),)


def test_an_exchange_inside_a_computation_is_a_transfer():
    tracer = Tracer(1, 3)
    tracer.finished(parse_action("1F0"), 2.0, 2.0, 9.0, 64, ((2.0, 3.0), (4.0, 6.0), (6.0, 6.0), (8.0, 9.0)))
    (span,) = tracer.spans(offset_s=1.0)
    pieces = (
        ("transfer", 1.0, 2.0),
        ("compute", 2.0, 3.0),
        ("transfer", 3.0, 5.0),
        ("compute", 5.0, 7.0),
        ("transfer", 7.0, 8.0),
    )
    assert span == Span(3, parse_action("1F0"), 1, 1.0, 8.0, 64, tuple(Part(*piece) for piece in pieces))
    assert Tracer.decode(tracer.encode()).spans(offset_s=1.0) == (span,)


def test_exchanges_travel_in_sixteen_bytes_each():
    with_them, without = Tracer(0), Tracer(0)
    with_them.finished(parse_action("0F0"), 0.0, 0.0, 1.0, 0, tuple((at / 100, at / 100) for at in range(60)))
    without.finished(parse_action("0F0"), 0.0, 0.0, 1.0, 0)
    assert len(with_them.encode()) - len(without.encode()) <= 60 * 16 + 2


def test_a_send_keeps_the_bytes_that_it_put_on_the_link():
    (span,) = traced(0, "a", ("0SF1", 2.0, 2.0, 3.0, 4096)).spans()
    assert (span.payload_bytes, span.parts) == (4096, ())


def test_a_receive_first_waits_then_transfers_and_counts_no_bytes():
    (span,) = traced(1, "a", ("1RF0", 2.0, 5.0, 6.0, 4096)).spans()
    assert span == Span(3, parse_action("1RF0"), 1, 2.0, 6.0, 0, (Part("wait", 2.0, 5.0), Part("transfer", 5.0, 6.0)))


def test_a_piece_of_a_receive_that_took_no_time_is_left_out():
    early, instant = traced(1, "a", ("1RF0", 2.0, 2.0, 3.0, 0), ("1RF1", 3.0, 4.0, 4.0, 0)).spans()
    assert early.parts == (Part("transfer", 2.0, 3.0),)
    assert instant.parts == (Part("wait", 3.0, 4.0),)


times = st.floats(0, 1e6, allow_nan=False)
actions = st.builds(
    Action,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(Kind),
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
)
exchanges = st.lists(st.tuples(times, times), max_size=4).map(tuple)
recorded = st.lists(st.tuples(actions, times, times, times, st.integers(0, 2**40), exchanges))


@given(recorded)
def test_encoding_goes_both_ways(events):
    tracer = Tracer(5, 2, "far")
    for event in events:
        tracer.finished(*event)
    again = Tracer.decode(tracer.encode())
    assert (again.rank, again.epoch, again.host, again.events) == (5, 2, "far", events)
    assert again.spans() == tracer.spans()


def test_a_decoded_tracer_goes_on_recording():
    tracer = Tracer.decode(traced(0, "a", ("0F0", 0.0, 0.0, 1.0, 0)).encode())
    tracer.finished(parse_action("0F1"), 1.0, 1.0, 2.0, 0)
    assert [span.action.micro_batch for span in tracer.spans()] == [0, 1]


def test_damaged_bytes_are_an_error():
    with pytest.raises(RunError) as caught:
        Tracer.decode(traced(0, "a", ("0F0", 0.0, 0.0, 1.0, 0)).encode()[:-3])
    assert str(caught.value) == "the trace that a rank handed over (42 bytes) cannot be read: Input data was truncated"


def test_merging_takes_each_host_s_offset_off_and_begins_at_zero():
    # on the reference's clock: rank 0 computes in [10, 11), rank 1, on a host 100 s ahead, in [11, 12)
    near = traced(0, "near", ("0F0", 10.0, 10.0, 11.0, 0))
    far = traced(1, "far", ("1RF0", 110.5, 110.75, 111.0, 0), ("1F0", 111.0, 111.0, 112.0, 0))
    timeline = merge([far, near], {"far": Clock(100.0, 0.001)})
    assert timeline.source == "measured"
    assert [(span.rank, span.start_s, span.end_s) for span in timeline.spans] == [
        (0, 0.0, 1.0),
        (1, 0.5, 1.0),
        (1, 1.0, 2.0),
    ]
    assert timeline.spans[1].parts == (Part("wait", 0.5, 0.75), Part("transfer", 0.75, 1.0))
    assert timeline.hosts == {0: "near", 1: "far"}
    assert timeline.clocks == {"far": Clock(100.0, 0.001)}


def test_merging_nothing_is_an_empty_timeline():
    assert merge([]).spans == ()
    assert merge([Tracer(0)]).hosts == {0: "localhost"}


def test_two_hosts_without_a_clock_are_an_error():
    with pytest.raises(RunError) as caught:
        merge([Tracer(0, host="a"), Tracer(1, host="b"), Tracer(2, host="c")], {"b": Clock()})
    assert str(caught.value) == (
        "no clock for hosts a, c: only one host, the reference, may be without its offset; "
        "measure the others' with timeline.clock.offset_from_exchanges"
    )


def test_writing_an_action_down_computes_nothing():
    """It stands inside every token: one append of what it was given (its cost is in `make bench`)."""
    action = parse_action("1F0")
    tracer = Tracer(0)
    tracer.finished(action, 1.0, 1.0, 2.0, 0)
    assert tracer.events == [(action, 1.0, 1.0, 2.0, 0, ())]
    assert tracer.events[0][0] is action
