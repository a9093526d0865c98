"""Memory tracks: thinned without losing a peak, laid in a row, cut to a run, and kept in records."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.plans.notation import parse_action
from plait.timeline.memory import clipped, joined, left_by_others, peak_within, shifted, thin, used_at
from plait.timeline.record import RunRecord
from plait.timeline.span import Span
from plait.timeline.timeline import MemoryTrack, Timeline

SPANS = (Span(0, parse_action("0:0F0"), 0, 0.0, 0.5),)
TRACK = MemoryTrack((0.0, 0.25, 0.5), (100, 300, 200), 1000, 50)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(4, 40))
def test_thinning_keeps_peaks_and_order_and_invents_nothing(used: list[int], most: int) -> None:
    times_s = [float(index) for index in range(len(used))]
    thinned_s, thinned_bytes = thin(times_s, used, most)
    assert len(thinned_s) == len(thinned_bytes) <= max(most, 0)
    assert thinned_s == sorted(set(thinned_s))
    assert all(used[int(moment_s)] == size for moment_s, size in zip(thinned_s, thinned_bytes, strict=True))
    assert (max(thinned_bytes), min(thinned_bytes)) == (max(used), min(used))
    assert (thinned_s[0], thinned_s[-1]) == (times_s[0], times_s[-1])
    assert len(used) > most or thinned_bytes == used


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=50, max_size=300), st.integers(12, 40))
def test_every_piece_of_a_thinned_curve_keeps_its_own_peak(used: list[int], most: int) -> None:
    thinned_s, thinned_bytes = thin([float(index) for index in range(len(used))], used, most)
    pieces = (most - 2) // 2
    if len(used) <= most:
        return
    for piece in range(pieces):
        first, end = piece * len(used) // pieces, (piece + 1) * len(used) // pieces
        there = [size for moment_s, size in zip(thinned_s, thinned_bytes, strict=True) if first <= moment_s < end]
        assert max(there) == max(used[first:end])


def test_a_track_cut_to_a_run_begins_with_what_lay_there() -> None:
    assert clipped(TRACK, 0.3, 0.5) == TRACK._replace(times_s=(0.3, 0.5), used_bytes=(300, 200))
    assert clipped(TRACK, 0.25, 0.4) == TRACK._replace(times_s=(0.25,), used_bytes=(300,))
    assert clipped(TRACK, -1.0, 0.3) == TRACK._replace(times_s=(0.0, 0.25), used_bytes=(100, 300))
    assert clipped(TRACK, 0.6, 0.9) == TRACK._replace(times_s=(0.6,), used_bytes=(200,))
    assert clipped(MemoryTrack((), ()), 0.0, 1.0) == MemoryTrack((), ())


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_a_cut_track_says_the_same(points: list[tuple[int, int]], one: int, other: int) -> None:
    points.sort(key=lambda point: point[0])
    track = MemoryTrack(tuple(float(at) for at, _ in points), tuple(size for _, size in points))
    start_s, end_s = float(min(one, other)), float(max(one, other))
    cut = clipped(track, start_s, end_s)
    for moment in range(int(max(start_s, track.times_s[0])), int(end_s) + 1):
        assert used_at(cut, moment) == used_at(track, moment)


def test_tracks_in_a_row() -> None:
    later = shifted(TRACK._replace(limit_bytes=900, base_bytes=60), 1.0)
    assert joined([TRACK, later]) == MemoryTrack(
        (0.0, 0.25, 0.5, 1.0, 1.25, 1.5), (100, 300, 200, 100, 300, 200), 900, 60
    )
    assert joined([TRACK._replace(limit_bytes=None)]).limit_bytes is None


def test_the_most_within_a_part_of_a_run() -> None:
    assert [peak_within(TRACK, *bounds) for bounds in ((0.0, 0.2), (0.3, 0.4), (0.5, 9.0), (0.0, 0.25))] == [
        100,
        300,
        200,
        300,
    ]


def test_what_the_other_ranks_of_a_host_leave() -> None:
    grown, hosts = {0: 300, 1: 500, 2: 70}, {0: "a", 1: "a", 2: "b"}
    assert left_by_others(grown, hosts, {"a": 1000}) == {0: 500, 1: 700}
    assert left_by_others(grown, hosts, {"a": 400, "b": 80}) == {0: 0, 1: 100, 2: 80}


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 5), st.integers(0, 100), min_size=1), st.integers(0, 400))
def test_all_ranks_stay_within_what_they_have_where_they_fit_together(grown: dict[int, int], free: int) -> None:
    left = left_by_others(grown, {}, {"": free})
    assert all(size <= left[rank] for rank, size in grown.items()) == (sum(grown.values()) <= free)


def test_records_keep_memory(tmp_path: Path) -> None:
    record = RunRecord("", (), measured=Timeline("measured", SPANS, {0: "a"}, {}, {0: TRACK}))
    assert RunRecord.load(record.save(tmp_path / "run")) == record


def test_records_of_before_there_was_memory_are_read(tmp_path: Path) -> None:
    record = RunRecord("", (), measured=Timeline("measured", SPANS, {0: "a"}))
    place = record.save(tmp_path / "run")
    old = json.loads((place / "measured.json").read_text())
    del old["memory"]
    (place / "measured.json").write_text(json.dumps(old))
    assert RunRecord.load(place) == record
