"""``plait plan`` and ``plait simulate`` of what it writes: answers, plan files, and whole messages for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from plait.cli.main import app
from plait.cli.plan import _Generation, _job
from plait.costs.protocol import FixedCosts
from plait.generation.generate import generate
from plait.generation.launch import ThreadRanks
from plait.generation.planning import Options
from plait.plans.file import load_plan, load_plan_file
from plait.spec.presets import cluster_preset, model_preset, preset_names

Run = Callable[..., Result]
CANDIDATE = {"split", "cut", "devices", "schedule", "micro_batches", "recompute", "zero", "predicted", "memory"}
LOCAL = """
[[hosts]]
name = "localhost"
devices = 2
memory_gib = 6
gflops = { float32 = 50 }
memory_bandwidth_gb_per_s = 10

[network]
within_host = { latency_us = 10, bandwidth_gb_per_s = 2 }
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def answer(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def test_the_json_of_a_training_plan(run: Run) -> None:
    done = run("plan", "gpt-18.4b", "--cluster", "a100", "--gpus", 32, "--task", "train", "--batch", 64, "--json")
    values = answer(done)
    assert {"chosen", "candidates", "rejected", "break_even", "objective", "reason"} == set(values)
    assert values["objective"] == "step"
    assert values["candidates"][0] == values["chosen"]
    for candidate in values["candidates"]:
        assert set(candidate) >= CANDIDATE
        assert set(candidate["split"]) == {"dp", "pp", "tp", "ep"}
        assert candidate["cut"][0][0] == 0
        assert candidate["cut"][-1][1] == 40
        assert candidate["predicted"]["step_s"] >= values["chosen"]["predicted"]["step_s"]
        assert all(set(one) == {"device", "need_bytes", "free_bytes"} for one in candidate["memory"])
        assert all(one["need_bytes"] <= one["free_bytes"] for one in candidate["memory"])
    for one in values["rejected"]:
        assert set(one) == {"split", "count", "reason", "need", "have"}
        assert one["need"] > one["have"]


def test_the_json_of_a_generation_plan(run: Run) -> None:
    values = answer(run("plan", "llama3-8b", "--cluster", "home", "--json"))
    assert values["objective"] == "latency"
    assert values["chosen"]["predicted"]["time_per_token_s"] > 0
    assert {"one device", "pipeline", "tensor"} <= {one["kind"] for one in values["candidates"]}
    assert all(one["loses"] for one in values["candidates"][1:])


def test_several_users_are_the_users_that_there_are(run: Run) -> None:
    choice = answer(run("plan", "qwen3-0.6b", "--cluster", "macs", "--users", 8, "--json"))
    assert choice["objective"] == "latency"
    for candidate in choice["candidates"]:  # eight users' tokens in each token's time
        seconds, rate = candidate["predicted"]["time_per_token_s"], candidate["predicted"]["decode_tokens_per_s"]
        assert seconds * rate == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("objective", ["latency", "throughput", "ttft"])
def test_every_objective_has_its_own_winner_first(run: Run, objective: str) -> None:
    done = run("plan", "qwen3-4b", "--cluster", "macs", "--users", 4, "--objective", objective, "--json")
    key = {"latency": "time_per_token_s", "throughput": "decode_tokens_per_s", "ttft": "ttft_s"}[objective]
    values = [one["predicted"][key] for one in answer(done)["candidates"]]
    best = max(values) if objective == "throughput" else min(values)
    assert values[0] == pytest.approx(best)


def test_a_training_plan_is_simulated_as_it_was_predicted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    train = ("--cluster", "a100", "--gpus", 32, "--task", "train", "--batch", 64)
    done = run("plan", "gpt-18.4b", *train, "--schedule", "1f1b", "--pp", 4, "--json", "-o", path)
    chosen = answer(done)["chosen"]
    file = load_plan_file(path)
    assert file.cluster == cluster_preset("a100", 32)
    assert [list(cut) for cut in file.plan.layout.cut] == chosen["cut"]
    values = answer(run("simulate", path, "--json", "--actions"))
    assert values["predicted"]["step_s"] == pytest.approx(chosen["predicted"]["step_s"], rel=0.03)
    assert values["predicted"]["peak_bytes"] == pytest.approx(chosen["predicted"]["peak_bytes"], rel=0.05)
    assert [stage["layers"] for stage in values["stages"]] == chosen["cut"]
    assert values["actions"][1].startswith("  0: 0F0 ")
    page = run("simulate", path)
    assert page.exit_code == 0, page.stderr
    assert "time of a step" in page.stdout
    assert "forward: micro-batches 0 to" in page.stdout
    assert max(map(len, page.stdout.splitlines())) <= 100


def test_a_training_plan_on_unequal_machines(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    train = ("--cluster", "macs", "--task", "train", "--batch", 16, "--pp", 2)
    chosen = answer(run("plan", "qwen3-0.6b", *train, "--json", "-o", path))["chosen"]
    predicted = answer(run("simulate", path, "--json"))["predicted"]
    assert predicted["step_s"] == pytest.approx(chosen["predicted"]["step_s"], rel=0.05)


def test_a_generation_plan_is_simulated_on_its_own_cluster(run: Run, tmp_path: Path) -> None:
    """One user's decoding is the same in the plan and in its simulation; nothing of this machine is asked."""
    path = tmp_path / "plan.toml"
    generate = ("--cluster", "home", "--weights", "q4_0", "--prompt", 64, "--max-tokens", 16)
    chosen = answer(run("plan", "llama3-70b", *generate, "--json", "-o", path))["chosen"]
    values = answer(run("simulate", path, "--json", "--prompt", 64, "--max-tokens", 16))
    assert values["predicted"]["time_per_token_s"] == pytest.approx(chosen["predicted"]["time_per_token_s"], rel=0.02)
    page = run("simulate", path, "--actions")
    assert "0F0" in page.stdout


def test_machines_without_16_bit_figures_train_in_float32(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    train = ("--cluster", "raspberry-pi-5", "--task", "train", "--batch", 4, "--seq", 256)
    answer(run("plan", "smollm2-135m", *train, "--json", "-o", path))
    assert {stage.dtype for stage in load_plan_file(path).plan.layout.stages} == {"float32"}


def test_replicas_are_simulated_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert run("plan", "qwen3-8b", "--cluster", "h100", "--gpus", 4, "--users", 4, "--dp", 4, "-o", path).exit_code == 0
    page = run("simulate", path)
    assert page.exit_code == 0, page.stderr
    assert page.stdout.startswith(
        "Simulated: 4 requests of 512 tokens, answers of 256, by 4 replicas. One of them is shown; tokens a second "
        "and bytes are of all.\n"
    )
    assert answer(run("simulate", path, "--json"))["predicted"]["replicas"] == 4


HIDDEN_BYTES, TOKEN_BYTES = 4096 * 2, 8
SAME = {
    # two all-reduces a layer: of a prompt 3/2 of the activations by each of 4 ranks, of a token everything to 3 others
    "a tensor group": (
        ("--cluster", "rtx-4090", "--gpus", 4),
        4 * 2 * 32 * HIDDEN_BYTES * (512 * 1.5 + 255 * 3),
    ),
    # three hand-overs, and the tokens back; every one of 4 micro-batches holds all users
    "many users": (
        ("--cluster", "home", "--users", 8, "--pp", 4, "--objective", "throughput"),
        32 * (3 * (512 + 255) * HIDDEN_BYTES + 256 * TOKEN_BYTES),
    ),
    "uneven users": (
        ("--cluster", "rtx-4090", "--gpus", 4, "--dp", 4, "--users", 5, "--objective", "latency"),
        0,
    ),
}


@pytest.mark.parametrize(("asked", "sent_bytes"), SAME.values(), ids=SAME)
def test_a_generation_plan_is_simulated_as_it_was_predicted(
    run: Run, tmp_path: Path, asked: tuple[object, ...], sent_bytes: float
) -> None:
    """Without a word about the job, which the file holds: steady decoding, memory, and what the ranks send."""
    path = tmp_path / "plan.toml"
    planned = answer(run("plan", "llama3-8b", *asked, "--json", "-o", path))["chosen"]["predicted"]
    values = answer(run("simulate", path, "--json"))
    predicted = values["predicted"]
    assert (values["job"]["prompt_tokens"], values["job"]["max_tokens"]) == (512, 256)
    assert predicted["decode_tokens_per_s"] == pytest.approx(planned["decode_tokens_per_s"], rel=0.01)
    assert predicted["peak_bytes"] == planned["peak_bytes"]
    assert predicted["comm_bytes"] == pytest.approx(sent_bytes, rel=1e-3)
    assert sum(stage["comm_bytes"] for stage in predicted["stages"]) == pytest.approx(predicted["comm_bytes"])


def test_other_lengths_than_the_plans_job(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    made = ("qwen3-0.6b", "--cluster", "macs", "--prompt", 64, "--max-tokens", 16, "--context", 128, "--users", 3)
    assert run("plan", *made, "--objective", "latency", "-o", path).exit_code == 0
    asked = [answer(run("simulate", path, "--json", *given))["job"] for given in ((), ("--prompt", 120, "--users", 2))]
    assert asked[0] == {"prompt_tokens": 64, "max_tokens": 16, "users": 3}
    assert asked[1] == {"prompt_tokens": 120, "max_tokens": 8, "users": 2}


def test_where_no_plan_can_be_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the search, which may take a while."""

    def searched(*arguments: object, **options: object) -> None:
        raise AssertionError("the search ran")

    monkeypatch.setattr("plait.planner.plan.plan", searched)
    missing = tmp_path / "not" / "there"
    done = run("plan", "gpt2", "--cluster", "h100", "-o", missing / "plan.toml")
    assert done.stderr == (
        f"error: -o {missing / 'plan.toml'} cannot be written: there is no directory {missing} (mkdir -p {missing} "
        "makes it)\n"
    )
    assert done.exit_code == 2
    done = run("plan", "gpt2", "--cluster", "h100", "-o", tmp_path)
    assert done.stderr == f"error: -o {tmp_path} is a directory: give a file in it, as in -o {tmp_path / 'plan.toml'}\n"
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "lengths"),
    [
        ((), (512, 256)),
        (("--context", 300), (200, 100)),
        (("--context", 300, "--prompt", 30), (30, 256)),
        (("--context", 300, "--max-tokens", 280), (20, 280)),
        (("--prompt", 900), (900, 124)),
    ],
)
def test_lengths_that_nobody_gave_fit_the_context(asked: tuple[object, ...], lengths: tuple[int, int]) -> None:
    options = {str(asked[i]).removeprefix("--").replace("-", "_"): asked[i + 1] for i in range(0, len(asked), 2)}
    given = _Generation(*(options.get(name) for name in ("prompt", "max_tokens", "users", "context")))  # type: ignore[arg-type]
    job = _job(model_preset("gpt2"), given, None, None)  # made for 1,024 positions
    assert (job.prompt_tokens, job.max_tokens) == lengths


def test_the_page(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    done = run("plan", "llama3-70b", "--cluster", "home", "--weights", "q4_0", "-o", path)
    assert done.exit_code == 0, done.stderr
    for words in ("Chosen: ", "time per token", "memory needed", "The best of every other kind", "About the figures"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert done.stderr.replace("\n", "") == f"plan written to {path} (plait simulate {path})"


def test_the_list(run: Run) -> None:
    page = run("plan", "--list")
    names = answer(run("plan", "--list", "--json"))
    assert set(names) == {"models", "clusters", "devices", "links"}
    for sort, presets in preset_names().items():
        assert names[sort] == presets
        assert all(f"  {name}" in page.stdout for name in presets)


def test_a_model_by_its_config(run: Run, tmp_path: Path) -> None:
    """A config.json alone is enough: weights are not looked for."""
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in (tmp_path, tmp_path / "config.json"):
        out = tmp_path / "plan.toml"
        values = answer(run("plan", name, "--cluster", "laptops", "--json", "-o", out))
        assert values["chosen"]["cut"][-1][1] == 6
        assert load_plan(out).model == str(name)


def test_a_cluster_file_and_its_first_devices(run: Run, tmp_path: Path) -> None:
    (tmp_path / "local.toml").write_text(LOCAL)
    values = answer(run("plan", "smollm2-135m", "--cluster", tmp_path / "local.toml", "--gpus", 1, "--json"))
    assert values["chosen"]["devices"] == [["localhost.0"]]
    assert {one["kind"] for one in values["candidates"]} == {"one device"}


HINT = "give a preset (plait plan --list), demo, a config.json, a model's directory, a .gguf file or a Hugging Face id"
ERRORS = [
    (["plan"], "no model was given: type one, as in plait plan llama3-70b, or plait plan --list"),
    (
        ["plan", "gpt2"],
        "no cluster was given: type --cluster and a cluster file or a preset, as in --cluster h100 --gpus 16; "
        "plait plan --list shows the presets",
    ),
    (
        ["plan", "llama3-80b", "--cluster", "h100"],
        f"unknown model 'llama3-80b' (did you mean 'llama3-8b'?); {HINT} (org/name)",
    ),
    (
        ["plan", "gpt2", "--cluster", "h1000"],
        "unknown cluster preset 'h1000': did you mean 'h100'? (plait plan --list shows all of them)",
    ),
    (["plan", "gpt2", "--cluster", "nothere.toml"], "cluster file nothere.toml: no such file"),
    (
        ["plan", "gpt2", "--cluster", "h100", "--gpus", "12"],
        "--gpus 12 was asked for, but hosts of cluster preset 'h100' have 8 devices: 4 would be left over "
        "(--gpus 8 or 16 fills hosts)",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--task", "train"],
        "training needs --batch: sequences of one step over all devices, as in --batch 512",
    ),
    (["plan", "gpt2", "--cluster", "h100", "--batch", "8"], "--batch is of training: --task train"),
    (
        ["plan", "gpt2", "--cluster", "h100", "--batch", "8", "--seq", "8"],
        "--batch and --seq are of training: --task train",
    ),
    (["plan", "gpt2", "--cluster", "h100", "--virtual", "2"], "--virtual is of training: --task train"),
    (
        ["plan", "gpt2", "--cluster", "h100", "--task", "train", "--batch", "8", "--users", "2", "--max-tokens", "5"],
        "--max-tokens and --users are of generation: --task generate",
    ),
    (
        ["plan", "mixtral-8x7b", "--cluster", "h100", "--ep", "4"],
        "--ep 4 was asked for, but generation does not split experts yet: --ep 1",
    ),
    (["plan", "gpt2", "--cluster", "h100", "--tp", "0"], "--tp is 0, but must be at least 1"),
    (
        ["plan", "gpt2", "--cluster", "h100", "--objective", "latencies"],
        "unknown objective 'latencies': did you mean 'latency'?",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--objective", "step"],
        "objective 'step' does not go with --task generate: --objective latency, throughput or ttft does",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--task", "train", "--batch", "8", "--objective", "ttft"],
        "objective 'ttft' does not go with --task train: --objective step does",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--task", "train", "--batch", "8", "--weights", "q4_0"],
        "weights 'q4_0' were asked for, but training stores weights in bfloat16",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--context", "100", "--prompt", "512"],
        "job: context is 100 positions, and a prompt of 512 and an answer of 1 tokens need 513: 413 more",
    ),
    (
        ["plan", "gpt2", "--cluster", "h100", "--prompt", "1000", "--max-tokens", "256"],
        "context is 1256 positions, but gpt2 was made for at most 1024: 232 too many",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[" ".join(arguments) for arguments, _ in ERRORS])
def test_usage(run: Run, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.stderr == f"error: {message}\n"
    assert done.stdout == ""
    assert done.exit_code == 2


def test_options_that_do_not_go_with_a_training_plan(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    train = ("--cluster", "a100", "--gpus", 1, "--task", "train", "--batch", 8)
    assert run("plan", "gpt2", *train, "--seq", 512, "-o", path).exit_code == 0
    done = run("simulate", path, "--prompt", 5, "--users", 2)
    assert done.stderr == "error: the plan is of training, and --prompt, --users are of generation\n"
    done = run("generate", "hi", "--plan", path)
    assert done.stderr == (
        f"error: plan file {path} is of training, and one of generation is needed (plait plan … --task generate)\n"
    )


def test_what_cannot_be_run_yet_is_refused_and_what_can_is_run(run: Run, tmp_path: Path) -> None:
    """Stages and tensor groups over the devices of this host run as planned; replicas and another host do not."""
    (tmp_path / "local.toml").write_text(LOCAL)
    plan = tmp_path / "plan.toml"
    small = ("--prompt", 48, "--max-tokens", 12, "-o", plan)
    assert run("plan", "demo", "--cluster", tmp_path / "local.toml", "--dp", 2, *small).exit_code == 0
    done = run("generate", "hi", "--plan", plan)
    assert done.exit_code == 2
    assert done.stderr.endswith(
        "the plan splits along dp = 2, but only pp and tp can be run yet: plan again with --dp 1, or look at this plan "
        "with plait simulate\n"
    )
    assert run("plan", "demo", "--cluster", "desktops", "--pp", 2, *small).exit_code == 0
    assert "the plan is for 2 hosts (node-0, node-1)" in run("generate", "hi", "--plan", plan).stderr
    assert run("plan", "demo", "--cluster", "h100", "--gpus", 1, *small).exit_code == 0
    assert "the plan is for host 'node-0', and this machine is" in run("generate", "hi", "--plan", plan).stderr

    for split in (("--pp", 2), ("--tp", 2)):
        assert run("plan", "demo", "--cluster", tmp_path / "local.toml", *split, *small).exit_code == 0
        answers_as_planned(plan, tmp_path / f"run{split[0]}")


def answers_as_planned(plan: Path, place: Path) -> None:
    """The demo model answers, split as the plan says."""
    # ranks as threads, and no prediction: this machine would be measured for it
    options = Options(plan=plan, max_tokens=9)
    made = generate(
        ["What is the capital of France?"],
        options,
        costs_for=lambda plan, spec: FixedCosts(),
        launch=ThreadRanks,
        run=place,
    )
    assert made.texts == ("The capital of France is Paris.",)
    cut = [list(cut) for cut in load_plan(plan).layout.cut]
    assert [stage["layers"] for stage in made.json["plan"]["stages"]] == cut
