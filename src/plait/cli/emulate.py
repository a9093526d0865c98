"""``--emulate``, as `plait generate` and `plait train` have it."""

from __future__ import annotations

import typer

from plait.cli.output import USAGE_EXIT
from plait.comm.launcher import Environment
from plait.errors import PlanError

EMULATE_HELP = (
    "Each rank as if on a host of its own, over links as in 1gbit,200us; @2 makes two ranks a host, and a plan file of "
    "several hosts says itself which ranks share one."
)


def require_no_launcher(here: Environment | None, emulate: str | None) -> None:
    """A launcher's ranks have real links. Errors: PlanError on rank 0; the others end without a word."""
    from plait.spec.emulation import NOT_UNDER_A_LAUNCHER

    if emulate is None or here is None:
        return
    if here.rank > 0:
        raise typer.Exit(USAGE_EXIT)
    raise PlanError(NOT_UNDER_A_LAUNCHER)
