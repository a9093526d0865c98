"""Our training, as the benchmarks run it: a rank of a mesh, one process, and stages alone to take their time."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from bench_tensor import RATE, SPEC, weights
from torch import Tensor
from training_baselines import LENGTH, told

from plait.comm.contract import Endpoint
from plait.nn.training.stage import TrainingStage
from plait.planner.training_local import local_training_plan
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.spec.tensors import Shape, stage_tensors
from plait.tracer.tracer import Tracer
from plait.trainer.batch import Batch
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings


def plan_of(
    split: Split,
    batch: int,
    micro_batches: int,
    cut: Sequence[int] | None = None,
    *,
    zero: int = 0,
    schedule: str = "1f1b",
) -> TrainingPlan:
    """The plan of a mesh: `batch` sequences over dp pipelines, each in `micro_batches`."""
    setup = TrainingSetup(split, schedule, batch // split.dp // micro_batches, micro_batches, zero=zero)
    return local_training_plan(SPEC, setup, batch, LENGTH, "float32", cut=cut)


class Ours:
    """One rank of a mesh."""

    def __init__(self, plan: TrainingPlan, endpoint: Endpoint, buckets: int = 4) -> None:
        given = weights()

        def tensors(name: str, shape: Shape) -> Tensor:
            assert tuple(given[name].shape) == tuple(shape), name
            return given[name]

        self.tracer = Tracer(endpoint.rank)
        settings = Settings(Rate(RATE), "sgd", check_every=0)
        self.rank = TrainingRank(plan, SPEC, settings, endpoint, tensors, buckets=buckets, observer=self.tracer)
        self.batch = Batch(*told(plan.batch))
        self._steps = 0

    def step(self, count: int) -> float:
        """So many steps; the loss of the last."""
        loss = float("nan")
        for _ in range(count):
            self.tracer.events.clear()
            loss = self.rank.step(self._steps, self.batch).loss
            self._steps += 1
        return loss

    def trace(self, count: int) -> str:
        """What the last step was, action by action."""
        return self.tracer.encode().hex()


class OneProcess:
    """A stage with all layers and its own plain SGD, nothing else."""

    def __init__(self, batch: int, micro_batches: int = 1) -> None:
        self.stage = TrainingStage(SPEC, 0, SPEC.layers, weights(), torch.float32)
        self.parts = [each.chunk(micro_batches) for each in told(batch)]
        self.valid = batch * LENGTH

    def step(self, count: int) -> float:
        """So many steps; the loss of the last."""
        total = 0.0
        for _ in range(count):
            self.stage.clear()
            total = 0.0
            for tokens, targets in zip(*self.parts, strict=True):
                passed = self.stage.forward(tokens, targets)
                self.stage.backward(passed, 1 / self.valid)
                assert passed.loss is not None
                total += float(passed.loss)
            self.stage.complete()
            self.stage.update(RATE)
        return total / self.valid


class Alone:
    """Two stages of every cut in two, each computing on its own, so that the simulator can be told what they take."""

    def __init__(self, rank: int, micro_batch: int) -> None:
        given = weights()
        self.tokens, self.targets = told(micro_batch)
        self.stages = []
        for cut in range(1, SPEC.layers):
            first, end = (0, cut) if rank == 0 else (cut, SPEC.layers)
            names = stage_tensors(SPEC, first, end)
            parameters = {name: given[name] for name in names}
            self.stages.append(TrainingStage(SPEC, first, end, parameters, torch.float32))
        self.hidden = torch.randn(micro_batch * LENGTH, SPEC.hidden)

    def times(self, count: int) -> list[tuple[float, float, float]]:
        """For every cut seconds of F, B and of an update: the mean of `count`."""
        return [self._times(stage, count) for stage in self.stages]

    def _times(self, stage: TrainingStage, count: int) -> tuple[float, float, float]:
        shape = (len(self.tokens), LENGTH)
        forward_s = backward_s = 0.0
        stage.clear()
        for _ in range(count):
            begin = time.perf_counter()
            given = (self.tokens,) if stage.first == 0 else (self.hidden, self.targets, shape)
            passed = stage.forward(*given)
            middle = time.perf_counter()
            stage.backward(passed, self.hidden if stage.first == 0 else 1e-3)
            forward_s += middle - begin
            backward_s += time.perf_counter() - middle
        begin = time.perf_counter()
        stage.update(0.0)
        return forward_s / count, backward_s / count, time.perf_counter() - begin


def resident_bytes() -> int:
    """Of this process, now, without what only the allocator still has; the most of it is counted from here on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def most_resident_bytes() -> int:
    """Of this process, at any time since."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kib) * 1024
