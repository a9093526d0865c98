"""The errors' page: the tree of `plait.errors`, and what each says."""

from __future__ import annotations

from collections.abc import Iterator

from writing import code, prose

import plait.errors as errors
from plait.cli.output import RUN_EXIT, USAGE_EXIT


def errors_page() -> str:
    """The whole page."""
    words = ["# Errors", prose(errors)]
    words.append(
        f"On the command line a `UsageError` ends a verb with status {USAGE_EXIT}, a `RunError` with {RUN_EXIT}. "
        "`except ValueError` catches the first kind, `except RuntimeError` the second."
    )
    for error, depth in _tree(errors.PlaitError, 0):
        bases = ", ".join(code(base.__name__) for base in error.__bases__)
        words.append(f"{'#' * (2 + min(depth, 2))} {error.__name__}\n\n{prose(error)}\n\nA kind of {bases}.")
    return "\n\n".join(words)


def _tree(error: type[BaseException], depth: int) -> Iterator[tuple[type[BaseException], int]]:
    """The error and all below it that `plait.errors` has, in the order of their definition."""
    yield error, depth
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)
