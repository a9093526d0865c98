"""The trace for Perfetto: valid by the rules of its format, and nothing of the timelines is lost in it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_timelines import timelines

from plait.errors import UsageError
from plait.reports.perfetto import trace, write_trace
from plait.reports.view_of import make_view
from plait.simulator.simulate import simulate
from plait.timeline.record import RunRecord
from plait.timeline.timeline import MemoryTrack, Timeline
from tests.simulator import test_properties as generation
from tests.simulator import test_training_properties as training
from tests.simulator.training_rounds import TINY

_REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "pid", "tid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
_METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def check(found):
    """What the Trace Event Format asks of a file, as strictly as it can be read. Fails by assertion."""
    assert set(found) <= {"traceEvents", "displayTimeUnit", "otherData", "systemTraceEvents", "stackFrames", "samples"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    named, tracks, arrows = set(), defaultdict(list), defaultdict(list)
    for event in found["traceEvents"]:
        phase = event["ph"]
        assert phase in _REQUIRED, event
        assert _REQUIRED[phase] <= set(event), event
        assert all(type(event[key]) is int for key in ("pid", "tid") if key in event), event
        assert isinstance(event["name"], str), event
        assert all(isinstance(value, str | int | float) for value in event.get("args", {}).values()), event
        if phase == "M":
            key, sort = _METADATA[event["name"]]
            assert list(event["args"]) == [key], event
            assert isinstance(event["args"][key], sort), event
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0, event
        if phase == "X":
            assert event["dur"] >= 0, event
            begin = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
        elif phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
        else:
            arrows[event["cat"], event["name"], event["id"]].append(event)
    for pid, tid in tracks:
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
    for track in tracks.values():
        _nested(track)
    for ends in arrows.values():
        _bound(ends, tracks)


def _nested(track):
    """Slices of a thread lie inside each other or apart."""
    open_ends = []
    for begin, end in sorted(track, key=lambda one: (one[0], -one[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], (begin, end, open_ends)
        open_ends.append(end)


def _bound(ends, tracks):
    """An arrow begins once and ends once, not before, and both ends lie in a slice."""
    assert [event["ph"] for event in ends] == ["s", "f"], ends
    assert ends[0]["ts"] <= ends[1]["ts"], ends
    assert ends[1]["bp"] == "e"
    for event in ends:
        at = round(event["ts"] * 1000)
        assert any(begin <= at <= end for begin, end in tracks[event["pid"], event["tid"]]), event


def slices(found, source):
    """The slices of a timeline's spans, without their parts."""
    pids = {
        event["pid"]
        for event in found["traceEvents"]
        if event["name"] == "process_name" and event["args"]["name"].startswith(source)
    }
    return [e for e in found["traceEvents"] if e["ph"] == "X" and e["cat"] != "part" and e["pid"] in pids]


def holds_all(found, view):
    """Counts, bytes, actions and the time of each sort of part are the timelines'."""
    for timeline in view.timelines:
        mine = slices(found, timeline.source)
        assert len(mine) == len(timeline.spans)
        assert sum(event["args"]["bytes"] for event in mine) == sum(span.payload_bytes for span in timeline.spans)
        by_rank = Counter(span.rank for span in timeline.spans)
        assert Counter(event["args"]["rank"] for event in mine) == by_rank
        total_s = sum(span.end_s - span.start_s for span in timeline.spans)
        assert sum(event["dur"] for event in mine) / 1e6 == pytest.approx(total_s, abs=2e-9 * len(mine))
        totals = found["otherData"]["totals"][timeline.source]
        assert totals["spans"] == len(timeline.spans)
        assert totals["makespan_s"] == timeline.makespan_s
    parts = sum(len(span.parts) for timeline in view.timelines for span in timeline.spans)
    assert sum(event["ph"] == "X" and event["cat"] == "part" for event in found["traceEvents"]) == parts


def written(view, tmp_path):
    write_trace(view, tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())


def test_a_run_as_a_trace(record, tmp_path):
    view = make_view(record)
    found = written(view, tmp_path)
    check(found)
    holds_all(found, view)
    names = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"]
    assert names[:2] == ["stage 0 rank 0 · compute", "stage 0 rank 0 · messages"]
    processes = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"]
    assert processes == ["predicted · localhost", "measured · localhost"]
    first = slices(found, "predicted")[0]
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("0:0F0", "forward", 0.0, 1000.0)
    arrows = [event for event in found["traceEvents"] if event["ph"] == "s"]
    sends = [span for one in view.timelines for span in one.spans if span.action.kind.sends]
    receives = [span for one in view.timelines for span in one.spans if span.action.kind.receives]
    assert 0 < len(arrows) <= min(len(sends), len(receives))


@given(st.none() | timelines("predicted", 1), timelines("measured", 1))
@settings(max_examples=60, deadline=None)
def test_any_run_is_a_valid_trace(predicted, measured):
    view = make_view(RunRecord("", (), predicted=predicted, measured=measured))
    found = trace(view)
    check(found)
    holds_all(found, view)


@given(generation.cases())
@settings(max_examples=25, deadline=None)
def test_every_message_of_a_generation_is_an_arrow(case):
    timeline = generation.simulated(case)
    if timeline is not None and timeline.spans:
        view = replace(make_view(RunRecord("", (), predicted=timeline)), layout=case[0])
        found = trace(view)
        check(found)
        sends = sum(span.action.kind.sends for span in timeline.spans)
        assert sum(event["ph"] == "s" for event in found["traceEvents"]) == sends


@given(training.cases())
@settings(max_examples=25, deadline=None)
def test_every_message_of_a_training_step_is_an_arrow(case):
    if training.simulated(case) is not None:
        layout, one, costs = case
        timeline = simulate(layout, [one], costs, TINY)
        found = trace(replace(make_view(RunRecord("", (), predicted=timeline)), layout=layout))
        check(found)
        sends = sum(span.action.kind.sends for span in timeline.spans)
        assert sum(event["ph"] == "s" for event in found["traceEvents"]) == sends


def test_memory_is_a_counter(record, tmp_path):
    assert record.measured is not None
    memory = {0: MemoryTrack((0.0, 0.002), (5, 7)), 1: MemoryTrack((0.001,), (9,))}
    measured = Timeline("measured", record.measured.spans, record.measured.hosts, memory=memory)
    found = written(make_view(replace(record, measured=measured)), tmp_path)
    check(found)
    counted = [(e["name"], e["ts"], e["args"]) for e in found["traceEvents"] if e["ph"] == "C"]
    assert counted == [
        ("memory of rank 0", 0.0, {"bytes": 5}),
        ("memory of rank 0", 2000.0, {"bytes": 7}),
        ("memory of rank 1", 1000.0, {"bytes": 9}),
    ]


@pytest.mark.parametrize(
    "fault",
    [
        lambda event: event.pop("dur", None) is None or None,
        lambda event: event.update(ph="Q"),
        lambda event: event.update(pid="one"),
        lambda event: event["args"].update(deep={"a": 1}),
        lambda event: event.update(ts=-1.0),
        lambda event: event.update(dur=event["dur"] + 1500.0),
        lambda event: event.update(tid=999_999),
    ],
)
def test_the_check_finds_faults(record, fault):
    found = trace(make_view(record))
    fault(next(event for event in found["traceEvents"] if event["ph"] == "X"))
    with pytest.raises(AssertionError):
        check(found)


def test_an_arrow_without_its_end_is_a_fault(record):
    found = trace(make_view(record))
    events = found["traceEvents"]
    events.remove(next(event for event in events if event["ph"] == "f"))
    with pytest.raises(AssertionError):
        check(found)


def test_nothing_to_write(tmp_path):
    with pytest.raises(UsageError) as error:
        write_trace(make_view(RunRecord("", ())), tmp_path / "trace.json")
    assert str(error.value) == "nothing to write for Perfetto: there is neither a predicted nor a measured timeline"


def test_a_file_that_cannot_be_written(record, tmp_path):
    with pytest.raises(UsageError) as error:
        write_trace(make_view(record), tmp_path / "nowhere" / "trace.json")
    path = tmp_path / "nowhere" / "trace.json"
    assert str(error.value) == f"{path} cannot be written: No such file or directory; give another file"
