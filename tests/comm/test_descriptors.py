"""Meshes between processes that run already: who gets in, who is missed, what is left."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from plait.comm import descriptors
from plait.comm.contract import Group
from plait.comm.descriptors import share_mesh
from plait.comm.shm import ShmEndpoint
from plait.errors import PeerLost, RunError, WaitTimeout


class Shelf:
    """A store of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 10)
            return self._values[key].encode()


def meshes(store: Shelf, tokens: dict[str, int]) -> dict[str, list[ShmEndpoint]]:
    """All ranks of several meshes at once, each rank a thread."""
    with ThreadPoolExecutor(sum(tokens.values())) as pool:
        waiting: dict[str, list[Future[ShmEndpoint]]] = {
            token: [pool.submit(share_mesh, store, token, rank, size, 2) for rank in range(size)]
            for token, size in tokens.items()
        }
        return {token: [future.result() for future in futures] for token, futures in waiting.items()}


def in_threads(endpoints: list[ShmEndpoint], program: Callable[[ShmEndpoint], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(endpoints)) as pool:
        return list(pool.map(program, endpoints))


def test_two_meshes_at_once_never_meet() -> None:
    made = meshes(Shelf(), {"first": 3, "second": 2})

    def ten_sums(endpoint: ShmEndpoint) -> list[float]:
        group = Group(tuple(range(endpoint.size)))
        start = 10.0 if endpoint.size == 3 else 100.0
        with endpoint:
            return [float(endpoint.all_reduce(group, torch.full((50,), start))[7]) for _ in range(10)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda endpoints: in_threads(endpoints, ten_sums), made.values())
    assert first == [[30.0] * 10] * 3
    assert second == [[200.0] * 10] * 2


def test_one_rank_is_a_mesh_too() -> None:
    with share_mesh(Shelf(), "t", 0, 1, 2) as endpoint:
        assert endpoint.size == 1


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(RunError) as caught:
        share_mesh(Shelf(), "t", 2, 2, 2)
    assert str(caught.value) == "local rank 2 is none of a mesh of 2 ranks: they count from 0"


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(WaitTimeout) as caught:
        share_mesh(Shelf(), "t", 0, 3, 2, timeout_s=0.1)
    assert str(caught.value) == (
        "rank 0 waited 0.1 s for local rank 1, 2 to fetch its part of the shared memory, and it did not come"
    )


def test_rank_0_on_another_host_is_said() -> None:
    store = Shelf()
    store.set("plait/t/mesh", json.dumps({"address": "\0plait-nobody", "secret": "x"}))
    with pytest.raises(RunError) as caught:
        share_mesh(store, "t", 1, 2, 2)
    assert str(caught.value) == (
        "local rank 1 cannot reach local rank 0: shared memory needs both on one host, in one container; "
        "check that the launcher counts local ranks by host"
    )


def test_the_end_of_rank_0_is_said() -> None:
    store = Shelf()
    with descriptors._listener(1) as listener:
        store.set("plait/t/mesh", json.dumps({"address": descriptors._name(listener), "secret": "x"}))
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(share_mesh, store, "t", 1, 2, 2)
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.close()
            with pytest.raises(PeerLost) as caught:
                taken.result()
    assert caught.value.rank == 0
    assert str(caught.value) == (
        "rank 0 is lost, while rank 1 waited for its part of the shared memory: "
        "it closed the socket before it had handed it over"
    )


@pytest.mark.parametrize("hello", [{"rank": 1, "secret": "guess"}, {"rank": 1}, [], "x", {"rank": 7, "secret": None}])
def test_who_does_not_know_the_secret_gets_nothing(hello: Any) -> None:
    store = Shelf()
    with ThreadPoolExecutor(1) as pool:
        offered = pool.submit(share_mesh, store, "t", 0, 2, 2)
        where = json.loads(store.get("plait/t/mesh"))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(where["address"])
            stranger.sendall(json.dumps(hello).encode() + b"\n")
            assert stranger.recv(1000) == b""
        with share_mesh(store, "t", 1, 2, 2) as late, offered.result() as first:
            assert (late.rank, first.rank) == (1, 0)


def test_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_same_user", lambda connection: False)
    store = Shelf()
    with ThreadPoolExecutor(1) as pool:
        offered = pool.submit(share_mesh, store, "t", 0, 2, 2, None, 1.0)
        with pytest.raises(PeerLost):
            share_mesh(store, "t", 1, 2, 2)
        with pytest.raises(WaitTimeout):
            offered.result()


def test_nothing_is_left_listening() -> None:
    store = Shelf()
    for endpoint in meshes(store, {"t": 2})["t"]:
        endpoint.close()
    address = json.loads(store.get("plait/t/mesh"))["address"]
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(OSError):
        late.connect(address)


def test_without_abstract_names_the_folder_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The way of macOS, run here."""
    monkeypatch.setattr(descriptors, "sys", type("Sys", (), {"platform": "darwin"}))
    monkeypatch.setattr(descriptors.tempfile, "tempdir", str(tmp_path))
    for endpoint in meshes(Shelf(), {"t": 2})["t"]:
        endpoint.close()
    assert list(tmp_path.iterdir()) == []
