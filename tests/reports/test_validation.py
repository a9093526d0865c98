"""Published runs as a page: every row, what its notes have in common once, and long tables summed up."""

from __future__ import annotations

from dataclasses import replace

from plait.reports.marks import ASCII
from plait.reports.validation import LISTED_ROWS, validation_page
from plait.validator.table import Compared, Validation

ROWS = (
    Compared("one GPU", 10.0, 11.0, "s", True, "± 2 %; micro-batch 1"),
    Compared("two GPUs", 5.0, 4.8, "s", False, "± 2 %; micro-batch 2"),
    Compared("four GPUs", 2.5, 2.55, "s", False, "± 2 %"),
)
SHORT = Validation("table_a", "step time", ROWS, "the first row", 1.25, 0.987, "batch adapts")


def lines(*found: Validation, every: bool = False) -> list[str]:
    return validation_page(found, 80, every=every).plain.splitlines()


def test_row_by_row() -> None:
    assert lines(SHORT) == [
        "table_a: step time",
        "calibrated on: the first row",
        "batch adapts",
        "± 2 %",
        "   published   predicted  unit      error  row",
        "          10          11  s       +10.0 %  one GPU *: micro-batch 1",
        "           5         4.8  s        -4.0 %  two GPUs: micro-batch 2",
        "         2.5        2.55  s        +2.0 %  four GPUs",
        "mean error 3.00 %, worst 4.00 % (over 2 rows), regret 1.25 %, rank correlation 0.987",
        "",
        "All of it",
        "table_a: step time  mean   3.00 %   worst   4.00 %",
    ]


def test_a_long_table_shows_what_it_was_fitted_on_and_the_worst() -> None:
    rows = tuple(Compared(f"row {index}", 100.0, 100.0 + index, "ms", index == 0) for index in range(LISTED_ROWS + 10))
    long = replace(SHORT, rows=rows, note="")
    shown = [line.split()[-1] for line in lines(long) if " ms " in line]
    assert shown == ["*", *(str(LISTED_ROWS + 9 - index) for index in range(10))]
    assert "of 50 rows those that it was fitted on (*) and the 10 worst; --rows shows all" in lines(long)
    assert sum(" ms " in line for line in lines(long, every=True)) == 50


def test_ascii_where_the_terminal_has_no_more() -> None:
    assert validation_page([SHORT], 80, ASCII).plain.isascii()
