"""What --emulate may say, and what it is told otherwise."""

from __future__ import annotations

import pytest

from plait.errors import SpecError
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks, Emulation, host_names, links_words, named_links_words, parse_emulation

HOW = "write bandwidth and latency, as in 1gbit,200us, or a link preset, as in ethernet-1g; @2 makes two ranks a host"


@pytest.mark.parametrize(
    ("text", "latency_s", "bandwidth", "ranks"),
    [
        ("1gbit,200us", 200e-6, 125e6, 1),
        (" 1GBIT , 200us ", 200e-6, 125e6, 1),
        ("100mbit,1ms@2", 1e-3, 12.5e6, 2),
        ("2.5gbit,.06ms@1", 60e-6, 312.5e6, 1),
        ("64kbit,0.5s@3", 0.5, 8000, 3),
        ("1gbit,200µs", 200e-6, 125e6, 1),
        ("ethernet-1g", 100e-6, 0.9415e9 / 8, 1),
        ("wifi-5@2", 3e-3, 65e6, 2),
    ],
)
def test_what_it_says(text: str, latency_s: float, bandwidth: float, ranks: int) -> None:
    found = parse_emulation(text)
    assert (found.wire.latency_s, found.wire.bandwidth) == pytest.approx((latency_s, bandwidth))
    assert found.per_host == ranks
    assert (found.ranks_per_host is None) == ("@" not in text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("wifi5", f"--emulate 'wifi5': 'wifi5' is no link; {HOW} (did you mean 'wifi-5'?)"),
        ("1gbit,200", f"--emulate '1gbit,200': '200' is no latency (units: us, µs, ms, s); {HOW}"),
        ("1gib,1ms", f"--emulate '1gib,1ms': '1gib' is no bandwidth (units: kbit, mbit, gbit); {HOW}"),
        ("200us,1gbit", f"--emulate '200us,1gbit': '200us' is no bandwidth (units: kbit, mbit, gbit); {HOW}"),
        ("-1gbit,1ms", f"--emulate '-1gbit,1ms': '-1gbit' is no bandwidth (units: kbit, mbit, gbit); {HOW}"),
        ("0mbit,1ms", f"--emulate '0mbit,1ms': a bandwidth of 0 cannot be; {HOW}"),
        ("1gbit,0us", f"--emulate '1gbit,0us': a latency of 0 cannot be; {HOW}"),
        (
            "1gbit,1ms@0",
            "--emulate '1gbit,1ms@0': '0' ranks cannot be a host: write a whole number from 1, as in @2",
        ),
        ("1gbit,1ms@", "--emulate '1gbit,1ms@': '' ranks cannot be a host: write a whole number from 1, as in @2"),
        ("1gbit,20s", "--emulate '1gbit,20s': a latency of 20 s is too long: at most 10 s"),
        ("1kbit,1ms", "--emulate '1kbit,1ms': 1 kbit/s is too slow to finish: at least 8kbit"),
    ],
)
def test_what_it_is_told(text: str, error: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_emulation(text)
    assert str(caught.value) == error


def test_nothing_names_every_preset() -> None:
    with pytest.raises(SpecError, match=r"'' is no link; .* \(known: ethernet-100g, ethernet-10g, .*wifi-6\)$"):
        parse_emulation("")


def test_hosts_are_runs_of_ranks() -> None:
    emulation = EmulatedLinks(Wire(1e-3, 1e6), 2).among(5)
    assert emulation.hosts == (0, 0, 1, 1, 2)
    assert emulation.wire(0, 1) is None
    assert emulation.wire(1, 2) == emulation.wire(4, 0) == Wire(1e-3, 1e6)
    assert host_names(emulation) == {0: "host 0", 1: "host 0", 2: "host 1", 3: "host 1", 4: "host 2"}


def test_links_in_words() -> None:
    wire = Wire(1e-3, 12.5e6)
    assert links_words(EmulatedLinks(wire), 2) == "2 emulated hosts, 100 Mb/s and 1 ms between any two"
    assert links_words(EmulatedLinks(wire, 2), 4) == (
        "2 emulated hosts of up to 2 ranks, 100 Mb/s and 1 ms between any two"
    )


def test_hosts_that_a_plan_names() -> None:
    """In the order in which ranks come to them; ranks of a host need not follow each other."""
    wire = Wire(1e-3, 12.5e6)
    hosts = ("right", "left", "left", "right")
    found = EmulatedLinks(wire).between(hosts)
    assert found == Emulation((0, 1, 1, 0), {(0, 1): wire, (1, 0): wire}, ("right", "left"))
    assert host_names(found) == dict(enumerate(hosts))
    assert found.wire(0, 3) is None
    assert found.wire(0, 1) == wire
    assert named_links_words(EmulatedLinks(wire), hosts) == (
        "the plan's 2 hosts (right, left), 100 Mb/s and 1 ms between any two"
    )
    assert named_links_words(EmulatedLinks(wire), "abcdef") == (
        "the plan's 6 hosts (a, b, c, d, …), 100 Mb/s and 1 ms between any two"
    )


@pytest.mark.parametrize("text", ["100mbit,1ms@1", "100mbit,1ms@2"])
def test_ranks_of_a_plans_hosts_are_not_counted(text: str) -> None:
    at = text[-2:]
    with pytest.raises(SpecError) as caught:
        parse_emulation(text).between(["left", "right"])
    assert str(caught.value) == (
        f"--emulate has {at}, but the plan says itself which ranks share a host (left, right): leave {at} out"
    )
