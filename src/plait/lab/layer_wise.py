"""Layer-wise: one stage works at a time. What that costs, and why it does not mind a slow link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from plait.lab.answers import SHORT_BOUND, SHORT_POINTS, Bench, Figures, Way, beside_s, loaded, short_notes, take_turns
from plait.lab.benches import opened
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.links import SLOW, named_link
from plait.spec.emulation import EmulatedLinks

STAGES = (2, 3)

SUM_BOUND = 0.1
"""Of tokens/s against what its stages computed in the same answers: they cannot be further apart than what the
hops take, which is a few per cent, and what a stage waits for a core of a host that others use."""

ONE_BOUND = 0.4
"""Of tokens/s against one process in the same minute. Where others use the host, a process that rests in between is
given a core sooner than one that never does: with 13 processes beside them, stages were a third faster than the one.
That two machines were twice as fast would be 100 % off."""

BUBBLE_POINTS = 7.0
"""The simulator's stages take what they took when they were measured; by a tenth more or less on one of them the idle
share moves by 2 points, and each hop that takes longer than known adds to it."""

LINK_BOUND = 0.25
"""Of tokens/s over the slow link, from those over shared memory in the same minute."""


class Taken(NamedTuple):
    """A way, as predicted and as measured."""

    predicted: Figures
    measured: Figures

    @property
    def hops_s(self) -> float:
        """What a token takes beside computing, as predicted."""
        return self.predicted.round_s - sum(self.predicted.compute_s)

    @property
    def summed_s(self) -> float:
        """What the stages computed, one after another, and the hops as predicted."""
        return sum(self.measured.compute_s) + self.hops_s


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured: one process and `stages` in one minute, and a pipeline and a tensor group in another.

    `near`, `far`: (pipeline, tensor group), over shared memory and over the slow link.
    """

    one: Taken
    stages: Mapping[int, Taken]
    near: tuple[Taken, Taken]
    far: tuple[Taken, Taken]

    def kept(self, which: int) -> float:
        """Of its speed over shared memory, what a way keeps over the slow link."""
        return self.near[which].measured.round_s / self.far[which].measured.round_s

    def kept_predicted(self, which: int) -> float:
        """As predicted."""
        near, far = self.near[which], self.far[which]
        return near.measured.round_s / beside_s(near.measured, near.predicted, far.predicted)


def measure(size: Size, say: Say) -> Outcome:
    """Measure the stages, then the slow link."""
    slow = named_link(SLOW, size).link
    with opened(size, say) as bench:
        say("one process, and pipelines of 2 and 3 stages")
        hop = slow if size == "short" else None  # where computing takes next to nothing, hops must be seen
        one, *stages = _turns(bench, [Way(), *(Way(count, link=hop) for count in STAGES)])
        say(f"a pipeline and a tensor group over {SLOW}, beside shared memory")
        found = Found(one, dict(zip(STAGES, stages, strict=True)), *_over(bench, slow))
    return judged(found, size)


def _turns(bench: Bench, ways: list[Way]) -> list[Taken]:
    """What ways take that answer in turn."""
    with ExitStack() as stack:
        answers = [stack.enter_context(loaded(bench, way)) for way in ways]
        take_turns(answers, bench.repetitions)
        for one in answers:
            one.finish()
    return [Taken(bench.predicted(way), one.measured()) for way, one in zip(ways, answers, strict=True)]


def _over(bench: Bench, slow: EmulatedLinks) -> tuple[tuple[Taken, Taken], tuple[Taken, Taken]]:
    near, near_tensor, far, far_tensor = _turns(bench, [Way(2), Way(tp=2), Way(2, link=slow), Way(tp=2, link=slow)])
    return (near, near_tensor), (far, far_tensor)


# --- what it says -------------------------------------------------------------------------------------------


def judged(found: Found, size: Size) -> Outcome:
    """The outcome of what was measured."""
    return Outcome(
        "layer-wise",
        tuple(checks(found, size)),
        sentence(found),
        table(found),
        (chart(found),),
        (*NOTES, *short_notes(size)),
    )


def checks(found: Found, size: Size) -> Iterator[Check]:
    """Sums, idle shares and what is left over the slow link; against one process only where computing counts."""
    bound, points = (SHORT_BOUND, SHORT_POINTS) if size == "short" else (None, BUBBLE_POINTS)
    for count, taken in found.stages.items():
        measured = taken.measured.tokens_per_s
        predicted = 1 / taken.summed_s
        yield Check(f"{count} stages: their sum and the hops", predicted, measured, "tokens/s", bound or SUM_BOUND)
        if size == "full":
            whole = 1 / (found.one.measured.round_s + taken.hops_s)
            yield Check(f"{count} stages: one process and the hops", whole, measured, "tokens/s", ONE_BOUND)
        bubbles = 100 * taken.predicted.bubble, 100 * taken.measured.bubble
        yield Check(f"idle share of {count} stages", *bubbles, "points", points, relative=False)
    for which, name in enumerate(("pipeline", "tensor group")):
        kept = found.kept_predicted(which), found.kept(which)
        yield Check(f"speed that a {name} keeps over {SLOW}", *kept, "times", bound or LINK_BOUND)


def sentence(found: Found) -> str:
    """What was measured, in words."""
    idle = " and ".join(f"{100 * taken.measured.bubble:.0f} % with {count}" for count, taken in found.stages.items())
    times = " and ".join(
        f"{1e3 * taken.measured.round_s:.1f} ms through {count}" for count, taken in found.stages.items()
    )
    pipeline, tensor = found.kept(0), found.kept(1)
    return (
        f"A token takes {times} stages, {1e3 * found.one.measured.round_s:.1f} ms in one process; of the machines' "
        f"time {idle} stages is idle. Over {SLOW} the pipeline of two keeps {100 * pipeline:.0f} % of its speed, and a "
        f"tensor group of two {100 * tensor:.0f} %."
    )


def table(found: Found) -> Table:
    """A row a way."""
    headings = ("way", "a token, predicted", "measured", "idle, predicted", "measured", "each stage idle")
    rows = [_row("one process", found.one)]
    rows += [_row(f"{count} stages", taken) for count, taken in found.stages.items()]
    rows += [
        _row(f"{name}, {SLOW}", taken) for name, taken in zip(("2 stages", "tensor group of 2"), found.far, strict=True)
    ]
    return Table(headings, tuple(rows))


def _row(name: str, taken: Taken) -> tuple[str, ...]:
    predicted, measured = taken
    return (
        name,
        f"{1e3 * predicted.round_s:.1f} ms",
        f"{1e3 * measured.round_s:.1f} ms",
        f"{100 * predicted.bubble:.0f} %",
        f"{100 * measured.bubble:.0f} %",
        ", ".join(f"{100 * (1 - computed_s / measured.round_s):.0f} %" for computed_s in measured.compute_s),
    )


def chart(found: Found) -> Chart:
    """The idle share over the number of stages, with its lower bound."""
    counts = (1, *found.stages)
    at = tuple(map(float, counts))
    all_of = [found.one, *found.stages.values()]
    return Chart(
        "Layer-wise, one of N stages works",
        "stages",
        "idle share of the time, %",
        (
            Series("lower bound, 1 − 1 ÷ N", at, tuple(100 * (1 - 1 / count) for count in counts), measured=False),
            Series("idle", at, tuple(100 * taken.predicted.bubble for taken in all_of), measured=False),
            Series("idle", at, tuple(100 * taken.measured.bubble for taken in all_of)),
        ),
    )


NOTES = (
    "Every rank computes on one core, as a machine of its own would; the slow link is emulated on this host, latency "
    "and bandwidth, without losses.",
    "The cut gives every stage as many bytes of weights to read, the last one with the head.",
)
