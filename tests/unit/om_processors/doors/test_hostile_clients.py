"""Hostile and slow clients of the direct door: each is told or left, what it holds is bounded, and others are served."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from om_processors.doors import direct_door, door_connection, door_lookups
from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import DOOR_LIMITS, HEADER_BYTES, MAX_READ_KEYS, DoorKind, door_frame
from schemas.records.door import DoorRead, DoorRows
from schemas.records.messages import CreateVolume, PutKey, Response
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite
from tests.support.om.om_world import request_of
from tests.support.om.raw_door import HELLO, UPGRADING, DoorClosed, RawDoor
from transport.web import bounded_server

WAIT_S = 30.0
REQUEST = encode(request_of(CreateVolume(volume="v")))
LARGE = encode(request_of(PutKey(volume="v", bucket="b", key="k", data=bytes(200_000))))
CUT_OFF = struct.pack("ii", 1, 0)
"""SO_LINGER: the connection ends by a reset."""


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        yield found


def served(door: RawDoor) -> bool:
    door.send(door_frame(DoorKind.REQUESTS, REQUEST))
    return decode_as(Response, door.hear(DoorKind.ANSWERS).payload).status == "OK"


def reading(count: int, consistency: str = "stale", number: int = 0) -> bytes:
    keys = [f"k{n}" for n in range(count)]
    read = DoorRead(consistency=consistency, index=0, volume="vol1", bucket="bucket1", keys=keys)
    return door_frame(DoorKind.READ, encode(read), number=number)


# -- what all connections hold -----------------------------------------------------------------------------------------


def test_the_greediest_of_all_connections_makes_room(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_door, "MAX_HELD_BYTES", 3_000_000)
    leader = site.lead()
    half = door_frame(DoorKind.REQUESTS, bytes(1_900_000))[:-1]
    with (
        RawDoor(site.address) as small,
        RawDoor(site.address) as greedy,
        RawDoor(site.address) as third,
        RawDoor(site.address) as fourth,
    ):
        small.send(half[:900_000])
        eventually(lambda: site.door._held_bytes == 900_000)
        greedy.send(half)
        eventually(lambda: site.door._held_bytes == 900_000 + len(half))
        third.send(half[:300_000])
        told = greedy.refusal()
        assert "the direct connections of om1 hold " in told
        assert f"this one holds most, {len(half)}" in told
        eventually(lambda: site.door.connections == 3)
        eventually(lambda: site.door._held_bytes == 1_200_000)
        assert not leader.calls
        assert served(fourth)
    eventually(lambda: site.door.connections == 0)
    assert site.door._held_bytes == 0


def test_while_much_is_held_each_connection_may_have_less_unanswered(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_door, "CROWDED_BYTES", 1_000_000)
    leader = site.lead()
    leader.holds = True
    with RawDoor(site.address) as door:
        for _ in range(6):
            door.send(door_frame(DoorKind.REQUESTS, LARGE))
        eventually(lambda: len(leader.executed) == 6)
        (connection,) = site.door._connections
        eventually(lambda: not connection._reads_on)
        assert site.door.crowded
        answers = [found for found, _ in list(leader.calls._open.values())]
        assert len(answers) == 6
    eventually(lambda: site.door.connections == 0)
    assert not site.door.crowded


def test_lookups_count_as_unanswered_by_their_keys(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "MAX_UNANSWERED", 50)
    site.follow(1, "om2", "")
    site.position.index = 0
    with RawDoor(site.address) as door:
        read = DoorRead(consistency="session", index=9, volume="vol1", bucket="bucket1", keys=["k"] * 20)
        door.send(door_frame(DoorKind.READ, encode(read)) * 3)
        eventually(lambda: site.door.connections == 1)
        (connection,) = site.door._connections
        eventually(lambda: not connection._reads_on)
        site.position.index = 9
        for _ in range(3):
            assert decode_as(DoorRows, door.hear(DoorKind.ROWS).payload).status == "OK"
        eventually(lambda: connection._reads_on)
        assert (connection._unanswered, connection._unanswered_bytes) == (0, 0)


# -- nobody waits for somebody else's many keys ------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["stale", "linearizable"])
def test_a_lookup_of_one_key_does_not_wait_for_those_of_many(
    site: DoorSite, consistency: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(door_lookups, "AT_ONCE_KEYS", 100)
    with RawDoor(site.address) as door:
        many = b"".join(reading(60, consistency, number) for number in range(1, 20))
        door.send(many + reading(1, consistency, 99))
        order = [door.hear(DoorKind.ROWS).number for _ in range(20)]
    assert sorted(order) == [*range(1, 20), 99]
    assert order[0] == 99, "the smallest is answered first"
    assert len(site.opened) >= 19, "the others one by one, with a snapshot each"
    assert all(rows.closed == 1 for rows in site.opened)


def test_lookups_beyond_a_pause_share_snapshots(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_lookups, "AT_ONCE_KEYS", 100)
    with RawDoor(site.address) as door:
        door.send(b"".join(reading(20, number=number) for number in range(100)))
        assert sorted(door.hear(DoorKind.ROWS).number for _ in range(100)) == list(range(100))
    assert 1 <= len(site.opened) <= 40


def test_lookups_of_a_client_that_has_gone_are_not_answered(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_lookups, "AT_ONCE_KEYS", 10)
    site.follow(1, "om2", "")
    site.position.index = 0
    read = DoorRead(consistency="session", index=9, volume="vol1", bucket="bucket1", keys=["k"] * 20)
    with RawDoor(site.address) as door:
        door.send(door_frame(DoorKind.READ, encode(read)) * 50)
        eventually(lambda: site.hurried)
    eventually(lambda: site.door.connections == 0)
    site.position.index = 9
    with RawDoor(site.address) as door:
        assert door.look_up("vol1", "bucket1", ["k"], "linearizable").status == "OK"
    eventually(lambda: site.lookups._answering is None)
    assert len(site.opened) < 5, "a snapshot for the one that is there"


def test_what_comes_beyond_the_limit_at_once_is_refused(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "MAX_UNANSWERED", 50)
    with RawDoor(site.address) as door:
        door.send(b"".join(reading(20, "linearizable", number) for number in range(1, 11)))
        found = {}
        for _ in range(10):
            frame = door.hear(DoorKind.ROWS)
            found[frame.number] = decode_as(DoorRows, frame.payload)
    refusals = [rows.message for rows in found.values() if rows.status == "OVERLOADED"]
    assert {rows.status for rows in found.values()} >= {"OK"}
    assert all("keys and requests of this connection wait for answers" in message for message in refusals)
    assert found[1].status == found[2].status == found[3].status == "OK"


# -- connections that are cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_may_be_cut_at_any_byte(site: DoorSite, reset: bool):
    leader = site.lead()
    talk = UPGRADING + HELLO + door_frame(DoorKind.REQUESTS, REQUEST) + reading(3, "linearizable")
    with RawDoor(site.address) as good:
        for end in [*range(0, len(talk), 7), len(UPGRADING), len(UPGRADING + HELLO), len(talk)]:
            with socket.create_connection(("127.0.0.1", site.port), WAIT_S) as sock:
                sock.sendall(talk[:end])
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CUT_OFF)
        assert served(good)
        eventually(lambda: site.door.connections == 1)
        eventually(lambda: site.door._held_bytes == 0)
    eventually(lambda: not leader.calls)


def test_garbage_behind_the_upgrade_is_named(site: DoorSite):
    site.lead()
    rng = random.Random(69)
    with RawDoor(site.address) as good:
        for _ in range(50):
            with RawDoor(site.address, hello=rng.randbytes(rng.randrange(2, 4_000))) as bad:
                assert bad.refusal().startswith(("a frame begins with", "framing version"))
        assert served(good)
    eventually(lambda: site.door.connections == 0)


@pytest.mark.parametrize("kind", list(DoorKind))
def test_a_frame_that_claims_two_gigabytes_is_refused_by_its_header(site: DoorSite, kind: DoorKind):
    with RawDoor(site.address) as door:
        header = bytearray(door_frame(kind, b"")[:HEADER_BYTES])
        header[12:16] = (2 * 1024**3).to_bytes(4, "big")
        door.send(bytes(header))
        told = door.refusal()
    assert "not taken here" in told or f"of 2147483648 bytes; at most {DOOR_LIMITS[kind]} are taken" in told


def test_a_client_that_floods_and_reads_nothing_is_not_heard_and_others_are_served(site: DoorSite):
    site.lead()
    site.add_key("a")
    read = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["a"] * MAX_READ_KEYS)
    frame, most = door_frame(DoorKind.READ, encode(read)), 20_000
    with RawDoor(site.address) as flood, RawDoor(site.address) as good:
        flood.sock.settimeout(1.0)
        sent = 0
        with suppress(TimeoutError, ConnectionError):
            while sent < most:
                flood.send(frame)
                sent += 1
                assert site.door._held_bytes < 64 * 1024 * 1024
        assert sent < most, "the node reads no more from it"
        assert served(good)
    eventually(lambda: site.door.connections == 0)


# -- connections of the HTTP server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", UPGRADING[:-2], b"GET /v1/door HTTP/1.1\r\nHost: "])
def test_half_a_handshake_is_told_and_left(site: DoorSite, sent: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_server, "FIRST_REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", site.port), WAIT_S) as sock:
        sock.sendall(sent)
        answer = b""
        while more := sock.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"no whole request within" in answer


def crowd(site: DoorSite, count: int) -> list[socket.socket]:
    """Connect and say nothing."""
    return [socket.create_connection(("127.0.0.1", site.port), WAIT_S) for _ in range(count)]


def test_silence_keeps_nobody_out(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_server, "IDLE_GRACE_S", 0.0)
    site.lead()
    server = site.server
    server.most = 10
    silent = crowd(site, 60)
    eventually(lambda: server.displaced + server.refused + len(server._idle) == 60)
    doors = [RawDoor(site.address) for _ in range(9)]
    assert all(served(door) for door in doors)
    silent += crowd(site, 60)
    assert all(served(door) for door in doors), "what is at work stays"
    eventually(lambda: len(server._open) == 10 and not server._coming)
    for one in silent:
        one.close()
    for door in doors:
        door.close()
    eventually(lambda: len(server._open) == 0)


def test_beyond_the_limit_connections_that_cannot_make_room_are_told(site: DoorSite):
    site.lead()
    server = site.server
    server.most = 3
    doors = [RawDoor(site.address) for _ in range(3)]
    for _ in range(40):
        with pytest.raises(DoorClosed, match=r"^HTTP/1.1 503 Service Unavailable"):
            RawDoor(site.address)
    assert server.refused == 40
    assert all(served(door) for door in doors)
    doors.pop().close()
    eventually(lambda: len(server._open) == 2)
    with RawDoor(site.address) as again:
        assert served(again)
    for door in doors:
        door.close()


def test_refusals_themselves_are_bounded(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_server, "MAX_REFUSED", 5)
    monkeypatch.setattr(bounded_server, "REFUSAL_S", 0.3)
    server = site.server
    server.most = 0
    waiting = crowd(site, 30)
    eventually(lambda: server.refused == 30)
    assert len(server._refusing) <= 5
    eventually(lambda: not server._refusing)
    for one in waiting:
        one.close()
