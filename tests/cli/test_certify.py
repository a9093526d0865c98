"""``plait certify``: words, JSON, exit codes, and what cannot be certified."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from plait.certifier import grid
from plait.certifier.case import Case
from plait.cli.main import app
from plait.nn.training.stage import TrainingStage

KEYS = {"passed", "mesh", "schedule", "micro_batches", "dtype", "loss", "grad", "norm", "weights", "worst"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, ["certify", *map(str, arguments)], env={"COLUMNS": "100", "NO_COLOR": "1"}, catch_exceptions=False
    )


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: gradients of pipelines are halved."""
    backward = TrainingStage.backward

    def half(self: TrainingStage, passed: Any, gradient: Any, part: int | None = None) -> Any:
        shared = isinstance(gradient, float) and self.first > 0
        return backward(self, passed, gradient / 2 if shared else gradient, part)

    monkeypatch.setattr(TrainingStage, "backward", half)


def test_one_case_in_words() -> None:
    done = run("--dp", 2, "--pp", 2, "--micro-batches", 2)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "dp 2 × pp 2 × tp 1, 1f1b, 2 micro-batches, float64: llama of 3 layers, 2 steps of 8 sequences of 5 tokens, "
        "over threads"
    )
    assert re.split(r"\s{2,}", lines[1].strip()) == ["largest error", "bound"]
    assert [line[:14].strip() for line in lines[2:6]] == ["loss", "gradients", "gradient norm", "weights"]
    assert all("1.0e-10" in line for line in lines[2:6])
    assert re.search(r"layers\.\d\.\w+\.weight of stage \d, rank \d, step \d", lines[3])
    assert lines[6:] == ["bound: the design's bound for float64", "equal to one process"]


def test_one_case_as_json() -> None:
    done = run("--pp", 2, "--tied", "--schedule", "zb-h1", "--micro-batches", 3, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert found["bound"] == 1e-10
    (case,) = found["cases"]
    assert set(case) >= KEYS
    assert case["mesh"] == {"dp": 1, "pp": 2, "tp": 1, "virtual": 1}
    assert (case["schedule"], case["micro_batches"], case["dtype"]) == ("zb-h1", 3, "float64")
    assert all(0 <= case[what] < 1e-12 for what in ("loss", "grad", "norm", "weights"))
    assert case["worst"]["error"] == max(case[what] for what in ("loss", "grad", "norm", "weights"))
    assert case["command"] == "plait certify --pp 2 --schedule zb-h1 --micro-batches 3 --tied"


def test_a_case_that_fails_names_the_worst_parameter(halved: None) -> None:
    done = run("--pp", 2, "--steps", 1)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert "FAILED" not in lines[2]  # the loss hides it
    assert re.search(r"5\.0e-01 +1\.0e-10  FAILED  \S+ of stage \d, rank \d, step 0$", lines[3])
    assert lines[-1] == "NOT equal to one process"


def test_a_case_that_fails_as_json(halved: None) -> None:
    done = run("--pp", 2, "--steps", 1, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["passed"] is found["cases"][0]["passed"] is False
    assert found["cases"][0]["worst"]["parameter"]
    assert found["cases"][0]["grad"] == pytest.approx(0.5)


def few(seed: int = 0, dtype: str | None = None) -> list[Case]:
    return [Case(dp=2, seed=seed, dtype=dtype or "float64"), Case(pp=2, seed=seed, dtype=dtype or "float32")]


def test_a_grid_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "grid", few)
    done = run("--all", "--jobs", 1)
    assert done.exit_code == 0, done.output
    first, second, last = done.stdout.splitlines()
    assert re.fullmatch(r"equal   \d\.\de-\d\d of 1\.0e-10  .*  plait certify --dp 2", first)
    assert re.fullmatch(r"equal   \d\.\de-\d\d of \d\.\de-\d\d  .*  plait certify --pp 2 --dtype float32", second)
    assert last == "all 2 meshes are equal to one process"


def test_a_grid_of_which_a_mesh_fails(monkeypatch: pytest.MonkeyPatch, halved: None) -> None:
    monkeypatch.setattr(grid, "grid", few)
    done = run("--all", "--jobs", 1, "--seed", 3)
    assert done.exit_code == 1
    first, second, *last = done.stdout.splitlines()
    assert first.startswith("equal ")
    assert re.match(r"FAILED  \d\.\de-01 of 1\.0e-05  gradients of layers\.", second)
    assert last == [
        "1 of 2 meshes FAILED; to repeat each alone:",
        "  plait certify --pp 2 --dtype float32 --seed 3",
    ]


@pytest.mark.soak
def test_a_grid_as_json_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "grid", few)
    done = run("--all", "--jobs", 2, "--dtype", "float64", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [case["command"] for case in found["cases"]] == ["plait certify --dp 2", "plait certify --pp 2"]


CASES = [
    (["--dp", "0"], "--dp 0 was asked for, but it must be at least 1"),
    (
        ["--pp", "4", "--layers", "3"],
        "--pp 4 makes 4 stages, but llama has 3 layers and every stage needs at least one: at most 3 stages fit "
        "(--pp 3 is the most)",
    ),
    (
        ["--tp", "4"],
        "--tp 4 was asked for, but llama has 3 heads, and every rank of a tensor group needs at least one: "
        "--tp 3 is the most",
    ),
    (["--sequence"], "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one"),
    (
        ["--batch", "8", "--micro-batches", "3"],
        "a batch of 8 sequences cannot be divided into 3 micro-batches: type --batch 6 or 9, or --micro-batches 1, 2, "
        "4 or 8",
    ),
    (["--schedule", "1f1"], "unknown schedule '1f1' for training: did you mean '1f1b'?"),
    (["--virtual", "2"], "schedule 1f1b has one stage a position, not 2: type --virtual 1"),
    (["--zero", "2"], "ZeRO-2 can be planned, but not run yet: --zero 0 or --zero 1"),
    (["--model", "lama"], "unknown small model 'lama': did you mean 'llama'?"),
    (
        ["--layers", "1,x"],
        "--layers '1,x' is not a list of whole numbers from 1 on: write the layers of the model, or of each stage, "
        "as in 2,1,1",
    ),
    (
        ["--tp", "2", "--shares", "1,0"],
        "--shares '1,0' is not a list of whole numbers from 1 on: write one for each rank of a tensor group, as in 2,1",
    ),
    (
        ["--frozen", "nix*"],
        "--frozen nix* is the name of no tensor: names are such as embed.weight, layers.0.attn_norm.weight, "
        "layers.0.q.weight",
    ),
    (["--frozen", "*"], "--frozen * freezes all 21 tensors: nothing would learn"),
    (["--jobs", "2"], "--jobs is for many cases: give it with --all"),
    (
        ["--all", "--dp", "2", "--tied"],
        "--dp and --tied are of one case, and --all draws them for each: leave out one or the other",
    ),
    (
        ["--all", "--micro-batches", "2"],
        "--micro-batches is of one case, and --all draws them for each: leave out one or the other",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[" ".join(arguments) for arguments, _ in CASES])
def test_what_cannot_be_certified(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.stderr == f"error: {message}\n"
    assert done.stdout == ""
    assert done.exit_code == 2
