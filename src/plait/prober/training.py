"""What training takes on this host: a layer's passes, the ends', the update and the norm, measured for one plan.

As many processes as ranks compute at once (or as there are cores for), each with the threads and the environment of a
rank, do the same in step: first, middle and last stages of the model in small, over the plan's micro-batch, in real
tensor groups. What the middle takes a layer is taken off what the ends take.
"""

from __future__ import annotations

import hashlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from plait.costs.measured_training import (
    MeasuredTrainingCosts,
    PassTimes,
    StageTimes,
    TrainingKernel,
    TrainingTimes,
)
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.split import Recompute
from plait.plans.training import TrainingPlan
from plait.prober.host import cpu_model, torch_version, usable_cores
from plait.prober.kept import kept
from plait.schedules.training import SPLIT_BACKWARD
from plait.spec.model import ModelSpec

if TYPE_CHECKING:
    import torch

    from plait.comm.contract import Endpoint
    from plait.comm.tensor_group import EndpointGroup
    from plait.nn.training.stage import TrainingStage

_FORMAT = 2
"""Counts up when what is measured changes: older files are measured again."""

_MOST_TOGETHER = 4
_MIDDLE = 2
PASS_S, _LEAST, _MOST = 0.3, 3, 50
"""How long each pass is measured, and how often."""

Say = Callable[[str], None]
Where = Literal["middle", "first", "last"]
_WHERE: tuple[Where, ...] = ("middle", "first", "last")


class TrainingJob(msgspec.Struct, frozen=True):
    """What is measured: micro-batches of `rows` sequences of `length` tokens, on `active` processes in groups of `tp`.

    `split`: halves of the backward too; `linked`: the link between two ranks too. `pass_s`: how long each is measured.
    """

    spec: ModelSpec
    dtype: str
    rows: int
    length: int
    active: int
    tp: int
    shares: tuple[int, ...]
    sequence: bool
    recompute: Recompute
    split: bool
    linked: bool
    pass_s: float = PASS_S


def measured_training_costs(
    plan: TrainingPlan, spec: ModelSpec, *, fresh: bool = False, say: Say | None = None, pass_s: float = PASS_S
) -> MeasuredTrainingCosts:
    """Costs of `plan` on this host, measured where they are not known yet: a few seconds for each dtype and threads.

    `fresh` measures again what is known; `say` is told when it takes a while. `pass_s`: how long each pass is measured.
    Errors: PlanError where a stage runs elsewhere.
    """
    layout, cores = plan.layout, usable_cores()
    elsewhere = {stage.host for stage in layout.stages} - {layout.stages[0].host}
    if elsewhere or any(stage.device != "cpu" for stage in layout.stages):
        raise PlanError(f"only the CPU of one host can be measured here, but the plan names {sorted(elsewhere)} too")
    kernels = sorted({TrainingKernel.of(layout, stage) for stage in range(len(layout.stages))})
    jobs = {kernel: msgspec.structs.replace(job_of(plan, spec, kernel, cores), pass_s=pass_s) for kernel in kernels}
    threads = {kernel: _at_once(plan) * kernel.threads for kernel in kernels}
    times = {
        kernel: _known(job, kernel.threads, threads[kernel], cores, fresh=fresh, say=say)
        for kernel, job in jobs.items()
    }
    return MeasuredTrainingCosts(spec, plan, times, cores)


def _known(
    job: TrainingJob, threads: int, all_threads: int, cores: int, *, fresh: bool, say: Say | None
) -> TrainingTimes:
    described = hashlib.sha256(msgspec.json.encode((job, all_threads), order="sorted")).hexdigest()
    host = f"{platform.node()} {cpu_model()} {cores} {torch_version()} {threads} {described} {_FORMAT}"

    def measure() -> TrainingTimes:
        if say is not None:
            say(f"measuring training in {job.dtype} on this machine, once")
        return _measure(job, threads, all_threads)

    return kept("training", host, TrainingTimes, measure, fresh=fresh)


def job_of(plan: TrainingPlan, spec: ModelSpec, kernel: TrainingKernel, cores: int) -> TrainingJob:
    """What is measured for a kernel of the plan."""
    setup, tp = plan.setup, plan.layout.tp
    room = max(1, min(_MOST_TOGETHER, cores // kernel.threads) // tp) * tp
    layers = _MIDDLE + 2
    small = replace(spec, name="", layers=layers, windows=(spec.windows * layers)[:layers])
    return TrainingJob(
        small,
        kernel.dtype,
        setup.micro_batch,
        plan.sequence,
        min(room, _at_once(plan)),
        tp,
        kernel.shares,
        setup.sequence_split,
        setup.recompute,
        setup.schedule in SPLIT_BACKWARD,
        plan.layout.ranks > 1,
    )


def _at_once(plan: TrainingPlan) -> int:
    """Ranks that compute at the same time: layer-wise, those of one position."""
    return plan.layout.ranks // (plan.setup.split.pp if plan.schedule == "layerwise" else 1)


def _measure(job: TrainingJob, threads: int, all_threads: int) -> TrainingTimes:
    from plait.prober.ranks import run_ranks

    ranks = max(job.active, 2 if job.linked else 1)
    said = run_ranks(__name__, ranks, threads, all_threads, [msgspec.json.encode(job).decode()], job.tp)
    return msgspec.json.decode(said, type=TrainingTimes)


# --- in a measuring process ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds of one pass, and those of them that were exchanges."""

    seconds: float
    exchanged_s: float


class _Rank:
    """One of the processes. Those that are active do the same, as often as the first of them says."""

    def __init__(self, endpoint: Endpoint, job: TrainingJob) -> None:
        from plait.comm.contract import Group
        from plait.comm.tensor_group import EndpointGroup

        self.job, self.endpoint = job, endpoint
        self.all = Group(tuple(range(job.active)))
        self._index = endpoint.rank % job.tp
        first = endpoint.rank - self._index
        self.group: EndpointGroup | None = None
        if job.tp > 1:
            self.group = EndpointGroup(endpoint, range(first, first + job.tp), record=True)

    def times(self) -> TrainingTimes:
        """All of it; the mean of the active ranks."""
        found = {where: self._passes(where) for where in _WHERE}
        stages = [_stage_times(found, exchanged=exchanged) for exchanged in (False, True)]
        of_one = self._update_s(), self._norm_s()
        return TrainingTimes(self.job.active, stages[0], stages[1], *of_one, self._product_flops())

    def _passes(self, where: Where) -> dict[Kind, _Spent]:
        stage = _make_stage(self.job, where, self.group, self._index)
        found: dict[Kind, _Spent] = {}
        for later in (False, True) if self.job.split else (False,):
            found |= self._timed(_Micro(self.job, stage, self._index, self._take, later).run)
        if not self.job.split:
            half = _Spent(found[Kind.BACKWARD].seconds / 2, found[Kind.BACKWARD].exchanged_s / 2)
            found |= {Kind.BACKWARD_INPUT: half, Kind.BACKWARD_WEIGHT: half}
        return found

    def _timed(self, run: Callable[[], dict[Kind, _Spent]]) -> dict[Kind, _Spent]:
        """What it usually takes, the mean of the ranks."""
        run()  # the first warms up
        began_s = time.perf_counter()
        taken = [run()]
        often = self._mean(min(_MOST, max(_LEAST, self.job.pass_s / (time.perf_counter() - began_s))))
        taken += [run() for _ in range(round(often) - 1)]
        return {
            kind: _Spent(
                self._mean(_usual([one[kind].seconds for one in taken])),
                self._mean(_usual([one[kind].exchanged_s for one in taken])),
            )
            for kind in taken[0]
        }

    def _mean(self, value: float) -> float:
        """Over the active ranks, which all get the same."""
        import torch

        total = self.endpoint.all_reduce(self.all, torch.tensor([value], dtype=torch.float64))
        return float(total) / self.job.active

    def _take(self) -> float:
        """Seconds of the exchanges since this was last asked."""
        return 0.0 if self.group is None else sum(end_s - begin_s for begin_s, end_s in self.group.take()[1])

    def _update_s(self) -> float:
        """Of one number: what the trainer's AdamW does to masters, and what makes narrower weights of them."""
        import torch
        from torch.optim.adamw import adamw

        from plait.nn.dtypes import TORCH_DTYPES

        weights = torch.full((_NUMBERS,), 0.01, dtype=torch.promote_types(TORCH_DTYPES[self.job.dtype], torch.float32))
        narrow = torch.zeros_like(weights, dtype=TORCH_DTYPES[self.job.dtype])
        gradient, *moments = (weights.clone() for _ in range(3))
        step = torch.zeros(())

        def update() -> None:
            adamw(
                [weights],
                [gradient],
                [moments[0]],
                [moments[1]],
                [],
                [step],
                foreach=False,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.95,
                lr=1e-3,
                weight_decay=0.1,
                eps=1e-8,
                maximize=False,
            )
            if narrow.dtype != weights.dtype:
                narrow.copy_(weights)

        return self._each_s(update)

    def _norm_s(self) -> float:
        """Of one number: its square in the sum."""
        import torch

        gradients = torch.full((_NUMBERS // 1024, 1024), 0.01)
        return self._each_s(lambda: torch.linalg.vector_norm(gradients, dim=1))

    def _product_flops(self) -> float:
        """FLOP/s of a product of square matrices, 2 n³ FLOP each."""
        import torch

        from plait.nn.dtypes import TORCH_DTYPES

        matrix = torch.full((_SIDE, _SIDE), 0.01, dtype=TORCH_DTYPES[self.job.dtype])
        out = torch.empty_like(matrix)
        return 2 * _SIDE**3 / (self._each_s(lambda: torch.mm(matrix, matrix, out=out)) * _NUMBERS)

    def _each_s(self, do: Callable[[], object]) -> float:
        def run() -> dict[Kind, _Spent]:
            began_s = time.perf_counter()
            do()
            return {Kind.OPTIMIZER: _Spent(time.perf_counter() - began_s, 0.0)}

        return self._timed(run)[Kind.OPTIMIZER].seconds / _NUMBERS


_SIDE = 1024
_NUMBERS = 1 << 22
"""More than the caches hold."""


def _usual(seconds: Sequence[float]) -> float:
    """The mean of the faster half: what else a host does makes single ones several times as long."""
    return statistics.fmean(sorted(seconds)[: -(-len(seconds) // 2)])


class _Micro:
    """A micro-batch through one stage and back; `later`: in halves."""

    def __init__(
        self, job: TrainingJob, stage: TrainingStage, index: int, take: Callable[[], float], later: bool
    ) -> None:
        import torch

        from plait.spec.shards import even_rows

        self._stage, self._take, self._later = stage, take, later
        self._shape = (job.rows, job.length)
        rows = even_rows(job.rows * job.length, job.tp)[index]
        hidden = torch.full((rows, job.spec.hidden), 0.01, dtype=stage.dtype)
        tokens = torch.arange(job.rows * job.length).view(self._shape) % job.spec.vocab
        self._inputs = tokens if stage.first == 0 else hidden
        last = stage.end == job.spec.layers
        self._targets = tokens if last else None
        self._gradient: torch.Tensor | float = 1e-3 if last else hidden

    def run(self) -> dict[Kind, _Spent]:
        """Once."""
        spent: dict[Kind, _Spent] = {}
        self._take()
        began_s = time.perf_counter()
        passed = self._stage.forward(self._inputs, self._targets, self._shape, later=self._later)
        began_s = self._note(spent, Kind.FORWARD, began_s)
        self._stage.backward(passed, self._gradient)
        began_s = self._note(spent, Kind.BACKWARD_INPUT if self._later else Kind.BACKWARD, began_s)
        if self._later:
            self._stage.weigh(passed)
            self._note(spent, Kind.BACKWARD_WEIGHT, began_s)
        return spent

    def _note(self, spent: dict[Kind, _Spent], kind: Kind, began_s: float) -> float:
        now_s = time.perf_counter()
        spent[kind] = _Spent(now_s - began_s, self._take())
        return now_s


def _make_stage(job: TrainingJob, where: Where, group: EndpointGroup | None, index: int) -> TrainingStage:
    """One layer with an end, or the layers between the ends, with small random weights."""
    import torch

    from plait.nn.dtypes import TORCH_DTYPES
    from plait.nn.training.options import StageOptions
    from plait.nn.training.stage import TrainingStage
    from plait.spec.shards import make_shards, shard_tensors

    layers = {"first": (0, 1), "middle": (1, job.spec.layers - 1), "last": (job.spec.layers - 1, job.spec.layers)}[
        where
    ]
    shard = make_shards(job.spec, job.tp, job.shares)[index]
    dtype = TORCH_DTYPES[job.dtype]
    tensors = {
        name: torch.ones(piece.shape) if len(piece.shape) == 1 else torch.empty(piece.shape).normal_(0, 0.02)
        for name, piece in shard_tensors(job.spec, *layers, shard).items()
    }
    options = StageOptions(recompute=job.recompute)
    return TrainingStage(job.spec, *layers, tensors, dtype, shard, group, job.sequence, options)


def _stage_times(found: dict[Where, dict[Kind, _Spent]], *, exchanged: bool) -> StageTimes:
    """A layer from the middle; the ends without theirs."""

    def seconds(where: Where, kind: Kind) -> float:
        spent = found[where][kind]
        return spent.exchanged_s if exchanged else max(0.0, spent.seconds - spent.exchanged_s)

    layer = {kind: seconds("middle", kind) / _MIDDLE for kind in _PASSES}
    ends = ({kind: max(0.0, seconds(where, kind) - layer[kind]) for kind in _PASSES} for where in ("first", "last"))
    return StageTimes(*(PassTimes(*(one[kind] for kind in _PASSES)) for one in (layer, *ends)))


_PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def main() -> int:
    """One of the processes: its arguments are what `this_rank` needs, and its job."""
    from plait.comm.measure import measure_link
    from plait.prober.ranks import this_rank

    job, endpoint = msgspec.json.decode(sys.argv[3], type=TrainingJob), this_rank()
    link = measure_link(endpoint, 1 - endpoint.rank) if job.linked and endpoint.rank < 2 else None
    if endpoint.rank < job.active:
        times = _Rank(endpoint, job).times()
        sys.stdout.buffer.write(msgspec.json.encode(replace(times, link=link)))
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
