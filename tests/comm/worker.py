"""The process of one rank in the tests: it runs a program for each request that comes over its socket."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from plait.comm import cluster
from plait.comm.attach import attach
from plait.comm.c10d import C10dEndpoint
from plait.comm.cluster import Environment
from plait.comm.contract import Endpoint
from plait.comm.meeting import meet
from plait.comm.shm import ShmEndpoint

ROOT = Path(__file__).parents[2]


class C10dRequest(TypedDict):
    """A rank of a mesh over torch.distributed, and where its store is."""

    rank: int
    size: int
    capacity: int
    port: int
    run: str


class JoinedRequest(TypedDict):
    """A rank of a run over several hosts, of which this machine plays all."""

    rank: int
    hosts: list[int]
    capacity: int
    port: int
    run: str


def connect(request: C10dRequest) -> Endpoint:
    rank, size = request["rank"], request["size"]
    store = dist.PrefixStore(request["run"], dist.TCPStore("127.0.0.1", request["port"], is_master=False))
    return C10dEndpoint(meet(store, rank, size, "127.0.0.1", 60), rank, size, request["capacity"])


def join(request: JoinedRequest) -> Endpoint:
    """As under torchrun, which holds the store."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    rank, hosts = request["rank"], request["hosts"]
    host = hosts[rank]
    here = [other for other, theirs in enumerate(hosts) if theirs == host]
    places = (rank, len(hosts), here.index(rank), len(here), host, len(set(hosts)))
    where = Environment(*places, "127.0.0.1", request["port"], "the test", request["run"])
    return cluster.join(where, request["capacity"], timeout_s=60)


def own_descriptors(description: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """An emulated mesh's description, with the descriptors as this process got them: `EmulatedMesh.descriptors`."""
    others = len(description["hosts"]) - 1
    clocks, *sockets = descriptors[: 1 + others]
    near = description["near"]
    if near is not None:
        memory, *bells = descriptors[1 + others :]
        near = {**near, "memory": memory, "sockets": bells}
    return {**description, "clocks": clocks, "sockets": sockets, "near": near}


def endpoint_of(request: dict[str, Any], descriptors: list[int]) -> Endpoint:
    if "c10d" in request:
        return connect(request["c10d"])
    if "joined" in request:
        return join(request["joined"])
    if "mesh" in request:
        return attach(own_descriptors(request["mesh"], descriptors))
    memory, *sockets = descriptors
    return ShmEndpoint.attach({**request["description"], "memory": memory, "sockets": sockets})


def outcome_of(request: dict[str, Any], descriptors: list[int]) -> Any:
    module = ".".join(Path(request["file"]).relative_to(ROOT).with_suffix("").parts)
    program = getattr(importlib.import_module(module), request["program"])
    try:
        with endpoint_of(request, descriptors) as endpoint:
            return program(endpoint, **request["given"])
    except Exception:
        return {"traceback": traceback.format_exc()}


def main() -> None:
    sys.path.insert(0, str(ROOT))
    torch.set_num_threads(1)
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 64)
        if not data:
            return
        channel.sendall(json.dumps(outcome_of(json.loads(data), descriptors)).encode() + b"\n")


if __name__ == "__main__":
    main()
