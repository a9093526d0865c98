"""What a rank says when another dies, or does not come: the action that it waits for, and of whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from plait.comm.contract import Endpoint, Group
from plait.comm.threads import thread_mesh
from plait.errors import PeerLost, PlanError, RunError, WaitTimeout
from plait.executor.lane import Post
from plait.executor.program import compile_program
from plait.executor.step_executor import StepExecutor
from plait.plans.action import Action, Kind
from plait.plans.notation import format_action
from tests.executor.steps import Case, FoldingWorker

Inside = Callable[[int, Endpoint, Action], None]
STALL_S = 0.03


class Mesh:
    """Ranks on threads. `inside(rank, endpoint, action)` is called in every computation."""

    def __init__(self, case: Case, inside: Inside, *, stall_s: float = 20.0, timeout_s: float = 60.0) -> None:
        self.case, self.inside = case, inside
        self.stall_s, self.timeout_s = stall_s, timeout_s
        self.said: dict[int, list[str]] = {rank: [] for rank in range(case.layout.ranks)}
        self.heard = threading.Event()
        self.listened_to: set[int] = set()
        self.errors: dict[int, BaseException] = {}

    def run(self) -> Mesh:
        endpoints = thread_mesh(self.case.layout.ranks, self.case.capacity)
        threads = [threading.Thread(target=self.body, args=(endpoint,)) for endpoint in endpoints]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def body(self, endpoint: Endpoint) -> None:
        rank = endpoint.rank
        worker = FoldingWorker(self.case, rank, lambda action: self.inside(rank, endpoint, action))
        try:
            with endpoint:
                StepExecutor(
                    self.case.layout,
                    rank,
                    endpoint,
                    worker,
                    stalled=lambda text: self.stalled(rank, text),
                    stall_s=self.stall_s,
                    timeout_s=self.timeout_s,
                ).run(self.case.round(7))
        except (RunError, Boom) as error:
            self.errors[rank] = error

    def stalled(self, rank: int, text: str) -> None:
        self.said[rank].append(text)
        if all(len(self.said[one]) >= 2 for one in self.listened_to):
            self.heard.set()

    def hold(self, rank: int, name: str, *others: int) -> Mesh:
        """Let a rank's action wait until the others have said twice that they wait."""
        inside = self.inside
        self.listened_to.update(others)

        def held(here: int, endpoint: Endpoint, action: Action) -> None:
            if here == rank and format_action(action, with_round=False) == name:
                assert self.heard.wait(30)
            inside(here, endpoint, action)

        self.inside = held
        return self


class Boom(Exception):
    pass


def nothing(rank: int, endpoint: Endpoint, action: Action) -> None:
    pass


def dies(where: int, name: str) -> Inside:
    def inside(rank: int, endpoint: Endpoint, action: Action) -> None:
        if rank == where and format_action(action, with_round=False) == name:
            raise Boom("out of luck")

    return inside


LOST = "rank {} is lost, while rank {} waited for {}: Boom: out of luck"


@pytest.mark.parametrize(
    ("where", "name", "who", "what"),
    [
        (0, "0F0", 1, "7:1RF0 of rank 0"),
        (1, "1B0", 0, "7:0RB0 of rank 1"),
        (1, "1F1", 0, "7:0RB1 of rank 1"),
    ],
)
def test_a_rank_that_dies_is_named_with_what_was_waited_for(where: int, name: str, who: int, what: str) -> None:
    mesh = Mesh(Case("gpipe", 2, 2), dies(where, name)).run()
    assert isinstance(mesh.errors[where], Boom)
    assert isinstance(mesh.errors[who], PeerLost)
    assert mesh.errors[who].rank == where
    assert str(mesh.errors[who]) == LOST.format(where, who, what)


def test_a_replica_that_dies_in_its_backward_is_named() -> None:
    mesh = Mesh(Case("gpipe", 1, 1, dp=3), dies(0, "0B0")).run()
    assert str(mesh.errors[1]) == LOST.format(0, 1, "7:0G0 of rank 0")
    assert str(mesh.errors[2]) == LOST.format(0, 2, "7:0G0 of rank 0")


def test_every_rank_of_a_mesh_hears_of_a_death() -> None:
    case = Case("interleaved", 3, 4, 2, dp=2, norm=True)
    mesh = Mesh(case, dies(3, "3B2")).run()
    assert sorted(mesh.errors) == list(range(6))
    assert all(error.rank == 3 for rank, error in mesh.errors.items() if isinstance(error, PeerLost))


def test_a_message_that_does_not_come() -> None:
    mesh = Mesh(Case("gpipe", 2, 2), nothing, stall_s=STALL_S).hold(0, "0F1", 1).run()
    assert mesh.errors == {}
    assert mesh.said[1][:2] == [
        "rank 1 has waited 0.03 s for 7:1RF1 of rank 0",
        "rank 1 has waited 0.06 s for 7:1RF1 of rank 0",
    ]


def test_a_gradient_that_does_not_come() -> None:
    mesh = Mesh(Case("1f1b", 2, 2), nothing, stall_s=STALL_S).hold(1, "1B0", 0).run()
    assert mesh.said[0][0] == "rank 0 has waited 0.03 s for 7:0RB0 of rank 1"


def test_a_link_without_room() -> None:
    """Rank 1 computes; rank 0 is done with all its forwards and cannot send the third."""
    mesh = Mesh(Case("gpipe", 2, 4, capacity=1), nothing, stall_s=STALL_S).hold(1, "1F0", 0).run()
    assert mesh.said[0][0] == "rank 0 has waited 0.03 s for room for 7:0SF2 on link 0→1"


def test_a_reduction_that_another_replica_has_not_begun() -> None:
    mesh = Mesh(Case("gpipe", 1, 1, dp=3), nothing, stall_s=STALL_S).hold(1, "0B0", 2).run()
    assert mesh.said[2][0] == "rank 2 has waited 0.03 s for 7:0G0 of rank 1"


def exchanges(rank: int, endpoint: Endpoint, action: Action) -> None:
    """A sum over the tensor group, or over the whole mesh for the norm, as nn and trainer do it."""
    ranks = (0, 1) if action.kind is not Kind.NORM else tuple(range(endpoint.size))
    if rank in ranks:
        endpoint.all_reduce(Group(ranks), torch.ones(3))


@pytest.mark.parametrize(
    ("held", "name", "told"),
    [
        (1, "0B0", {0: "7:0B0 of rank 1"}),
        (3, "0N0", {0: "7:0N0 of ranks 1, 2, 3", 1: "7:0N0 of ranks 0, 2, 3", 2: "7:0N0 of ranks 0, 1, 3"}),
    ],
)
def test_a_wait_inside_a_computation(held: int, name: str, told: dict[int, str]) -> None:
    """The other rank of a tensor group does not come to the exchange; nor one of the mesh to the norm."""
    case = Case("gpipe", 1, 1, dp=2, tp=2, norm=True)
    mesh = Mesh(case, exchanges, stall_s=0.2).hold(held, name, *told).run()
    assert mesh.errors == {}
    said = {rank: mesh.said[rank][0] for rank in told}
    assert said == {rank: f"rank {rank} has waited 0.2 s for {what}" for rank, what in told.items()}


def test_time_is_up() -> None:
    """Nothing has moved for the whole time: the error names the action, and says all that it has waited."""
    gone = threading.Event()

    def inside(rank: int, endpoint: Endpoint, action: Action) -> None:
        if rank == 0 and action.micro_batch == 1:
            assert gone.wait(30)

    mesh = Mesh(Case("gpipe", 2, 2), inside, stall_s=0.02, timeout_s=0.05)
    run = mesh.body

    def body(endpoint: Endpoint) -> None:
        run(endpoint)
        if endpoint.rank == 1:
            gone.set()

    mesh.body = body  # type: ignore[method-assign]
    mesh.run()
    assert isinstance(mesh.errors[1], WaitTimeout)
    assert str(mesh.errors[1]) == "rank 1 waited 0.05 s for 7:1RF1 of rank 0, and it did not come"
    assert mesh.said[1] == [f"rank 1 has waited {waited_s} s for 7:1RF1 of rank 0" for waited_s in (0.02, 0.04)]


def test_a_list_that_lacks_an_action_is_refused() -> None:
    case = Case("gpipe", 2, 1)
    actions = tuple(action for action in case.round().actions[1] if action.kind is not Kind.RECEIVE_FORWARD)
    with pytest.raises(PlanError) as caught:
        compile_program(actions, Post(case.layout, 1), 2)
    assert str(caught.value) == "0:1F0 waits for an action that is not there"


def test_a_mesh_of_another_epoch_is_not_heard() -> None:
    """What was sent before a re-plan is dropped: the tags carry the epoch."""
    case = Case("gpipe", 2, 1)
    endpoints = thread_mesh(2, 2)
    for epoch in (3, 4):
        worker = FoldingWorker(case, 0)
        alone = StepExecutor(replace(case.layout, epoch=epoch), 0, endpoints[0], worker, timeout_s=0.01)
        with pytest.raises(WaitTimeout):
            alone.run(case.round())
    worker = FoldingWorker(case, 1)
    StepExecutor(replace(case.layout, epoch=4), 1, endpoints[1], worker).run(case.round())
    assert endpoints[0].traffic(1).dropped == 1
    assert worker.outputs != {}
