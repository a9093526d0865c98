"""What this machine itself takes of an emulated link: measured once and kept, and the fastest link that it can emulate.

Measured with as many processes as it takes, between the same sockets: one pair whose link is not held back at all, and
one whose link is slow enough that all that is seen beyond it is our own.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from plait.comm.emulated import HandOver
from plait.costs.protocol import LinkCost
from plait.errors import SpecError
from plait.prober.host import cpu_model, usable_cores
from plait.prober.kept import kept
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation
from plait.units import format_seconds

_FORMAT = 4
"""Counts up when what is measured changes: older files are measured again."""

_SLOW, _SLOW_CROWDED = Wire(200e-6, 1.25e8), Wire(500e-6, 1.25e8)
"""Known links. Who has slept longer is slower at first, by 15 µs after 50 µs and by 60 µs after 1 ms: in between."""

_MOST_HAND_OVER_S = 250e-6
"""More is other work on the machine, and taken off a link it would leave nothing of its latency."""


class OwnLink(NamedTuple):
    """`fastest`: a link that is not held back. `hand_over`: what is taken off links that are."""

    fastest: LinkCost
    hand_over: HandOver


def own_link(all_threads: int, *, fresh: bool = False, say: Callable[[str], None] | None = None) -> OwnLink:
    """This machine's, between ranks that compute with so many threads, taken together: more than cores, and none spins.

    Kept in the user's cache directory; `fresh` measures again. `say` is told, since it takes 5 s.
    """
    crowded = all_threads > usable_cores()
    host = f"{platform.node()} {cpu_model()} {usable_cores()} {crowded} {_FORMAT}"

    def measure() -> OwnLink:
        if say is not None:
            say("measuring how fast processes of this machine talk, once")
        return _measure(usable_cores() + 1 if crowded else 1)

    return kept("emulated-link", host, OwnLink, measure, fresh=fresh)


def require_possible(wire: Wire, own: OwnLink) -> None:
    """This machine is faster than the link that it shall emulate. Errors: SpecError."""
    fastest = own.fastest
    if wire.latency_s < fastest.latency_s:
        raise SpecError(
            f"a latency of {format_seconds(wire.latency_s)} cannot be emulated here: this machine itself takes "
            f"{format_seconds(fastest.latency_s)} from process to process, {_times(fastest.latency_s / wire.latency_s)}"
            f" as long; ask for {_up_us(fastest.latency_s)}us or more"
        )
    if wire.bandwidth > fastest.bandwidth_bytes_per_s:
        raise SpecError(
            f"a bandwidth of {_gbit(wire.bandwidth)} Gb/s cannot be emulated here: this machine itself carries "
            f"{_gbit(fastest.bandwidth_bytes_per_s)} Gb/s from process to process, "
            f"{_gbit(wire.bandwidth - fastest.bandwidth_bytes_per_s)} Gb/s less; ask for "
            f"{int(fastest.bandwidth_bytes_per_s * 8e-6)}mbit or less"
        )


def _times(ratio: float) -> str:
    return f"{_figure(ratio)} times"


def _up_us(seconds: float) -> int:
    return int(-(-seconds * 1e6 // 1))


def _gbit(bytes_per_s: float) -> str:
    return _figure(bytes_per_s * 8e-9)


def _figure(value: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _measure(all_threads: int) -> OwnLink:
    """Rank 0 with rank 1 over a link that is not held back, then with rank 2 over a slow one."""
    from plait.comm.emulated_mesh import EmulatedMesh
    from plait.prober.ranks import run_ranks

    wire = _SLOW_CROWDED if all_threads > usable_cores() else _SLOW
    emulation = Emulation((0, 1, 2), {(0, 2): wire, (2, 0): wire})
    mesh = EmulatedMesh.create(2, emulation, threads=all_threads)
    said = run_ranks(__name__, 3, 1, 3, [], mesh=mesh)
    fastest, slow = msgspec.json.decode(said, type=tuple[LinkCost, LinkCost])
    hand_over_s = min(_MOST_HAND_OVER_S, max(0.0, slow.latency_s - wire.latency_s))
    byte_s = max(0.0, 1 / slow.bandwidth_bytes_per_s - 1 / wire.bandwidth)
    return OwnLink(fastest, HandOver(hand_over_s, byte_s))


def main() -> int:
    """One of the ranks: its arguments are what `this_rank` needs."""
    from plait.comm.contract import Group
    from plait.comm.measure import measure_link
    from plait.prober.ranks import this_rank

    endpoint = this_rank()
    if endpoint.rank:
        measure_link(endpoint, 0)
    else:
        sys.stdout.buffer.write(msgspec.json.encode([measure_link(endpoint, other) for other in (1, 2)]))
    endpoint.barrier(Group(tuple(range(endpoint.size))))  # the end of a process takes a core from those that go on
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
