"""Many users: they fill the pipeline that one user cannot, and what cutting them into micro-batches costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.lab.answers import SHORT_BOUND, SHORT_POINTS, Answers, Bench, Figures, Way, loaded, short_notes, take_turns
from plait.lab.benches import opened
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.links import SLOW, named_link
from plait.lab.reading import looked_up, read_weights

USERS, SHORT_USERS = (1, 2, 4, 8), (1, 2, 4)
STAGES = 2

RATE_BOUND = 0.35
"""Of tokens/s of the pipeline, from what its stages took layer-wise in the same minute. Computing at the same time they
share this host's memory: of twice the tokens, 88 to 93 % were reached where the host was quiet (docs/benchmarks.md).
The rest is for a host that others use, which seldom grants both cores at once."""

BUBBLE_POINTS = 12.0
"""A stage that the other one's reading slows down by a tenth leaves that one idle for 5 points; a core that others use
for a moment makes both wait."""


class Taken(NamedTuple):
    """Some users over one way. `read_bytes`: of weights, for a token, as predicted and as measured."""

    predicted: Figures
    measured: Figures
    read_bytes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured, by users. `memory_bytes_per_s`: of one core's products, beside another; None: not asked.

    `weights`: bytes that a token of one user reads.
    """

    layer_wise: Mapping[int, Taken]
    pipelined: Mapping[int, Taken]
    weights: int
    memory_bytes_per_s: float | None = None


def measure(size: Size, say: Say) -> Outcome:
    """Measure both ways with every number of users."""
    counts = USERS if size == "full" else SHORT_USERS
    memory = _memory(say) if size == "full" else None
    hop = named_link(SLOW, size).link if size == "short" else None  # where computing takes next to nothing
    with opened(size, say, tokens=16) as bench:
        ways = [Way(STAGES, micro_batches=parts, users=max(counts), link=hop) for parts in (1, STAGES)]
        say(f"{', '.join(map(str, counts))} users, layer-wise and pipelined")
        with loaded(bench, ways[0]) as layer_wise, loaded(bench, ways[1]) as pipelined:
            take_turns((layer_wise, pipelined), bench.repetitions, users=counts)
            layer_wise.finish()
            pipelined.finish()
        return judged(_found(bench, layer_wise, pipelined, counts, memory), size)


def _found(bench: Bench, layer_wise: Answers, pipelined: Answers, counts: Sequence[int], memory: float | None) -> Found:
    """A micro-batch is predicted to take what as many users took layer-wise, one stage after the other."""
    alone = {users: layer_wise.measured(users=users) for users in counts}

    def taken(answers: Answers, users: int) -> Taken:
        parts = min(answers.way.micro_batches, users)
        measured = alone[users] if answers is layer_wise else answers.measured(users=users)
        predicted = bench.paced(answers.way, users, alone[users // parts].compute_s)
        read = read_weights(bench.index.spec)
        held = sum(answers.weight_bytes) - looked_up(bench.index.spec)
        return Taken(predicted, measured, (parts * read / users, measured.forwards * held / users))

    both = [{users: taken(answers, users) for users in counts} for answers in (layer_wise, pipelined)]
    return Found(both[0], both[1], read_weights(bench.index.spec), memory)


def _memory(say: Say) -> float:
    """Bytes of weights a second that one core computes with, while another one does the same."""
    from plait.prober.probe import probe

    say("the memory's bandwidth")
    first = probe(ranks=STAGES, seconds=_PROBE_S, say=say).devices[0].computed.by_threads[0]
    return first.read_bytes_per_s["float32"].value


_PROBE_S = 5.0


# --- what it says -------------------------------------------------------------------------------------------


def judged(found: Found, size: Size) -> Outcome:
    """The outcome of what was measured."""
    return Outcome(
        "many-users",
        tuple(checks(found, size)),
        sentence(found),
        table(found),
        charts(found),
        (*NOTES, *short_notes(size)),
    )


def checks(found: Found, size: Size) -> Iterator[Check]:
    """Bytes exactly; idle shares and rates within their bounds."""
    bound, points = (RATE_BOUND, BUBBLE_POINTS) if size == "full" else (SHORT_BOUND, SHORT_POINTS)
    for name, taken in _named(found):
        yield Check(f"weights read a token, {name}", *taken.read_bytes, "bytes", 0.0)
        shares = 100 * taken.predicted.bubble, 100 * taken.measured.bubble
        yield Check(f"idle share, {name}", *shares, "points", points, relative=False)
        rates = taken.predicted.tokens_per_s, taken.measured.tokens_per_s
        yield Check(name, *rates, "tokens/s", bound)


def _named(found: Found) -> Iterator[tuple[str, Taken]]:
    for users in found.layer_wise:
        yield f"{_users(users)} layer-wise", found.layer_wise[users]
        yield f"{_users(users)} pipelined", found.pipelined[users]


def _users(count: int) -> str:
    return f"{count} user{'s' if count > 1 else ''}"


def sentence(found: Found) -> str:
    """What was measured, in words."""
    least, most = min(found.layer_wise), max(found.layer_wise)
    one, layer_wise, pipelined = found.layer_wise[least], found.layer_wise[most], found.pipelined[most]
    return (
        f"One user leaves {100 * one.measured.bubble:.0f} % of two machines idle and gets "
        f"{one.measured.tokens_per_s:.1f} tokens/s; {most} users together get {layer_wise.measured.tokens_per_s:.1f} "
        f"layer-wise and {pipelined.measured.tokens_per_s:.1f} pipelined, with "
        f"{100 * pipelined.measured.bubble:.0f} % idle. For a token {layer_wise.read_bytes[1] / 1e6:.1f} MB of weights "
        f"are read layer-wise, and {pipelined.read_bytes[1] / 1e6:.1f} MB pipelined, of {found.weights / 1e6:.1f} MB "
        f"for one user alone{_against_memory(found, pipelined)}."
    )


def read_bytes_per_s(taken: Taken) -> float:
    """Bytes of weights a second that a machine reads while it computes, the mean of both."""
    return taken.read_bytes[1] * taken.measured.users / sum(taken.measured.compute_s)


def _against_memory(found: Found, pipelined: Taken) -> str:
    if found.memory_bytes_per_s is None:
        return ""
    rates = [read_bytes_per_s(taken) / 1e9 for taken in (found.layer_wise[min(found.layer_wise)], pipelined)]
    return (
        f"; while it computes a machine reads {rates[0]:.1f} GB/s of them for one user and {rates[1]:.1f} GB/s for "
        f"all, of {found.memory_bytes_per_s / 1e9:.1f} GB/s that its memory gives"
    )


def table(found: Found) -> Table:
    """A row a number of users and way."""
    headings = ("users", "way", "predicted", "measured", "idle, predicted", "measured", "weights a token", "read")
    rows = []
    for users in found.layer_wise:
        for name, taken in (("layer-wise", found.layer_wise[users]), ("pipelined", found.pipelined[users])):
            rows.append((str(users), name, *_figures(taken)))
    return Table(headings, tuple(rows))


def _figures(taken: Taken) -> tuple[str, ...]:
    return (
        f"{taken.predicted.tokens_per_s:.1f} tokens/s",
        f"{taken.measured.tokens_per_s:.1f} tokens/s",
        f"{100 * taken.predicted.bubble:.0f} %",
        f"{100 * taken.measured.bubble:.0f} %",
        f"{taken.read_bytes[1] / 1e6:.1f} MB",
        f"{read_bytes_per_s(taken) / 1e9:.1f} GB/s",
    )


def charts(found: Found) -> tuple[Chart, ...]:
    """Tokens/s, and weights read a token, over users."""
    ways = (("layer-wise", found.layer_wise), ("pipelined", found.pipelined))
    rates: list[Series] = []
    reads: list[Series] = []
    for name, taken in ways:
        at = tuple(map(float, taken))
        rates.append(Series(name, at, tuple(one.predicted.tokens_per_s for one in taken.values()), measured=False))
        rates.append(Series(name, at, tuple(one.measured.tokens_per_s for one in taken.values())))
        reads.append(Series(name, at, tuple(one.read_bytes[0] / 1e6 for one in taken.values()), measured=False))
        reads.append(Series(name, at, tuple(one.read_bytes[1] / 1e6 for one in taken.values())))
    return (
        Chart("Users fill the pipeline", "users", "tokens/s of all users", tuple(rates), x_log=True),
        Chart("What a token reads of the weights", "users", "MB", tuple(reads), x_log=True, y_log=True),
    )


NOTES = (
    "Every rank computes on one core, as a machine of its own would; but both share this host's memory, so that "
    "pipelined each has less of its bandwidth than alone.",
    "Both plans hold eight users; fewer of them leave places empty.",
    "Weights read are the tensors that a stage computes with, once for every forward; caches of keys and values, which "
    "grow with the answer, come on top.",
)
