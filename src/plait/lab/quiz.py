"""The quiz: two machines, one slow link, a model that fits neither. What will be observed?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from plait.costs.profiles import MEASURED
from plait.lab.answers import SHORT_BOUND, SHORT_POINTS, Bench, Figures, Way, loaded, short_notes, take_turns
from plait.lab.benches import opened
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.links import SLOWER, named_link
from plait.planner.plan import plan
from plait.planner.result import Candidate, Choice, Rejected
from plait.plans.plan import Plan
from plait.spec.cluster import Cluster, Device, Host, Network
from plait.spec.emulation import EmulatedLinks
from plait.spec.job import Job
from plait.units import format_bytes

MACHINES = ("left", "right")
ONE, PIPELINE, TENSOR = "one device", "pipeline", "tensor"
SPLIT = PIPELINE, TENSOR

TIME_BOUND = 0.25
"""Of tokens/s beside shared memory. What a link adds is known to a few per cent, the rest is measured in the same
minute; on a host that others use two such medians differ by up to a fifth."""

PLAN_BOUND = 0.5
"""Of tokens/s as the planner has them: it knows a core from a probe, which multiplies matrices and nothing else, in
another minute; what lies between two products is not in it."""

IDLE_POINTS = 10.0
"""Of the share of time in which a machine idles: a fifth more of computing is 10 points of a half."""

_PROBE_S = 6.0


class Seen(NamedTuple):
    """A way to split: what the planner says of it, and what it took over the slow link and over shared memory."""

    candidate: Candidate
    measured: Figures
    near: Figures

    @property
    def planned_s(self) -> float:
        """Seconds a token, by the planner."""
        return self.candidate.predicted["time_per_token_s"]

    @property
    def link_s(self) -> float:
        """What the link takes of it, by the planner: all but what the stages compute one after another."""
        return self.planned_s - len(self.candidate.cut) * self.candidate.predicted["compute_s"]

    @property
    def predicted_s(self) -> float:
        """Seconds a token: what the same split takes over shared memory in the same minute, and the link."""
        return self.near.round_s + self.link_s

    @property
    def idle(self) -> float:
        """The predicted share of time in which a machine does not compute, the mean of both."""
        return 1 - sum(self.near.compute_s) / len(self.near.compute_s) / self.predicted_s


@dataclass(frozen=True, slots=True)
class Found:
    """The planner's answer, why one machine cannot do it alone, and the ways that were measured.

    `whole`: one process with all the memory that it needs, as no machine of the quiz has it; `whole_s`: by the planner.
    """

    choice: Choice
    alone: Rejected
    ways: tuple[Seen, ...]
    whole: Figures
    whole_s: float

    @property
    def chosen(self) -> Seen:
        """The planner's."""
        return next(one for one in self.ways if one.candidate.kind == self.choice.chosen.kind)

    @property
    def fastest(self) -> Seen:
        """As measured."""
        return min(self.ways, key=lambda one: one.measured.round_s)

    @property
    def other(self) -> Seen:
        """The best that the planner did not choose."""
        return next(one for one in self.ways if one.candidate.kind != self.choice.chosen.kind)


def measure(size: Size, say: Say) -> Outcome:
    """Ask the planner, then look."""
    link = named_link(SLOWER, size).link
    with opened(size, say, tokens=16) as bench:
        machine = _probed(say) if size == "full" else _SWIFT
        return judged(_found(bench, link, asked(bench, machine, link), say), size)


_SWIFT = Device(MACHINES[0], MACHINES[0], 1, {"float32": 1e15}, 1e15, MEASURED)
"""Computes in no time, as the small model does, about."""


def _probed(say: Say) -> Device:
    """One core of this machine while another one computes beside it, as a device. Its memory is not asked."""
    from plait.prober.probe import probe

    say("measuring two cores of this machine")
    core = probe(ranks=len(MACHINES), seconds=_PROBE_S, say=say).devices[0].computed.by_threads[0]
    flops = {name: found.value for name, found in core.flops.items()}
    read = core.read_bytes_per_s["float32"].value
    return Device(MACHINES[0], MACHINES[0], 1, flops, read, MEASURED)


def cluster(device: Device, memory_bytes: int, link: EmulatedLinks) -> Cluster:
    """Two machines like `device` with that memory each."""
    devices = tuple(replace(device, name=f"{name}-cpu", host=name, memory_bytes=memory_bytes) for name in MACHINES)
    return Cluster(tuple(map(Host, MACHINES)), devices, (), Network(link.wire, link.wire))


class Answered(NamedTuple):
    """The planner's choice, why one machine is rejected, and seconds a token on one that had the memory."""

    choice: Choice
    alone: Rejected
    alone_s: float


def asked(bench: Bench, device: Device, link: EmulatedLinks) -> Answered:
    """What the planner says of machines of which neither holds the model.

    Each has what lies in the middle between all that the model needs and what its larger half does.
    """
    spec, job = bench.index.spec, Job(len(bench.prompt), bench.tokens)
    roomy = _best(plan(spec, cluster(device, _PLENTY, link), job, dtype="float32"))
    needs = {kind: max(one.need_bytes for one in candidate.memory) for kind, candidate in roomy.items()}
    memory_bytes = (needs[ONE] + max(needs[kind] for kind in SPLIT)) // 2
    choice = plan(spec, cluster(device, memory_bytes, link), job, dtype="float32")
    rejected = next(one for one in choice.rejected if max(one.split.values()) == 1)
    return Answered(choice, rejected, roomy[ONE].predicted["time_per_token_s"])


_PLENTY = 1 << 50


def _best(choice: Choice) -> dict[str, Candidate]:
    """Of each kind of split, the candidate that is ranked first."""
    return {one.kind: one for one in reversed(choice.candidates)}


def _found(bench: Bench, link: EmulatedLinks, answered: Answered, say: Say) -> Found:
    best = _best(answered.choice)
    whole = Way(layers=(bench.index.spec.layers,))
    say(f"a pipeline over {SLOWER} and over shared memory, and one process")
    pipeline, alone = _measured(bench, best[PIPELINE], link, whole)
    say(f"a tensor split over {SLOWER} and over shared memory")
    tensor, _ = _measured(bench, best[TENSOR], link)
    return Found(answered.choice, answered.alone, (pipeline, tensor), alone[0], answered.alone_s)


def _measured(
    bench: Bench, candidate: Candidate, link: EmulatedLinks, *beside: Way
) -> tuple[Seen, tuple[Figures, ...]]:
    """The candidate over the link and over shared memory, and other ways beside it, taking turns."""
    far = _way(candidate.plan, link)
    with ExitStack() as stack:
        answers = [stack.enter_context(loaded(bench, way)) for way in (far, replace(far, link=None), *beside)]
        take_turns(answers, bench.repetitions)
        for one in answers:
            one.finish()
    measured, near, *others = (one.measured() for one in answers)
    return Seen(candidate, measured, near), tuple(others)


def _way(made: object, link: EmulatedLinks) -> Way:
    """The planner's plan on this host: the same axes, cut and link."""
    assert isinstance(made, Plan)
    layers = tuple(stage.layer_count for stage in made.layout.stages)
    return Way(len(layers), made.layout.tp, link=link, layers=layers)


# --- what it says -------------------------------------------------------------------------------------------


def judged(found: Found, size: Size) -> Outcome:
    """The outcome of what was measured."""
    return Outcome(
        "quiz",
        tuple(checks(found, size)),
        sentence(found),
        table(found),
        (chart(found),),
        (*notes(found), *short_notes(size)),
    )


def checks(found: Found, size: Size) -> Iterator[Check]:
    """The choice and the bytes exactly; times and idle shares within their bounds."""
    bound, points = (TIME_BOUND, IDLE_POINTS) if size == "full" else (SHORT_BOUND, SHORT_POINTS)
    slower = found.chosen.measured.round_s / found.fastest.measured.round_s
    yield Check("the planner's choice against the fastest way measured", 1.0, slower, "times", 0.0)
    for one in found.ways:
        kind, sent = one.candidate.kind, one.candidate.predicted["comm_bytes"]
        yield Check(f"bytes a token, {kind}", sent, one.measured.sent_bytes, "bytes", 0.0)
        yield Check(f"{kind} over {SLOWER}", 1 / one.predicted_s, one.measured.tokens_per_s, "tokens/s", bound)
        idle = 100 * one.idle, 100 * one.measured.bubble
        yield Check(f"idle share of both machines, {kind}", *idle, "points", points, relative=False)
    if size == "full":
        chosen = found.chosen
        planned = 1 / chosen.planned_s, chosen.measured.tokens_per_s
        yield Check(f"{chosen.candidate.kind} as planned from the probe", *planned, "tokens/s", PLAN_BOUND)


def sentence(found: Found) -> str:
    """The answer, in words."""
    chosen, other = found.chosen, found.other
    idle = " and ".join(f"{100 * share:.0f} %" for share in idle_shares(chosen.measured))
    ratio = other.measured.round_s / chosen.measured.round_s
    return (
        f"Each machine has {format_bytes(found.alone.have)} and the model needs {format_bytes(found.alone.need)}; the "
        f"planner splits it as a {chosen.candidate.kind}. A token takes {1e3 * chosen.measured.round_s:.1f} ms "
        f"({1e3 * chosen.predicted_s:.1f} predicted) where one machine that held it all would take "
        f"{1e3 * found.whole.round_s:.1f} ms; the machines idle {idle} of the time and send "
        f"{chosen.measured.sent_bytes / 1e3:.1f} kB a token. As a {other.candidate.kind} split it takes "
        f"{1e3 * other.measured.round_s:.1f} ms ({1e3 * other.predicted_s:.1f} predicted), {ratio:.1f} times as long, "
        f"and sends {other.measured.sent_bytes / 1e3:.0f} kB."
    )


def idle_shares(figures: Figures) -> tuple[float, ...]:
    """Of each stage's machines."""
    return tuple(1 - computed_s / figures.round_s for computed_s in figures.compute_s)


def table(found: Found) -> Table:
    """What people expect, and what is."""
    headings = (
        "answer",
        "way",
        "a token, planner",
        "beside shared memory",
        "measured",
        "machines idle",
        "bytes a token",
        "right",
    )
    need = f"needs {format_bytes(found.alone.need)}, has {format_bytes(found.alone.have)}"
    rows: list[tuple[str, ...]] = [("a", "one machine alone", need, "-", "-", "-", "-", "no")]
    for letter, kind in (("b, c", TENSOR), ("d", PIPELINE)):
        one = next(seen for seen in found.ways if seen.candidate.kind == kind)
        rows.append((letter, kind, *_cells(one), "yes" if one is found.fastest else "no"))
    whole = (
        "",
        "one machine with memory for all",
        f"{1e3 * found.whole_s:.1f} ms",
        "-",
        f"{1e3 * found.whole.round_s:.1f} ms",
        "0 %",
        "0",
        "-",
    )
    return Table(headings, (*rows, whole))


def _cells(one: Seen) -> tuple[str, ...]:
    return (
        f"{1e3 * one.planned_s:.1f} ms",
        f"{1e3 * one.predicted_s:.1f} ms",
        f"{1e3 * one.measured.round_s:.1f} ms",
        ", ".join(f"{100 * share:.0f} %" for share in idle_shares(one.measured)),
        f"{one.measured.sent_bytes / 1e3:.1f} kB",
    )


def chart(found: Found) -> Chart:
    """A token's time, by way."""
    kinds = tuple(one.candidate.kind for one in found.ways)
    return Chart(
        f"Two machines and {SLOWER}: what a token takes",
        "split",
        "ms a token",
        (
            Series("two machines", kinds, tuple(1e3 * one.predicted_s for one in found.ways), measured=False),
            Series("two machines", kinds, tuple(1e3 * one.measured.round_s for one in found.ways)),
            Series("one machine that holds it", kinds, (1e3 * found.whole.round_s,) * len(kinds)),
        ),
        bars=True,
    )


def notes(found: Found) -> tuple[str, ...]:
    """What must be known of the figures."""
    return (
        "Fits neither: to the planner each machine has less memory than the model, its cache, workspace and process "
        f"need, and more than either half of it; it rejects one machine: {found.alone.reason}.",
        "Both machines are cores of this host, joined by an emulated link without losses; here each could hold the "
        "model, and so one process is measured too.",
        f"The planner's reason: {found.choice.reason}.",
        "Predicted is what the same split takes over shared memory in the same minute, and what the planner says that "
        "the link takes; the planner's own figure stands beside it.",
        *(f"Where the answer changes: {one.text}." for one in found.choice.break_even),
    )
