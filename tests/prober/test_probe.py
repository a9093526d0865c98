"""`plait.probe()`: ranks as processes of this machine, and what cannot be probed."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Callable

import pytest

import plait
from plait.errors import CapacityError, PeerLost, RunError, UsageError
from plait.prober import probe, probe_processes
from plait.prober.probe_device import measured_bytes, thread_counts, weight_bytes_of
from plait.prober.probe_links import LINK_BYTES
from plait.prober.probe_mesh import require_memory
from plait.prober.probe_processes import ProbeProcesses
from plait.prober.probed import Probed
from plait.spec.cluster_file import cluster_from_toml
from plait.spec.emulation import parse_emulation

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module")
def two() -> tuple[Probed, list[str]]:
    """Two ranks of this machine, and what was said meanwhile."""
    said: list[str] = []
    return plait.probe(2, seconds=1.0, say=said.append), said


def test_two_ranks(two: tuple[Probed, list[str]]) -> None:
    found, said = two
    assert said == ["measuring 2 devices, all at the same time", "measuring links between ranks 0 and 1 (pair 1 of 1)"]
    assert [(link.source, link.target) for link in found.links] == [(0, 1), (1, 0)]
    for link in found.links:
        assert 1e-7 < link.latency_s.value < 0.1
        assert 1e6 < link.bandwidth_bytes_per_s.value < 1e12
        assert len(link.points) >= 3
    for device in found.devices:
        assert 1e8 < device.most.flops["float32"].value < 1e14
        assert 1e7 < device.read.value < 1e13
        assert device.rank.free_bytes <= device.rank.memory_bytes
    assert cluster_from_toml(tomllib.loads(found.toml)) == found.cluster
    assert len(found.host_names) == 1


def test_a_plan_speaks_of_what_was_probed(two: tuple[Probed, list[str]]) -> None:
    from plait.spec.presets import model_preset

    choice = plait.plan(model_preset("llama3-8b"), two[0].cluster, plait.Job(64, 64), dtype="bfloat16", weights="q4_0")
    alone = next(one for one in choice.candidates if one.kind == "one device")
    slowest_s = 8.03e9 * 0.5625 / min(device.read.value for device in two[0].devices)
    assert alone.predicted["time_per_token_s"] < 1.3 * slowest_s
    assert "the devices' figures as they were measured, ± " in alone.note


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_a_rank_that_dies_is_named(victim: int) -> None:
    with ProbeProcesses(2, 1, 30.0) as processes:

        def kill(words: str) -> None:
            os.kill(processes.process_ids[victim], signal.SIGKILL)

        with pytest.raises(PeerLost) as caught:
            processes.found(kill)
    assert str(caught.value) == f"rank {victim} was killed by signal 9 (SIGKILL) while it was measured"
    assert caught.value.rank == victim


def test_a_rank_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = probe_processes.rank_environment
    broken: Callable[..., dict[str, str]] = lambda *given: {**environment(*given), "PYTHONHASHSEED": "nonsense"}  # noqa: E731
    monkeypatch.setattr(probe_processes, "rank_environment", broken)
    with pytest.raises(RunError) as caught:
        plait.probe(1, seconds=1.0)
    assert str(caught.value).startswith("rank 0 ended with exit status 1 (")


@pytest.mark.parametrize(
    ("ranks", "emulate", "seconds", "message"),
    [
        (0, None, 20.0, "0 ranks cannot be measured: give a number from 1 to 256, as in --ranks 2"),
        (257, None, 20.0, "257 ranks cannot be measured: give a number from 1 to 256, as in --ranks 2"),
        (1, None, 0.5, "0.5 s is not a time to measure in: give from 1 to 3600, as in --seconds 20"),
        (1, None, float("nan"), "nan s is not a time to measure in: give from 1 to 3600, as in --seconds 20"),
        (
            1,
            "1gbit,200us",
            20.0,
            "--emulate needs two hosts or more, and 1 rank with 1 on a host are one: give --ranks 2 or more",
        ),
        (
            2,
            "1gbit,200us@2",
            20.0,
            "--emulate needs two hosts or more, and 2 ranks with 2 on a host are one: give --ranks 3 or more",
        ),
    ],
)
def test_what_cannot_be_asked(ranks: int, emulate: str | None, seconds: float, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plait.probe(ranks, emulate=None if emulate is None else parse_emulation(emulate), seconds=seconds)
    assert str(caught.value) == message


def test_memory_that_does_not_do() -> None:
    """Four ranks: 400 MiB of process, 64 MiB of weights in each of two dtypes, 16 MiB for each of three links.

    And of layers of both widths 4, or 16 MiB and one where those are more, and one more. Each has so many numbers.
    """
    narrow, wide = 737_792, 2_950_144
    layers = (16 * MIB + 8 * narrow) + 5 * 4 * wide + (16 * MIB + 4 * narrow) + 5 * 2 * wide
    each = 400 * MIB + 2 * 64 * MIB + layers + 3 * LINK_BYTES
    assert measured_bytes(4) == 2 * 64 * MIB + layers
    require_memory(4, 4 * each, "desk")
    with pytest.raises(CapacityError) as caught:
        require_memory(4, 4 * each - GIB, "desk")
    assert str(caught.value) == (
        "measuring 4 ranks of desk at the same time needs 2.7 GiB of memory (700.8 MiB each), and 1.7 GiB are free: "
        "1.0 GiB short; measure no more than 2, as in --ranks 2"
    )


def test_no_memory_stops_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "free_memory_here", lambda: 100 * MIB)
    monkeypatch.setattr(probe_processes.subprocess, "Popen", lambda *given, **more: pytest.fail("started"))
    with pytest.raises(CapacityError, match=r"measuring 1 rank of this machine .*; end other programs first$"):
        plait.probe(1)


def test_thread_counts() -> None:
    assert [thread_counts(most) for most in (1, 2, 3, 8, 12)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 12],
    ]


def test_weights_of_many_ranks_are_fewer_each() -> None:
    assert [weight_bytes_of(ranks) >> 20 for ranks in (1, 2, 4, 64)] == [256, 128, 64, 64]
