"""Stages that compute on one host at the same time share it: each one's speed changes as others come and go.

Fluid processor sharing: between two changes every speed is constant, so ends are exact. Of a running computation only
its end at the present speed is kept; it moves when its speed changes, and not otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from plait.costs.protocol import Running

Speeds = Callable[[tuple[Running, ...]], tuple[float, ...]]


@dataclass(slots=True, eq=False)
class _Job:
    running: Running
    start_s: float
    end_s: float
    speed: float = 1.0


@dataclass(slots=True)
class Host:
    """What computes on one host, in the order of stages. `version` counts changes: an older event is void."""

    speeds: Speeds
    jobs: list[_Job] = field(default_factory=list)
    version: int = 0

    def begin(self, now_s: float, running: Running, alone_s: float) -> None:
        """A stage begins a computation of `alone_s` seconds."""
        self.version += 1
        self.jobs.append(_Job(running, now_s, now_s + alone_s))
        if len(self.jobs) > 1:
            self.jobs.sort(key=_stage_of)
            self._change(now_s)

    def first(self) -> _Job | None:
        """The job that ends first; of several, the lowest stage's."""
        jobs = self.jobs
        if len(jobs) < 2:
            return jobs[0] if jobs else None
        return min(jobs, key=_end_of)

    def end_first(self) -> _Job:
        """Take out the job that ends first."""
        job = self.first()
        assert job is not None
        self.version += 1
        self.jobs.remove(job)
        if self.jobs:
            self._change(job.end_s)
        return job

    def _change(self, now_s: float) -> None:
        speeds = self.speeds(tuple([job.running for job in self.jobs]))
        for job, speed in zip(self.jobs, speeds, strict=True):
            if speed != job.speed:
                job.end_s = now_s + (job.end_s - now_s) * job.speed / speed
                job.speed = speed


_stage_of = attrgetter("running.stage")
_end_of = attrgetter("end_s")


class SharedHosts:
    """All shared hosts, on one clock. Arrivals and ends come in the order of time; at the same time ends first."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, int, Host, int, tuple[Running, float] | None]] = []
        self._number = 0

    def arrive(self, host: Host, now_s: float, running: Running, alone_s: float) -> None:
        """A computation may begin at `now_s`, which is not before the latest event."""
        self._push(now_s, 1, host, 0, (running, alone_s))

    def next_end(self) -> tuple[int, float, float] | None:
        """Go on until a computation ends: its stage, begin and end. None when nothing runs."""
        while self._events:
            now_s, _, _, host, version, arrival = heapq.heappop(self._events)
            if arrival is not None:
                host.begin(now_s, *arrival)
                self._expect(host)
            elif version == host.version:
                job = host.end_first()
                self._expect(host)
                return job.running.stage, job.start_s, job.end_s
        return None

    def _expect(self, host: Host) -> None:
        job = host.first()
        if job is not None:
            self._push(job.end_s, 0, host, host.version, None)

    def _push(self, when_s: float, order: int, host: Host, version: int, arrival: tuple[Running, float] | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, order, self._number, host, version, arrival))
