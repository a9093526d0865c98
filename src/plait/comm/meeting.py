"""How ranks of a run connect to each other: every pair by one TCP connection, found through the run's store.

Each rank listens at its own address, says in the store where, and calls all ranks below it. With a secret that only the
store has, who calls shows that it belongs to the run: a stranger who finds the port is hung up on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from struct import Struct
from typing import Protocol

import psutil

from plait.comm.keepalive import keep_alive
from plait.errors import RunError, UsageError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that names the network interface, as for torch.distributed."""

_SECRET_BYTES = 16
_CALL = Struct(f"<q{_SECRET_BYTES}s")
_PATIENCE_S = 5.0
"""Who has connected says in this time who it is."""


class Store(Protocol):
    """What is needed of torch.distributed's."""

    def set(self, key: str, value: str) -> None:
        """Keep a value."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait for the keys. Errors: RuntimeError where they do not come."""

    def get(self, key: str) -> bytes:
        """The value, once it is there."""


def own_address(address: str, port: int, variables: Mapping[str, str] | None = None) -> str:
    """The address at which others reach this host: of the interface that leads to `address`, where all meet.

    Or of the one that GLOO_SOCKET_IFNAME names. Errors: UsageError where there is none of that name.
    """
    name = (os.environ if variables is None else variables).get(INTERFACE)
    if name:
        return _address_of(name)
    for family, kind, protocol, _, where in socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing: the system only says which way it would take
            return str(probe.getsockname()[0])
    raise RuntimeError(f"no way leads to {address}")


def _address_of(name: str) -> str:
    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in interfaces.get(name, ()):
            if one.family == family:
                return str(one.address)
    raise UsageError(
        f"{INTERFACE} names {name!r}, which has no address on this host: it has {', '.join(sorted(interfaces))}"
    )


def meet(store: Store, rank: int, size: int, address: str, timeout_s: float) -> dict[int, socket.socket]:
    """A connection to each other rank, by its number, once all ranks have called this with the same store.

    `address`: where this rank can be reached. Errors: RuntimeError where some do not connect within the time.
    """
    deadline = time.monotonic() + timeout_s
    found: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        undo.callback(_hang_up, found)
        with _listener(address, size) as listener:
            secret = secrets.token_bytes(_SECRET_BYTES)
            store.set(f"rank {rank}", json.dumps([*listener.getsockname()[:2], secret.hex()]))
            for other in range(rank):
                found[other] = _call(_look_up(store, other, deadline, timeout_s), rank, other, deadline)
            while missing := set(range(rank + 1, size)) - set(found):
                _answer(listener, secret, found, missing, deadline, timeout_s)
        for one in found.values():
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(one)
        undo.pop_all()
    return found


def _hang_up(connections: Mapping[int, socket.socket]) -> None:
    for one in connections.values():
        one.close()


def _listener(address: str, size: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=max(8, size))


def _look_up(store: Store, other: int, deadline: float, timeout_s: float) -> tuple[str, int, str]:
    """Where another rank listens, and its secret."""
    key = f"rank {other}"
    try:
        store.wait([key], timedelta(seconds=max(0.01, deadline - time.monotonic())))
    except RuntimeError as error:
        raise RuntimeError(f"rank {other} did not come within {timeout_s:g} s") from error
    host, port, secret = json.loads(store.get(key))
    return host, port, secret


def _call(where: tuple[str, int, str], rank: int, other: int, deadline: float) -> socket.socket:
    """Connect to another rank, and say who we are."""
    host, port, secret = where
    try:
        connection = socket.create_connection((host, port), max(0.01, deadline - time.monotonic()))
        connection.sendall(_CALL.pack(rank, bytes.fromhex(secret)))
    except OSError as error:
        raise RunError(
            f"rank {rank} cannot connect to rank {other} at {host}:{port} ({error.strerror or error}). Do the hosts "
            f"reach each other there? On a host with several networks name the interface to use: {INTERFACE}=eth0 "
            "(`ip -br address` lists them); a firewall must let ranks connect to any port"
        ) from error
    return connection


def _answer(
    listener: socket.socket,
    secret: bytes,
    found: dict[int, socket.socket],
    missing: set[int],
    deadline: float,
    timeout_s: float,
) -> None:
    """Take the next connection, if it is one of ours."""
    listener.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        names = ", ".join(map(str, sorted(missing)))
        raise RuntimeError(f"rank {names} did not connect within {timeout_s:g} s") from None
    connection.settimeout(_PATIENCE_S)
    with contextlib.suppress(OSError):
        said = connection.recv(_CALL.size, socket.MSG_WAITALL)
        if len(said) == _CALL.size:
            other, theirs = _CALL.unpack(said)
            if other in missing and secrets.compare_digest(theirs, secret):
                found[other] = connection
                return
    connection.close()
