"""A node's side of the direct door: what a peer may send and hold up, on real sockets and on a transport of the test's."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from crc32c import crc32c

from om_processors.doors import direct_door, door_connection, door_lookups
from om_processors.doors.door_connection import GREETING_S, HALF_FRAME_S, LAST_WORDS_S, UNREAD_S, DoorConnection
from om_processors.doors.door_lookups import found_rows
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import MAX_ENVELOPE_MESSAGES, responses_in
from schemas.door.frames import MAX_READ_KEYS, UPGRADE, DoorFrame, DoorFrames, DoorKind, door_frame, keyed
from schemas.door.talk import DoorRole, DoorState
from schemas.records.datanode import StreamError
from schemas.records.door import DoorLeaders, DoorRead, DoorRows
from schemas.records.messages import CreateVolume, PutKey, Requests, Response
from schemas.records.rows import KeyInfo
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite
from tests.support.om.om_world import request_of
from tests.support.om.raw_door import HELLO, RawDoor

WAIT_S = 30.0


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        yield found


def test_the_door_is_for_those_who_know_it(site: DoorSite):
    answer = httpx.get(f"http://{site.address}/v1/door", trust_env=False)
    assert (answer.status_code, answer.headers["Upgrade"]) == (426, UPGRADE)
    foreign = httpx.get(
        f"http://{site.address}/v1/door", headers={"Origin": "http://evil.example", "Upgrade": UPGRADE}, trust_env=False
    )
    assert foreign.status_code == 403, "a page of another origin"


def test_a_node_tells_who_leads_and_when_that_changes(site: DoorSite):
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        first = decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload)
        assert (first.shards, first.leaders[0].address) == (1, "")
        site.lead(term=4)
        told = decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload)
        assert (told.leaders[0].term, told.leaders[0].node, told.leaders[0].address) == (4, "om1", site.address)


def test_requests_for_a_leader_elsewhere_are_refused_behind_a_word_on_who_leads(site: DoorSite):
    site.follow(7, "om2", "10.0.0.2:9871")
    requests = [encode(request_of(CreateVolume(volume=f"v{n}"))) for n in range(3)]
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.REQUESTS, encode(Requests(requests=requests))))
        answers = [decode_as(Response, one) for one in responses_in(peer.hear(DoorKind.ANSWERS).payload)]
    assert {answer.status for answer in answers} == {"NOT_LEADER"}
    assert len(answers) == 3
    assert answers[0].message == "shard 0 is not led by om1, but by om2"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (door_frame(DoorKind.HELLO, b"\x00"), "HELLO frame out of place"),
        (b"GET / HTTP/1.1\r\n\r\n\r\n\r\n", "a frame begins with b'GE'"),
        (door_frame(DoorKind.REQUESTS, b"", shard=1), "there is no shard 1; there are 0..0"),
        (door_frame(DoorKind.ANSWERS, b""), "kind ANSWERS is not taken here"),
        (door_frame(DoorKind.READ, b"nonsense"), "not a valid|fingerprint|single-object"),
        (door_frame(DoorKind.REQUESTS, b"nonsense"), "not a valid|fingerprint|single-object"),
        (b"SO\x01\x02" + bytes(8) + (2**31).to_bytes(4, "big") + bytes(4), "2147483648 bytes"),
        (
            door_frame(DoorKind.REQUESTS, encode(Requests(requests=[b""] * (MAX_ENVELOPE_MESSAGES + 1)))),
            f"an envelope of {MAX_ENVELOPE_MESSAGES + 1} requests",
        ),
    ],
)
def test_a_peer_that_breaks_the_rules_is_told_and_left(site: DoorSite, sent: bytes, why: str):
    with RawDoor(site.address, timeout_s=WAIT_S) as bad, RawDoor(site.address, timeout_s=WAIT_S) as good:
        bad.sock.sendall(sent)
        assert re.search(why, bad.refusal())
        site.lead()
        good.sock.sendall(door_frame(DoorKind.REQUESTS, encode(request_of(CreateVolume(volume="v")))))
        assert decode_as(Response, good.hear(DoorKind.ANSWERS).payload).status == "OK"
    eventually(lambda: site.door.connections == 0)


def test_any_bytes_end_one_connection_and_nothing_else(site: DoorSite):
    leader = site.lead()
    rng = random.Random(18)
    value = encode(request_of(CreateVolume(volume="v")))
    for _ in range(40):
        frame = bytearray(door_frame(DoorKind.REQUESTS, value))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        if rng.random() < 0.5:  # a right checksum, and any content
            del frame[16:20]
            frame[16:16] = crc32c(bytes(frame[16:]), crc32c(bytes(frame[:16]))).to_bytes(4, "big")
        with RawDoor(site.address, timeout_s=WAIT_S) as peer:
            peer.sock.sendall(bytes(frame))
            peer.sock.shutdown(socket.SHUT_WR)
            while peer.sock.recv(65536):
                pass
    eventually(lambda: site.door.connections == 0)
    assert not leader.calls, "whatever was executed was answered"
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.REQUESTS, value))
        assert decode_as(Response, peer.hear(DoorKind.ANSWERS).payload).status == "OK"


def test_more_connections_than_are_taken_are_refused(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_door, "MAX_DOOR_CONNECTIONS", 2)
    with RawDoor(site.address, timeout_s=WAIT_S), RawDoor(site.address, timeout_s=WAIT_S):
        answer = httpx.get(f"http://{site.address}/v1/door", headers={"Upgrade": UPGRADE}, trust_env=False)
        assert (answer.status_code, answer.json()["error"]) == (503, "OVERLOADED")
        assert "2 direct connections are open at om1" in answer.json()["message"]
    eventually(lambda: site.door.connections == 0)
    with RawDoor(site.address, timeout_s=WAIT_S):
        pass


# -- bounds, on a transport of the test's ------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """What a connection does with its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.writes = 0
        self.unsent = 0
        self.reads = True
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent += data
        self.writes += 1

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Host:
    """A node that keeps what comes."""

    node, cluster, shards, crowded = "om1", "c", 2, False

    def __init__(self) -> None:
        self.loop: Any = self
        self.now_s = 1000.0
        self.requests: list[tuple[int, Sequence[bytes], bytes | None]] = []
        self.ended = 0
        self.held_bytes = 0
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, act: Callable[[], None]) -> None:
        self.soon.append(act)

    def turn(self) -> None:
        """End a turn of the event loop."""
        while self.soon:
            self.soon.pop(0)()

    def time(self) -> float:
        return self.now_s

    def call_soon_threadsafe(self, act: Callable[[], None]) -> None:
        act()

    def submit(
        self, connection: Any, shard: int, requests: Sequence[bytes], key: bytes | None, seal: Any = None
    ) -> None:
        assert isinstance(connection, DoorConnection)
        self.requests.append((shard, requests, key))

    def look_up(self, connection: Any, reads: Any) -> None:
        assert not connection.is_gone
        for _, told in reads:
            told(DoorRows(status="OK", message="", shard=0, index=1, rows=[]))

    def held(self, connection: Any, held_bytes: int) -> None:
        assert connection.held_bytes == held_bytes
        self.held_bytes = held_bytes

    def leaders_frame(self) -> bytes:
        return door_frame(DoorKind.LEADERS, encode(DoorLeaders(shards=2, leaders=[])))


class Case:
    def __init__(self) -> None:
        self.host = Host()
        self.wire = Wire()
        self.connection = DoorConnection(self.host, self.host.loop, lambda _: None)
        self.connection.connection_made(self.wire)

    def heard(self) -> list[DoorFrame]:
        return list(DoorFrames(DoorRole.CLIENT.hears).take(self.wire.sent))

    def why(self) -> str:
        return decode_as(StreamError, self.heard()[-1].payload).message


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_connection_with_too_much_unanswered_is_not_read(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "MAX_UNANSWERED", 3)
    case.connection.data_received(HELLO)
    case.connection.data_received(door_frame(DoorKind.REQUESTS, b"one", shard=1) * 4)
    assert len(case.host.requests) == 4
    assert not case.wire.reads
    case.connection.answer(1, [b"an answer"])
    assert case.wire.reads


def test_bytes_count_too(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "MAX_UNANSWERED_BYTES", 1000)
    case.connection.data_received(HELLO + door_frame(DoorKind.REQUESTS, b"x" * 1001))
    assert not case.wire.reads
    case.connection.answer(0, [b"an answer"])
    assert case.wire.reads
    assert (case.connection._unanswered, case.connection._unanswered_bytes) == (0, 0)


def test_a_peer_that_does_not_read_is_not_heard_and_then_left(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "MAX_UNSENT_BYTES", 1000)
    case.connection.data_received(HELLO)
    case.connection.pause_writing()
    assert not case.wire.reads
    case.connection.resume_writing()
    assert case.wire.reads
    case.wire.unsent = 1001
    case.connection.answer(0, [b"an answer"])
    assert case.wire.ended == "aborted"
    case.connection.answer(0, [b"another"])
    case.connection.connection_lost(None)
    case.connection.answer(0, [b"and one when it is gone"])


def test_a_peer_that_reads_nothing_is_left_after_a_while(case: Case):
    case.connection.data_received(HELLO)
    case.connection.pause_writing()
    case.connection.resume_writing()
    case.connection.look(case.host.now_s + 10**6)
    assert not case.wire.is_closing(), "it reads again"
    case.connection.pause_writing()
    case.connection.look(case.host.now_s + UNREAD_S)
    assert not case.wire.is_closing()
    case.connection.look(case.host.now_s + UNREAD_S + 1)
    assert case.wire.ended == "aborted"


def test_a_connection_that_is_closed_does_not_wait_for_its_peer_for_ever(case: Case):
    class Stuck(Wire):
        def close(self) -> None:
            self.closing = True

    case.wire.__class__ = Stuck
    case.connection.data_received(HELLO + b"garbage that is no frame")
    case.connection.look(case.host.now_s + LAST_WORDS_S)
    assert not case.wire.is_closing()
    case.connection.look(case.host.now_s + LAST_WORDS_S + 1)
    assert case.wire.ended == "aborted"


def test_a_peer_that_says_nothing_is_left(case: Case):
    case.connection.look(case.host.now_s + GREETING_S)
    assert case.wire.ended == ""
    case.connection.look(case.host.now_s + GREETING_S + 1)
    assert case.wire.is_closing()
    assert case.why() == "no HELLO within 10 s"


def test_half_a_frame_does_not_wait_for_ever(case: Case):
    case.connection.data_received(HELLO + door_frame(DoorKind.READ, b"row")[:-1])
    case.connection.look(case.host.now_s + HALF_FRAME_S)
    assert not case.wire.ended
    case.host.now_s += HALF_FRAME_S / 2
    case.connection.data_received(b"")
    case.connection.look(case.host.now_s + HALF_FRAME_S / 2 + 1)
    assert case.why() == "half a frame for 30 s"
    assert case.connection._talk.state is DoorState.FAILED


def test_a_connection_at_rest_is_left_alone(case: Case):
    case.connection.data_received(HELLO)
    case.connection.look(case.host.now_s + 10**6)
    assert not case.wire.ended


def test_a_connection_rests_while_nobody_owes_anything(case: Case):
    connection, host = case.connection, case.host
    assert connection.rests_since_s is None, "it has not said HELLO"
    connection.data_received(HELLO)
    assert connection.rests_since_s == host.now_s
    host.now_s += 5
    frame = door_frame(DoorKind.REQUESTS, b"one")
    connection.data_received(frame[:-1])
    assert connection.rests_since_s is None, "a frame is under way"
    connection.data_received(frame[-1:])
    host.now_s += 5
    assert connection.rests_since_s is None, "it waits for an answer"
    connection.answer(0, [b"an answer"])
    assert connection.rests_since_s == host.now_s
    connection.close()
    assert connection.rests_since_s is None


def test_who_does_not_read_its_answers_rests_and_who_reads_slowly_does_not(case: Case):
    connection, host = case.connection, case.host
    connection.data_received(HELLO)
    begun_s = host.now_s
    for unsent in (900, 800, 700):
        host.now_s += 1
        case.wire.unsent = unsent
        connection.look(host.now_s)
        assert connection.rests_since_s == host.now_s
    connection.look(host.now_s + 20)
    assert connection.rests_since_s == host.now_s == begun_s + 3


def test_a_frame_that_waits_because_the_node_does_not_read_is_no_fault_of_the_peer(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(door_connection, "MAX_UNANSWERED", 0)
    case.connection.data_received(HELLO + door_frame(DoorKind.REQUESTS, b"one") + b"SO")
    case.connection.look(case.host.now_s + 10**6)
    assert not case.wire.ended


def test_the_key_is_cut_off_a_keyed_request(case: Case):
    case.connection.data_received(HELLO + door_frame(DoorKind.KEYED, keyed(bytes(32), b"request"), shard=1))
    assert case.host.requests == [(1, [b"request"], bytes(32))]


@pytest.mark.parametrize("payload", [b"", b"\x05four"])
def test_a_keyed_request_has_a_whole_key(case: Case, payload: bytes):
    case.connection.data_received(HELLO + door_frame(DoorKind.KEYED, payload))
    assert case.why().endswith("has no whole key")
    assert case.host.requests == []


def test_answers_that_leave_together_are_one_write(case: Case, monkeypatch: pytest.MonkeyPatch):
    case.connection.data_received(HELLO)
    before = case.wire.writes
    lookup = DoorRead(consistency="stale", index=0, volume="v", bucket="b", keys=["k"])
    case.connection.data_received(
        b"".join(door_frame(DoorKind.READ, encode(lookup), number=number) for number in range(5))
    )
    assert case.wire.writes == before + 1
    assert [frame.number for frame in case.heard() if frame.kind is DoorKind.ROWS] == [0, 1, 2, 3, 4]
    case.connection.tell_leaders(case.host.leaders_frame())
    case.connection.tell_leaders(case.host.leaders_frame())
    assert case.wire.writes == before + 1, "they wait for the end of the turn"
    case.host.turn()
    assert case.wire.writes == before + 2
    monkeypatch.setattr(door_connection, "MAX_GATHERED_BYTES", 10)
    case.connection.tell_leaders(case.host.leaders_frame())
    assert case.wire.writes == before + 3, "so much does not wait"
    case.connection.tell_leaders(case.host.leaders_frame())
    case.connection.close()
    case.host.turn()
    assert [frame.kind for frame in case.heard()].count(DoorKind.LEADERS) == 5


def test_an_answer_is_one_envelope(case: Case):
    case.connection.data_received(HELLO)
    case.connection.answer(1, [b"a", b"b"])
    frame = case.heard()[-1]
    assert (frame.kind, frame.shard, responses_in(frame.payload)) == (DoorKind.ANSWERS, 1, [b"a", b"b"])


# -- the door's own turns ----------------------------------------------------------------------------------------------


def test_requests_come_to_the_leader_while_it_leads_and_are_refused_afterwards(site: DoorSite):
    leader = site.lead(term=4)
    requests = [request_of(CreateVolume(volume=f"v{n}")) for n in range(2)]
    sent = [door_frame(DoorKind.REQUESTS, encode(Requests(requests=[encode(one)]))) for one in requests]
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        assert decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload).leaders[0].term == 4
        peer.sock.sendall(sent[0])
        [answer] = responses_in(peer.hear(DoorKind.ANSWERS).payload)
        assert decode_as(Response, answer).status == "OK"
        site.follow(5, "om2", "10.0.0.2:9871")
        site.depose()
        told = decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload).leaders[0]
        assert (told.term, told.node) == (5, "om2"), "it is told without having asked"
        peer.sock.sendall(sent[1])
        [refusal] = responses_in(peer.hear(DoorKind.ANSWERS).payload)
        assert decode_as(Response, refusal).status == "NOT_LEADER"
    assert [request.call_id for request in leader.executed] == [requests[0].call_id]


def test_the_door_looks_for_silent_clients_while_there_are_any(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_door, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(door_connection, "GREETING_S", 0.2)
    with (
        RawDoor(site.address, timeout_s=WAIT_S) as polite,
        RawDoor(site.address, hello=b"", timeout_s=WAIT_S) as silent,
    ):
        assert silent.refusal() == "no HELLO within 0 s"
        eventually(lambda: site.door.connections == 1)
        site.follow(9, "om3", "10.0.0.3:9871")  # no leader of this node says so: the door finds it out by looking
        while decode_as(DoorLeaders, polite.hear(DoorKind.LEADERS).payload).leaders[0].term != 9:
            pass
    eventually(lambda: site.door.connections == 0)
    with RawDoor(site.address, hello=b"", timeout_s=WAIT_S) as another:
        assert another.refusal() == "no HELLO within 0 s", "after a rest it looks again"


# -- lookups -----------------------------------------------------------------------------------------------------------


def test_a_lookup_has_one_key_or_more(site: DoorSite):
    for count in (0, MAX_READ_KEYS + 1):
        read = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["k"] * count)
        with RawDoor(site.address, timeout_s=WAIT_S) as peer:
            peer.sock.sendall(door_frame(DoorKind.READ, encode(read), number=9))
            frame = peer.hear(DoorKind.ROWS)
        assert frame.number == 9
        assert decode_as(DoorRows, frame.payload).message == f"a lookup of {count} keys; 1 to 1000 are taken"


def test_keys_of_snapshots_and_unknown_consistencies_are_refused(site: DoorSite):
    for key, consistency, status in (
        (".snapshot/s/k", "stale", "NOT_SUPPORTED_OPERATION"),
        ("k", "x", "INVALID_REQUEST"),
    ):
        read = DoorRead(consistency=consistency, index=0, volume="vol1", bucket="bucket1", keys=[key])
        with RawDoor(site.address, timeout_s=WAIT_S) as peer:
            peer.sock.sendall(door_frame(DoorKind.READ, encode(read)))
            assert decode_as(DoorRows, peer.hear(DoorKind.ROWS).payload).status == status


@pytest.mark.parametrize("consistency", ["linearizable", "session"])
def test_who_waits_for_a_shard_that_cannot_be_read_is_told_and_the_next_is_answered(site: DoorSite, consistency: str):
    read = DoorRead(consistency=consistency, index=101, volume="vol1", bucket="bucket1", keys=["k"])
    # A read of a session asks no leader: it is refused if the replica is flagged.
    site.readable = status = "NO_LEADER" if consistency == "linearizable" else "REPLICA_FLAGGED"
    site.evidence = "a divergence" if consistency == "session" else None
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(b"".join(door_frame(DoorKind.READ, encode(read), number=number) for number in (1, 2)))
        for number in (1, 2):
            frame = peer.hear(DoorKind.ROWS)
            refusal = decode_as(DoorRows, frame.payload)
            assert (frame.number, refusal.status, refusal.rows) == (number, status, [])
        site.readable = site.evidence = None
        site.position.index = 101
        peer.sock.sendall(door_frame(DoorKind.READ, encode(read), number=3))
        answer = decode_as(DoorRows, peer.hear(DoorKind.ROWS).payload)
        assert (answer.status, answer.index, answer.rows) == ("OK", 101, [None])
    assert site.failures == []


def test_a_flagged_replica_answers_no_lookup(site: DoorSite):
    site.readable = "REPLICA_FLAGGED"
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.READ, encode(_read(["k"]))))
        assert decode_as(DoorRows, peer.hear(DoorKind.ROWS).payload).status == "REPLICA_FLAGGED"


def test_a_session_waits_until_the_node_has_applied_what_it_names(site: DoorSite):
    """A lookup that may be answered at once is not held up by one that must wait."""
    behind, there = (
        DoorRead(consistency="session", index=index, volume="vol1", bucket="bucket1", keys=["k"])
        for index in (103, 100)
    )
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.READ, encode(behind), number=1))
        eventually(lambda: site.hurried)
        peer.sock.sendall(door_frame(DoorKind.READ, encode(there), number=2))
        assert peer.hear(DoorKind.ROWS).number == 2
        assert site.asked == [], "nobody asks the leader"
        site.position.index = 103
        frame = peer.hear(DoorKind.ROWS)
    assert (frame.number, decode_as(DoorRows, frame.payload).index) == (1, 103)


def test_no_more_lookups_of_a_shard_wait_than_the_limit_says(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("om_processors.doors.door_lookups.MAX_WAITING", 2)
    read = encode(DoorRead(consistency="session", index=101, volume="vol1", bucket="bucket1", keys=["k"]))
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.READ, read, number=1))
        eventually(lambda: site.hurried)
        peer.sock.sendall(b"".join(door_frame(DoorKind.READ, read, number=number) for number in (2, 3)))
        frame = peer.hear(DoorKind.ROWS)
        assert (frame.number, decode_as(DoorRows, frame.payload).status) == (3, "OVERLOADED")
        site.position.index = 101
        assert sorted(peer.hear(DoorKind.ROWS).number for _ in range(2)) == [1, 2]


def test_who_waits_for_an_index_that_never_comes_holds_up_nobody(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    """Found by ``tests.chaos.fuzz``: one wait was for the highest index that anybody named, and refused all with it."""
    monkeypatch.setattr("om_processors.doors.door_lookups.READ_DEADLINE_S", 0.5)
    place: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1", "keys": ["k"]}
    never = door_frame(DoorKind.READ, encode(DoorRead(consistency="session", index=2**62, **place)), number=1)
    soon = door_frame(DoorKind.READ, encode(DoorRead(consistency="session", index=101, **place)), number=2)
    linearizable = door_frame(DoorKind.READ, encode(DoorRead(consistency="linearizable", index=0, **place)), number=3)
    with RawDoor(site.address, timeout_s=WAIT_S) as hostile, RawDoor(site.address, timeout_s=WAIT_S) as honest:
        hostile.send(never)
        eventually(lambda: site.hurried)
        honest.send(soon + linearizable)
        assert honest.hear(DoorKind.ROWS).number == 3
        site.position.index = 101
        frame = honest.hear(DoorKind.ROWS)
        assert (frame.number, decode_as(DoorRows, frame.payload).status) == (2, "OK")
        told = decode_as(DoorRows, hostile.hear(DoorKind.ROWS).payload)
        assert (told.status, "not caught up" in told.message) == ("NOT_CAUGHT_UP", True)
    assert not site.lookups._session_turns


def test_lookups_whose_index_never_comes_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_lookups, "READ_DEADLINE_S", -1.0)
    monkeypatch.setattr(door_lookups, "SPARE_ENTRIES", 10)
    waiting = door_lookups._Sessions()
    for number in range(200):
        read = DoorRead(consistency="session", index=2**40 + number, volume="v", bucket="b", keys=["k"])
        waiting.add(door_lookups._Lookup(read, lambda _: None, None, lambda: False))
        assert waiting.reached(7) == []
        assert len(waiting.late()) == 1
        assert len(waiting) == 0
    assert len(waiting._by_index) <= 11
    assert not waiting._by_age


def test_rows_have_a_limit(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    site.add_key("a")
    _, view = site.moment()
    monkeypatch.setattr("om_processors.doors.door_lookups.MAX_ROWS_BYTES", 10)
    read = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["a"])
    assert found_rows(view, read, 0, 5).index == 5, "one row is always sent"
    two = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["a", "a"])
    assert found_rows(view, two, 0, 5).message == "the rows of 2 keys have over 10 bytes"


def _listing(limit: int = 10, **more: Any) -> DoorRead:
    return DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", **{"keys": [], **more}, limit=limit)


def test_a_listing_gives_rows_as_they_are_stored_up_to_its_limits(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b", "c", "d"):
        site.add_key(name)
    _, view = site.moment()
    stored = found_rows(view, _read(["a", "b", "c", "d"], with_bytes=False), 0, 5).rows
    whole = found_rows(view, _listing(), 0, 5)
    assert (whole.rows, whole.more, whole.index) == (stored, False, 5)
    exact = found_rows(view, _listing(4), 0, 5)
    assert (exact.rows, exact.more) == (stored, False)
    two = found_rows(view, _listing(2, start_after="a"), 0, 5)
    assert (two.rows, two.more) == (stored[1:3], True)
    monkeypatch.setattr("om_processors.doors.door_lookups.MAX_ROWS_BYTES", 10)
    one = found_rows(view, _listing(), 0, 5)
    assert (one.rows, one.more) == (stored[:1], True), "one row is always sent"
    assert found_rows(view, _listing(prefix="a", start_after="z"), 0, 5).rows == []


@pytest.mark.parametrize(
    ("read", "status", "why"),
    [
        (_listing(1001), "INVALID_REQUEST", "a listing of 1001 keys; 1 to 1000 are given at a time"),
        (_listing(-1), "INVALID_REQUEST", "a listing of -1 keys; 1 to 1000 are given at a time"),
        (_listing(keys=["a"]), "INVALID_REQUEST", "a listing that names keys or wants bytes; it gives rows alone"),
        (_listing(with_bytes=True), "INVALID_REQUEST", "a listing that names keys or wants bytes; it gives rows alone"),
        (_listing(0, keys=["a"], prefix="a"), "INVALID_REQUEST", "a prefix or a start without a limit; a listing has one"),
        (_listing(prefix=".snapshot/s1/"), "NOT_SUPPORTED_OPERATION", "keys of snapshots are read over HTTP"),
    ],
)  # fmt: skip
def test_a_listing_that_is_none_is_refused(site: DoorSite, read: DoorRead, status: str, why: str):
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.READ, encode(read)))
        answer = decode_as(DoorRows, peer.hear(DoorKind.ROWS).payload)
    assert (answer.status, answer.message) == (status, why)


# -- bytes of inline keys ----------------------------------------------------------------------------------------------


def _read(keys: list[str], *, with_bytes: bool = True) -> DoorRead:
    return DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=keys, with_bytes=with_bytes)


def test_bytes_come_with_their_rows(site: DoorSite):
    site.add_key("blocks")
    for key, data in (("a", b"bytes"), ("empty", b"")):
        site.world.do(PutKey(volume="vol1", bucket="bucket1", key=key, data=data))
    _, view = site.moment()
    found = found_rows(view, _read(["a", "none", "blocks", "empty", "a"]), 0, 5)
    assert found.data == [b"bytes", None, None, None, b"bytes"]
    assert [row is None for row in found.rows] == [False, True, False, False, False]
    assert found_rows(view, _read(["a"], with_bytes=False), 0, 5).data == []


def test_bytes_come_over_the_wire(site: DoorSite):
    site.world.do(PutKey(volume="vol1", bucket="bucket1", key="a", data=bytes(range(256))))
    with RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.sock.sendall(door_frame(DoorKind.READ, encode(_read(["a"])), number=9))
        rows = decode_as(DoorRows, peer.hear(DoorKind.ROWS).payload)
    assert rows.data == [bytes(range(256))]
    assert decode_as(KeyInfo, rows.rows[0] or b"").inline


def test_bytes_count_in_the_limit_of_an_answer(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    for key in "ab":
        site.world.do(PutKey(volume="vol1", bucket="bucket1", key=key, data=bytes(1000)))
    _, view = site.moment()
    monkeypatch.setattr("om_processors.doors.door_lookups.MAX_ROWS_BYTES", 1500)
    assert found_rows(view, _read(["a"]), 0, 5).data == [bytes(1000)]
    assert found_rows(view, _read(["a", "b"]), 0, 5).message == "the rows of 2 keys have over 1500 bytes"
    assert found_rows(view, _read(["a", "b"], with_bytes=False), 0, 5).status == "OK"
