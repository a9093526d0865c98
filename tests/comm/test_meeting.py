"""How ranks find each other through a store, and what becomes of those who are none of theirs."""

from __future__ import annotations

import json
import socket
import time

import pytest
import torch.distributed as dist

from plait.comm.meeting import _CALL, INTERFACE, meet, own_address
from plait.errors import RunError, UsageError
from tests.comm.together import together

LOOPBACK = "127.0.0.1"


def met(*ranks: int, size: int, store: dist.Store, timeout_s: float = 20) -> list[dict[int, socket.socket]]:
    return together(*(lambda rank=rank: meet(store, rank, size, LOOPBACK, timeout_s) for rank in ranks))  # type: ignore[misc]


def test_every_pair_has_a_connection_of_its_own() -> None:
    found = met(0, 1, 2, 3, size=4, store=dist.HashStore())
    for rank, connections in enumerate(found):
        assert sorted(connections) == [other for other in range(4) if other != rank]
        for other, connection in connections.items():
            connection.sendall(bytes([rank, other]))
    for rank, connections in enumerate(found):
        for other, connection in connections.items():
            assert connection.recv(2) == bytes([other, rank])
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            connection.close()


def test_a_rank_alone_meets_nobody() -> None:
    assert met(0, size=1, store=dist.HashStore()) == [{}]


def test_strangers_are_hung_up_on() -> None:
    """One with another secret, one that belongs to no rank, one that says too little: the meeting goes on."""
    store = dist.HashStore()
    strangers: list[socket.socket] = []

    def intrude() -> dict[int, socket.socket]:
        host, port, secret = json.loads(store.get("rank 0"))
        for said in (_CALL.pack(1, bytes(16)), _CALL.pack(7, bytes.fromhex(secret)), b"GET /"):
            strangers.append(socket.create_connection((host, port)))
            strangers[-1].sendall(said)
        strangers[-1].shutdown(socket.SHUT_WR)
        return meet(store, 1, 2, LOOPBACK, 20)

    first, second = together(lambda: meet(store, 0, 2, LOOPBACK, 20), intrude)
    second[0].sendall(b"it is I")
    assert first[1].recv(7) == b"it is I"
    for stranger in strangers:
        with stranger:
            assert stranger.recv(1) == b""
    first[1].close()
    second[0].close()


def test_who_does_not_connect_is_named() -> None:
    with pytest.raises(RuntimeError) as caught:
        met(0, size=4, store=dist.HashStore(), timeout_s=0.3)
    assert str(caught.value) == "rank 1, 2, 3 did not connect within 0.3 s"


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(RuntimeError) as caught:
        met(2, size=4, store=dist.HashStore(), timeout_s=0.3)
    assert str(caught.value) == "rank 0 did not come within 0.3 s"


def test_who_cannot_be_reached_is_told_with_what_to_type() -> None:
    store = dist.HashStore()
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    store.set("rank 0", json.dumps([LOOPBACK, port, "00" * 16]))
    with pytest.raises(RunError) as caught:
        meet(store, 1, 2, LOOPBACK, 5)
    assert str(caught.value) == (
        f"rank 1 cannot connect to rank 0 at 127.0.0.1:{port} (Connection refused). Do the hosts reach each other "
        "there? On a host with several networks name the interface to use: GLOO_SOCKET_IFNAME=eth0 (`ip -br address` "
        "lists them); a firewall must let ranks connect to any port"
    )


def test_connections_are_closed_where_the_meeting_fails() -> None:
    store = dist.HashStore()
    with socket.create_server((LOOPBACK, 0)) as listener:
        store.set("rank 0", json.dumps([*listener.getsockname(), "00" * 16]))
        with pytest.raises(RuntimeError, match=r"rank 2 did not connect within 0\.1 s"):
            meet(store, 1, 3, LOOPBACK, 0.1)
        connection, _ = listener.accept()
        with connection:
            assert _CALL.unpack(connection.recv(100)) == (1, bytes(16))
            assert connection.recv(1) == b""


def test_the_address_is_that_of_the_way_to_the_meeting_place() -> None:
    assert own_address(LOOPBACK, 29500, {}) == LOOPBACK


def test_the_address_is_that_of_the_interface_named() -> None:
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    assert own_address("a host that nobody asks for", 29500, {INTERFACE: names[0]}) == LOOPBACK


def test_an_interface_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        own_address(LOOPBACK, 29500, {INTERFACE: "eth77"})
    text = str(caught.value)
    assert text.startswith("GLOO_SOCKET_IFNAME names 'eth77', which has no address on this host: it has ")
    assert "lo" in text.rsplit(" has ", 1)[1].split(", ")


def test_a_stranger_who_says_nothing_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.comm.meeting._PATIENCE_S", 0.05)
    store = dist.HashStore()
    silent: list[socket.socket] = []

    def late() -> dict[int, socket.socket]:
        host, port, _ = json.loads(store.get("rank 0"))
        silent.append(socket.create_connection((host, port)))
        time.sleep(0.02)
        return meet(store, 1, 2, LOOPBACK, 20)

    first, second = together(lambda: meet(store, 0, 2, LOOPBACK, 20), late)
    for one in (first[1], second[0], *silent):
        one.close()
