"""What a launcher of ranks says about this process: torchrun, SLURM, or anything that sets the same variables.

Imports no torch, so that a command that nobody launched so can look without waiting for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from plait.errors import UsageError

_HOW = "start the ranks with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"


class Environment(NamedTuple):
    """What a launcher says about this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: int
    """The number of this rank's host: ranks with the same number share one."""
    hosts: int
    address: str
    """Where rank 0 (or torchrun) keeps the store in which all meet: host name or address."""
    port: int
    launcher: str
    run: str = ""
    """Names this start of the run, where one store may serve several."""


def environment(variables: Mapping[str, str] | None = None) -> Environment | None:
    """What torchrun's variables or SLURM's say; None where there are none.

    Errors: UsageError where some are missing, or no numbers.
    """
    given = _Variables(os.environ if variables is None else variables)
    if "RANK" in given.all or "WORLD_SIZE" in given.all:
        return _torchrun(given)
    if "SLURM_PROCID" in given.all and given.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") > 1:
        return _slurm(given)
    return None


class _Variables:
    """Environment variables, and the errors of those that are missing or wrong."""

    def __init__(self, everything: Mapping[str, str]) -> None:
        self.all = everything

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these that is set, as a number."""
        for name in names:
            if name in self.all:
                return self._number(name)
        if default is not None:
            return default
        raise UsageError(f"{' or '.join(names)} is not set, though this looks like a rank of a larger run: {_HOW}")

    def _number(self, name: str) -> int:
        if not re.fullmatch(r"[0-9]+", self.all[name]):
            raise UsageError(f"{name} must be a number from 0, not {self.all[name]!r}: {_HOW}")
        return int(self.all[name])

    def address(self) -> tuple[str, int]:
        """Where the ranks meet."""
        if not self.all.get("MASTER_ADDR"):
            raise UsageError(
                "MASTER_ADDR is not set: all ranks need the host name of rank 0 in MASTER_ADDR and a free port of it "
                "in MASTER_PORT; under SLURM: export MASTER_PORT=29500 "
                "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)"
            )
        return self.all["MASTER_ADDR"], self.number("MASTER_PORT")


def _torchrun(given: _Variables) -> Environment:
    rank, size = given.number("RANK"), given.number("WORLD_SIZE")
    local_rank = given.number("LOCAL_RANK", default=0)
    alone = "LOCAL_RANK" not in given.all
    local_size = given.number("LOCAL_WORLD_SIZE", default=1 if alone else None)
    # launchers without GROUP_RANK number ranks host by host: the first rank of a host names it
    host = given.number("GROUP_RANK", default=rank - local_rank)
    hosts = given.number("GROUP_WORLD_SIZE", default=-(-size // max(1, local_size)))
    run = "/".join(given.all.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    return _checked(Environment(rank, size, local_rank, local_size, host, hosts, *given.address(), "torchrun", run))


def _slurm(given: _Variables) -> Environment:
    rank, size = given.number("SLURM_PROCID"), given.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    host, local_rank = given.number("SLURM_NODEID"), given.number("SLURM_LOCALID")
    counts = _tasks(given.all.get("SLURM_STEP_TASKS_PER_NODE") or given.all.get("SLURM_TASKS_PER_NODE") or "")
    local_size = counts[host] if host < len(counts) else local_rank + 1
    hosts = len(counts) or given.number("SLURM_NNODES", default=1)
    run = "/".join(given.all.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _checked(Environment(rank, size, local_rank, local_size, host, hosts, *given.address(), "SLURM", run))


def _tasks(text: str) -> list[int]:
    """SLURM's short form of tasks for each host: ``4(x2),3`` is 4, 4, 3."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def _checked(one: Environment) -> Environment:
    if one.rank >= one.size or one.local_rank >= one.local_size:
        raise UsageError(
            f"{one.launcher}'s variables do not fit: rank {one.rank} of {one.size}, "
            f"on its host {one.local_rank} of {one.local_size}; ranks count from 0: {_HOW}"
        )
    return one
