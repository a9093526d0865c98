"""From what was asked to a plan of training that can be run here, or under a launcher."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from plait.errors import PlanError
from plait.planner.training_local import local_training_plan
from plait.plans.check_training import check_training_plan
from plait.plans.file import load_plan_file
from plait.plans.layout import Stage
from plait.plans.plan import LOCALHOST
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.schedules.prove import prove_training_plan
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.trainer.settings import Rate, Settings
from plait.trainer.train_options import (
    FRESH_RATE,
    OPTIMIZERS,
    RATES,
    TRAINED_RATE,
    TrainOptions,
    one_of,
    recompute_of,
)

_SEQUENCE, _SEQUENCES = 128, 8
_DTYPES = ("float32", "bfloat16")


class Started(NamedTuple):
    """Where a plan runs: this host's `cores`. `ranks`: of a launcher, `here` of them on this host, from `first` on.

    None where we start our own.
    """

    cores: int
    ranks: int | None = None
    here: int | None = None
    first: int = 0

    def held(self, ranks: int) -> range:
        """Of so many ranks, those of this host."""
        return range(ranks) if self.here is None else range(self.first, self.first + self.here)


class Given(NamedTuple):
    """A plan file's plan and its cluster."""

    plan: TrainingPlan
    cluster: Cluster | None


def read_given(options: TrainOptions) -> Given | None:
    """What `options.plan` holds; None where there is none. Errors: PlanError."""
    if options.plan is None:
        return None
    plan, cluster, _ = load_plan_file(options.plan)
    if not isinstance(plan, TrainingPlan):
        raise PlanError(
            f"plan file {options.plan} is of generation, and one of training is needed "
            "(plait plan MODEL --task train -o FILE writes one)"
        )
    return Given(plan, cluster)


def make_plan(options: TrainOptions, spec: ModelSpec, given: Given | None, started: Started) -> Given:
    """The plan to run. Errors: PlanError where it cannot be made, is not what the flags say, or cannot be run yet."""
    made = Given(_chosen(options, spec, started), None) if given is None else _checked(options, spec, given, started)
    _require_size(made.plan, started.ranks)
    return made


def make_settings(options: TrainOptions, *, fresh: bool) -> Settings:
    """What the ranks are told beside the plan; `fresh`: weights begin at random. Errors: PlanError."""
    if options.steps < 1:
        raise PlanError(f"--steps {options.steps} was given, but must be at least 1")
    lr = options.lr if options.lr is not None else FRESH_RATE if fresh else TRAINED_RATE
    decay = RATES[RATES.index(one_of("--lr-schedule", options.lr_schedule, RATES))]
    optimizer = OPTIMIZERS[OPTIMIZERS.index(one_of("--optimizer", options.optimizer, OPTIMIZERS))]
    return Settings(
        Rate(lr, decay, options.warmup, options.steps),
        optimizer,
        weight_decay=options.weight_decay,
        clip=options.clip or None,
        frozen=options.freeze,
        dropout=options.dropout,
        seed=options.seed,
        check_every=options.check_every,
    )


# --- a plan of our own --------------------------------------------------------------------------------------


def _chosen(options: TrainOptions, spec: ModelSpec, started: Started) -> TrainingPlan:
    pp, tp = _at_least_one("pp", options.pp), _at_least_one("tp", options.tp)
    dp = _at_least_one("dp", _replicas(options, started, pp * tp))
    virtual = _at_least_one("virtual", options.virtual)
    batch, micro_batches = _batch(options, dp, pp)
    schedule = options.schedule or ("interleaved" if virtual > 1 else "1f1b")
    setup = TrainingSetup(
        Split(dp=dp, pp=pp, tp=tp),
        schedule,
        0,  # it follows
        micro_batches,
        virtual,
        recompute_of(options.recompute),
        options.zero or 0,
        bool(options.sequence),
    )
    dtype = one_of("--dtype", options.dtype or "float32", _DTYPES)
    length = options.sequence_length
    sequence = min(_SEQUENCE, spec.max_positions) if length is None else _at_least_one("sequence-length", length)
    threads = options.threads or _threads(setup, started)
    return local_training_plan(spec, setup, batch, sequence, dtype, threads=threads)


def _replicas(options: TrainOptions, started: Started, width: int) -> int | None:
    """What was asked for, else as many as the launcher's ranks make."""
    return options.dp if options.dp is not None or started.ranks is None else max(1, started.ranks // width)


def _at_least_one(name: str, given: int | None) -> int:
    if given is not None and given < 1:
        raise PlanError(f"--{name} {given} was given, but must be at least 1")
    return given or 1


def _batch(options: TrainOptions, dp: int, pp: int) -> tuple[int, int]:
    """Sequences of a step, and micro-batches of a pipeline: 8 sequences in each, twice as many as stages, or more."""
    for name in ("batch", "micro_batches"):
        _at_least_one(name.replace("_", "-"), getattr(options, name))
    usual = 1 if pp == 1 else 2 * pp
    if options.batch is None:
        micro_batches = options.micro_batches or usual
        return dp * micro_batches * max(1, _SEQUENCES // micro_batches), micro_batches
    if options.micro_batches is not None or pp == 1:
        return options.batch, options.micro_batches or 1
    share = options.batch // dp
    fitting = [count for count in range(1, share + 1) if share % count == 0]
    return options.batch, min(fitting, key=lambda count: (abs(count - usual), -count), default=1)


def _threads(setup: TrainingSetup, started: Started) -> int:
    """Cores ÷ the ranks that compute at once: layer-wise one stage of each pipeline does."""
    split = setup.split
    together = split.dp * split.tp * (1 if setup.schedule == "layerwise" else split.pp)
    return max(1, started.cores // min(together, started.here or together))


# --- a plan file's ------------------------------------------------------------------------------------------


def _checked(options: TrainOptions, spec: ModelSpec, given: Given, started: Started) -> Given:
    plan = given.plan
    check_training_plan(plan, spec)
    for flag, asked, planned in _flags(options, plan):
        if asked is not None and asked != planned:
            raise PlanError(
                f"--{flag} {_said(asked)} was given, but plan file {options.plan} says {_said(planned)}: "
                f"leave --{flag} out, or plan again with it"
            )
    require_trainable(plan)
    prove_training_plan(plan, spec)
    threads = options.threads or (None if given.cluster is None else _threads(plan.setup, started))
    if threads is None:
        return given
    stages = tuple(replace(stage, threads=threads) for stage in plan.layout.stages)
    return Given(replace(plan, layout=replace(plan.layout, stages=stages)), given.cluster)


def _flags(options: TrainOptions, plan: TrainingPlan) -> list[tuple[str, Any, Any]]:
    """Each flag that the plan decides on: its name, what it says, what the plan says."""
    setup, split = plan.setup, plan.setup.split
    planned: Mapping[str, Any] = {
        "dp": split.dp,
        "pp": split.pp,
        "tp": split.tp,
        "virtual": setup.virtual,
        "schedule": setup.schedule,
        "micro_batches": setup.micro_batches,
        "batch": plan.batch,
        "sequence_length": plan.sequence,
        "sequence": setup.sequence_split,
        "zero": setup.zero,
        "recompute": setup.recompute,
        "dtype": plan.layout.stages[0].dtype,
    }
    return [(name.replace("_", "-"), getattr(options, name), value) for name, value in planned.items()]


def _said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def require_trainable(plan: TrainingPlan) -> None:
    """What `plait train` can run yet. Errors: PlanError, which says what is needed."""
    split, setup = plan.setup.split, plan.setup
    for axis in ("ep", "cp"):
        if getattr(split, axis) > 1:
            raise PlanError(
                f"the plan splits along {axis} = {getattr(split, axis)}, but only dp, pp and tp can be trained yet: "
                f"plan again{' with --ep 1' if axis == 'ep' else ''}, or look at this plan with plait simulate"
            )
    if setup.zero > 1:
        raise PlanError(f"the plan has zero = {setup.zero}, but only 0 and 1 can be trained yet: plan again")
    for index, stage in enumerate(plan.layout.stages):
        _require_stage(index, stage)


def _require_stage(index: int, stage: Stage) -> None:
    if stage.dtype not in _DTYPES:
        raise PlanError(f"stage {index} computes in {stage.dtype}, but only {' and '.join(_DTYPES)} can be trained yet")
    if stage.weights != stage.dtype:
        raise PlanError(
            f"stage {index} stores weights as {stage.weights} but computes in {stage.dtype}: to train, write "
            f"weights = {stage.dtype!r}"
        )
    if stage.device != "cpu":
        raise PlanError(
            f"stage {index} is on device {stage.device!r}, but only 'cpu' can be trained on yet: write device = 'cpu', "
            "or look at this plan with plait simulate"
        )


def require_this_host(plan: TrainingPlan) -> None:
    """All stages of a plan whose ranks we start are on this host. Errors: PlanError."""
    here = (LOCALHOST, platform.node())
    elsewhere = sorted({stage.host for stage in plan.layout.stages} - set(here))
    if elsewhere:
        hosts = {stage.host for stage in plan.layout.stages}
        here_too = "give --emulate 1gbit,200us" if len(hosts) > 1 else f"write host = {LOCALHOST!r} in its stages"
        raise PlanError(
            f"the plan is for host {elsewhere[0]!r}, and this machine is {platform.node()!r}: start its ranks there "
            f"with torchrun, or {here_too} to try it here"
        )


def _require_size(plan: TrainingPlan, ranks: int | None) -> None:
    """A launcher has started as many ranks as the plan has. Errors: PlanError."""
    if ranks is None or ranks == plan.layout.ranks:
        return
    split = plan.setup.split
    mesh = f"dp × pp × tp = {split.dp} × {split.pp} × {split.tp}"
    word = "too few" if ranks < plan.layout.ranks else "too many"
    raise PlanError(
        f"the mesh has {plan.layout.ranks} ranks ({mesh}), but {ranks} were started: "
        f"{abs(plan.layout.ranks - ranks)} {word}; start as many (torchrun --nproc-per-node), or give another mesh"
    )
