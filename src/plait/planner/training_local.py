"""The plan of a training mesh that was asked for: nothing is searched, and what cannot be is refused in full.

    rank = (d · pp + p) · tp + t        dp outermost, then positions of the pipeline, tensor groups on neighbours

Where the search of a cluster lays positions outermost (`placement`), here replicas are: on one host, or hosts of equal
links, each replica's pipeline stays together, and on several a replica fills a host before the next begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from plait.errors import PlanError
from plait.planner.balance import Weights, position_layers, stage_layers
from plait.planner.cut import Cut, cut_by_hand
from plait.planner.placement import cut_of
from plait.planner.space import divisors
from plait.plans.check_training import check_training_plan
from plait.plans.layout import Layout, Stage
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.schedules.order import Placement, loop, v_shape
from plait.schedules.training import V_SHAPED, require_training_schedule
from plait.spec.checked import require_runnable
from plait.spec.model import ModelSpec
from plait.spec.tensors import layer_tensors


def local_training_plan(
    spec: ModelSpec,
    setup: TrainingSetup,
    batch: int,
    sequence: int,
    dtype: str,
    *,
    cut: Sequence[int] | None = None,
    threads: int = 1,
    capacity: int = 2,
    shares: Sequence[int] = (),
) -> TrainingPlan:
    """The plan that trains `spec` as `setup` says, in steps of `batch` sequences of `sequence` tokens, in `dtype`.

    `setup.micro_batch` or `setup.micro_batches` may be 0: it follows from the batch and the other. `cut`: layers of
    each stage; by default positions are as equally loaded as whole layers allow, the head counted. `threads`: of each
    rank. `capacity`: unreceived messages a link holds. `shares`: what each rank of a tensor group gets, in proportion.
    Errors: PlanError, SpecError for models that can be planned only: what was given, what fits, what to type.
    """
    require_runnable(spec)
    _require(_problems(spec, setup, capacity))
    setup = _with_micro_batches(setup, batch)
    stages = setup.split.pp * setup.virtual
    layers = _balanced(spec, setup, sequence) if cut is None else cut_by_hand(cut, spec.layers, stages)
    layout = _layout(setup, layers, Stage((0, 0), (), dtype, dtype, threads, shares=tuple(shares)), capacity)
    plan = TrainingPlan(spec.name, layout, setup, batch, sequence)
    check_training_plan(plan, spec)
    return plan


def _require(problems: Iterator[str]) -> None:
    problem = next(problems, None)
    if problem is not None:
        raise PlanError(problem)


def _problems(spec: ModelSpec, setup: TrainingSetup, capacity: int) -> Iterator[str]:
    """What cannot be, whatever the batch."""
    split = setup.split
    sizes = {**{axis: getattr(split, axis) for axis in Split.__dataclass_fields__}, "virtual": setup.virtual}
    for name, value in sizes.items():
        if value < 1:
            yield f"--{name} {value} was asked for, but it must be at least 1"
    if capacity < 1:
        yield f"a link that holds {capacity} messages cannot carry any: it must hold at least 1"
    require_training_schedule(setup.schedule, setup.virtual)
    yield from _not_run_yet(setup)
    if split.tp > spec.heads:
        yield (
            f"--tp {split.tp} was asked for, but {spec.name} has {spec.heads} heads, and every rank of a tensor group "
            f"needs at least one: --tp {spec.heads} is the most"
        )
    if setup.sequence_split and split.tp == 1:
        yield "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one"
    yield from _stages(spec, setup)


def _not_run_yet(setup: TrainingSetup) -> Iterator[str]:
    split = setup.split
    for axis in ("ep", "cp"):
        if getattr(split, axis) > 1:
            yield f"{axis} = {getattr(split, axis)} can be planned, but not run yet: --{axis} 1"
    if setup.zero > 1:
        yield f"ZeRO-{setup.zero} can be planned, but not run yet: --zero 0 or --zero 1"


def _stages(spec: ModelSpec, setup: TrainingSetup) -> Iterator[str]:
    """Every stage can have a layer."""
    pp, virtual, layers = setup.split.pp, setup.virtual, spec.layers
    if pp * virtual <= layers:
        return
    asked = f"--pp {pp}" + (f" --virtual {virtual}" if virtual > 1 else "")
    most = f"--pp {layers // virtual}" + (f" --virtual {virtual}" if virtual > 1 else "")
    fits = f"at most {layers} stages fit"
    if layers >= virtual:
        fits += f" ({most} is the most)"
    yield (
        f"{asked} makes {pp * virtual} stages, but {spec.name} has {layers} layer{'s' if layers > 1 else ''} and every "
        f"stage needs at least one: {fits}"
    )


def _with_micro_batches(setup: TrainingSetup, batch: int) -> TrainingSetup:
    """The setup with size and number of micro-batches, the one that is 0 made from the batch. Errors: PlanError."""
    size, count, dp = setup.micro_batch, setup.micro_batches, setup.split.dp
    if min(size, count) < 0 or batch < 1 or not size + count:
        raise PlanError(
            f"a batch of {batch} sequences in {count} micro-batches of {size} cannot be: all must be at least 1, but "
            "one of the latter, which then follows from the batch"
        )
    given = [(f"dp {dp}", dp)] if dp > 1 else []
    given += [(f"micro-batches of {size}", size)] if size else []
    given += [(f"{count} micro-batch{'es' * (count != 1)}", count)] if count else []
    made = (size or 1) * (count or 1) * dp
    if batch % made or (size and count and batch != made):
        raise PlanError(_does_not_divide(setup, batch, made, " × ".join(words for words, _ in given)))
    return replace(setup, micro_batch=size or batch // made, micro_batches=count or batch // made)


def _does_not_divide(setup: TrainingSetup, batch: int, made: int, words: str) -> str:
    """Batches around this one that fit, and what fits this batch."""
    size, count, dp = setup.micro_batch, setup.micro_batches, setup.split.dp
    below = batch // made * made
    batches = [made] if size and count else [each for each in (below, below + made) if each]
    fitting = f"--batch {' or '.join(map(str, batches))}"
    share, rest = divmod(batch, dp)
    others = [f"--dp {_listed(divisors(batch))}"] if rest else []
    if not rest and count:
        others.append(f"--micro-batches {_listed(divisors(share) if not size or share % size else [share // size])}")
    if not rest and size and (not count or share % size):
        others.append(f"--micro-batch {_listed(divisors(share))}")
    return f"a batch of {batch} sequences is not {words}: {fitting} would be, and of {batch} {_either(others)}"


def _either(others: Sequence[str]) -> str:
    return ", or ".join(others) + " can be"


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _balanced(spec: ModelSpec, setup: TrainingSetup, sequence: int) -> Cut:
    """The cut whose slowest position has the least to multiply; an embedding is only looked up."""
    products = sum(prod(shape) for shape in layer_tensors(spec).values() if len(shape) > 1)
    layer = products + sequence * spec.heads * spec.head_dim  # and half of all pairs of positions, twice
    weights = Weights(*map(np.float64, (layer, 0, spec.vocab * spec.hidden)))  # type: ignore[arg-type]
    folded = setup.schedule in V_SHAPED
    counts = position_layers(spec.layers, setup.split.pp, setup.virtual, weights, folded)
    return cut_of(stage_layers(counts, setup.virtual, folded))


def _layout(setup: TrainingSetup, cut: Cut, like: Stage, capacity: int) -> Layout:
    split = setup.split
    stages = [like] * len(cut)
    for position, held in enumerate(_placement(setup)):
        ranks = tuple(
            (d * split.pp + position) * split.tp + t for d in range(split.dp) for t in range(split.tp)
        )  # tensor groups one after the other
        for stage in held:
            stages[stage] = replace(like, layers=cut[stage], ranks=ranks)
    return Layout({"dp": split.dp, "pp": split.pp, "tp": split.tp}, tuple(stages), capacity)


def _placement(setup: TrainingSetup) -> Placement:
    return v_shape(setup.split.pp) if setup.schedule in V_SHAPED else loop(setup.split.pp, setup.virtual)
