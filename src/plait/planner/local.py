"""The plan for ranks of one host: schedule, micro-batches, chunk and cut, chosen by simulation, with the reason.

Tensor groups are as asked for: nothing here decides whether to split inside a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.costs.protocol import Costs
from plait.errors import PlanError
from plait.planner.cut import Cut, balanced_cut, cut_by_hand, require_stages
from plait.plans.layout import Layout, Stage
from plait.plans.plan import GRID, Plan, check_plan
from plait.plans.round import MicroBatch, Row
from plait.schedules.forecast import forecast_rounds
from plait.schedules.generation import LAYERWISE, PIPELINED, require_schedule
from plait.schedules.prove import prove_plan
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.metrics import generation_metrics
from plait.units import format_seconds

CostsOf = Callable[[Plan], Costs]
"""The costs of a plan: measured on this host, or formulas."""

_LEAST_CAPACITY = 4
"""Messages that a link holds: enough that a stage which runs ahead does not keep its messages back."""

_CHUNKS = (64, 128, 256, 512)
_FORECAST_TOKENS = 12
"""Tokens that are simulated per request; the rest of an answer goes on at the same rate."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asks of a local plan; None lets the cost model choose.

    `prompts`: tokens of each request's prompt. `layers`: layers of each stage. `tp`: ranks that share each layer,
    `shares` what each of them gets, in proportion; `sequence` splits activations between the blocks over them.
    """

    model: str
    prompts: tuple[int, ...]
    max_tokens: int
    context: int
    stages: int | None = None
    layers: tuple[int, ...] | None = None
    schedule: str = "auto"
    micro_batches: int | None = None
    chunk: int | None = None
    threads: int | None = None
    dtype: str = "float32"
    cores: int = 1
    tp: int = 1
    shares: tuple[int, ...] = ()
    sequence: bool = False

    @property
    def stage_count(self) -> int:
        """Stages asked for, by number or by layers; 1 otherwise."""
        return len(self.layers or (1,)) if self.stages is None else self.stages


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and how long its job takes as predicted.

    `figures`: the design's keys of what was simulated, which is the job's first `simulated_tokens` of each answer.
    """

    plan: Plan
    job_s: float
    time_per_token_s: float
    figures: Mapping[str, float] = field(default_factory=dict)
    simulated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LocalChoice:
    """The plan with its reason, and what it was chosen from: `best` is one of `candidates`.

    `alone`: one process in place of several stages, which nobody asked for, where what is known of the stages tells it.
    """

    plan: Plan
    best: Candidate
    candidates: tuple[Candidate, ...]
    alone: Candidate | None = None


def plan_local(spec: ModelSpec, wishes: Wishes, costs_of: CostsOf) -> Plan:
    """The fastest plan within the wishes, with its reason. Errors: PlanError, RequestError."""
    return choose_local(spec, wishes, costs_of).plan


def choose_local(spec: ModelSpec, wishes: Wishes, costs_of: CostsOf) -> LocalChoice:
    """The same, with what else was looked at. Errors: PlanError, RequestError."""
    if wishes.schedule != "auto":
        require_schedule(wishes.schedule)
    if wishes.schedule == LAYERWISE and wishes.micro_batches not in (None, 1):
        raise PlanError(
            f"{wishes.micro_batches} micro-batches were asked for, but layer-wise has one in flight: "
            f"--schedule pipelined --micro-batches {wishes.micro_batches} has them all"
        )
    require_stages(wishes.stage_count, spec.layers)
    if wishes.layers is not None:
        cut_by_hand(wishes.layers, spec.layers, wishes.stages)
    priced = [(plan, costs_of(plan)) for plan in _plans(spec, wishes, costs_of)]
    candidates = [_simulated(spec, wishes, plan, costs) for plan, costs in priced]
    best = min(candidates, key=lambda candidate: candidate.job_s)
    plan = replace(best.plan, reason=_reason(best, candidates, wishes))
    check_plan(plan, spec)
    prove_plan(plan)
    return LocalChoice(plan, best, tuple(candidates), _alone(spec, wishes, priced))


def _alone(spec: ModelSpec, wishes: Wishes, priced: Sequence[tuple[Plan, Costs]]) -> Candidate | None:
    """One process, by the costs of a layer-wise candidate: its stages compute on all threads, as the process would.

    Nothing is measured for it: without such a candidate, or of a tensor group, nothing is known.
    """
    turns = next((each for each in priced if each[0].schedule == LAYERWISE), None)
    if turns is None or wishes.stage_count == 1 or wishes.tp > 1:
        return None
    plan, costs = turns
    one = replace(wishes, stages=1, layers=None, threads=plan.layout.stages[0].threads)
    return _simulated(spec, one, draft_plan(spec, one, LAYERWISE, 1, plan.chunk), costs)


def _plans(spec: ModelSpec, wishes: Wishes, costs_of: CostsOf) -> Iterator[Plan]:
    for schedule, micro_batches in _ways(wishes):
        for chunk in _chunks(wishes, schedule):
            yield _plan(spec, wishes, schedule, micro_batches, chunk, costs_of)


def _ways(wishes: Wishes) -> Iterator[tuple[str, int]]:
    stages, users = wishes.stage_count, len(wishes.prompts)
    asked = wishes.micro_batches
    if wishes.schedule in ("auto", LAYERWISE) and asked in (None, 1):
        yield LAYERWISE, 1
    if wishes.schedule == PIPELINED or (wishes.schedule == "auto" and (stages > 1 or asked not in (None, 1))):
        most = max(1, min(stages, users))
        yield from ((PIPELINED, count) for count in ([asked] if asked else range(1, most + 1)))


def _chunks(wishes: Wishes, schedule: str) -> Sequence[int]:
    """Sizes worth a look: layer-wise, nothing is won by cutting a prompt finer than memory asks for."""
    if wishes.chunk is not None:
        return (wishes.chunk,)
    longest = max(wishes.prompts, default=1)
    grid = -(-longest // GRID) * GRID
    if schedule == LAYERWISE:
        return (min(grid, _CHUNKS[-1]),)
    return sorted({min(grid, chunk) for chunk in _CHUNKS})


def draft_plan(spec: ModelSpec, wishes: Wishes, schedule: str, micro_batches: int, chunk: int) -> Plan:
    """The plan with equal stages: all but the cut, for which costs are needed. Errors: PlanError."""
    stages = wishes.stage_count
    at_once = 1 if schedule == LAYERWISE else min(stages, wishes.cores)
    threads = wishes.threads or max(1, wishes.cores // (at_once * max(1, wishes.tp)))
    require_stages(stages, spec.layers)
    _require_group(wishes)
    return Plan(
        wishes.model,
        _layout(_even(spec.layers, stages), wishes, threads, max(_LEAST_CAPACITY, 2 * micro_batches)),
        schedule,
        micro_batches,
        chunk,
        wishes.context,
        len(wishes.prompts),
    )


def _require_group(wishes: Wishes) -> None:
    """The tensor group can be, and what is said of it has one. Errors: PlanError."""
    tp, shares = wishes.tp, wishes.shares
    if tp < 1:
        raise PlanError(f"--tp {tp} was asked for, but a layer needs at least one rank: --tp 1 leaves it whole")
    given = f"--shares {','.join(map(str, shares))}"
    if shares and len(shares) != tp:
        raise PlanError(
            f"{given} is for {len(shares)} rank{'s' if len(shares) > 1 else ''}, but --tp makes groups of {tp}: "
            f"--tp {len(shares)}, or {tp} number{'s' if tp > 1 else ''}"
        )
    if shares and min(shares) < 1:
        raise PlanError(f"{given} gives rank {shares.index(min(shares))} of a group nothing: every share is at least 1")
    if wishes.sequence and tp == 1:
        raise PlanError(
            "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one"
        )


def _plan(spec: ModelSpec, wishes: Wishes, schedule: str, micro_batches: int, chunk: int, costs_of: CostsOf) -> Plan:
    draft = draft_plan(spec, wishes, schedule, micro_batches, chunk)
    cut = cut_by_hand(wishes.layers, spec.layers) if wishes.layers else _cut(spec, wishes, draft, costs_of(draft))
    threads = draft.layout.stages[0].threads
    return replace(draft, layout=_layout(cut, wishes, threads, draft.layout.link_capacity))


def _layout(cut: Cut, wishes: Wishes, threads: int, capacity: int) -> Layout:
    """Stage s on ranks s × tp to (s + 1) × tp - 1."""
    tp, dtype = wishes.tp, wishes.dtype
    shares = wishes.shares if tp > 1 else ()
    stages = tuple(
        Stage(layers, tuple(range(at * tp, (at + 1) * tp)), dtype, dtype, threads, shares=shares)
        for at, layers in enumerate(cut)
    )
    axes = {"pp": len(cut)} if tp == 1 else {"pp": len(cut), "tp": tp}
    return Layout(axes, stages, capacity, sequence=wishes.sequence)


def _even(layers: int, stages: int) -> Cut:
    ends = [layers * (index + 1) // stages for index in range(stages)]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def _cut(spec: ModelSpec, wishes: Wishes, draft: Plan, costs: Costs) -> Cut:
    """The cut that balances a request's whole life: its prompt's chunks and its tokens, head and embedding included."""
    longest = max(wishes.prompts)
    per_micro_batch = -(-len(wishes.prompts) // draft.micro_batches)
    middle = longest + wishes.max_tokens // 2
    token = MicroBatch(tuple(Row(slot, slot, middle, 1, True) for slot in range(per_micro_batch)))
    chunk = MicroBatch((Row(0, 0, max(0, longest - draft.chunk) // 2, min(longest, draft.chunk), False),))
    chunks_a_token = (
        len(wishes.prompts) * (longest / min(longest, draft.chunk)) / wishes.max_tokens / draft.micro_batches
    )

    def seconds(first: int, end: int) -> float:
        rest = tuple(cut for cut in ((0, first), (end, spec.layers)) if cut[0] < cut[1])
        cut = tuple(sorted((*rest, (first, end))))
        layout = _layout(cut, wishes, draft.layout.stages[0].threads, draft.layout.link_capacity)
        stage = cut.index((first, end))
        whole = costs.compute_s(layout, stage, token)
        return whole + chunks_a_token * costs.compute_s(layout, stage, chunk)

    return balanced_cut(spec.layers, len(draft.layout.stages), seconds)


def _simulated(spec: ModelSpec, wishes: Wishes, plan: Plan, costs: Costs) -> Candidate:
    tokens = min(wishes.max_tokens, _FORECAST_TOKENS)
    rounds = forecast_rounds(plan, wishes.prompts, tokens)
    timeline = simulate(plan.layout, rounds, costs, spec)
    figures = generation_metrics(timeline, rounds)
    rate = figures["decode_tokens_per_s"]
    a_token = len(wishes.prompts) / rate if rate else 0.0  # for all users together, once all have begun
    job_s = timeline.makespan_s + (wishes.max_tokens - tokens) * a_token
    return Candidate(plan, job_s, a_token, figures, tokens)


def _reason(best: Candidate, candidates: Sequence[Candidate], wishes: Wishes) -> str:
    """Why this plan: what the job takes with it, and with the best of every other way."""
    tp = best.plan.layout.tp
    words = f"{way_name(best.plan)}{f', tp {tp}' if tp > 1 else ''}: predicted {format_seconds(best.job_s)} for the job"
    others: dict[tuple[str, int], Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.job_s):
        others.setdefault((candidate.plan.schedule, candidate.plan.micro_batches), candidate)
    others.pop((best.plan.schedule, best.plan.micro_batches))
    if not others:
        return f"{words}, as asked" if wishes.schedule != "auto" or wishes.micro_batches else words
    against = "; ".join(f"{way_name(other.plan)} {format_seconds(other.job_s)}" for other in others.values())
    return f"{words}; {against}"


def way_name(plan: Plan) -> str:
    """Schedule and micro-batches in words."""
    if plan.schedule == LAYERWISE:
        return "layer-wise"
    count = plan.micro_batches
    return f"pipelined with {count} micro-batch{'es' if count > 1 else ''}"
