"""What one way to split a generation takes: closed forms for all, the simulator for the best; the same keys from both.

Seconds of decoding are of a round: one token for every request. `compute_s`, `transfer_s` and `wait_s` are what a rank
does in it on average, and are together the round: a transfer counts where nothing is computed meanwhile. `comm_bytes`
is what all ranks send.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from plait.planner.cut import Cut
from plait.planner.serving_units import Demand, StageTime, Unit, World
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.plan import GRID, Plan
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.rules import TOKEN_BYTES
from plait.plans.split import Split
from plait.schedules.batching import deal
from plait.schedules.forecast import forecast_rounds
from plait.schedules.generation import LAYERWISE, make_round
from plait.simulator.simulate import simulate
from plait.spec.shards import even_rows
from plait.timeline.compare import COMPUTE, WAIT, covered_s, parts
from plait.timeline.metrics import generation_metrics
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

LEAST_CAPACITY = 4
"""Messages that a link holds: enough that a stage which runs ahead does not keep its messages back."""

_ROUNDS = 8
_RAMP = 3
"""Rounds until a pipeline goes on evenly."""

_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class Way:
    """One way to split: the units of each replica's stages, the cut, and how requests go through them.

    `users`: requests of the replica that has the most, in `micro_batches` parts. `alike`: all replicas are like the
    first one. `everyone`: requests of all replicas; None: each has `users`.
    """

    replicas: tuple[tuple[Unit, ...], ...]
    cut: Cut
    schedule: str
    micro_batches: int
    users: int
    chunk: int
    alike: bool = False
    everyone: int | None = None

    @property
    def served(self) -> int:
        """Requests of all replicas."""
        return self.users * len(self.replicas) if self.everyone is None else self.everyone

    @property
    def split(self) -> Split:
        """Sizes of the axes."""
        return Split(dp=len(self.replicas), pp=len(self.cut), tp=len(self.replicas[0][0].devices))

    @property
    def rows(self) -> int:
        """Requests of the largest micro-batch."""
        return -(-self.users // self.micro_batches)

    def demand(self, world: World) -> Demand:
        """What goes through each replica."""
        return Demand(self.rows, self.users, world.middle, self.chunk, world.job.positions)


def micro_batch(rows: int, position: int) -> MicroBatch:
    """So many requests, each one token further."""
    return MicroBatch(tuple(Row(one, one, position, 1, True) for one in range(rows)))


def _stage(world: World, way: Way, index: int, work: MicroBatch) -> StageTime:
    """On the slowest replica."""
    replicas = way.replicas[:1] if way.alike else way.replicas
    units = {world.stand_in(replica[index]) for replica in replicas}
    return max((_on_unit(world, unit, way.cut[index], work) for unit in units), key=lambda one: one.seconds)


def _on_unit(world: World, unit: Unit, layers: tuple[int, int], work: MicroBatch) -> StageTime:
    key = unit, world.sort(layers), len(work.rows), work.rows[0][2:]
    known = world.known.get(key)
    if known is None:
        exchange = world.model.stage_exchange(unit.devices, layers, work)
        seconds = world.model.stage_s(unit.devices, layers, work, unit.shares)
        sent_bytes = sum(exchange.by_rank(len(unit.devices)))
        known = world.known[key] = StageTime(seconds, exchange.seconds, sent_bytes)
    return known


class Decoding(NamedTuple):
    """One round, as a rank spends it on average: all of it, computing, transferring alone; and what all ranks send."""

    round_s: float
    compute_s: float
    transfer_s: float
    sent_bytes: float


def figures(world: World, way: Way) -> dict[str, float]:
    """The design's keys by closed forms."""
    return _keys(world, way, decoding(world, way), *prefill(world, way))


def decoding(world: World, way: Way) -> Decoding:
    """A round takes m × the slowest stage or link, and never less than a micro-batch takes through all and back."""
    least, larger = divmod(way.users, way.micro_batches)
    sizes = {least + one: times for one, times in ((1, larger), (0, way.micro_batches - larger)) if times}
    works = {size: micro_batch(size, round(world.middle)) for size in sizes}
    stages = [{size: _stage(world, way, index, work) for size, work in works.items()} for index in range(len(way.cut))]
    links = [world.link(one, other) for one, other in pairwise(way.replicas[0])]
    item, largest, tp = world.spec.hidden * world.model.sizes.item_bytes, max(sizes), way.split.tp
    path_s = sum(stage[largest].seconds for stage in stages)
    path_s += sum(link.transfer_s(even_rows(largest, tp)[0] * item) for link in links)
    back_s = 0.0
    if links:
        back = world.link(way.replicas[0][-1], way.replicas[0][0])
        path_s += back.transfer_s(largest * TOKEN_BYTES)
        back_s = back.occupied_s(way.users * TOKEN_BYTES)
    busy_s = [sum(stage[size].seconds * times for size, times in sizes.items()) for stage in stages]
    carried = sum(even_rows(size, tp)[0] * times for size, times in sizes.items())  # by a group's first rank
    link_s = [link.occupied_s(carried * item) for link in links]
    round_s = path_s if way.schedule == LAYERWISE else max(path_s, *busy_s, *link_s, back_s)
    exchange_s = sum(stage[size].exchange_s * times for stage in stages for size, times in sizes.items())
    sent = sum(stage[size].sent_bytes * times for stage in stages for size, times in sizes.items())
    sent += way.users * (len(links) * item + TOKEN_BYTES * (len(stages) > 1) * tp)
    count = len(stages)
    compute_s, transfer_s = (sum(busy_s) - exchange_s) / count, (exchange_s + sum(link_s) + back_s) / count
    return Decoding(round_s, compute_s, min(transfer_s, max(0.0, round_s - compute_s)), sent)


def _keys(world: World, way: Way, decoded: Decoding, first_s: float, each_s: float) -> dict[str, float]:
    """`first_s`: until the first request's first token; `each_s`: from one request's to the next one's."""
    job, round_s = world.job, decoded.round_s
    everyone, prefilled_s = way.served, first_s + (way.users - 1) * each_s
    return {
        "ttft_s": first_s + (way.users - 1) / 2 * each_s,
        "prefill_tokens_per_s": everyone * job.prompt_tokens / prefilled_s,
        "decode_tokens_per_s": everyone / round_s,
        "tokens_per_s": everyone * job.max_tokens / (prefilled_s + (job.max_tokens - 1) * round_s),
        "time_per_token_s": round_s,
        "bubble": max(0.0, 1 - decoded.compute_s / round_s),
        "comm_bytes": decoded.sent_bytes * everyone / way.users,
        "compute_s": decoded.compute_s,
        "transfer_s": decoded.transfer_s,
        "wait_s": max(0.0, round_s - decoded.compute_s - decoded.transfer_s),
        "peak_bytes": float(max(max(one) for one in memory(world, way))),
    }


def memory(world: World, way: Way) -> list[list[int]]:
    """Bytes that each device of each stage must hold."""
    demand = way.demand(world)
    return [world.need_bytes(unit, layers, demand) for unit, layers in zip(way.replicas[0], way.cut, strict=True)]


def fits(world: World, way: Way) -> bool:
    """Every device of every replica can hold its part."""
    needs = memory(world, way)
    return all(
        need <= free
        for units in (way.replicas[:1] if way.alike else way.replicas)
        for unit, of_stage in zip(units, needs, strict=True)
        for need, free in zip(of_stage, world.free_bytes(unit), strict=True)
    )


def prefill(world: World, way: Way) -> tuple[float, float]:
    """Seconds to the first request's first token, and between the first tokens of one request and the next."""
    job, item = world.job, world.spec.hidden * world.model.sizes.item_bytes
    starts = range(0, job.prompt_tokens, way.chunk)
    chunks = [
        Row(0, 0, at, min(way.chunk, job.prompt_tokens - at), at + way.chunk >= job.prompt_tokens) for at in starts
    ]
    works = [MicroBatch((row,)) for row in chunks]
    sizes = [even_rows(work.tokens, way.split.tp)[0] * item for work in works]
    stages = [[_stage(world, way, index, work).seconds for work in works] for index in range(len(way.cut))]
    links = [world.link(one, other) for one, other in pairwise(way.replicas[0])]
    back = world.link(way.replicas[0][-1], way.replicas[0][0]) if links else None
    if way.schedule == LAYERWISE:
        first_s = sum(map(sum, stages)) + sum(link.transfer_s(size) for link in links for size in sizes)
        first_s += sum(back.transfer_s(work.sampled * TOKEN_BYTES) for work in works) if back else 0.0
        return first_s, first_s
    ends, sent = [0.0] * len(stages), [0.0] * len(stages)
    for number, size in enumerate(sizes):
        there = 0.0
        for index, stage in enumerate(stages):
            ends[index] = max(ends[index], there) + stage[number]
            if index < len(links):
                sent[index] = max(sent[index], ends[index]) + links[index].occupied_s(size)
                there = sent[index] + links[index].latency_s
    moved_s = [sum(map(link.occupied_s, sizes)) for link in links]
    return ends[-1] + (back.transfer_s(TOKEN_BYTES) if back else 0.0), max(*map(sum, stages), *moved_s, 0.0)


def plan_of(world: World, way: Way, reason: str = "") -> Plan:
    """The plan of a way. Ranks of a stage: replica by replica, each one's tensor group."""
    return Plan(
        world.spec.name,
        _layout(world, way),
        way.schedule,
        way.micro_batches,
        way.chunk,
        world.job.positions,
        way.users,
        reason,
    )


def _layout(world: World, way: Way) -> Layout:
    stages, first = [], 0
    for index, layers in enumerate(way.cut):
        devices = tuple(name for units in way.replicas for name in units[index].devices)
        ranks = tuple(range(first, first + len(devices)))
        first += len(devices)
        host = world.devices[devices[0]].host
        model, shares = world.model, way.replicas[0][index].shares
        stages.append(Stage(layers, ranks, model.dtype, model.weights, host=host, devices=devices, shares=shares))
    split = way.split
    axes = {"dp": split.dp, "pp": split.pp, "tp": split.tp}
    return Layout(axes, tuple(stages), max(LEAST_CAPACITY, 2 * way.micro_batches))


def simulated(world: World, way: Way) -> Mapping[str, float]:
    """The design's keys by the simulator: some rounds in the middle of the answers, and the first prompts.

    One replica is simulated, the slowest of them; the others do the same.
    """
    one = replace(way, replicas=(_slowest(world, way),), everyone=None)
    plan, costs = plan_of(world, one), world.model.costs()
    rounds = _decoding(plan, round(world.middle), _ROUNDS)
    timeline = simulate(plan.layout, rounds, costs, world.spec)
    sent_bytes = sum(span.payload_bytes for span in timeline.spans) / _ROUNDS
    decoded = _steady(_firsts(plan, timeline), sent_bytes)
    prompts = [world.job.prompt_tokens] * min(_PROMPTS, way.users)
    forecast = forecast_rounds(replace(plan, slots=len(prompts)), prompts, 1)
    firsts_s = _front(simulate(plan.layout, forecast, costs, world.spec), forecast)["ttft_s"]
    first_s, each_s = prefill(world, one)
    closed_s = first_s + (len(prompts) - 1) / 2 * each_s
    scale = firsts_s / closed_s if closed_s > 0 else 1.0
    return _keys(world, way, decoded, first_s * scale, each_s * scale)


def _steady(timeline: Timeline, sent_bytes: float) -> Decoding:
    """A round as a rank spends it, of those between the first ones, which fill the pipeline, and the last one.

    For each rank from one round's first computation to a later one's, and of those the longest: before the slowest
    stage others run ahead for a while. The last round is no measure: its tokens come sooner, nothing follows them.
    """
    ranks: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        ranks[span.rank].append(span)
    count, spent = _ROUNDS - 1 - _RAMP, [_spent(spans) for spans in ranks.values()]
    compute_s, used_s = (sum(one[at] for one in spent) / count / len(spent) for at in (1, 2))
    return Decoding(max(one[0] for one in spent) / count, compute_s, max(0.0, used_s - compute_s), sent_bytes)


def _spent(spans: Sequence[Span]) -> tuple[float, float, float]:
    """Of a rank's even rounds: seconds in all, those that it computes, and those that it computes or transfers."""
    begins = {one.action.round: one.start_s for one in reversed(spans) if one.action.kind is Kind.FORWARD}
    first_s, end_s = begins[_RAMP], begins[_ROUNDS - 1]
    kept = [
        Part(part.what, max(part.start_s, first_s), min(part.end_s, end_s))
        for span in spans
        for part in parts(span)
        if part.what != WAIT and part.end_s > first_s and part.start_s < end_s
    ]
    return end_s - first_s, sum(one.end_s - one.start_s for one in kept if one.what == COMPUTE), covered_s(kept)


def _front(timeline: Timeline, rounds: Sequence[Round]) -> dict[str, float]:
    """What the first stage sees of these rounds: when tokens come."""
    spans = tuple(span for span in timeline.spans if span.rank == 0 and span.action.stage == 0)
    return generation_metrics(replace(timeline, spans=spans), rounds)


def _firsts(plan: Plan, timeline: Timeline) -> Timeline:
    """The spans of each stage's first rank: the others of its tensor group do the same."""
    ranks = {stage.ranks[0] for stage in plan.layout.stages}
    return replace(timeline, spans=tuple(span for span in timeline.spans if span.rank in ranks))


def _slowest(world: World, way: Way) -> tuple[Unit, ...]:
    if len(way.replicas) == 1 or way.alike:
        return way.replicas[0]
    alone = [replace(way, replicas=(units,)) for units in way.replicas]
    return max(alone, key=lambda one: decoding(world, one).round_s).replicas[0]


def _decoding(plan: Plan, position: int, count: int) -> list[Round]:
    """Rounds of one token for every request, all in the middle of the answers, so that they take the same."""
    rounds: list[Round] = []
    for number in range(count):
        rows = [Row(one, one, position, 1, True) for one in range(plan.slots)]
        work = tuple(MicroBatch(tuple(part)) for part in deal(rows, plan.micro_batches))
        carried = rounds[-1].carried_out if rounds else ()
        rounds.append(make_round(number, len(plan.layout.stages), work, carried, plan.schedule))
    stages = len(plan.layout.stages)
    if rounds[-1].carried_out:
        rounds.append(make_round(count, stages, (), rounds[-1].carried_out, plan.schedule))
    return rounds


def chunks(prompt_tokens: int, most: int) -> Sequence[int]:
    """Sizes of a prompt's pieces worth a look, on the grid that keeps shapes the same: the largest first."""
    whole = -(-prompt_tokens // GRID) * GRID
    return sorted({min(whole, most, size) for size in (most, 512, 128)}, reverse=True)
