"""Experiments run one after the other, whatever becomes of one of them."""

from __future__ import annotations

import math
from importlib import import_module

import pytest

from plait.errors import SpecError
from plait.lab.experiment import Check, Outcome
from plait.lab.experiments import EXPERIMENTS, chosen
from plait.lab.results import Broken, Missing, Results
from plait.lab.run import run_experiments

from .made import FAILS, HOLDS, experiment, known

ALL = ("data-parallel", "tensor-parallel", "pipeline", "layer-wise", "many-users", "braid", "quiz")


def test_every_claim_of_the_lab_has_its_experiment() -> None:
    assert tuple(EXPERIMENTS) == ALL
    for name, one in EXPERIMENTS.items():
        assert one.name == name
        assert all((one.title, one.claim, one.formula, one.how))
        assert "ower bound" in one.formula
        assert "pper bound" in one.formula


def test_a_claim_is_measured_by_the_module_of_its_name() -> None:
    for name, one in EXPERIMENTS.items():
        module = import_module(f"plait.lab.{name.replace('-', '_')}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "measure", lambda *given: given)
            assert one.run("short", print) == ("short", print)


def test_they_run_in_the_labs_order_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("first"), experiment("second"), experiment("third")])
    heard: list[str] = []
    found = run_experiments(["third", "first", "third"], "short", heard.append)
    assert [one.experiment for one in found.outcomes] == ["first", "third"]
    assert heard == [
        "first: Title of first",
        "first in its short form",
        "third: Title of third",
        "third in its short form",
    ]
    assert all(one.seconds > 0 for one in found.outcomes)
    assert found.holds
    assert found.size == "short"


def test_one_that_breaks_does_not_keep_the_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("first"), experiment("second", breaks="rank 1 is lost"), experiment("third", FAILS)])
    seen: list[tuple[int, Outcome | Broken]] = []

    def after(results: Results, last: Outcome | Broken | None) -> None:
        assert last is not None
        seen.append((len(results.outcomes), last))

    found = run_experiments(after=after)
    assert [one.experiment for one in found.outcomes] == ["first", "third"]
    assert found.broken == (Broken("second", "rank 1 is lost"),)
    assert not found.holds
    assert [count for count, _ in seen] == [1, 1, 2]
    assert [type(last) for _, last in seen] == [Outcome, Broken, Outcome]


def test_while_they_run_those_to_come_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is on disk when the process is killed does not look whole."""
    known(monkeypatch, [experiment("first"), experiment("second", breaks="rank 1 is lost"), experiment("third")])
    seen: list[Results] = []
    found = run_experiments(after=lambda results, last: seen.append(results))
    assert [one.missing for one in seen] == [
        (Missing("second", "not measured yet"), Missing("third", "not measured yet")),
        (Missing("third", "not measured yet"),),
        (),
    ]
    assert not any(one.holds for one in seen)
    assert found.missing == ()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyboardInterrupt(), "not measured: interrupted"),
        (AssertionError("no rank 3"), "not measured: stopped by AssertionError: no rank 3"),
        (MemoryError(), "not measured: stopped by MemoryError"),
    ],
)
def test_what_stops_them_all_goes_on_and_what_was_found_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    known(monkeypatch, [experiment("first"), experiment("second", breaks=error), experiment("third")])
    seen: list[tuple[Results, Outcome | Broken | None]] = []
    with pytest.raises(type(error)) as raised:
        run_experiments(after=lambda *told: seen.append(told))
    assert raised.value is error
    results, last = seen[-1]
    assert [type(last) for _, last in seen] == [Outcome, type(None)]
    assert last is None
    assert [one.experiment for one in results.outcomes] == ["first"]
    assert results.missing == (Missing("second", words), Missing("third", words))
    assert not results.holds


def test_where_nothing_was_found_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("first", breaks=KeyboardInterrupt()), experiment("second")])
    with pytest.raises(KeyboardInterrupt):
        run_experiments(after=lambda *told: pytest.fail(f"told {told}"))


def test_an_interrupt_while_the_last_is_written_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("first")])
    seen: list[Results] = []

    def after(results: Results, last: Outcome | Broken | None) -> None:
        if last is not None:
            raise KeyboardInterrupt
        seen.append(results)

    with pytest.raises(KeyboardInterrupt):
        run_experiments(after=after)
    assert [one.experiment for one in seen[0].outcomes] == ["first"]
    assert (len(seen), seen[0].missing) == (1, ())


def test_an_unknown_name_is_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError) as error:
        chosen(["pipeline", "pipelin"])
    assert str(error.value) == (
        "unknown experiment 'pipelin': did you mean 'pipeline'?; plait lab --list says what each measures"
    )


@pytest.mark.parametrize(
    ("check", "off", "holds"),
    [
        (Check("x", 2.0, 2.2, "s", 0.1001), 0.1, True),
        (Check("x", 2.0, 1.7, "s", 0.1), -0.15, False),
        (Check("x", 20.0, 22.5, "points", 2.5, relative=False), 2.5, True),
        (Check("x", 20.0, 17.4, "points", 2.5, relative=False), -2.6, False),
        (Check("x", 1024, 1024, "bytes", 0.0), 0.0, True),
        (Check("x", 1024, 1025, "bytes", 0.0), 1 / 1024, False),
        (Check("x", 0, 3, "bytes", 0.0), 3.0, False),
    ],
)
def test_a_check_holds_within_its_bound(check: Check, off: float, *, holds: bool) -> None:
    assert check.off == pytest.approx(off)
    assert check.holds is holds


def test_what_was_not_measured_holds_nothing() -> None:
    assert not HOLDS._replace(measured=math.nan).holds
    assert not HOLDS._replace(measured=math.inf).holds


@pytest.mark.parametrize(("share", "noted"), [(0.05, False), (0.426, True)])
def test_that_others_used_the_host_is_noted(monkeypatch: pytest.MonkeyPatch, share: float, *, noted: bool) -> None:
    known(monkeypatch, [experiment("first")])
    monkeypatch.setattr("plait.lab.run.Others.__exit__", lambda self, *error: setattr(self, "share", share))
    (found,) = run_experiments().outcomes
    words = (
        "Others used 43 % of this host's cores while this was measured: where a figure is not within its bound, "
        "measure again when the host is idle."
    )
    assert found.notes == (("A note.", words) if noted else ("A note.",))
