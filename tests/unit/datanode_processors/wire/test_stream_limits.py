"""A stream's numbers at their limits, and what is told upwards of a child that fails."""

from __future__ import annotations

from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.stream import (
    MAX_BLOCK_BYTES,
    MAX_CELL_BYTES,
    MAX_WINDOW_BYTES,
    MIN_CELL_BYTES,
    StreamState,
    check_open,
    patience_s,
    place_in,
)
from schemas import stream_errors as codes
from schemas.records.datanode import StreamError
from schemas.records.packets import MAX_PACKET_BYTES, MAX_ROUTES, Kind
from tests.unit.datanode_processors.wire.test_stream import ROUTES, header, opened, opening, route

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
    state.data(header(Kind.DATA, 1, MAX_BLOCK_BYTES - 10, 10))
    assert state.received == MAX_BLOCK_BYTES
    with pytest.raises(BlockError, match="at most"):
        opened(MAX_BLOCK_BYTES - 10).data(header(Kind.DATA, 1, MAX_BLOCK_BYTES - 10, 11))


def test_end_may_have_the_next_number_and_no_other_offset() -> None:
    state = opened()
    state.data(header(Kind.DATA, 5, 0, 100))
    state.ended(header(Kind.END, 6, 100))
    assert state.end is not None
    assert state.end.sequence == 6


def test_a_stream_is_complete_when_each_child_has_acknowledged_the_end_itself() -> None:
    state = opened()
    state.data(header(Kind.DATA, 1, 0, 100))
    for child in ("a", "b"):
        assert state.outstanding(child)
        state.child_said(child, header(Kind.ACK, 1, 100))
        assert not state.outstanding(child)
    assert state.everyone == 0, "not stored here"
    state.stored()
    assert state.everyone == 100
    state.ended(header(Kind.END, 2, 100))
    state.flushed()
    for child in ("a", "b"):
        assert state.outstanding(child)
        state.child_said(child, header(Kind.ACK, 1, 100))
        assert state.outstanding(child), "that was of the packet"
        state.child_said(child, header(Kind.ACK, 2, 100))
    assert state.complete


def test_a_child_owes_an_acknowledgement_from_the_beginning() -> None:
    state = StreamState(opening(ROUTES), 4, place_in(ROUTES, "dn0"))
    assert state.outstanding("a")
    assert (state.sequence, state.received, state.acknowledged) == (4, 0, 0)
    state.child_said("a", header(Kind.ACK, 4, 0))
    assert not state.outstanding("a")
    assert not state.open


def failed(act: Any, *arguments: Any) -> BlockError:
    with pytest.raises(BlockError) as caught:
        act(*arguments)
    return caught.value


def test_what_a_child_did_wrong_is_told() -> None:
    state = opened()
    state.data(header(Kind.DATA, 1, 0, 100))
    error = failed(state.child_said, "a", header(Kind.ACK, 1, 101))
    assert error.message == "datanode a: acknowledged 101 after 0; it was sent 100"
    assert (error.code, error.hint, error.datanode) == (codes.DOWNSTREAM_FAILED, codes.BAD_FRAME, "a")
    error = failed(state.child_said, "a", header(Kind.DATA, 1, 50))
    assert error.message == "datanode a: sent DATA where ACK was expected"
    state.ended(header(Kind.END, 2, 100))
    error = failed(state.child_said, "b", header(Kind.ACK, 2, 60))
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
