"""What distributed-llama does for a token (github.com/b4rtaz/distributed-llama): bytes on the wire, and seconds.

The root sends its workers the input of each part of a layer, computes its own share, waits for theirs and adds. Of the
model everything is cut over the machines but embedding, final norm and LM head, which only the root has, and what a
version computes on the root alone (norms, residuals, in old ones attention). So a token takes

    root's share of the layers, its head and what it does alone
    + bytes ÷ bandwidth + messages × latency + how much later than the root its workers end

What is read from memory is `costs.serving`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from plait.costs.serving import ServingModel
from plait.errors import SpecError, nearest
from plait.spec.cluster import Cluster, Device, Host, Link
from plait.spec.model import ModelSpec, Rope
from plait.spec.presets import model_preset, preset_names

GIGABIT = 1e9 / 8
"""Bytes/s of the Ethernet that the table names."""

PI_5_FLOPS = 4 * 2.4e9 * 16
"""4 Cortex-A76 cores at 2.4 GHz, each two 128-bit multiply-adds of float32 a cycle (Arm, "Cortex-A76 Software
Optimization Guide"). Decoding is not bound by it."""

BUFFER_BYTES = {"F32": 4.0, "Q80": 34 / 32}
"""Bytes of a value on the wire: float32, or blocks of 32 of one byte each with a 16-bit scale."""


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> ModelSpec:
    return ModelSpec(
        name,
        "llama",
        layers,
        hidden,
        heads,
        kv_heads,
        hidden // heads,
        intermediate,
        vocab,
        2048,
        1e-5,
        Rope(1e4, hidden // heads),
        (None,) * layers,
    )


SPECS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _llama("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000),
        _llama("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000),
        _llama("Llama 2 70B", 80, 8192, 64, 8, 28672, 32000),
        _llama("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256),
        _llama("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256),
        _llama("Llama 3.1 8B", 32, 4096, 32, 8, 14336, 128256),
        _llama("Llama 3.1 70B", 80, 8192, 64, 8, 28672, 128256),
        _llama("Llama 3.1 405B", 126, 16384, 128, 8, 53248, 128256),
        _llama("Llama 3.3 70B", 80, 8192, 64, 8, 28672, 128256),
        _llama("Llama 3.2 1B", 16, 2048, 32, 8, 8192, 128256),
        _llama("Llama 3.2 3B", 28, 3072, 24, 8, 8192, 128256),
        _llama("TinyLlama 1.1B", 22, 2048, 32, 4, 5632, 32000),
    )
}
"""The tables' models and their relatives, from their config.json."""


class Sent(NamedTuple):
    """Values that the root sends to all workers and receives from them, a layer, and times that it waits for them."""

    sent: float
    received: float
    waits: int


def _gathered(spec: ModelSpec, nodes: int) -> Sent:
    """Until 0.3: each machine computes rows of every product, and the root gathers them all and sends them on.

    Sent to each worker: the input of attention, of its output and of the MLP, and the MLP's inner values that it has
    not got. Received: queries, keys, values, attention's output, inner and outer values of the MLP. What is exchanged
    was found from the Llama 2 7B rows in the README at fb1b7ce; those of 13B and 70B agree to the kilobyte.
    """
    others, share = nodes - 1, 1 / nodes
    keys = spec.kv_heads * spec.head_dim
    sent = others * (3 * spec.hidden + spec.intermediate * (1 - share))
    return Sent(sent, others * share * (3 * spec.hidden + 2 * keys + spec.intermediate), 4)


def _half_summed(spec: ModelSpec, nodes: int) -> Sent:
    """0.4 to 0.7: attention on every machine, its outputs summed at the root; the MLP as before.

    Source: b4rtaz/distributed-llama pull request 64, column "0.5.0": 510 + 442 kB with 2 machines, 1887 + 867 with 4.
    """
    others, share = nodes - 1, 1 / nodes
    sent = others * (2 * spec.hidden + spec.intermediate * (1 - share))
    return Sent(sent, others * (spec.hidden + share * (spec.hidden + spec.intermediate)), 3)


def _summed(spec: ModelSpec, nodes: int) -> Sent:
    """From pull request 64 on: attention and MLP end in one sum each, the root sends the input and adds what comes."""
    return Sent(2 * (nodes - 1) * spec.hidden, 2 * (nodes - 1) * spec.hidden, 2)


def exchanged(version: str, spec: ModelSpec, nodes: int) -> Sent:
    """What a version's root exchanges with its workers in each layer: by its number, or pull request 64 by its name."""
    found = re.search(r"(\d+)\.(\d+)", version)
    numbered = (int(found[1]), int(found[2])) if found else (0, 0)
    if version.startswith("PR64") or numbered >= (0, 8):
        return _summed(spec, nodes)
    return _half_summed(spec, nodes) if numbered >= (0, 4) else _gathered(spec, nodes)


def kilobytes(version: str, spec: ModelSpec, nodes: int, buffer: str) -> tuple[int, int]:
    """kB (of 1,024 bytes) sent and received a token, whole ones, as the program prints them."""
    each = exchanged(version, spec, nodes)
    factor = spec.layers * BUFFER_BYTES[buffer] / 1024
    return int(each.sent * factor), int(each.received * factor)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a Raspberry Pi 5 does with one version of the software.

    `bandwidth`: bytes/s at which it reads Q40 weights. `head`: how many times longer a byte of the LM head takes than
    one of the layers. `alone_s`: of the root alone, for each value of [layers, hidden]. `lag`: how much longer than the
    root its workers take for their share. `latency_s`: a message to a worker and back.
    `flops`: of the device, infinite where nothing is known of it. `link`: bytes/s.
    """

    bandwidth: float
    head: float = 1.0
    alone_s: float = 0.0
    lag: float = 0.0
    latency_s: float = 0.0
    calibrated_on: str = ""
    flops: float = PI_5_FLOPS
    link: float = GIGABIT


class Predicted(NamedTuple):
    """Seconds of a token: the root computes, and it waits for the network and its workers."""

    compute_s: float
    network_s: float


def predict(profile: Profile, version: str, spec: ModelSpec, nodes: int, buffer: str = "Q80") -> Predicted:
    """A token on so many machines. `costs.serving` on a root and workers whose memory is slower by the lag."""
    model = ServingModel(spec, _cluster(profile, nodes), "float32", "q4_0")
    root_s, worker_s = (
        sum(model.layer_s(name, layer, 1, 1, CACHED, 1 / nodes) for layer in range(spec.layers))
        for name in ("root", "worker 1" if nodes > 1 else "root")
    )
    head_s = profile.head * (model.last_s("root", 1, 1) + model.first_s("root", 1))
    compute_s = root_s + head_s + profile.alone_s * spec.layers * spec.hidden
    each = exchanged(version, spec, nodes)
    wire_s = (each.sent + each.received) * spec.layers * BUFFER_BYTES[buffer] / profile.link
    messages_s = each.waits * spec.layers * (nodes - 1) * profile.latency_s
    return Predicted(compute_s, wire_s + messages_s + max(0.0, worker_s - root_s))


CACHED = 45
"""Positions in the cache, on average, of the 90 tokens that pull request 64 generated; others are not said."""


def _cluster(profile: Profile, nodes: int) -> Cluster:
    names = ["root", *(f"worker {i}" for i in range(1, nodes))]
    bandwidths = [profile.bandwidth, *[profile.bandwidth / (1 + profile.lag)] * (nodes - 1)]
    return Cluster(
        tuple(Host(f"{name}'s machine") for name in names),
        tuple(
            Device(name, f"{name}'s machine", 8 * 2**30, {"float32": profile.flops}, bandwidth)
            for name, bandwidth in zip(names, bandwidths, strict=True)
        ),
        tuple(
            Link(one, other, profile.latency_s / 2, profile.link) for one in names for other in names if one != other
        ),
    )


def read_bytes(spec: ModelSpec, nodes: int) -> tuple[float, float]:
    """Bytes that one machine's share of the layers reads for a token, and what lies before and after them."""
    free = Cluster((Host("machine"),), (Device("one", "machine", 1, {"float32": inf}, 1.0),))
    model = ServingModel(spec, free, "float32", "q4_0")
    layers = sum(model.layer_s("one", layer, 1, 1, CACHED, 1 / nodes) for layer in range(spec.layers))
    return layers, model.last_s("one", 1, 1) + model.first_s("one", 1)


def known_model(name: str) -> ModelSpec:
    """The model of that name, of these tables or a preset's (``Qwen 3 8B``). Errors: SpecError."""
    plain = {known.lower().replace(" ", ""): spec for known, spec in SPECS.items()}
    found = plain.get(name.lower().replace(" ", ""))
    if found is not None:
        return found
    presets = {preset.replace("-", ""): preset for preset in preset_names()["models"]}
    preset = presets.get(name.lower().replace(" ", "").replace("-", ""))
    if preset is None:
        raise SpecError(f"no model {name!r} in the tables of distributed-llama: {nearest(name, SPECS)}")
    return model_preset(preset)
