"""How a follower fetches: Faust's consumer thread over aiokafka's real consumer, on a broker in this process.

The thread itself is not started. Its methods run on the test's event loop, so that each step can be looked at.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka.errors import (
    CorruptRecordException,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import TopicPartition
from faust.types import TP

from replicated_db.core.errors import BrokenLog
from replicated_db.shell.follower import make_app
from replicated_db.shell.kafka.faust_transport import (
    BEYOND_END_WAIT_S,
    FLOWING_MIN_BYTES,
    FLOWING_WAIT_MS,
    FLOWING_WAITS,
    IDLE_MIN_BYTES,
    IDLE_WAIT_MS,
    Flow,
    _broken_place,
    pass_by_paused,
)
from tests.support.faults.odd_records import append_broken, append_with_bad_header
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker

DEADLINE_S = 30.0
STEP_S = 0.05
FOR_EVER_MS = 1_000_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        yield broker


class Fetch:
    """A follower's consumer that is assigned all partitions of one topic."""

    def __init__(self, broker: MemoryBroker, folder: Path, topic: str, **more: Any) -> None:
        self.topic = topic
        self.errors: list[BaseException] = []
        self.assigned: list[set[TP]] = []
        self.app: Any = make_app(
            f"group-{topic}", bootstrap_servers=broker.bootstrap_servers, host="127.0.0.1", port=1, data_dir=folder,
            fatal=self.errors.append, **more,
        )  # fmt: skip
        self.transport: Any = self.app.transport
        self.consumer: Any = cast("Any", self.transport).create_consumer(
            callback=self._nothing, on_partitions_assigned=self._on_assigned, on_partitions_revoked=self._nothing
        )
        self.thread: Any = self.consumer._thread
        self.thread.thread_loop = asyncio.get_running_loop()
        self.thread.call_thread = self._call
        self.thread._consumer = self.below = self.thread._create_consumer(loop=asyncio.get_running_loop())
        self.below.assign([self.tp(number) for number in range(PARTITIONS)])
        self.refreshed = 0

    async def _nothing(self, *_: Any) -> None:
        """Take what Faust's application would take."""

    async def _on_assigned(self, assigned: set[TP], _: int) -> None:
        self.assigned.append(set(assigned))

    async def _call(self, act: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await act(*arguments)

    async def start(self) -> None:
        await asyncio.wait_for(self.below.start(), DEADLINE_S)
        pass_by_paused(self.below._fetcher)
        await self.consumer._method_queue.start()
        refresh = self.below._client.force_metadata_update

        def counted() -> Any:
            self.refreshed += 1
            return refresh()

        self.below._client.force_metadata_update = counted

    async def stop(self) -> None:
        await self.below.stop()
        await self.consumer._method_queue.stop()

    def flow(self) -> None:
        """Have records flow: a fetch has brought one just now."""
        self.thread._flow.took(1, asyncio.get_running_loop().time(), wait_s=0.0)

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def begin(self, *partitions: int, offset: int = 0) -> None:
        """Fetch these partitions from ``offset`` on, and pause the others."""
        self.below.pause(*(self.tp(number) for number in range(PARTITIONS)))
        for number in partitions:
            self.below.seek(self.tp(number), offset)
            self.below.resume(self.tp(number))

    def position(self, partition: int) -> int | None:
        """Return the offset that is fetched next; None if nobody has said."""
        state = self.below._subscription.subscription.assignment.state_value(self.tp(partition))
        return state.position if state.has_valid_position else None

    @property
    def paused(self) -> set[int]:
        return {tp.partition for tp in self.below.paused()}

    @property
    def asks_for(self) -> tuple[int, int]:
        """Minimal bytes and longest wait, in milliseconds, of the next request to the broker."""
        return self.below._fetcher._fetch_min_bytes, self.below._fetcher._fetch_max_wait_ms

    async def fetch(self, timeout_s: float = STEP_S) -> Any:
        """Fetch from the partitions that are not paused, as Faust does."""
        active = self.below.assignment() - self.below.paused()
        return await self.thread._fetch_records(self.below, active, timeout=timeout_s, max_records=500)

    async def take(self, count: int) -> list[bytes]:
        """Fetch until ``count`` values have come."""
        values: list[bytes] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(values) < count:
                for records in (await self.fetch()).values():
                    values += [record.value for record in records]
        return values

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - nobody sets an event for it
                await asyncio.sleep(0.005)

    async def fetched(self, *partitions: int) -> None:
        """Wait until records of all these partitions lie in the fetcher, not taken yet."""
        await self.until(lambda: {self.tp(number) for number in partitions} <= set(self.below._fetcher._records))


class Fetching:
    """Runs one story on a topic of its own."""

    def __init__(self, broker: MemoryBroker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = f"log-{next(_numbers)}"
        broker.create(self.topic)

    def __call__(self, story: Callable[[Fetch], Coroutine[Any, Any, None]], **more: Any) -> Fetch:
        async def run() -> Fetch:
            found = Fetch(self.broker, self.folder, self.topic, **more)
            await found.start()
            try:
                await story(found)
            finally:
                await found.stop()
            return found

        return asyncio.run(run())

    def append(self, *values: bytes, partition: int = 0) -> None:
        self.broker.append(self.topic, *values, partition=partition)


@pytest.fixture
def fetching(broker: MemoryBroker, tmp_path: Path) -> Fetching:
    return Fetching(broker, tmp_path)


# -- how the broker is asked ------------------------------------------------------------------------------------------


def test_while_records_flow_the_broker_gathers_them(fetching: Fetching):
    fetching.append(b"a", b"b")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        fetch.flow()
        assert await fetch.take(2) == [b"a", b"b"]
        assert fetch.asks_for == (FLOWING_MIN_BYTES, FOR_EVER_MS)
        left_s = fetch.thread._quiet.when() - asyncio.get_running_loop().time()
        assert 0.9 < left_s / (FLOWING_WAITS * FOR_EVER_MS / 1000) <= 1

    fetching(story, flowing_wait_ms=FOR_EVER_MS)


def test_a_record_that_comes_alone_is_no_flow(fetching: Fetching):
    """Ticks, and entries that are further apart than the wait: to gather would only end without a record."""
    fetching.append(b"a")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        await fetch.take(1)
        assert fetch.asks_for == (IDLE_MIN_BYTES, IDLE_WAIT_MS)
        fetching.append(b"b")
        await asyncio.sleep(2 * STEP_S)
        await fetch.take(1)
        assert fetch.asks_for == (IDLE_MIN_BYTES, IDLE_WAIT_MS)
        assert fetch.thread._quiet is None

    fetching(story, flowing_wait_ms=int(STEP_S * 1000))


@pytest.mark.parametrize(
    ("records", "passed_s", "flows"),
    [(1, 0.019, True), (1, 0.021, False), (5, 0.099, True), (5, 0.101, False), (1, 0.0, True), (1000, 60.0, False)],
)
def test_records_flow_if_a_wait_finds_another(records: int, passed_s: float, flows: bool):
    flow = Flow()
    assert not flow.took(1000, 5.0, wait_s=0.02), "nobody knows how long the first ones took to come"
    assert flow.took(records, 5.0 + passed_s, wait_s=0.02) is flows
    assert not flow.took(records, 5.0 + passed_s + 0.03 * records, wait_s=0.02), "counted from the fetch before"


def test_nothing_is_gathered_for_a_while_after_somebody_has_waited(fetching: Fetching):
    fetching.append(b"a", b"b")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        fetch.transport.hurry()
        assert fetch.transport._hurries_until_s > time.monotonic()
        fetch.transport._hurries_until_s = float("inf")
        await fetch.take(2)
        assert fetch.asks_for == (IDLE_MIN_BYTES, IDLE_WAIT_MS)
        fetch.transport._hurries_until_s = 0.0
        fetching.append(b"c")
        await fetch.take(1)
        assert fetch.asks_for == (FLOWING_MIN_BYTES, FOR_EVER_MS)

    fetching(story, flowing_wait_ms=FOR_EVER_MS)


def test_paused_partitions_are_not_looked_at(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        fetch.begin(1)
        fetcher = fetch.below._fetcher
        assignment = fetch.below._subscription.subscription.assignment
        fetcher._in_flight.clear()
        requests, resets, _, no_leader, resumed = fetcher._get_actions_per_node(assignment)
        ((_, request),) = requests
        asked = [number for _, places in request.topics for number, *_ in places]
        assert (asked, dict(resets), no_leader, resumed) == ([1], {}, False, [])

    fetching(story)


def test_a_resumed_partition_is_fetched_without_a_wait(fetching: Fetching):
    """Nobody waits for the futures of paused partitions any more, so whoever resumes one tells the fetcher."""
    fetching.append(b"a", partition=2)

    async def story(fetch: Fetch) -> None:
        fetch.begin(2)
        assert await fetch.take(1) == [b"a"]
        fetch.below.pause(fetch.tp(2))
        fetcher = fetch.below._fetcher
        await fetch.until(lambda: not fetcher._in_flight)
        fetcher._fetcher_timeout = FOR_EVER_MS
        fetcher.seek_to(fetch.tp(0), 0)  # one more look, with the long time-out
        await asyncio.sleep(STEP_S)
        fetching.append(b"b", partition=2)
        await fetch.thread._turn(fetch.tp(2), None, False)
        assert await fetch.take(1) == [b"b"]

    fetching(story)


def test_a_fetch_without_records_ends_the_gathering(fetching: Fetching):
    fetching.append(b"a")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        fetch.flow()
        await fetch.take(1)
        quiet = fetch.thread._quiet
        assert await fetch.fetch(0.0) == {}
        assert fetch.asks_for == (IDLE_MIN_BYTES, IDLE_WAIT_MS)
        assert quiet.cancelled()
        assert fetch.thread._quiet is None

    fetching(story, flowing_wait_ms=FOR_EVER_MS)


def test_each_record_prolongs_the_gathering(fetching: Fetching):
    fetching.append(b"a")
    fetching.append(b"b", partition=1)

    async def story(fetch: Fetch) -> None:
        fetch.begin(0, 1)
        fetch.flow()
        await fetch.fetched(0, 1)
        await fetch.thread._fetch_records(fetch.below, {fetch.tp(0)}, timeout=0, max_records=1)
        first = fetch.thread._quiet
        await fetch.thread._fetch_records(fetch.below, {fetch.tp(1)}, timeout=0, max_records=1)
        assert first.cancelled()
        assert not fetch.thread._quiet.cancelled()
        assert fetch.asks_for == (FLOWING_MIN_BYTES, FOR_EVER_MS)

    fetching(story, flowing_wait_ms=FOR_EVER_MS)


def test_the_gathering_ends_by_itself_when_nobody_fetches(fetching: Fetching):
    fetching.append(b"a")

    async def story(fetch: Fetch) -> None:
        assert fetch.transport.flowing_wait_ms == FLOWING_WAIT_MS
        fetch.begin(0)
        fetch.thread._flow.took(1, float("inf"), wait_s=0.0)  # whatever the time, the next record is in the flow
        await fetch.take(1)
        assert fetch.thread._quiet is not None
        await fetch.until(lambda: fetch.asks_for == (IDLE_MIN_BYTES, IDLE_WAIT_MS))

    fetching(story)


# -- what cannot be read ----------------------------------------------------------------------------------------------


def test_a_broken_batch_is_fatal_and_named(fetching: Fetching):
    fetching.append(b"a", b"b")
    fetching.append(b"other", partition=1)
    append_broken(fetching.broker.bootstrap_servers, fetching.topic, 0, b"broken")

    async def story(fetch: Fetch) -> None:
        fetch.begin(1)
        await fetch.fetched(1)
        fetch.begin(0, offset=2)
        await fetch.fetched(0, 1)
        with pytest.raises(CorruptRecordException):
            await fetch.thread._fetch_records(fetch.below, {fetch.tp(0)}, timeout=0, max_records=9)
        assert fetch.position(0) == 2, "nothing is skipped"

    found = fetching(story)
    [error] = found.errors
    assert isinstance(error, BrokenLog)
    assert f"{fetching.topic}/0: the record at offset 2 fails its checksum" in str(error)


def test_the_place_of_a_batch_that_is_gone_is_not_made_up(fetching: Fetching):
    fetching.append(b"a")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        await fetch.fetched(0)
        assert _broken_place(fetch.below._fetcher, "Invalid CRC") == ("a topic", -1, -1)
        assert _broken_place(fetch.below._fetcher, f"{fetch.tp(0)!r}") == (fetch.topic, 0, 0)
        fetch.below._fetcher._records[fetch.tp(0)]._partition_records = None
        assert _broken_place(fetch.below._fetcher, f"{fetch.tp(0)!r}") == ("a topic", -1, -1)

    fetching(story)


def test_a_report_with_an_unreadable_header_is_passed_by_with_its_batch(fetching: Fetching):
    fetching.append(b"a")
    append_with_bad_header(fetching.broker.bootstrap_servers, fetching.topic, 0, [b"in", b"one", b"batch"])
    fetching.append(b"z")

    async def story(fetch: Fetch) -> None:
        fetch.begin(0)
        assert await fetch.take(2) == [b"a", b"z"]
        assert fetch.position(0) == 5

    assert fetching(story).errors == []


def test_a_log_with_an_unreadable_header_is_fatal(fetching: Fetching):
    fetching.append(b"a")
    append_with_bad_header(fetching.broker.bootstrap_servers, fetching.topic, 0, [b"bad"])

    async def story(fetch: Fetch) -> None:
        fetch.transport.next_offset = lambda _: 0
        fetch.begin(0, offset=1)
        await fetch.fetched(0)
        with pytest.raises(UnicodeDecodeError):
            await fetch.fetch()
        assert fetch.position(0) == 1

    [error] = fetching(story).errors
    assert isinstance(error, BrokenLog)
    assert f"{fetching.topic}/0, offset 1: a header that is no UTF-8" in str(error)


def test_logs_are_read_again_when_a_report_was_passed_by(fetching: Fetching):
    """What the same attempt had taken from them is lost. A log that rests, or is not followed, stays where it is."""
    append_with_bad_header(fetching.broker.bootstrap_servers, fetching.topic, 0, [b"bad"])
    for partition in (1, 2, 3):
        fetching.append(*[b"v"] * 9, partition=partition)

    async def story(fetch: Fetch) -> None:
        fetch.transport.next_offset = lambda tp: 5 if tp.partition else None
        fetch.transport.rest(fetch.topic, 2)
        fetch.begin(0)
        for number in (1, 2, 3):
            fetch.below.seek(fetch.tp(number), 7)
        await fetch.fetched(0)
        assert await fetch.fetch() == {}
        assert [fetch.position(number) for number in range(4)] == [1, 5, 7, 7]

    topic = fetching.topic
    assert fetching(story, follows=[(topic, 0), (topic, 1), (topic, 2)]).errors == []


def test_an_unreadable_record_that_is_found_nowhere_is_not_hidden(fetching: Fetching):
    fetching.append(b"a")

    async def story(fetch: Fetch) -> None:
        async def refuse(*_: Any, **__: Any) -> Any:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "elsewhere")

        fetch.begin(0)
        await fetch.fetched(0)
        fetch.below._fetcher.fetched_records = refuse
        with pytest.raises(UnicodeDecodeError, match="elsewhere"):
            await fetch.fetch()
        assert fetch.position(0) == 0

    assert fetching(story).errors == []


def test_a_position_beyond_the_end_is_asked_of_another_broker_for_a_while(fetching: Fetching):
    fetching.append(b"a", b"b")

    async def story(fetch: Fetch) -> None:
        fetch.transport.next_offset = lambda _: 9
        fetch.begin(0, offset=9)
        await fetch.fetched(0)
        assert await fetch.fetch() == {}
        assert fetch.refreshed == 1
        assert fetch.position(0) == 9
        now_s = asyncio.get_running_loop().time()
        fetch.thread._beyond_end._seen[fetch.tp(0)] = now_s - BEYOND_END_WAIT_S - 1, now_s
        await fetch.fetched(0)
        with pytest.raises(OffsetOutOfRangeError):
            await fetch.fetch()

    assert fetching(story).errors == []


def test_reports_whose_topic_was_made_anew_are_read_from_its_beginning(fetching: Fetching):
    """Before, all nodes ended: the position in the former topic lies beyond the end of the new one."""
    fetching.append(b"a", b"b")

    async def story(fetch: Fetch) -> None:
        fetch.transport.next_offset = lambda tp: 9 if tp.partition else None
        fetch.begin(0, offset=9)
        fetch.consumer._read_offset[TP(fetch.topic, 0)] = 8
        await fetch.fetched(0)
        assert await fetch.fetch() == {}
        assert fetch.position(0) == 9, "a broker that is cut off may not know the end"
        now_s = asyncio.get_running_loop().time()
        fetch.thread._beyond_end._seen[fetch.tp(0)] = now_s - BEYOND_END_WAIT_S - 1, now_s
        await fetch.fetched(0)
        assert await fetch.take(2) == [b"a", b"b"]
        assert fetch.consumer._read_offset[TP(fetch.topic, 0)] is None, "Faust would leave out what it has had"

    assert fetching(story).errors == []


def test_reports_of_which_the_group_has_no_offset_any_more_are_read_from_the_beginning(fetching: Fetching):
    """Brokers forget it with the topic. Of a log it is an error."""
    fetching.append(b"a", b"b")

    async def story(fetch: Fetch) -> None:
        def refuse(partition: int) -> None:
            async def fetched(*_: Any, **__: Any) -> Any:
                fetch.below._fetcher.fetched_records = real
                raise NoOffsetForPartitionError(fetch.tp(partition))

            fetch.below._fetcher.fetched_records = fetched

        fetch.transport.next_offset = lambda tp: 9 if tp.partition else None
        fetch.begin(0, offset=1)
        real = fetch.below._fetcher.fetched_records
        refuse(0)
        assert await fetch.fetch() == {}
        assert await fetch.take(2) == [b"a", b"b"]
        refuse(1)
        with pytest.raises(NoOffsetForPartitionError):
            await fetch.fetch()

    assert fetching(story).errors == []


# -- which partitions are fetched, and from where ---------------------------------------------------------------------


def test_an_assignment_pauses_what_rests_or_is_not_followed(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        assigned = {TP(fetch.topic, number) for number in range(4)}
        fetch.transport.rest(fetch.topic, 1)
        await fetch.thread.on_partitions_assigned(assigned)
        assert fetch.paused == {1, 2}
        assert fetch.assigned == [assigned]
        assert {tp.partition for tp in fetch.consumer._active_partitions} == {0, 1, 3}
        assert [fetch.position(number) for number in range(4)] == [None, None, None, 0], "3 was added later"

    fetching(story, follows=[(fetching.topic, number) for number in (0, 1, 3)], placed=3)


def test_an_assignment_of_followed_partitions_pauses_nothing(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        await fetch.thread.on_partitions_assigned({TP(fetch.topic, 0)})
        assert fetch.paused == set()
        assert fetch.position(0) is None
        with pytest.raises(IllegalStateError):
            fetch.below.seek(TopicPartition("no topic", 0), 0)

    fetching(story)


def test_a_partition_turns_as_the_transport_says(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        tp = TP(fetch.topic, 0)
        fetch.begin(0, offset=3)
        fetch.transport._resting.add((fetch.topic, 0))
        await fetch.thread.turn(tp, 7, look=False)
        assert fetch.paused == {0, 1, 2, 3}
        assert fetch.position(0) == 3, "who rests need not seek"
        fetch.transport._resting.clear()
        await fetch.thread.turn(tp, None, look=False)
        assert fetch.paused == {1, 2, 3}
        assert fetch.position(0) == 3
        await fetch.thread.turn(tp, 7, look=True)
        assert fetch.position(0) == 7
        await fetch.thread.turn(TP(fetch.topic, 1), 7, look=True)
        assert fetch.paused == {1, 2, 3}, "it is not followed"
        assert fetch.refreshed == 0

    fetching(story, follows=[(fetching.topic, 0)])


def test_only_who_looks_asks_a_broker_about_a_partition_that_is_not_assigned(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        await fetch.thread.turn(TP("new", 0), 0, look=False)
        assert fetch.refreshed == 0
        await fetch.thread.turn(TP("new", 0), 0, look=True)
        assert fetch.refreshed == 1
        await fetch.consumer.turn(TP("new", 0))
        assert fetch.refreshed == 1
        await fetch.consumer.follow(TP("new", 0))
        assert fetch.refreshed == 2

    fetching(story)


def test_a_rebalance_goes_back_to_the_groups_offsets_and_to_the_replicas(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        wanted = {0: None, 1: 6, 2: 2, 3: None}
        fetch.transport.next_offset = lambda tp: wanted[tp.partition]
        fetch.begin(0, 1, 2, 3, offset=9)
        await fetch.below.commit({fetch.tp(0): 0, fetch.tp(1): 4, fetch.tp(2): 4})
        found = await fetch.thread.seek_to_committed()
        assert found == {fetch.tp(0): 0, fetch.tp(1): 6, fetch.tp(2): 4, fetch.tp(3): None}
        assert [fetch.position(number) for number in range(4)] == [0, 6, 4, 0]

    fetching(story, placed=3)


def test_a_placed_partition_without_an_offset_of_the_group_stays_where_it_is(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        fetch.begin(0, 1, 2, 3, offset=9)
        wanted = {0: None, 1: 0, 2: 1, 3: None}
        fetch.transport.next_offset = lambda tp: wanted[tp.partition]
        found = await fetch.thread.seek_to_committed()
        assert [fetch.position(number) for number in range(4)] == [9, 9, 1, 9]
        assert found[fetch.tp(2)] == 1

    fetching(story, placed=4)


def test_faust_resumes_and_watches_only_what_is_followed(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        watched: list[int] = []
        fetch.thread.verify_event_path = lambda _, tp: watched.append(tp.partition)
        tps = [TP(fetch.topic, number) for number in range(4)]
        fetch.transport.rest(fetch.topic, 1)
        for tp in tps:
            fetch.consumer.verify_event_path(0.0, tp)
        assert watched == [0], "1 rests; 2 and 3 are not followed"
        fetch.consumer._active_partitions = set()
        fetch.consumer._paused_partitions = set(tps)
        fetch.consumer.resume_partitions(tps)
        assert fetch.consumer._active_partitions == set(tps[:2])
        assert fetch.consumer._paused_partitions == set(tps[2:])

    fetching(story, follows=[(fetching.topic, 0), (fetching.topic, 1)])


def test_a_running_follower_rests_wakes_and_follows_from_any_thread(fetching: Fetching):
    async def story(fetch: Fetch) -> None:
        fetch.app._consumer = fetch.consumer
        fetch.consumer._active_partitions = {TP(fetch.topic, 0)}
        fetch.transport.next_offset = lambda tp: 11 + tp.partition
        fetch.begin(0)
        await asyncio.to_thread(fetch.transport.rest, fetch.topic, 0)
        await fetch.until(lambda: 0 in fetch.paused)
        assert fetch.position(0) == 0
        assert TP(fetch.topic, 0) not in fetch.consumer._read_offset
        await asyncio.to_thread(fetch.transport.wake, fetch.topic, 0)
        await fetch.until(lambda: 0 not in fetch.paused)
        assert fetch.position(0) == 11
        assert fetch.consumer._read_offset[TP(fetch.topic, 0)] == 11
        await asyncio.to_thread(fetch.transport.follow, fetch.topic, 2)
        await fetch.until(lambda: TP(fetch.topic, 2) in fetch.consumer._active_partitions)
        assert fetch.paused == {1, 3}
        assert fetch.position(2) == 13

    assert fetching(story, follows=[(fetching.topic, 0)]).errors == []


@pytest.mark.parametrize("stops", [False, True])
def test_a_partition_that_cannot_be_woken_is_fatal_unless_the_follower_stops(fetching: Fetching, stops: bool):
    async def story(fetch: Fetch) -> None:
        asked = asyncio.Event()

        def refuse(_: Any) -> int:
            asked.set()
            raise RuntimeError("nobody knows")

        fetch.app._consumer = fetch.consumer
        if stops:
            fetch.app._stopped.set()
        fetch.transport.next_offset = refuse
        fetch.transport._resting.add((fetch.topic, 0))
        await asyncio.to_thread(fetch.transport.wake, fetch.topic, 0)
        await asyncio.wait_for(asked.wait(), DEADLINE_S)
        if stops:
            await asyncio.sleep(0.1)
        else:
            await fetch.until(lambda: bool(fetch.errors))

    assert [str(error) for error in fetching(story).errors] == ([] if stops else ["nobody knows"])
