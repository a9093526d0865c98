"""Joining the ranks of a run that a launcher has started: torchrun, SLURM, or anything that sets the same variables.

    environment = cluster.environment()
    if environment is not None:
        endpoint = cluster.join(environment, capacity=2)

torch.distributed has no authentication, and its store believes whoever connects; what ranks then send each other is
not encrypted: trusted networks only.
"""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from typing import cast

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from plait.comm.c10d import C10dEndpoint
from plait.comm.contract import Endpoint, Group
from plait.comm.descriptors import share_mesh
from plait.comm.joined import Joined
from plait.comm.launcher import Environment, environment
from plait.comm.meeting import meet, own_address
from plait.comm.nccl import DeviceGroup
from plait.comm.shm import available_cores
from plait.errors import RunError

__all__ = ["CONNECT_TIMEOUT_S", "Environment", "environment", "join"]

CONNECT_TIMEOUT_S = 300.0


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
    except (RuntimeError, OSError) as error:  # torch.distributed's, and the system's
        raise _unreachable(environment, timeout_s, error) from error


def _join(here: Environment, capacity: int, threads: int | None, device: str, timeout_s: float) -> Endpoint:
    store = _store(here, timeout_s)
    address = own_address(here.address, here.port)
    far = C10dEndpoint(
        meet(PrefixStore("meeting", store), here.rank, here.size, address, timeout_s),
        here.rank,
        here.size,
        capacity,
        spins=(threads or here.local_size) <= available_cores(),
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


def _unreachable(here: Environment, timeout_s: float, error: Exception) -> RunError:
    words = str(error).strip().partition("\n")[0]
    return RunError(
        f"rank {here.rank} of {here.size} could not connect to the others through {here.address}:{here.port} "
        f"within {timeout_s:g} s ({words}). Are all ranks started, and do the hosts reach each other? On a host with "
        "several networks name the interface to use: GLOO_SOCKET_IFNAME=eth0 (`ip -br address` lists them)"
    )
