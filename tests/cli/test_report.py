"""``plait report`` as it is typed: every output, every refusal, and what is left of a run that is not whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import plait
from plait.cli.main import app
from plait.costs.protocol import FixedCosts, LinkCost
from plait.errors import UsageError
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch, Row
from plait.reports.window import RoundRange
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.timeline.timeline import Timeline

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)
LAYOUT = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,))))
runner = CliRunner()


def run_record(rounds: int = 4) -> RunRecord:
    """Two stages, one request; the measured run took twice as long."""
    recipes = tuple(
        RoundRecipe(n, (MicroBatch((Row(0, 0, 0 if n == 0 else 63 + n, 64 if n == 0 else 1, True),)),))
        for n in range(rounds)
    )
    made, carried = [], ()
    for recipe in recipes:
        made.append(make_round(recipe.number, 2, recipe.work, carried))
        carried = made[-1].carried_out
    recipes = tuple(recipe._replace(carried_in=one.carried_in) for recipe, one in zip(recipes, made, strict=True))
    times = [
        simulate(LAYOUT, made, FixedCosts({0: factor, 1: factor}, any_link=LinkCost(1e-4, 1e9)), TINY)
        for factor in (1e-3, 2e-3)
    ]
    stages = tuple(StageSummary(n, one.ranks, one.layers, one.dtype) for n, one in enumerate(LAYOUT.stages))
    plan = dump_plan(Plan("tiny", LAYOUT, "pipelined", 1, 64, 128, 1, "two stages fit"))
    measured = Timeline("measured", times[1].spans, times[1].hosts)
    return RunRecord(plan, stages, {"name": "tiny"}, recipes, times[0], measured)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_record().save(tmp_path_factory.mktemp("runs") / "tiny")


def report(*arguments: object) -> Result:
    return runner.invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "80"})


def refused(*arguments: object) -> str:
    """The words of a refusal, exit 2."""
    found = report(*arguments)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    return found.stderr.strip()


def test_without_an_option_the_text_is_printed_and_the_page_named(run: Path) -> None:
    found = report(run)
    assert found.exit_code == 0, found.stderr
    assert found.stdout.startswith("tiny: pp 2, pipelined, 1 micro-batch\n")
    assert "Why this plan\n  - two stages fit\n" in found.stdout
    assert found.stderr == f"plait report {run} -o report.html draws this as a page\n"


def test_all_outputs_in_one_call(run: Path, tmp_path: Path) -> None:
    names = {"-o": "r.html", "--perfetto": "t.json", "--png": "p.png", "--svg": "p.svg"}
    options = [each for option, name in names.items() for each in (option, tmp_path / name)]
    found = report(run, *options)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == ""
    assert found.stderr.splitlines() == [
        f"page written to {tmp_path / 'r.html'}",
        f"trace written to {tmp_path / 't.json'}",
        f"picture written to {tmp_path / 'p.png'}",
        f"picture written to {tmp_path / 'p.svg'}",
    ]
    assert (tmp_path / "r.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["title"] == "tiny: pp 2, pipelined, 1 micro-batch"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_text_beside_a_file_and_over_an_old_one(run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("old")
    found = report(run, "--perfetto", tmp_path / "t.json", "--text")
    assert found.stdout == report(run).stdout
    assert (tmp_path / "t.json").read_text() != "old"


def test_json_holds_what_the_text_says(run: Path) -> None:
    values = json.loads(report(run, "--json").stdout)
    assert values["measured"]["makespan_s"] > values["predicted"]["makespan_s"]
    links = {one["name"]: one for one in values["links"]}
    assert sum(one["measured"]["sent_bytes"] for one in links.values()) == values["measured"]["comm_bytes"]
    assert set(links) == {"0→1", "1→0"}
    path = values["critical_path"]["measured"]
    assert sum(path["seconds"].values()) == pytest.approx(values["measured"]["makespan_s"])
    assert path["spans"][0] == {"action": "0:0F0", "rank": 0}
    assert [one["stage"] for one in values["sources"]] == [0, 1]
    assert (values["reasons"], values["lost"], values["missing"]) == (["two stages fit"], [], [])


def test_rounds(run: Path) -> None:
    assert "Shown: round 2 of 4" in report(run, "--rounds", "2").stdout
    assert refused(run, "--rounds", "9") == (
        "error: the run has none of the rounds 9:10: it has rounds 0 to 3; '3:' shows the last, '0:' all"
    )
    assert refused(run, "--rounds", "x") == (
        "error: 'x' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4"
    )


def test_what_is_left_of_a_run_is_drawn(tmp_path: Path) -> None:
    place = run_record().save(tmp_path / "run")
    (place / "measured.json").unlink()
    found = report(place, "-o", tmp_path / "r.html", "--text")
    assert found.exit_code == 0, found.stderr
    tail = "What is missing\n  - measured.json is missing: nothing is known of what was measured.\n"
    assert found.stdout.endswith(tail)
    assert "measured.json is missing" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_what_is_no_run(run: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere") == (
        f"error: no such run: {tmp_path}/nowhere (there are no runs in {tmp_path})"
    )
    (tmp_path / "notes.md").write_text("")
    assert refused(tmp_path / "notes.md") == (
        f"error: {tmp_path}/notes.md is neither a run nor a plan: give the directory that `plait generate` or "
        "`plait train` named, or the plan.toml that `plait plan -o` wrote"
    )
    assert refused(run / "run.json") == (
        f"error: {run}/run.json is a file of a run: give the run's directory, plait report {run}"
    )
    (tmp_path / "plan.toml").write_text("plait = 9\n")
    assert refused(tmp_path / "plan.toml") == (
        f"error: plan file {tmp_path}/plan.toml has format 9, but this version reads plait = 1"
    )


def test_files_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"  # not even the run is looked for
    assert refused(nowhere, "-o", tmp_path) == (
        f"error: -o {tmp_path} is a directory: give a file in it, as in {tmp_path}/report.html"
    )
    assert refused(nowhere, "-o", tmp_path / "r.pdf") == (
        f"error: -o {tmp_path}/r.pdf has the ending '.pdf', but what is written there is .html: "
        f"type -o {tmp_path}/r.html"
    )
    still = tmp_path / "still"
    assert refused(nowhere, "--png", still) == (
        f"error: --png {still} has no ending, but what is written there is .png: type --png {still}.png"
    )
    assert refused(nowhere, "--perfetto", tmp_path / "a" / "t.json") == (
        f"error: --perfetto {tmp_path}/a/t.json cannot be written: there is no directory {tmp_path}/a "
        f"(mkdir -p {tmp_path}/a makes it)"
    )


@pytest.mark.parametrize("name", ["run.json", "predicted.json", "measured.json", "plan.toml", "steps.jsonl"])
def test_the_runs_own_files_are_not_written_over(run: Path, tmp_path: Path, name: str) -> None:
    """Also by a link, from within, and where the plan of the run is what is shown."""
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    link = tmp_path / "trace.json"
    link.symlink_to(run / name)
    said = f"is a file of the run {run} and would be lost: give another file, as in --perfetto report.json"
    assert refused(run, "--perfetto", link) == f"error: --perfetto {link} {said}"
    if name.endswith(".json"):
        for given in (run, run / ".." / run.name, run / "plan.toml"):
            assert refused(given, "--perfetto", run / name) == f"error: --perfetto {run / name} {said}"
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    if name == "run.json":  # nor those of another run
        assert refused(run_record().save(tmp_path / "other"), "--perfetto", run / name).startswith("error: --perfetto ")


def test_the_plan_that_is_read_is_not_written_over(tmp_path: Path) -> None:
    plan, link = tmp_path / "p.toml", tmp_path / "page.html"
    plan.write_text("plait = 9")
    link.symlink_to(plan)
    assert refused(plan, "-o", link) == (
        f"error: -o {link} is the plan that is read, {plan}, and would be lost: give another file, as in -o report.html"
    )
    assert plan.read_text() == "plait = 9"


def test_one_file_for_two_outputs_and_a_name_without_letters(run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").symlink_to(tmp_path / "r.html")
    assert refused(run, "-o", tmp_path / "r.html", "--perfetto", tmp_path / "t.json") == (
        f"error: --perfetto {tmp_path}/t.json is named twice, also as -o: give each its own file"
    )
    assert refused(run, "-o", "") == "error: -o names no file: type -o report.html"


def test_rounds_are_looked_at_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    said = "error: the run has none of the rounds 99:: it has rounds 0 to 3; '3:' shows the last, '0:' all"
    page = tmp_path / "r.html"
    for options in (["-o", page], ["-o", page, "--png", tmp_path / "p.png"], ["--json"], ["--text"]):
        assert refused(run, "--rounds", "99:", *options) == said
    with pytest.raises(UsageError, match="none of the rounds"):
        plait.report(run, page=page, rounds=RoundRange(99))
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_no_timeline_is_refused_before_the_page_is_written(tmp_path: Path) -> None:
    place = run_record().save(tmp_path / "run")
    for name in ("run.json", "predicted.json", "measured.json"):
        (place / name).unlink()
    with pytest.raises(UsageError) as error:
        plait.report(place, page=tmp_path / "r.html", perfetto=tmp_path / "t.json")
    assert str(error.value) == "nothing to write for Perfetto: there is neither a predicted nor a measured timeline"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def broken(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The text of a run of which a file was changed; every other output is made as well."""
    place = run_record().save(tmp_path / "run")
    values = json.loads((place / name).read_text())
    change(values)
    (place / name).write_text(json.dumps(values, separators=(",", ":")))
    names = {"-o": "r.html", "--perfetto": "t.json", "--svg": "p.svg"}
    found = report(place, "--text", *(each for option, file in names.items() for each in (option, tmp_path / file)))
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


@pytest.mark.parametrize(("at", "value"), [(3, 1e300), (3, -1e300), (4, 1e300), (4, float("nan")), (2, 10**9), (2, -1)])
def test_a_span_that_cannot_be_is_left_out(tmp_path: Path, at: int, value: float) -> None:
    """Time and rank of another universe: everything is drawn of the others, and that is said."""

    def change(values: dict[str, Any]) -> None:
        values["spans"][3][at] = value

    said = broken(tmp_path, "measured.json", change)
    if value != value:
        assert "measured.json is damaged after 3 spans" in said
    else:
        assert "measured.json: 1 span that cannot be is left out (one is " in said
    assert "predicted but not measured" in said


def test_text_in_the_place_of_figures_is_left_out(tmp_path: Path) -> None:
    keys = ("predicted", "measured", "job", "requests", "steps", "kept_steps", "copies", "task", "note")
    said = broken(tmp_path, "run.json", lambda values: values.update(result=dict.fromkeys(keys, "x")))
    assert (
        "run.json's result has something else than a run writes under predicted, measured, job, requests, steps, "
        "kept_steps, copies: left out." in said
    )
    assert "figures x" in said


def test_no_stages(tmp_path: Path) -> None:
    said = broken(tmp_path, "run.json", lambda values: values.update(stages=[]))
    assert "run.json names no stages: they are told by the plan and the timelines, as far as these do." in said
    assert "Stage 1: layers 2 to 3" in said


def test_no_files(tmp_path: Path) -> None:
    place = run_record().save(tmp_path / "run")
    values = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**values, "files": []}))
    tail = report(place).stdout.split("What is missing\n")[1]
    assert " ".join(tail.split()) == (
        "- predicted.json is there, but run.json does not name it: it is left out. "
        "- measured.json is there, but run.json does not name it: it is left out."
    )


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, who runs some tests, may write anywhere
    assert refused(tmp_path / "nowhere", "-o", tmp_path / "r.html") == (
        f"error: -o {tmp_path}/r.html cannot be written: you may not write there"
    )


def test_a_plan_that_nobody_ran(tmp_path: Path) -> None:
    """Simulated, and searched again; without the search that is said."""
    path = tmp_path / "plan.toml"
    made = runner.invoke(
        app, ["plan", "gpt2", "--cluster", "home", "--prompt", "64", "--max-tokens", "8", "-o", str(path)]
    )
    assert made.exit_code == 0, made.stderr
    values = json.loads(report(path, "--json").stdout)
    assert values["measured"] is None
    assert values["predicted"]["time_per_token_s"] > 0
    assert len(values["lost"]) > 0
    assert values["missing"] == ["Nothing was measured: all figures are predicted."]
    quick = json.loads(report(path, "--json", "--no-search").stdout)
    assert quick["lost"] == []
    assert quick["missing"][-1] == "Why other ways lose is not told: no search was made, as was asked for."


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "dp", "pp", "tp"),
    [
        ("gpt2", 8, 16, 4, 2, 1),
        pytest.param("gpt-1t", 3072, 3072, 6, 64, 8, marks=pytest.mark.soak),
    ],
)
def test_a_plan_of_training_by_position(
    tmp_path: Path, model: str, gpus: int, batch: int, dp: int, pp: int, tp: int
) -> None:
    """One rank stands for all of its position, and the bytes are those of all."""
    path = tmp_path / "plan.toml"
    axes = [
        "--dp",
        dp,
        "--pp",
        pp,
        "--tp",
        tp,
        "--schedule",
        "1f1b",
        "--micro-batch",
        batch // 64 // dp or 1,
        "--top",
        1,
    ]
    job = ["--cluster", "a100", "--gpus", gpus, "--task", "train", "--batch", batch]
    made = runner.invoke(app, ["plan", model, *map(str, (*job, *axes)), "-o", str(path)])
    assert made.exit_code == 0, made.stderr
    found = report(path, "--json", "--no-search", "--perfetto", tmp_path / "t.json")
    assert found.exit_code == 0, found.stderr
    values = json.loads(found.stdout)
    assert values["task"] == "train"
    assert [len(stage["ranks"]) for stage in values["predicted"]["stages"]] == [dp * tp] * pp
    sent = sum(one["predicted"]["sent_bytes"] for one in values["links"])
    assert sent == values["predicted"]["comm_bytes"] > 0
    totals = json.loads((tmp_path / "t.json").read_text())["otherData"]["totals"]["predicted"]
    assert totals["spans"] > 0
    text = report(path, "--no-search").stdout
    assert f"each row is one rank, which stands for {dp * tp}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_function_does_the_same(run: Path, tmp_path: Path) -> None:
    view = plait.report(run, perfetto=tmp_path / "t.json", svg=tmp_path / "p.svg")
    assert view.title == "tiny: pp 2, pipelined, 1 micro-batch"
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", "p.svg"}
    same = plait.report(RunRecord.load(run), perfetto=tmp_path / "u.json")
    assert same.figures == view.figures
    assert (tmp_path / "u.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    with pytest.raises(UsageError) as error:
        plait.report(run, png=tmp_path / "one.png", page=tmp_path / "none" / "r.html")
    folder = tmp_path / "none"
    assert str(error.value) == (
        f"-o {folder}/r.html cannot be written: there is no directory {folder} (mkdir -p {folder} makes it)"
    )
    assert not (tmp_path / "one.png").exists()
