import json
from types import MappingProxyType

import pytest

from plait.errors import UsageError
from plait.plans.notation import parse_action
from plait.plans.round import Carried, MicroBatch, Row
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Clock, Timeline

WORK = (MicroBatch((Row(0, 0, 0, 64, True), Row(1, 1, 0, 64, False))), MicroBatch((Row(2, 2, 5, 1, True),)))
SPANS = (
    Span(0, parse_action("0:0F0"), 0, 0.0, 0.1),
    Span(0, parse_action("0:0SF0"), 0, 0.1, 0.125, 4096),
    Span(0, parse_action("0:1RF0"), 1, 0.0, 0.125, 0, (Part("wait", 0.0, 0.1), Part("transfer", 0.1, 0.125))),
)
RECORD = RunRecord(
    plan='schedule = "pipelined"\n# Plan – mit Umlaut: ä\r\n',
    stages=(
        StageSummary(0, (0,), (0, 15), "float32", "float32", 1_000_000, 2_000_000),
        StageSummary(1, (1,), (15, 30), "bfloat16"),
    ),
    model={"name": "SmolLM2-135M", "layers": 30},
    rounds=(RoundRecipe(4, WORK, (Carried(3, 0, (0, 1)),), "pipelined", 1), RoundRecipe(5, (), schedule="layerwise")),
    predicted=Timeline("predicted", SPANS, {0: "a", 1: "b"}, {"b": Clock(0.25, 0.001)}),
    measured=Timeline("measured", SPANS[:2], MappingProxyType({0: "a"})),
    result={"requests": [{"tokens": [1, 2], "finish_reason": "stop"}], "measured": {"ttft_s": 0.1}},
)


def test_a_run_that_was_saved_loads_as_it_was(tmp_path):
    place = RECORD.save(tmp_path / "runs" / "first")
    assert sorted(path.name for path in place.iterdir()) == ["measured.json", "plan.toml", "predicted.json", "run.json"]
    assert RunRecord.load(place) == RECORD


def test_its_rounds_are_made_again_with_their_actions(tmp_path):
    rounds = RunRecord.load(RECORD.save(tmp_path / "run")).make_rounds()
    assert rounds == RECORD.make_rounds()
    assert rounds[0].actions[1] == tuple(map(parse_action, ["4:1RF0", "4:1F0", "4:1ST0", "4:1RF1", "4:1F1", "4:1ST1"]))


@pytest.mark.parametrize("absent", ["predicted", "measured"])
def test_either_timeline_may_be_absent(tmp_path, absent):
    record = RunRecord(**{**{name: getattr(RECORD, name) for name in RunRecord.__slots__}, absent: None})
    place = record.save(tmp_path / "run")
    assert not (place / f"{absent}.json").exists()
    assert RunRecord.load(place) == record


def test_saving_over_a_run_replaces_it_whole_and_leaves_nothing_beside_it(tmp_path):
    RECORD.save(tmp_path / "run")
    later = RunRecord("", ())
    later.save(tmp_path / "run")
    assert RunRecord.load(tmp_path / "run") == later
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_save_that_fails_leaves_the_old_run_and_nothing_beside_it(tmp_path):
    RECORD.save(tmp_path / "run")
    with pytest.raises(NotImplementedError) as caught:
        RunRecord("", (), result={"what": parse_action}).save(tmp_path / "run")
    assert str(caught.value).startswith("a run's JSON cannot hold function: <function parse_action")
    assert RunRecord.load(tmp_path / "run") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_saving_into_an_empty_directory_is_fine(tmp_path):
    (tmp_path / "run").mkdir()
    assert RunRecord.load(RECORD.save(tmp_path / "run")) == RECORD


def message(call, *arguments):
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    return str(caught.value)


def test_saving_never_overwrites_what_is_not_a_run(tmp_path):
    (tmp_path / "note").write_text("mine")
    assert message(RECORD.save, tmp_path) == (
        f"cannot save a run to {tmp_path}: the directory holds other files and no run.json; "
        "give an empty or a new directory"
    )
    assert message(RECORD.save, tmp_path / "note") == (
        f"cannot save a run to {tmp_path}/note: a file is there, not a directory; give another name"
    )


def test_no_such_run(tmp_path):
    assert message(RunRecord.load, tmp_path / "run") == (
        f"no such run: {tmp_path}/run (there are no runs in {tmp_path})"
    )
    RECORD.save(tmp_path / "ran")
    assert message(RunRecord.load, tmp_path / "run") == f"no such run: {tmp_path}/run (did you mean 'ran'?)"
    nowhere = tmp_path / "no" / "run"
    assert message(RunRecord.load, nowhere) == f"no such run: {nowhere} (there are no runs in {tmp_path}/no)"


def test_not_a_run(tmp_path):
    assert message(RunRecord.load, tmp_path) == (
        f"{tmp_path} is not a run: it holds no run.json; give the directory that `plait generate` or `plait train` "
        "named"
    )
    (tmp_path / "run.json").write_text('{"format": "tune", "version": 1}')
    assert message(RunRecord.load, tmp_path) == (
        f"{tmp_path} is not a run: its run.json says format 'tune', not 'plait-run'"
    )


def test_another_format_version_is_named_beside_ours(tmp_path):
    (tmp_path / "run.json").write_text('{"format": "plait-run", "version": 7, "stages": "other"}')
    assert message(RunRecord.load, tmp_path) == (
        f"{tmp_path} is a run of format version 7, but this Plait reads version 1; "
        "read it with the Plait that wrote it, or run again"
    )


def test_a_corrupt_file_is_named(tmp_path):
    place = RECORD.save(tmp_path / "run")
    whole = (place / "measured.json").read_bytes()
    (place / "measured.json").write_bytes(whole[:40])
    assert message(RunRecord.load, place) == (
        f"{place}/measured.json is corrupt (40 bytes): Input data was truncated; run again to get a whole one"
    )
    (place / "measured.json").write_bytes(whole)
    (place / "plan.toml").write_bytes(b"\xff")
    assert message(RunRecord.load, place) == (
        f"{place}/plan.toml is corrupt (1 bytes): 'utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte; run again to get a whole one"
    )


def test_a_field_that_is_not_what_it_should_be_is_named(tmp_path):
    place = RECORD.save(tmp_path / "run")
    head = json.loads((place / "run.json").read_text())
    head["stages"][0][0] = "first"
    data = json.dumps(head)
    (place / "run.json").write_text(data)
    assert message(RunRecord.load, place) == (
        f"{place}/run.json is corrupt ({len(data)} bytes): Expected `int`, got `str` - at `$.stages[0][0]`; "
        "run again to get a whole one"
    )


def test_a_missing_file_is_named(tmp_path):
    place = RECORD.save(tmp_path / "run")
    (place / "predicted.json").unlink()
    assert message(RunRecord.load, place) == (
        f"{place} is not whole: predicted.json is missing; run again to get a whole one"
    )
