"""The window of a block: offsets, limits, resumption, checksum cells; against a model that holds all bytes."""

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from producers.blocks.core.stream_window import SEND_BYTES, StreamWindow, WindowLimits
from schemas.records.packets import CELL_BYTES

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
            found.was_sent(packet)
        sent += packets
    return sent


def test_small_packets_are_sent_together_within_the_window():
    found = window(packet_bytes=4 * KIB, window_bytes=100 * KIB)
    found.write(memoryview(content(200 * KIB)), keep=True)
    assert [len(found.next_packets())] * 2 == [SEND_BYTES // (4 * KIB)] * 2, "asking changes nothing"
    assert sum(len(packet.data) for packet in send_all(found)) == 100 * KIB
    found.acknowledge(4 * KIB)
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
    found.acknowledge(64 * KIB)
    assert len(send_all(found)) == 1


def test_the_buffer_is_released_by_the_watch_alone():
    found = window(buffer_bytes=128 * KIB)
    assert found.write(memoryview(content(512 * KIB)), keep=True) == 128 * KIB
    send_all(found)
    found.acknowledge(128 * KIB)
    assert found.room() == 0
    assert found.due() == 128 * KIB
    found.ask(128 * KIB)
    assert found.due() is None
    found.commit(128 * KIB, 7)
    assert found.room() == 0
    found.watch(128 * KIB)
    assert found.room() == 128 * KIB
    assert (found.held_bytes, found.bcs_id, list(found.unwatched())) == (0, 7, [])


def test_a_commit_may_be_asked_for_again():
    found = window()
    found.write(memoryview(content(128 * KIB)), keep=True)
    send_all(found)
    found.acknowledge(128 * KIB)
    found.ask(128 * KIB)
    found.give_up_asking()
    assert found.due() == 128 * KIB


def test_what_cannot_be_is_refused():
    found = window()
    with pytest.raises(ValueError, match="5 bytes are acknowledged, but 0 were sent"):
        found.acknowledge(5)
    with pytest.raises(ValueError, match="5 bytes cannot be committed: 0 are acknowledged"):
        found.ask(5)
    with pytest.raises(ValueError, match="5 bytes are committed, but 0 were asked for"):
        found.commit(5, 1)
    with pytest.raises(ValueError, match="5 bytes were watched, but 0 are committed"):
        found.watch(5)
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
                self.window.was_sent(packet)

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share):
        known = self.window
        offset = known.acknowledged + int((known.sent - known.acknowledged) * share)
        known.acknowledge(offset)
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
        assert self.window.ask(length) == cells_of(bytes(self.data[:length]))
        if lost:
            self.window.give_up_asking()
        else:
            self.window.commit(length, self.window.bcs_id + 1)

    @rule()
    def watch(self):
        known = self.window
        known.watch(known.committed)
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
