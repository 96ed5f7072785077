"""A connection to a datanode, over real sockets, with a peer that says what a test tells it to."""

import errno
import socket
import threading
import time
from dataclasses import replace
from struct import Struct
from types import SimpleNamespace

import pytest

from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import BlockWatched, ReadBlock, StreamError, WatchBlock
from schemas.records.packets import Kind, encode_frame
from schemas.security.tls_socket import left_after
from tests.support.local.waiting import eventually
from tests.support.sdk.datanode_peer import CALLER, HELLO, OWN, WAIT_S, said
from transport.datanodes import connection as module
from transport.datanodes.connection import SOCKET_BUFFER_BYTES, Buffer, DatanodeConnection, readable
from transport.datanodes.core.failures import UNREACHABLE, ConnectionFault, DatanodeFailed
from transport.datanodes.dialing import NoConnection, split_address
from transport.waiting.deadline import Deadline

WATCH = WatchBlock(partition=1, container_id=257, local_id=1, length=1, bcs_id=0, timeout_ms=0)
WATCHED = BlockWatched(datanode="dn1", bcs_id=3, length=1, satisfied=True)
ANSWER = encode_frame(Kind.REPLY, encode(WATCHED), sequence=1)
STOPS = StreamError(code=stream_errors.STOPPING, message="as if", datanode="", offset=7, hint="dn2")
TIMEVAL = Struct("ll")


@pytest.fixture
def probes(monkeypatch):
    """Have the silence after which a datanode is asked whether it lives be milliseconds."""
    monkeypatch.setattr(module, "PROBE_AFTER_MS", 20)
    monkeypatch.setattr(module, "PROBE_TIMEOUT_MS", 10)


def refused(error=STOPS):
    return encode_frame(Kind.ERROR, encode(error))


# -- the greeting


@pytest.mark.parametrize("address", ["nowhere", ":1", "127.0.0.1:x", "127.0.0.1:", "127.0.0.1:1"])
def test_a_datanode_that_cannot_be_reached_is_named_with_its_address(address):
    with pytest.raises(DatanodeFailed, match="cannot connect|is no address host:port") as caught:
        DatanodeConnection(address, CALLER, datanode="dn1")
    error = caught.value
    assert (error.status, error.datanode, error.doing) == (UNREACHABLE, "dn1", "HELLO")
    assert address in str(error)


@pytest.mark.parametrize("address", ["", "dn1", ":1", "dn1:", "dn1:x", "dn1:0", "dn1:65536", "dn1:-1", "dn1:1.5"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(NoConnection, match="is no address host:port") as caught:
        split_address(address)
    assert caught.value.fault is ConnectionFault.NO_ADDRESS


@pytest.mark.parametrize(
    ("address", "found"),
    [("dn1:1", ("dn1", 1)), ("dn1:65535", ("dn1", 65535)), ("::1:7", ("::1", 7)), ("[::1]:7", ("::1", 7))],
)
def test_an_address_is_a_host_and_a_port(address, found):
    assert split_address(address) == found


@pytest.mark.parametrize(
    ("greets", "status"),
    [
        (said(own_hello("dn1", "other")), stream_errors.WRONG_CLUSTER),
        (said(own_hello("dn2", "twin")), UNREACHABLE),
        (said(replace(HELLO, min_version=98, max_version=99)), stream_errors.UNSUPPORTED_VERSION),
        (encode_frame(Kind.HELLO, b"no record"), stream_errors.BAD_FRAME),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 10, stream_errors.BAD_FRAME),
        (ANSWER, stream_errors.BAD_FRAME),
        (refused(), stream_errors.STOPPING),
    ],
    ids=["cluster", "datanode", "version", "unreadable", "HTTP", "an answer", "an error"],
)
def test_a_peer_that_does_not_greet_as_it_should_is_left_and_the_reason_is_told(listens, greets, status):
    peer = listens(greets)
    with pytest.raises(DatanodeFailed) as caught:
        DatanodeConnection(peer.address, CALLER, datanode="dn1")
    assert caught.value.status == status
    assert peer.came.wait(WAIT_S)
    # ``caught`` keeps the half-made connection: the socket was closed, not collected.
    assert peer.heard(len(said(OWN)) + 1) in {said(OWN), b""}


def test_whoever_answers_is_known_by_the_name_in_its_hello(listens):
    peer = listens()
    connection = DatanodeConnection(peer.address, CALLER)
    assert (connection.datanode, connection.address) == ("dn1", peer.address)
    connection.close()


def test_the_kernel_holds_no_more_for_a_slow_datanode_than_the_limit_says(listens):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        limit = other.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    connection = DatanodeConnection(listens().address, CALLER)
    assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == limit
    connection.close()


@pytest.mark.parametrize("limits", [{"connect_timeout_ms": 50}, {"hello_timeout_ms": 50}])
def test_a_datanode_that_says_no_hello_has_timed_out(listens, limits):
    peer = listens(b"")
    began_s = time.monotonic()
    with pytest.raises(DatanodeFailed, match="is silent") as caught:
        DatanodeConnection(peer.address, CALLER, **({"connect_timeout_ms": 60_000} | limits))
    assert caught.value.status == stream_errors.TIMED_OUT
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("at_once", [True, False])
def test_a_wait_for_a_hello_is_spoken_of_after_a_while(listens, monkeypatch, at_once):
    words = []

    def slow(datanode, address):
        words.append((datanode, address))
        assert peer.came.wait(WAIT_S)
        peer.say(said(HELLO))

    monkeypatch.setattr(module, "SLOW_HELLO_MS", 5_000 if at_once else 20)
    peer = listens(said(HELLO) if at_once else b"")
    caller = replace(CALLER, on_slow_hello=slow)
    DatanodeConnection(peer.address, caller, datanode="dn1", connect_timeout_ms=10_000).close()
    assert words == ([] if at_once else [("dn1", peer.address)])


# -- sending


def test_what_a_slow_datanode_takes_in_pieces_arrives_whole_and_in_order(talks, probes):
    connection, peer = talks(silence_ms=60_000)
    asked, read = [], []
    parts = [bytes([number]) * size for number, size in enumerate((1, 3_000_000, 0, 5_000_000, 7), 1)]
    whole = b"".join(parts)
    reading = threading.Thread(target=lambda: read.append(peer.heard(len(whole))), daemon=True)

    def is_alive():
        asked.append(True)
        if len(asked) == 2:
            reading.start()
        return True

    connection.is_alive = is_alive
    connection.send_parts(parts)
    reading.join(WAIT_S)
    assert read == [whole]
    assert len(asked) >= 2


def fill(taking):
    """Send until the kernels take nothing any more, on neither side."""
    taking.setblocking(False)
    quiet = 0
    while quiet < 5:
        try:
            taking.send(bytes(100_000))
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.01)
    taking.setblocking(True)


@pytest.mark.parametrize(("alive", "times"), [(False, 1), (True, 5)])
def test_a_datanode_that_takes_no_bytes_is_asked_whether_it_lives_and_given_up(talks, probes, alive, times):
    connection, _ = talks(silence_ms=100)
    asked = []

    def is_alive() -> bool:
        asked.append(True)
        return bool(alive)

    connection.is_alive = is_alive
    filling = [bytes(1_000_000)]
    fill(connection._socket)
    with pytest.raises(DatanodeFailed, match="takes no bytes") as caught:
        connection.send_parts(filling)
    assert caught.value.status == stream_errors.TIMED_OUT
    # On a busy machine one question more may have its turn before the time is over.
    assert times <= len(asked) <= times + 2 * alive


@pytest.mark.parametrize("sent", range(7))
def test_what_is_left_of_a_frame_begins_where_the_last_send_ended(sent):
    parts: list[Buffer] = [b"abc", b"", memoryview(b"de"), bytearray(b"f")]
    left = left_after(parts, sent)
    assert b"".join(left) == b"abcdef"[sent:]


def failing(talks, *last):
    """Return the error of sending to a datanode that has said these bytes and gone."""
    connection, peer = talks()
    peer.say(b"".join(last))
    peer.socket.close()

    def send() -> None:
        for _ in range(1000):  # the first bytes are still taken
            connection.send_parts([bytes(100_000)])

    with pytest.raises(DatanodeFailed) as caught:
        send()
    return caught.value


def test_a_datanode_that_goes_has_the_last_word(talks):
    error = failing(talks, refused())
    assert (error.status, error.offset, error.hint) == (stream_errors.STOPPING, 7, "dn2")
    assert failing(talks).status == UNREACHABLE
    cut_off = failing(talks, refused()[:-1])
    assert cut_off.status == UNREACHABLE
    assert isinstance(cut_off.__cause__, OSError)
    assert cut_off.__cause__.errno in {errno.EPIPE, errno.ECONNRESET}


# -- receiving


def test_a_request_is_answered_and_the_connection_is_idle_again(talks):
    connection, peer = talks()
    assert connection.is_idle
    connection.send_request(WATCH)
    assert not connection.is_idle
    assert connection.receive_now() is None
    peer.say(ANSWER)
    assert connection.answered(connection.receive(10_000)) == WATCHED
    assert connection.is_idle


@pytest.mark.parametrize("late", [ANSWER, encode_frame(Kind.ERROR, encode(STOPS), sequence=1)], ids=["answer", "error"])
def test_an_answer_that_a_peer_repeats_late_is_not_that_of_the_next_request(talks, late):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER)
    assert connection.answered(connection.receive(10_000)) == WATCHED
    connection.send_request(WATCH)
    peer.say(late)
    with pytest.raises(DatanodeFailed, match=r"(REPLY|ERROR) 1 does not answer request 2") as caught:
        connection.receive(10_000)
    assert caught.value.status == stream_errors.BAD_FRAME
    assert connection.fileno() < 0


def test_cells_that_a_peer_repeats_late_are_not_those_of_the_next_request(talks):
    connection, peer = talks()
    request = ReadBlock(
        partition=1, container_id=257, local_id=1, bcs_id=0, offset=0, length=1, committed_only=True
    )  # fmt: skip
    cells = encode_frame(Kind.DATA, b"x", sequence=1) + encode_frame(Kind.END, offset=1, sequence=1)
    for _ in range(2):
        connection.send_request(request)
    peer.say(cells + cells)
    connection.receive(10_000)
    connection.receive(10_000)
    with pytest.raises(DatanodeFailed, match="DATA 1 does not answer request 2"):
        connection.receive(10_000)


def test_an_encoded_request_has_its_number_too(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER)
    connection.receive(10_000)
    connection.send_encoded([encode(WATCH)])
    peer.say(encode_frame(Kind.REPLY, encode(WATCHED), sequence=2))
    assert connection.answered(connection.receive(10_000)) == WATCHED


def test_a_connection_with_bytes_that_nobody_asked_for_is_not_idle(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER + ANSWER[:5])
    connection.receive(10_000)
    assert not connection.is_idle


def test_an_answer_that_has_come_is_taken_without_a_wait(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER[:9])
    eventually(lambda: readable([connection], 0))
    assert connection.receive_now() is None, "it is not whole"
    peer.say(ANSWER[9:])
    eventually(lambda: readable([connection], 0))
    assert connection.answered(connection.receive_now()) == WATCHED


def test_a_refusal_says_all_that_the_datanode_said(talks):
    connection, peer = talks()
    connection.doing = "WatchBlock"
    for named in ("", "dn3"):
        connection.send_request(WATCH)
        peer.say(refused(replace(STOPS, datanode=named)))
        with pytest.raises(DatanodeFailed, match="as if") as caught:
            connection.receive(10_000)
        error = caught.value
        assert (error.status, error.datanode, error.doing) == (stream_errors.STOPPING, named or "dn1", "WatchBlock")
        assert (error.offset, error.hint) == (7, "dn2")
    assert connection.is_idle


def test_cells_are_no_answer_to_who_asked_for_a_record(talks):
    connection, peer = talks()
    request = ReadBlock(
        partition=1, container_id=257, local_id=1, bcs_id=0, offset=0, length=1, committed_only=True
    )  # fmt: skip
    connection.send_request(request)
    peer.say(encode_frame(Kind.DATA, b"x", sequence=1))
    with pytest.raises(DatanodeFailed, match="DATA is no answer to that") as caught:
        connection.answered(connection.receive(10_000))
    assert caught.value.status == stream_errors.BAD_FRAME


@pytest.mark.parametrize(
    ("bytes_said", "stays_open"),
    [
        (b"\xff" * 100, False),
        (ANSWER[:-1] + bytes([ANSWER[-1] ^ 1]), False),
        (encode_frame(Kind.REPLY, b"no", sequence=1), True),
    ],
    ids=["no frame", "damaged", "unreadable"],
)
def test_bytes_that_are_no_answer_are_a_bad_frame_and_end_the_connection_if_nothing_can_follow(
    talks, bytes_said, stays_open
):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(bytes_said)
    with pytest.raises(DatanodeFailed, match=peer.address) as caught:
        connection.receive(10_000)
    assert caught.value.status == stream_errors.BAD_FRAME
    assert (connection.fileno() >= 0) is stays_open


def test_a_datanode_that_closes_says_nothing_more(talks):
    connection, peer = talks()
    peer.socket.close()
    with pytest.raises(DatanodeFailed, match="closed the connection") as caught:
        connection.receive(10_000)
    assert caught.value.status == UNREACHABLE


def test_a_frame_that_comes_byte_by_byte_has_a_limit_too(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    over = threading.Event()

    def trickle():
        for byte in encode_frame(Kind.REPLY, bytes(60_000)):  # five minutes
            if over.wait(0.005):
                return
            peer.say(bytes([byte]))

    trickling = threading.Thread(target=trickle, daemon=True)
    trickling.start()
    try:
        with pytest.raises(DatanodeFailed, match="does not send a whole frame in time") as caught:
            connection.receive(100)
    finally:
        over.set()
        trickling.join(WAIT_S)
    assert caught.value.status == stream_errors.TIMED_OUT


def test_a_whole_frame_has_twice_the_time_of_its_next_byte(talks, monkeypatch):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(encode_frame(Kind.REPLY, bytes(60_000))[:100])
    clock = iter([1000.0, 1000.199, 1000.2])  # the frame begins; two looks

    def now():
        peer.say(b"\0")  # the next byte is always in time
        return next(clock)

    monkeypatch.setattr(
        module, "Deadline", SimpleNamespace(after_ms=lambda timeout_ms: Deadline.after_ms(timeout_ms, now))
    )
    with pytest.raises(DatanodeFailed, match="does not send a whole frame in time"):
        connection.receive(100)


def test_the_kernel_is_told_each_limit_in_seconds_and_microseconds(talks):
    connection, _ = talks()

    def limit():
        return TIMEVAL.unpack(connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.size))

    for timeout_ms, expected_ms in ((1_504, 1_504), (3_000, 3_000), (0, 1)):
        connection._limit(socket.SO_RCVTIMEO, timeout_ms)
        seconds, microseconds = limit()
        # The kernel counts in ticks of up to 10 ms.
        assert expected_ms <= seconds * 1000 + microseconds / 1000 <= expected_ms + 10


# -- patience


def patiently(talks, alive, answers_after, timeout_ms=100_000):
    """Return (event or error of a patient receive, how often it was asked whether the datanode lives)."""
    connection, peer = talks()
    connection.send_request(WATCH)
    asked = []

    def is_alive():
        asked.append(True)
        if len(asked) == answers_after:
            peer.say(ANSWER)
        return alive(len(asked))

    connection.is_alive = is_alive
    try:
        return connection.answered(connection.receive_patiently(timeout_ms)), len(asked)
    except DatanodeFailed as error:
        return error.status, len(asked)


def test_a_datanode_that_lives_is_waited_for(talks, probes):
    assert patiently(talks, lambda _: True, 3) == (WATCHED, 3)


def test_a_datanode_that_does_not_live_is_not_waited_for(talks, probes):
    assert patiently(talks, lambda times: times < 2, 0) == (stream_errors.TIMED_OUT, 2)


def test_a_datanode_that_lives_and_never_answers_has_its_limit(talks, probes):
    assert patiently(talks, lambda _: True, 0, timeout_ms=110) == (stream_errors.TIMED_OUT, 5)


def test_a_datanode_that_is_gone_is_not_asked_whether_it_lives(talks, probes):
    connection, peer = talks()
    connection.is_alive = lambda: pytest.fail("it is gone")
    peer.socket.close()
    with pytest.raises(DatanodeFailed, match="closed the connection"):
        connection.receive_patiently(10_000)


def test_what_came_with_an_earlier_answer_is_no_reason_to_wait(talks, probes):
    connection, peer = talks()
    connection.send_request(WATCH)
    connection.send_request(WATCH)
    peer.say(ANSWER + encode_frame(Kind.REPLY, encode(WATCHED), sequence=2))
    connection.is_alive = lambda: pytest.fail("it has answered")
    assert connection.answered(connection.receive_patiently(10_000)) == WATCHED
    assert connection.answered(connection.receive_patiently(10_000)) == WATCHED


# -- several, and other threads


def test_those_with_something_to_receive_are_told_from_the_others(talks):
    (silent, _), (speaks, peer) = talks(), talks()
    assert readable([silent, speaks], 0) == []
    peer.say(ANSWER)
    assert readable([silent, speaks], WAIT_S) == [speaks]


def test_another_thread_ends_a_wait(talks):
    connection, _ = talks()
    ended = []

    def wait():
        try:
            connection.receive(60_000)
        except DatanodeFailed as error:
            ended.append(error.status)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    connection.interrupt()
    waiting.join(WAIT_S)
    assert ended == [UNREACHABLE]
    connection.close()
    connection.interrupt()  # when it is closed already, nothing happens


# -- by a deadline


def test_what_has_come_is_taken_though_the_deadline_has_passed(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER)
    eventually(lambda: readable([connection], 0))
    assert connection.answered(connection.receive_by(Deadline.after_s(0))) == WATCHED


def test_half_a_frame_at_the_deadline_is_too_late(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(ANSWER[:9])
    eventually(lambda: readable([connection], 0))
    with pytest.raises(DatanodeFailed, match="does not send a whole frame in time") as caught:
        connection.receive_by(Deadline.after_s(0))
    assert caught.value.status == stream_errors.TIMED_OUT


def test_who_trickles_has_no_more_time_than_the_deadline(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    over = threading.Event()

    def trickle():
        for byte in encode_frame(Kind.REPLY, bytes(60_000)):
            if over.wait(0.002):
                return
            peer.say(bytes([byte]))

    trickling = threading.Thread(target=trickle, daemon=True)
    trickling.start()
    try:
        with pytest.raises(DatanodeFailed) as caught:
            connection.receive_by(Deadline.after_s(0.1))
    finally:
        over.set()
        trickling.join(WAIT_S)
    assert caught.value.status == stream_errors.TIMED_OUT


def test_who_waits_for_a_hello_can_be_interrupted(listens):
    peer = listens(b"")
    with pytest.raises(DatanodeFailed) as caught:
        DatanodeConnection(peer.address, CALLER, connected=lambda connection: connection.interrupt())
    assert caught.value.status == UNREACHABLE


def test_a_request_on_a_conversation_that_has_failed_is_an_error_of_the_datanode(talks):
    connection, peer = talks()
    connection.send_request(WATCH)
    peer.say(b"\xff" * 100)
    for ask in (lambda: connection.receive(10_000), lambda: connection.send_request(WATCH)):
        with pytest.raises(DatanodeFailed, match=peer.address) as caught:
            ask()
        assert caught.value.status == stream_errors.BAD_FRAME
    with pytest.raises(DatanodeFailed, match=peer.address):
        connection.send_encoded([b"x"])
