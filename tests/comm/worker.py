"""The process of one rank in the tests of shm: it runs a program for each request that comes over its socket."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from plait.comm.shm import ShmEndpoint

ROOT = Path(__file__).parents[2]


def outcome_of(request: dict[str, Any], descriptors: list[int]) -> Any:
    module = ".".join(Path(request["file"]).relative_to(ROOT).with_suffix("").parts)
    program = getattr(importlib.import_module(module), request["program"])
    memory, *sockets = descriptors
    try:
        with ShmEndpoint.attach({**request["description"], "memory": memory, "sockets": sockets}) as endpoint:
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
