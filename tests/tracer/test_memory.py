"""What a rank's process holds: sampled, sent with its spans, and laid on the reference host's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import RunError
from plait.plans.notation import parse_action
from plait.timeline.timeline import Clock, MemoryTrack
from plait.tracer.memory import MOST_SAMPLES, MemorySampler, ResidentMemory
from plait.tracer.tracer import Tracer, merge

MB = 1_000_000


def sampler_of(*sizes: int) -> MemorySampler:
    """Never started: it sees these, one a look, and the last for ever."""
    left: Iterator[int] = iter(sizes)
    return MemorySampler(free_bytes=1000, read=lambda: next(left, sizes[-1]))


def test_64_megabytes_are_seen_while_they_are_held() -> None:
    with MemorySampler(every_s=0.001) as sampler:
        before = sampler.take()
        held = np.ones(64 * MB, dtype=np.uint8)
        time.sleep(0.01)
        during = sampler.take()
        del held
        after = sampler.take()
    assert before.base_bytes == during.base_bytes > 0
    grown = max(during.used_bytes) - before.used_bytes[-1]
    assert 60 * MB < grown < 80 * MB
    assert after.used_bytes[-1] < max(during.used_bytes) - 60 * MB
    assert during.times_s == tuple(sorted(during.times_s))
    assert during.times_s[0] == before.times_s[-1], "a track begins with the last sample of the one before"


def test_the_thread_looks_by_itself_and_ends() -> None:
    with MemorySampler(every_s=0.001) as sampler:
        deadline_s = time.monotonic() + 30
        while len(sampler._times_s) < 5:
            assert time.monotonic() < deadline_s, "nothing was sampled"
            time.sleep(0.001)
    assert not sampler._thread.is_alive()
    count = len(sampler._times_s)
    time.sleep(0.01)
    assert len(sampler._times_s) == count


def test_the_limit_is_what_was_free_and_what_was_held() -> None:
    track = sampler_of(50, 60).take()
    assert (track.base_bytes, track.limit_bytes) == (50, 1050)
    assert MemorySampler(read=lambda: 5).take().limit_bytes is None


def test_samples_that_are_too_many_are_put_together_and_the_peak_stays() -> None:
    count = 3 * MOST_SAMPLES
    sizes = [7] * count
    sizes[MOST_SAMPLES // 3], sizes[2 * MOST_SAMPLES + 1] = 99, 1
    sampler = sampler_of(7, *sizes)
    for _ in range(count):
        sampler.sample()
        assert len(sampler._times_s) <= MOST_SAMPLES
    track = sampler.take()
    assert (max(track.used_bytes), min(track.used_bytes)) == (99, 1)


def test_linux_says_what_is_resident() -> None:
    own = ResidentMemory()
    assert abs(own() - own._process.memory_info().rss) < 4 * MB
    own.close()
    own.close()
    assert abs(own() - own._process.memory_info().rss) < 4 * MB, "where there is no such file, psutil's"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 2**50)), max_size=5),
    st.one_of(st.none(), st.integers(0, 2**50)),
    st.integers(0, 2**40),
)
def test_a_track_travels_whole(points: list[tuple[float, int]], limit: int | None, base: int) -> None:
    tracer = Tracer(1, 2, "a")
    tracer.memory = MemoryTrack(tuple(at for at, _ in points), tuple(size for _, size in points), limit, base)
    assert Tracer.decode(tracer.encode()).memory == tracer.memory


def test_a_trace_without_memory_is_read() -> None:
    assert Tracer.decode(msgspec.msgpack.encode((1, 0, "a", []))).memory is None
    assert Tracer.decode(Tracer(1).encode()).memory is None


def test_a_trace_whose_memory_is_damaged() -> None:
    data = msgspec.msgpack.encode((1, 0, "a", [], ("x",)))
    with pytest.raises(RunError) as caught:
        Tracer.decode(data)
    assert str(caught.value).startswith(f"the trace that a rank handed over ({len(data)} bytes) cannot be read: ")


def traced(rank: int, host: str, start_s: float, end_s: float, memory: MemoryTrack | None) -> Tracer:
    tracer = Tracer(rank, 0, host)
    tracer.finished(parse_action(f"{rank}F0"), start_s, start_s, end_s, 0)
    tracer.memory = memory
    return tracer


def test_memory_is_laid_on_the_reference_clock_and_cut_to_the_run() -> None:
    """Host b's clock is 100 s ahead; the run begins at 10 s of a and ends at 14 s."""
    here = MemoryTrack((8.0, 9.5, 12.0, 15.0), (1, 2, 3, 4), None, 1)
    there = MemoryTrack((109.0, 113.0), (5, 6), None, 5)
    timeline = merge(
        [traced(0, "a", 10.0, 13.0, here), traced(1, "b", 112.0, 114.0, there)], {"b": Clock(100.0, 0.001)}
    )
    assert timeline.memory == {
        0: MemoryTrack((0.0, 2.0), (2, 3), None, 1),
        1: MemoryTrack((0.0, 3.0), (5, 6), None, 5),
    }


def test_a_ranks_limit_is_what_its_host_had_less_what_the_others_took() -> None:
    """1000 bytes were free on a when rank 0 began; rank 1 began when rank 0 had taken 150 of them."""
    tracks = [
        MemoryTrack((0.0, 1.0), (50, 250), 1050, 50),
        MemoryTrack((0.0, 1.0), (60, 360), 910, 60),
        MemoryTrack((0.0,), (70,), 570, 70),
    ]
    hosts = ("a", "a", "b")
    timeline = merge([traced(rank, hosts[rank], 0.0, 2.0, track) for rank, track in enumerate(tracks)], {"b": Clock()})
    limits = {rank: track.limit_bytes for rank, track in timeline.memory.items()}
    assert limits == {0: 50 + 1000 - 300, 1: 60 + 1000 - 200, 2: 570}


def test_ranks_without_a_process_of_their_own_have_no_track() -> None:
    assert merge([traced(0, "a", 0.0, 1.0, None)]).memory == {}
