"""Which tensors do not learn, by patterns of their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from plait.errors import UsageError, nearest
from plait.spec.model import ModelSpec
from plait.spec.tensors import model_tensors


def frozen_names(spec: ModelSpec, patterns: Sequence[str]) -> frozenset[str]:
    """The names that any of the patterns (as of `fnmatch`) matches. Errors: UsageError for one that matches none."""
    names = tuple(model_tensors(spec))
    found: set[str] = set()
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise UsageError(
                f"no tensor of {spec.name} is called {pattern!r}, which was to be frozen: {_hint(pattern, names)}"
            )
        found.update(matched)
    if len(found) == len(names):
        raise UsageError(f"all {len(names)} tensors of {spec.name} are frozen: leave at least one to learn")
    return frozenset(found)


def _hint(pattern: str, names: Sequence[str]) -> str:
    """The nearest name; where none is near, how names look."""
    near = nearest(pattern, names)
    return near if near.startswith("did") else f"names are such as {names[0]!r} and {names[len(names) // 2]!r}"
