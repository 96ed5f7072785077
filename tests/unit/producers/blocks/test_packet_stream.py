"""A stream of packets as the primary hears it, frame by frame, and what the client makes of any acknowledgement."""

import pytest
from crc32c import crc32c

from producers.blocks import block_stream
from producers.blocks.block_stream import REPEATS_PATIENCE, PacketStream
from producers.blocks.core.stream_window import Packet
from producers.errors import DatanodeError
from schemas.codecs.codec import decode, encode
from schemas.records.datanode import BlockCommitted, OpenStream, PutBlock, StreamError
from schemas.records.packets import HEADER_BYTES, Kind, decode_header, encode_frame
from schemas.stream_errors import BAD_FRAME, OVERLOADED, TIMED_OUT
from tests.support.local.waiting import deadlines_by, eventually

STREAM = 77
OPENING = OpenStream(
    container_id=257, local_id=1, partition=1, offset=0, bytes_per_checksum=1, window_bytes=100, routes=[]
)  # fmt: skip
PUT = PutBlock(
    partition=1, container_id=257, local_id=1, length=9, bytes_per_checksum=1, checksums=b"", wait_effective=True
)  # fmt: skip
COMMITTED = BlockCommitted(container_id=257, local_id=1, length=9, bcs_id=4, log_offset=8)


def packet(offset, data):
    return Packet(offset=offset, data=data, crc=crc32c(data), cell_crc=0)


def heard(peer):
    """Return (header, payload) of the frame that came."""
    header = decode_header(peer.heard(HEADER_BYTES))
    payload = peer.heard(header.length) if header.length else b""
    assert header.crc == crc32c(payload)
    return header, payload


def acknowledgement(offset, sequence=0, payload=b""):
    return encode_frame(Kind.ACK, payload, stream=STREAM, sequence=sequence, offset=offset)


@pytest.fixture
def begun(talks):
    """Return (stream, peer) that began at offset 5."""
    connection, peer = talks()
    stream = PacketStream(connection, OPENING, stream=STREAM, silence_ms=10_000)
    peer.say(acknowledgement(5))
    stream.begin(5)
    header, payload = heard(peer)
    assert (header.kind, header.stream, header.sequence, header.offset) == (Kind.OPEN, STREAM, 0, 5)
    assert decode(payload) == OPENING
    return stream, peer


def test_a_stream_that_was_opened_at_another_offset_is_a_bad_frame(talks):
    connection, peer = talks()
    stream = PacketStream(connection, OPENING, stream=STREAM, silence_ms=10_000)
    peer.say(acknowledgement(3))
    with pytest.raises(DatanodeError, match="a stream at 5 was opened at 3") as caught:
        stream.begin(5)
    assert (caught.value.status, caught.value.doing) == (BAD_FRAME, "stream of block 257/1")


def test_packets_are_numbered_and_each_is_a_frame(begun):
    stream, peer = begun
    stream.send([packet(5, b"ab"), packet(7, b"c")])
    stream.send([packet(8, b"d")])
    found = [heard(peer) for _ in range(3)]
    assert [(header.kind, header.stream) for header, _ in found] == [(Kind.DATA, STREAM)] * 3
    assert [(header.sequence, header.offset) for header, _ in found] == [(1, 5), (2, 7), (3, 8)]
    assert [payload for _, payload in found] == [b"ab", b"c", b"d"]


def test_of_the_acknowledgements_that_have_come_the_last_one_counts(begun):
    stream, peer = begun
    assert stream.acknowledged(wait=False) is None
    peer.say(acknowledgement(7))
    assert stream.acknowledged(wait=True) == 7
    peer.say(acknowledgement(8) + acknowledgement(9))
    eventually(lambda: stream.acknowledged(wait=False) == 9)
    assert stream.acknowledged(wait=False) is None


def test_an_acknowledgement_of_another_stream_is_a_bad_frame(begun):
    stream, peer = begun
    stream.send([packet(5, b"ab")])
    peer.say(encode_frame(Kind.ACK, stream=STREAM + 1, offset=7))
    with pytest.raises(DatanodeError, match="an ACK of stream") as caught:
        stream.acknowledged(wait=True)
    assert caught.value.status == BAD_FRAME


def test_who_waits_takes_all_that_came_together(begun):
    stream, peer = begun
    peer.say(acknowledgement(7) + acknowledgement(9))
    assert stream.acknowledged(wait=True) == 9


def test_an_error_of_the_datanode_is_raised_while_it_is_waited_for(begun):
    stream, peer = begun
    error = StreamError(code=OVERLOADED, message="as if", datanode="dn2", offset=6, hint="")
    peer.say(encode_frame(Kind.ERROR, encode(error), stream=STREAM))
    with pytest.raises(DatanodeError, match="as if") as caught:
        stream.acknowledged(wait=True)
    assert (caught.value.status, caught.value.datanode, caught.value.offset) == (OVERLOADED, "dn2", 6)


@pytest.mark.parametrize("commit", [None, PUT])
def test_a_stream_ends_with_the_acknowledgement_of_its_end_and_tells_all_before_it(begun, commit):
    stream, peer = begun
    stream.send([packet(5, b"abcd")])
    heard(peer)
    told: list[int] = []
    answer = b"" if commit is None else encode(COMMITTED)
    peer.say(acknowledgement(7) + acknowledgement(9, 1) + acknowledgement(9, 2, answer))
    assert stream.end(9, commit, told.append) == (None if commit is None else COMMITTED)
    header, payload = heard(peer)
    assert (header.kind, header.stream, header.sequence, header.offset) == (Kind.END, STREAM, 2, 9)
    assert (decode(payload) if payload else None) == commit
    assert told == [7, 9, 9]


def hear_repeats(stream, peer):
    while True:
        peer.say(acknowledgement(7))
        stream.acknowledged(wait=True)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize("ends", [False, True])
def test_a_primary_that_repeats_its_acknowledgement_for_too_long_is_left(talks, monkeypatch, ends):
    """Each of them was a sign of life: it held a writer for ever."""
    clock = Clock()
    monkeypatch.setattr(block_stream, "Deadline", deadlines_by(clock))
    connection, peer = talks()
    stream = PacketStream(connection, OPENING, stream=STREAM, silence_ms=10_000)
    peer.say(acknowledgement(5))
    stream.begin(5)
    stream.send([packet(5, b"abcd")])
    limit_s = REPEATS_PATIENCE * 10.0
    clock.now_s = limit_s - 1
    for offset in (5, 7):  # news are waited for anew
        peer.say(acknowledgement(offset))
        assert stream.acknowledged(wait=True) == offset
    real = connection.receive_patiently

    def receive(timeout_ms):
        clock.now_s += limit_s / 4
        return real(timeout_ms)

    monkeypatch.setattr(connection, "receive_patiently", receive)
    if ends:
        peer.say(acknowledgement(7) * 10)
    with pytest.raises(DatanodeError, match="acknowledged nothing behind 7 for too long") as caught:
        stream.end(9, None, lambda _: None) if ends else hear_repeats(stream, peer)
    assert caught.value.status == TIMED_OUT


def test_a_primary_that_owes_nothing_may_say_nothing_new(talks, monkeypatch):
    """Whoever writes may rest as long as he likes."""
    clock = Clock()
    monkeypatch.setattr(block_stream, "Deadline", deadlines_by(clock))
    connection, peer = talks()
    stream = PacketStream(connection, OPENING, stream=STREAM, silence_ms=10_000)
    peer.say(acknowledgement(5))
    stream.begin(5)
    clock.now_s += 10 * REPEATS_PATIENCE * 10.0
    stream.send([packet(5, b"ab")])
    peer.say(acknowledgement(5))
    assert stream.acknowledged(wait=True) == 5


@pytest.mark.parametrize("payload", [b"no record", b"?"])
def test_an_answer_to_the_commit_that_cannot_be_read_is_a_bad_frame(begun, payload):
    stream, peer = begun
    peer.say(acknowledgement(9, 1, payload))
    with pytest.raises(DatanodeError, match="the last acknowledgement cannot be read") as caught:
        stream.end(9, PUT, lambda _: None)
    assert caught.value.status == BAD_FRAME


def test_an_end_is_waited_for_longer_than_a_packet(talks, monkeypatch):
    """Its datanodes may have to store everything first."""
    connection, peer = talks()
    patience = []
    real = connection.receive_patiently

    def receive(timeout_ms):
        patience.append(timeout_ms)
        return real(timeout_ms)

    monkeypatch.setattr(connection, "receive_patiently", receive)
    stream = PacketStream(connection, OPENING, stream=STREAM, silence_ms=10_000)
    peer.say(acknowledgement(0))
    stream.begin(0)
    peer.say(acknowledgement(1))
    stream.acknowledged(wait=True)
    peer.say(acknowledgement(1, 1))
    stream.end(1, None, lambda _: None)
    assert patience == [10_000, 10_000, 30_000]


def test_closing_or_interrupting_a_stream_ends_its_connection(begun):
    stream, peer = begun
    stream.interrupt()
    with pytest.raises(DatanodeError):
        stream.acknowledged(wait=True)
    stream.close()
    assert peer.heard(1) == b""
