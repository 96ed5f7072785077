"""Frames of the direct door: what was sent is heard, however it arrives; anything else is refused, and named."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.codec import encode
from schemas.door.frames import (
    DOOR_LIMITS,
    HEADER_BYTES,
    MAX_NUMBER,
    DoorFrame,
    DoorFrames,
    DoorKind,
    door_frame,
)
from schemas.door.talk import HEARD, DoorRole, DoorState, DoorTalk
from schemas.records.datanode import Hello
from schemas.records.framing import BadFrame

EVERYTHING = frozenset(DoorKind)
NUMBERS = st.integers(0, MAX_NUMBER)
FRAMES = st.lists(st.tuples(st.sampled_from(DoorKind), st.binary(max_size=200), NUMBERS, NUMBERS), max_size=8)


def heard(frames: DoorFrames, *parts: bytes) -> list[DoorFrame]:
    return [frame for part in parts for frame in frames.take(part)]


@given(FRAMES, st.randoms(use_true_random=False))
def test_frames_are_heard_as_they_were_sent_however_they_are_cut(
    sent: list[tuple[DoorKind, bytes, int, int]], rng: random.Random
):
    data = b"".join(door_frame(kind, payload, shard=shard, number=number) for kind, payload, shard, number in sent)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(5))
    parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    frames = DoorFrames(EVERYTHING)
    found = [(frame.kind, frame.payload, frame.shard, frame.number) for frame in heard(frames, *parts)]
    assert found == sent
    assert len(frames) == 0


@given(FRAMES.filter(bool), st.data())
def test_a_changed_byte_is_noticed(sent: list[tuple[DoorKind, bytes, int, int]], data: st.DataObject):
    frames = [door_frame(kind, payload, shard=shard, number=number) for kind, payload, shard, number in sent]
    whole = bytearray(b"".join(frames))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found: list[DoorFrame] = []
    hearing = DoorFrames(EVERYTHING)
    try:
        for frame in hearing.take(bytes(whole)):
            found.append(frame)  # noqa: PERF402 - those before the error count
        # A larger length waits for more bytes; it is refused once they come.
        assert len(found) < len(sent)
    except BadFrame:
        pass
    before = sum(1 for end in _ends(frames) if end <= place)
    assert len(found) == before, "frames before the damage are heard, none from it on"


def _ends(frames: list[bytes]) -> list[int]:
    return list(itertools.accumulate(len(frame) for frame in frames))


@given(st.binary(max_size=300))
def test_any_bytes_are_heard_or_refused(data: bytes):
    frames = DoorFrames(EVERYTHING)
    with suppress(BadFrame):
        heard(frames, data)
    assert len(frames) <= len(data)


@pytest.mark.parametrize("kind", DoorKind)
def test_a_frame_over_its_limit_is_refused_before_its_payload_comes(kind: DoorKind):
    header = bytearray(door_frame(kind, b"")[:HEADER_BYTES])
    header[12:16] = (DOOR_LIMITS[kind] + 1).to_bytes(4, "big")
    with pytest.raises(BadFrame, match=f"{kind.name} frame of {DOOR_LIMITS[kind] + 1} bytes"):
        heard(DoorFrames(EVERYTHING), bytes(header))


def test_two_gigabytes_are_refused_at_the_header():
    header = bytearray(door_frame(DoorKind.REQUESTS, b"")[:HEADER_BYTES])
    header[12:16] = (2**31).to_bytes(4, "big")
    with pytest.raises(BadFrame, match="2147483648 bytes"):
        heard(DoorFrames(DoorRole.NODE.hears), bytes(header))


def test_more_than_a_frame_holds_is_not_sent():
    with pytest.raises(BadFrame, match="HELLO frame of 4097 bytes"):
        door_frame(DoorKind.HELLO, bytes(4097))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"G", "begins with b'G'"),
        (b"GET / HTTP/1.1\r\n\r\n       ", "begins with b'GE'"),
        (door_frame(DoorKind.READ, b"")[:2] + b"\x02" + door_frame(DoorKind.READ, b"")[3:], "framing version 2"),
        (door_frame(DoorKind.READ, b"")[:3] + b"\x63" + door_frame(DoorKind.READ, b"")[4:], "kind 99"),
        (door_frame(DoorKind.ROWS, b""), "kind ROWS is not taken here"),
    ],
)
def test_what_is_no_frame_for_a_node_is_named(data: bytes, why: str):
    with pytest.raises(BadFrame, match=why):
        heard(DoorFrames(DoorRole.NODE.hears), data)


# -- who may say what, when --------------------------------------------------------------------------------------------


def frame(kind: DoorKind, payload: bytes = b"") -> DoorFrame:
    return DoorFrame(kind=kind, shard=0, number=0, payload=payload)


def hello(*, cluster: str = "c", low: int = 1, high: int = 1) -> DoorFrame:
    said = Hello(peer="p", cluster=cluster, min_version=low, max_version=high, max_payload_bytes=1)
    return frame(DoorKind.HELLO, encode(said))


def test_both_sides_greet_and_understand_each_other():
    node, client = DoorTalk(DoorRole.NODE, "om1", "c"), DoorTalk(DoorRole.CLIENT, "client-7")
    for one, other in ((node, client), (client, node)):
        (said,) = heard(DoorFrames(EVERYTHING), other.hello())
        one.hear(said)
    assert (node.state, client.state) == (DoorState.OPEN, DoorState.OPEN)
    assert (node.peer, client.peer) == ("client-7", "om1")
    assert (node.peer_cluster, client.peer_cluster) == ("", "c"), "each knows what the other has named"


@pytest.mark.parametrize("role", DoorRole)
@pytest.mark.parametrize("state", DoorState)
@pytest.mark.parametrize("kind", [kind for kind in DoorKind if kind is not DoorKind.HELLO])
def test_the_table_says_what_may_be_heard(role: DoorRole, state: DoorState, kind: DoorKind):
    talk = DoorTalk(role, "me", "c")
    talk.state = state
    after = HEARD[role][state].get(kind)
    if after is None:
        with pytest.raises(BadFrame, match=kind.name):
            talk.hear(frame(kind))
        assert talk.state is DoorState.FAILED
    else:
        talk.hear(frame(kind))
        assert talk.state is after


def test_nobody_greets_twice():
    talk = DoorTalk(DoorRole.NODE, "om1", "c")
    talk.hear(hello())
    with pytest.raises(BadFrame, match="HELLO frame out of place"):
        talk.hear(hello())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (hello(cluster="other"), "of cluster 'other', not 'c'"),
        (hello(low=2, high=3), "framing 2 to 3"),
        (hello(low=0, high=0), "framing 0 to 0"),
        (frame(DoorKind.HELLO, b"\x00"), "HELLO cannot be read"),
    ],
)
def test_a_greeting_that_does_not_fit_is_refused(said: DoorFrame, why: str):
    talk = DoorTalk(DoorRole.NODE, "om1", "c")
    with pytest.raises(BadFrame, match=why):
        talk.hear(said)
    assert talk.state is DoorState.FAILED


@pytest.mark.parametrize("said", [hello(cluster=""), hello(low=0, high=9)])
def test_a_greeting_that_leaves_room_is_taken(said: DoorFrame):
    talk = DoorTalk(DoorRole.NODE, "om1", "c")
    talk.hear(said)
    assert talk.state is DoorState.OPEN
