"""A follower leaves a partition alone while its leader is at work in the same process, on a real broker (``faust_transport``)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from replicated_db.shell.follower import make_app, place_group
from replicated_db.shell.process import when_brokers_answer
from stratolog.local.ports import free_ports
from stratolog.local.processes import wait_until
from tests.support.faults.odd_records import append_with_bad_header
from tests.support.local.stack import LocalKafka

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LOG, AUDIT = "rest.log", "rest.audit"
RESTING, OTHER = 0, 1


class Fetched:
    """A follower's app on a thread of its own, which notes what it is given."""

    def __init__(
        self, brokers: str, folder: Path, name: str, fatal: Callable[[BaseException], None] | None = None
    ) -> None:
        self.offsets: dict[int, list[int]] = {RESTING: [], OTHER: []}
        self.errors: list[BaseException] = []
        self.app = make_app(
            name, bootstrap_servers=brokers, host="127.0.0.1", port=free_ports(1)[0], data_dir=folder,
            fatal=fatal or self.errors.append,
        )  # fmt: skip
        when_brokers_answer(
            lambda: place_group(brokers, name, log_topic=LOG, audit_topic=AUDIT, replicas={}, partitions=2)
        )
        self.transport: Any = cast("Any", self.app.transport)
        self.wanted = 0
        self.transport.next_offset = self.next_offset
        topic = self.app.topic(LOG, value_serializer="raw", key_serializer="raw")

        @self.app.agent(topic)
        async def note(stream: Any) -> None:
            async for event in stream.events():
                self.offsets[event.message.partition].append(event.message.offset)

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def next_offset(self, tp: Any) -> int | None:
        return self.wanted if (tp.topic, tp.partition) == (LOG, RESTING) else None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.app.start())
        self._loop.run_forever()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.app.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="module")
def append(kafka_broker: LocalKafka) -> Callable[[int, int], None]:
    topics = [NewTopic(LOG, 2, 1), NewTopic(AUDIT, 2, 1)]
    for created in kafka_broker.admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "linger.ms": 0})

    def append_some(partition: int, count: int) -> None:
        for _ in range(count):
            producer.produce(LOG, b"record", partition=partition)
        assert producer.flush(30) == 0

    return append_some


def end_of(kafka: LocalKafka, partition: int) -> int:
    place = TopicPartition(LOG, partition)
    return int(kafka.admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset)


@pytest.fixture
def fetched(kafka_broker: LocalKafka, append: object, tmp_path: Path, request: Any) -> Iterator[Fetched]:
    follower = Fetched(kafka_broker.bootstrap_servers, tmp_path, f"follower-{request.node.name}")
    yield follower
    follower.stop()
    assert not follower.errors


def test_a_resting_partition_is_not_fetched_and_wakes_at_the_offset_it_is_given(
    fetched: Fetched, append: Callable[[int, int], None]
):
    append(RESTING, 5)
    append(OTHER, 5)
    fetched.start()
    assert wait_until(lambda: [len(one) for one in fetched.offsets.values()] == [5, 5], 60)

    fetched.transport.rest(LOG, RESTING)
    append(OTHER, 1)
    assert wait_until(lambda: len(fetched.offsets[OTHER]) == 6, 30)  # what was fetched before the rest has come by now
    append(RESTING, 20)
    append(OTHER, 5)
    assert wait_until(lambda: len(fetched.offsets[OTHER]) == 11, 30)
    assert fetched.offsets[RESTING] == list(range(5))

    fetched.wanted = 15
    fetched.transport.wake(LOG, RESTING)
    append(RESTING, 1)
    assert wait_until(lambda: fetched.offsets[RESTING][-1:] == [25], 30)
    assert fetched.offsets[RESTING] == [*range(5), *range(15, 26)]

    # Turned about quickly, the last word counts.
    fetched.wanted = 26
    for _ in range(10):
        fetched.transport.rest(LOG, RESTING)
        fetched.transport.wake(LOG, RESTING)
    append(RESTING, 3)
    assert wait_until(lambda: fetched.offsets[RESTING][-1:] == [28], 30)


def test_a_partition_that_rests_before_the_follower_starts(fetched: Fetched, append: Callable[[int, int], None]):
    fetched.transport.rest(LOG, RESTING)
    fetched.start()
    append(OTHER, 1)
    assert wait_until(lambda: len(fetched.offsets[OTHER]) >= 1, 60)
    assert fetched.offsets[RESTING] == []

    fetched.transport.wake(LOG, RESTING)
    append(RESTING, 1)
    assert wait_until(lambda: len(fetched.offsets[RESTING]) >= 1, 30)
    assert fetched.offsets[RESTING][0] == 0


def test_a_record_that_cannot_be_read_is_passed_by(
    fetched: Fetched, append: Callable[[int, int], None], kafka_broker: LocalKafka
):
    """Anybody may write reports; that aiokafka reads no header whose name is no UTF-8 must end no node."""
    fetched.start()
    append(OTHER, 1)
    first = end_of(kafka_broker, OTHER)  # other tests have written there, too
    assert wait_until(lambda: fetched.offsets[OTHER][-1:] == [first - 1], 60), fetched.offsets
    for _ in range(2):
        append_with_bad_header(kafka_broker.bootstrap_servers, LOG, OTHER, [b"in", b"one", b"batch"])
    append(OTHER, 2)
    assert wait_until(lambda: fetched.offsets[OTHER][-1] == first + 7, 60), fetched.offsets
    assert fetched.offsets[OTHER][-2:] == [first + 6, first + 7]
    assert not fetched.errors


def test_a_record_of_a_log_that_cannot_be_read_ends_the_node(
    kafka_broker: LocalKafka, append: Callable[[int, int], None], tmp_path: Path
):
    """The node is a process of its own: what has crashed in it cannot always be stopped, and ends with the process."""
    append(RESTING, 1)
    node = subprocess.Popen(
        [sys.executable, __file__, kafka_broker.bootstrap_servers, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        assert node.stdout.readline() == "it reads\n"
        append_with_bad_header(kafka_broker.bootstrap_servers, LOG, RESTING, [b"bad"])
        assert "a header that is no UTF-8" in node.stdout.readline()
        assert node.wait(30) == 1
    finally:
        node.kill()
        node.wait()


def run_node(brokers: str, folder: str) -> None:
    """Say when the first record has been read, and why the process ends."""

    def fatal(error: BaseException) -> None:
        print(error, flush=True)
        os._exit(1)

    follower = Fetched(brokers, Path(folder), "follower-bad-log", fatal)
    follower.start()
    assert wait_until(lambda: bool(follower.offsets[RESTING]), 60)
    print("it reads", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    run_node(*sys.argv[1:])
