"""Frames: round trips, damage of every kind, limits, versions, and taking frames out of a stream of bytes."""

from __future__ import annotations

import struct
from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import packets
from schemas.records.framing import BadFrame, agreed_version
from schemas.records.packets import (
    HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_PACKET_BYTES,
    MAX_STREAM_ID,
    PACKET_BYTES,
    PAYLOAD_LIMITS,
    FrameBuffer,
    FrameHeader,
    Kind,
    check_payload,
    decode_header,
    encode_frame,
    encode_header,
)

numbers = st.integers(0, MAX_STREAM_ID)
kinds = st.sampled_from(Kind)
headers = kinds.flatmap(
    lambda kind: st.builds(
        FrameHeader, kind=st.just(kind), stream=numbers, sequence=numbers, offset=numbers,
        length=st.integers(0, PAYLOAD_LIMITS[kind]), crc=st.integers(0, 2**32 - 1),
    )
)  # fmt: skip
frames = st.tuples(kinds, st.binary(max_size=300), numbers, numbers, numbers)


def encoded(header: FrameHeader) -> bytes:
    return encode_header(header.kind, header.stream, header.sequence, header.offset, header.length, header.crc)


def made(version: int, kind: int, length: int) -> bytes:
    """Return a header with a right checksum and whatever else is asked for."""
    fixed = pack(">2sBBIQQQI", b"SD", version, kind, length, 1, 2, 3, 4)
    return fixed + pack(">I", crc32c(fixed))


@given(headers)
def test_a_header_comes_back_as_it_was(header: FrameHeader) -> None:
    data = encoded(header)
    assert len(data) == HEADER_BYTES
    for given_as in (data, bytearray(data), memoryview(data)):
        assert decode_header(given_as) == header


@given(headers)
@settings(max_examples=25)
def test_every_flipped_bit_of_a_header_is_refused(header: FrameHeader) -> None:
    data = bytearray(encoded(header))
    for bit in range(8 * HEADER_BYTES):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            decode_header(data)
        data[bit // 8] ^= 1 << bit % 8


@given(headers, st.data())
def test_up_to_three_flipped_bits_are_refused(header: FrameHeader, data: st.DataObject) -> None:
    damaged = bytearray(encoded(header))
    for bit in data.draw(st.sets(st.integers(0, 8 * HEADER_BYTES - 1), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrame):
        decode_header(damaged)


@given(st.binary(max_size=2 * HEADER_BYTES) | st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_header(data)


@given(st.binary(max_size=3 * HEADER_BYTES), st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_a_right_checksum_alone_makes_no_frame(payload: bytes, version: int, kind: int, length: int) -> None:
    data = made(version, kind, length)
    try:
        header = decode_header(data)
    except BadFrame:
        assert version != 1 or kind not in set(Kind) or length > PAYLOAD_LIMITS[Kind(kind)]
        return
    assert (version, header.kind, header.length) == (1, kind, length)
    if len(payload) != length or crc32c(payload) != header.crc:
        with pytest.raises(BadFrame):
            check_payload(header, payload)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_every_flipped_bit_of_a_payload_is_refused(payload: bytes, data: st.DataObject) -> None:
    header = decode_header(encode_frame(Kind.DATA, payload)[:HEADER_BYTES])
    check_payload(header, payload)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    damaged = bytearray(payload)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrame, match="checksum"):
        check_payload(header, damaged)
    with pytest.raises(BadFrame):
        check_payload(header, payload[:-1])


def test_what_is_wrong_is_named() -> None:
    for data, named in (
        (b"", "0 bytes"),
        (bytes(HEADER_BYTES + 1), str(HEADER_BYTES + 1)),
        (b"GET " + bytes(HEADER_BYTES - 4), "GE"),
        (made(0, 1, 0), "version 0"),
        (made(2, 1, 0), "version 2"),
        (made(1, 0, 0), "frame of kind 0"),
        (made(1, 9, 0), "frame of kind 9"),
        *((made(1, kind, limit + 1), str(limit + 1)) for kind, limit in PAYLOAD_LIMITS.items()),
    ):
        with pytest.raises(BadFrame, match=named):
            decode_header(data)


@pytest.mark.parametrize("kind", Kind)
def test_the_largest_payload_of_each_kind_is_taken(kind: Kind) -> None:
    limit = PAYLOAD_LIMITS[kind]
    assert decode_header(made(1, kind, limit)).length == limit


def test_who_connects_says_hello_and_nothing_longer() -> None:
    assert PAYLOAD_LIMITS[Kind.HELLO] == MAX_HELLO_BYTES
    for kind in Kind:
        buffer = FrameBuffer()
        buffer.greeting = True
        buffer.space()[:HEADER_BYTES] = made(1, kind, MAX_HELLO_BYTES)
        buffer.received(HEADER_BYTES)
        if kind in (Kind.HELLO, Kind.ERROR):
            assert buffer.frame() is None, "the rest is to come"
            continue
        with pytest.raises(BadFrame, match=f"begins with HELLO, not {kind.name}"):
            buffer.frame()


@pytest.mark.parametrize("field", ["stream", "sequence", "offset", "length", "crc"])
def test_a_number_that_has_no_room_is_the_callers_error(field: str) -> None:
    fields = {"kind": Kind.DATA, "stream": 0, "sequence": 0, "offset": 0, "length": 0, "crc": 0}
    for wrong in (-1, 2**64):
        with pytest.raises(struct.error):
            encode_header(**{**fields, field: wrong})  # type: ignore[arg-type]


@given(st.integers(-3, 12), st.integers(-3, 12))
def test_versions_are_agreed_or_refused(minimum: int, maximum: int) -> None:
    ours = packets.VERSIONS
    assert (ours[0], ours[-1]) == (packets.MIN_VERSION, packets.VERSION)
    common = [version for version in ours if minimum <= version <= maximum]
    if common:
        assert agreed_version(minimum, maximum, ours) == max(common)
    else:
        with pytest.raises(BadFrame, match="speaks framing"):
            agreed_version(minimum, maximum, ours)


def test_the_higher_side_comes_down() -> None:
    ours = range(3, 6)
    assert agreed_version(1, 4, ours) == 4
    assert agreed_version(4, 9, ours) == 5
    for minimum, maximum in ((1, 2), (6, 9), (9, 3)):
        with pytest.raises(BadFrame):
            agreed_version(minimum, maximum, ours)


# ------------------------------------------------------------------------------------------------ FrameBuffer


def fed(buffer: FrameBuffer, data: bytes, cuts: list[int]) -> list[tuple[FrameHeader, bytes, bytes]]:
    """Feed bytes as a socket would, in pieces of the given sizes, and return what comes out."""
    found, at, turn = [], 0, 0
    while at < len(data):
        space = buffer.space()
        assert len(space) > 0
        size = min(cuts[turn % len(cuts)], len(space), len(data) - at)
        space[:size] = data[at : at + size]
        buffer.received(size)
        at, turn = at + size, turn + 1
        while (frame := buffer.frame()) is not None:
            frame.check()
            found.append((frame.header, bytes(frame.payload), bytes(frame.whole)))
    return found


@given(
    st.lists(frames, max_size=12),
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.sampled_from([1, HEADER_BYTES, 1000]),
)
def test_frames_come_out_of_a_stream_as_they_went_in_however_it_is_cut(
    sent: list[tuple[Kind, bytes, int, int, int]], cuts: list[int], ahead: int
) -> None:
    whole = [
        encode_frame(kind, payload, stream=stream, sequence=sequence, offset=offset)
        for kind, payload, stream, sequence, offset in sent
    ]
    buffer = FrameBuffer(ahead)
    found = fed(buffer, b"".join(whole), cuts)
    assert [frame[2] for frame in found] == whole
    assert [(frame[0].kind, frame[1], frame[0].offset) for frame in found] == [(k, p, o) for k, p, _, _, o in sent]
    assert len(buffer) == 0


def test_the_buffer_takes_the_largest_frame_and_small_ones_behind() -> None:
    large = encode_frame(Kind.DATA, bytes(MAX_PACKET_BYTES))
    small = encode_frame(Kind.ACK, offset=7)
    packet = encode_frame(Kind.DATA, b"x" * PACKET_BYTES)
    found = fed(FrameBuffer(), small + large + packet + small + large, [MAX_PACKET_BYTES])
    assert [len(frame[2]) for frame in found] == [len(part) for part in (small, large, packet, small, large)]


def test_one_call_receives_a_packet_and_the_next_header() -> None:
    buffer = FrameBuffer()
    packet = encode_frame(Kind.DATA, bytes(PACKET_BYTES))
    stream = memoryview(packet * 4)
    buffer.space()[:HEADER_BYTES] = stream[:HEADER_BYTES]
    buffer.received(HEADER_BYTES)
    at = HEADER_BYTES
    for _ in range(3):
        assert buffer.frame() is None
        space = buffer.space()
        assert len(space) == PACKET_BYTES + HEADER_BYTES
        space[:] = stream[at : at + len(space)]
        buffer.received(len(space))
        at += len(space)
        frame = buffer.frame()
        assert frame is not None
        assert len(frame.payload) == PACKET_BYTES


def test_small_frames_are_received_together_and_lie_one_behind_the_other() -> None:
    buffer = FrameBuffer()
    whole = b"".join(encode_frame(Kind.DATA, bytes([n]) * 500, offset=500 * n) for n in range(20))
    space = buffer.space()
    assert len(space) >= len(whole)
    space[: len(whole)] = whole
    buffer.received(len(whole))
    found = list(iter(buffer.frame, None))
    assert len(found) == 20
    assert buffer.together(found[0], found[-1]) == whole
    assert buffer.together(found[3], found[3]) == found[3].whole


def test_space_is_refused_while_a_whole_frame_is_there() -> None:
    buffer = FrameBuffer()
    frame = encode_frame(Kind.ACK)
    buffer.space()[: len(frame)] = frame
    buffer.received(len(frame))
    with pytest.raises(BufferError):
        buffer.space()
    assert buffer.frame() is not None
    buffer.space()


@given(st.binary(min_size=1, max_size=200))
def test_a_stream_that_is_none_is_refused_at_its_first_header(data: bytes) -> None:
    buffer = FrameBuffer()
    if len(data) < HEADER_BYTES:
        assert fed(buffer, data, [7]) == []
    else:
        with pytest.raises(BadFrame):
            fed(buffer, data, [7])
