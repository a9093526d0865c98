"""``plait probe``: where results go, and what cannot be asked."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from plait.cli.main import app
from plait.prober import probe as prober
from plait.prober.probed import Probed
from plait.spec.cluster_file import cluster_from_toml, read_cluster
from tests.cli.probes import TWO

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def run(*arguments: object, **changes: str) -> Result:
    environment = {"COLUMNS": "400", "NO_COLOR": "1", **changes}
    return CliRunner().invoke(app, ["probe", *map(str, arguments)], env=environment, catch_exceptions=False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Probed:
    """What is found, without measuring."""
    monkeypatch.setattr(prober, "probe", lambda ranks, **given: TWO)
    return TWO


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be measured."""
    monkeypatch.setattr(prober, "probe", lambda *given, **more: pytest.fail("measured"))


def test_the_file_is_data(found: Probed) -> None:
    done = run("--ranks", 2)
    assert done.exit_code == 0
    assert done.stdout == found.toml
    assert cluster_from_toml(tomllib.loads(done.stdout)) == found.cluster
    assert "latency, bandwidth" in done.stderr


def test_a_file_and_its_page(found: Probed, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    done = run("--ranks", 2, "-o", path)
    assert read_cluster(path) == found.cluster
    assert done.stdout.startswith("device  ")
    assert f"cluster file written to {path} (plait plan demo --cluster {path})" in done.stderr
    assert run("--ranks", 2, "-o", path).exit_code == 0  # as plait plan does: again


def test_json_is_one_object(found: Probed, tmp_path: Path) -> None:
    done = run("--ranks", 2, "--json", "-o", tmp_path / "c.toml", "--svg", tmp_path / "links.svg")
    assert json.loads(done.stdout)["cluster"] == found.toml == (tmp_path / "c.toml").read_text()
    assert (tmp_path / "links.svg").read_text().count("200 µs") == 2


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        (["--ranks", "0"], 2, "0 ranks cannot be measured: give a number from 1 to 256, as in --ranks 2"),
        (["--seconds", "0"], 2, "0 s is not a time to measure in: give from 1 to 3600, as in --seconds 20"),
        (
            ["--emulate", "1gbit,200us"],
            2,
            "--emulate needs two hosts or more, and 1 rank with 1 on a host are one: give --ranks 2 or more",
        ),
        (
            ["-o", "/nowhere/c.toml"],
            2,
            "-o /nowhere/c.toml cannot be written: there is no directory /nowhere (mkdir -p /nowhere makes it)",
        ),
        (["-o", "/"], 2, "-o / is a directory: give a file in it, as in -o /cluster.toml"),
        (["--svg", "a.svg"], 2, "--svg draws links, and one rank has none: measure several, as in --ranks 2"),
        (["--ranks", "2", "--png", "a.svg"], 2, "--png a.svg does not end in .png: write --png a.png"),
        (
            ["--ranks", "2", "--svg", "/nowhere/a.svg"],
            2,
            "--svg /nowhere/a.svg cannot be written: there is no directory /nowhere (mkdir -p /nowhere makes it)",
        ),
    ],
)
def test_what_cannot_be_asked(given: list[str], status: int, message: str) -> None:
    done = run(*given)
    assert (done.exit_code, done.stdout) == (status, "")
    assert done.stderr == f"error: {message}\n"


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("option", [["--ranks", "2"], ["--emulate", "1gbit,200us"]])
def test_a_launchers_ranks_are_its_own(option: list[str]) -> None:
    done = run(*option, **LAUNCHED)
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: {option[0]} does not go with torchrun, which has started 2 ranks with real links: "
        f"leave {option[0]} out, or type plait probe without torchrun\n"
    )
    other = run(*option, **{**LAUNCHED, "RANK": "1"})
    assert (other.exit_code, other.output) == (2, "")  # rank 0 says it
