"""Nothing fits: how much is missing on every device, and the nearest thing that would fit."""

from __future__ import annotations

import numpy as np

from plait.planner.grid import Grid
from plait.planner.selection import Selection
from plait.planner.space import TrainingLimits
from plait.planner.training_limits import asked
from plait.planner.training_words import split_words
from plait.plans.split import TrainingSetup
from plait.units import format_bytes

_MORE = 64
"""So many times the devices there are is looked at for what would fit."""


def shortfall(selection: Selection, devices: int) -> str:
    """The message: need, free and shortfall of each device, and what to change."""
    grid, have = selection.grid, selection.memory_bytes
    spec, job = grid.model.spec, grid.model.job
    nearest = selection.nearest()
    if nearest is None:
        return (
            f"no way to split {spec.name} over {devices} devices for a batch of {job.batch} has "
            f"{asked(grid.limits) or 'these limits'}: dp × ep must divide the batch, a micro-batch a replica's share, "
            "and there must be layers for all stages (interleaved ones must be equal, but for the first and the last)"
        )
    one, need = nearest
    setup = grid.setup(one.row, one.way, one.zero)
    first = (
        f"{spec.name} does not fit on {devices} device{'s' * (devices > 1)} for a batch of {job.batch} × {job.sequence}"
        f" tokens: the least that any way needs is {format_bytes(need)} on a device ({split_words(setup)}), "
        f"{format_bytes(have)} are there, {format_bytes(need - have)} are missing on each of {setup.split.ranks}"
    )
    return f"{first}; {_nearest(grid, devices, have)}"


def _nearest(grid: Grid, devices: int, have: float) -> str:
    loosened = _smallest(grid, devices, grid.limits.loosened(), have)
    if loosened is not None:
        return f"without these limits {split_words(loosened)} would fit"
    larger = _smallest(grid, devices * _MORE, grid.limits.loosened(), have)
    if larger is not None:
        return f"{larger.split.ranks} such devices would hold it ({split_words(larger)})"
    return f"not even {devices * _MORE} such devices would hold it: use devices with more memory or a smaller model"


def _smallest(grid: Grid, devices: int, limits: TrainingLimits, have: float) -> TrainingSetup | None:
    """The way that fits on the fewest devices; of equals the fastest by its bound."""
    wider = Grid(grid.model, devices, limits)
    best: tuple[int, float, TrainingSetup] | None = None
    ranks = np.array([split.ranks for split in wider.splits])
    for found in wider.search():
        fits = found.need_bytes <= have
        if not fits.any():
            continue
        taken, bounds = ranks[wider.rows.split[found.rows]][fits], found.bound_s[fits]
        at = int(np.lexsort((bounds, taken))[0])
        key = int(taken[at]), float(bounds[at])
        if best is None or key < best[:2]:
            best = (*key, wider.setup(int(found.rows[fits][at]), found.way, found.zero))
    return None if best is None else best[2]
