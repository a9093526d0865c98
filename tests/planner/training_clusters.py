"""Models and clusters for tests of the training search: small, and without presets."""

from __future__ import annotations

from plait.spec.cluster import Cluster, Device, Host, Link, Network, Wire
from plait.spec.model import Experts, ModelSpec


def model(layers: int = 8, hidden: int = 1024, heads: int = 16, vocab: int = 8192, experts: int = 0) -> ModelSpec:
    return ModelSpec(
        name="tiny",
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocab=vocab,
        max_positions=4096,
        norm_eps=1e-5,
        rope=None,
        windows=(None,) * layers,
        experts=Experts(experts, 2, hidden) if experts else None,
    )


def gpu(name: str, host: str, memory_gb: float = 80, tflops: float = 300) -> Device:
    return Device(name, host, int(memory_gb * 1e9), {"bfloat16": tflops * 1e12}, 2e12)


def cluster(
    hosts: int = 2,
    per_host: int = 4,
    *,
    memory_gb: float = 80,
    within: float = 300e9,
    between: float = 25e9,
    host_bandwidth: float | None = None,
    tflops: float = 300,
) -> Cluster:
    network = Network(Wire(3e-6, within), Wire(5e-6, between, host_bandwidth))
    devices = tuple(
        gpu(f"gpu-{host}.{index}", f"host-{host}", memory_gb, tflops)
        for host in range(hosts)
        for index in range(per_host)
    )
    return Cluster(tuple(Host(f"host-{host}") for host in range(hosts)), devices, (), network)


def unequal(*machines: tuple[float, float], bandwidth: float = 10e9) -> Cluster:
    """Machines of (TFLOP/s, memory in GB), one device each, and equal links between them."""
    devices = tuple(gpu(f"m{i}", f"h{i}", memory, tflops) for i, (tflops, memory) in enumerate(machines))
    links = tuple(
        Link(one.name, other.name, 1e-5, bandwidth) for one in devices for other in devices if one is not other
    )
    return Cluster(tuple(Host(device.host) for device in devices), devices, links)
