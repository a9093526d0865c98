"""Processor sharing, worked out by hand."""

from __future__ import annotations

import pytest

from plait.costs.protocol import Running
from plait.simulator.sharing import Host, SharedHosts


def cores(count: int):
    """Speeds of one-thread stages on `count` cores."""
    return lambda running: (min(1.0, count / len(running)),) * len(running)


def ends_of(shared: SharedHosts) -> dict[int, float]:
    return {ended[0]: ended[2] for ended in iter(shared.next_end, None)}


def test_three_one_thread_stages_share_two_cores() -> None:
    """All begin at 0 at speed 2/3. Alone they take 2, 4, 6 s.

    Until 3 s: 2 s of work each, the first ends. Then two stages on two cores at speed 1: the second has 2 s left and
    ends at 5, the third has 4 left and ends at 7.
    """
    shared, host = SharedHosts(), Host(cores(2))
    for stage, alone_s in enumerate((2.0, 4.0, 6.0)):
        shared.arrive(host, 0.0, Running(stage, 512), alone_s)
    assert ends_of(shared) == pytest.approx({0: 3.0, 1: 5.0, 2: 7.0})


def test_one_comes_while_the_other_runs() -> None:
    """One core. The first has done 1 of 2 s when the second (0.5 s) comes: both at half speed, it ends at 2, then the
    first has 0.5 s left and ends at 2.5."""
    shared, host = SharedHosts(), Host(cores(1))
    shared.arrive(host, 0.0, Running(0, 512), 2.0)
    shared.arrive(host, 1.0, Running(1, 512), 0.5)
    assert ends_of(shared) == pytest.approx({1: 2.0, 0: 2.5})


def test_one_begins_as_the_other_ends() -> None:
    """Nothing is shared: exactly the times alone."""
    shared, host = SharedHosts(), Host(cores(1))
    shared.arrive(host, 0.0, Running(0, 512), 0.1)
    shared.arrive(host, 0.1, Running(1, 512), 0.2)
    assert ends_of(shared) == {0: 0.1, 1: 0.1 + 0.2}


def test_hosts_do_not_slow_each_other() -> None:
    shared = SharedHosts()
    for stage in range(3):
        shared.arrive(Host(cores(1)), 0.0, Running(stage, 512), 1.0 + stage)
    assert ends_of(shared) == {0: 1.0, 1: 2.0, 2: 3.0}


def test_speeds_may_differ() -> None:
    """The memory is shared, the cores are not: decoding goes on at half speed beside a prefill that is not slowed."""
    shared = SharedHosts()
    host = Host(lambda running: tuple(0.5 if one.load == 1 and len(running) > 1 else 1.0 for one in running))
    shared.arrive(host, 0.0, Running(0, 1), 2.0)
    shared.arrive(host, 0.0, Running(1, 512), 2.0)
    assert ends_of(shared) == pytest.approx({1: 2.0, 0: 3.0})
