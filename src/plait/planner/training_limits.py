"""Limits of a training search that cannot be met: refused with what was asked, what is needed and what is there."""

from __future__ import annotations

from collections.abc import Iterator

from plait.errors import PlanError
from plait.planner.space import TrainingLimits, divisors
from plait.schedules.training import V_SHAPED
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec

_SEVERAL_STAGES = ("interleaved", *V_SHAPED)


def require_limits(spec: ModelSpec, job: TrainingJob, devices: int, limits: TrainingLimits) -> None:
    """Every limit can be met on so many devices, and all together. Errors: PlanError, for the first that cannot."""
    problem = next(_problems(spec, job, devices, limits), None)
    if problem is not None:
        raise PlanError(problem)


def asked(limits: TrainingLimits) -> str:
    """The limits as they are typed: ``--dp 4 --schedule gpipe``; empty where there are none."""
    names = ("dp", "pp", "tp", "ep", "virtual", "micro_batch")
    given = [f"--{name.replace('_', '-')} {getattr(limits, name)}" for name in names if getattr(limits, name)]
    if len(limits.schedules) == 1:
        given.append(f"--schedule {limits.schedules[0]}")
    return " ".join(given)


def _problems(spec: ModelSpec, job: TrainingJob, devices: int, limits: TrainingLimits) -> Iterator[str]:
    if job.sequence > spec.max_positions:
        yield (
            f"a sequence has {job.sequence} tokens, but {spec.name} was made for at most {spec.max_positions}: "
            f"{job.sequence - spec.max_positions} too many (--seq {spec.max_positions} is the most)"
        )
    yield from _of_model(spec, limits)
    yield from _of_schedule(spec, limits)
    yield from _of_devices(devices, limits)
    yield from _of_batch(job, limits)


def _of_model(spec: ModelSpec, limits: TrainingLimits) -> Iterator[str]:
    if limits.ep not in (None, 1):
        if spec.experts is None:
            yield f"--ep {limits.ep} was asked for, but {spec.name} has no experts: --ep 1"
        elif spec.experts.count % limits.ep:
            count, fitting = spec.experts.count, nearest_divisors(spec.experts.count, limits.ep)
            yield f"--ep {limits.ep} does not divide the {count} experts of {spec.name}: --ep {fitting} would"
    if limits.tp is not None and limits.tp > spec.heads:
        yield f"--tp {limits.tp} was asked for, but {spec.name} has {spec.heads} heads: --tp {spec.heads} is the most"
    if limits.pp is not None and limits.pp > spec.layers:
        yield (
            f"--pp {limits.pp} was asked for, but {spec.name} has {spec.layers} layers and every stage needs at least "
            f"one: --pp {spec.layers} is the most"
        )


def _of_schedule(spec: ModelSpec, limits: TrainingLimits) -> Iterator[str]:
    names = " or ".join(limits.schedules)
    if limits.pp == 1 and "1f1b" not in limits.schedules:
        yield f"--schedule {names} needs a pipeline, but --pp 1 was asked for: --pp 2 or more"
    virtual = limits.virtual
    if virtual is None:
        return
    if virtual > 1 and limits.pp == 1:
        yield f"--virtual {virtual} needs a pipeline, but --pp 1 was asked for: --pp 2 or more"
    if virtual > 1 and not set(_SEVERAL_STAGES) & set(limits.schedules):
        yield (
            f"--virtual {virtual} needs --schedule interleaved, zb-v or dualpipe-v, but --schedule {names} was asked "
            "for, which has one stage a position"
        )
    if virtual == 1 and set(limits.schedules) <= set(_SEVERAL_STAGES):
        least = "2 or more" if names == "interleaved" else "2"
        yield f"--schedule {names} needs --virtual {least}, but --virtual 1 was asked for"
    if virtual > 2 and set(limits.schedules) <= set(V_SHAPED):
        yield f"--schedule {names} has two stages a position, but --virtual {virtual} was asked for: --virtual 2"
    stages = (limits.pp or 2) * virtual
    if virtual > 1 and stages > spec.layers:
        yield (
            f"--virtual {virtual} with --pp {limits.pp or 2} makes {stages} stages, but {spec.name} has {spec.layers} "
            "layers and every stage needs at least one"
        )


def _of_devices(devices: int, limits: TrainingLimits) -> Iterator[str]:
    axes = [(name, size) for name in ("dp", "pp", "tp", "ep") if (size := getattr(limits, name)) is not None]
    need = 1
    for _, size in axes:
        need *= size
    if limits.pp is None and "1f1b" not in limits.schedules:
        need *= 2
        axes.append(("schedule", 0))
    if need > devices:
        words = " ".join(f"--{name} {size or ' or '.join(limits.schedules)}" for name, size in axes)
        least = "at least " * any(not size for _, size in axes)
        yield (
            f"{words} needs {least}{need} devices, but there {'is' if devices == 1 else 'are'} {devices}: "
            f"{need - devices} too few"
        )


def _of_batch(job: TrainingJob, limits: TrainingLimits) -> Iterator[str]:
    replicas, names = 1, []
    for name in ("dp", "ep"):
        if (size := getattr(limits, name)) is not None:
            replicas *= size
            names.append(f"--{name} {size}")
    if job.batch % replicas:
        words = " ".join(names)
        if len([name for name in names if not name.endswith(" 1")]) > 1:
            yield f"{words} divides the batch {replicas} ways, but {replicas} does not divide the batch of {job.batch}"
        name = "dp" if limits.dp not in (None, 1) else "ep"
        fitting = nearest_divisors(job.batch, replicas)
        yield f"--{name} {replicas} does not divide the batch of {job.batch}: --{name} {fitting} would"
    share = job.batch // replicas
    if limits.micro_batch is not None and share % limits.micro_batch:
        of_what = f"batch of {job.batch}" if replicas == 1 else f"{share} sequences of a replica"
        fitting = nearest_divisors(share, limits.micro_batch)
        yield f"--micro-batch {limits.micro_batch} does not divide the {of_what}: --micro-batch {fitting} would"


def nearest_divisors(number: int, given: int) -> str:
    """The divisors of a number on both sides of one that does not divide it: ``2 or 4``."""
    below = [one for one in divisors(number) if one < given]
    above = [one for one in divisors(number) if one > given]
    return " or ".join(map(str, [*below[-1:], *above[:1]]))
