"""Longer runs of `plait train`: ranks that are killed, a loss that is no number, and those that torchrun starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.errors import PeerLost, RunError
from plait.trainer import train as train_module
from plait.trainer.launch import TrainRanks
from plait.trainer.train import TrainResult, train
from plait.trainer.train_figures import Prediction, StepLine
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_watch import Unwatched

pytestmark = pytest.mark.soak

MODEL = "llama:layers=4,hidden=32,heads=2,tied=1"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("the same text again and again, " * 100)
    return file


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured before."""
    monkeypatch.setattr(train_module, "predict", lambda *given: Prediction())


class Kill(Unwatched):
    """Kills a rank's process after so many steps."""

    def __init__(self, rank: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.after, self.killed_s = rank, after, 0.0
        self.ranks: list[TrainRanks] = []

        def start(*given: object, **named: object) -> TrainRanks:
            self.ranks.append(TrainRanks(*given, **named))  # type: ignore[arg-type]
            return self.ranks[0]

        monkeypatch.setattr(train_module, "TrainRanks", start)

    def step(self, line: StepLine, prediction: Prediction) -> None:
        if line.step == self.after:
            os.kill(self.ranks[0].process_ids[self.rank], signal.SIGKILL)
            self.killed_s = time.monotonic()


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_killed_ends_all_within_10_s_and_is_named(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    kill = Kill(rank, 3, monkeypatch)
    options = TrainOptions(dp=2, pp=2, batch=8, sequence_length=32, steps=100_000)
    with pytest.raises(PeerLost) as error:
        train(MODEL, text, options, watch=kill, run=tmp_path / "run")
    assert time.monotonic() - kill.killed_s < 10
    stage = rank % 2
    assert str(error.value) == (
        f"rank {rank} (stage {stage}, layers {2 * stage} to {2 * stage + 1}, replica {rank // 2} of 2) was killed by "
        "signal 9 (SIGKILL)"
    )
    assert all(process.returncode is not None for process in kill.ranks[0].processes)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_ends_all_and_says_where_it_began(text: Path, tmp_path: Path) -> None:
    options = TrainOptions(dp=2, batch=4, sequence_length=16, steps=50, lr=1e30, optimizer="sgd", clip=0)
    with pytest.raises(RunError) as error:
        train(MODEL, text, options, run=tmp_path / "run")
    assert str(error.value).startswith("step 1: ")


def test_every_mesh_learns_the_same(text: Path, tmp_path: Path) -> None:
    meshes = [
        TrainOptions(pp=2, schedule="zb-v", virtual=2, micro_batches=4),
        TrainOptions(dp=2, pp=2, micro_batches=2, zero=1, recompute="full"),
        TrainOptions(pp=2, tp=2, virtual=2, micro_batches=4, sequence=True),
    ]
    losses = []
    for number, mesh in enumerate(meshes):
        options = {name: getattr(mesh, name) for name in TrainOptions.__dataclass_fields__}
        options |= {"batch": 8, "sequence_length": 32, "steps": 4, "dropout": 0.1}
        result: TrainResult = train(MODEL, text, TrainOptions(**options), run=tmp_path / f"run{number}")
        losses.append([line.loss for line in result.steps])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


def torchrun(folder: Path, size: int, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m", "plait"]
    return subprocess.Popen(
        [*command, "--", "train", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "NO_COLOR": "1"},
    )


def test_torchrun_starts_the_ranks(text: Path, tmp_path: Path) -> None:
    arguments = ("--model", MODEL, "--data", text, "--batch", 8, "--sequence-length", 32, "--steps", 3)
    run = ("--dp", 2, "--pp", 2, "--json", "--run", tmp_path / "run")
    with torchrun(tmp_path, 4, *arguments, *run) as process:
        out, words = process.communicate(timeout=240)
    assert process.returncode == 0, words
    lines = [json.loads(line) for line in out.splitlines()]
    assert [one["step"] for one in lines] == [0, 1, 2]
    assert lines[1]["comm_bytes"] == lines[1]["predicted"]["comm_bytes"]
    assert (tmp_path / "run" / "run.json").is_file()


def test_torchruns_ranks_are_fewer_than_the_mesh(text: Path, tmp_path: Path) -> None:
    with torchrun(tmp_path, 2, "--model", MODEL, "--data", text, "--dp", 2, "--pp", 2) as process:
        out, words = process.communicate(timeout=240)
    assert process.returncode != 0
    assert out == ""
    assert words.count("error: the mesh has 4 ranks (dp × pp × tp = 2 × 2 × 1), but 2 were started: 2 too few") == 1
