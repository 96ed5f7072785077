"""What a datanode says of itself: everything, or of very many containers the changed ones first and the rest in turns."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from datanode_processors import heartbeats as module
from datanode_processors.config import DatanodeConfig
from datanode_processors.heartbeats import MIN_INTERVAL_S, Heartbeats
from replicated_db.shell.system import SystemClock
from schemas.codecs.codec import decode_as
from schemas.records.datanode import Heartbeat
from schemas.topics import DN_HEARTBEATS
from tests.support.datanodes.block_nodes import CELL, CONTAINER, KEY, Node
from tests.support.local.waiting import eventually

WAIT_S = 30.0
AT_ONCE = 3


class World:
    """A datanode and its heartbeats; ``sent`` has what went to the topic."""

    def __init__(self, folder: Path, interval_ms: int = 60_000) -> None:
        self.node = Node("dn1", folder)
        self.sent: SimpleQueue[tuple[str, Heartbeat, bytes]] = SimpleQueue()
        self.partitions: list[int] = []
        self.fatal: list[BaseException] = []
        self.broken: Exception | None = None
        config = DatanodeConfig(
            node="dn1", cluster="test", host="127.0.0.1", port=0, http_port=0, bootstrap_servers="",
            data_dir=folder / "dn1", datanode_heartbeat_interval_ms=interval_ms,
        )  # fmt: skip
        self.beats = Heartbeats(
            config, self.node.store, self.node.pipelines, streams=lambda: 5, layout_version=2, prepared=lambda: False,
            clock=SystemClock(), send=self._send, fatal=self.fatal.append,
        )  # fmt: skip

    def _send(self, topic: str, value: bytes, key: bytes, partition: int) -> None:
        if self.broken is not None:
            raise self.broken
        self.partitions.append(partition)
        self.sent.put((topic, decode_as(Heartbeat, value), key))

    def write(self, *containers: int) -> None:
        """Have each container hold a block more."""
        for container_id in containers:
            used = [usage.blocks for usage in self.node.store.containers() if usage.container_id == container_id]
            with self.node.store.open_writer(container_id, 1 + sum(used), 0, CELL) as writer:
                writer.write(0, b"some")

    def reported(self) -> list[int]:
        return [report.container_id for report in self.beats.heartbeat().containers]

    def stop(self) -> None:
        self.beats.stop()
        self.node.stop()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def begin(**options: Any) -> World:
        made.append(World(tmp_path, **options))
        return made[-1]

    yield begin
    for world in made:
        world.stop()


@pytest.fixture
def world(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "MAX_REPORTED_CONTAINERS", AT_ONCE)
    return make()


def of(*numbers: int) -> list[int]:
    return [256 * number + 3 for number in numbers]


def test_as_many_containers_as_fit_are_all_reported_each_time(world: World) -> None:
    world.write(*of(1, 2, 3))
    assert world.reported() == world.reported() == of(1, 2, 3)


def test_of_more_containers_every_one_has_its_turn(world: World) -> None:
    world.write(*of(1, 2, 3, 4, 5, 6, 7))
    world.reported()
    turns = [world.reported() for _ in range(7)]
    assert all(len(turn) == AT_ONCE for turn in turns)
    assert {name for turn in turns for name in turn} == set(of(1, 2, 3, 4, 5, 6, 7))
    assert turns[0] == of(4, 5, 6)
    assert turns[1] == of(7, 1, 2)


def test_the_containers_that_have_changed_are_reported_first(world: World) -> None:
    world.write(*of(1, 2, 3, 4, 5, 6, 7))
    for _ in range(3):
        world.reported()
    world.write(*of(2, 7))
    assert world.reported() == [*of(2), *of(3, 4)], "half of them at most"
    assert world.reported() == [*of(7), *of(5, 6)]
    assert world.reported() == of(7, 1, 2), "they have not changed since"


def test_each_container_has_its_turn_however_much_changes_and_goes(world: World) -> None:
    world.write(*of(1, 2, 3, 4, 5, 6, 7))
    turns = []
    for number in range(14):
        world.write(*of(1, 2, 3, 4, 10 + number))
        turns.append(world.reported())
    for number in range(5, 8):
        assert sum(of(number)[0] in turn for turn in turns) >= 1, f"{number} was named"
    assert all(len(turn) == AT_ONCE for turn in turns)


def test_a_container_with_an_unhealthy_block_is_not_healthy(world: World) -> None:
    world.write(CONTAINER, *of(2))
    healthy = {report.container_id: report.healthy for report in world.beats.heartbeat().containers}
    assert healthy == {CONTAINER: True, of(2)[0]: True}
    world.node.replica.on_failed(KEY, "as if")
    healthy = {report.container_id: report.healthy for report in world.beats.heartbeat().containers}
    assert healthy == {CONTAINER: False, of(2)[0]: True}


def test_a_disk_that_does_not_answer_has_no_room(world: World) -> None:
    assert world.beats.heartbeat().free_bytes > 0
    shutil.rmtree(world.node.store.container_folder(CONTAINER).parents[1])
    found = world.beats.heartbeat()
    assert (found.capacity_bytes, found.free_bytes) == (0, 0)


def test_a_change_is_said_at_once_and_nothing_after_the_end(make: Callable[..., World]) -> None:
    world = make()
    world.beats.start()
    topic, first, key = world.sent.get(timeout=WAIT_S)
    assert (topic, first.datanode, first.active_streams, key) == (DN_HEARTBEATS, "dn1", 5, b"dn1")
    world.beats.changed()
    assert world.sent.get(timeout=WAIT_S)[1].incarnation == first.incarnation
    world.beats.stop()
    assert not world.beats._thread.is_alive(), "the one under way is waited for"
    assert world.beats.sent == 2
    world.beats.changed()
    assert world.sent.empty()
    assert not world.fatal


def test_without_a_change_they_come_at_their_interval(make: Callable[..., World]) -> None:
    world = make(interval_ms=1)
    world.beats.start()
    for _ in range(3):
        world.sent.get(timeout=WAIT_S)
    assert set(world.partitions) == {-1}, "the key decides, for the topic may have one partition or many"


def test_a_failure_to_send_ends_the_process(make: Callable[..., World]) -> None:
    world = make()
    world.broken = OSError("no more")
    world.beats.start()
    eventually(lambda: world.fatal == [world.broken], timeout_s=WAIT_S)


def test_after_a_heartbeat_the_thread_rests_until_something_changes(make: Callable[..., World]) -> None:
    world = make()
    pauses: list[float | None] = []
    rests: list[tuple[bool, float | None]] = []

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append((self.is_set(), timeout))
            return super().wait(timeout)

    class Quick(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return super().wait(0)

    def has_rested(times: int) -> bool:
        return len(rests) == times

    world.beats._stopping = Quick()
    world.beats._due = Watched()
    world.beats.start()
    for number in (1, 2, 3):
        eventually(partial(has_rested, number), timeout_s=WAIT_S)
        world.beats.changed()
    eventually(partial(has_rested, 4), timeout_s=WAIT_S)
    assert [is_set for is_set, _ in rests] == [False] * 4, "what has changed is said once"
    assert {timeout for _, timeout in rests} == {world.beats._config.datanode_heartbeat_interval_ms / 1000}
    assert pauses == [MIN_INTERVAL_S] * 4


def test_a_failure_when_it_ends_already_is_none(make: Callable[..., World]) -> None:
    world = make()

    def fail(*_: Any) -> None:
        world.beats._stopping.set()
        raise OSError("no more")

    world.beats._send = fail
    world.beats.start()
    world.beats._thread.join(WAIT_S)
    assert not world.fatal
