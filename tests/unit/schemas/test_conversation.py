"""The conversation: its table, state by state and word by word, for both roles; limits; any bytes, however cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codecs.codec import encode
from schemas.conversation.conversation import (
    Conversation,
    ConversationFailed,
    ConversationFault,
    Event,
    MisusedConversation,
    PeerAnswered,
    PeerGreeted,
    PeerRefused,
    judge_hello,
    own_hello,
)
from schemas.conversation.limits import LARGE_ANSWERS, LARGE_REQUESTS, UnreadableRecord
from schemas.conversation.states import TABLE, ConversationRole, ConversationState, Way, Word
from schemas.records.datanode import Accepted, BlockInfo, CloseContainer, Hello, ReadBlock, StreamError
from schemas.records.packets import (
    HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_BYTES,
    PACKET_BYTES,
    VERSION,
    Frame,
    Kind,
    decode_header,
    encode_frame,
    encode_header,
)

CLIENT, SERVER = ConversationRole.CLIENT, ConversationRole.SERVER
SENT, CAME = Way.SENT, Way.CAME
S, W = ConversationState, Word
CLUSTER = "c"
SEQUENCE = 7
USUAL_BYTES = PACKET_BYTES + 2 * HEADER_BYTES
"""What a buffer takes as it is made: a usual packet, and the next one's header."""

ASK = CloseContainer(partition=1, container_id=2)
READ = ReadBlock(partition=1, container_id=2, local_id=3, offset=0, length=9, bcs_id=4, committed_only=True)
REPLY = Accepted(detail="done")
WRONG = StreamError(code="FAILED", message="no", datanode="dn1", offset=-1, hint="")
PAYLOADS = {
    Kind.HELLO: encode(own_hello("dn1", CLUSTER)), Kind.REQUEST: encode(ASK), Kind.REPLY: encode(REPLY),
    Kind.ERROR: encode(WRONG), Kind.DATA: b"bytes", Kind.OPEN: b"", Kind.END: b"", Kind.ACK: b"",
}  # fmt: skip

EXPECTED: dict[ConversationRole, dict[ConversationState, dict[tuple[Way, Word], ConversationState]]] = {
    CLIENT: {
        S.IDLE: {(SENT, W.HELLO): S.GREETING},
        S.GREETING: {(CAME, W.HELLO): S.OPEN, (CAME, W.ERROR): S.FAILED, (CAME, W.GONE): S.FAILED},
        S.OPEN: {
            (SENT, W.REQUEST): S.ASKING, (SENT, W.OPEN): S.STREAMING, (CAME, W.ERROR): S.FAILED, (CAME, W.GONE): S.ENDED,
        },
        S.ASKING: {
            (SENT, W.REQUEST): S.ASKING, (CAME, W.REPLY): S.OPEN, (CAME, W.DATA): S.READING, (CAME, W.END): S.OPEN,
            (CAME, W.ERROR): S.OPEN, (CAME, W.GONE): S.FAILED,
        },
        S.READING: {
            (SENT, W.REQUEST): S.READING, (CAME, W.DATA): S.READING, (CAME, W.END): S.OPEN, (CAME, W.ERROR): S.OPEN,
            (CAME, W.GONE): S.FAILED,
        },
        S.STREAMING: {
            (SENT, W.DATA): S.STREAMING, (SENT, W.END): S.ENDING, (CAME, W.ACK): S.STREAMING, (CAME, W.ERROR): S.FAILED,
            (CAME, W.GONE): S.FAILED,
        },
        S.ENDING: {
            (CAME, W.ACK): S.ENDING, (CAME, W.LAST_ACK): S.OPEN, (CAME, W.ERROR): S.FAILED, (CAME, W.GONE): S.FAILED,
        },
        S.ENDED: {},
        S.FAILED: {},
    },
    SERVER: {
        S.IDLE: {(SENT, W.HELLO): S.GREETING, (SENT, W.ERROR): S.FAILED},
        S.GREETING: {
            (CAME, W.HELLO): S.OPEN, (CAME, W.ERROR): S.FAILED, (SENT, W.ERROR): S.FAILED, (CAME, W.GONE): S.FAILED,
        },
        S.OPEN: {
            (CAME, W.REQUEST): S.ASKING, (CAME, W.OPEN): S.STREAMING, (SENT, W.ERROR): S.FAILED, (CAME, W.GONE): S.ENDED,
        },
        S.ASKING: {
            (CAME, W.REQUEST): S.ASKING, (SENT, W.REPLY): S.OPEN, (SENT, W.DATA): S.READING, (SENT, W.END): S.OPEN,
            (SENT, W.ERROR): S.OPEN, (CAME, W.GONE): S.FAILED,
        },
        S.READING: {
            (CAME, W.REQUEST): S.READING, (SENT, W.DATA): S.READING, (SENT, W.END): S.OPEN, (SENT, W.ERROR): S.OPEN,
            (CAME, W.GONE): S.FAILED,
        },
        S.STREAMING: {
            (CAME, W.DATA): S.STREAMING, (CAME, W.END): S.ENDING, (SENT, W.ACK): S.STREAMING, (SENT, W.LAST_ACK): S.OPEN,
            (SENT, W.ERROR): S.FAILED, (CAME, W.GONE): S.FAILED,
        },
        S.ENDING: {
            (SENT, W.ACK): S.ENDING, (SENT, W.LAST_ACK): S.OPEN, (SENT, W.ERROR): S.FAILED, (CAME, W.GONE): S.FAILED,
        },
        S.ENDED: {},
        S.FAILED: {(SENT, W.ERROR): S.FAILED},
    },
}  # fmt: skip


def test_the_table_is_the_one_that_is_meant() -> None:
    for role in ConversationRole:
        assert TABLE[role] == EXPECTED[role]


def fed(talk: Conversation, data: bytes) -> None:
    """Feed bytes that fit into the buffer at once."""
    talk.space()[: len(data)] = data
    talk.received(len(data))


def heard(talk: Conversation, frame: bytes) -> Event:
    fed(talk, frame)
    event = talk.next_event()
    assert event is not None
    return event


def frame_of(kind: Kind, sequence: int = SEQUENCE) -> bytes:
    return encode_frame(kind, PAYLOADS[kind], sequence=sequence)


def greeted(role: ConversationRole) -> Conversation:
    talk = Conversation(role, own_hello("me", CLUSTER))
    talk.hello()
    assert isinstance(heard(talk, frame_of(Kind.HELLO, 0)), PeerGreeted)
    return talk


def client_in(state: ConversationState) -> Conversation:
    if state is S.IDLE:
        return Conversation(CLIENT, own_hello("me", CLUSTER))
    if state is S.GREETING:
        talk = Conversation(CLIENT, own_hello("me", CLUSTER))
        talk.hello()
        return talk
    talk = greeted(CLIENT)
    if state in (S.ASKING, S.READING):
        talk.request(READ if state is S.READING else ASK, sequence=SEQUENCE)
    if state is S.READING:
        heard(talk, frame_of(Kind.DATA))
    if state in (S.STREAMING, S.ENDING):
        talk.say(Kind.OPEN)
    if state is S.ENDING:
        talk.say(Kind.END, sequence=SEQUENCE)
    if state is S.ENDED:
        talk.ended()
    if state is S.FAILED:
        with pytest.raises(ConversationFailed):
            heard(talk, frame_of(Kind.REPLY))
    assert talk.state is state
    return talk


def server_in(state: ConversationState) -> Conversation:
    if state in (S.IDLE, S.GREETING):
        talk = Conversation(SERVER, own_hello("me", CLUSTER))
        if state is S.GREETING:
            talk.hello()
        return talk
    talk = greeted(SERVER)
    if state in (S.ASKING, S.READING):
        heard(talk, frame_of(Kind.REQUEST))
    if state is S.READING:
        talk.say(Kind.DATA, b"bytes", sequence=SEQUENCE)
    if state in (S.STREAMING, S.ENDING):
        heard(talk, frame_of(Kind.OPEN, 0))
    if state is S.ENDING:
        heard(talk, frame_of(Kind.END))
    if state is S.ENDED:
        talk.ended()
    if state is S.FAILED:
        talk.say(Kind.ERROR, PAYLOADS[Kind.ERROR])
    assert talk.state is state
    return talk


def conversation_in(role: ConversationRole, state: ConversationState) -> Conversation:
    return client_in(state) if role is CLIENT else server_in(state)


CASES = [(role, state, kind) for role in ConversationRole for state in ConversationState for kind in Kind]


@pytest.mark.parametrize(("role", "state", "kind"), CASES)
def test_what_is_said_in_each_state(role: ConversationRole, state: ConversationState, kind: Kind) -> None:
    """SEQUENCE is that of the request under way, and of END."""
    talk = conversation_in(role, state)
    word = W.LAST_ACK if kind is Kind.ACK and state is S.ENDING else W[kind.name]
    after = EXPECTED[role][state].get((SENT, word))

    def say() -> bytes:
        if kind is Kind.REQUEST:
            return talk.request(ASK, sequence=SEQUENCE)
        return talk.say(kind, PAYLOADS[kind], sequence=SEQUENCE)

    if after is not None:
        assert say() == frame_of(kind)
        assert talk.state is after
        return
    # A client that has failed says why, also to the caller who goes on.
    with pytest.raises((MisusedConversation, ConversationFailed)):
        say()
    assert talk.state is state


@pytest.mark.parametrize(("role", "state", "kind"), CASES)
def test_what_comes_in_each_state(role: ConversationRole, state: ConversationState, kind: Kind) -> None:
    talk = conversation_in(role, state)
    word = W.LAST_ACK if kind is Kind.ACK and state is S.ENDING else W[kind.name]
    after = EXPECTED[role][state].get((CAME, word))
    if role is CLIENT and state is S.ASKING and kind in (Kind.DATA, Kind.END):
        after = None  # what is under way asks for no bytes
    if state is S.IDLE:
        with pytest.raises(MisusedConversation):
            talk.next_event()
        return
    fed(talk, frame_of(kind))
    if after is None:
        with pytest.raises(ConversationFailed) as caught:
            talk.next_event()
        first = state is S.GREETING
        assert caught.value.fault is (ConversationFault.BAD_FRAME if first else ConversationFault.OUT_OF_PLACE)
        assert talk.state is S.FAILED
        with pytest.raises(ConversationFailed):
            talk.next_event()
        return
    event = talk.next_event()
    assert talk.state is after
    if kind is Kind.HELLO:
        assert event == PeerGreeted(own_hello("dn1", CLUSTER), VERSION)
    elif kind is Kind.REPLY:
        assert isinstance(event, PeerAnswered)
        assert event.record == REPLY
    elif kind is Kind.ERROR:
        assert isinstance(event, PeerRefused)
        assert event.error == WRONG
    else:
        assert isinstance(event, Frame)
        assert bytes(event.payload) == PAYLOADS[kind]


@pytest.mark.parametrize("role", ConversationRole)
@pytest.mark.parametrize("state", ConversationState)
def test_the_connection_ends_in_each_state(role: ConversationRole, state: ConversationState) -> None:
    talk = conversation_in(role, state)
    if EXPECTED[role][state].get((CAME, W.GONE)) is S.FAILED:
        with pytest.raises(ConversationFailed, match=f"while {state.value}") as caught:
            talk.ended()
        assert caught.value.fault is ConversationFault.CUT_OFF
    elif state is S.FAILED and role is CLIENT:
        with pytest.raises(ConversationFailed):
            talk.ended()
    elif state is not S.FAILED:
        talk.ended()
        assert talk.state is (S.ENDED if state is S.OPEN else state)


def test_an_end_within_a_frame_is_none() -> None:
    talk = greeted(CLIENT)
    fed(talk, frame_of(Kind.REPLY)[:-1])
    assert talk.next_event() is None
    with pytest.raises(ConversationFailed) as caught:
        talk.ended()
    assert caught.value.fault is ConversationFault.CUT_OFF


def test_requests_are_answered_in_turn() -> None:
    talk = greeted(CLIENT)
    talk.request(ASK, sequence=1)
    talk.request(READ, sequence=2)
    talk.request(ASK, sequence=3)
    said = [(Kind.ERROR, 1), (Kind.DATA, 2), (Kind.DATA, 2), (Kind.END, 2), (Kind.REPLY, 3)]
    states = []
    for kind, sequence in said:
        heard(talk, frame_of(kind, sequence))
        states.append(talk.state)
    assert states == [S.ASKING, S.READING, S.READING, S.ASKING, S.OPEN]


@pytest.mark.parametrize(
    ("request_", "kind", "sequence"),
    [(ASK, Kind.REPLY, 8), (ASK, Kind.DATA, SEQUENCE), (ASK, Kind.END, SEQUENCE), (READ, Kind.REPLY, SEQUENCE), (READ, Kind.DATA, 6)],
)  # fmt: skip
def test_what_answers_no_request_is_out_of_place(request_: Any, kind: Kind, sequence: int) -> None:
    talk = greeted(CLIENT)
    talk.request(request_, sequence=SEQUENCE)
    with pytest.raises(ConversationFailed, match=f"{kind.name} {sequence} does not answer request 7") as caught:
        heard(talk, frame_of(kind, sequence))
    assert caught.value.fault is ConversationFault.OUT_OF_PLACE


def test_a_server_whose_stream_was_acknowledged_elsewhere_is_open() -> None:
    talk = server_in(S.STREAMING)
    talk.stream_is_over()
    assert talk.state is S.OPEN
    with pytest.raises(MisusedConversation):
        talk.stream_is_over()


# ------------------------------------------------------------------------------------------------ HELLO


def hello(peer: str = "dn1", cluster: str = CLUSTER, low: int = 1, high: int = 1) -> Hello:
    return Hello(peer=peer, cluster=cluster, min_version=low, max_version=high, max_payload_bytes=1)


@pytest.mark.parametrize(
    ("said", "cluster", "more", "fault"),
    [
        (hello(), CLUSTER, {}, None),
        (hello(cluster=""), CLUSTER, {}, None),
        (hello(), "", {}, None),
        (hello(), CLUSTER, {"datanode": "dn1", "cluster_needed": True}, None),
        (hello(cluster="d"), CLUSTER, {}, ConversationFault.WRONG_CLUSTER),
        (hello(cluster=""), CLUSTER, {"cluster_needed": True}, ConversationFault.WRONG_CLUSTER),
        (hello(low=VERSION + 1, high=VERSION + 2), CLUSTER, {}, ConversationFault.UNSUPPORTED_VERSION),
        (hello(), CLUSTER, {"datanode": "dn2"}, ConversationFault.OTHER_DATANODE),
    ],
)
def test_hello_is_judged(said: Hello, cluster: str, more: dict[str, Any], fault: ConversationFault | None) -> None:
    if fault is None:
        assert judge_hello(said, cluster, **more) == 1
        return
    with pytest.raises(ConversationFailed) as caught:
        judge_hello(said, cluster, **more)
    assert caught.value.fault is fault


@pytest.mark.parametrize("role", [CLIENT, SERVER])
@pytest.mark.parametrize(("own", "said"), [(0, 0), (7, 0), (0, 7), (7, 7), (7, 2**64 - 1)])
def test_a_peer_at_other_brokers_is_refused_though_its_cluster_has_the_same_name(
    role: ConversationRole, own: int, said: int
) -> None:
    talk = Conversation(role, own_hello("dn2", CLUSTER), brokers=own)
    assert decode_header(talk.hello()[:HEADER_BYTES]).offset == own
    other = Conversation(SERVER, own_hello("dn1", CLUSTER), brokers=said).hello()
    if said in (0, own) or not own:
        assert isinstance(heard(talk, other), PeerGreeted)
        return
    with pytest.raises(ConversationFailed, match="'dn1' is of cluster 'c' at other brokers") as caught:
        heard(talk, other)
    assert caught.value.fault is ConversationFault.WRONG_CLUSTER


@pytest.mark.parametrize("payload", [b"", b"\xc3\x01newerver" + b"x", encode(hello())[:12], encode(REPLY)])
def test_a_hello_that_cannot_be_read_ends_it(payload: bytes) -> None:
    talk = client_in(S.GREETING)
    with pytest.raises(ConversationFailed) as caught:
        heard(talk, encode_frame(Kind.HELLO, payload))
    assert caught.value.fault is ConversationFault.UNREADABLE
    assert talk.state is S.FAILED


# ------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("role", ConversationRole)
@pytest.mark.parametrize("kind", Kind)
def test_before_hello_nothing_but_hello_gets_room(role: ConversationRole, kind: Kind) -> None:
    for length in (MAX_HELLO_BYTES, MAX_HELLO_BYTES + 1):
        talk = conversation_in(role, S.GREETING)
        fed(talk, encode_header(kind, 0, 0, 0, length, 0))
        if length == MAX_HELLO_BYTES and kind in (Kind.HELLO, Kind.ERROR):
            assert talk.next_event() is None
            assert len(talk.space()) <= USUAL_BYTES
            continue
        with pytest.raises(ConversationFailed) as caught:
            talk.next_event()
        assert caught.value.fault is ConversationFault.BAD_FRAME


def fed_whole(talk: Conversation, data: bytes) -> Event | None:
    """Feed bytes as they fit, and return the first event."""
    while data:
        space = talk.space()
        size = min(len(space), len(data))
        space[:size] = data[:size]
        talk.received(size)
        data = data[size:]
        if (event := talk.next_event()) is not None:
            return event
    return None


def test_a_record_is_limited_by_its_type_and_the_conversation_goes_on() -> None:
    assert sorted(LARGE_REQUESTS) == ["Forwarded", "PutBlock", "TokenedRequest", "WriteBlocks", "WriteChunk"]
    assert sorted(LARGE_ANSWERS) == ["BlockInfo", "ContainerBlocks"]
    talk = client_in(S.ASKING)
    with pytest.raises(UnreadableRecord, match="a Accepted of"):
        fed_whole(talk, encode_frame(Kind.REPLY, encode(Accepted(detail="x" * MAX_RECORD_BYTES)), sequence=SEQUENCE))
    assert talk.state is S.OPEN
    talk.request(ASK, sequence=SEQUENCE)
    info = BlockInfo(
        container_id=1, local_id=2, length=1, bcs_id=1, bytes_per_checksum=1, checksums=bytes(MAX_RECORD_BYTES),
        deleted=False, stored_length=1,
    )  # fmt: skip
    event = fed_whole(talk, encode_frame(Kind.REPLY, encode(info), sequence=SEQUENCE))
    assert isinstance(event, PeerAnswered)
    assert event.record == info
    talk.shrink()
    assert len(talk.space()) == USUAL_BYTES


def test_an_error_that_cannot_be_read_is_an_answer_all_the_same() -> None:
    talk = client_in(S.ASKING)
    with pytest.raises(UnreadableRecord, match="payload of ERROR"):
        heard(talk, encode_frame(Kind.ERROR, b"no record", sequence=SEQUENCE))
    assert talk.state is S.OPEN


# ------------------------------------------------------------------------------------------------ any bytes

words = st.sampled_from(
    [encode_frame(kind, payload, sequence=sequence) for kind, payload in PAYLOADS.items() for sequence in (0, SEQUENCE)]
)
damaged = st.tuples(words, st.integers(0, 8 * HEADER_BYTES - 1)).map(
    lambda both: bytes(byte ^ (1 << both[1] % 8 if at == both[1] // 8 else 0) for at, byte in enumerate(both[0]))
)
anything = st.lists(words | damaged | st.binary(max_size=100), max_size=8).map(b"".join)


def outcome(role: ConversationRole, asks: Iterable[Any], data: bytes, cuts: list[int]) -> list[Any]:
    """Say HELLO and ask, feed bytes in pieces, and return what was heard; at the end the fault, if there was one."""
    talk = conversation_in(role, S.GREETING)
    found: list[Any] = []
    at, turn = 0, 0
    asked = role is SERVER
    try:
        while at < len(data):
            space = talk.space()
            size = min(cuts[turn % len(cuts)], len(space), len(data) - at)
            space[:size] = data[at : at + size]
            talk.received(size)
            at, turn = at + size, turn + 1
            while (event := read(talk)) is not None:
                found.append(event)
                if not asked and talk.state is S.OPEN:
                    asked = True
                    for request in asks:
                        talk.request(request, sequence=SEQUENCE)
            assert len(space) <= MAX_PAYLOAD_BYTES + USUAL_BYTES
            if talk.state is S.GREETING:
                assert len(space) <= USUAL_BYTES
        talk.ended()
    except ConversationFailed as error:
        found.append((error.fault, str(error)))
    found.append(talk.state)
    return found


def read(talk: Conversation) -> Any:
    try:
        event = talk.next_event()
    except UnreadableRecord as error:
        return str(error)
    return (event.header, bytes(event.payload)) if isinstance(event, Frame) else event


@given(
    st.sampled_from(ConversationRole),
    st.lists(st.sampled_from([ASK, READ]), max_size=3),
    anything | anything.map(lambda data: encode_frame(Kind.HELLO, PAYLOADS[Kind.HELLO]) + data),
    st.lists(st.integers(1, 90), min_size=1, max_size=5),
)
@settings(max_examples=300)
def test_any_bytes_give_the_same_however_they_are_cut(
    role: ConversationRole, asks: list[Any], data: bytes, cuts: list[int]
) -> None:
    assert outcome(role, asks, data, cuts) == outcome(role, asks, data, [len(data) + 1])
