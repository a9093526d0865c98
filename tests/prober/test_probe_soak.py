"""How near a probe comes to links whose figures are known: emulated ones, and a kernel-shaped one between two hosts.

Where two hosts cannot be made (no root, no `ip` or `tc`) their tests are skipped, and the reason is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

import plait
from plait.prober.spread import Figure
from plait.spec.emulation import parse_emulation
from tests.generation.namespaces import NoHosts, TwoHosts, two_hosts

pytestmark = pytest.mark.soak

PAYLOAD = 1448 / 1514
"""Of what tbf counts (frames of 1,514 bytes: payload, and headers of TCP with time stamps, IP and Ethernet)."""

TIMES = 5


def figure(found: Mapping[str, float]) -> Figure:
    return Figure(found["value"], found["spread"])


def nearest(found: list[Figure], expected: float) -> float:
    """How far the median of several probes is off, as a part of what is expected."""
    return abs(sorted(one.value for one in found)[len(found) // 2] / expected - 1)


def require_agreement(found: list[Figure]) -> None:
    """Of all pairs of runs nine in ten agree within their stated spreads."""
    pairs = [(one, other) for at, one in enumerate(found) for other in found[at + 1 :]]
    agreeing = sum(one.agrees(other) for one, other in pairs)
    assert agreeing >= 0.9 * len(pairs), found


@pytest.mark.parametrize(("text", "latency_s", "mbit"), [("1gbit,200us", 2e-4, 1000), ("100mbit,2ms", 2e-3, 100)])
def test_emulated_links(text: str, latency_s: float, mbit: float) -> None:
    """Latency within 20 % or 20 µs, bandwidth within 5 %; repeated runs agree."""
    runs = [plait.probe(2, emulate=parse_emulation(text), seconds=10) for _ in range(TIMES)]
    latencies = [run.links[0].latency_s for run in runs]
    bandwidths = [run.links[at].bandwidth_bytes_per_s for run in runs for at in (0, 1)]
    assert nearest(latencies, latency_s) <= max(0.2, 20e-6 / latency_s), latencies
    assert nearest(bandwidths, mbit * 1e6 / 8) <= 0.05, bandwidths
    require_agreement(latencies)
    require_agreement([run.links[0].bandwidth_bytes_per_s for run in runs])


@pytest.fixture(params=["1gbit", "100mbit"])
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[str, TwoHosts]]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(two_hosts(request.param))
        except NoHosts as error:
            reporter = request.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"skipped {request.node.name}: no two hosts here: {error}")
            pytest.skip(f"no two hosts here: {error}")
        yield request.param, made


def test_a_kernel_shaped_link(hosts: tuple[str, TwoHosts]) -> None:
    """Bandwidth within 5 % of what TCP has of it, each way; the clocks of one machine are the same within the error."""
    rate, made = hosts
    payload = {"1gbit": 1e9, "100mbit": 1e8}[rate] / 8 * PAYLOAD
    runs = [probed(made) for _ in range(3)]
    for at in (0, 1):
        found = [figure(run["links"][at]["bandwidth_bytes_per_s"]) for run in runs]
        assert nearest(found, payload) <= 0.05, found
        require_agreement(found)
    for run in runs:
        assert [(link["from"], link["to"]) for link in run["links"]] == [
            ("host 0-cpu", "host 1-cpu"),
            ("host 1-cpu", "host 0-cpu"),
        ]
        clock = run["hosts"][1]["clock"]
        assert abs(clock["offset_s"]) <= clock["error_s"] < 0.05


def test_a_rank_on_another_host_that_dies_is_named(hosts: tuple[str, TwoHosts]) -> None:
    _, made = hosts
    made.start_torchrun(1, "-m", "plait", "probe", "--seconds", "60")
    while "measuring links" not in made.said(0):
        assert not made.said(0).count("error:"), made.said(0)
    process = made.process_of(1)
    assert process is not None
    process.kill()
    first, _ = made.finished(90)
    assert first.status != 0
    assert "rank 1" in first.stderr
    assert first.stdout == ""


def probed(hosts: TwoHosts) -> dict[str, Any]:
    """What rank 0 says as JSON; the other one has ended well, and said nothing."""
    first, second = hosts.torchrun(1, "-m", "plait", "probe", "--json", "--seconds", "12", timeout_s=200)
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    return dict(json.loads(first.stdout))
