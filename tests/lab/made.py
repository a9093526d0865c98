"""Experiments that find what they are told to, for the framework's own tests."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import pytest

from plait.errors import RunError
from plait.lab.experiment import Chart, Check, Experiment, Outcome, Say, Series, Size, Table
from plait.lab.results import Broken, Host, Missing, Results

HOLDS = Check("seconds of a thing", 2.0, 2.1, "s", 0.1)
FAILS = Check("tokens of a thing", 100.0, 80.0, "tokens/s", 0.1)
HOST = Host("a <processor>", 2, "Linux x86_64", "2.6.0", "3.11.7", "0.1")


def outcome(name: str, *checks: Check) -> Outcome:
    chart = Chart(f"Chart of {name}", "x", "y", (Series("line", (1.0, 2.0), (3.0, 4.0)),))
    table = Table(("what", "found"), (("a <row>", "1"), ("another", "20")))
    return Outcome(name, checks or (HOLDS,), f"{name} was <measured>.", table, (chart,), ("A note.",))


def experiment(name: str, *checks: Check, breaks: str | BaseException = "") -> Experiment:
    """One that finds `checks`, or breaks: with these words of a RunError, or with any error."""

    def run(size: Size, say: Say) -> Outcome:
        say(f"{name} in its {size} form")
        if breaks:
            raise RunError(breaks) if isinstance(breaks, str) else breaks
        return outcome(name, *checks)

    return Experiment(name, f"Title of {name}", f"People say {name} & more.", "A formula.", "So it is measured.", run)


def results(*outcomes: Outcome, broken: tuple[Broken, ...] = (), missing: tuple[Missing, ...] = ()) -> Results:
    return Results("full", "2026-01-31", HOST, outcomes, broken, missing)


def known(monkeypatch: pytest.MonkeyPatch, experiments: Iterable[Experiment]) -> None:
    """These are the lab's experiments, and no others."""
    mapping = MappingProxyType({one.name: one for one in experiments})
    for room in ("experiments", "run", "page"):
        monkeypatch.setattr(f"plait.lab.{room}.EXPERIMENTS", mapping)
