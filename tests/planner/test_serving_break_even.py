"""Break-evens of generation are true: planned again just below and just above, the better of the two kinds changes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from plait.planner.result import Choice, Objective
from plait.planner.serving import plan_serving
from plait.planner.serving_search import value
from plait.spec.cluster import Cluster
from plait.spec.job import Job
from plait.spec.model import ModelSpec
from plait.spec.presets import cluster_preset, model_preset
from tests.planner.machines import LLAMA_70B, single

GBIT = 1e9 / 8
P8 = single({"a": (1000, 24), "b": (1000, 24)}, 100e-6, GBIT, flops=1e14)


def linked(cluster: Cluster, text: str, quantity: str, figure: float) -> Cluster:
    """The links that the text names, with another bandwidth or latency."""
    across, name = "between hosts" in text, "latency_s" if quantity == "latency" else "bandwidth"
    host = {device.name: device.host for device in cluster.devices}
    links = tuple(
        replace(link, **{name: figure})  # type: ignore[arg-type]
        if (host.get(link.source, link.source) != host.get(link.target, link.target)) == across
        else link
        for link in cluster.links
    )
    network = cluster.network
    if network is not None:
        wire = network.between_hosts if across else network.within_host
        wire = replace(wire, **{name: figure})  # type: ignore[arg-type]
        wire = replace(wire, host_bandwidth=None) if quantity == "bandwidth" else wire
        network = replace(network, **{"between_hosts" if across else "within_host": wire})
    return replace(cluster, links=links, network=network)


def kinds(choice: Choice) -> dict[str, float]:
    best: dict[str, float] = {}
    for one in choice.candidates:
        best.setdefault(one.kind, value(choice.objective, one.predicted))
    return best


CASES: list[tuple[ModelSpec | str, Cluster | tuple[str, int | None], Job, Objective, str | None, int]] = [
    ("llama3-70b", ("h100", 16), Job(512, 256), "latency", None, 0),
    ("qwen3-32b", ("rtx-4090", 8), Job(512, 256, 64), "throughput", None, 1),
    ("llama3-8b", ("home", None), Job(512, 256), "latency", None, 2),
    ("llama3-8b", ("home", None), Job(512, 256, 8), "throughput", None, 2),
    ("llama3-8b", ("raspberry-pi-5", 4), Job(512, 64), "latency", "q4_0", 1),
    (LLAMA_70B, P8, Job(2048, 128, 1), "latency", "q4_0", 1),
    (LLAMA_70B, P8, Job(2048, 128, 1), "ttft", "q4_0", 0),
]


@pytest.mark.parametrize(("model", "machines", "job", "goal", "weights", "least"), CASES)
def test_every_break_even_is_true_when_planned_again(
    model: ModelSpec | str,
    machines: Cluster | tuple[str, int | None],
    job: Job,
    goal: Objective,
    weights: str | None,
    least: int,
) -> None:
    spec = model_preset(model) if isinstance(model, str) else model
    cluster = machines if isinstance(machines, Cluster) else cluster_preset(*machines)
    found = plan_serving(spec, cluster, job, goal, weights=weights).break_even
    assert len(found) >= least
    for one in found:
        words = re.match(r"(.+) wins over (.+?) (from|up to a latency of) ", one.text)
        assert words is not None, one.text
        assert words[1] == one.kind
        for factor in (0.95, 1.05):
            changed = linked(cluster, one.text, one.quantity, one.value * factor)
            best = kinds(plan_serving(spec, changed, job, goal, weights=weights, break_evens=False))
            wins = (factor > 1) == (one.quantity == "bandwidth")
            assert (best[words[1]] < best[words[2]]) == wins, (one.text, factor, best)


def test_a_tensor_group_inside_one_host_needs_no_network() -> None:
    """The best tensor group of two hosts of 8 lies within one, so that no link between them can make it lose."""
    found = plan_serving(model_preset("llama3-70b"), cluster_preset("h100", 16), Job(512, 256)).break_even
    assert not [one.text for one in found if one.kind == "tensor" and "between hosts" in one.text]
