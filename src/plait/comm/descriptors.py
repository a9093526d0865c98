"""A shared-memory mesh between processes of one host that run already, and so cannot inherit its descriptors.

Rank 0 makes the mesh and listens on a local socket; the others learn its address through a store that all ranks have
(torch.distributed's, say), connect, and are handed their descriptors over it (SCM_RIGHTS). On Linux the socket has an
abstract name, elsewhere a path in a private folder that is removed once all have come: nothing is left behind.

Who may take a rank's place: a process of the same user (as the kernel says, on Linux) that knows a random secret out of
the store.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from plait.comm.contract import peer_lost, timed_out
from plait.comm.shm import ShmDescription, ShmEndpoint, ShmMesh
from plait.errors import RunError

MEET_TIMEOUT_S = 120.0
_HELLO_S = 5.0
_LINE_BYTES = 1 << 16


class Store(Protocol):
    """What all ranks can write to and read from: `torch.distributed.Store` is one."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it is set."""


def share_mesh(
    store: Store,
    token: str,
    local_rank: int,
    local_size: int,
    capacity: int,
    threads: int | None = None,
    timeout_s: float = MEET_TIMEOUT_S,
) -> ShmEndpoint:
    """The endpoint of rank `local_rank` of a mesh of `local_size` processes of this host, which all call this.

    `token` names this mesh in the store: the same for all its ranks, and another for every other host of the run and
    every restart of it (a value that is still there from before would be taken for this one's). `threads`: how many all
    ranks of the host compute with, taken together; one each where it is not given.

    Errors: RunError where rank 0 is on another host, or in another container; WaitTimeout where a rank did not come;
    PeerLost where rank 0 ended meanwhile.
    """
    if not 0 <= local_rank < local_size:
        raise RunError(f"local rank {local_rank} is none of a mesh of {local_size} ranks: they count from 0")
    key = f"plait/{token}/mesh"
    if local_rank == 0:
        return _offer(store, key, ShmMesh.create(local_size, capacity, threads=threads), local_size, timeout_s)
    return ShmEndpoint.attach(_take(store, key, local_rank, timeout_s))


# --- rank 0 -----------------------------------------------------------------------------------------------


def _offer(store: Store, key: str, mesh: ShmMesh, size: int, timeout_s: float) -> ShmEndpoint:
    """Hand every other rank its descriptors; rank 0's own endpoint."""
    secret = secrets.token_hex(16)
    try:
        if size > 1:
            with _listener(size) as listener:
                store.set(key, json.dumps({"address": _name(listener), "secret": secret}))
                _hand_out(listener, mesh, secret, set(range(1, size)), timeout_s)
        return mesh.attach(0)
    finally:
        mesh.close_parent()


def _hand_out(listener: socket.socket, mesh: ShmMesh, secret: str, missing: set[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while missing:
        listener.settimeout(max(0.0, deadline - time.monotonic()) or 1e-3)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            ranks = ", ".join(map(str, sorted(missing)))
            raise timed_out(0, f"local rank {ranks} to fetch its part of the shared memory", timeout_s) from None
        with connection, contextlib.suppress(OSError):  # it is gone again, or nobody of ours: others still come
            rank = _caller(connection, secret)
            if rank in missing:
                line = json.dumps(mesh.description(rank)).encode() + b"\n"
                socket.send_fds(connection, [line], mesh.descriptors(rank))
                missing.discard(rank)


def _caller(connection: socket.socket, secret: str) -> int:
    """Which rank is calling; -1 for somebody else."""
    connection.settimeout(_HELLO_S)
    if not _same_user(connection):
        return -1
    line, _ = _read_line(connection, 0)
    try:
        hello: dict[str, Any] = json.loads(line)
        known = hmac.compare_digest(str(hello["secret"]), secret)
        return int(hello["rank"]) if known else -1
    except (ValueError, KeyError, TypeError):
        return -1


def _same_user(connection: socket.socket) -> bool:
    if sys.platform != "linux":
        return True  # the folder of its path is ours alone
    form = struct.Struct("3i")  # pid, uid, gid
    _, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return bool(user == os.geteuid())


@contextlib.contextmanager
def _listener(size: int) -> Iterator[socket.socket]:
    """A local socket that `size` processes may connect to; its name ends with it."""
    with socket.socket(socket.AF_UNIX) as listener:
        if sys.platform == "linux":
            listener.bind(f"\0plait-{secrets.token_hex(16)}")
            listener.listen(size)
            yield listener
            return
        folder = tempfile.mkdtemp(prefix="plait")
        try:
            listener.bind(str(Path(folder, "mesh")))
            listener.listen(size)
            yield listener
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _name(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name.decode() if isinstance(name, bytes) else str(name)


# --- the others -------------------------------------------------------------------------------------------


def _take(store: Store, key: str, rank: int, timeout_s: float) -> ShmDescription:
    """What rank 0 hands out: the description, with descriptors that are this process's own."""
    where: dict[str, str] = json.loads(store.get(key))
    what = "its part of the shared memory"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(where["address"])
            connection.sendall(json.dumps({"rank": rank, "secret": where["secret"]}).encode() + b"\n")
            line, descriptors = _read_line(connection, 253)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise _unreachable(rank) from error
        except TimeoutError:
            raise timed_out(rank, what, timeout_s) from None
        except OSError as error:
            raise peer_lost(rank, what, 0, f"its socket says: {error}") from error
    if not line.endswith(b"\n"):
        raise peer_lost(rank, what, 0, "it closed the socket before it had handed it over")
    description: ShmDescription = json.loads(line)
    description["memory"], *description["sockets"] = descriptors
    return description


def _unreachable(rank: int) -> RunError:
    return RunError(
        f"local rank {rank} cannot reach local rank 0: shared memory needs both on one host, in one container; "
        "check that the launcher counts local ranks by host"
    )


def _read_line(connection: socket.socket, most_descriptors: int) -> tuple[bytes, list[int]]:
    """What comes up to a line end, or until the other side closes, and the descriptors with it."""
    line, descriptors = b"", list[int]()
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        data, more, _, _ = socket.recv_fds(connection, _LINE_BYTES, most_descriptors)
        descriptors += more
        if not data:
            break
        line += data
    return line, descriptors
