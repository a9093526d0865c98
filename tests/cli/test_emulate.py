"""``--emulate`` as a person may get it wrong, and training with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plait.cli.main import app
from plait.comm.emulated import HandOver
from plait.costs.protocol import LinkCost
from plait.planner.training_local import local_training_plan
from plait.plans.file import save_plan
from plait.plans.split import Split, TrainingSetup
from plait.prober.emulated import OwnLink
from plait.spec.cluster import Cluster, Device, Host, Network, Wire
from plait.spec.preset_files import preset_words
from plait.timeline.record import RunRecord
from plait.weights.model import model_spec

runner = CliRunner()
LAUNCHED = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}
VERBS = (("generate", "Hi"), ("train", "--model", "demo", "--data", "text.txt"))


def said(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = runner.invoke(app, [*arguments], env=env)
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.mark.parametrize("verb", VERBS)
def test_links_that_are_none(verb: tuple[str, ...]) -> None:
    assert said(*verb, "--emulate", "1gbit") == (
        2,
        "",
        "error: --emulate '1gbit': '1gbit' is no link; write bandwidth and latency, as in 1gbit,200us, or a link "
        "preset, as in ethernet-1g; @2 makes two ranks a host (known: "
        + ", ".join(sorted(preset_words("links")))
        + ")",
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_launchers_ranks_have_links_already(verb: tuple[str, ...]) -> None:
    """Rank 0 says so; the others end without a word."""
    asked = (*verb, "--emulate", "1gbit,1ms")
    assert said(*asked, env=LAUNCHED) == (
        2,
        "",
        "error: --emulate is for ranks that are started here, and a launcher has started these, whose links are real: "
        "leave --emulate out, or run the command without the launcher",
    )
    assert said(*asked, env=LAUNCHED | {"RANK": "1", "LOCAL_RANK": "1"}) == (2, "", "")


def test_links_faster_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnLink(LinkCost(80e-6, 1.5e9), HandOver())
    monkeypatch.setattr("plait.generation.emulated.own_link", lambda _, say: own)
    assert said("generate", "Hi", "--pp", "2", "--emulate", "infiniband-hdr") == (
        2,
        "",
        "error: a latency of 5 µs cannot be emulated here: this machine itself takes 80 µs from process to process, 16 "
        "times as long; ask for 80us or more",
    )


@pytest.mark.soak
def test_a_training_plan_over_several_hosts(tmp_path: Path) -> None:
    """Losses and bytes are those of the same plan on this host; the record has the plan's hosts."""
    model = "llama:layers=2,hidden=32,heads=2"
    (tmp_path / "text.txt").write_text("the same text again and again, " * 100)
    setup = TrainingSetup(Split(dp=2, pp=2), "1f1b", 0, 2)
    near = replace(local_training_plan(model_spec(model), setup, 8, 16, "float32"), model=model)
    hosts = {0: "left", 1: "left", 2: "right", 3: "right"}
    names = tuple(f"cpu-{rank}" for rank in hosts)
    devices = tuple(Device(names[rank], host, 1 << 33, {"float32": 1e11}, 1e10) for rank, host in hosts.items())
    network = Network(Wire(1e-6, 1e10), Wire(1e-3, 1e8))
    stages = tuple(replace(one, devices=tuple(names[rank] for rank in one.ranks)) for one in near.layout.stages)
    save_plan(near, tmp_path / "near.toml")
    far = replace(near, layout=replace(near.layout, stages=stages))
    save_plan(far, tmp_path / "far.toml", Cluster((Host("left"), Host("right")), devices, network=network))
    asked = (
        "train",
        "--model",
        model,
        "--data",
        str(tmp_path / "text.txt"),
        "--steps",
        "2",
        "--json",
        "--threads",
        "1",
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for name, emulate in (("near", ()), ("far", ("--emulate", "100mbit,5ms"))):
        files = ("--plan", str(tmp_path / f"{name}.toml"), "--run", str(tmp_path / name))
        done = runner.invoke(app, [*asked, *files, *emulate])
        assert done.exit_code == 0, done.stderr
        found[name] = [json.loads(line) for line in done.stdout.splitlines()]
    assert "as if on the plan's 2 hosts (left, right), 100 Mb/s and 5 ms between any two" in done.stderr
    for key in ("loss", "grad_norm", "comm_bytes"):
        assert [one[key] for one in found["near"]] == [one[key] for one in found["far"]]
    assert found["far"][1]["comm_bytes"] == found["far"][1]["predicted"]["comm_bytes"]
    record = RunRecord.load(tmp_path / "far")
    assert record.predicted is not None
    assert record.measured is not None
    assert record.measured.hosts == record.predicted.hosts == hosts


@pytest.mark.soak
@pytest.mark.parametrize("mesh", [("--dp", "2"), ("--pp", "2"), ("--tp", "2")])
def test_training_over_emulated_links_learns_the_same(mesh: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the same text again and again, " * 100)
    what = ("--model", "llama:layers=2,hidden=32,heads=2", "--data", str(tmp_path / "text.txt"), "--steps", "2")
    asked = ("train", *what, "--sequence-length", "16", *mesh, "--json")
    near = runner.invoke(app, [*asked, "--run", str(tmp_path / "near")])
    far = runner.invoke(app, [*asked, "--run", str(tmp_path / "far"), "--emulate", "100mbit,20ms"])
    assert (near.exit_code, far.exit_code) == (0, 0), near.stderr + far.stderr
    assert "as if on 2 emulated hosts, 100 Mb/s and 20 ms between any two" in far.stderr
    first, second = ([json.loads(line) for line in one.stdout.splitlines()] for one in (near, far))
    assert [(one["loss"], one["grad_norm"]) for one in first] == [(one["loss"], one["grad_norm"]) for one in second]
    assert [one["comm_bytes"] for one in first] == [one["comm_bytes"] for one in second]
    assert second[1]["comm_bytes"] == second[1]["predicted"]["comm_bytes"]  # the first step compares copies, too
    record = RunRecord.load(tmp_path / "far")
    assert record.predicted is not None
    assert record.measured is not None
    assert record.measured.hosts == record.predicted.hosts == {0: "host 0", 1: "host 1"}
