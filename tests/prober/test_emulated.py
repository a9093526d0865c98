"""Which links this machine can emulate, and (in the long runs) that they are seen as they were asked for."""

from __future__ import annotations

import msgspec
import pytest

from plait.comm.emulated import HandOver
from plait.comm.emulated_mesh import EmulatedMesh
from plait.costs.protocol import LinkCost
from plait.errors import SpecError
from plait.prober import emulated
from plait.prober.emulated import OwnLink, own_link, require_possible
from plait.prober.ranks import run_ranks
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation, parse_emulation

OWN = OwnLink(LinkCost(80.4e-6, 1.5e9), HandOver(50e-6, 1e-10))


def test_slower_links_can_be_emulated() -> None:
    require_possible(Wire(80.4e-6, 1.5e9), OWN)
    require_possible(Wire(1e-3, 12.5e6), OWN)


def test_a_shorter_latency_cannot() -> None:
    with pytest.raises(SpecError) as caught:
        require_possible(Wire(20e-6, 1e8), OWN)
    assert str(caught.value) == (
        "a latency of 20 µs cannot be emulated here: this machine itself takes 80.4 µs from process to process, 4.02 "
        "times as long; ask for 81us or more"
    )


def test_a_larger_bandwidth_cannot() -> None:
    with pytest.raises(SpecError) as caught:
        require_possible(Wire(1e-3, 3.125e9), OWN)
    assert str(caught.value) == (
        "a bandwidth of 25 Gb/s cannot be emulated here: this machine itself carries 12 Gb/s from process to process, "
        "13 Gb/s less; ask for 12000mbit or less"
    )


def test_what_is_our_own_is_what_goes_beyond_a_known_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sees the slow link 60 µs and 1/5 of its time a byte too slow: that is ours."""
    slow = emulated._SLOW
    seen = [LinkCost(70e-6, 2e9), LinkCost(slow.latency_s + 60e-6, slow.bandwidth / 1.2)]
    monkeypatch.setattr("plait.prober.ranks.run_ranks", lambda *_, **__: msgspec.json.encode(seen))
    found = emulated._measure(2)
    assert found.fastest == seen[0]
    assert found.hand_over == pytest.approx((60e-6, 0.2 / slow.bandwidth))


@pytest.mark.soak
@pytest.mark.parametrize("text", ["1gbit,300us", "100mbit,1ms", "ethernet-1g", "wifi-5"])
def test_links_are_seen_as_they_were_asked_for(text: str) -> None:
    """Latency within 20 % or 20 µs, bandwidth within 5 %; the best of three, since others may use the machine."""
    wire = parse_emulation(text).wire
    own = own_link(2, fresh=True)
    wires = {(0, 2): wire, (2, 0): wire}
    errors = []
    for _ in range(3):
        mesh = EmulatedMesh.create(2, Emulation((0, 1, 2), wires), threads=2, own=own.hand_over)
        _, seen = msgspec.json.decode(
            run_ranks("plait.prober.emulated", 3, 1, 3, [], mesh=mesh), type=tuple[LinkCost, LinkCost]
        )
        late_s = abs(seen.latency_s - wire.latency_s)
        errors.append(
            max(late_s / max(20e-6, 0.2 * wire.latency_s), abs(seen.bandwidth_bytes_per_s / wire.bandwidth - 1) / 0.05)
        )
    assert min(errors) <= 1, errors
