"""Presets: every figure has a source, every model the parameters that its source counts, every cluster its links."""

from __future__ import annotations

import re
import tomllib

import pytest

from plait.costs.profiles import PLAIN, profile_names
from plait.costs.work import model_parameters
from plait.errors import SpecError
from plait.spec.cluster import Cluster, EqualMachine, Network, Wire, equal_machine
from plait.spec.cluster_file import PLAIN_PROFILE, cluster_from_toml
from plait.spec.model import Experts, LatentAttention
from plait.spec.preset_files import Sort, preset_values, read_presets
from plait.spec.presets import (
    cluster_preset,
    device_preset,
    model_preset,
    parameters,
    preset_names,
    preset_sources,
)

NAMES = [(sort, name) for sort, names in preset_names().items() for name in names]
NO_FIGURE = {"kind", "profile"}


@pytest.mark.parametrize(("sort", "name"), NAMES, ids=lambda value: str(value))
def test_every_figure_has_a_source(sort: Sort, name: str) -> None:
    sources = preset_sources(sort, name)
    figures = set(preset_values(sort, name)) - NO_FIGURE
    named = {key.partition(".")[0] for key in sources}
    assert named == ({"model", "parameters"} if sort == "models" else figures)
    for title in sources.values():
        assert re.search(r"\b(19|20)\d\d\b|assumption|example|tensors of the model|NCCL 2|GA102", title), title


@pytest.mark.parametrize("sort", ["models", "clusters", "devices", "links"])
def test_every_document_is_cited(sort: Sort) -> None:
    table = read_presets(sort)
    cited = {word for values in table.presets.values() for word in values["sources"].values()}
    assert cited == set(table.documents)


@pytest.mark.parametrize("name", preset_names()["models"])
def test_parameters_are_those_of_the_source(name: str) -> None:
    assert model_parameters(model_preset(name)).total == pytest.approx(parameters(name), rel=0.005)


def test_a_count_that_is_off_is_seen() -> None:
    from dataclasses import replace

    spec = model_preset("llama3-8b")
    wrong = replace(spec, intermediate=spec.intermediate - 256)
    assert model_parameters(wrong).total != pytest.approx(parameters("llama3-8b"), rel=0.005)


@pytest.mark.parametrize(
    ("name", "active"),
    [("deepseek-v3", 37e9), ("qwen3-235b-a22b", 22e9), ("qwen3-30b-a3b", 3.3e9), ("mixtral-8x7b", 12.9e9)],
)
def test_active_parameters_of_experts(name: str, active: float) -> None:
    """As the model cards say them; they round."""
    assert model_parameters(model_preset(name)).active == pytest.approx(active, rel=0.02)


def test_profiles_that_are_named_are_there() -> None:
    named = {device_preset(name).profile for name in preset_names()["devices"]}
    assert named <= set(profile_names())
    assert {"a100", "raspberry-pi-5"} < named


def test_a_preset_without_a_profile_has_the_plain_one() -> None:
    """Data sheets say peaks; what a person wrote is taken as it is."""
    assert PLAIN_PROFILE == PLAIN
    assert device_preset("h100").profile == PLAIN
    assert device_preset("a100-80gb").profile == "a100"
    text = """
    [[hosts]]
    name = "a"
    [[devices]]
    name = "kept"
    host = "a"
    preset = "rtx-4090"
    memory_gib = 20
    [[devices]]
    name = "own"
    host = "a"
    preset = "rtx-4090"
    tflops = { bfloat16 = 120 }
    memory_bandwidth_gb_per_s = 900
    [[devices]]
    name = "fitted"
    host = "a"
    preset = "rtx-4090"
    profile = "mine"
    [network]
    within_host = { preset = "pcie4" }
    """
    found = {device.name: device.profile for device in cluster_from_toml(tomllib.loads(text)).devices}
    assert found == {"kept": PLAIN, "own": None, "fitted": "mine"}


def test_models_of_all_sorts() -> None:
    deepseek = model_preset("deepseek-v3")
    assert deepseek.experts == Experts(256, 8, 2048, 1, 2048, 3)
    assert deepseek.latent == LatentAttention(512, 64, 128, 128, 1536)
    assert (deepseek.layers, deepseek.hidden, deepseek.heads, deepseek.vocab) == (61, 7168, 128, 129280)
    trillion = model_preset("gpt-1t")
    assert (trillion.layers, trillion.hidden, trillion.heads, trillion.head_dim) == (128, 25600, 160, 160)
    assert trillion.learned_positions
    llama = model_preset("llama3-70b")
    assert llama.rope is not None
    assert (llama.rope.variant, llama.rope.factor, llama.kv_heads) == ("llama3", 8.0, 8)


@pytest.mark.parametrize("name", preset_names()["clusters"])
def test_every_cluster_stands(name: str) -> None:
    cluster = cluster_preset(name)
    assert len(cluster.devices) == preset_values("clusters", name)["gpus"]
    for other in cluster.devices[1:]:
        assert cluster.link(cluster.devices[0].name, other.name).bandwidth > 0


def test_a_cluster_as_large_as_asked_for() -> None:
    found = equal_machine(cluster_preset("a100", 3072))
    network = Network(Wire(3.4e-6, 300e9), Wire(5e-6, 25e9, 200e9))
    assert found == EqualMachine(device_preset("a100-80gb", "node-0.0", "node-0"), 8, 384, network)
    assert equal_machine(cluster_preset("h100", 4)) == EqualMachine(
        device_preset("h100", "node-0.0", "node-0"), 4, 1, Network(Wire(3.4e-6, 450e9), Wire(5e-6, 50e9, 400e9))
    )


def test_the_first_of_a_list_of_unequal_machines() -> None:
    assert [device.host for device in cluster_preset("home", 2).devices] == ["gaming", "studio"]
    assert equal_machine(cluster_preset("home")) is None


def message(make: object, *arguments: object) -> str:
    with pytest.raises(SpecError) as caught:
        make(*arguments)  # type: ignore[operator]
    return str(caught.value)


def test_names_never_heard_of() -> None:
    shows = "(plait plan --list shows all of them)"
    assert (
        message(model_preset, "llama3-80b") == f"unknown model preset 'llama3-80b': did you mean 'llama3-8b'? {shows}"
    )
    assert message(device_preset, "rtx4090") == f"unknown device preset 'rtx4090': did you mean 'rtx-4090'? {shows}"
    assert message(cluster_preset, "a10") == f"unknown cluster preset 'a10': did you mean 'a100'? {shows}"


def test_devices_that_do_not_fill_hosts() -> None:
    assert message(cluster_preset, "a100", 12) == (
        "--gpus 12 was asked for, but hosts of cluster preset 'a100' have 8 devices: 4 would be left over "
        "(--gpus 8 or 16 fills hosts)"
    )
    assert message(cluster_preset, "a100", 0) == "--gpus 0 was asked for, but there must be at least 1"
    assert message(cluster_preset, "home", 9) == (
        "--gpus 9 was asked for, but cluster preset 'home' has 4 devices: 5 too many "
        "(a cluster file can have as many as you like)"
    )


def test_thousands_of_devices_are_looked_up_at_once() -> None:
    """Names and links are looked up, not searched for: 16,384 devices are built and asked about in one go."""
    cluster: Cluster = cluster_preset("h100", 16384)
    assert len(cluster.devices) == 16384
    for index in range(0, 16384, 7):
        device = cluster.devices[index]
        assert cluster.device(device.name) is device
        assert cluster.link("node-0.0", device.name).latency_s > 0
