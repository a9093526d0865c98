"""Stages that compute on one host at the same time share it: each one's speed changes as others come and go.

Fluid processor sharing: between two changes every speed is constant, so ends are exact. Of a running computation only
its end at the present speed is kept; it moves when its speed changes, and not otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

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

    def end(self, job: _Job) -> None:
        """Take out the job that ends first."""
        self.version += 1
        self.jobs.remove(job)
        if self.jobs:
            self._change(job.end_s)

    def _change(self, now_s: float) -> None:
        speeds = self.speeds(tuple([job.running for job in self.jobs]))
        for job, speed in zip(self.jobs, speeds, strict=True):
            if speed != job.speed:
                job.end_s = now_s + (job.end_s - now_s) * job.speed / speed
                job.speed = speed


_stage_of = attrgetter("running.stage")
_end_of = attrgetter("end_s")


class _Event(NamedTuple):
    """Something on the clock: a job's end (order 0), void once its host's version is another; or an arrival (1)."""

    when_s: float
    order: int
    number: int
    host: Host
    version: int
    job: _Job | None
    running: Running
    alone_s: float


class SharedHosts:
    """All shared hosts, on one clock. Arrivals and ends come in the order of time; at the same time ends first."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._number = 0

    def arrive(self, host: Host, now_s: float, running: Running, alone_s: float) -> None:
        """A computation may begin at `now_s`, which is not before the latest event."""
        self._number += 1
        heapq.heappush(self._events, _new(_Event, (now_s, 1, self._number, host, 0, None, running, alone_s)))

    def next_end(self) -> tuple[int, float, float] | None:
        """Go on until a computation ends: its stage, begin and end. None when nothing runs."""
        events = self._events
        while events:
            now_s, _, _, host, version, job, running, alone_s = heapq.heappop(events)
            if job is None:
                host.begin(now_s, running, alone_s)
                self._expect(host)
            elif version == host.version:
                host.end(job)
                self._expect(host)
                return job.running.stage, job.start_s, job.end_s
        return None

    def _expect(self, host: Host) -> None:
        job = host.first()
        if job is not None:
            self._number += 1
            event = (job.end_s, 0, self._number, host, host.version, job, job.running, 0.0)
            heapq.heappush(self._events, _new(_Event, event))


_new = tuple.__new__
