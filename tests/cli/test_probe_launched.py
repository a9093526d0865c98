"""``plait probe`` where a launcher has started the ranks: two of them, each on what it calls a host of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plait.spec.cluster_file import cluster_from_toml


def launched(*arguments: str) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Both ranks, once they have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NO_COLOR": "1", "COLUMNS": "100"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "plait", "probe", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, **meeting, "RANK": str(rank), "GROUP_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200) for process in ranks]
    first, second = (
        subprocess.CompletedProcess(process.args, process.returncode, *words)
        for process, words in zip(ranks, said, strict=True)
    )
    return first, second


def test_rank_0_says_what_all_found(tmp_path: Path) -> None:
    first, second = launched("--seconds", "1", "--json", "-o", str(tmp_path / "cluster.toml"))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    found = json.loads(first.stdout)
    assert [one["name"] for one in found["devices"]] == ["host 0-cpu", "host 1-cpu"]
    assert [(one["from"], one["to"]) for one in found["links"]] == [
        ("host 0-cpu", "host 1-cpu"),
        ("host 1-cpu", "host 0-cpu"),
    ]
    for link in found["links"]:
        assert 1e-6 < link["latency_s"]["value"] < 1
        assert 1e5 < link["bandwidth_bytes_per_s"]["value"] < 1e11
    clock = found["hosts"][1]["clock"]
    assert abs(clock["offset_s"]) <= clock["error_s"]  # they are one machine
    text = (tmp_path / "cluster.toml").read_text()
    assert text == found["cluster"]
    assert len(cluster_from_toml(tomllib.loads(text)).links) == 2


@pytest.mark.soak
def test_what_rank_0_cannot_do_ends_all() -> None:
    first, second = launched("-o", "/nowhere/cluster.toml")
    words = "-o /nowhere/cluster.toml cannot be written: there is no directory /nowhere (mkdir -p /nowhere makes it)"
    assert (first.returncode, first.stdout) == (2, "")
    assert first.stderr.endswith(f"error: {words}\n")
    assert (second.returncode, second.stdout) == (1, "")
    assert words in " ".join(second.stderr.split())
