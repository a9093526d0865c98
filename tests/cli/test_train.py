"""``plait train`` as a person has it: lines on stdout, words on stderr, a record, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from plait.cli.main import app
from plait.cli.train_watch import StepWatch, plan_words, step_words
from plait.errors import RunError
from plait.timeline.record import RunRecord
from plait.trainer.train import train as train_here
from plait.trainer.train_figures import Prediction, StepLine
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started, make_plan
from plait.weights.model import model_spec
from tests.cli.conftest import Plait

MODEL = "llama:layers=4,hidden=16,heads=2"
CLUSTER = """
[[hosts]]
name = "localhost"
[[devices]]
name = "one"
host = "localhost"
memory_gib = 1
gflops = { float32 = 10 }
memory_bandwidth_gb_per_s = 5
[[devices]]
name = "two"
host = "localhost"
memory_gib = 1
gflops = { float32 = 10 }
memory_bandwidth_gb_per_s = 5
[[links]]
from = "localhost"
to = "localhost"
latency_us = 20
bandwidth_gb_per_s = 4
"""
PLAN = ("--task", "train", "--dtype", "float32", "--batch", 8, "--seq", 16, "--pp", 2, "--micro-batch", 2)
KEYS = ["loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_s", "mfu", "bubble", "comm_bytes"]

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("train")
    (place / "text.txt").write_text("the same text again and again, " * 40)
    (place / "cluster.toml").write_text(CLUSTER)
    arguments = ("plan", MODEL, "--cluster", place / "cluster.toml", *PLAN, "-o", place / "plan.toml")
    done = runner.invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def done(plait: Plait, folder: Path) -> subprocess.CompletedProcess[str]:
    """Three steps of two processes, the only run of processes here."""
    arguments = ("--data", folder / "text.txt", "--plan", folder / "plan.toml", "--run", folder / "run")
    return plait("train", *arguments, "--steps", 3, "--lr", 0.01, "--timeline", "0-1", "--json")


def test_one_line_of_json_a_step(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert list(line) == ["step", *KEYS, "predicted"]
        assert list(line["predicted"]) == ["step_s", "tokens_per_s", "mfu", "bubble", "comm_bytes"]
        assert line["tokens"] == 8 * 16
        assert 0 < line["bubble"] < 1
        assert 0 < line["mfu"] < 1
        assert line["step_s"] > 0
        assert line["lr"] == 0.01
    assert lines[2]["loss"] < lines[0]["loss"]
    assert lines[1]["comm_bytes"] == lines[1]["predicted"]["comm_bytes"]
    assert "error" not in done.stderr


def test_the_words_name_what_runs(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    words = done.stderr.splitlines()
    assert words[0] == f"{MODEL}: random weights, a token is a byte"
    assert words[1].startswith("pp 2: layers ")
    assert words[2].startswith("predicted: ")
    assert words[-1] == f"run kept in {folder / 'run'} (plait report {folder / 'run'})"


def test_the_record_is_reported(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0
    kept = (folder / "run" / "steps.jsonl").read_text()
    assert kept == done.stdout
    shown = runner.invoke(app, ["report", str(folder / "run"), "--json"])
    assert shown.exit_code == 0, shown.stderr
    figures = json.loads(shown.stdout)
    # two steps of the two that were kept; the copies' checks of step 0 ride with its norm
    assert figures["off"]["only_predicted"] == figures["off"]["only_measured"] == 0
    assert 0 <= figures["measured"]["comm_bytes"] - figures["predicted"]["comm_bytes"] < 1000
    page = runner.invoke(app, ["report", str(folder / "run")])
    assert page.exit_code == 0
    assert "steps 0 to 1" in page.stdout


def test_the_record_holds_the_memory_of_every_rank(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0
    record = RunRecord.load(folder / "run")
    assert record.predicted is not None
    assert record.measured is not None
    for timeline in (record.predicted, record.measured):
        assert sorted(timeline.memory) == [0, 1]
        for track in timeline.memory.values():
            assert timeline.start_s <= track.times_s[0] <= track.times_s[-1] <= timeline.end_s
            assert track.limit_bytes is not None
            assert 0 < max(track.used_bytes) < track.limit_bytes
    for rank, track in record.measured.memory.items():
        assert 0 < track.base_bytes < min(track.used_bytes)
        peak = record.stages[rank].peak_bytes
        assert peak is not None
        assert max(track.used_bytes) <= peak + 4_000_000, "the system counts in its own batches"


# --- what is refused ----------------------------------------------------------------------------------------


def refused(*arguments: object) -> str:
    done = runner.invoke(app, ["train", *map(str, arguments)], env={"NO_COLOR": "1", "COLUMNS": "100"})
    assert done.exit_code == 2
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "no model was given: type --model and one line, as in --model llama:layers=4,hidden=256,heads=4, a preset "
            "(plait plan --list), a config.json, a model's directory, or demo",
        ),
        (["--model", MODEL], "no text was given: name a file to train on, as in --data text.txt"),
        (
            ["--model", "llama3-8"],
            "unknown model 'llama3-8' (did you mean 'llama3-8b'?); give a preset (plait plan --list), demo, a "
            "config.json, a model's directory, a .gguf file or a Hugging Face id (org/name)",
        ),
        (
            ["--model", f"{MODEL},vocab=100"],
            f"{MODEL},vocab=100 has no tokenizer, so that a token is a byte of the text, and a vocabulary of 100, but "
            "there are 256 bytes: 156 too few; give it vocab = 256",
        ),
        (
            ["--model", "mixtral-8x7b"],
            "mixtral-8x7b has a mixture of experts: such a model can be planned but not run yet",
        ),
        (["--model", MODEL, "--data", "./nothere"], "--data nothere: no such file or directory"),
        (["--model", MODEL, "--timeline", "x"], "--timeline 'x' names no steps: write them as in 5, or 3,10-12"),
        (
            ["--model", MODEL, "--pp", 5],
            f"--pp 5 makes 5 stages, but {MODEL} has 4 layers and every stage needs at least one: at most 4 stages fit "
            "(--pp 4 is the most)",
        ),
        (["--model", MODEL, "--dropout", 1], "dropout is 1, but must be from 0 to below 1"),
        (["--model", MODEL, "--clip", -1], "clip is -1, but must be above 0: leave it out to clip nothing"),
        (
            ["--model", MODEL, "--freeze", "embed.weigh"],
            f"no tensor of {MODEL} is called 'embed.weigh', which was to be frozen: did you mean 'embed.weight'?",
        ),
        (
            ["--model", MODEL, "--schedule", "1f1"],
            "unknown schedule '1f1' for training: did you mean '1f1b'?",
        ),
    ],
)
def test_what_cannot_work(arguments: list[object], message: str) -> None:
    assert refused(*arguments) == f"error: {message}\n"


def test_a_plan_file_and_flags_that_say_otherwise(folder: Path) -> None:
    plan, text = folder / "plan.toml", folder / "text.txt"
    assert refused("--plan", plan, "--data", text, "--model", "demo") == (
        f"error: --model demo was given, but plan file {plan} is of {MODEL}: leave --model out, or plan again with it\n"
    )
    assert refused("--plan", plan, "--data", text, "--tp", 2) == (
        f"error: --tp 2 was given, but plan file {plan} says 1: leave --tp out, or plan again with it\n"
    )
    assert refused("--model", MODEL, "--data", text, "--sequence-length", 2000) == (
        f"error: {text} holds 1240 tokens, but one sequence of 2000 and the token after it are 2001: 761 too few; "
        "give a longer text, or --sequence-length 1239\n"
    )


def test_what_broke_is_exit_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(*given: object, **named: object) -> None:
        raise RunError("step 3: the loss is nan")

    monkeypatch.setattr("plait.trainer.train.train", breaking)
    done = runner.invoke(app, ["train", "--model", MODEL, "--data", str(folder / "text.txt")])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "error: step 3: the loss is nan\n")


def test_a_mesh_of_another_size_than_the_launchers(folder: Path) -> None:
    """Rank 0 of one; it hears the mesh's size from the launcher before it meets anybody."""
    from plait.errors import PlanError

    options = TrainOptions(dp=2, pp=2)
    with pytest.raises(PlanError) as error:
        make_plan(options, model_spec(MODEL), None, Started(2, 2, 2))
    assert str(error.value) == (
        "the mesh has 4 ranks (dp × pp × tp = 2 × 2 × 1), but 2 were started: 2 too few; start as many "
        "(torchrun --nproc-per-node), or give another mesh"
    )
    assert train_here.__doc__


# --- what a person sees -------------------------------------------------------------------------------------


def line(step: int, **changes: Any) -> StepLine:
    usual: dict[str, Any] = {"mfu": None, "bubble": 0.214, "comm_bytes": {"dp": 1024, "pp": 0, "tp": 512}, **changes}
    return StepLine(step, 2.34567, 0.8123, 0.001, 2048, 3120.4, 0.656, **usual)


def test_a_step_in_words() -> None:
    assert step_words(line(7)) == ("step    7  loss 2.3457  norm 0.812  lr 0.001  3120 tokens/s  656 ms  bubble 21 %")
    assert step_words(line(120, mfu=0.35)) == (
        "step  120  loss 2.3457  norm 0.812  lr 0.001  3120 tokens/s  656 ms  bubble 21 %  MFU 35 %"
    )


def test_a_plan_in_words() -> None:
    made = make_plan(TrainOptions(dp=2, pp=2, threads=1), model_spec(MODEL), None, Started(2)).plan
    assert plan_words(made) == (
        "dp 2 × pp 2: layers 0 to 1, 2 to 3; 1f1b, 4 micro-batches of 2; 16 sequences of 128 tokens a step; float32, 1 "
        "thread a rank"
    )
    alone = make_plan(TrainOptions(threads=2, batch=1), model_spec(MODEL), None, Started(2)).plan
    assert plan_words(alone) == (
        "one rank: layers 0 to 3; 1f1b, 1 micro-batch of 1; 1 sequence of 128 tokens a step; float32, 2 threads a rank"
    )


def test_many_steps_are_not_all_printed(capsys: pytest.CaptureFixture[str]) -> None:
    made = make_plan(TrainOptions(), model_spec(MODEL), None, Started(2)).plan
    with StepWatch(Console(stderr=True), as_json=False) as watch:
        watch.planned(made, Prediction(note="only bytes are predicted"), 120)
        watch.ready()
        for step in range(120):
            watch.step(line(step), Prediction())
    shown = [int(words.split()[1]) for words in capsys.readouterr().out.splitlines()]
    assert shown == [*range(0, 120, 3), 119]
