"""Joining the ranks of a run that a launcher has started: torchrun, SLURM, or anything that sets the same variables.

    environment = cluster.environment()
    if environment is not None:
        endpoint = cluster.join(environment, capacity=2)

torch.distributed has no authentication, and its store believes whoever connects: trusted networks only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple, cast

import torch
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from plait.comm.c10d import C10dEndpoint
from plait.comm.contract import Endpoint, Group
from plait.comm.descriptors import share_mesh
from plait.comm.joined import Joined
from plait.comm.keepalive import kept_alive
from plait.comm.nccl import DeviceGroup
from plait.comm.wire import Messages
from plait.errors import RunError, UsageError

CONNECT_TIMEOUT_S = 300.0

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


def join(
    environment: Environment,
    capacity: int,
    threads: int | None = None,
    *,
    device: str = "cpu",
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Endpoint:
    """The endpoint of this rank, once all ranks of the run have called this with the same capacity.

    `threads`: how many the ranks of this host compute with, taken together; one each where it is not given.
    `device`: what this rank's tensors live on, cpu or cuda; groups of cuda alone use NCCL (untested as yet).

    Errors: RunError where the ranks cannot connect within the time.
    """
    try:
        return _join(environment, capacity, threads, device, timeout_s)
    except RunError:
        raise
    except RuntimeError as error:  # torch.distributed's
        raise _unreachable(environment, timeout_s, error) from error


def _join(here: Environment, capacity: int, threads: int | None, device: str, timeout_s: float) -> Endpoint:
    store = _store(here, timeout_s)
    with kept_alive():
        group: object = ProcessGroupGloo(store, here.rank, here.size, timedelta(seconds=timeout_s))
    far = C10dEndpoint(
        cast(Messages, group),
        here.rank,
        here.size,
        capacity,
        host=here.host,
        device=device,
        open_devices=functools.partial(_nccl, store, here.rank),
        timeout_s=timeout_s,
    )
    with contextlib.ExitStack() as undo:
        undo.push(far)
        endpoint = _with_neighbours(far, store, capacity, threads, timeout_s)
        endpoint.barrier(Group(tuple(range(here.size))))  # rank 0 may hold the store: from here on nobody needs it
        undo.pop_all()
    return endpoint


def _nccl(store: Store, rank: int, ranks: tuple[int, ...]) -> DeviceGroup:
    """NCCL among these ranks."""
    make = getattr(torch.distributed, "ProcessGroupNCCL", None)
    if make is None:
        raise RunError("groups of CUDA devices need NCCL, which this torch was built without: install torch for CUDA")
    name = "-".join(map(str, ranks))
    return cast(DeviceGroup, make(PrefixStore(f"nccl/{name}", store), ranks.index(rank), len(ranks), make.Options()))


def _with_neighbours(far: C10dEndpoint, store: Store, capacity: int, threads: int | None, timeout_s: float) -> Endpoint:
    """Shared memory with the ranks that say they are on this host, if there are any."""
    host = far.hosts[far.rank]
    ranks = [rank for rank, theirs in enumerate(far.hosts) if theirs == host]
    if len(ranks) == 1:
        return far
    near = share_mesh(store, f"host{host}", ranks.index(far.rank), len(ranks), capacity, threads, timeout_s)
    return Joined(near, far, ranks)


def _store(here: Environment, timeout_s: float) -> Store:
    """A part of the run's store that only this call of all ranks uses."""
    host = f"[{here.address}]" if ":" in here.address else here.address
    url = f"tcp://{host}:{here.port}?rank={here.rank}&world_size={here.size}"
    store, _, _ = next(rendezvous(url, timeout=timedelta(seconds=timeout_s)))
    own = PrefixStore(f"plait/{here.run}", store)
    turn = own.add(f"joins/{here.rank}", 1)
    return PrefixStore(f"{turn}", own)


def _unreachable(here: Environment, timeout_s: float, error: RuntimeError) -> RunError:
    words = str(error).strip().partition("\n")[0]
    return RunError(
        f"rank {here.rank} of {here.size} could not connect to the others through {here.address}:{here.port} "
        f"within {timeout_s:g} s ({words}). Are all ranks started, and do the hosts reach each other? On a host with "
        "several networks name the interface to use: GLOO_SOCKET_IFNAME=eth0 (`ip -br address` lists them)"
    )
