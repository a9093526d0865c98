"""Runs requests through a plan: token ids in, token ids out, with the timeline of how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plait.generation.launch import ProcessRanks, Ranks
from plait.generation.protocol import Finished, Submit
from plait.generation.session import Session
from plait.generation.watch import Unwatched, Watch
from plait.plans.plan import Plan
from plait.plans.round import Round
from plait.plans.sampling import SamplingParams
from plait.schedules.batching import check_request
from plait.timeline.record import RoundRecipe
from plait.timeline.timeline import Clock, Timeline
from plait.tracer.tracer import Tracer, merge
from plait.weights.index import WeightsIndex

Launch = Callable[[Plan, WeightsIndex], Ranks]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt's tokens, how many more at most, the tokens that end the answer, and how it is sampled."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logits: bool = False


@dataclass(slots=True)
class Answer:
    """A request's tokens; the one that ended it stands last. `finish_reason` is "stop" or "length".

    `logits` holds what each token was drawn from, float32 [vocab] as bytes, where the request asked for it.
    """

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logits: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answers in the order of the requests; the rounds that made them, and when everything ran."""

    answers: tuple[Answer, ...]
    recipes: tuple[RoundRecipe, ...]
    rounds: tuple[Round, ...]
    measured: Timeline
    ranks: tuple[Finished, ...]
    weight_bytes: tuple[int, ...]


def answer(
    plan: Plan,
    index: WeightsIndex,
    requests: Sequence[Request],
    launch: Launch = ProcessRanks,
    watch: Watch | None = None,
) -> Outcome:
    """Start the plan's ranks, answer the requests, end the ranks. Request i is sampled as request number i.

    Errors: RequestError where a request does not fit the plan's context; whatever a rank failed with; PeerLost.
    """
    watch = watch or Unwatched()
    for number, request in enumerate(requests):
        check_request(number, len(request.prompt), request.max_tokens, plan.context)
    ranks = launch(plan, index)
    with Session(plan, ranks) as session:
        session.wait_ready(watch.loading)
        watch.ready()
        answers = _collect(session, requests, watch)
        finished = session.finish()
        for number, one in enumerate(answers):
            shown = session.logits(number)
            one.logits = [shown[one.prompt_tokens + index] for index in range(len(one.tokens) if shown else 0)]
        weights = tuple(session.ready[rank].weight_bytes for rank in sorted(session.ready))
        clocks = ranks.places.clocks
    return _outcome(plan, answers, tuple(finished), weights, clocks)


def _collect(session: Session, requests: Sequence[Request], watch: Watch) -> list[Answer]:
    answers = [Answer(len(request.prompt)) for request in requests]
    for number, request in enumerate(requests):
        prompt, stop = list(request.prompt), list(request.stop)
        session.submit(Submit(number, prompt, request.max_tokens, stop, request.sampling, request.logits))
    for token in session.tokens(len(requests)):
        one = answers[token.request]
        one.tokens.append(token.token)
        one.finish_reason = token.finish_reason or ""
        watch.token(token)
    return answers


def _outcome(
    plan: Plan,
    answers: Sequence[Answer],
    finished: tuple[Finished, ...],
    weight_bytes: tuple[int, ...],
    clocks: Mapping[str, Clock],
) -> Outcome:
    recipes = tuple(finished[0].rounds)
    measured = merge([Tracer.decode(one.spans) for one in finished], clocks)
    rounds = tuple(recipe.make(len(plan.layout.stages)) for recipe in recipes)
    return Outcome(tuple(answers), recipes, rounds, measured, finished, weight_bytes)
