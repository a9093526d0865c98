"""`plait.probe()`: measures this machine, its ranks and the links between them; a `Cluster` for the planner.

probed = plait.probe(ranks=2)
plait.plan("demo", probed.cluster, plait.Job())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from plait.errors import UsageError
from plait.prober.host import free_memory_here, usable_cores
from plait.prober.probed import Probed
from plait.spec.emulation import EmulatedLinks

if TYPE_CHECKING:
    from plait.comm.contract import Endpoint
    from plait.comm.launcher import Environment
    from plait.prober.probe_messages import Greeting

Say = Callable[[str], None]

SECONDS = 20.0
"""How long a probe measures, about."""

_LEAST_S, _MOST_S = 1.0, 3600.0
_MOST_RANKS = 256


def probe(
    ranks: int = 1, *, emulate: EmulatedLinks | None = None, seconds: float = SECONDS, say: Say | None = None
) -> Probed:
    """Measure this machine as `ranks` devices, each with its share of the cores, and the links between all of them.

    Without `emulate` ranks are linked by shared memory. Takes about `seconds`, and a few to start; slow links take
    longer. `say` is told what is being measured. Errors: UsageError for what cannot be; CapacityError where memory does
    not do; PeerLost where a rank dies.
    """
    from plait.prober.probe_mesh import require_memory
    from plait.prober.probe_processes import ProbeProcesses

    require_asked(ranks, emulate, seconds)
    require_memory(ranks, free_memory_here(), "this machine")
    emulation = None if emulate is None else emulate.among(ranks)
    threads = max(1, usable_cores() // ranks)
    with ProbeProcesses(ranks, threads, seconds, emulation, say) as processes:
        found = processes.found(say or (lambda words: None))
    return found.probed(None if emulate is None else _words(emulate))


def lead_launched(
    here: Environment,
    *,
    seconds: float = SECONDS,
    say: Say | None = None,
    ready: Callable[[], None] | None = None,
) -> Probed:
    """Measure the hosts and links of all ranks that a launcher has started; this is rank 0, the others follow.

    `ready` is called when all have met, before anything is measured: what it raises ends the others too. Errors:
    RunError where the ranks cannot meet; PeerLost where one dies; CapacityError; UsageError.
    """
    from plait.prober.probe_mesh import lead_probe

    require_asked(here.size, None, seconds)
    own, endpoint = _joined(here)
    with endpoint:
        if ready is not None:
            ready()
        return lead_probe(endpoint, own, seconds, say or (lambda words: None))


def follow_launched(here: Environment, *, seconds: float = SECONDS) -> None:
    """Any other rank: measure as rank 0 says, to the end. Errors: as there."""
    from plait.prober.probe_mesh import follow_probe

    require_asked(here.size, None, seconds)
    own, endpoint = _joined(here)
    with endpoint:
        follow_probe(endpoint, own)


def _joined(here: Environment) -> tuple[Greeting, Endpoint]:
    """What this rank has, and its endpoint once all have met."""
    from plait.prober.probe_rank import greeting

    threads = max(1, usable_cores() // here.local_size)
    own = greeting(here.rank, here.host, here.host, threads)
    import torch

    from plait.comm.cluster import join
    from plait.prober.probe_links import CAPACITY

    torch.set_num_threads(threads)
    return own, join(here, CAPACITY, here.local_size * threads)


def require_asked(ranks: int, emulate: EmulatedLinks | None, seconds: float) -> None:
    """Errors: UsageError for what cannot be measured."""
    if not 1 <= ranks <= _MOST_RANKS:
        raise UsageError(f"{ranks} ranks cannot be measured: give a number from 1 to {_MOST_RANKS}, as in --ranks 2")
    if not _LEAST_S <= seconds <= _MOST_S:
        raise UsageError(
            f"{seconds:g} s is not a time to measure in: give from {_LEAST_S:g} to {_MOST_S:g}, as in --seconds 20"
        )
    if emulate is not None and emulate.per_host >= ranks:
        each = emulate.per_host
        raise UsageError(
            f"--emulate needs two hosts or more, and {_count(ranks)} with {each} on a host are one: "
            f"give --ranks {each + 1} or more"
        )


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _words(emulate: EmulatedLinks) -> str:
    wire = emulate.wire
    hosts = f", {_count(emulate.per_host)} a host" if emulate.per_host > 1 else ""
    return f"{wire.bandwidth * 8e-6:g} Mb/s and {wire.latency_s * 1e6:g} µs each way{hosts}"
