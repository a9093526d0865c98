"""Clusters and models of the planner's tests: small, with figures that a reader can multiply."""

from __future__ import annotations

from collections.abc import Mapping

from plait.spec.cluster import Cluster, Device, Host, Link, Network, Wire
from plait.spec.model import ModelSpec, Rope

GB = 10**9
FAST_FLOPS = 1e18
"""Computing that never binds."""

LLAMA_70B = ModelSpec(
    "llama3-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 1e-5, Rope(5e5, 128), (None,) * 80
)  # fmt: skip
SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip


def plain(layers: int, layer_bytes: float, name: str = "plain", positions: int = 131072) -> ModelSpec:
    """A model with layers of so many bytes in bfloat16, 32 heads, and next to no vocabulary."""
    hidden = 4096
    intermediate = round((layer_bytes / 2 - 4 * hidden * hidden) / 3 / hidden)
    return ModelSpec(
        name, "llama", layers, hidden, 32, 32, 128, intermediate, 1, positions, 1e-5, Rope(1e4, 128), (None,) * layers
    )


def single(
    devices: Mapping[str, tuple[float, float]],
    latency_s: float = 0.0,
    bandwidth: float = 1e15,
    flops: float = FAST_FLOPS,
) -> Cluster:
    """Devices by name: GB/s and GB of memory, one a host; the same link between any two."""
    names = list(devices)
    return Cluster(
        tuple(Host(f"host-{name}") for name in names),
        tuple(
            Device(name, f"host-{name}", round(memory * GB), {"bfloat16": flops, "float32": flops}, speed * 1e9)
            for name, (speed, memory) in devices.items()
        ),
        tuple(Link(one, other, latency_s, bandwidth) for one in names for other in names if one != other),
    )


def hosts(count: int, per_host: int, within: Wire, between: Wire, memory: float = 80, speed: float = 3350) -> Cluster:
    """Equal hosts of equal devices (GB and GB/s)."""
    return Cluster(
        tuple(Host(f"host{host}") for host in range(count)),
        tuple(
            Device(f"gpu{host}.{one}", f"host{host}", round(memory * GB), {"bfloat16": 5e14}, speed * 1e9)
            for host in range(count)
            for one in range(per_host)
        ),
        (),
        Network(within, between),
    )
