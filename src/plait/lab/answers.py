"""Answers of one model, split in several ways that take turns: what each takes, beside the others and as predicted.

A rank computes on one core, so that every rank is a machine of one core: what idles is not helped out by the rest of
this host. The ways stay loaded and answer in turn; so what else this host does meanwhile falls on all of them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from plait.costs.protocol import FREE, Costs, FixedCosts, LinkCost
from plait.generation.launch import Ranks
from plait.generation.protocol import Submit
from plait.generation.session import Session
from plait.lab.experiment import Size
from plait.lab.reading import even_layers
from plait.planner.capacity import require_memory
from plait.planner.local import Wishes, plan_local
from plait.plans.action import Kind
from plait.plans.plan import GRID, Plan
from plait.plans.round import Round
from plait.plans.sampling import SamplingParams
from plait.prober.host import free_memory_here
from plait.schedules.forecast import forecast_rounds
from plait.schedules.generation import LAYERWISE, PIPELINED
from plait.simulator.simulate import simulate
from plait.spec.emulation import EmulatedLinks
from plait.timeline.compare import COMPUTE, parts
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline
from plait.tracer.tracer import Tracer, merge
from plait.weights.index import WeightsIndex

SHORT_BOUND = 0.6
"""Of every rate in the short form, which computes next to nothing and runs on busy hosts: a link is never early, but
its ranks, threads that take turns with one interpreter, may have a message 1.5 times later than it."""

SHORT_POINTS = 25.0
"""Of every idle share in the short form."""


def short_notes(size: Size) -> tuple[str, ...]:
    """What must be known of the short form's figures; nothing of the full one's."""
    if size == "full":
        return ()
    return (
        "The short form: threads of one process and a random model so small that it computes next to nothing, over "
        "links of longer latency. It shows that prediction and measurement are made, not what this machine does.",
    )


@dataclass(frozen=True, slots=True)
class Way:
    """One way to split. `link`: what joins the ranks; shared memory where there is none. `users`: slots.

    `layers`: of each stage; where they are not given, so many that all read as much of the weights.
    """

    stages: int = 1
    tp: int = 1
    micro_batches: int = 1
    users: int = 1
    link: EmulatedLinks | None = None
    layers: tuple[int, ...] | None = None

    @property
    def schedule(self) -> str:
        """One micro-batch in flight is layer-wise."""
        return LAYERWISE if self.micro_batches == 1 else PIPELINED


class Figures(NamedTuple):
    """Of rounds in which all users decode, the median of each. `round_s`: from one token of a user to the next.

    `bubble`: the share of it in which a rank does not compute, the mean of all ranks.

    `sent_bytes`: what all ranks send in a round. `compute_s`: what a rank of each stage computes in a round.
    `forwards`: forwards of the first stage in a round.
    """

    users: int
    round_s: float
    bubble: float
    sent_bytes: float
    compute_s: tuple[float, ...]
    forwards: float

    @property
    def tokens_per_s(self) -> float:
        """Of all users together."""
        return self.users / self.round_s


def decoding(timeline: Timeline, rounds: Sequence[Round], users: int) -> Figures:
    """The figures of those rounds in which `users` tokens are computed, and nothing else."""
    chosen = [one for one in rounds if _decoded(one) == users]
    assert len(chosen) > 1, f"{len(chosen)} rounds of {len(rounds)} decode {users} tokens, so there is no time between"
    numbers = {one.number for one in chosen}
    spans = [span for span in timeline.spans if span.action.round in numbers]
    round_s = statistics.median(_gaps_s(spans))
    computed_s = _computed_s(spans)
    begun = {span.action for span in spans if (span.action.kind, span.action.stage) == (Kind.FORWARD, 0)}
    return Figures(
        users,
        round_s,
        1 - statistics.mean(computed_s) / round_s if round_s > 0 else 0.0,
        sum(span.payload_bytes for span in spans) / len(chosen),
        computed_s,
        len(begun) / len(chosen),
    )


def _gaps_s(spans: Iterable[Span]) -> Iterator[float]:
    """Between one token and the next of each micro-batch, as the first stage's first rank has them."""
    ends_s: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for span in spans:
        if span.action.stage == 0 and span.rank == 0:
            ends_s[span.action.kind, span.action.micro_batch].append(span.end_s)
    came = Kind.RECEIVE_TOKENS if any(kind is Kind.RECEIVE_TOKENS for kind, _ in ends_s) else Kind.FORWARD
    for (kind, _), moments in ends_s.items():
        if kind is came:
            yield from (after - before for before, after in pairwise(sorted(moments)))


def _computed_s(spans: Iterable[Span]) -> tuple[float, ...]:
    """What a rank of each stage computes in a round: the mean of its ranks, the median of the rounds."""
    found: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    ranks: dict[int, set[int]] = defaultdict(set)
    for span in spans:
        ranks[span.action.stage].add(span.rank)
        if span.action.kind is Kind.FORWARD:
            computed = sum(part.end_s - part.start_s for part in parts(span) if part.what == COMPUTE)
            found[span.action.stage][span.action.round] += computed
    return tuple(statistics.median(found[stage].values()) / len(ranks[stage]) for stage in sorted(found))


def _decoded(one: Round) -> int:
    """Tokens that the round decodes; 0 where it computes a prompt."""
    lengths = [row.length for micro_batch in one.work for row in micro_batch.rows]
    return len(lengths) if max(lengths, default=0) == 1 else 0


@dataclass(frozen=True, slots=True)
class Bench:
    """What all ways have in common: the model, its prompt, tokens of an answer, how often each is asked.

    `launch` starts a way's ranks, `costs` is what a way is predicted with.
    """

    name: str
    index: WeightsIndex
    prompt: tuple[int, ...]
    tokens: int
    repetitions: int
    launch: Callable[[Way, Plan], Ranks]
    costs: Callable[[Way, Plan], Costs]

    def plan(self, way: Way) -> Plan:
        """The way as a plan, cut where stages read as much. Errors: PlanError."""
        positions = len(self.prompt) + self.tokens
        wishes = Wishes(
            model=self.name,
            prompts=(len(self.prompt),) * way.users,
            max_tokens=self.tokens,
            context=-(-positions // GRID) * GRID,
            stages=way.stages,
            layers=way.layers or even_layers(self.index.spec, way.stages),
            tp=way.tp,
            schedule=way.schedule,
            micro_batches=way.micro_batches,
            chunk=GRID,
            threads=1,
        )
        return plan_local(self.index.spec, wishes, lambda draft: FixedCosts())  # nothing is left that costs decide on

    def predicted(self, way: Way, users: int = 1) -> Figures:
        """What so many users take, by the simulator."""
        plan = self.plan(way)
        return self._simulated(plan, self.costs(way, plan), users)

    def paced(self, way: Way, users: int, seconds: Sequence[float]) -> Figures:
        """What they take, by the simulator, where a forward of each stage takes so many seconds, whoever else computes.

        Hops take what their link does, and nothing over shared memory.
        """
        wire = way.link.wire if way.link else None
        hop = LinkCost(wire.latency_s, wire.bandwidth) if wire else FREE
        return self._simulated(self.plan(way), FixedCosts(dict(enumerate(seconds)), any_link=hop), users)

    def _simulated(self, plan: Plan, costs: Costs, users: int) -> Figures:
        rounds = forecast_rounds(plan, [len(self.prompt)] * users, self.tokens)
        return decoding(simulate(plan.layout, rounds, costs, self.index.spec), rounds, users)


class _Asked(NamedTuple):
    """Requests that were in flight together."""

    turn: str
    first: int
    users: int


@dataclass(slots=True)
class Answers:
    """A way that is loaded, and then what it took. `weight_bytes`: what each rank has loaded."""

    bench: Bench
    way: Way
    plan: Plan
    _session: Session
    weight_bytes: tuple[int, ...] = ()
    _asked: list[_Asked] = field(default_factory=list)
    _rounds: tuple[Round, ...] = ()
    _measured: Timeline | None = None

    def ask(self, turn: str = "", users: int = 1) -> None:
        """Have so many users answered. `turn`: under which name the figures are asked for later."""
        last = self._asked[-1] if self._asked else _Asked("", 0, 0)
        asked = _Asked(turn, last.first + last.users, users)
        self._asked.append(asked)
        prompt = list(self.bench.prompt)
        for request in range(asked.first, asked.first + users):
            self._session.submit(Submit(request, prompt, self.bench.tokens, [], SamplingParams()))
        for _ in self._session.tokens(users):
            pass

    def finish(self) -> None:
        """End the ranks; figures are there from now on. Errors: as `Session`."""
        finished = self._session.finish()
        self._rounds = tuple(recipe.make(len(self.plan.layout.stages)) for recipe in finished[0].rounds)
        self._measured = merge([Tracer.decode(one.spans) for one in finished])

    def timelines(self, turn: str = "", users: int = 1) -> Iterator[tuple[Timeline, tuple[Round, ...]]]:
        """Each time that so many users were asked in that turn, and the rounds that answered them."""
        assert self._measured is not None, "finish first"
        for asked in self._asked:
            if (asked.turn, asked.users) == (turn, users):
                wanted = range(asked.first, asked.first + asked.users)
                rounds = tuple(one for one in self._rounds if _requests(one) & set(wanted))
                numbers = {one.number for one in rounds}
                spans = tuple(span for span in self._measured.spans if span.action.round in numbers)
                yield Timeline("measured", spans, self._measured.hosts), rounds

    def measured(self, turn: str = "", users: int = 1) -> Figures:
        """The median of every figure over all times that so many users were asked in that turn."""
        found = [decoding(timeline, rounds, users) for timeline, rounds in self.timelines(turn, users)]
        assert found, f"nobody asked for {users} users in turn {turn!r}"
        return median(found)


def median(found: Sequence[Figures]) -> Figures:
    """Figure by figure."""
    stages = range(len(found[0].compute_s))
    return Figures(
        found[0].users,
        statistics.median(one.round_s for one in found),
        statistics.median(one.bubble for one in found),
        statistics.median(one.sent_bytes for one in found),
        tuple(statistics.median(one.compute_s[stage] for one in found) for stage in stages),
        statistics.median(one.forwards for one in found),
    )


def _requests(one: Round) -> set[int]:
    return {row.request for micro_batch in one.work for row in micro_batch.rows}


WARM_UP = "warm up"
"""The turn in which a way is asked before it counts."""


@contextmanager
def loaded(bench: Bench, way: Way, users: int = 1) -> Iterator[Answers]:
    """The way, loaded and asked once. Its ranks end with the block.

    Errors: CapacityError where this host has no memory left for it; whatever a rank failed with.
    """
    plan = bench.plan(way)
    require_memory(plan, bench.index.spec, {plan.layout.stages[0].host: free_memory_here()})
    with Session(plan, bench.launch(way, plan)) as session:
        session.wait_ready()
        ready = [session.ready[rank].weight_bytes for rank in sorted(session.ready)]
        answers = Answers(bench, way, plan, session, tuple(ready))
        answers.ask(WARM_UP, users)
        yield answers


def take_turns(ways: Sequence[Answers], repetitions: int, turn: str = "", users: Sequence[int] = (1,)) -> None:
    """Ask all ways one after the other, again and again: what else the host does meanwhile falls on all of them."""
    for _ in range(repetitions):
        for count in users:
            for way in ways:
                way.ask(turn, count)


def beside_s(near: Figures, near_predicted: Figures, predicted: Figures) -> float:
    """Seconds of a round of a way: what the same split takes over shared memory beside it, and what its link adds.

    The plan predicts both over shared memory and over the link; only the difference counts, so that neither an old
    calibration nor other work on this host is taken for the link's.
    """
    return near.round_s + predicted.round_s - near_predicted.round_s
