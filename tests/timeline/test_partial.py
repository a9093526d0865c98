"""Half a run: what is there is read, and what is not is said."""

from __future__ import annotations

import pytest

from plait.errors import UsageError
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.plans.plan import Plan
from plait.timeline.impossible import without_impossible
from plait.timeline.partial import load_partial
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.span import Part, Span
from plait.timeline.timeline import MemoryTrack, Timeline

SPANS = (
    Span(0, parse_action("0:0F0"), 0, 0.0, 0.1),
    Span(0, parse_action("0:0SF0"), 0, 0.1, 0.125, 4096),
    Span(0, parse_action("0:1RF0"), 1, 0.0, 0.125, 0, (Part("wait", 0.0, 0.1), Part("transfer", 0.1, 0.125))),
)
LAYOUT = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,))))
PLAN = dump_plan(Plan("tiny", LAYOUT, "pipelined", 1, 64, 128, 1, "the only one"))
RECORD = RunRecord(
    plan=PLAN,
    stages=(
        StageSummary(0, (0,), (0, 2), "float32", "float32", 10, 20),
        StageSummary(1, (1,), (2, 4), "float32", "float32"),
    ),
    model={"name": "tiny"},
    predicted=Timeline("predicted", SPANS, {0: "a", 1: "a"}, memory={0: MemoryTrack((0.0,), (7,))}),
    measured=Timeline("measured", SPANS, {0: "a", 1: "a"}),
    result={"measured": {"ttft_s": 0.1}},
)


@pytest.fixture
def place(tmp_path):
    return RECORD.save(tmp_path / "run")


def message(path):
    with pytest.raises(UsageError) as error:
        load_partial(path)
    return str(error.value)


def test_a_whole_run_misses_nothing(place):
    assert load_partial(place) == (RECORD, ())


def test_a_timeline_that_the_run_never_had_is_not_missed(tmp_path):
    record = RunRecord(PLAN, RECORD.stages, predicted=RECORD.predicted)
    assert load_partial(record.save(tmp_path / "run")) == (record, ())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plan.toml", "plan.toml is missing: the plan, and why it was chosen, is not known."),
        ("predicted.json", "predicted.json is missing: nothing is known of what was predicted."),
        ("measured.json", "measured.json is missing: nothing is known of what was measured."),
    ],
)
def test_a_missing_file_is_said_and_the_rest_is_read(place, name, said):
    (place / name).unlink()
    record, missing = load_partial(place)
    assert missing == (said,)
    assert record.result == RECORD.result
    assert record.plan == ("" if name == "plan.toml" else PLAN)
    assert (record.predicted is None) == (name == "predicted.json")
    assert (record.measured is None) == (name == "measured.json")


def test_without_its_head_stages_are_the_plans(place):
    (place / "run.json").unlink()
    record, missing = load_partial(place)
    assert missing == ("run.json is missing: what the run was asked for and what came of it is not known.",)
    assert record.stages == tuple(one._replace(weight_bytes=None, peak_bytes=None) for one in RECORD.stages)
    assert (record.predicted, record.measured) == (RECORD.predicted, RECORD.measured)


def test_a_head_cut_short_is_said(place):
    (place / "run.json").write_text('{"format": "plait-run", "ver')
    record, missing = load_partial(place)
    assert missing == (
        "run.json is damaged (28 bytes: Input data was truncated): "
        "what the run was asked for and what came of it is not known.",
    )
    assert record.measured == RECORD.measured


def test_a_timeline_cut_short_keeps_the_spans_before_the_cut(place):
    data = (place / "measured.json").read_bytes()
    (place / "measured.json").write_bytes(data[: data.index(b'"RF"')])
    record, missing = load_partial(place)
    assert missing == (
        "measured.json is damaged after 2 spans (Input data was truncated): "
        "what stands before that is shown, and no more.",
    )
    assert record.measured == Timeline("measured", SPANS[:2])
    assert record.predicted == RECORD.predicted


@pytest.mark.parametrize("share", [x / 20 for x in range(20)])
def test_cut_anywhere_a_timeline_is_a_beginning_of_itself(place, share):
    data = (place / "measured.json").read_bytes()
    (place / "measured.json").write_bytes(data[: int(len(data) * share)])
    record, missing = load_partial(place)
    assert len(missing) == 1
    if record.measured is not None:
        assert record.measured.spans == SPANS[: len(record.measured.spans)]


def test_a_timeline_without_a_whole_span_is_left_out(place):
    (place / "predicted.json").write_bytes(b'{"source":"predicted","spans":[[0,[0,')
    record, missing = load_partial(place)
    assert record.predicted is None
    assert missing == (
        "predicted.json is damaged (37 bytes: Input data was truncated): nothing is known of what was predicted.",
    )


def test_a_timeline_under_another_name_is_left_out(place):
    (place / "measured.json").write_bytes((place / "predicted.json").read_bytes())
    record, missing = load_partial(place)
    assert record.measured is None
    assert missing == ("measured.json says that it was predicted: it is left out.",)


def test_a_plan_that_is_no_text_is_said(place):
    (place / "plan.toml").write_bytes(b"\xff\xfe")
    record, missing = load_partial(place)
    assert record.plan == ""
    assert missing == (
        "plan.toml is damaged (2 bytes: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte): "
        "the plan, and why it was chosen, is not known.",
    )


@pytest.mark.parametrize("name", ["run.json", "predicted.json", "plan.toml"])
def test_brackets_without_an_end_are_damage(place, name):
    (place / name).write_text('{"format": ' * 200_000 if name != "plan.toml" else "a = " + "[" * 200_000)
    record, missing = load_partial(place)
    assert record.measured == RECORD.measured
    assert [said.split(" ")[:3] for said in missing] == ([] if name == "plan.toml" else [[name, "is", "damaged"]])


def test_an_empty_plan_is_said(place):
    (place / "plan.toml").write_text(" \n")
    assert load_partial(place).missing == ("plan.toml is empty: the plan, and why it was chosen, is not known.",)


def test_what_cannot_be_is_left_out_and_said():
    far = SPANS[0]._replace(end_s=1e300)
    inside = SPANS[2]._replace(parts=(Part("wait", 0.0, float("nan")),))
    nobody = SPANS[1]._replace(rank=10**9)
    round_ = SPANS[1]._replace(action=SPANS[1].action._replace(round=2**40))
    memory = {0: MemoryTrack((0.0,), (7,)), 1: MemoryTrack((0.0, 1.0), (7,)), 2: MemoryTrack((1e300,), (7,))}
    missing: list[str] = []
    timeline = Timeline("measured", (far, *SPANS, inside, nobody, round_), memory=memory)
    found = without_impossible(timeline, missing)
    assert found == Timeline("measured", SPANS, memory={0: memory[0]})
    assert missing == [
        "measured.json: 4 spans that cannot be are left out (one is from 0 to 1e+300 s).",
        "measured.json: the memory of 2 ranks is left out, since its times cannot be.",
    ]
    assert without_impossible(Timeline("measured", (nobody,)), missing) is None
    assert missing[2:] == ["measured.json: 1 span that cannot be is left out (one is of rank 1000000000 and stage 0)."]
    assert without_impossible(RECORD.measured, missing) is RECORD.measured


def test_a_plan_alone_is_enough(place):
    for name in ("run.json", "predicted.json", "measured.json"):
        (place / name).unlink()
    record, missing = load_partial(place)
    assert [one.layers for one in record.stages] == [(0, 2), (2, 4)]
    assert len(missing) == 3


def test_nothing_that_can_be_drawn(place):
    for name in ("plan.toml", "predicted.json", "measured.json"):
        (place / name).unlink()
    assert message(place) == (
        f"{place} holds nothing that can be drawn: plan.toml is missing: the plan, and why it was chosen, is not "
        "known. predicted.json is missing: nothing is known of what was predicted. measured.json is missing: nothing "
        "is known of what was measured. Run again to get a whole one"
    )


def test_no_such_run(place, tmp_path):
    assert message(tmp_path / "ran") == f"no such run: {tmp_path}/ran (did you mean 'run'?)"


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("no run")
    assert message(tmp_path) == (
        f"{tmp_path} is not a run: it holds none of run.json, plan.toml, predicted.json and measured.json; "
        "give the directory that `plait generate` or `plait train` named"
    )


def test_a_run_that_was_stopped_leaves_an_empty_folder(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    assert message(place) == (
        f"{place} is empty: the run that began there still runs, or was stopped before anything was written; "
        "run again, or give a run that has ended"
    )


def test_one_that_was_stopped_while_it_was_written_names_what_it_wrote(tmp_path):
    copy = RECORD.save(tmp_path / ".run.0a1b2c3d.new")
    place = tmp_path / "run"
    place.mkdir()
    assert message(place) == (
        f"{place} is empty: the run that began there still runs, or was stopped before anything was written; "
        f"what it had written lies in {copy}: plait report {copy}; run again, or give a run that has ended"
    )
    assert load_partial(copy) == (RECORD, ())


def test_another_format_is_not_guessed_at(place):
    text = (place / "run.json").read_text()
    (place / "run.json").write_text(text.replace('"version": 1', '"version": 9'))
    assert message(place) == (
        f"{place} is a run of format version 9, but this Plait reads version 1; "
        "read it with the Plait that wrote it, or run again"
    )
    (place / "run.json").write_text(text.replace("plait-run", "other"))
    assert message(place) == f"{place} is not a run: its run.json says format 'other', not 'plait-run'"
