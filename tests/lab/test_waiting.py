"""Stages that wait, on threads and on a virtual clock."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from plait.comm.contract import Group
from plait.comm.threads import thread_mesh
from plait.costs.protocol import FixedCosts
from plait.executor.virtual import VirtualMessages, VirtualWorld
from plait.lab.talking import VirtualExchanges, one_thread_each
from plait.lab.waiting import SPEC, Waits, on_threads, on_virtual_clock, undisturbed, waiting_layout
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import V_SHAPED
from plait.simulator.simulate import simulate
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

SCHEDULES = ("layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")


def case(schedule: str, positions: int, micro_batches: int) -> tuple[Layout, Round, FixedCosts]:
    layout, setup = waiting_layout(schedule, positions, micro_batches)
    one = make_training_round(0, layout, setup, sequences(micro_batches, 1, 1))
    kinds = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.5, Kind.BACKWARD_INPUT: 1.5, Kind.BACKWARD_WEIGHT: 1.0}
    seconds = {
        (stage, kind): taken * (1 + stage / 10) for stage in range(len(layout.stages)) for kind, taken in kinds.items()
    }
    return layout, one, FixedCosts(kind_seconds=seconds)


@pytest.mark.parametrize(("schedule", "positions"), list(product(SCHEDULES, (2, 4))))
def test_on_the_virtual_clock_a_step_is_as_simulated(schedule: str, positions: int) -> None:
    layout, one, costs = case(schedule, positions, 5)
    assert len(layout.stages) == positions * (2 if schedule in (*V_SHAPED, "interleaved") else 1)
    measured = on_virtual_clock(layout, one, lambda _, rank, pause: Waits(costs, layout, pause))
    predicted = simulate(layout, [one], costs, SPEC)

    def computed(timeline: Timeline) -> dict[tuple[int, Action], tuple[float, float]]:
        return {
            (span.rank, span.action): (round(span.start_s, 9), round(span.end_s, 9))
            for span in timeline.spans
            if span.action.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        }

    assert computed(measured) == computed(predicted)


def test_threads_do_every_action_of_the_round() -> None:
    layout, one, costs = case("1f1b", 3, 4)
    slept: list[float] = []
    endpoints = thread_mesh(layout.ranks, layout.link_capacity)
    measured = on_threads(layout, one, endpoints, lambda _: Waits(costs, layout, slept.append))
    done = {(span.rank, span.action) for span in measured.spans}
    assert done == {(rank, action) for rank, actions in enumerate(one.actions) for action in actions}
    assert sorted(slept) == sorted(
        costs.kind_seconds[action.stage, action.kind]
        for actions in one.actions
        for action in actions
        if action.kind in (Kind.FORWARD, Kind.BACKWARD)
    )


def test_the_error_of_the_rank_that_failed_first_is_the_one_that_is_seen() -> None:
    layout, one, costs = case("1f1b", 4, 4)
    endpoints = thread_mesh(layout.ranks, layout.link_capacity)

    def worker(rank: int) -> Waits:
        def pause(duration_s: float) -> None:
            if rank == 2:
                raise ZeroDivisionError("of rank 2")

        return Waits(costs, layout, pause)

    with pytest.raises(ZeroDivisionError, match="of rank 2"):
        on_threads(layout, one, endpoints, worker)


@pytest.mark.parametrize("ranks", [2, 3])
def test_exchanges_on_the_virtual_clock_are_those_of_a_transport(ranks: int) -> None:
    world = VirtualWorld(ranks, 2, lambda source, to, size: (size / 8.0, 1.0))
    group = Group(tuple(range(ranks)))
    summed, gathered = {}, {}

    def body(rank: int) -> None:
        exchanges = VirtualExchanges(VirtualMessages(world, rank), rank)
        summed[rank] = exchanges.all_reduce(group, torch.tensor([1.0 + rank, 10.0]))
        gathered[rank] = exchanges.all_gather(group, torch.full((rank + 1,), float(rank)), range(1, ranks + 1))
        assert exchanges.traffic((rank + 1) % ranks).payload_bytes == 8 + 4 * (rank + 1)

    world.run([lambda rank=rank: body(rank) for rank in range(ranks)])
    total = torch.tensor([1.0 + rank for rank in range(ranks)]).sum()
    pieces = torch.cat([torch.full((rank + 1,), float(rank)) for rank in range(ranks)])
    for rank in range(ranks):
        assert summed[rank].tolist() == [total, 10.0 * ranks]
        assert torch.equal(gathered[rank], pieces)
    assert world.now >= 2 * (1.0 + 1.0)


def test_torchs_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread_each():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("lengths", "most", "taken", "seen"),
    [
        ((2.0, 2.01), 8, 2, 2.0),
        ((2.5, 2.0, 2.4, 2.01, 1.0), 8, 4, 2.0),
        ((2.5, 2.0, 2.4, 2.2), 4, 4, 2.0),
        ((1.0, 1.0), 8, 2, 1.0),
    ],
)
def test_steps_are_repeated_until_the_two_fastest_agree(
    lengths: tuple[float, ...], most: int, taken: int, seen: float
) -> None:
    left = list(lengths)

    def step() -> Timeline:
        return Timeline("measured", (Span(0, Action(0, 0, Kind.FORWARD, 0), 0, 0.0, left.pop(0)),))

    assert undisturbed(step, most).makespan_s == seen
    assert len(lengths) - len(left) == taken
