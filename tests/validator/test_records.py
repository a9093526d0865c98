"""Tables as other people write them: header spellings, order, further and missing columns; and any figure in a cell."""

from __future__ import annotations

import csv
import io
import json
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.errors import SpecError
from plait.validator.cells import Line, number, text, whole
from plait.validator.table import read_records, renamed, spelling
from plait.validator.validate import table_paths, validate_tables, validations_json

SHIPPED = {path.stem: path for path in table_paths()}
FIRST = 4

Table = tuple[list[str], list[str], list[list[str]]]
"""Words, header, rows."""


def shipped(name: str, rows: int | None = FIRST) -> Table:
    """A shipped table's first rows."""
    lines = SHIPPED[name].read_text(encoding="utf-8").splitlines()
    cells = list(csv.reader(line for line in lines if not line.startswith("#")))
    return [line for line in lines if line.startswith("#")], cells[0], cells[1:][:rows]


def written(path: Path, words: list[str], header: list[str], rows: list[list[str]]) -> Path:
    """The table as a file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    path.write_text("".join(f"{line}\n" for line in words) + out.getvalue(), encoding="utf-8")
    return path


# how columns are spelled


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("# GPUs", "gpus"), ("num_gpus", "gpus"), ("hidden size", "hidden"), ("Hidden-Size", "hidden"),
        ("# layers", "layers"), ("iteration time (ms)", "iteration_time_ms"), ("Tensor Parallelism", "tp"),
        ("global batch", "global_batch"), ("sequence length", "seq"), ("K", "k"), ("total_kB", "total_kb"),
        ("micro_batches", "microbatches"), ("num_microbatches", "microbatches"), ("tp_size", "tp"),
    ],
)  # fmt: skip
def test_one_spelling(given: str, name: str) -> None:
    assert spelling(given) == name


VTRAIN = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)"
)


@pytest.mark.parametrize("words", [[], ["# somebody's table", "# hardware: 8x A100"]])
def test_the_header_of_vtrains_own_repository(tmp_path: Path, words: list[str]) -> None:
    """It begins with `#`, as a comment does."""
    _, _, rows = shipped("vtrain_ground_truth_single")
    path = written(tmp_path / "theirs.csv", words, VTRAIN.split(","), rows)
    (theirs,) = validate_tables([path])
    (ours,) = validate_tables([written(tmp_path / "ours.csv", *shipped("vtrain_ground_truth_single"))])
    assert [row.predicted for row in theirs.rows] == [row.predicted for row in ours.rows]


def test_a_table_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("# words\n1,2,3\n4,5,6\n")
    with pytest.raises(SpecError) as caught:
        read_records(path)
    assert str(caught.value) == (
        f"table {path} has no header: its first line holds figures; name the columns in the line before"
    )


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("tp,pp,tp\n1,2,3\n")
    with pytest.raises(SpecError) as caught:
        read_records(path)
    assert str(caught.value) == f"table {path} has two columns named tp"


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_marks_between_cells(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"﻿# words\ntp{mark}pp\n\n1{mark} 2\n", encoding="utf-8")
    (line,) = read_records(path)
    assert dict(line) == {"tp": "1", "pp": "2"}
    assert isinstance(line, Line)
    assert line.where == f"table {path}, line 4"


def test_a_column_spelled_as_its_reader_does_is_not_replaced() -> None:
    (line,) = renamed([{"hidden size": "1", "hidden": "2"}], {"hidden"})
    assert line["hidden"] == "2"


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_order_case_spaces_and_further_columns(name: str, tmp_path: Path) -> None:
    """Columns backwards, in upper case with spaces, further ones, without words that nobody needs: the same answer."""
    words, header, rows = shipped(name, None if name.startswith(("gpipe", "torchgpipe", "distributed")) else FIRST)
    keep = [place for place, column in enumerate(header) if column not in ("status", "read_from", "params_B")]
    changed = ["My Notes", *(header[place].upper().replace("_", " ") for place in reversed(keep))]
    turned = [["x", *(row[place] for place in reversed(keep))] for row in rows]
    here = validate_tables([written(tmp_path / "a.csv", words, header, rows)])
    there = validate_tables([written(tmp_path / "b.csv", words, changed, turned)])
    assert [each.quantity for each in here] == [each.quantity for each in there]
    for one, other in zip(here, there, strict=True):
        assert [row.predicted for row in one.rows] == [row.predicted for row in other.rows]
        assert [row.published for row in one.rows] == [row.published for row in other.rows]
        assert [row.calibrated for row in one.rows] == [row.calibrated for row in other.rows]


# devices


def on_device(tmp_path: Path, name: str, device: str) -> Path:
    words, header, rows = shipped(name)
    return written(tmp_path / "t.csv", words, [*header, "GPU type"], [[*row, device] for row in rows])


TRAINING = (
    "korthikanti2022_tables3_5", "korthikanti2022_530b_dp8", "megatron2021_table1", "vtrain_ground_truth_single",
    "vtrain_ground_truth_multi", "zero_bubble_table9_profiled",
)  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("device", ["H100", "NVIDIA V100-SXM2 32 GB"])
def test_another_device_is_predicted_from_its_data_sheet(name: str, device: str, tmp_path: Path) -> None:
    here = validate_tables([written(tmp_path / "a.csv", *shipped(name))])[0]
    there = validate_tables([on_device(tmp_path, name, device)])[0]
    preset = "h100" if "H100" in device else "v100"
    for row, own in zip(there.rows, here.rows, strict=True):
        assert f"not calibrated: predicted from the data sheet of {preset}, with profile 'plain'" in row.note
        assert not row.calibrated
        assert row.predicted != own.predicted
    assert there.mean_abs_error_pct > 0


def test_a_device_never_heard_of(tmp_path: Path) -> None:
    path = on_device(tmp_path, "megatron2021_table1", "Abacus 3000")
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value).startswith(
        f"table {path}, line 7: the device is 'Abacus 3000', of which Plait has no figures: known: a100-40gb, "
    )


def test_hardware_in_the_tables_words(tmp_path: Path) -> None:
    _, header, rows = shipped("megatron2021_table1")
    (named,) = validate_tables([written(tmp_path / "a.csv", ["# hardware: 32 hosts of H100 SXM"], header, rows)])
    assert all("data sheet of h100" in row.note for row in named.rows)
    (silent,) = validate_tables([written(tmp_path / "b.csv", [], header, rows)])
    assert all("no device named: taken for A100 80 GB" in row.note for row in silent.rows)
    (other,) = validate_tables([written(tmp_path / "c.csv", ["# hardware: an abacus"], header, rows)])
    assert all(row.note.count("not calibrated: the header's hardware, 'an abacus'") == 1 for row in other.rows)


def test_bubbles_and_speeds_of_another_device_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        validate_tables([on_device(tmp_path, "zero_bubble_tables5_8_bubble", "H100")])
    assert str(caught.value) == "table t: no row is of a schedule and a run whose times, on A100, table 9 has"
    found = validate_tables([on_device(tmp_path, "zero_bubble_table4_measured", "H100")])
    assert {each.quantity for each in found} == {"peak memory of ZB-2p"}
    assert "samples a second are not compared" in found[0].note


# cells


def test_cells() -> None:
    line = Line({"a": "7.0", "b": " ", "c": "x"}, "table t, line 9")
    assert whole(line, "a") == 7
    assert number(line, "a") == 7.0
    for column in ("b", "none"):
        with pytest.raises(SpecError) as caught:
            text(line, column)
        assert str(caught.value) == f"table t, line 9: {column} is missing"
    with pytest.raises(SpecError) as caught:
        number(line, "c", least=2)
    assert str(caught.value) == "table t, line 9: c is 'x', but must be a number from 2 on"


CELLS = st.one_of(
    st.sampled_from(
        ["", "0", "-0", "-1", "nan", "inf", "-inf", "1e308", "1e-308", "5e-324", "abc", "1.5", "7", "1000000", "1e9",
         "9" * 40, "1_0", "٣", "0x10", "H100", '"', "\x00"]
    ),
    st.integers(-3, 10_000).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.text(max_size=5),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(SHIPPED))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_cell(name: str, tmp_path: Path, data: st.DataObject) -> None:
    """An error that names the table, or finite figures: nothing else comes out."""
    words, header, rows = shipped(name)
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, len(header) - 1))
    rows[row][column] = data.draw(CELLS)
    path = written(tmp_path / "t.csv", words, header, rows)
    said = ""
    try:
        found = validate_tables([path])
    except SpecError as caught:
        found, said = [], str(caught)
    assert bool(found) != said.startswith("table ")
    json.dumps(validations_json(found), allow_nan=False)
    assert all(isfinite(each.mean_abs_error_pct) and isfinite(each.worst_pct) for each in found)


# tables of steps that do not come with Plait


STEPS = "Model,# GPUs,TP,PP,DP,Hidden size,Heads,Layers,Seq length,Global batch size,Iteration time (s)"
SELENE = "175B,64,8,8,1,12288,96,96,2048,64,18.13"


def steps_table(tmp_path: Path, header: str, row: str, device: str = "A100 80 GB") -> Path:
    path = tmp_path / "steps.csv"
    path.write_text(f"{header},Device\n{row},{device}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("column", "figure"),
    [
        ("Iteration time (s)", 18.13), ("iteration time (ms)", 18130.0), ("samples per second", 64 / 18.13),
        ("Tokens/s", 64 * 2048 / 18.13), ("Tokens/s/GPU", 2048 / 18.13),
    ],
)  # fmt: skip
def test_steps_of_a_table_never_seen(tmp_path: Path, column: str, figure: float) -> None:
    """Korthikanti's 175B with full recompute, without the column of virtual stages: 18.13 s."""
    header = STEPS.replace("Iteration time (s)", column)
    (found,) = validate_tables([steps_table(tmp_path, header, SELENE.replace("18.13", repr(figure)))])
    (row,) = found.rows
    assert row.published == pytest.approx(18.13)
    assert abs(row.error_pct) < 12
    assert row.name == "175B on 64: tp8 pp8 dp1"
    assert row.note.endswith(
        "recompute full; ± 2.1 % (mean absolute error of profile 'a100' on rows it was not fitted on)"
    )


def test_steps_that_cannot_be(tmp_path: Path) -> None:
    header = STEPS.replace("DP,", "Recompute,")
    path = steps_table(tmp_path, header, SELENE.replace("8,8,1,", "8,8,some,"))
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value) == f"table {path}, line 2: unknown recompute 'some': known: full, no, none, selective"
    path = steps_table(tmp_path, STEPS, SELENE.replace("18.13", ""))
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value) == (
        f"table {path}, line 2: it has none of iter_s, iteration_time_ms, samples_per_s, tokens_per_gpu_s, tokens_per_s"
    )
    path = steps_table(tmp_path, STEPS, SELENE, "H100")
    (found,) = validate_tables([path])
    assert "not calibrated: predicted from the data sheet of h100" in found.rows[0].note


def test_a_column_that_follows_from_others_may_be_left_out(tmp_path: Path) -> None:
    """Waiting is what a token takes beside computing."""
    words, header, rows = shipped("distributed_llama_speed", None)
    place = header.index("network_ms")
    path = written(tmp_path / "t.csv", words, header[:place], [row[:place] for row in rows])
    (found,) = validate_tables([path])
    assert found.worst_pct < 15


def test_another_micro_batch_is_another_run(tmp_path: Path) -> None:
    """Table 9's times are of table 3's micro-batches; memory is counted with the row's own."""
    words, header, rows = shipped("zero_bubble_table4_measured")
    place = header.index("micro_batch")
    changed = [[*row[:place], "2", *row[place + 1 :]] for row in rows]
    here = validate_tables([written(tmp_path / "a.csv", words, header, rows)])
    (there,) = validate_tables([written(tmp_path / "b.csv", words, header, changed)])
    assert "samples a second are not compared" in there.note
    assert there.rows[0].predicted < next(each for each in here if "memory" in each.quantity).rows[0].predicted
