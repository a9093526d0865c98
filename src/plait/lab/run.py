"""Runs experiments one after the other, and keeps what each found, or why it found nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from plait.errors import PlaitError
from plait.lab.experiment import Experiment, Outcome, Say, Size
from plait.lab.experiments import EXPERIMENTS, chosen
from plait.lab.results import Broken, Missing, Results, this_host, today
from plait.prober.host import MOST_OTHERS, Others


def run_experiments(
    names: Iterable[str] | None = None,
    size: Size = "full",
    say: Say = lambda words: None,
    after: Callable[[Results, Outcome | Broken | None], None] = lambda results, last: None,
) -> Results:
    """Run experiments by name, all of them where none is named. Errors: SpecError for a name that is unknown.

    `say` is told what is being measured; `after` gets all that was found so far, and what the last experiment found,
    each time that one has ended. An experiment that breaks does not keep the others from running: it is in
    `Results.broken`. What stops them all, an interrupt or an error of our own, goes on to the caller; where something
    was found by then, `after` first gets that once more, with None as the last and what is missing in words.
    """
    wanted = chosen(EXPERIMENTS if names is None else names)
    to_come = tuple(Missing(one.name, "not measured yet") for one in wanted)
    results = Results(size, today(), this_host(), missing=to_come)
    try:
        for one in wanted:
            say(f"{one.name}: {one.title}")
            last = _tried(one, size, say)
            results = results.having(last)
            after(results, last)
    except BaseException as error:
        if results.ended:
            words = f"not measured: {_cause(error)}"
            missing = tuple(Missing(one.experiment, words) for one in results.missing)
            after(replace(results, missing=missing), None)
        raise
    return results


def _cause(error: BaseException) -> str:
    """``interrupted``, or ``stopped by AssertionError: its words``."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"stopped by {type(error).__name__}{': ' if str(error) else ''}{error}"


def _tried(experiment: Experiment, size: Size, say: Say) -> Outcome | Broken:
    try:
        return run_one(experiment, size, say)
    except PlaitError as error:
        return Broken(experiment.name, str(error))


def run_one(experiment: Experiment, size: Size, say: Say) -> Outcome:
    """An experiment's outcome, with the seconds that it took. Errors: PlaitError for what broke.

    That others used the host meanwhile is noted: what is not as predicted may be theirs.
    """
    began_s = time.perf_counter()
    with Others() as others:
        outcome = experiment.run(size, say)
    assert outcome.experiment == experiment.name, outcome.experiment
    busy = (busy_words(others.share),) if others.share > MOST_OTHERS else ()
    return replace(outcome, seconds=time.perf_counter() - began_s, notes=(*outcome.notes, *busy))


def busy_words(share: float) -> str:
    """What is noted of a host that others used."""
    return (
        f"Others used {100 * share:.0f} % of this host's cores while this was measured: where a figure is not within "
        "its bound, measure again when the host is idle."
    )
