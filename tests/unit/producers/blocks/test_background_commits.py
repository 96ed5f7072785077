"""The commits of one block on its own thread; who commits is played, and takes as long as the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from producers.blocks import background_commits as module
from producers.blocks.background_commits import BackgroundCommits, BlockFailed
from producers.blocks.core.stream_window import StreamWindow, WindowLimits
from producers.blocks.stream_options import CommitWay, StreamOptions
from producers.errors import DatanodeError
from schemas.records.datanode import BlockCommitted
from schemas.stream_errors import FAILED, TIMED_OUT
from tests.support.local.waiting import eventually
from transport.waiting.deadline import Deadline

PACKET = 4096
WAIT_S = 30.0


class Played:
    """Commits at once, or when ``go`` is set; ``failing`` is raised instead."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, dict[str, Any]]] = []
        self.failing: BaseException | None = None
        self.go = threading.Event()
        self.go.set()

    def _answer(self, kind: str, length: int, given: dict[str, Any]) -> BlockCommitted:
        self.asked.append((kind, length, given))
        assert self.go.wait(WAIT_S)
        if self.failing is not None:
            raise self.failing
        return BlockCommitted(container_id=1, local_id=1, length=length, bcs_id=7, log_offset=7)

    def put(self, length: int, checksums: bytes, deadline: Deadline, *, wait_effective: bool) -> BlockCommitted:
        return self._answer("put", length, {"wait_effective": wait_effective})

    def make_durable(self, length: int, checksums: bytes, **given: Any) -> BlockCommitted:
        return self._answer("make_durable", length, given)


class World:
    """A block of sixteen packets, of which ``acknowledged`` are with the datanodes; two are a flush."""

    def __init__(self, acknowledged: int, **options: Any) -> None:
        limits = WindowLimits(
            block_bytes=16 * PACKET, packet_bytes=PACKET, window_bytes=16 * PACKET, flush_bytes=2 * PACKET,
            buffer_bytes=16 * PACKET,
        )  # fmt: skip
        self.window = StreamWindow(limits)
        self.played = Played()
        self.waits: list[object] = []
        self.still: Callable[[object], None] = self.waits.append
        committer: Any = self.played
        self.commits = BackgroundCommits(
            self.window, threading.Lock(), committer, StreamOptions(**options), block="1/1", pipeline="pipeline-1",
            still=self._still,
        )  # fmt: skip
        self.acknowledge(acknowledged)

    def _still(self, why: object) -> None:
        self.still(why)

    def acknowledge(self, count: int) -> None:
        self.window.write(memoryview(bytes(count * PACKET)), keep=True)
        while packets := self.window.next_packets():
            for packet in packets:
                self.window.on_sent(packet)
        self.window.on_acknowledged(self.window.sent)

    def asked(self) -> list[tuple[str, int]]:
        return [(kind, length // PACKET) for kind, length, _ in self.played.asked]


Make = Callable[..., World]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[World] = []

    def begin(acknowledged: int, **options: Any) -> World:
        made.append(World(acknowledged, **options))
        return made[-1]

    yield begin
    for one in made:
        one.played.go.set()
        one.commits.end()


def error(code: str = FAILED) -> DatanodeError:
    return DatanodeError(code, "as if", datanode="dn1")


def test_a_commit_begins_when_a_flush_is_acknowledged_and_the_next_when_it_has_ended(make: Make) -> None:
    world = make(1)
    assert not world.commits.begin_due()
    assert not world.commits.is_under_way
    world.played.go.clear()
    world.acknowledge(2)
    assert world.commits.begin_due()
    world.acknowledge(3)
    assert world.commits.begin_due(), "the first is under way"
    assert world.commits.is_under_way
    eventually(lambda: world.asked() == [("make_durable", 2)])
    world.played.go.set()
    world.commits.wait()
    assert not world.commits.is_under_way
    assert (world.window.watched, world.window.watched_bcs_id) == (2 * PACKET, 7)
    assert world.commits.begin_due()
    world.commits.wait()
    assert world.asked() == [("make_durable", 2), ("make_durable", 6)]
    assert not world.commits.begin_due()
    assert world.played.asked[0][2] == {"timeout_ms": StreamOptions().commit_timeout_ms, "committed": None}


@pytest.mark.parametrize("failure", [error(), ZeroDivisionError()])
def test_a_commit_that_failed_fails_the_block_when_somebody_looks(make: Make, failure: Exception) -> None:
    world = make(2)
    world.commits.check()
    world.played.failing = failure
    world.commits.begin(2 * PACKET)
    with pytest.raises(BlockFailed if isinstance(failure, DatanodeError) else ZeroDivisionError) as caught:
        world.commits.wait()
    if isinstance(caught.value, BlockFailed):
        assert caught.value.error is failure
        assert str(failure) in str(caught.value)
    world.commits.check()
    world.commits.wait()
    assert world.window.asked == 0, "it may be asked for again"


def test_a_wait_says_what_for_and_ends_with_a_commit_that_does_not(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STILL_S", 0.001)
    world = make(2, commit_timeout_ms=20)
    world.played.go.clear()
    world.commits.begin(2 * PACKET)
    world.commits.check()
    with pytest.raises(BlockFailed, match="commit of block 1/1 does not end") as caught:
        world.commits.wait()
    assert caught.value.error.status == TIMED_OUT
    assert world.commits.stuck
    assert len(world.waits) > 1
    assert set(world.waits) == {"block 1/1 is being committed on pipeline-1"}


def test_a_wait_can_be_ended_from_outside(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STILL_S", 0.001)
    world = make(2)

    def enough(_: object) -> None:
        raise KeyboardInterrupt

    world.still = enough
    world.played.go.clear()
    world.commits.begin(2 * PACKET)
    with pytest.raises(KeyboardInterrupt):
        world.commits.wait()
    assert not world.commits.stuck


@pytest.mark.parametrize(("way", "waits"), [(CommitWay.SEPARATE, True), (CommitWay.EARLY_CLOSE, False)])
def test_the_end_of_a_block_is_committed_here_and_watched_in_the_background(
    make: Make, way: CommitWay, waits: bool
) -> None:
    world = make(3, commit_way=way)
    world.commits.finish(3 * PACKET, None)
    world.commits.wait()
    assert world.asked() == [("put", 3), ("make_durable", 3)]
    assert world.played.asked[0][2] == {"wait_effective": waits}
    assert world.played.asked[1][2]["committed"].length == 3 * PACKET
    assert world.window.watched == 3 * PACKET


def test_an_end_that_the_stream_has_committed_is_only_watched(make: Make) -> None:
    world = make(3)
    committed = BlockCommitted(container_id=1, local_id=1, length=3 * PACKET, bcs_id=5, log_offset=5)
    world.played.go.clear()
    world.commits.finish(3 * PACKET, committed)
    eventually(lambda: world.window.committed == 3 * PACKET)
    assert (world.window.bcs_id, world.window.watched) == (5, 0)
    world.played.go.set()
    world.commits.wait()
    assert world.asked() == [("make_durable", 3)]


def test_an_end_that_is_refused_fails_the_block(make: Make) -> None:
    world = make(3)
    world.played.failing = failure = error()
    with pytest.raises(BlockFailed) as caught:
        world.commits.finish(3 * PACKET, None)
    assert caught.value.error is failure
    assert (world.window.asked, world.asked()) == (0, [("put", 3)])
    assert not world.commits.is_under_way


@pytest.mark.parametrize(("commit_ms", "expected_ms"), [(1_000, 600), (500, 500)])
def test_what_is_acknowledged_and_not_watched_is_salvaged_once(make: Make, commit_ms: int, expected_ms: int) -> None:
    world = make(0, watch_timeout_ms=300, commit_timeout_ms=commit_ms)
    world.commits.salvage()
    assert world.asked() == []
    world.acknowledge(3)
    world.commits.salvage()
    assert world.asked() == [("make_durable", 3)]
    assert world.played.asked[0][2] == {"timeout_ms": expected_ms}
    assert (world.window.watched, world.window.watched_bcs_id) == (3 * PACKET, 7)
    world.commits.salvage()
    assert len(world.played.asked) == 1, "all of it is watched"


def test_a_salvage_that_fails_raises_nothing(make: Make) -> None:
    world = make(3)
    world.played.failing = error()
    world.commits.salvage()
    assert (world.window.watched, world.window.asked, len(world.played.asked)) == (0, 0, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_ends_after_the_salvage_changes_nothing(make: Make, fails: bool) -> None:
    world = make(3)
    world.played.go.clear()
    world.commits.begin(3 * PACKET)
    world.commits.ignore_later()
    world.played.failing = error() if fails else None
    world.played.go.set()
    assert world.commits._under_way is not None
    world.commits._under_way.exception(WAIT_S)
    assert (world.window.committed, world.window.watched, world.window.asked) == (0, 0, 3 * PACKET)
    committed = BlockCommitted(container_id=1, local_id=1, length=3 * PACKET, bcs_id=5, log_offset=5)
    world.commits._submit(3 * PACKET, b"", committed)
    world.commits._under_way.exception(WAIT_S)
    assert world.window.committed == 0


def test_the_thread_begins_with_the_first_commit_and_ends(make: Make) -> None:
    world = make(2)
    world.commits.end()
    assert world.commits._thread is None
    world.commits.begin(2 * PACKET)
    world.commits.wait()
    pool: Any = world.commits._thread
    (thread,) = pool._threads
    assert thread.name.startswith("stratolog-commit")
    world.commits.end()
    world.commits.end()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_end_of_a_block_waits_for_no_commit_that_hangs(make: Make) -> None:
    world = make(2)
    world.played.go.clear()
    assert world.commits.begin_due()
    ending = threading.Thread(target=world.commits.end, daemon=True)
    ending.start()
    ending.join(WAIT_S / 3)
    assert not ending.is_alive()
    assert world.commits.is_under_way
