"""What a probe found, as a cluster, its file, JSON and words."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import msgspec
import pytest

from plait.costs.serving import ServingModel
from plait.prober.probe_messages import Computed, FoundBeside, Greeting, Point, Threads, Usage
from plait.prober.probed import FoundDevice, FoundLink, Probed
from plait.prober.spread import Figure
from plait.spec.cluster import Beside, BesideSpread, Device, Link, WireSpread
from plait.spec.cluster_file import cluster_from_toml
from plait.spec.presets import model_preset
from plait.timeline.timeline import Clock

GIB = 1 << 30


def device(rank: int, host: int, machine: int, name: str, threads: int = 1, our_s: float = 9.0) -> FoundDevice:
    greeting = Greeting(rank, host, machine, name, "A CPU", (0, 1), threads, 16 * GIB, 8 * GIB)
    by_threads = [
        Threads(
            count,
            {"float32": Figure(50e9 * count, 0.02), "bfloat16": Figure(100e9 * count, 0.03)},
            {"float32": Figure(10e9 * count, 0.04), "bfloat16": Figure(8e9 * count, 0.05)},
        )
        for count in range(1, threads + 1)
    ]
    beside = {"bfloat16": FoundBeside(Figure(2.5e-5, 0.1), Figure(0.5, 0.2), Figure(3e9, 0.3))}
    return FoundDevice(greeting, Computed(by_threads, Usage(20.0, our_s, 10.0), beside))


def link(source: int, target: int) -> FoundLink:
    points = [Point(1024, 2.1e-4, 0.1)]
    return FoundLink(source, target, Figure(2e-4, 0.1), Figure(1.17e8 - source, 0.01), points)


def probed(*devices: FoundDevice, clocks: dict[int, Clock] | None = None, emulated: str | None = None) -> Probed:
    ranks = range(len(devices))
    links = [link(one, other) for one in ranks for other in ranks if one != other]
    return Probed(devices, links, clocks or {}, 0.0, 12.0, emulated)


TWO = probed(
    device(0, 0, 0, "desk", our_s=19.0), device(1, 1, 1, "laptop", our_s=15.0), clocks={1: Clock(-0.0012, 8e-5)}
)


def test_cluster() -> None:
    one, other = TWO.cluster.devices
    assert one == Device(
        "desk-cpu",
        "desk",
        8 * GIB,
        {"float32": 50e9, "bfloat16": 100e9},
        8e9,  # of the dtype that is read slower
        "measured",
        "cpu",
        {"float32": 0.02, "bfloat16": 0.03, "memory_bandwidth": 0.05},
        {"bfloat16": Beside(2.5e-5, 0.5, 3e9, BesideSpread(0.1, 0.2, 0.3))},
    )
    assert (other.name, other.host) == ("laptop-cpu", "laptop")
    assert TWO.cluster.links == (
        Link("desk-cpu", "laptop-cpu", 2e-4, 1.17e8, WireSpread(0.1, 0.01)),
        Link("laptop-cpu", "desk-cpu", 2e-4, 1.17e8 - 1, WireSpread(0.1, 0.01)),
    )


def test_the_file_reads_back_equal_and_says_the_rest() -> None:
    assert cluster_from_toml(tomllib.loads(TWO.toml)) == TWO.cluster
    lines = [line for line in TWO.toml.splitlines() if line.startswith("#")]
    assert lines[0].startswith("# written by plait probe ")
    assert lines[0].endswith(", 1970-01-01T00:00:00Z, after 12 s")
    assert lines[1:] == [
        "# each figure is a median; spread: half the way from the 10th to the 90th of a hundred, as a part of it",
        "# flops: further rows of products; memory_bandwidth: weights read by products of one row; memory: free",
        "# beside: any operation; products of many rows before their FLOP, in reads of their weights; norms",
        "# latency: half a round trip, so the same both ways; bandwidth: of payload, each way by itself",
        "# desk: A CPU, 2 cores, 1 rank of 1 thread, 8.0 GiB of 16.0 GiB free",
        "# desk: 1 thread read 10 GB/s ± 4 % of float32, 8 GB/s ± 5 % of bfloat16",
        "# desk: beside its bfloat16 FLOP and bytes an operation takes 25 µs ± 10 %, a product of many rows "
        "0.5 reads of its weights ± 20 %; activations pass at 3 GB/s ± 30 %",
        "# laptop: A CPU, 2 cores, 1 rank of 1 thread, 8.0 GiB of 16.0 GiB free",
        "# laptop: 1 thread read 10 GB/s ± 4 % of float32, 8 GB/s ± 5 % of bfloat16",
        "# laptop: beside its bfloat16 FLOP and bytes an operation takes 25 µs ± 10 %, a product of many rows "
        "0.5 reads of its weights ± 20 %; activations pass at 3 GB/s ± 30 %",
        "# laptop: its clock is 1.2 ms ± 80 µs behind desk's",
        "# doubtful: other work took 25% of laptop's cores meanwhile; measure again when the machine is quiet",
    ]


def test_others_of_a_machine_are_what_none_of_its_ranks_computed() -> None:
    """20 s of two cores' 20 s were busy; both ranks together computed 18 of them."""
    assert TWO.others == {0: pytest.approx(0.05), 1: pytest.approx(0.25)}
    shared = probed(device(0, 0, 0, "desk"), device(1, 0, 0, "desk"))
    assert shared.others == {0: pytest.approx(0.1)}
    assert list(shared.doubts) == []


def test_ranks_of_a_host_share_its_memory() -> None:
    shared = probed(device(0, 0, 0, "desk"), device(1, 0, 0, "desk"))
    assert shared.names == ["desk.0", "desk.1"]
    assert [one.memory_bytes for one in shared.cluster.devices] == [4 * GIB] * 2


def test_more_threads_than_cores_are_said() -> None:
    crowd = probed(*(device(rank, 0, 0, "desk", our_s=6.0) for rank in range(3)))
    assert crowd.doubts == ["3 ranks share desk's 2 cores: a figure is what each reaches meanwhile"]


def test_hosts_of_one_name_have_numbers() -> None:
    same = probed(device(0, 4, 4, "vm"), device(1, 7, 7, "vm"), device(2, 7, 7, "vm"))
    assert same.names == ["host 0.0", "host 1.0", "host 1.1"]


def test_emulated_hosts_are_one_machine() -> None:
    emulated = probed(device(0, 0, 0, "desk"), device(1, 1, 0, "desk"), emulated="1000 Mb/s and 200 µs each way")
    assert emulated.names == ["host 0-cpu", "host 1-cpu"]
    assert [one.memory_bytes for one in emulated.cluster.devices] == [4 * GIB] * 2
    assert "# links emulated: 1000 Mb/s and 200 µs each way; all hosts are this machine, desk\n" in emulated.toml


def test_json_has_all_of_it() -> None:
    found = msgspec.json.decode(msgspec.json.encode(TWO.json))
    assert [one["name"] for one in found["hosts"]] == ["desk", "laptop"]
    assert [one["clock"] for one in found["hosts"]] == [None, {"offset_s": -0.0012, "error_s": 8e-5}]
    assert found["links"][0]["points"] == [{"bytes": 1024, "seconds": 2.1e-4, "spread": 0.1}]
    assert found["links"][0]["from"] == "desk-cpu"
    assert found["links"][0]["bandwidth_bytes_per_s"] == {"value": 1.17e8, "spread": 0.01}
    assert found["devices"][1]["memory_bandwidth_bytes_per_s"] == {"value": 8e9, "spread": 0.05}
    assert found["devices"][1]["beside"] == {
        "bfloat16": {
            "operation_s": {"value": 2.5e-5, "spread": 0.1},
            "weight_reads": {"value": 0.5, "spread": 0.2},
            "activation_bandwidth_bytes_per_s": {"value": 3e9, "spread": 0.3},
        }
    }
    assert found["cluster"] == TWO.toml


def test_measured_figures_are_taken_as_they_are() -> None:
    """A layer for one row takes its bytes ÷ the memory's bandwidth, and what its eleven operations take beside."""
    spec, device = model_preset("llama3-8b"), TWO.cluster.devices[0]
    without, bare = replace(device, beside={}), replace(device, beside={}, profile=None)
    clusters = [replace(TWO.cluster, devices=(one, TWO.cluster.devices[1])) for one in (bare, without, device)]
    plain, measured, beside = (
        ServingModel(spec, cluster, "bfloat16").layer_s("desk-cpu", 0, 1, 1, 100.0) for cluster in clusters
    )
    assert measured == pytest.approx(plain, rel=1e-6)
    assert measured == pytest.approx(218.1e6 * 2 / 8e9, rel=0.01)
    passed = 2 * (2 * 2 * 4096 + 2 * 3 * 4096 + 2 * (4096 + 1024) + 3 * 14336)  # bytes: norms, residuals, RoPE, SiLU
    assert beside - measured == pytest.approx(11 * 2.5e-5 + passed * (1 / 3e9 - 1 / 8e9), rel=1e-6)
