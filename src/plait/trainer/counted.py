"""A guard: the norm of the mesh counts every parameter that learns, once."""

from __future__ import annotations

import math
from collections.abc import Collection

from plait.errors import RunError
from plait.spec.model import ModelSpec
from plait.spec.tensors import model_tensors
from plait.trainer.held import HeldStage
from plait.trainer.norm import Assembly


def require_counted_once(
    spec: ModelSpec, frozen: Collection[str], held: Collection[HeldStage], assembly: Assembly
) -> None:
    """All ranks call it. Errors: RunError, the same on all."""
    mine = sum(end - first for one in held for first, end in one.counted)
    counted = round(math.fsum(row[0] for row in assembly.told([mine])))
    learning = sum(math.prod(shape) for name, shape in model_tensors(spec).items() if name not in frozen)
    if counted != learning:
        raise RunError(
            f"the ranks would count {counted} parameters in the gradient norm, but {learning} of {spec.name} learn: "
            f"{abs(counted - learning)} {'twice' if counted > learning else 'not at all'}. Do all ranks run the same "
            "version with the same plan?"
        )
