"""What a client's direct transport does with its connections: which it makes, when again, and what waits for them.

The nodes are sockets on the loopback that say what a test has them say; the transport's clock is set by hand.
"""

from __future__ import annotations

import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from producers.direct import direct_transport
from producers.direct.core.link_talk import LinkFailed
from producers.direct.core.reconnecting import FIRST_PAUSE_S, LAST_FULL_PAUSE_S, LAST_PAUSE_S
from producers.direct.direct_transport import MAX_WAITING_LOOKUPS, DirectTransport
from producers.errors import NotConnected
from producers.requests.core.calls import Call
from schemas.codecs.codec import Unencodable, decode_as, encode
from schemas.codecs.envelopes import requests_in
from schemas.door.frames import DOOR_LIMITS, DoorFrame, DoorFrames, DoorKind, door_frame
from schemas.door.talk import DoorRole, DoorTalk, error_frame
from schemas.records.door import DoorLeaders, DoorRead, DoorRows, ShardLeader
from schemas.records.messages import CreateVolume
from stratolog.local.ports import free_ports
from tests.support.om.om_world import request_of

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stratolog-door\r\n\r\n"
WAIT_S = 10.0
READ = DoorRead(consistency="stale", index=0, volume="v", bucket="b", keys=["k"])
ROWS = DoorRows(status="OK", message="", shard=0, index=3, rows=[None])


class Clock:
    """The time of the transport, and of its links."""

    now_s = 5_000.0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    def time_ns(self) -> int:
        return time.time_ns()


class Node:
    """A node that says what it is told to say."""

    def __init__(self, name: str, cluster: str = "c") -> None:
        self.name = name
        self.cluster = cluster
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(WAIT_S)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.sock: socket.socket | None = None
        self._frames = DoorFrames(DoorRole.NODE.hears)
        self._begun = b""
        self._heard: list[DoorFrame] = []
        self.accepted = 0

    def accept(self) -> None:
        """Take the next connection, and say who this is."""
        self.sock, _ = self._server.accept()
        self.sock.settimeout(WAIT_S)
        self.accepted += 1
        self._frames = DoorFrames(DoorRole.NODE.hears)
        self.say(SWITCHING + DoorTalk(DoorRole.NODE, self.name, self.cluster).hello())

    def say(self, data: bytes) -> None:
        assert self.sock is not None
        self.sock.sendall(data)

    def tell(self, *leaders: tuple[int, int, str], shards: int = 2) -> None:
        """Say who leads: (shard, term, address)."""
        said = [ShardLeader(shard=shard, term=term, node="x", address=address) for shard, term, address in leaders]
        self.say(door_frame(DoorKind.LEADERS, encode(DoorLeaders(shards=shards, leaders=said))))

    def hear(self) -> DoorFrame:
        """Return the next frame of the client that is not its HELLO."""
        assert self.sock is not None
        while not self._heard:
            more = self.sock.recv(65_536)
            assert more, "the client has closed the connection"
            self._begun += more
            if self._begun.startswith(b"GET "):
                head, _, self._begun = self._begun.partition(b"\r\n\r\n")
                assert head.endswith(b"stratolog-door"), "the upgrade comes as a whole"
            frames = self._frames.take(self._begun)
            self._heard += [frame for frame in frames if frame.kind is not DoorKind.HELLO]
            self._begun = b""
        return self._heard.pop(0)

    def calls(self) -> tuple[int, list[bytes]]:
        """Return the shard and the requests of the next frame."""
        frame = self.hear()
        assert frame.kind is DoorKind.REQUESTS
        return frame.shard, requests_in(frame.payload)

    @property
    def is_left(self) -> bool:
        """Whether the client has closed the connection."""
        assert self.sock is not None
        self.sock.settimeout(WAIT_S)
        try:
            while self.sock.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self._server.close()
        if self.sock is not None:
            self.sock.close()


class Story:
    """A transport and its nodes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.first, self.second = Node("om1"), Node("om2")
        self.transport: DirectTransport | None = None

    def begin(self, *addresses: str) -> DirectTransport:
        self.transport = DirectTransport(addresses or [self.first.address], bytes(16), connect_timeout_ms=None)
        return self.transport

    def opened(self) -> DirectTransport:
        """Connect with the first node, which knows no leader yet."""
        found = self.begin()
        found.serve()
        self.first.accept()
        self.first.tell()
        self.until(lambda: found.shards)
        return found

    def led(self) -> DirectTransport:
        """Connect with the first node, which leads both shards."""
        found = self.opened()
        self.first.tell((0, 1, self.first.address), (1, 1, self.first.address))
        self.until(lambda: found.reaches(1))
        return found

    def until(self, holds: Callable[[], object]) -> list[bytes]:
        """Let the transport receive until something holds; return the records of answers."""
        assert self.transport is not None
        values: list[bytes] = []
        end_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end_s, "it never held"
            self.transport._receive_once(1, values)
        return values

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
        self.first.close()
        self.second.close()


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    clock = Clock()
    monkeypatch.setattr(direct_transport, "time", clock)
    monkeypatch.setattr("producers.direct.node_link.time", clock)
    found = Story(clock)
    yield found
    found.close()


NUMBERS = itertools.count(1)


def call(shard: int = 0, *, deadline_ms: float = 1e12) -> Call:
    number = next(NUMBERS)
    body = CreateVolume(volume=f"v{number}")
    return Call(
        call_id=number, shard=shard, body=body, value=encode(request_of(body)), done=lambda _: None, due_ms=0.0,
        deadline_ms=deadline_ms, proof=None, trace_key=None,
    )  # fmt: skip


# -- calls -------------------------------------------------------------------------------------------------------------


def test_calls_of_each_shard_go_together_and_in_order(story: Story) -> None:
    transport = story.led()
    a, b, c, d = call(0), call(1), call(0), call(1)
    transport.send([a, b, c, d])
    assert [story.first.calls() for _ in range(2)] == [(0, [a.value, c.value]), (1, [b.value, d.value])]


def test_answers_come_as_records_whatever_is_in_them(story: Story) -> None:
    transport = story.led()
    story.first.say(door_frame(DoorKind.ANSWERS, b"one") + door_frame(DoorKind.ANSWERS, b"two"))
    found: list[bytes] = []
    while len(found) < 2:
        found += transport.receive(0, gather=False)
    assert found == [b"one", b"two"]


def test_calls_wait_for_who_leads_their_shard_and_go_once(story: Story) -> None:
    transport = story.opened()
    a, b, c = call(0), call(1), call(0)
    transport.send([a, b])
    transport.send([c, a])
    assert not transport.reaches(0)
    story.first.tell((0, 1, story.first.address))
    story.until(lambda: transport.reaches(0))
    assert story.first.calls() == (0, [a.value, c.value]), "each once; nobody leads the other shard"
    transport.serve()
    last = call(0)
    transport.send([last])
    assert story.first.calls() == (0, [last.value]), "nothing is sent twice"
    assert list(transport._parked) == [1]


def test_calls_beyond_their_deadline_are_not_sent(story: Story) -> None:
    transport = story.opened()
    now_ms = story.clock.now_s * 1000
    late, just, good = (call(deadline_ms=now_ms + ms) for ms in (-1, 0, 1))
    transport.send([late, just, good])
    story.first.tell((0, 1, story.first.address))
    story.until(lambda: transport.reaches(0))
    assert story.first.calls() == (0, [good.value])


def test_calls_that_wait_in_vain_are_forgotten_at_their_deadline(story: Story) -> None:
    transport = story.opened()
    now_ms = story.clock.now_s * 1000
    just, good = call(deadline_ms=now_ms), call(deadline_ms=now_ms + 1)
    transport.send([just, good])
    transport.serve()
    assert {number for calls in transport._parked.values() for number in calls} == {good.call_id}
    story.clock.now_s += 0.001
    transport.serve()
    assert not any(transport._parked.values())


def test_a_node_that_does_not_read_gets_no_more(
    story: Story, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = story.led()
    monkeypatch.setattr("producers.direct.node_link.MAX_UNSENT_BYTES", 10)
    with caplog.at_level(logging.WARNING):
        transport.send([call(), call()])
    assert caplog.messages == [f"2 requests were not sent: {story.first.address} does not read"]


def test_a_call_that_the_kernel_does_not_take_wakes_the_thread_that_receives(story: Story) -> None:
    transport = story.led()
    (link,) = transport._links.values()
    link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while not link.has_unsent:
        transport.send([call() for _ in range(1000)])
    assert transport._wake_read.recv(10).startswith(b"!")


# -- connections -------------------------------------------------------------------------------------------------------


def test_a_node_that_refuses_is_tried_again_ever_more_rarely(story: Story) -> None:
    (port,) = free_ports(1)
    transport = story.begin(f"127.0.0.1:{port}")
    pauses, tried_s = [], story.clock.now_s

    def due_s() -> float:
        return transport._reconnecting._turns[f"127.0.0.1:{port}"].due_s if transport._reconnecting._turns else 0.0

    def tries() -> bool:
        """Whether a connection is begun now; it fails at once, or with the next receiving."""
        before_s = due_s()
        transport.serve()
        transport._receive_once(5, [])
        return due_s() != before_s

    assert tries()
    for _ in range(7):
        assert not tries()
        next_s = due_s()
        story.clock.now_s = next_s - 0.001
        assert not tries()
        story.clock.now_s = next_s
        assert tries()
        pauses.append(round(next_s - tried_s, 6))
        tried_s = next_s
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE_S, LAST_PAUSE_S)
    assert not transport.is_open


def test_a_connection_that_was_open_is_made_again_at_once(story: Story) -> None:
    transport = story.led()
    story.first.say(error_frame("STOPPING", "for an upgrade", "om1"))
    story.until(lambda: not transport.is_open)
    assert transport.take_lost() == {0, 1}, "what was sent there may never be answered"
    assert transport.take_lost() == set()
    transport.serve()
    story.first.accept()
    story.until(lambda: transport.is_open)
    assert transport.reaches(0)


def made_room(story: Story) -> DirectTransport:
    """Connect, and be told to make room for others."""
    transport = story.led()
    story.first.say(error_frame("OVERLOADED", "this one has rested longest", "om1"))
    story.until(lambda: not transport.is_open)
    assert transport.take_lost() == {0, 1}
    transport.serve()
    assert not transport._links, "it takes the place of nobody"
    return transport


def test_who_made_room_comes_back_once_its_pause_is_over(story: Story) -> None:
    transport = made_room(story)
    story.clock.now_s += LAST_FULL_PAUSE_S / 2 - 0.01
    transport.serve()
    assert not transport._links
    story.clock.now_s += LAST_FULL_PAUSE_S / 2 + 0.01
    transport.serve()
    story.first.accept()
    story.until(lambda: transport.is_open)


def test_who_made_room_comes_back_at_once_with_a_call_or_a_lookup_or_when_asked(story: Story) -> None:
    transport = made_room(story)
    a = call(0)

    def look_up() -> None:
        assert transport.look_up(READ, 1) is None

    for ask in (lambda: transport.send([a]), look_up, lambda: transport.want(0)):
        ask()
        story.until(lambda: transport._links)  # the thread that receives is woken
        story.first.accept()
        story.first.tell()
        story.until(lambda: transport.is_open)
        transport.serve()
        story.first.say(error_frame("OVERLOADED", "this one has rested longest", "om1"))
        story.until(lambda: not transport.is_open)
        story.clock.now_s += 1.0
        transport._parked.clear()
        transport.serve()
        assert not transport._links


DEAD = "127.0.0.1:1"


def both_connected(story: Story) -> DirectTransport:
    """Connect with both nodes; the first one leads shard 1, and then needs its room, the leader of shard 0 is dead."""
    transport = story.begin(story.first.address, story.second.address)
    transport.serve()
    for node in (story.first, story.second):
        node.accept()
        node.tell((0, 9, DEAD), (1, 1, story.first.address))
    story.until(lambda: all(link.is_open for link in transport._links.values()) and transport.reaches(1))
    story.first.say(error_frame("OVERLOADED", "this one has rested longest", "om1"))
    story.until(lambda: story.first.address not in transport._links)
    return transport


def test_who_wants_what_another_node_leads_does_not_ask_the_one_that_is_full(story: Story) -> None:
    transport = both_connected(story)
    transport.send([call(0)])
    transport.serve()
    assert story.first.address not in transport._links
    transport.send([call(1)])
    transport.serve()
    assert story.first.address in transport._links


def test_a_full_node_is_asked_who_leads_next_if_nobody_else_would_tell(story: Story) -> None:
    """The leader has died: who rests at it alone, because the others were full, must not wait for their room."""
    transport = both_connected(story)
    transport.send([call(0)])
    assert story.second.sock is not None
    story.second.sock.close()
    story.second._server.close()
    story.until(lambda: not transport.is_open)
    transport.serve()
    assert story.first.address in transport._links
    story.first.accept()
    story.first.tell((0, 10, story.first.address))
    story.until(lambda: transport.reaches(0))


def test_a_full_node_is_asked_ever_more_rarely_and_each_second_by_who_wants_something(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    transport = story.begin()
    transport._routes.hear(DoorLeaders(shards=1, leaders=[]))
    body = json.dumps({"error": "OVERLOADED", "message": "3 direct connections are open at om1"}).encode()
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def asks() -> float:
        """Wait for the next connection, and refuse it; returns how long the clock had to go on."""
        begun_s = story.clock.now_s
        while not transport._links:
            story.clock.now_s += 0.25
            transport.serve()
        sock, _ = story.first._server.accept()
        with sock:
            sock.sendall(refusal)
            story.until(lambda: not transport._links)
        return story.clock.now_s - begun_s

    waits = [asks() for _ in range(8)]
    assert all(2.0**number / 2 <= wait <= 2.0**number + 0.25 for number, wait in enumerate(waits[1:7])), waits
    assert waits[7] >= LAST_FULL_PAUSE_S / 2
    transport.send([call(0)])
    assert max(asks() for _ in range(5)) <= LAST_PAUSE_S
    assert not caplog.records, "it is nobody's fault"


def test_a_connection_that_does_not_open_in_time_is_ended(story: Story) -> None:
    transport = story.begin()
    transport.serve()
    (link,) = transport._links.values()
    story.clock.now_s += 3.0
    transport.serve()
    assert list(transport._links.values()) == [link]
    story.clock.now_s += 0.001
    transport.serve()
    assert link not in transport._links.values()
    assert link.sock.fileno() == -1
    assert transport.take_lost() == set(), "no shard was known to be led there"


def test_another_leader_is_connected_with_and_the_shard_counts_as_lost(story: Story) -> None:
    transport = story.led()
    assert transport.take_lost() == set(), "nothing was sent by another way before"
    story.first.tell((0, 2, story.second.address))
    story.until(lambda: story.second.address in transport._links)
    assert transport.take_lost() == {0}
    a, b = call(0), call(1)
    transport.send([a, b])
    assert story.first.calls() == (1, [b.value])
    story.second.accept()
    story.second.tell()
    story.until(lambda: transport.reaches(0))
    transport.serve()
    assert story.second.calls() == (0, [a.value])


def test_who_says_what_cannot_be_read_is_left(story: Story) -> None:
    transport = story.opened()
    story.first.say(door_frame(DoorKind.LEADERS, b"\xff"))
    story.until(lambda: not transport.is_open)
    assert "who leads cannot be read" in transport._faults[story.first.address]
    assert story.first.is_left


def test_all_connections_are_made_anew_when_calls_stay_unanswered(story: Story) -> None:
    transport = story.led()
    asked = transport.look_up(READ, 0)
    assert asked is not None
    transport.renew()
    assert not transport.is_open
    assert isinstance(failed := asked.exception(0), LinkFailed)
    assert str(failed) == f"{story.first.address}: no answers"
    assert transport.take_lost() == {0, 1}
    assert story.first.is_left
    transport.serve()
    story.first.accept()
    story.until(lambda: transport.reaches(0))
    assert story.first.accepted == 2


def test_a_node_of_another_cluster_is_left_out_and_told_once(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.second.cluster = "d"
    transport = story.led()
    # A leader's address has passed on to a node of another cluster, which knows as many shards.
    story.first.tell((0, 2, story.second.address))
    story.until(lambda: story.second.address in transport._links)
    why = (
        f"{story.second.address}: 'om2' at {story.second.address} is of cluster 'd', and this client speaks with cluster 'c', "
        f"that of 'om1' at {story.first.address}"
    )
    for _ in range(2):
        story.second.accept()
        story.second.tell((1, 9, story.second.address))
        story.until(lambda: story.second.address not in transport._links)
        assert transport._faults[story.second.address] == why
        assert not transport.reaches(0)
        assert (transport.leader_of(0), transport.leader_of(1)) == (story.second.address, story.first.address)
        story.clock.now_s += LAST_PAUSE_S
        transport.serve()
    waits, goes = call(0), call(1)
    transport.send([waits, goes])
    assert story.first.calls() == (1, [goes.value])
    assert list(transport._parked) == [0]
    assert caplog.messages == [f"a node is left out: {why}"]


def test_a_conflict_that_leaves_no_node_names_both_clusters(story: Story) -> None:
    story.second.cluster = "d"
    transport = story.begin(story.first.address, story.second.address)
    transport.serve()
    story.first.accept()
    story.until(lambda: transport.is_open)
    story.first.close()  # before it has said which shards there are
    story.until(lambda: not transport.is_open)
    story.second.accept()
    story.until(lambda: "cluster" in transport._faults.get(story.second.address, ""))
    with pytest.raises(NotConnected) as failed:
        transport._wait_for_shards(-1)  # its time is over
    assert failed.value.message.startswith(f"nodes {story.first.address}, {story.second.address}: ")
    assert "is of cluster 'd', and this client speaks with cluster 'c', that of 'om1' at" in str(failed.value)


def test_without_an_answer_the_faults_of_all_nodes_are_told(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # it waits for real
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with pytest.raises(NotConnected) as failed:
        DirectTransport(addresses, bytes(16), connect_timeout_ms=1)
    assert failed.value.status == "NOT_CONNECTED"
    assert str(failed.value).startswith(f"NOT_CONNECTED: nodes {addresses[0]}, {addresses[1]}: ")
    for address in addresses:
        assert f"{address}: ECONNREFUSED" in str(failed.value)


def test_a_node_that_takes_a_connection_and_says_nothing_is_no_answer(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(NotConnected, match=f"nodes {story.first.address}: no answer"):
        DirectTransport([story.first.address], bytes(16), connect_timeout_ms=1)


# -- lookups -----------------------------------------------------------------------------------------------------------


def test_lookups_are_answered_by_their_numbers(story: Story) -> None:
    transport = story.led()
    first, second = transport.look_up(READ, 0), transport.look_up(READ, 1)
    assert first is not None
    assert second is not None
    frames = [story.first.hear() for _ in range(2)]
    assert [(frame.kind, decode_as(DoorRead, frame.payload)) for frame in frames] == [(DoorKind.READ, READ)] * 2
    numbers = [frame.number for frame in frames]
    assert len(set(numbers)) == 2
    story.first.say(door_frame(DoorKind.ROWS, encode(ROWS), number=numbers[1]))
    story.until(second.done)
    assert second.result(0) == ROWS
    assert not first.done()
    story.first.say(door_frame(DoorKind.ROWS, encode(ROWS), number=numbers[1]))  # again: nobody asked
    story.first.say(door_frame(DoorKind.ROWS, b"\xff", number=numbers[0]))
    story.until(first.done)
    assert "rows cannot be read" in str(first.exception(0))
    assert transport.is_open, "another lookup may be answered"


def test_a_lookup_goes_to_the_leader_and_else_to_whoever_is_there(story: Story) -> None:
    transport = story.led()
    story.first.tell((0, 2, story.second.address))
    story.until(lambda: story.second.address in transport._links)
    assert transport.look_up(READ, 0) is not None
    assert story.first.hear().kind is DoorKind.READ, "the leader is not connected yet"
    story.second.accept()
    story.second.tell()
    story.until(lambda: transport.reaches(0))
    assert transport.look_up(READ, 0) is not None
    assert story.second.hear().kind is DoorKind.READ


def test_without_a_node_nobody_is_asked(story: Story) -> None:
    transport = story.begin()
    assert transport.look_up(READ, 0) is None
    transport.serve()
    assert transport.look_up(READ, 0) is None, "the connection is not open yet"


def test_only_so_many_lookups_wait(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_WAITING_LOOKUPS == 10_000
    monkeypatch.setattr(direct_transport, "MAX_WAITING_LOOKUPS", 2)
    transport = story.led()
    found = [transport.look_up(READ, 0) for _ in range(3)]
    first, *others = [one for one in found if one is not None]
    assert str(first.exception(0)) == "2 later lookups wait", "its caller asks over HTTP"
    assert [one.done() for one in others] == [False, False]
    assert len(transport._lookups) == 2


def test_a_lookup_that_its_caller_gives_up_is_awaited_no_longer(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """They filled the table for good, and every later lookup went over HTTP."""
    monkeypatch.setattr(direct_transport, "MAX_WAITING_LOOKUPS", 2)
    transport = story.led()
    found = [transport.look_up(READ, 0) for _ in range(2)]
    for one in found:
        assert one is not None
        assert one.cancel()
    assert transport._lookups == {}
    asked = [transport.look_up(READ, 0) for _ in range(2)]
    for _ in range(4):  # what comes late, for those that were given up, is dropped
        story.first.say(door_frame(DoorKind.ROWS, encode(ROWS), number=story.first.hear().number))
    story.until(lambda: all(one is not None and one.done() for one in asked))
    assert [one.result(0) for one in asked if one is not None] == [ROWS, ROWS]


def test_a_lookup_that_no_frame_holds_is_not_asked_and_not_awaited(story: Story) -> None:
    transport = story.led()
    spare = DOOR_LIMITS[DoorKind.READ] - len(encode(replace(READ, keys=["k" * 100_000]))) + 100_000
    assert transport.look_up(replace(READ, keys=["k" * (spare + 1)]), 0) is None
    assert transport._lookups == {}
    # What no schema allows is the caller's fault, and is not awaited either.
    with pytest.raises(Unencodable):
        transport.look_up(replace(READ, keys=["\ud800"]), 0)
    assert transport._lookups == {}
    asked = transport._ask(transport._links[story.first.address], encode(READ))
    assert asked is not None
    assert story.first.hear().kind is DoorKind.READ, "the first that is asked at all"


def test_a_lookup_that_fills_a_frame_is_asked(story: Story) -> None:
    transport = story.led()
    spare = DOOR_LIMITS[DoorKind.READ] - len(encode(replace(READ, keys=["k" * 100_000]))) + 100_000
    read = replace(READ, keys=["k" * (spare - 1)])  # the length of the name may take a byte more
    assert len(encode(read)) >= DOOR_LIMITS[DoorKind.READ] - 2
    assert transport.look_up(read, 0) is not None


def test_a_lookup_that_the_leader_does_not_take_goes_to_another_node(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = story.led()
    story.first.tell((0, 2, story.second.address))
    story.until(lambda: story.second.address in transport._links)
    story.second.accept()
    story.second.tell()
    story.until(lambda: transport.reaches(0))
    leader = transport._links[story.second.address]
    monkeypatch.setattr(leader, "write", lambda _: False)
    assert transport.look_up(READ, 0) is not None
    assert story.first.hear().kind is DoorKind.READ
    assert [address for address, _ in transport._lookups.values()] == [story.first.address]


def close_before_writing(transport: DirectTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the thread that receives close the connection while another one sends."""
    (link,) = transport._links.values()
    write = link.write

    def closed_first(data: bytes) -> bool:
        transport._drop(link, "it broke")
        return write(data)

    monkeypatch.setattr(link, "write", closed_first)


def test_a_lookup_whose_connection_is_closed_meanwhile_is_not_awaited(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = story.led()
    close_before_writing(transport, monkeypatch)
    assert transport.look_up(READ, 0) is None
    assert transport._lookups == {}


def test_calls_to_a_connection_that_is_closed_meanwhile_do_not_blame_the_node(
    story: Story, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = story.led()
    close_before_writing(transport, monkeypatch)
    with caplog.at_level(logging.WARNING):
        transport.send([call()])
    assert caplog.messages == []


def test_lookups_of_other_connections_go_on_when_one_breaks(story: Story) -> None:
    transport = story.led()
    story.first.tell((1, 2, story.second.address))
    story.until(lambda: story.second.address in transport._links)
    story.second.accept()
    story.second.tell()
    story.until(lambda: transport.reaches(1))
    here, there = transport.look_up(READ, 0), transport.look_up(READ, 1)
    assert here is not None
    assert there is not None
    assert story.second.sock is not None
    story.second.sock.close()
    story.until(there.done)
    assert isinstance(there.exception(0), LinkFailed)
    assert not here.done()
    assert transport.take_lost() == {1}


def test_a_closed_transport_fails_what_waits_and_lets_go_of_its_sockets(story: Story) -> None:
    transport = story.led()
    asked = transport.look_up(READ, 0)
    assert asked is not None
    (link,) = transport._links.values()
    transport.close()
    assert str(asked.exception(0)) == "the client is closed"
    assert [one.fileno() for one in (link.sock, transport._wake_read, transport._wake_write)] == [-1] * 3
    assert transport.look_up(READ, 0) is None
    transport._wake()  # a late call of another thread is no error


def test_an_address_that_leads_nowhere_is_a_fault_and_the_others_are_connected_with(story: Story) -> None:
    transport = story.begin("no such host:1", story.first.address)
    transport.serve()
    assert "no such host:1: " in transport._faults["no such host:1"]
    story.first.accept()
    story.first.tell()
    story.until(lambda: transport.shards)


def test_a_wake_up_is_heard_once_and_ends_no_wait_for_good(story: Story) -> None:
    transport = story.led()
    transport._wake()
    values: list[bytes] = []
    transport._receive_once(1_000, values)  # it returns at once
    began_s = time.monotonic()
    transport._receive_once(30, values)
    assert time.monotonic() - began_s >= 0.02, "the next one waits its time out"
    assert values == []


def test_a_lookup_that_the_kernel_does_not_take_wakes_the_thread_that_receives(story: Story) -> None:
    transport = story.led()
    (link,) = transport._links.values()
    link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while not link.has_unsent:
        transport.look_up(READ, 0)
    assert transport._wake_read.recv(10).startswith(b"!")
