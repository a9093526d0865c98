"""Runs a case with ranks as threads of this process: no start-up, so that thousands of meshes take minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from plait.certifier.case import Case
from plait.certifier.compare import whole_steps
from plait.certifier.held import Report
from plait.certifier.models import small_spec, small_tensors
from plait.certifier.rank import run_rank
from plait.certifier.reference import frozen_names, work_of
from plait.comm.contract import Endpoint
from plait.comm.threads import thread_mesh
from plait.errors import PeerLost, PlaitError, RunError
from plait.plans.round import Round
from plait.plans.training import TrainingPlan
from plait.schedules.step import executed_round

LIMIT_S = 120.0
"""A mesh that takes longer is stuck."""


Stalled = Callable[[str], None]
Program = Callable[[Case, TrainingPlan, Endpoint, Stalled, Round | None], Report]


def run_threads(case: Case, plan: TrainingPlan, program: Program = run_rank) -> list[Report]:
    """What each rank has seen, in rank order. Errors: RunError about what began it, where a rank failed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        small_tensors(case.small), whole_steps(work_of(case))  # made once, before the threads look at them
        endpoints, first = thread_mesh(plan.layout.ranks, plan.layout.link_capacity), _round(case, plan)
        return _Threads(endpoints).run(lambda endpoint, stalled: program(case, plan, endpoint, stalled, first), LIMIT_S)
    finally:
        torch.set_num_threads(threads)


def _round(case: Case, plan: TrainingPlan) -> Round:
    """The round of all ranks."""
    frozen = frozen_names(case.small, case.frozen)
    return executed_round(0, plan, small_spec(case.small), case.buckets, frozen)


class _Threads:
    """A thread for each endpoint."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._endpoints = endpoints
        self._reports: dict[int, Report] = {}
        self._errors: list[tuple[int, BaseException]] = []
        self._waits: dict[int, str] = {}

    def run(self, program: Callable[[Endpoint, Stalled], Report], limit_s: float) -> list[Report]:
        """What `program` returns for each. Errors: the first that is not of another rank's end."""
        threads = [threading.Thread(target=self._rank, args=(one, program), daemon=True) for one in self._endpoints]
        deadline_s = time.monotonic() + limit_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._end(threads, limit_s)
        return [self._reports[one.rank] for one in self._endpoints]

    def _rank(self, endpoint: Endpoint, program: Callable[[Endpoint, Stalled], Report]) -> None:
        rank = endpoint.rank
        try:
            with endpoint:
                self._reports[rank] = program(endpoint, lambda text: self._waits.update({rank: text}))
        except BaseException as error:
            self._errors.append((rank, error))

    def _end(self, threads: list[threading.Thread], limit_s: float) -> None:
        stuck = [one.rank for one, thread in zip(self._endpoints, threads, strict=True) if thread.is_alive()]
        if stuck:
            for endpoint in self._endpoints:
                endpoint.fail(f"the mesh was stuck for {limit_s:g} s")
            names = ", ".join(map(str, stuck))
            waits = "".join(f"; {self._waits[rank]}" for rank in stuck if rank in self._waits)
            raise RunError(f"the mesh is stuck: after {limit_s:g} s ranks {names} have not ended{waits}")
        own = [(rank, error) for rank, error in self._errors if not isinstance(error, PeerLost)] or self._errors
        if own:
            rank, error = own[0]
            words = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
            raise RunError(f"rank {rank}: {words}") from error
