"""Tensor parallelism: two ranks share every layer, and talk twice in each. Over which links is that worth it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from plait.lab.answers import SHORT_BOUND, Answers, Bench, Figures, Way, loaded, short_notes, take_turns
from plait.lab.benches import opened
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.links import LINKS, Named, named_link
from plait.plans.exchanges import forward_exchanges
from plait.plans.round import MicroBatch, Row
from plait.prober.host import MOST_OTHERS, Others

SHORT_LINKS = ("1 Gb/s", "100 Mb/s")
SHARED = "shared memory"

ONE, NEAR = Way(), Way(tp=2)

BOUND = 0.25
"""Of tokens/s over a link, from the nearer end of what is predicted. The link's share of a token is known to a few per
cent; of what computing takes in the same minute, two medians differ by up to a fifth on a host that others use."""

NEAR_BOUND = 0.4
"""Of the gain over shared memory: both figures are the plan's, from a calibration of another minute (the speed of such
a machine drifts by a fifth within minutes, docs/benchmarks.md), and both ranks must be on a core at the same time."""


class Measured(NamedTuple):
    """A link, what tensor parallelism and a pipeline take over it, and one process and shared memory beside them."""

    link: str
    one: Figures
    near: Figures
    tensor: Figures
    pipeline: Figures
    predicted: Figures
    link_s: float

    @property
    def most_s(self) -> float:
        """A token's time at most: what shared memory takes in the same minute, and what the link adds."""
        return self.near.round_s + self.link_s

    @property
    def least_s(self) -> float:
        """A token's time at least: what the ranks computed in the same answers, and what the link adds."""
        return min(self.most_s, self.tensor.compute_s[0] + self.link_s)

    @property
    def predicted_tokens_per_s(self) -> float:
        """What is predicted nearest to what was measured."""
        return 1 / min(max(self.tensor.round_s, self.least_s), self.most_s)


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured. `one`, `near`: as the plan predicts them. `exchanges`: of a token.

    `others`: which share of this host's cores other work took meanwhile.
    """

    links: tuple[Measured, ...]
    one: Figures
    near: Figures
    exchanges: int
    others: float = 0.0


def measure(size: Size, say: Say) -> Outcome:
    """Measure every link."""
    with Others() as others, opened(size, say, tokens=16) as bench:
        found = _found(bench, [named_link(name, size) for name in (LINKS if size == "full" else SHORT_LINKS)], say)
    return judged(replace(found, others=others.share), size)


def _found(bench: Bench, links: list[Named], say: Say) -> Found:
    say("loading one process, and two that share its layers")
    with loaded(bench, ONE) as one, loaded(bench, NEAR) as near:
        far = [_over(bench, one, near, link, say) for link in links]
        one.finish()
        near.finish()
    predicted_one, predicted_near = bench.predicted(ONE), bench.predicted(NEAR)
    return Found(
        tuple(
            _measured(link.name, one, near, *both, predicted_near, bench) for link, both in zip(links, far, strict=True)
        ),
        predicted_one,
        predicted_near,
        exchanges(bench, near),
    )


def _over(bench: Bench, one: Answers, near: Answers, named: Named, say: Say) -> tuple[Answers, Answers]:
    """Both ways over one link, taking turns with those that are there already."""
    say(f"tensor parallelism and a pipeline over {named.name}")
    with loaded(bench, Way(tp=2, link=named.link)) as tensor, loaded(bench, Way(2, link=named.link)) as pipeline:
        take_turns((one, near, tensor, pipeline), bench.repetitions, named.name)
        tensor.finish()
        pipeline.finish()
    return tensor, pipeline


def _measured(
    name: str, one: Answers, near: Answers, tensor: Answers, pipeline: Answers, near_predicted: Figures, bench: Bench
) -> Measured:
    predicted = bench.predicted(tensor.way)
    return Measured(
        name,
        one.measured(name),
        near.measured(name),
        tensor.measured(name),
        pipeline.measured(name),
        predicted,
        predicted.round_s - near_predicted.round_s,
    )


def exchanges(bench: Bench, near: Answers) -> int:
    """Collectives of one token."""
    token = MicroBatch((Row(0, 0, len(bench.prompt), 1, True),))
    return sum(1 for _ in forward_exchanges(bench.index.spec, near.plan.layout, 0, token))


# --- what it says -------------------------------------------------------------------------------------------


def judged(found: Found, size: Size) -> Outcome:
    """The outcome of what was measured."""
    return Outcome(
        "tensor-parallel",
        tuple(checks(found, size)),
        sentence(found),
        table(found),
        (chart(found),),
        notes(found, size),
    )


def checks(found: Found, size: Size) -> Iterator[Check]:
    """Bytes exactly, speed within the bound; the gain as planned where this host was quiet, which `notes` says.

    The short form computes next to nothing: its gain says nothing.
    """
    bound = BOUND if size == "full" else SHORT_BOUND
    for one in found.links:
        yield Check(f"bytes a token, {one.link}", one.predicted.sent_bytes, one.tensor.sent_bytes, "bytes", 0.0)
    for one in found.links:
        predicted, measured = one.predicted_tokens_per_s, one.tensor.tokens_per_s
        yield Check(f"tensor parallelism over {one.link}", predicted, measured, "tokens/s", bound)
    if size == "full" and found.others <= MOST_OTHERS:
        gain = found.links[0].one.round_s / found.links[0].near.round_s
        yield Check(
            f"gain of two ranks over {SHARED}", found.one.round_s / found.near.round_s, gain, "times", NEAR_BOUND
        )


def sentence(found: Found) -> str:
    """What was measured, in words."""
    first, worst = found.links[0], min(found.links, key=lambda one: one.tensor.tokens_per_s)
    slower = [one.link for one in found.links if one.tensor.round_s > one.one.round_s]
    behind = [one.link for one in found.links if one.tensor.round_s > one.pipeline.round_s]
    return (
        f"Two ranks exchange {found.exchanges} times and {found.near.sent_bytes / 1e3:.0f} kB a token: "
        f"{first.near.tokens_per_s:.1f} tokens/s over {SHARED} where one process makes {first.one.tokens_per_s:.1f}, "
        f"and {worst.tensor.tokens_per_s:.1f} over {worst.link}, where a pipeline of the same two makes "
        f"{worst.pipeline.tokens_per_s:.1f}. They are slower than one of them alone over {_listed(slower)}, and slower "
        f"than the pipeline over {_listed(behind)}.{_break_even(found)}"
    )


def _break_even(found: Found) -> str:
    """How much longer an exchange may take than over shared memory until two ranks are no faster than one."""
    first = found.links[0]
    spared_s = first.one.round_s - first.near.round_s
    if spared_s <= 0:
        return ""
    longest_us = 1e6 * spared_s / found.exchanges
    return f" Here an exchange may take {longest_us:.0f} µs longer than over {SHARED} until two are no faster than one."


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none of these links"


def table(found: Found) -> Table:
    """A row a link, shared memory first."""
    first = found.links[0]
    headings = ("link", "predicted", "measured", "of it exchanges", "one process", "pipeline", "bytes a token")
    near = (SHARED, _rate(found.near), _rate(first.near), _share(first.near), _rate(first.one), "-", _kb(first.near))
    rows = [
        (
            one.link,
            f"{1 / one.most_s:.1f} to {1 / one.least_s:.1f}",
            _rate(one.tensor),
            _share(one.tensor),
            _rate(one.one),
            _rate(one.pipeline),
            _kb(one.tensor),
        )
        for one in found.links
    ]
    return Table(headings, (near, *rows))


def _rate(figures: Figures) -> str:
    return f"{figures.tokens_per_s:.1f} tokens/s" if figures.round_s else "-"


def _share(figures: Figures) -> str:
    return f"{100 * figures.bubble:.0f} %"


def _kb(figures: Figures) -> str:
    return f"{figures.sent_bytes / 1e3:.1f} kB"


def chart(found: Found) -> Chart:
    """Tokens/s over each link."""
    names = tuple(one.link for one in found.links)
    first = found.links[0]
    everywhere = (SHARED, *names)
    near = 1 / found.near.round_s if found.near.round_s else first.near.tokens_per_s
    return Chart(
        "Two machines of one core share every layer",
        "what joins them",
        "tokens/s of one user",
        (
            Series("tensor", everywhere, (near, *(1 / one.most_s for one in found.links)), False),
            Series("tensor", everywhere, (first.near.tokens_per_s, *(one.tensor.tokens_per_s for one in found.links))),
            Series("pipeline", names, tuple(one.pipeline.tokens_per_s for one in found.links)),
            Series("one machine", everywhere, tuple(one.one.tokens_per_s for one in (first, *found.links))),
        ),
        bars=True,
    )


NOTES = (
    "Every rank computes on one core, as a machine of its own would; the links are emulated on this host, latency and "
    "bandwidth, without losses.",
    "10 Gb/s is emulated with a latency of 100 µs, three times that of a good network: less cannot be told apart from "
    "what the system takes to hand over a message.",
    "Predicted is what the ranks computed in the same answers, or what shared memory takes in the same minute, and "
    "what the link adds to each exchange by the plan. On a quiet host both are the same; on a busy one a rank that "
    "waits for its link may wait for a core meanwhile. Over shared memory it is the plan's own.",
)


def notes(found: Found, size: Size) -> tuple[str, ...]:
    """What must be known of the figures."""
    if size == "short" or found.others <= MOST_OTHERS:
        return (*NOTES, *short_notes(size))
    return (*NOTES, "As others used this host, the gain over shared memory is not held against the plan's.")
