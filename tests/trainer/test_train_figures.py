"""What is made of the ranks' words: a line for each step, and the record of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.plans.action import Action, Kind
from plait.reports.figures import report_json
from plait.timeline.record import RunRecord
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline
from plait.tracer.tracer import Tracer
from plait.trainer.protocol import Finished, Ready, Stalled, StepDone
from plait.trainer.train import Following
from plait.trainer.train_figures import Prediction, StepLine
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started
from plait.trainer.train_prepare import Prepared, prepare
from plait.trainer.train_watch import Unwatched


class Heard(Unwatched):
    def __init__(self) -> None:
        self.words: list[str] = []
        self.lines: list[StepLine] = []

    def say(self, text: str) -> None:
        self.words.append(text)

    def step(self, line: StepLine, prediction: Prediction) -> None:
        self.lines.append(line)


def prepared(folder: Path) -> Prepared:
    text = folder / "text.txt"
    text.write_text("a text to learn from\n" * 20)
    options = TrainOptions(pp=2, batch=4, micro_batches=2, sequence_length=8, steps=3, timeline=(0, 2), threads=1)
    return prepare("llama:layers=2,hidden=16,heads=2", [text], options, Unwatched(), Started(2))


def spans(rank: int, step: int) -> bytes:
    """A forward of 2 s; rank 1's begins when rank 0's ends."""
    tracer = Tracer(rank)
    tracer.finished(Action(step, rank, Kind.FORWARD, 0), 10.0 + 2 * rank, 10.0, 12.0 + 2 * rank, 0)
    return tracer.encode()


def told(rank: int, step: int, kept: bytes | None = None) -> StepDone:
    sent = {"dp": 1, "pp": 10 * (1 - rank), "tp": 0}
    return StepDone(rank, step, 2.5, 1.5, 0.001, 32, 30, 2.0 + rank, 1.0, sent, kept)


PREDICTION = Prediction(
    {"step_s": 1.0, "tokens_per_s": 32.0, "mfu": 0.5, "bubble": 0.25, "comm_bytes": {"dp": 2, "pp": 10, "tp": 0}},
    Timeline("predicted", (Span(0, Action(0, 0, Kind.FORWARD, 0), 0, 0.0, 1.0),)),
    1e9,
    "a guess",
)


def following(folder: Path, prediction: Prediction = PREDICTION) -> tuple[Following, Heard]:
    heard = Heard()
    return Following(prepared(folder), prediction, heard), heard


def test_a_line_is_there_once_all_ranks_have_told(tmp_path: Path) -> None:
    run, heard = following(tmp_path)
    run.hear(told(1, 1))
    assert heard.lines == []
    run.hear(told(0, 1))
    (line,) = heard.lines
    assert (line.step, line.loss, line.grad_norm, line.lr, line.tokens) == (1, 2.5, 1.5, 0.001, 32)
    assert line.step_s == 2.5  # the mean of 2 and 3
    assert line.tokens_per_s == 32 / 2.5
    assert line.bubble == 1 - 2 / 5  # both computed 1 s
    assert line.comm_bytes == {"dp": 2, "pp": 10, "tp": 0}
    assert line.mfu == pytest.approx(run.steps._flops / (2.5 * 1e9))


def test_the_line_as_json(tmp_path: Path) -> None:
    run, heard = following(tmp_path)
    for rank in (0, 1):
        run.hear(told(rank, 1))
    values = heard.lines[0].json(PREDICTION)
    assert list(values) == [
        "step",
        "loss",
        "grad_norm",
        "lr",
        "tokens",
        "tokens_per_s",
        "step_s",
        "mfu",
        "bubble",
        "comm_bytes",
        "predicted",
    ]
    assert values["predicted"] == dict(PREDICTION.figures)
    assert json.loads(json.dumps(values)) == values


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    run, heard = following(tmp_path, Prediction(note="nobody knows"))
    for rank in (0, 1):
        run.hear(told(rank, 1))
    values = heard.lines[0].json(run.prediction)
    assert (values["mfu"], values["predicted"]) == (None, None)
    partly = Prediction({"comm_bytes": {"dp": 1, "pp": 2, "tp": 3}})
    assert heard.lines[0].json(partly)["predicted"] == {
        "step_s": None,
        "tokens_per_s": None,
        "mfu": None,
        "bubble": None,
        "comm_bytes": {"dp": 1, "pp": 2, "tp": 3},
    }


def test_a_kept_step_has_the_bubble_of_its_timeline(tmp_path: Path) -> None:
    run, heard = following(tmp_path)
    for rank in (0, 1):
        run.hear(told(rank, 0, spans(rank, 0)))
    assert heard.lines[0].bubble == 0.5  # one of two computes, all the time
    assert [span.rank for span in run.steps.timelines[0].spans] == [0, 1]


def test_a_stalled_ranks_words_are_said(tmp_path: Path) -> None:
    run, heard = following(tmp_path)
    run.hear(Stalled(1, "rank 1 has waited 20 s for 0:1RF0 of rank 0"))
    assert heard.words[-1] == "rank 1 has waited 20 s for 0:1RF0 of rank 0"


def test_the_record_can_be_read_and_reported(tmp_path: Path) -> None:
    run, _ = following(tmp_path)
    for rank in (0, 1):
        run.hear(Ready(rank, 0.5, 100 + rank))
    for step in range(3):
        for rank in (0, 1):
            run.hear(told(rank, step, None if step == 1 else spans(rank, step)))
    for rank in (0, 1):
        run.hear(Finished(rank, 1000 + rank))
    result = run.result(tmp_path / "run")
    assert [line.step for line in result.steps] == [0, 1, 2]

    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [line.json(PREDICTION) for line in result.steps]
    record = RunRecord.load(tmp_path / "run")
    assert record == result.record
    assert [(stage.weight_bytes, stage.peak_bytes) for stage in record.stages] == [(100, 1000), (101, 1001)]
    assert record.result["kept_steps"] == [0, 2]
    # the kept steps stand side by side, though another lay between them, and so does what was predicted for them
    assert record.measured is not None
    assert [(span.action.round, span.start_s) for span in record.measured.spans] == [(0, 0), (0, 2), (2, 4), (2, 6)]
    assert record.predicted is not None
    assert [(span.action.round, span.start_s) for span in record.predicted.spans] == [(0, 0), (2, 1)]
    figures = report_json(record)
    assert figures["measured"]["makespan_s"] == 8
    assert figures["measured"]["bubble"] == 0.5
