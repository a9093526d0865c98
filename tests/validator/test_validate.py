"""Tables are known by their columns; what cannot be read says why; the page and the JSON hold every figure."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.validator.markdown import LISTED_ROWS, validation_markdown
from plait.validator.page import sorts_markdown
from plait.validator.table import Compared, Validation
from plait.validator.validate import (
    known_tables,
    table_paths,
    validate_tables,
    validations_json,
)

SHIPPED = {path.stem: path for path in table_paths()}


def copied(tmp_path: Path, name: str, to: str, rows: int | None = None) -> Path:
    """A shipped table under another name, with its first rows."""
    lines = SHIPPED[name].read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    path = tmp_path / to
    path.write_text("\n".join([*head, *body[: None if rows is None else rows + 1]]) + "\n", encoding="utf-8")
    return path


def changed_cell(tmp_path: Path, name: str, column: str, cell: str | None, rows: int = 3) -> tuple[Path, int]:
    """A shipped table's first rows with another cell in the first, or that row cut before it; and the row's line."""
    path = copied(tmp_path, name, "mine.csv", rows=rows)
    lines = path.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    header, first = (next(csv.reader([line])) for line in lines[begin : begin + 2])
    place = header.index(column)
    first = first[:place] if cell is None else [*first[:place], cell, *first[place + 1 :]]
    lines[begin + 1] = ",".join(f'"{each}"' for each in first)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, begin + 2


def _above(column: str, given: str) -> str:
    return f"{column} is '{given}', but must be a number above 0"


def _between(column: str, given: str) -> str:
    return f"{column} is '{given}', but must be a number from 1e-09 to 1e+15"


def _whole(column: str, given: str) -> str:
    return f"{column} is '{given}', but must be a whole number from 1 to 1,000,000,000"


_DEGREES = "gpus is 4, but tensor_parallelism × pipeline_parallelism × data_parallelism is 2"
_SCHEDULE = "unknown schedule 'zb-x': known: 1F1B, 1F1B-I, ZB-1p, ZB-2p, ZB-H1, ZB-H2, ZB-V"
_LINK = "link is 'Wi-Fi', but must say how fast it is: GbE, 2.5 GbE, …"


def test_every_table_that_comes_with_plait_is_there_and_recognised() -> None:
    assert all(path.exists() for path in SHIPPED.values())
    found = validate_tables()
    assert list(dict.fromkeys(each.table for each in found)) == list(SHIPPED)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_table_is_known_by_its_columns_under_any_name(name: str, tmp_path: Path) -> None:
    here = validate_tables([SHIPPED[name]])
    there = validate_tables([copied(tmp_path, name, "somebody-elses.csv")])
    assert [each.quantity for each in there] == [each.quantity for each in here]
    assert {each.table for each in there} == {"somebody-elses"}
    assert [each.rows for each in there] == [each.rows for each in here]


def test_rows_that_were_not_used_are_not_marked(tmp_path: Path) -> None:
    path = copied(tmp_path, "vtrain_ground_truth_single", "others.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = [line if line[0] in "#g" else line.replace("1024,1,", "4096,1,", 1) for line in lines]
    path.write_text("\n".join(changed[:45]) + "\n", encoding="utf-8")
    (found,) = validate_tables([path])
    assert len(found.judged) == len(found.rows)


def test_unknown_columns_name_the_nearest_table_and_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("heads,hidden,layers,tp,pp,gpus,batch,seq,tflops_per_gpu\n1,2,3,4,5,6,7,8,9\n")
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value) == (
        f"table {path} has columns of no table that Plait knows; nearest is megatron2021_table1, "
        "of which it lacks global_batch"
    )


def test_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("# nothing\nheads,hidden\n")
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value) == f"table {path} has no rows"


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        validate_tables([tmp_path / "none.csv"])
    assert str(caught.value) == f"table {tmp_path / 'none.csv'}: no such file"


@pytest.mark.parametrize(
    ("name", "column", "bad", "words"),
    [
        ("megatron2021_table1", "hidden", "many", "hidden is 'many', but must be a whole number from 1 to 1,000,000"),
        ("megatron2021_table1", "hidden", "", "hidden is missing"),
        ("megatron2021_table1", "hidden", "0", "hidden is '0', but must be a whole number from 1 to 1,000,000"),
        ("megatron2021_table1", "layers", "-4", "layers is '-4', but must be a whole number from 1 to 10,000"),
        ("megatron2021_table1", "global_batch", "1.5", _whole("global_batch", "1.5")),
        ("megatron2021_table1", "global_batch", "inf", _whole("global_batch", "inf")),
        ("megatron2021_table1", "tflops_per_gpu", "0", _above("tflops_per_gpu", "0")),
        ("megatron2021_table1", "gpus", "31", "gpus is 31, but tp × pp × dp is 32"),
        ("vtrain_ground_truth_single", "iteration_time_ms", "0", _above("iteration_time_ms", "0")),
        ("vtrain_ground_truth_single", "iteration_time_ms", "nan", _above("iteration_time_ms", "nan")),
        ("vtrain_ground_truth_single", "iteration_time_ms", "-5", _above("iteration_time_ms", "-5")),
        ("vtrain_ground_truth_single", "iteration_time_ms", "inf", _above("iteration_time_ms", "inf")),
        ("vtrain_ground_truth_single", "iteration_time_ms", "1e300", _between("iteration_time_ms", "1e300")),
        ("vtrain_ground_truth_single", "iteration_time_ms", None, "iteration_time_ms is missing"),
        ("vtrain_ground_truth_single", "gpus", "4", _DEGREES),
        ("zero_bubble_table4_measured", "memory_gb", "0", _above("memory_gb", "0")),
        ("zero_bubble_table4_measured", "schedule", "zb-x", _SCHEDULE),
        ("zero_bubble_table4_measured", "model", "9B", "unknown model '9B': known: 1.5B, 14.6B, 28.3B, 6.2B"),
        ("vtrain_nccl_allreduce", "out_of_place_us", "0", _above("out_of_place_us", "0")),
        ("vtrain_nccl_allreduce", "n_gpus", "1", "n_gpus is '1', but must be a whole number from 2 to 1,000,000"),
        ("distributed_llama_speed", "nodes", "0", "nodes is '0', but must be a whole number from 1 to 1,024"),
        ("distributed_llama_speed", "weights", "q9", "weights is 'q9', but only Q40 is predicted"),
        ("distributed_llama_speed", "link", "Wi-Fi", _LINK),
        ("gpipe2019_tables2_3", "table", "table4", "table is 'table4', but must be table2 or table3"),
    ],
)
def test_a_figure_that_cannot_be(tmp_path: Path, name: str, column: str, bad: str | None, words: str) -> None:
    """The table, the line in its file, the column, what was given and what is needed."""
    path, number = changed_cell(tmp_path, name, column, bad)
    with pytest.raises(SpecError) as caught:
        validate_tables([path])
    assert str(caught.value) == f"table {path}, line {number}: {words}"


def test_a_table_of_fewer_columns_does_not_hide_one_of_more() -> None:
    """`model, gpus, tp, …` of the scaled runs is not taken for the steps of table 5, whose columns are more."""
    columns = {known.name: known.columns for known in known_tables()}
    for name, path in SHIPPED.items():
        header = next(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
        fitting = [other for other, needed in columns.items() if needed <= set(header.split(","))]
        assert columns[max(fitting, key=lambda other: len(columns[other]))] == columns[name]


ROWS = (Compared("one", 10.0, 11.0, "s", calibrated=True), Compared("two", 10.0, 9.5, "s"))
MINE = Validation("mine", "time", ROWS, "row one", regret_pct=1.5, rank_correlation=0.9876, note="a note")


def test_json_has_the_keys_of_the_issue() -> None:
    (found,) = validations_json([MINE])["tables"]
    wanted = {
        "table": "mine",
        "rows": 2,
        "calibrated_on": "row one",
        "mean_abs_error_pct": pytest.approx(5),
        "worst_pct": pytest.approx(5),
        "regret_pct": 1.5,
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found["judged_rows"] == 1
    assert found["compared"][0]["error_pct"] == pytest.approx(10)
    assert json.loads(json.dumps(found))["compared"][1]["name"] == "two"


def test_the_page_is_row_by_row() -> None:
    page = validation_markdown([MINE])
    assert "| mine | time | 2 | 1 | 5.00 | 5.00 | 1.50 | 0.988 |" in page
    assert "| one * | s | 10 | 11 | +10.0 |" in page
    assert "| two | s | 10 | 9.5 | -5.0 |" in page
    assert "Calibrated on: row one. Judged: 1 of 2 rows." in page
    assert "A note." in page


def test_selene_is_also_judged_together() -> None:
    found = validate_tables([SHIPPED["korthikanti2022_tables3_5"], SHIPPED["megatron2021_table1"]])
    (line,) = [row for row in validation_markdown(found).splitlines() if " + " in row and row.endswith("|  |  |")]
    assert line.startswith("| korthikanti2022_tables3_5 + megatron2021_table1 | step time | 18 | 16 | 2.")
    assert len(found) == 2
    assert " + megatron" not in validation_markdown(found[:1])


def test_a_long_table_is_summed_up() -> None:
    """By groups of judged rows, then the worst, then those that it was fitted on."""
    many = tuple(
        Compared(f"row {n}", 100.0, 100.0 + n, "s", calibrated=n == 3, group=f"tp {2 + 8 * (n % 2)}")
        for n in range(LISTED_ROWS + 1)
    )
    page = validation_markdown([Validation("mine", "time", many, "row 3")])
    assert "Calibrated on: row 3. Judged: 20 of 21 rows." in page
    lines = page.splitlines()
    begin = lines.index("| judged rows | rows | mean error % | mean of signed errors % | worst % |")
    odd = [n for n in range(1, 21, 2) if n != 3]
    assert lines[begin + 2 : begin + 4] == [
        "| tp 2 | 11 | 10.0 | +10.0 | 20.0 |",
        f"| tp 10 | 9 | {sum(odd) / 9:.1f} | +{sum(odd) / 9:.1f} | 19.0 |",
    ]
    shown = [line.split(" | ")[0] for line in lines if line.startswith("| row ")]
    assert shown == ["| row", *(f"| row {n}" for n in (20, 19, 18, 17, 16)), "| row", "| row 3 *"]


def test_a_table_that_is_all_calibration_judges_nothing() -> None:
    page = validation_markdown([Validation("mine", "time", ROWS[:1], "row one")])
    assert "| mine | time | 1 | none | 10.00 | 10.00 |  |  |" in page
    assert "Calibrated on: row one. Judged: none: it was fitted on all rows." in page
    assert validations_json([Validation("mine", "time", ROWS[:1], "row one")])["tables"][0]["judged_rows"] == 0


def test_the_page_says_what_is_not_calibrated() -> None:
    rows = [Compared(f"row {n}", 1.0, 1.0, "s", note=f"x; not calibrated here: {n // 2}") for n in range(3)]
    page = validation_markdown([Validation("mine", "time", tuple(rows), "nothing")])
    assert "Not calibrated here: 0 (2 of 3 rows).\n\nNot calibrated here: 1 (1 of 3 rows)." in page
    rows = [Compared(f"row {n}", 1.0, 1.0, "s", note=f"not calibrated here: {n} (a; b)") for n in range(4)]
    rows += [Compared(f"row {n}", 1.0, 1.0, "s", note=f"x; ± {n} %") for n in range(4)]
    page = validation_markdown([Validation("mine", "time", tuple(rows), "nothing")])
    assert "Not calibrated here: 0 (a; b); and alike (4 of 8 rows)." in page


def summary(page: str) -> dict[tuple[str, str], list[str]]:
    """The figures of every quantity on a page."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    end = next(number for number, line in enumerate(lines) if line[0] == "row")
    return {(line[0], line[1]): line[2:6] for line in lines[1:end]}


def test_the_page_in_the_documents_is_what_the_command_makes() -> None:
    page = Path(__file__).parents[2] / "docs" / "validation.md"
    written, made = summary(page.read_text(encoding="utf-8")), summary(validation_markdown(validate_tables()))
    assert page.read_text(encoding="utf-8").endswith(sorts_markdown())
    assert list(written) == list(made)
    for quantity, figures in made.items():
        assert written[quantity][:2] == figures[:2]
        assert [float(each) for each in written[quantity][2:]] == pytest.approx([*map(float, figures[2:])], abs=0.02)
