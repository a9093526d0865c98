"""Tensors that a forward saves for its backward: counted while a step runs, GPipe against 1F1B, and the cost model."""

from __future__ import annotations

import json
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from bench_tensor import SPEC
from harness import table, verdict
from launched import Launched, serve
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from training_baselines import LENGTH
from training_ours import Ours, most_resident_bytes, plan_of, resident_bytes

from plait.comm.shm import ShmEndpoint
from plait.costs.training import TrainingModel
from plait.plans.split import Split
from plait.plans.training import TrainingPlan
from plait.schedules.step import make_training_round, sequences
from plait.simulator.memory import memory_over_time
from plait.simulator.simulate import simulate
from plait.spec.cluster import equal_machine
from plait.spec.job import TrainingJob
from plait.spec.presets import cluster_preset

BATCH, MICRO_BATCHES, CUT = 16, 8, (3, 1)
MB = 1e6


class Saved:
    """Bytes of what autograd keeps at a time, and the most of them; a storage that several tensors share counts once.

    `ours`: storages that are there anyway, weights, and do not count.
    """

    def __init__(self, ours: Sequence[Tensor]) -> None:
        self._ours = {tensor.untyped_storage().data_ptr() for tensor in ours}
        self._users: Counter[int] = Counter()
        self.now_bytes = self.most_bytes = 0

    def hooks(self) -> saved_tensors_hooks:
        """To be entered while forwards run."""
        return saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> _Kept:
        kept, storage = _Kept(tensor.detach()), tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self._ours:
            self._users[address] += 1
            if self._users[address] == 1:
                self.now_bytes += size
                self.most_bytes = max(self.most_bytes, self.now_bytes)
            weakref.finalize(kept, self._freed, address, size)
        return kept

    def _freed(self, address: int, size: int) -> None:
        self._users[address] -= 1
        if not self._users[address]:
            self.now_bytes -= size


class _Kept:
    """What autograd holds in a saved tensor's place."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


# --- a rank's process ----------------------------------------------------------------------------------------


def made(schedule: str) -> TrainingPlan:
    return plan_of(Split(pp=2), BATCH, MICRO_BATCHES, CUT, schedule=schedule)


def rank_main(schedule: str, rank: int, given: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    with ShmEndpoint.attach(given["shm"]) as endpoint:
        ours = Ours(made(schedule), endpoint)

        def saved(count: int) -> tuple[int, int, int]:
            """The most that was saved, in how many bytes that ended, and by how much the process grew."""
            before = resident_bytes()
            counted = Saved([tensor for stage in ours.rank.stages.values() for tensor in stage.weights.values()])
            with counted.hooks():
                ours.step(count)
            return counted.most_bytes, counted.now_bytes, most_resident_bytes() - before

        serve({"saved": saved})


# --- the launcher --------------------------------------------------------------------------------------------


def predicted(schedule: str) -> list[int]:
    """By the cost model, the most bytes of activations on each rank."""
    plan = made(schedule)
    machine = equal_machine(cluster_preset("a100", 2))
    assert machine is not None
    costs = TrainingModel(SPEC, TrainingJob(BATCH, LENGTH, "float32"), machine).costs(plan.setup, plan.layout.cut)
    one = make_training_round(0, plan.layout, plan.setup, sequences(MICRO_BATCHES, plan.setup.micro_batch, LENGTH))
    curves = memory_over_time(simulate(plan.layout, [one], costs, SPEC), [one], plan.layout, costs)
    return [curve.peak_bytes - curve.static_bytes for curve in curves.values()]


def main() -> None:
    if len(sys.argv) == 4:
        rank_main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
        return
    rows, worst = [], 0.0
    for schedule in ("gpipe", "1f1b"):
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            opened = Launched(__file__, schedule, 2, 1, folder)
            stack.callback(opened.close)
            told = opened.ask("saved", 2).told
        for rank, ((most, left, grown), expected) in enumerate(zip(told, predicted(schedule), strict=True)):
            assert left == 0, f"rank {rank} keeps {left} bytes after its step"
            off = 100 * (expected / most - 1)
            worst = max(worst, abs(off))
            rows.append([schedule, rank, most / MB, expected / MB, off, grown / MB])
    headings = ["schedule", "stage", "saved at most, MB", "cost model, MB", "off %", "the process grew by, MB"]
    what = (
        f"Two stages of {CUT[0]} and {CUT[1]} of the {SPEC.layers} layers (the last with the LM head), batch "
        f"{BATCH} × {LENGTH} in {MICRO_BATCHES} micro-batches, float32. Counted by `saved_tensors_hooks` while two "
        "steps run: storages, each once, without weights."
    )
    target = f"The cost model at most off by {verdict(worst, 5, ' %', at_most=True)}."
    sys.stdout.write(f"## What a forward saves\n\n{what}\n\n{table(headings, rows)}\n\n{target}\n")


if __name__ == "__main__":
    main()
