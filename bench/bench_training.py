"""Training on a mesh: ours over shared memory against torch's over gloo, one process, and the simulator's bound.

All variants of a part are open at the same time and take turns. Every one starts from the same weights and tokens, and
their losses must agree after the same number of steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from bench_tensor import SPEC
from bench_training_bubble import interpreted
from harness import ratio, table, verdict
from launched import Calls, Launched, Turn, serve
from training_baselines import LENGTH, TorchPipeline, TorchReplica, meet
from training_ours import Alone, OneProcess, Ours, plan_of

from plait.comm.shm import ShmEndpoint
from plait.costs.protocol import FixedCosts
from plait.plans.action import Kind
from plait.plans.split import Split
from plait.plans.training import TrainingPlan
from plait.schedules.step import make_training_round, sequences
from plait.simulator.simulate import simulate
from plait.timeline.training_metrics import training_metrics
from plait.tracer.tracer import Tracer, merge

ROUNDS, DP_STEPS, PP_STEPS = 9, 2, 1
DP_BATCH, PP_BATCH, MICRO_BATCHES = 4, 16, 8

DP, DP_WHOLE, DP_ZERO = "ours, dp=2", "ours, dp=2, one bucket", "ours, dp=2, ZeRO-1"
DDP, ONE, PLAIN = "torch DDP over gloo", "ours, one process", "torch, one process"
PP, PIPELINING, ALONE = "ours, pp=2, 1F1B", "torch pipelining 1F1B over gloo", "stages alone"
PP_ONE, EIGHT = "ours, one process, micro-batches", "ours, dp2 × tp2 × pp2"
RANKS = {ONE: 1, PLAIN: 1, PP_ONE: 1, EIGHT: 8}  # the others: 2
THREADS = {ONE: 2, PLAIN: 2, PP_ONE: 2}  # a rank; the others: 1
OVER_GLOO = (DDP, PIPELINING)


def plan(name: str, cut: Sequence[int]) -> TrainingPlan:
    match name:
        case "ours, dp=2" | "ours, dp=2, one bucket":
            return plan_of(Split(dp=2), DP_BATCH, 1)
        case "ours, dp=2, ZeRO-1":
            return plan_of(Split(dp=2), DP_BATCH, 1, zero=1)
        case "ours, pp=2, 1F1B":
            return plan_of(Split(pp=2), PP_BATCH, MICRO_BATCHES, cut)
        case _:
            return plan_of(Split(dp=2, tp=2, pp=2), PP_BATCH, MICRO_BATCHES // 2, cut)


# --- a rank's process ----------------------------------------------------------------------------------------


def rank_main(name: str, rank: int, given: Mapping[str, Any]) -> None:
    torch.set_num_threads(given["threads"])
    if name in OVER_GLOO:
        meet(given["meeting"], rank, given["ranks"])
    with ExitStack() as stack:
        if name in (ONE, PLAIN, PP_ONE, ALONE, *OVER_GLOO):
            serve(calls(name, rank, given["cut"]))
        else:
            endpoint = stack.enter_context(ShmEndpoint.attach(given["shm"]))
            ours = Ours(plan(name, given["cut"]), endpoint, buckets=1 if name == DP_WHOLE else 4)
            serve({"step": ours.step, "trace": ours.trace})


def calls(name: str, rank: int, cut: Sequence[int]) -> Calls:
    if name == ALONE:
        return {"times": Alone(rank, PP_BATCH // MICRO_BATCHES).times}
    if name == PIPELINING:
        return {"step": TorchPipeline(PP_BATCH, MICRO_BATCHES, cut, rank).step}
    if name in (ONE, PP_ONE):
        return {"step": OneProcess(*((DP_BATCH, 1) if name == ONE else (PP_BATCH, MICRO_BATCHES))).step}
    return {"step": TorchReplica(DP_BATCH, rank, 2 if name == DDP else 1).step}


# --- the launcher --------------------------------------------------------------------------------------------


class Opened(dict[str, Launched]):
    """Variants that are open together."""

    def __init__(self, stack: ExitStack, names: Sequence[str], cut: Sequence[int] = ()) -> None:
        super().__init__()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for name in names:
            self[name] = Launched(__file__, name, RANKS.get(name, 2), THREADS.get(name, 1), folder, {"cut": list(cut)})
            stack.callback(self[name].close)

    def steps(self, count: int) -> dict[str, float]:
        """Seconds of one of `count` steps of each. The losses of the last must agree."""
        turns = {name: one.ask("step", count) for name, one in self.items() if name != ALONE}
        losses = {name: mean_loss(turn) for name, turn in turns.items()}
        most, least = max(losses.values()), min(losses.values())
        assert most - least < 1e-3 * most, f"losses differ: {losses}"
        return {name: turn.seconds for name, turn in turns.items()}


def mean_loss(turn: Turn) -> float:
    """Of the ranks that told one: DDP's have a part of the batch each."""
    return statistics.mean(loss for loss in turn.told if loss is not None)


def replicas(rounds: int) -> dict[str, list[float]]:
    """Seconds of a step by variant; the first round only warms up."""
    names = [DP, DP_WHOLE, DP_ZERO, DDP, ONE, PLAIN]
    with ExitStack() as stack:
        opened = Opened(stack, names)
        told = [opened.steps(DP_STEPS) for _ in range(rounds + 1)][1:]
    return {name: [each[name] for each in told] for name in names}


class Bound(NamedTuple):
    """What the simulator says of a cut into two, from stages that were measured alone and messages that are free."""

    cut: tuple[int, int]
    step_s: float
    bubble: float


def bounds(alone: Launched) -> list[Bound]:
    """Of every cut."""
    first, last = alone.ask("times", MICRO_BATCHES).told
    return [bound(at + 1, pair) for at, pair in enumerate(zip(first, last, strict=True))]


def bound(at: int, stages: Sequence[Sequence[float]]) -> Bound:
    cut = (at, SPEC.layers - at)
    seconds = {
        (stage, kind): taken
        for stage, times in enumerate(stages)
        for kind, taken in zip((Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER), times, strict=True)
    }
    made = plan(PP, cut)
    work = sequences(MICRO_BATCHES, made.setup.micro_batch, LENGTH)
    one = make_training_round(0, made.layout, made.setup, work)
    metrics = training_metrics(simulate(made.layout, [one], FixedCosts(kind_seconds=seconds), SPEC), made.layout)
    return Bound(cut, metrics["step_s"], metrics["bubble"])


class Staged(NamedTuple):
    """Of each round: seconds by variant, the best cut's bound, the simulated bubble of our cut and the measured."""

    cut: tuple[int, int]
    seconds: dict[str, list[float]]
    bound_s: list[float]
    simulated: list[float]
    measured: list[float]


def pipelines(rounds: int) -> Staged:
    """All variants over stages; a cut is chosen first, for all of them."""
    names = [PP, PIPELINING, PP_ONE, EIGHT]
    with ExitStack() as stack:
        alone = Opened(stack, [ALONE])[ALONE]
        cut = min((best(alone) for _ in range(4)), key=lambda one: one.step_s).cut
        opened = Opened(stack, names, cut)
        found = Staged(cut, {name: [] for name in names}, [], [], [])
        for number in range(rounds + 1):
            of_cuts = bounds(alone)
            seconds = opened.steps(PP_STEPS)
            if not number:
                continue
            for name, taken in seconds.items():
                found.seconds[name].append(taken)
            found.bound_s.append(min(one.step_s for one in of_cuts))
            found.simulated.append(next(one.bubble for one in of_cuts if one.cut == cut))
            found.measured.append(measured_bubble(opened[PP], plan(PP, cut)))
    return found


def best(alone: Launched) -> Bound:
    return min(bounds(alone), key=lambda one: one.step_s)


def measured_bubble(ours: Launched, made: TrainingPlan) -> float:
    """Of the last step, from what its ranks noted."""
    told = [Tracer.decode(bytes.fromhex(trace)) for trace in ours.ask("trace").told]
    return training_metrics(merge(told), made.layout)["bubble"]


# --- the page ------------------------------------------------------------------------------------------------


def replicas_page(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = [[name, THREADS.get(name, 1), 1e3 * statistics.median(taken)] for name, taken in seconds.items()]
    what = (
        f"A llama of {SPEC.layers} layers, hidden {SPEC.hidden}, {SPEC.heads} heads, gated MLP of {SPEC.intermediate}, "
        f"vocabulary {SPEC.vocab}, untied; float32. A step: batch {DP_BATCH} × {LENGTH} tokens, forward, loss, "
        "backward, SGD. Ours over shared memory sees to its norm and to what is not finite in every step. All start "
        "from the same weights, and their losses agree."
    )
    targets = [
        f"A step against DDP: {verdict(ratio(seconds[DDP], seconds[DP]), 1.15)}",
        f"against one process of ours with two threads: {verdict(ratio(seconds[ONE], seconds[DP]), 0.93)}",
        f"against torch's: {verdict(ratio(seconds[PLAIN], seconds[DP]), 0.93)}",
        f"four buckets against one: {ratio(seconds[DP_WHOLE], seconds[DP]):.2f} ×",
        f"ZeRO-1 against whole optimizer states: {ratio(seconds[DP], seconds[DP_ZERO]):.2f} ×",
    ]
    heading = "## Training with replicas"
    return f"{heading}\n\n{what}\n\n{table(['', 'threads a rank', 'a step, ms'], rows)}\n\n{'; '.join(targets)}."


def pipelines_page(found: Staged) -> str:
    seconds = found.seconds
    rows = [[name, THREADS.get(name, 1), 1e3 * statistics.median(taken)] for name, taken in seconds.items()]
    rows.append(["the simulator's bound for the best cut", 1, 1e3 * statistics.median(found.bound_s)])
    simulated, measured = statistics.median(found.simulated), statistics.median(found.measured)
    what = (
        f"The same model, batch {PP_BATCH} × {LENGTH} in {MICRO_BATCHES} micro-batches, layers "
        f"{found.cut[0]} and {found.cut[1]}, which is the best cut. The bound: every stage of every cut was measured "
        "alone, beside the other one, in the same round; the simulator puts them together, with messages that take no "
        f"time. Eight ranks on two cores have half of the micro-batches in each replica."
    )
    targets = [
        f"A step against torch's 1F1B: {verdict(ratio(seconds[PIPELINING], seconds[PP]), 1.2)}",
        f"of the bound: {verdict(ratio(found.bound_s, seconds[PP]), 0.95)}",
        f"bubble {100 * measured:.1f} %, simulated {100 * simulated:.1f} %, apart: "
        f"{verdict(100 * abs(measured - simulated), 5, ' points', at_most=True)}",
    ]
    heading = "## Training with stages"
    return f"{heading}\n\n{what}\n\n{table(['', 'threads a rank', 'a step, ms'], rows)}\n\n{'; '.join(targets)}."


def interpreter_page(seconds: Mapping[str, Sequence[float]], staged: Staged) -> str:
    """What the interpreter takes of a step where nothing else takes time, against the whole step."""
    rows, shares = [], []
    for name, step_s, (actions, taken_s) in (
        (DP, statistics.median(seconds[DP]), interpreted(2, 1, 1, 4)),
        (PP, statistics.median(staged.seconds[PP]), interpreted(1, 2, MICRO_BATCHES, 1)),
    ):
        shares.append(100 * taken_s / step_s)
        rows.append([name, actions, 1e6 * taken_s, 1e6 * taken_s / actions, shares[-1]])
    headings = ["", "actions of a rank", "interpreter, µs a step", "µs an action", "% of the step"]
    target = verdict(max(shares), 2, " %", at_most=True)
    return f"## The interpreter of a training step\n\n{table(headings, rows)}\n\nOf a step: {target}."


def main() -> None:
    if len(sys.argv) == 4:
        rank_main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) == 2 else ROUNDS
    seconds, staged = replicas(rounds), pipelines(rounds)
    pages = [replicas_page(seconds), pipelines_page(staged), interpreter_page(seconds, staged)]
    sys.stdout.write("\n\n".join(pages) + "\n")


if __name__ == "__main__":
    main()
