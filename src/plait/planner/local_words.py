"""Why the other ways of a local plan lost: what each was predicted to take, and what makes it slower, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from plait.planner.local import Candidate, LocalChoice, way_name
from plait.schedules.generation import LAYERWISE
from plait.units import format_seconds

ONE_PROCESS = "one process"

_KEYS = ("ttft_s", "bubble", "compute_s", "transfer_s", "wait_s")
_SECONDS = ("compute_s", "transfer_s", "wait_s")

_MATTERS = 0.02
"""What differs by less than this part of a rank's time is no cause."""

_NOTHING_S = 1e-9


@dataclass(frozen=True, slots=True)
class Beaten:
    """A way that was not chosen. `predicted`: in SI units, `job_s` among it; empty of a way that cannot be.

    All but `job_s` and `time_per_token_s` are of what was simulated of the job.
    """

    name: str
    loses: str
    predicted: Mapping[str, float] = field(default_factory=dict)


def beaten_ways(choice: LocalChoice) -> tuple[Beaten, ...]:
    """The best of every other schedule and number of micro-batches, and the other chunks of the chosen one.

    The fastest first, then one process in place of the stages, where that is known.
    """
    found = [_beaten(choice, one) for one in _told(choice)]
    if choice.alone is not None:
        found.append(_beaten(choice, choice.alone))
    return tuple(found)


def _told(choice: LocalChoice) -> Iterator[Candidate]:
    best, seen = choice.best, set[tuple[str, int, int]]()
    for one in sorted(choice.candidates, key=lambda one: one.job_s):
        own = _way(one) == _way(best)
        key = (*_way(one), one.plan.chunk if own else 0)
        if one is not best and key not in seen and key != (*_way(best), best.plan.chunk):
            seen.add(key)
            yield one


def _way(one: Candidate) -> tuple[str, int]:
    return one.plan.schedule, one.plan.micro_batches


def _beaten(choice: LocalChoice, other: Candidate) -> Beaten:
    predicted = {"job_s": other.job_s, "time_per_token_s": other.time_per_token_s}
    predicted |= {key: other.figures[key] for key in _KEYS if key in other.figures}
    return Beaten(_name(choice, other), _loses(choice, other), predicted)


def _name(choice: LocalChoice, other: Candidate) -> str:
    if other is choice.alone:
        return ONE_PROCESS
    chunks = f", chunks of {other.plan.chunk}" if _way(other) == _way(choice.best) else ""
    return f"{way_name(other.plan)}{chunks}"


def _loses(choice: LocalChoice, other: Candidate) -> str:
    """How much longer the job takes, at most two causes, and where the ranks' time goes instead."""
    best = choice.best
    more_s = other.job_s - best.job_s
    words = [f"{format_seconds(more_s)} more for the job" if more_s > _NOTHING_S else "no faster"]
    if other is choice.alone:
        stages = len(best.plan.layout.stages)
        if more_s < -_NOTHING_S:
            words = [f"{format_seconds(-more_s)} less for the job, but {stages} stages were asked for"]
    parts = {key: other.figures.get(key, 0.0) - best.figures.get(key, 0.0) for key in _SECONDS}
    words += list(_causes(best, other, parts))[:2]
    detail = ", ".join(f"{key[:-2]} {_signed(seconds)}" for key, seconds in parts.items())
    tokens = other.simulated_tokens
    simulated = f"{tokens} token{'s' if tokens != 1 else ''} of each answer"
    return f"{'; '.join(words)} (of all ranks' time in {simulated}: {detail})"


def _causes(best: Candidate, other: Candidate, parts: Mapping[str, float]) -> Iterator[str]:
    mine, its = best.plan, other.plan
    enough_s = _MATTERS * sum(other.figures.get(key, 0.0) for key in _SECONDS)
    if its.schedule == LAYERWISE and len(its.layout.stages) > 1 and parts["wait_s"] > enough_s:
        bubbles = [one.figures.get("bubble", 0.0) for one in (other, best)]
        yield f"one stage computes while the others wait: a bubble of {bubbles[0]:.0%}, not {bubbles[1]:.0%}"
    threads = [plan.layout.stages[0].threads for plan in (its, mine)]
    if threads[0] < threads[1] and parts["compute_s"] > enough_s:
        each = f"{threads[0]} thread{'s' if threads[0] > 1 else ''}"
        yield f"its stages compute on {each} each, to run at the same time, and not on {threads[1]}"
    if its.micro_batches > mine.micro_batches and parts["compute_s"] > enough_s:
        yield f"weights are read for each of {its.micro_batches} micro-batches, not of {mine.micro_batches}"
    if its.chunk != mine.chunk and its.schedule == mine.schedule:
        yield f"prompts go in chunks of {its.chunk} positions, not of {mine.chunk}"


def _signed(seconds: float) -> str:
    if abs(seconds) < _NOTHING_S:
        return "+0"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
