"""What the lab prints."""

from __future__ import annotations

import math

import pytest

from plait.lab.experiment import Check, Table
from plait.lab.results import Broken, Missing
from plait.lab.words import (
    bound_words,
    check_words,
    ending,
    listing,
    off_words,
    outcome_lines,
    table_lines,
    value_words,
)

from .made import FAILS, HOLDS, experiment, outcome, results


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (42.86, "points", "42.9 %"),
        (0.01234, "s", "12.3 ms"),
        (math.nan, "s", "no number"),
        (26757120, "bytes", "26,757,120 bytes"),
        (math.nan, "bytes", "no number"),
        (1.25e8, "bytes/s", "125 MB/s"),
        (12.3456, "tokens/s", "12.35 tokens/s"),
        (5.61, "steps", "5.61 steps"),
        (3.0, "", "3"),
    ],
)
def test_figures_in_their_units(value: float, unit: str, words: str) -> None:
    assert value_words(value, unit) == words


@pytest.mark.parametrize(
    ("check", "off", "allowed"),
    [
        (HOLDS, "+5.0 %", "10 %"),
        (Check("x", 20.0, 17.4, "points", 2.5, relative=False), "-2.6 points", "2.5 points"),
        (Check("x", 100, 100, "bytes", 0.0), "0", "nothing"),
        (Check("x", 0, 12, "bytes", 0.0, relative=False), "+12 bytes", "nothing"),
        (Check("x", 1.0, 1.25, "s", 0.5, relative=False), "+250 ms", "500 ms"),
        (Check("x", 20.0, 20.0 + 1e-14, "points", 2.5, relative=False), "0", "2.5 points"),
    ],
)
def test_how_far_off_and_how_far_it_may_be(check: Check, off: str, allowed: str) -> None:
    assert off_words(check) == off
    assert bound_words(check) == allowed


def test_a_check_in_a_line() -> None:
    assert check_words(FAILS) == (
        "tokens of a thing: predicted 100 tokens/s, measured 80 tokens/s, -20.0 % off, and 10 % is allowed"
    )
    assert check_words(Check("bubble", 20.0, 24.0, "points", 2.5, relative=False)) == (
        "bubble: predicted 20.0 %, measured 24.0 %, +4 points off, and 2.5 points are allowed"
    )
    assert check_words(Check("sent", 10, 12, "bytes", 0.0)) == (
        "sent: predicted 10 bytes, measured 12 bytes, +20.0 % off, and nothing is allowed"
    )


def test_a_table_has_words_at_the_left_and_figures_at_the_right() -> None:
    table = Table(("name", "count", "word"), (("a", "7", "yes"), ("bcd", "123", "no")))
    assert list(table_lines(table)) == ["name  count  word", "a         7  yes", "bcd     123  no"]


def test_an_outcome_says_claim_table_figures_and_sentence() -> None:
    lines = list(outcome_lines(experiment("one"), outcome("one", HOLDS, FAILS), 80))
    assert lines == [
        "Title of one",
        "  People say one & more.",
        "",
        "what     found",
        "a <row>      1",
        "another     20",
        "",
        "figure                 predicted     measured      off  allowed  within",
        "seconds of a thing           2 s        2.1 s   +5.0 %     10 %  yes",
        "tokens of a thing   100 tokens/s  80 tokens/s  -20.0 %     10 %  NO",
        "",
        "one was <measured>.",
        "  A note.",
        "  Measured in 0 µs.",
        "",
    ]


def test_no_line_of_words_is_wider_than_the_terminal() -> None:
    claim = "word " * 60
    wide = experiment("one")
    lines = listing([type(wide)("one", "T", claim, "f", "h", wide.run)], 60)
    assert max(len(line) for line in list(lines)[:-1]) <= 60


def test_the_end_names_all_that_is_not_as_predicted() -> None:
    missing = (Missing("three", "not measured: interrupted"),)
    found = results(outcome("one", HOLDS, FAILS), broken=(Broken("two", "rank 1 is lost"),), missing=missing)
    assert list(ending(found)) == [
        f"not within its bound: one: {check_words(FAILS)}",
        "two broke: rank 1 is lost",
        "three was not measured: interrupted",
    ]
    assert list(ending(results(outcome("one"), missing=missing))) == ["three was not measured: interrupted"]


def test_the_end_of_what_is_as_predicted() -> None:
    assert list(ending(results(outcome("one")))) == ["the one figure is within its bound, of 1 experiment"]
    assert list(ending(results(outcome("one", HOLDS, HOLDS), outcome("two")))) == [
        "all 3 figures are within their bounds, of 2 experiments"
    ]
