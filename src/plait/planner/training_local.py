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
from plait.schedules.prove import prove_training_plan
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
    The plan is proved free of deadlock. Errors: PlanError, SpecError for models that can be planned only: what was
    given, what fits, what to type.
    """
    require_runnable(spec)
    _require(_problems(spec, setup, capacity))
    setup = _with_micro_batches(setup, batch)
    layers = _balanced(spec, setup, sequence) if cut is None else _by_hand(spec, setup, cut)
    layout = _layout(setup, layers, Stage((0, 0), (), dtype, dtype, threads, shares=tuple(shares)), capacity)
    plan = TrainingPlan(spec.name, layout, setup, batch, sequence)
    check_training_plan(plan, spec)
    prove_training_plan(plan, spec)
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
    if setup.zero not in range(4):
        yield f"ZeRO-{setup.zero} is not known: --zero 0 or --zero 1"
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
    for name, value, least in (("batch", batch, 1), ("micro-batch", size, 0), ("micro-batches", count, 0)):
        if value < least:
            raise PlanError(f"--{name} {value} was asked for, but it must be at least 1")
    if not size and not count:
        raise PlanError("neither the size nor the number of micro-batches is given, and the batch says only one")
    made = (size or 1) * (count or 1) * dp
    if size and count and batch != made:
        raise PlanError(
            f"{count} micro-batches of {size} over dp {dp} make {made} sequences, but the batch has {batch}: "
            f"type --batch {made}"
        )
    if batch % made:
        raise PlanError(_does_not_divide(setup, batch, made))
    return replace(setup, micro_batch=size or batch // made, micro_batches=count or batch // made)


def _does_not_divide(setup: TrainingSetup, batch: int, made: int) -> str:
    """The next smaller and larger batch that divide, and what divides this one."""
    size, count, dp = setup.micro_batch, setup.micro_batches, setup.split.dp
    words = f"micro-batches of {size}" if size else f"{count} micro-batch{'es' * (count != 1)}"
    into = f"dp {dp} × {words}" if dp > 1 else words
    below = batch // made * made
    typed = [f"--batch {_listed([each for each in (below, below + made) if each])}"]
    share, rest = divmod(batch, dp)
    if not rest:
        typed.append(f"--micro-batch{'' if size else 'es'} {_listed(divisors(share))}")
    elif fitting := [each for each in divisors(batch) if batch // each % (made // dp) == 0]:
        typed.append(f"--dp {_listed(fitting)}")
    return f"a batch of {batch} sequences cannot be divided into {into}: type {', or '.join(typed)}"


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _by_hand(spec: ModelSpec, setup: TrainingSetup, counts: Sequence[int]) -> Cut:
    """The cut with so many layers in each stage. Errors: PlanError."""
    pp, virtual = setup.split.pp, setup.virtual
    if virtual > 1 and len(counts) != pp * virtual:
        raise PlanError(
            f"--layers {','.join(map(str, counts))} makes {len(counts)} stages, but {pp} positions of {virtual} stages "
            f"are {pp * virtual}"
        )
    return cut_by_hand(counts, spec.layers, pp * virtual)


def _balanced(spec: ModelSpec, setup: TrainingSetup, sequence: int) -> Cut:
    """The cut whose slowest position has the least to multiply; an embedding is only looked up."""
    layers, pp, virtual = spec.layers, setup.split.pp, setup.virtual
    products = sum(prod(shape) for shape in layer_tensors(spec).values() if len(shape) > 1)
    layer = products + sequence * spec.heads * spec.head_dim  # and half of all pairs of positions, twice
    # a head heavier than what makes its position have one layer a stage changes nothing more
    most = -(-(layers - virtual) // max(1, pp - 1)) - virtual
    head = min(spec.vocab * spec.hidden, most * layer)
    weights = Weights(*map(np.float64, (layer, 0, head)))  # type: ignore[arg-type]
    folded = setup.schedule in V_SHAPED
    counts = position_layers(layers, pp, virtual, weights, folded)
    return cut_of(stage_layers(counts, virtual, folded))


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
