"""Memory tracks: made small enough to be drawn, laid one after the other, and what a host leaves each rank."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from plait.timeline.timeline import MemoryTrack

MOST_POINTS = 2000
"""Of a track: more than a picture is wide."""


def thin(times_s: Sequence[float], used_bytes: Sequence[int], most: int = MOST_POINTS) -> tuple[list[float], list[int]]:
    """At most `most` points of a curve (4 or more): its first and last, and of equal pieces the lowest and the highest.

    Minimum and maximum of every piece are kept at their own times, so that no peak is lost, and none is made up.
    """
    count = len(times_s)
    if count <= most:
        return list(times_s), list(used_bytes)
    kept = {0, count - 1}
    pieces = max(1, (most - 2) // 2)
    for piece in range(pieces):
        indices = range(piece * count // pieces, (piece + 1) * count // pieces)
        kept.add(min(indices, key=used_bytes.__getitem__))
        kept.add(max(indices, key=used_bytes.__getitem__))
    chosen = sorted(kept)
    return [times_s[index] for index in chosen], [used_bytes[index] for index in chosen]


def shifted(track: MemoryTrack, by_s: float) -> MemoryTrack:
    """The track later by so many seconds."""
    return track._replace(times_s=tuple(moment_s + by_s for moment_s in track.times_s))


def clipped(track: MemoryTrack, start_s: float, end_s: float) -> MemoryTrack:
    """What of a track lies within [start, end], with what lay there at the start."""
    first, end = bisect_right(track.times_s, start_s), bisect_right(track.times_s, end_s)
    if not first:
        return track._replace(times_s=track.times_s[:end], used_bytes=track.used_bytes[:end])
    return track._replace(
        times_s=(start_s, *track.times_s[first:end]), used_bytes=track.used_bytes[first - 1 : max(first, end)]
    )


def joined(tracks: Sequence[MemoryTrack]) -> MemoryTrack:
    """Tracks of one rank one after the other, in the order of their times."""
    times_s = [moment_s for track in tracks for moment_s in track.times_s]
    used_bytes = [size for track in tracks for size in track.used_bytes]
    thinned_s, thinned_bytes = thin(times_s, used_bytes)
    limits = [track.limit_bytes for track in tracks if track.limit_bytes is not None]
    base = max((track.base_bytes for track in tracks), default=0)
    return MemoryTrack(tuple(thinned_s), tuple(thinned_bytes), min(limits, default=None), base)


def used_at(track: MemoryTrack, moment_s: float) -> int:
    """Bytes at a moment, after all that changes then; before the first point what lies there first."""
    if not track.used_bytes:
        return 0
    return track.used_bytes[max(0, bisect_right(track.times_s, moment_s) - 1)]


def peak_within(track: MemoryTrack, start_s: float, end_s: float) -> int:
    """The most from `start_s` to `end_s`, both included."""
    first, end = bisect_left(track.times_s, start_s), bisect_right(track.times_s, end_s)
    return max(used_at(track, start_s), max(track.used_bytes[first:end], default=0))


def left_by_others(
    grown_bytes: Mapping[int, int], hosts: Mapping[int, str], free_bytes: Mapping[str, int]
) -> dict[int, int]:
    """What a host's free memory leaves each rank where the others there take at most `grown_bytes`.

    All fit together exactly where each stays within its own. Ranks of hosts that `free_bytes` lacks are left out.
    """
    together: defaultdict[str, int] = defaultdict(int)
    for rank, size in grown_bytes.items():
        together[hosts.get(rank, "")] += size
    return dict(_left(grown_bytes, hosts, free_bytes, together))


def _left(
    grown_bytes: Mapping[int, int], hosts: Mapping[int, str], free_bytes: Mapping[str, int], together: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    for rank, size in grown_bytes.items():
        host = hosts.get(rank, "")
        if host in free_bytes:
            yield rank, max(0, free_bytes[host] - (together[host] - size))
