"""The state of one stream: routing tables, and what may be acknowledged when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.stream import (
    MAX_BLOCK_BYTES,
    MAX_CELL_BYTES,
    MAX_WINDOW_BYTES,
    MIN_CELL_BYTES,
    Place,
    StreamState,
    check_open,
    patience_s,
    place_in,
)
from schemas import stream_errors
from schemas import stream_errors as codes
from schemas.records.datanode import OpenStream, Route, StreamError
from schemas.records.packets import MAX_PACKET_BYTES, MAX_ROUTES, FrameHeader, Kind


def route(name: str, *children: str) -> Route:
    return Route(datanode=name, address=f"{name}:1", children=list(children))


def opening(routes: list[Route], **changes: Any) -> OpenStream:
    fields: dict[str, Any] = {
        "container_id": 1, "local_id": 2, "partition": 3, "offset": 0, "bytes_per_checksum": 65536,
        "window_bytes": 10**6, "routes": routes,
    }  # fmt: skip
    return OpenStream(**{**fields, **changes})


def header(kind: Kind, sequence: int, offset: int, length: int = 0) -> FrameHeader:
    return FrameHeader(kind=kind, stream=1, sequence=sequence, offset=offset, length=length, crc=0)


@st.composite
def spanning_trees(draw: st.DrawFn) -> list[Route]:
    """Any tree of up to MAX_ROUTES datanodes, its routes behind the root in any order."""
    count = draw(st.integers(1, MAX_ROUTES))
    parents = [draw(st.integers(0, number - 1)) for number in range(1, count)]
    routes = [
        route(f"dn{number}", *(f"dn{child}" for child, parent in enumerate(parents, 1) if parent == number))
        for number in range(count)
    ]
    rest = routes[1:]
    draw(st.randoms()).shuffle(rest)
    return [routes[0], *rest]


@given(spanning_trees())
def test_everyone_finds_its_place_in_every_tree(routes: list[Route]) -> None:
    by_name = {one.datanode: one for one in routes}

    def depth_below(name: str) -> int:
        return max((1 + depth_below(child) for child in by_name[name].children), default=0)

    for one in routes:
        place = place_in(routes, one.datanode)
        assert place.is_root == (one is routes[0])
        assert [child.datanode for child in place.children] == one.children
        assert [child.address for child in place.children] == [f"{name}:1" for name in one.children]
        assert [child.height for child in place.children] == [depth_below(name) for name in one.children]


@given(spanning_trees(), st.data())
def test_one_wrong_edge_is_refused_by_everyone(routes: list[Route], data: st.DataObject) -> None:
    """A tree of n nodes has n - 1 edges: one more makes a cycle or a second parent, one less leaves somebody out."""
    changed = [route(one.datanode, *one.children) for one in routes]
    parent = data.draw(st.sampled_from(changed))
    more = [*(one.datanode for one in routes), "nobody"]
    edge: str = data.draw(st.sampled_from([*parent.children, *more]))
    if edge in parent.children and data.draw(st.integers(0, 1)):
        parent.children.remove(edge)
    else:
        parent.children.append(edge)
    for one in routes:
        with pytest.raises(BlockError) as caught:
            place_in(changed, one.datanode)
        assert caught.value.code == stream_errors.INVALID_REQUEST


@pytest.mark.parametrize(
    ("routes", "named"),
    [
        ([], "0 routes"),
        ([route(f"dn{number}", *([f"dn{number + 1}"] if number < 7 else [])) for number in range(8)], "8 routes"),
        ([route("a")], "not in the routes"),
        ([route("dn0"), route("dn0")], "twice"),
        ([route("dn0", "x")], "'x'"),
        ([route("dn0", "dn0")], "root dn0 has a parent"),
        ([route("dn0", "a", "a"), route("a")], "two parents"),
        ([route("dn0", "a"), route("a", "dn0")], "has a parent"),
        ([route("dn0"), route("a", "b"), route("b", "a")], "not reached"),
        ([route("dn0"), route("a")], "not reached"),
    ],
)
def test_what_is_no_spanning_tree_is_named(routes: list[Route], named: str) -> None:
    with pytest.raises(BlockError, match=named):
        place_in(routes, "dn0")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("window_bytes", 0), ("window_bytes", 2**40), ("bytes_per_checksum", 511),
        ("bytes_per_checksum", MAX_PACKET_BYTES + 1), ("offset", -1), ("offset", MAX_BLOCK_BYTES + 1),
        ("container_id", -1), ("local_id", -1),
    ],
)  # fmt: skip
def test_numbers_of_open_have_limits(field: str, wrong: int) -> None:
    check_open(opening([route("dn0")]))
    with pytest.raises(BlockError, match=f"{field} {wrong}"):
        check_open(opening([route("dn0")], **{field: wrong}))


def test_patience_grows_with_what_stands_below() -> None:
    waits = [patience_s(10, height) for height in range(MAX_ROUTES)]
    assert waits[0] == 10
    assert waits == sorted(set(waits))


# ------------------------------------------------------------------------------------------------- StreamState

ROUTES = [route("dn0", "a", "b"), route("a"), route("b")]


def opened(offset: int = 0) -> StreamState:
    state = StreamState(opening(ROUTES, offset=offset), 0, place_in(ROUTES, "dn0"))
    for child in ("a", "b"):
        assert not state.is_open
        state.on_child_ack(child, header(Kind.ACK, 0, offset))
    assert state.is_open
    return state


def test_a_leaf_is_open_at_once_and_acknowledges_what_it_has() -> None:
    state = StreamState(opening([route("dn0")], offset=50), 0, Place(is_root=True, children=()))
    assert state.is_open
    assert state.everyone == 50
    state.on_data(header(Kind.DATA, 1, 50, 10))
    assert state.everyone == 50, "received is not stored"
    state.on_stored()
    assert state.everyone == 60
    state.on_end(header(Kind.END, 2, 60))
    assert not state.is_complete
    state.on_flushed()
    assert state.is_complete


@given(st.lists(st.integers(1, 5000), max_size=20), st.randoms())
def test_what_is_acknowledged_is_the_least_and_never_falls(lengths: list[int], chance: random.Random) -> None:
    state = opened()
    had = {"a": 0, "b": 0}
    before = 0
    for sequence, length in enumerate(lengths, 1):
        state.on_data(header(Kind.DATA, sequence, state.received, length))
        state.on_stored()
        for child in ("a", "b"):
            if chance.random() < 0.7:
                had[child] = chance.randint(had[child], state.received)
                state.on_child_ack(child, header(Kind.ACK, sequence, had[child]))
        assert state.everyone == min(state.received, *had.values())
        assert state.everyone >= before
        before = state.everyone
    state.on_end(header(Kind.END, 99, state.received))
    state.on_flushed()
    for child in had:
        assert not state.is_complete
        assert state.is_outstanding(child)
        state.on_child_ack(child, header(Kind.ACK, 99, state.received))
        assert not state.is_outstanding(child)
    assert state.is_complete
    assert state.everyone == state.received


@pytest.mark.parametrize(
    "wrong",
    [
        header(Kind.DATA, 2, 99, 10), header(Kind.DATA, 2, 101, 10), header(Kind.DATA, 1, 100, 10),
        header(Kind.DATA, 2, 100, 0), header(Kind.END, 2, 99), header(Kind.END, 2, 101), header(Kind.END, 1, 100),
    ],
    ids=str,
)  # fmt: skip
def test_frames_that_do_not_follow_are_refused_and_change_nothing(wrong: FrameHeader) -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 1, 0, 100))
    take = state.on_end if wrong.kind is Kind.END else state.on_data
    with pytest.raises(BlockError) as caught:
        take(wrong)
    assert caught.value.code == stream_errors.OUT_OF_ORDER
    assert (state.received, state.sequence, state.end) == (100, 1, None)
    state.on_data(header(Kind.DATA, 2, 100, 10))


def test_nothing_follows_end_and_a_block_has_an_end() -> None:
    state = opened()
    state.on_end(header(Kind.END, 1, 0))
    for late in (header(Kind.DATA, 2, 0, 1), header(Kind.END, 2, 0)):
        with pytest.raises(BlockError, match="after END"):
            state.on_data(late)
    far = opened(MAX_BLOCK_BYTES)
    with pytest.raises(BlockError, match="at most"):
        far.on_data(header(Kind.DATA, 1, MAX_BLOCK_BYTES, 1))


def test_the_window_is_held() -> None:
    state = StreamState(opening(ROUTES, window_bytes=1000), 0, place_in(ROUTES, "dn0"))
    state.on_data(header(Kind.DATA, 1, 0, MAX_PACKET_BYTES))
    with pytest.raises(BlockError, match="window"):
        state.on_data(header(Kind.DATA, 2, MAX_PACKET_BYTES, 1001))
    state.on_data(header(Kind.DATA, 2, MAX_PACKET_BYTES, 1000))
    state.acknowledged = 1000
    state.on_data(header(Kind.DATA, 3, MAX_PACKET_BYTES + 1000, 1000))


@pytest.mark.parametrize(
    "wrong",
    [header(Kind.DATA, 0, 0, 1), header(Kind.ACK, 1, 101), header(Kind.ACK, 1, 49), header(Kind.REPLY, 1, 50)],
    ids=str,
)
def test_a_child_that_acknowledges_nonsense_has_failed(wrong: FrameHeader) -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 1, 0, 100))
    state.on_stored()
    state.on_child_ack("a", header(Kind.ACK, 1, 50))
    with pytest.raises(BlockError) as caught:
        state.on_child_ack("a", wrong)
    assert (caught.value.code, caught.value.datanode) == (stream_errors.DOWNSTREAM_FAILED, "a")
    assert state.everyone == 0, "b has nothing yet"


def test_open_and_end_are_acknowledged_at_their_offsets() -> None:
    state = StreamState(opening(ROUTES, offset=7), 3, place_in(ROUTES, "dn0"))
    for wrong in (header(Kind.ACK, 3, 8), header(Kind.ACK, 4, 7)):
        with pytest.raises(BlockError):
            state.on_child_ack("a", wrong)
    ended = opened()
    ended.on_data(header(Kind.DATA, 1, 0, 100))
    ended.on_end(header(Kind.END, 2, 100))
    with pytest.raises(BlockError):
        ended.on_child_ack("a", header(Kind.ACK, 2, 60))


@pytest.mark.parametrize(
    ("code", "datanode", "told", "named"),
    [
        (stream_errors.DISK_FULL, "a", stream_errors.DOWNSTREAM_FAILED, "a"),
        (stream_errors.BAD_FRAME, "", stream_errors.DOWNSTREAM_FAILED, "a"),
        (stream_errors.DOWNSTREAM_FAILED, "far", stream_errors.DOWNSTREAM_FAILED, "far"),
        (stream_errors.CONTAINER_CLOSED, "far", stream_errors.CONTAINER_CLOSED, "far"),
        (stream_errors.BLOCK_DELETED, "a", stream_errors.BLOCK_DELETED, "a"),
    ],
)
def test_a_childs_error_goes_up_with_the_name_and_what_everyone_has(
    code: str, datanode: str, told: str, named: str
) -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 1, 0, 100))
    state.on_stored()
    state.on_child_ack("a", header(Kind.ACK, 1, 60))
    state.on_child_ack("b", header(Kind.ACK, 1, 80))
    error = state.child_refused("a", StreamError(code=code, message="why", datanode=datanode, offset=90, hint="h"))
    assert (error.code, error.datanode, error.offset) == (told, named, 60)
    assert "why" in error.message


# -- A stream's numbers at their limits, and what is told upwards of a child that fails

LAST_ID = 2**63 - 1


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("window_bytes", 1, MAX_WINDOW_BYTES), ("bytes_per_checksum", MIN_CELL_BYTES, MAX_CELL_BYTES),
        ("offset", 0, MAX_BLOCK_BYTES), ("container_id", 0, LAST_ID), ("local_id", 0, LAST_ID),
    ],
)  # fmt: skip
def test_an_open_takes_the_least_and_the_most_and_nothing_beyond(field: str, least: int, most: int) -> None:
    for value in (least, most):
        check_open(opening([route("dn0")], **{field: value}))
    for value in (least - 1, most + 1):
        with pytest.raises(BlockError, match=f"{field} {value} of OPEN is not in {least} to {most}") as caught:
            check_open(opening([route("dn0")], **{field: value}))
        assert caught.value.code == codes.INVALID_REQUEST


def test_limits_are_as_they_are_on_the_wire() -> None:
    assert (MAX_WINDOW_BYTES, MIN_CELL_BYTES, MAX_CELL_BYTES) == (256 * 1024 * 1024, 512, MAX_PACKET_BYTES)
    assert MAX_BLOCK_BYTES == 1 << 40


def test_a_tree_may_have_as_many_routes_as_there_may_be() -> None:
    chain = [route(f"dn{number}", f"dn{number + 1}") for number in range(MAX_ROUTES - 1)]
    place = place_in([*chain, route(f"dn{MAX_ROUTES - 1}")], "dn0")
    assert place.children[0].height == MAX_ROUTES - 2
    with pytest.raises(BlockError, match="not reached from the root dn0: a, b"):
        place_in([route("dn0"), route("b", "a"), route("a")], "dn0")


def test_each_level_below_is_half_a_time_out_more() -> None:
    assert [patience_s(10, height) for height in range(3)] == [10, 15, 20]


def test_a_packet_may_end_at_the_end_of_the_block_and_not_beyond() -> None:
    state = opened(MAX_BLOCK_BYTES - 10)
    state.on_data(header(Kind.DATA, 1, MAX_BLOCK_BYTES - 10, 10))
    assert state.received == MAX_BLOCK_BYTES
    with pytest.raises(BlockError, match="at most"):
        opened(MAX_BLOCK_BYTES - 10).on_data(header(Kind.DATA, 1, MAX_BLOCK_BYTES - 10, 11))


def test_end_may_have_the_next_number_and_no_other_offset() -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 5, 0, 100))
    state.on_end(header(Kind.END, 6, 100))
    assert state.end is not None
    assert state.end.sequence == 6


def test_a_stream_is_complete_when_each_child_has_acknowledged_the_end_itself() -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 1, 0, 100))
    for child in ("a", "b"):
        assert state.is_outstanding(child)
        state.on_child_ack(child, header(Kind.ACK, 1, 100))
        assert not state.is_outstanding(child)
    assert state.everyone == 0, "not stored here"
    state.on_stored()
    assert state.everyone == 100
    state.on_end(header(Kind.END, 2, 100))
    state.on_flushed()
    for child in ("a", "b"):
        assert state.is_outstanding(child)
        state.on_child_ack(child, header(Kind.ACK, 1, 100))
        assert state.is_outstanding(child), "that was of the packet"
        state.on_child_ack(child, header(Kind.ACK, 2, 100))
    assert state.is_complete


def test_a_child_owes_an_acknowledgement_from_the_beginning() -> None:
    state = StreamState(opening(ROUTES), 4, place_in(ROUTES, "dn0"))
    assert state.is_outstanding("a")
    assert (state.sequence, state.received, state.acknowledged) == (4, 0, 0)
    state.on_child_ack("a", header(Kind.ACK, 4, 0))
    assert not state.is_outstanding("a")
    assert not state.is_open


def failed(act: Any, *arguments: Any) -> BlockError:
    with pytest.raises(BlockError) as caught:
        act(*arguments)
    return caught.value


def test_what_a_child_did_wrong_is_told() -> None:
    state = opened()
    state.on_data(header(Kind.DATA, 1, 0, 100))
    error = failed(state.on_child_ack, "a", header(Kind.ACK, 1, 101))
    assert error.message == "datanode a: acknowledged 101 after 0; it was sent 100"
    assert (error.code, error.hint, error.datanode) == (codes.DOWNSTREAM_FAILED, codes.BAD_FRAME, "a")
    error = failed(state.on_child_ack, "a", header(Kind.DATA, 1, 50))
    assert error.message == "datanode a: sent DATA where ACK was expected"
    state.on_end(header(Kind.END, 2, 100))
    error = failed(state.on_child_ack, "b", header(Kind.ACK, 2, 60))
    assert error.message == "datanode b: acknowledged END at 60, not 100"


@pytest.mark.parametrize(
    ("code", "told", "hint", "message"),
    [
        (codes.INVALID_REQUEST, codes.INVALID_REQUEST, "h", "why"),
        (codes.PIPELINE_CLOSED, codes.PIPELINE_CLOSED, "h", "why"),
        (codes.DOWNSTREAM_FAILED, codes.DOWNSTREAM_FAILED, "h", "why"),
        (codes.DISK_FULL, codes.DOWNSTREAM_FAILED, codes.DISK_FULL, f"datanode a: {codes.DISK_FULL}: why"),
    ],
)
def test_an_error_from_below_is_handed_up_with_its_hint(code: str, told: str, hint: str, message: str) -> None:
    error = opened().child_refused("a", StreamError(code=code, message="why", datanode="", offset=9, hint="h"))
    assert (error.code, error.hint, error.message, error.datanode) == (told, hint, message, "a")
