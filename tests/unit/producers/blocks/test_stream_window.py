"""The window of a block: offsets, limits, resumption, checksum cells; against a model that holds all bytes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from producers.blocks.core import stream_window
from producers.blocks.core.stream_window import (
    MAX_HELD_PACKETS,
    MIN_PACKET_BYTES,
    SEND_BYTES,
    SEND_PACKETS,
    StreamWindow,
    WindowLimits,
)
from schemas.records.packets import CELL_BYTES, MAX_PACKET_BYTES, PACKET_BYTES

KIB = 1024


def window(**limits):
    given = {"block_bytes": 1024 * KIB, "packet_bytes": 64 * KIB, "window_bytes": 256 * KIB, "flush_bytes": 128 * KIB,
             "buffer_bytes": 512 * KIB}  # fmt: skip
    return StreamWindow(WindowLimits(**{**given, **limits}))


def content(length, seed=0):
    return bytes((n * 7 + (n >> 8) * 13 + seed) & 255 for n in range(length))


def cells_of(data):
    return b"".join(
        crc32c(data[start : start + CELL_BYTES]).to_bytes(4, "big") for start in range(0, len(data), CELL_BYTES)
    )


def send_all(found):
    sent = []
    while packets := found.next_packets():
        assert len(packets) == 1 or sum(len(packet.data) for packet in packets) <= SEND_BYTES
        for packet in packets:
            found.on_sent(packet)
        sent += packets
    return sent


def test_small_packets_are_sent_together_within_the_window():
    found = window(packet_bytes=4 * KIB, window_bytes=100 * KIB)
    found.write(memoryview(content(200 * KIB)), keep=True)
    assert [len(found.next_packets())] * 2 == [SEND_BYTES // (4 * KIB)] * 2, "asking changes nothing"
    assert sum(len(packet.data) for packet in send_all(found)) == 100 * KIB
    found.on_acknowledged(4 * KIB)
    assert [packet.offset for packet in found.next_packets()] == [100 * KIB]


@given(
    sizes=st.lists(st.integers(1, 150 * KIB), max_size=8),
    packet_kib=st.sampled_from([4, 16, 64, 128, 256]),
    keep=st.booleans(),
    seals=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_writes_become_the_same_bytes_and_cells(sizes, packet_kib, keep, seals):
    data = content(sum(sizes))
    found = window(packet_bytes=packet_kib * KIB, window_bytes=2048 * KIB, flush_bytes=256 * KIB, buffer_bytes=2048 * KIB,
                   block_bytes=2048 * KIB)  # fmt: skip
    done = 0
    for size in sizes:
        assert found.write(memoryview(data)[done : done + size], keep=keep) == size
        done += size
        if seals:
            found.seal()
    found.seal()
    sent = send_all(found)
    assert b"".join(bytes(packet.data) for packet in sent) == data
    assert all(packet.crc == crc32c(packet.data) for packet in sent)
    assert found.checksums(len(data)) == cells_of(data)
    for packet in sent:
        assert found.checksums(packet.end) == cells_of(data[: packet.end])


def test_what_may_change_is_copied():
    data = bytearray(content(64 * KIB))
    found = window()
    found.write(memoryview(data), keep=False)
    data[0] ^= 255
    assert bytes(send_all(found)[0].data) == content(64 * KIB)


def test_after_a_flush_packets_return_to_their_grid():
    found = window()
    found.write(memoryview(content(10)), keep=True)
    found.seal()
    found.write(memoryview(content(200 * KIB)), keep=True)
    assert [packet.end for packet in send_all(found)] == [10, 64 * KIB, 128 * KIB, 192 * KIB]


def test_the_window_bounds_what_is_on_its_way():
    found = window(window_bytes=128 * KIB)
    found.write(memoryview(content(512 * KIB)), keep=True)
    assert len(send_all(found)) == 2
    assert found.packed > found.sent
    assert found.next_packet() is None
    found.on_acknowledged(64 * KIB)
    assert len(send_all(found)) == 1


def test_the_buffer_is_released_by_the_watch_alone():
    found = window(buffer_bytes=128 * KIB)
    assert found.write(memoryview(content(512 * KIB)), keep=True) == 128 * KIB
    send_all(found)
    found.on_acknowledged(128 * KIB)
    assert found.room() == 0
    assert found.due() == 128 * KIB
    found.begin_commit(128 * KIB)
    assert found.due() is None
    found.on_committed(128 * KIB, 7)
    assert found.room() == 0
    found.on_watched(128 * KIB)
    assert found.room() == 128 * KIB
    assert (found.held_bytes, found.bcs_id, list(found.unwatched())) == (0, 7, [])


def test_a_commit_may_be_asked_for_again():
    found = window()
    found.write(memoryview(content(128 * KIB)), keep=True)
    send_all(found)
    found.on_acknowledged(128 * KIB)
    found.begin_commit(128 * KIB)
    found.on_commit_failed()
    assert found.due() == 128 * KIB


def test_what_cannot_be_is_refused():
    found = window()
    with pytest.raises(ValueError, match="5 bytes are acknowledged, but 0 were sent"):
        found.on_acknowledged(5)
    with pytest.raises(ValueError, match="5 bytes cannot be committed: 0 are acknowledged"):
        found.begin_commit(5)
    with pytest.raises(ValueError, match="5 bytes are committed, but 0 were asked for"):
        found.on_committed(5, 1)
    with pytest.raises(ValueError, match="5 bytes were watched, but 0 are committed"):
        found.on_watched(5)
    with pytest.raises(ValueError, match="no packet ended at 5"):
        found.checksums(5)
    with pytest.raises(ValueError, match="65536 bytes are not packed"):
        found.checksums(65536)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"block_bytes": 0}, "block_bytes must be at least 1"),
        ({"packet_bytes": 0}, "packet_bytes must be 4096 to"),
        ({"packet_bytes": 5 * KIB}, "packet_bytes must be 4096 to"),
        ({"packet_bytes": 96 * KIB}, "packet_bytes must be 4096 to"),
        ({"packet_bytes": 8192 * KIB}, "packet_bytes must be 4096 to"),
        ({"window_bytes": 1}, "window_bytes must be at least packet_bytes"),
        ({"flush_bytes": 65 * KIB}, "flush_bytes must be a multiple of packet_bytes"),
        ({"buffer_bytes": 64 * KIB}, "a writer would wait for ever"),
    ],
)
def test_limits_name_what_is_out_of_range(limits, message):
    with pytest.raises(ValueError, match=message):
        window(**limits)


class Windows(RuleBasedStateMachine):
    """Random writers, datanodes, commits and failures; the model is the bytes themselves."""

    @initialize(packet=st.sampled_from([4, 16, 64, 128]), window_packets=st.integers(1, 6))
    def begin(self, packet, window_packets):
        self.window = window(
            packet_bytes=packet * KIB, window_bytes=window_packets * packet * KIB, block_bytes=700 * KIB + 13
        )
        self.data = bytearray()
        self.stored = bytearray()
        self.released = 0

    @rule(size=st.integers(1, 200 * KIB), seed=st.integers(0, 255), keep=st.booleans())
    def write(self, size, seed, keep):
        part = content(size, seed)
        room = self.window.room()
        taken = self.window.write(memoryview(part), keep=keep)
        assert taken == min(room, size)
        self.data += part[:taken]

    @rule()
    def seal(self):
        self.window.seal()
        assert self.window.packed == self.window.written

    @rule(count=st.integers(1, 5))
    def send(self, count):
        for _ in range(count):
            for packet in self.window.next_packets():
                # A datanode overwrites what it has by the same bytes.
                assert packet.offset <= len(self.stored)
                self.stored[packet.offset : packet.end] = packet.data
                self.window.on_sent(packet)

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share):
        known = self.window
        offset = known.acknowledged + int((known.sent - known.acknowledged) * share)
        known.on_acknowledged(offset)
        assert known.acknowledged <= max(offset, known.acknowledged)

    @rule()
    def fail(self):
        assert self.window.resume() == self.window.acknowledged

    @precondition(lambda self: self.window.due() is not None)
    @rule(lost=st.booleans())
    def commit_what_is_due(self, lost):
        self.commit(self.window.due(), lost)

    @precondition(lambda self: self.window.asked == self.window.watched)
    @rule(lost=st.booleans())
    def hsync(self, lost):
        self.commit(self.window.acknowledged, lost)

    def commit(self, length, lost):
        assert self.window.begin_commit(length) == cells_of(bytes(self.data[:length]))
        if lost:
            self.window.on_commit_failed()
        else:
            self.window.on_committed(length, self.window.bcs_id + 1)

    @rule()
    def watch(self):
        known = self.window
        known.on_watched(known.committed)
        self.released = known.committed

    @invariant()
    def offsets_are_in_order(self):
        w = self.window
        offsets = [w.written, w.packed, w.sent, w.acknowledged, w.asked, w.committed, w.watched]
        assert offsets == sorted(offsets, reverse=True)

    @invariant()
    def limits_hold(self):
        w, limits = self.window, self.window.limits
        assert w.sent - w.acknowledged <= max(limits.window_bytes, limits.packet_bytes)
        assert w.held_bytes <= limits.buffer_bytes
        assert w.written <= limits.block_bytes

    @invariant()
    def nothing_is_lost(self):
        w = self.window
        assert b"".join(w.unwatched()) == bytes(self.data[w.watched :])
        assert self.stored[: w.acknowledged] == self.data[: w.acknowledged]


Windows.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindows = Windows.TestCase


# -- A block's window at its limits: when it is full, what is sent together, and when a commit is due


def filled(length: int, **limits: int):
    """A window with so many bytes written, sent and acknowledged."""
    found = window(**limits)
    assert found.write(memoryview(content(length)), keep=True) == length
    found.seal()
    while send_all(found):
        found.on_acknowledged(found.sent)
    assert found.acknowledged == length
    return found


def committed(found, length: int, bcs_id: int) -> None:
    found.begin_commit(length)
    found.on_committed(length, bcs_id)


@pytest.mark.parametrize(
    "limits",
    [
        {"block_bytes": 1}, {"packet_bytes": MIN_PACKET_BYTES}, {"packet_bytes": CELL_BYTES // 2},
        {"packet_bytes": MAX_PACKET_BYTES, "window_bytes": MAX_PACKET_BYTES, "flush_bytes": MAX_PACKET_BYTES,
         "buffer_bytes": MAX_PACKET_BYTES},
        {"packet_bytes": 2 * CELL_BYTES, "window_bytes": 2 * CELL_BYTES, "flush_bytes": 2 * CELL_BYTES},
        {"buffer_bytes": 128 * KIB}, {"flush_bytes": 64 * KIB},
    ],
    ids=str,
)  # fmt: skip
def test_limits_just_in_range_are_taken(limits):
    assert window(**limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"packet_bytes": -4 * KIB}, "packet_bytes must be"), ({"packet_bytes": 2 * KIB}, "packet_bytes must be"),
        ({"window_bytes": 64 * KIB - 1}, "window_bytes must be at least"), ({"flush_bytes": 0}, "flush_bytes must be"),
        ({"buffer_bytes": 128 * KIB - 1}, "a writer would wait for ever"),
    ],
    ids=str,
)  # fmt: skip
def test_limits_just_out_of_range_are_named(limits, message):
    with pytest.raises(ValueError, match=message):
        window(**limits)


def test_what_a_block_is_written_with_if_nothing_is_said():
    limits = WindowLimits(block_bytes=1)
    assert limits.packet_bytes == PACKET_BYTES
    assert (limits.window_bytes, limits.flush_bytes, limits.buffer_bytes) == (8 << 20, 64 << 20, 256 << 20)


def test_whole_packets_of_any_size_are_bounded_by_their_bytes_and_not_by_their_number():
    limits = WindowLimits(block_bytes=1)
    assert limits.buffer_bytes <= MAX_HELD_PACKETS * MIN_PACKET_BYTES


def test_a_block_is_full_at_its_length_and_takes_no_more():
    found = window(block_bytes=100)
    assert not found.full
    assert found.write(memoryview(content(99)), keep=True) == 99
    assert (found.full, found.room()) == (False, 1)
    assert found.write(memoryview(content(5)), keep=True) == 1
    assert (found.full, found.room()) == (True, 0)
    assert found.packed == 100, "the last packet of a block is whole, however short"
    assert found.write(memoryview(b"x"), keep=True) == 0


def test_a_packet_is_whole_when_its_last_byte_comes_and_is_then_not_waited_for():
    found = window()
    found.write(memoryview(content(64 * KIB - 1)), keep=True)
    assert (found.packed, found.written) == (0, 64 * KIB - 1)
    assert found.next_packet() is None
    found.write(memoryview(content(1)), keep=True)
    packet = found.next_packet()
    assert packet is not None
    assert (packet.offset, packet.end, found.packed) == (0, 64 * KIB, 64 * KIB)
    found.seal()
    assert len(found._held) == 1, "nothing is left over: no empty packet"


def test_packets_are_sent_together_up_to_a_size_and_a_number():
    assert (SEND_BYTES, SEND_PACKETS) == (64 * KIB, 64)
    found = window(packet_bytes=4 * KIB)
    for _ in range(100):
        found.write(memoryview(b"x"), keep=True)
        found.seal()
    assert len(found.next_packets()) == SEND_PACKETS
    whole = window(packet_bytes=4 * KIB)
    whole.write(memoryview(content(80 * KIB)), keep=True)
    assert whole.next_packets()[-1].end == SEND_BYTES
    large = window(packet_bytes=128 * KIB)
    large.write(memoryview(content(256 * KIB)), keep=True)
    assert [packet.end for packet in large.next_packets()] == [128 * KIB], "one goes, whatever its size"


def test_a_packet_that_ends_at_the_windows_edge_is_sent_and_one_goes_in_any_case():
    found = window(window_bytes=128 * KIB)
    found.write(memoryview(content(256 * KIB)), keep=True)
    assert [packet.end for packet in send_all(found)] == [64 * KIB, 128 * KIB]
    short = window(window_bytes=64 * KIB)
    short.write(memoryview(content(1)), keep=True)
    short.seal()
    short.write(memoryview(content(128 * KIB)), keep=True)
    assert [packet.end for packet in send_all(short)] == [1, 64 * KIB]


def test_a_packet_is_sent_in_its_turn():
    found = window()
    found.write(memoryview(content(128 * KIB)), keep=True)
    with pytest.raises(ValueError, match="a packet at 65536 was sent where 0 follows"):
        found.on_sent(found._held[1])
    assert found.sent == 0


def test_an_acknowledgement_between_packets_counts_up_to_the_one_before():
    found = window()
    found.write(memoryview(content(192 * KIB)), keep=True)
    send_all(found)
    found.on_acknowledged(128 * KIB + 5)
    assert found.acknowledged == 128 * KIB
    found.on_acknowledged(64 * KIB)
    assert found.acknowledged == 128 * KIB, "an older one takes nothing back"
    found.on_acknowledged(192 * KIB)
    assert found.acknowledged == 192 * KIB


def test_a_stream_is_resumed_at_what_is_acknowledged():
    found = window()
    found.write(memoryview(content(192 * KIB)), keep=True)
    send_all(found)
    found.on_acknowledged(64 * KIB)
    assert found.resume() == 64 * KIB
    assert [packet.offset for packet in send_all(found)] == [64 * KIB, 128 * KIB]


def test_a_commit_is_due_at_each_multiple_and_one_at_a_time():
    found = window()
    found.write(memoryview(content(320 * KIB)), keep=True)
    due = []
    for _ in range(5):
        found.on_sent(found.next_packet())
        found.on_acknowledged(found.sent)
        due.append(found.due())
    assert due == [None, 128 * KIB, 128 * KIB, 256 * KIB, 256 * KIB]
    committed(found, 128 * KIB, 3)
    assert found.due() is None, "the first is not watched"
    found.on_watched(128 * KIB)
    assert found.due() == 256 * KIB
    committed(found, 256 * KIB, 4)
    found.on_watched(256 * KIB)
    assert found.due() is None


def test_the_end_of_a_block_is_committed_when_it_is_closed():
    found = filled(128 * KIB, block_bytes=128 * KIB)
    assert found.due() is None


def test_many_short_packets_are_committed_early_and_wait_for_that(monkeypatch):
    monkeypatch.setattr(stream_window, "MAX_HELD_PACKETS", 3)
    found = window()
    for count in range(3):
        assert found.room() > 0, count
        found.write(memoryview(content(10)), keep=True)
        found.seal()
    assert found.room() == 0
    send_all(found)
    found.on_acknowledged(20)
    assert found.due() == 20
    committed(found, 20, 1)
    found.on_watched(20)
    assert found.room() > 0
    assert found.due() is None
    assert found.begin_commit(20) == cells_of((content(10) * 3)[:20])


def test_what_is_asked_for_lies_between_what_was_and_what_is_acknowledged():
    found = filled(192 * KIB)
    found.begin_commit(64 * KIB)
    assert found.begin_commit(64 * KIB) == cells_of(content(64 * KIB))
    with pytest.raises(
        ValueError, match="65535 bytes cannot be committed: 196608 are acknowledged, 65536 were asked for"
    ):
        found.begin_commit(64 * KIB - 1)
    with pytest.raises(ValueError, match="cannot be committed"):
        found.begin_commit(192 * KIB + 1)
    assert found.asked == 64 * KIB


def test_the_entry_that_committed_most_counts_and_of_two_of_one_length_the_later():
    found = filled(192 * KIB)
    found.begin_commit(192 * KIB)
    found.on_committed(128 * KIB, 7)
    found.on_committed(64 * KIB, 9)
    assert (found.committed, found.bcs_id) == (128 * KIB, 7)
    found.on_committed(128 * KIB, 6)
    assert found.bcs_id == 7
    found.on_committed(128 * KIB, 8)
    assert found.bcs_id == 8
    found.on_commit_failed()
    assert found.asked == 128 * KIB


def test_a_watch_releases_whole_packets_and_remembers_by_which_entry():
    found = filled(200 * KIB)
    committed(found, 128 * KIB, 5)
    found.on_watched(100 * KIB)
    assert (found.watched, found.watched_bcs_id, found.held_bytes) == (100 * KIB, 5, 100 * KIB)
    assert b"".join(found.unwatched()) == content(200 * KIB)[100 * KIB :]
    found.on_watched(64 * KIB)
    assert found.watched == 100 * KIB
    found.on_committed(128 * KIB, 6)
    found.on_watched(100 * KIB)
    assert found.watched_bcs_id == 6
    found.on_watched(128 * KIB)
    assert [packet.offset for packet in found._held] == [128 * KIB, 192 * KIB]
    assert sorted(found._tails) == [128 * KIB, 192 * KIB, 200 * KIB]
    assert found.next_packet() is None
    found.write(memoryview(b"abc"), keep=True)
    assert bytes(b"".join(found.unwatched()))[-3:] == b"abc"


def test_an_empty_block_is_watched_by_its_entry():
    found = window()
    found.on_watched(0)
    assert found.watched_bcs_id == 0
    committed(found, 0, 4)
    found.on_watched(0)
    assert found.watched_bcs_id == 4


@pytest.mark.parametrize("first", [1, 10, CELL_BYTES - 1])
def test_a_packet_of_a_cells_size_that_lies_across_two_cells_is_in_both_checksums(first):
    found = window(packet_bytes=2 * CELL_BYTES)
    data = content(CELL_BYTES + first)
    for part in (data[:first], data[first:]):
        found.write(memoryview(part), keep=True)
        found.seal()
    assert [len(packet.data) for packet in found._held] == [first, CELL_BYTES]
    assert found.checksums(len(data)) == cells_of(data)
