"""Fits of a profile's figures to measured ones: least squares on relative errors, held near where they began.

Gauss-Newton with damping (Levenberg-Marquardt; Press et al., "Numerical Recipes", 3rd edition (2007), section 15.5) on
the logarithms of the figures: they stay positive, and a step means the same for seconds, bytes and shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from plait.costs.profiles import Profile

Errors = NDArray[np.float64]
_STEP = 1e-4


def fitted(
    profile: Profile, spread: Mapping[str, float], errors: Callable[[Profile], Errors], rounds: int = 60
) -> Profile:
    """The profile with the figures named in `spread` moved to where the squares of `errors` are least.

    `spread` says how far each may reasonably move, as the standard deviation of its logarithm: moving by so much costs
    as much as a relative error of `errors`' own unit. `errors`: relative errors over the error that is expected.
    """
    names = list(spread)
    began = np.log([getattr(profile, name) for name in names])
    wide = np.array([spread[name] for name in names])

    def at(moved: Errors) -> Errors:
        return np.concatenate([errors(_moved(profile, names, began, moved * wide)), moved])

    moved = np.zeros(len(names))
    found, damping = at(moved), 1e-2
    for _ in range(rounds):
        slope = np.stack([(at(moved + _STEP * unit) - found) / _STEP for unit in np.eye(len(names))], axis=1)
        better, damping = _descend(at, moved, found, slope, damping)
        if better is None:
            break
        gained = float(found @ found)
        moved = better
        found = at(moved)
        if gained - float(found @ found) < 1e-5 * gained:
            break
    return _moved(profile, names, began, moved * wide)


def _descend(
    at: Callable[[Errors], Errors], moved: Errors, found: Errors, slope: Errors, damping: float
) -> tuple[Errors | None, float]:
    """The next point, or None where no damping makes it better."""
    square = slope.T @ slope
    while damping < 1e9:
        step = np.linalg.solve(square + damping * np.diag(square.diagonal()), -slope.T @ found)
        after = at(moved + step)
        if after @ after < found @ found:
            return moved + step, damping / 4
        damping *= 4
    return None, damping


def _moved(profile: Profile, names: list[str], began: Errors, by: Errors) -> Profile:
    return profile.changed(**{name: float(value) for name, value in zip(names, np.exp(began + by), strict=True)})
