"""One way to split in full: its cut, its bytes, and its seconds by the closed form, or by the replay of its order.

The closed form has what runs between the first forward and the last backward, the residue that perfect times for all
actions leave out, and what follows (`TrainingModel.tail_s`); the replay finds what of that is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.costs.training import TrainingModel, exposed_messages, positions
from plait.planner.balance import Weights, position_layers, stage_layers
from plait.planner.cut import Cut
from plait.planner.placement import cut_of
from plait.planner.space import kind_of
from plait.planner.step_times import Phases, step_seconds
from plait.planner.tables import early_layers
from plait.planner.training_replay import StageFigures, Step, step_of
from plait.plans.split import TrainingSetup
from plait.schedules.clock import tick
from plait.schedules.training import V_SHAPED


@dataclass(frozen=True, slots=True)
class Scored:
    """A way to split with its seconds and bytes.

    `figures` has the design's keys. Seconds are of one device: the mean over the pipeline's positions, so that compute,
    transfer and wait (residue included) add up to the step; `comm_bytes` is what all devices send. `need_bytes`: a
    device of each position.
    """

    setup: TrainingSetup
    cut: Cut
    figures: dict[str, float]
    need_bytes: tuple[int, ...]
    simulated: bool = False

    @property
    def kind(self) -> str:
        """The sort of split."""
        return kind_of(self.setup.split)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.figures["step_s"]

    @property
    def rank(self) -> tuple[float, int, int, int]:
        """Fastest first; of equals the fewest devices, the fewest stages, the least memory."""
        split = self.setup.split
        return self.step_s, split.ranks, split.pp * self.setup.virtual, max(self.need_bytes)


def balanced(model: TrainingModel, setup: TrainingSetup) -> Cut:
    """The cut of a setup whose slowest position is fastest, for this machine's seconds."""
    times, layers, early = model.times(setup), model.spec.layers, early_layers(model.spec)

    def total(row: Sequence[float]) -> float:
        return row[0] + row[1] + row[2]

    before = total(times.total(0, early))
    layer = total(times.total(early, layers)) / (layers - early)
    first, last = total(times.first) + before - early * layer, total(times.last)
    weights = Weights(*(np.float64(value) for value in (layer, first, last)))  # type: ignore[arg-type]
    folded = setup.schedule in V_SHAPED
    counts = position_layers(layers, setup.split.pp, setup.virtual, weights, folded)
    return cut_of(stage_layers(counts, setup.virtual, folded))


def closed(model: TrainingModel, setup: TrainingSetup) -> Scored:
    """The closed form, on the balanced cut."""
    cut = balanced(model, setup)
    stages = model.stage_times(setup, cut)
    count = len(positions(setup))
    mean = Phases(*(np.float64(sum(column) / count) for column in zip(*stages, strict=True)))  # type: ignore[arg-type]
    p, m, hop_s = np.float64(count), np.float64(setup.micro_batches), np.float64(model.hand_over_s(setup))
    slowest = np.float64(_slowest_s(setup, stages))
    running = step_seconds(setup.schedule, p, setup.virtual, m, slowest, mean, hop_s)  # type: ignore[arg-type]
    return _scored(model, setup, cut, float(running))


def simulated(model: TrainingModel, found: Sequence[Scored]) -> list[Scored]:
    """The same, replayed: all orders together. Seconds are the replay's, bytes and memory those of the order."""
    stages = [StageFigures(model, one.setup, one.cut) for one in found]
    runs = [one.run for one in stages]
    made = []
    for one, figures, run, ticks in zip(found, stages, runs, tick(runs), strict=True):
        made.append(_replayed(model, one, step_of(figures, run.order, ticks)))
    return made


def _replayed(model: TrainingModel, one: Scored, step: Step) -> Scored:
    """The figures of a replayed step, with the residue and what is not in its actions."""
    setup, profile, job = one.setup, model.profile, model.job
    share = profile.residue.get(setup.schedule, 0.0) if setup.split.pp > 1 else 0.0
    residue_s = share * max(0.0, step.ends_s - model.tail_s(setup, one.cut))
    step_s = step.ends_s + residue_s + profile.step_s + _repeated_s(model, setup, one.cut)
    compute_s = min(step_s, step.computing_s)
    transfer_s = min(step_s - compute_s, one.figures["transfer_s"])
    figures = {
        "step_s": step_s,
        "mfu": one.figures["mfu"] * one.step_s / step_s,
        "bubble": 1 - compute_s / step_s,
        "comm_bytes": step.sent_bytes,
        "compute_s": compute_s,
        "transfer_s": transfer_s,
        "wait_s": max(0.0, step_s - compute_s - transfer_s),
        "peak_bytes": float(max(step.peak_bytes)),
        "tokens_per_s": job.batch * job.sequence / step_s,
    }
    return Scored(setup, one.cut, figures, step.peak_bytes, simulated=True)


def actions(setup: TrainingSetup) -> int:
    """Computations of a step, over all positions: what a replay takes grows with them."""
    kinds = 2 if setup.schedule in ("gpipe", "1f1b", "interleaved", "layerwise") else 3
    return kinds * setup.micro_batches * setup.split.pp * setup.virtual


def _slowest_s(setup: TrainingSetup, stages: Sequence[tuple[float, float, float]]) -> float:
    totals = [sum(one) for one in stages]
    return max(sum(totals[stage] for stage in held) for held in positions(setup))


def _scored(model: TrainingModel, setup: TrainingSetup, cut: Cut, running_s: float) -> Scored:
    """The figures of a step that takes `running_s` from its first forward to its last backward."""
    estimate, stages = model.estimate(setup, cut), model.stage_times(setup, cut)
    split, count, hop_s = setup.split, setup.micro_batches, model.hand_over_s(setup)
    busy_s = count * _slowest_s(setup, stages)
    mean_s = count * sum(map(sum, stages)) / split.pp
    after_s = model.tail_s(setup, cut) + model.profile.step_s
    waited_s = exposed_messages(setup.schedule, split.pp, setup.virtual, count) * hop_s
    link_s = count * setup.virtual * hop_s if split.pp > 1 else 0.0
    # a link that is busy for longer than the slowest position decides
    running_s = max(running_s, link_s + busy_s / count if link_s else 0.0)
    messages_s = min(max(waited_s, link_s - busy_s), running_s - mean_s) if link_s else 0.0
    residue_s = model.profile.residue.get(setup.schedule, 0.0) * running_s if split.pp > 1 else 0.0
    step_s = running_s + residue_s + _repeated_s(model, setup, cut) + after_s
    compute_s = min(step_s, estimate.compute_s - (busy_s - mean_s))
    transfer_s = min(step_s - compute_s, max(0.0, estimate.transfer_s - waited_s + messages_s))
    figures = {
        "step_s": step_s,
        "mfu": estimate.mfu * estimate.step_s / step_s,
        "bubble": 1 - compute_s / step_s,
        "comm_bytes": estimate.comm_bytes * split.ranks,
        "compute_s": compute_s,
        "transfer_s": transfer_s,
        "wait_s": max(0.0, step_s - compute_s - transfer_s),
        "peak_bytes": float(max(estimate.peak_bytes)),
        "tokens_per_s": model.job.batch * model.job.sequence / step_s,
    }
    return Scored(setup, cut, figures, estimate.peak_bytes)


def _repeated_s(model: TrainingModel, setup: TrainingSetup, cut: Cut) -> float:
    """What ZeRO-2 and 3 reduce and gather all along: neither in stages, nor a message, nor after the last backward."""
    if setup.zero < 2:
        return 0.0
    estimate = model.estimate(setup, cut)
    busy_s = setup.micro_batches * _slowest_s(setup, model.stage_times(setup, cut))
    waited_s = exposed_messages(setup.schedule, setup.split.pp, setup.virtual, setup.micro_batches)
    waited_s *= model.hand_over_s(setup)
    after_s = model.tail_s(setup, cut) + model.profile.step_s
    return max(0.0, estimate.compute_s + estimate.transfer_s - busy_s - after_s - waited_s)
