"""What a person is told who gave something that cannot work: whole messages, exit 2, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Plait

CASES = [
    (
        ["generate", "hi", "--model", "dem"],
        "unknown model 'dem' (did you mean 'demo'?); give demo, a directory, a .gguf or .safetensors file, "
        "or a Hugging Face id (org/name)",
    ),
    (["generate", "hi", "--model", "./nothere"], "no such file or directory: ./nothere"),
    (["generate"], "no prompt was given: type one, or give a file with --prompt-file"),
    (
        ["generate", "hi", "--layers", "12,17"],
        "--layers 12,17 adds up to 29, but the model has 30 layers: 1 too few (--layers 12,18 would be nearest)",
    ),
    (
        ["generate", "hi", "--layers", "a,b"],
        "--layers 'a,b' is not a list of numbers: write the layers of each stage, as in 12,18, or their proportions, "
        "as in 3:3:2",
    ),
    (
        ["generate", "hi", "--pp", "31"],
        "31 stages were asked for, but the model has 30 layers and every stage needs at least one: "
        "1 too many (--pp 30 is the most)",
    ),
    (
        ["generate", "hi", "--tp", "0"],
        "--tp 0 was asked for, but a layer needs at least one rank: --tp 1 leaves it whole",
    ),
    (
        ["generate", "hi", "--tp", "2", "--shares", "2,x"],
        "--shares '2,x' is not a list of whole numbers: write one for each rank of a tensor group, in proportion to "
        "its speed, as in 2,1",
    ),
    (
        ["generate", "hi", "--tensor", "3", "--shares", "2,1"],
        "--shares 2,1 is for 2 ranks, but --tp makes groups of 3: --tp 2, or 3 numbers",
    ),
    (
        ["generate", "hi", "--shares", "2,0"],
        "--shares 2,0 gives rank 1 of a group nothing: every share is at least 1",
    ),
    (
        ["generate", "hi", "--sequence"],
        "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one",
    ),
    (
        ["generate", "hi", "--model", "llama3-70b"],
        "llama3-70b is a preset: figures to plan with, without weights to run; give the model itself with --model "
        "(a directory, a .gguf file or a Hugging Face id)",
    ),
    (["generate", "hi", "--pp", "0"], "0 stages were asked for, but there must be at least 1"),
    (
        ["generate", "hi", "--schedule", "pipeline"],
        "unknown schedule 'pipeline' for generation: did you mean 'pipelined'?",
    ),
    (["generate", "hi", "--dtype", "float16"], "unknown dtype 'float16': did you mean 'bfloat16'?"),
    (
        ["generate", "hi", "--max-tokens", "9000"],
        "a prompt of 31 tokens and 9000 more make 9031, but SmolLM2-135M-Instruct.Q4_1 was made for 8192 positions: "
        "839 too many (--max-tokens 8161 is the most)",
    ),
    (
        ["generate", "hi", "--context", "64", "--max-tokens", "40"],
        "request 0 has a prompt of 31 tokens and asks for 40 more, 71 in all, but the context holds 64: "
        "7 too many (--context 71 would hold it)",
    ),
    (
        ["generate", "hi", "--temperature", "-1"],
        "temperature is -1.0; it must be a finite number, 0 or above (0 takes the likeliest token; "
        "type --temperature 0.7 for varied text)",
    ),
    (
        ["generate", "hi", "--schedule", "layerwise", "--micro-batches", "2"],
        "2 micro-batches were asked for, but layer-wise has one in flight: "
        "--schedule pipelined --micro-batches 2 has them all",
    ),
    (
        ["generate", "hi", "--plan", "nothere.toml", "--pp", "2", "--dtype", "bfloat16"],
        "the plan file decides on the split, so --stages, --dtype cannot be given beside --plan",
    ),
    (
        ["generate", "hi", "--plan", "nothere.toml", "--tp", "2", "--shares", "2,1", "--sequence"],
        "the plan file decides on the split, so --tp, --shares, --sequence cannot be given beside --plan",
    ),
    (["generate", "hi", "--run", "/proc/nowhere"], "--run /proc/nowhere cannot be made: No such file or directory"),
    (["simulate", "nothere.toml"], "plan file nothere.toml: no such file"),
    (["generate", "hi", "--plan", "nothere.toml"], "plan file nothere.toml: no such file"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[" ".join(arguments) for arguments, _ in CASES])
def test_usage(plait: Plait, arguments: list[str], message: str) -> None:
    made = plait(*arguments)
    assert made.stderr == f"error: {message}\n"
    assert made.stdout == ""
    assert made.returncode == 2


def test_a_plan_of_a_preset_has_no_weights(plait: Plait, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    made = plait("plan", "llama3-8b", "--cluster", "h100", "--gpus", 2, "--prompt", 64, "--max-tokens", 16, "-o", plan)
    assert made.returncode == 0, made.stderr
    made = plait("generate", "hi", "--plan", plan)
    assert (made.returncode, made.stdout) == (2, "")
    assert made.stderr == (
        "error: the plan is for llama3-8b, which is a preset: figures to plan with, without weights to run; give the "
        "model itself with --model (a directory, a .gguf file or a Hugging Face id), or look at the plan with "
        "plait simulate\n"
    )


def test_unknown_options_and_verbs_name_the_nearest(plait: Plait) -> None:
    made = plait("generate", "hi", "--modell", "demo")
    assert "No such option: --modell (Possible options: --model)" in made.stderr
    assert made.returncode == 2
    made = plait("generat", "hi")
    assert "No such command 'generat'. Did you mean 'generate'?" in made.stderr
    assert made.returncode == 2


def test_a_pickled_checkpoint_is_refused_with_the_reason(plait: Plait, tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"anything")
    made = plait("generate", "hi", "--model", file)
    assert made.returncode == 2
    assert "pickle" in made.stderr
    assert made.stdout == ""


def test_a_truncated_file_says_how_much_is_missing(plait: Plait, tmp_path: Path) -> None:
    from plait.weights.source import resolve_model

    whole = resolve_model("demo").path.read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: len(whole) // 2])
    made = plait("generate", "hi", "--model", file)
    assert made.returncode == 2
    assert str(file) in made.stderr
    assert made.stderr.startswith("error: ")


def test_a_hub_id_that_cannot_be_reached_says_what_to_do(plait: Plait) -> None:
    made = plait("generate", "hi", "--model", "nobody/nothing")
    assert made.returncode == 2
    fetching, error = made.stderr.splitlines()
    assert fetching.startswith("fetching nobody/nothing from the Hugging Face hub")
    assert error.startswith("error: nobody/nothing ")
    assert error.endswith(
        "give a directory or a .gguf file that is here, point HF_HOME at a cache that holds it, or try --model demo"
    )
