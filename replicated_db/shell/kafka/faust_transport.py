"""Faust's Kafka transport, with a follower's way of fetching: at once on a quiet log, in groups while records flow.

Faust fetches each record as soon as it is there. Each fetch costs the follower about a millisecond of processor time,
and the broker as much again: on a lightly loaded shard more than all the rest of the system (docs/performance.md). A
follower gains nothing by such speed, because the leader answers from its own replica. So while records flow, the
broker is asked to wait until there is more to send, FLOWING_WAIT_MS at most. Records flow if they come so fast that
such a wait finds another one (:class:`Flow`): where they come more slowly, a wait would only end without a record,
and be asked for again. After FLOWING_WAITS of these waits without a record, the broker is asked to answer with the
first record, and an idle node costs nothing. A linearizable
or session read on a follower waits for a record, so for HURRY_S after each such wait
(:meth:`FollowerTransport.hurry`) nothing is gathered either: only the first reader waits for the end of a fetch that
gathers. (Faust itself notices an idle log only after five seconds. Until then it would ask hundreds of times a
second, and a log with a barrier each second is never idle that long.)

A batch that fails its checksum goes to ``fatal`` with its offset. No part of the batch was delivered, and the log is
never skipped past.

A broker that is cut off from the others may be taken for the leader again (decision 0026), and its log may end before
the position. Then another broker is asked. It is an error only if brokers say so for BEYOND_END_WAIT_S without a pause.
Of reports it is none even then: no replica depends on them, so they are read from the first that there is.

A transport with ``follows`` fetches the named partitions alone. The group's one member is assigned all partitions, and
the others stay paused, in Faust and in aiokafka below it, until :meth:`FollowerTransport.follow` names them. They are
resumed at the group's offset.

A partition whose leader is at work in this process *rests* (:meth:`FollowerTransport.rest`): the leader's thread
applies every record that a fetch could bring. When the partition is woken, it is fetched from the position that the
replica then has (``next_offset``).

With ``placed``, the topics may grow while the transport runs. Partitions from that number on were added after the group
got its offsets, so the group has none for them, and they are read from their beginning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

from aiokafka.errors import CorruptRecordException, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition
from faust.transport.drivers import aiokafka
from faust.types import TP
from mode.services import WaitResults
from mode.utils.times import Seconds

from replicated_db.core.errors import BrokenLog, corrupt_record
from replicated_db.shell.kafka.eager import Begun

logger = logging.getLogger(__name__)

FLOWING_WAIT_MS = 50
FLOWING_MIN_BYTES = 256 * 1024
FLOWING_WAITS = 3
IDLE_WAIT_MS = 500
IDLE_MIN_BYTES = 1
HURRY_S = 0.1
"""For how long after somebody has waited for a record the broker does not gather: others will wait soon."""
LOOK_S = 1.0
"""How often aiokafka looks at what it should fetch if nothing happens; 0.2 s by default."""
BEYOND_END_WAIT_S = 30.0
"""How long a position beyond the log's end is blamed on a cut-off broker that does not know the end."""

BEYOND_END_PAUSE_S = 5.0
"""A pause of this length means that another broker knew better."""


class BeyondEnd:
    """Since when brokers have said repeatedly that positions lie beyond the log's end."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def lasts(self, partitions: Iterable[Hashable], now_s: float) -> bool:
        """Take note that brokers said so of these partitions.

        Returns whether they have said so of one of them for BEYOND_END_WAIT_S without a pause.
        """
        lasting = False
        for partition in partitions:
            since_s, last_s = self._seen.get(partition, (now_s, now_s))
            if now_s - last_s > BEYOND_END_PAUSE_S:
                since_s = now_s
            self._seen[partition] = since_s, now_s
            lasting = lasting or now_s - since_s > BEYOND_END_WAIT_S
        return lasting


class Flow:
    """Whether records come so fast that a wait for more finds some.

    >>> flow = Flow()
    >>> flow.took(1, 10.0, wait_s=0.02), flow.took(1, 10.5, wait_s=0.02), flow.took(1, 10.51, wait_s=0.02)
    (False, False, True)
    """

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def took(self, records: int, now_s: float, *, wait_s: float) -> bool:
        """Take note of the records that a fetch has brought.

        Returns whether ``wait_s`` is long enough for another one, if they go on as they came since the fetch before.
        """
        passed_s, self._last_s = now_s - self._last_s, now_s
        return passed_s <= records * wait_s


class _Thread(aiokafka.AIOKafkaConsumerThread):
    consumer: Any
    _quiet: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._beyond_end = BeyondEnd()
        self._flow = Flow()

    async def on_start(self) -> None:
        """Make aiokafka's consumer; it looks at the partitions that it fetches alone."""
        await super().on_start()
        pass_by_paused(self._ensure_consumer()._fetcher)

    async def _fetch_records(self, consumer: Any, *arguments: Any, **options: Any) -> Any:
        fetcher = consumer._fetcher
        try:
            records = await super()._fetch_records(consumer, *arguments, **options)
        except CorruptRecordException as error:
            self.consumer.transport.fatal(corrupt_record(*_broken_place(fetcher, str(error)), str(error)))
            raise
        except UnicodeDecodeError as error:
            self._pass_by(consumer, fetcher, error)
            return {}
        except NoOffsetForPartitionError as error:
            # The brokers forget the group's offsets with a topic that is deleted.
            if self.consumer.transport.next_offset(error.args[0]) is not None:
                raise
            await self._begin_anew(consumer, error.args)
            return {}
        except OffsetOutOfRangeError as error:
            # A position behind which the replica has moved on, while the log was trimmed, is of no use any more. Any
            # other stays, so nothing is skipped.
            for place, offset in dict(error.args[0]).items():
                following = self.consumer.transport.next_offset(place)
                if following is not None and following > offset:
                    consumer.seek(place, following)
            reports = [place for place in error.args[0] if self.consumer.transport.next_offset(place) is None]
            now_s = asyncio.get_running_loop().time()
            if self._beyond_end.lasts(set(error.args[0]) - set(reports), now_s):
                raise
            if self._beyond_end.lasts(reports, now_s):
                await self._begin_anew(consumer, reports)
                return {}
            await consumer._client.force_metadata_update()
            await asyncio.sleep(IDLE_WAIT_MS / 1000)
            return {}
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if records and self._flows(records) and not self.consumer.transport.hurries:
            wait_ms = self.consumer.transport.flowing_wait_ms
            _ask_for(fetcher, FLOWING_MIN_BYTES, wait_ms)
            loop = asyncio.get_running_loop()
            self._quiet = loop.call_later(
                FLOWING_WAITS * wait_ms / 1000, _ask_for, fetcher, IDLE_MIN_BYTES, IDLE_WAIT_MS
            )
        else:
            _ask_for(fetcher, IDLE_MIN_BYTES, IDLE_WAIT_MS)
        return records

    async def _begin_anew(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        """Read reports from the first one that the brokers have: their topic was made anew, or has lost records."""
        for place in places:
            logger.warning(
                "%s/%d was made anew, or has lost records: read from its beginning", place.topic, place.partition
            )
            self.consumer._read_offset[TP(*place)] = None
        await consumer.seek_to_beginning(*places)

    def _flows(self, records: Mapping[Any, Sequence[Any]]) -> bool:
        wait_s = self.consumer.transport.flowing_wait_ms / 1000
        count = sum(map(len, records.values()))
        return self._flow.took(count, asyncio.get_running_loop().time(), wait_s=wait_s)

    def _pass_by(self, consumer: Any, fetcher: Any, error: UnicodeDecodeError) -> None:
        """Go on after a record that aiokafka cannot read.

        Brokers take any bytes as a header's name; aiokafka wants UTF-8. aiokafka reads a batch from its beginning, so
        the whole batch that holds the record is passed by, with one refused attempt for each record.
        """
        transport, passed = self.consumer.transport, False
        for place, found in list(fetcher._records.items()):
            records = getattr(found, "_partition_records", None)
            if records is None or records._records_iterator is None or records._records_iterator.gi_frame is not None:
                continue
            offset = records.next_fetch_offset
            if transport.next_offset(place) is not None:  # a log is never skipped past
                transport.fatal(
                    BrokenLog(f"{place.topic}/{place.partition}, offset {offset}: a header that is no UTF-8: {error}")
                )
                raise error
            del fetcher._records[place]
            consumer.seek(place, offset + 1)
            passed = True
        if not passed:
            raise error
        # The records that this attempt had taken from other partitions are lost with it. Reports are made again; a log
        # must be read again.
        for place in consumer.assignment():
            following = transport.next_offset(place)
            if following is not None and transport.follows(place) and not transport.rests(place):
                consumer.seek(place, following)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        transport, consumer = self.consumer.transport, self._ensure_consumer()
        # Seek before the first await. aiokafka has not asked yet for the group's offset of such a partition, and would
        # take a missing one for an error. If the group has committed an offset since, Faust seeks to it afterwards.
        for tp in assigned:
            if not transport.is_placed(tp):
                consumer.seek(TopicPartition(*tp), 0)
        if paused := [TopicPartition(*tp) for tp in assigned if transport.rests(tp) or not transport.follows(tp)]:
            consumer.pause(*paused)
        await super().on_partitions_assigned(assigned, generation_id)

    async def turn(self, tp: TP, offset: int | None, *, look: bool) -> None:
        """Rest or wake a partition, as the transport says when this runs.

        A woken partition is fetched from ``offset`` on. With ``look``, a broker is asked about a partition that is not
        assigned yet, so that the group is assigned it.
        """
        await self.call_thread(self._turn, TopicPartition(*tp), offset, look)

    async def _turn(self, tp: TopicPartition, offset: int | None, look: bool) -> None:
        transport, consumer = self.consumer.transport, self._ensure_consumer()
        if tp not in consumer.assignment():
            # The assignment will ask the transport.
            if look:
                # The partition was added a moment ago, and somebody waits for this follower: do not wait for the
                # regular refresh of metadata.
                consumer._client.force_metadata_update()
        elif transport.rests(tp):
            consumer.pause(tp)
        elif transport.follows(tp):
            if offset is not None:
                consumer.seek(tp, offset)
            consumer.resume(tp)
            consumer._fetcher._notify(consumer._fetcher._wait_consume_future)

    async def seek_to_committed(self) -> Any:
        """Seek to the group's offsets. For any thread."""
        return await self.call_thread(self._seek_to_committed)

    async def _seek_to_committed(self) -> Any:
        # aiokafka leaves out offset 0. Records that were fetched from there and dropped by a rebalance would be lost.
        transport, consumer = self.consumer.transport, self._ensure_consumer()
        committed = await consumer.seek_to_committed()
        for tp, offset in committed.items():
            # The group knows of a log only the offset that it was given at the start.
            following = transport.next_offset(tp)
            if following is not None and following > (offset or 0):
                consumer.seek(tp, following)
                committed[tp] = following
            elif offset == 0 or (offset is None and not transport.is_placed(tp)):
                consumer.seek(tp, 0)
        return committed


class _Consumer(aiokafka.Consumer):
    transport: Any
    _thread: Any

    def _new_consumer_thread(self) -> aiokafka.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:  # noqa: ASYNC109 - Faust's signature
        """Wait for the first of some coroutines, as Faust does; make no tasks if the first one need not wait.

        Faust makes four tasks for each record: for the stream that takes it, and for all that may end the wait.
        """
        if timeout is not None or not asyncio.iscoroutine(coros[0]):
            return await super().wait_first(*coros, timeout=timeout)
        first, *others = coros
        waits = False
        try:
            begun = Begun(first)
            waits = not begun.is_done
        finally:
            if not waits:
                _close(others)
        if waits:
            return await super().wait_first(begun, *others)
        return WaitResults([first], [begun.result], stopped=False)

    async def sleep(self, n: Seconds) -> None:
        """Sleep for ``n`` seconds or until the stop; for 0, only let others run, without a task."""
        await (super().sleep(n) if n else asyncio.sleep(0))

    def _set_active_tps(self, tps: set[TP]) -> set[TP]:
        return super()._set_active_tps({tp for tp in tps if self.transport.follows(tp)})

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume those partitions that are followed."""
        super().resume_partitions({tp for tp in tps if self.transport.follows(tp)})

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Check that a partition makes progress, if it is followed and does not rest."""
        if self.transport.follows(tp) and not self.transport.rests(tp):
            super().verify_event_path(now, tp)

    async def turn(self, tp: TP, *, look: bool = False) -> None:
        """Rest or wake a partition."""
        offset = None if self.transport.rests(tp) else self.transport.next_offset(tp)
        if offset is not None:
            self._read_offset[tp] = offset
        # If the thread has not begun yet, this waits for it.
        await self._thread.turn(tp, offset, look=look)

    async def follow(self, tp: TP) -> None:
        """Fetch one more partition. If it is not assigned yet, the assignment will find it followed."""
        await self.turn(tp, look=True)
        if tp in self.assignment():
            self.resume_partitions({tp})


class _Unpaused:
    """What aiokafka's fetcher reads of an assignment, without the partitions that are paused."""

    def __init__(self, assignment: Any) -> None:
        self.state_value = assignment.state_value
        self.tps = [tp for tp in assignment.tps if not assignment.state_value(tp).paused]


def pass_by_paused(fetcher: Any) -> None:
    """Have aiokafka's fetcher not look at paused partitions; whoever resumes one must notify it.

    Before each request it looks at all that is assigned, and waits for each paused partition by a future of its own. A
    datanode is assigned 64 partitions and follows two: that was a tenth of its time under load.
    """
    actions = fetcher._get_actions_per_node
    fetcher._get_actions_per_node = lambda assignment: actions(_Unpaused(assignment))
    fetcher._fetcher_timeout = LOOK_S


def _close(coroutines: Iterable[Any]) -> None:
    """End coroutines that nobody will await."""
    for one in coroutines:
        if asyncio.iscoroutine(one):
            one.close()


def _ask_for(fetcher: Any, min_bytes: int, wait_ms: int) -> None:
    # Faust has no setting for these; aiokafka's fetcher reads them for each request.
    fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = min_bytes, wait_ms


def _broken_place(fetcher: Any, said: str) -> tuple[str, int, int]:
    """Return (topic, partition, offset) of the batch that aiokafka has just refused; the error has no offset."""
    for place, found in fetcher._records.items():
        batches = getattr(found, "_partition_records", None)
        if batches is not None and repr(place) in said:
            return place.topic, place.partition, batches.next_fetch_offset
    return "a topic", -1, -1


class FollowerTransport(aiokafka.Transport):
    """The transport for a follower's app; ``fatal`` ends the process with the error that it gets."""

    Consumer = _Consumer

    def __init__(
        self, *arguments: Any, fatal: Callable[[BaseException], None],
        follows: Iterable[tuple[str, int]] | None = None, placed: int | None = None,
        flowing_wait_ms: int = FLOWING_WAIT_MS, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **options)
        self.flowing_wait_ms = flowing_wait_ms
        self.fatal = fatal
        self._lock = Lock()
        self._follows = None if follows is None else set(follows)
        self._resting: set[tuple[str, int]] = set()
        self._hurries_until_s = 0.0
        self.next_offset: Callable[[TP | TopicPartition], int | None] = lambda _: None
        """Returns the offset from which a partition is wanted, None if the group's will do. Set it before the start."""
        self._placed = placed

    @property
    def hurries(self) -> bool:
        """Whether records are wanted as soon as they are there."""
        return time.monotonic() < self._hurries_until_s

    def hurry(self) -> None:
        """Fetch records as soon as they are there, for HURRY_S: somebody waits for one. For any thread."""
        was, self._hurries_until_s = self.hurries, time.monotonic() + HURRY_S
        if not was and (fetcher := self._fetcher()) is not None:
            _ask_for(fetcher, IDLE_MIN_BYTES, IDLE_WAIT_MS)

    def _fetcher(self) -> Any:
        """Return aiokafka's fetcher; None before it runs."""
        consumer = self._consumer()
        thread = None if consumer is None else consumer._thread
        inner = None if thread is None else thread._consumer
        return None if inner is None else inner._fetcher

    def follows(self, tp: TP | TopicPartition) -> bool:
        """Whether a partition is fetched."""
        with self._lock:
            return self._follows is None or (tp.topic, tp.partition) in self._follows

    def rests(self, tp: TP | TopicPartition) -> bool:
        """Whether a partition rests: it is not fetched for now."""
        with self._lock:
            return (tp.topic, tp.partition) in self._resting

    def rest(self, topic: str, partition: int) -> None:
        """Stop fetching a partition until it is woken. May be called from any thread, at any time."""
        with self._lock:
            self._resting.add((topic, partition))
        self._turn(topic, partition)

    def wake(self, topic: str, partition: int) -> None:
        """Fetch a partition again, from ``next_offset`` on; earlier records may come too.

        May be called from any thread, at any time.
        """
        with self._lock:
            if (topic, partition) not in self._resting:
                return
            self._resting.remove((topic, partition))
        self._turn(topic, partition)

    def _turn(self, topic: str, partition: int) -> None:
        if (consumer := self._consumer()) is not None:
            self._run(consumer.turn(TP(topic, partition)))

    def _consumer(self) -> Any:
        """Return Faust's consumer; None before it runs. A later assignment will ask this transport."""
        app: Any = self.app
        # Check in this order: the loop of an app that has not started yet would be that of the calling thread.
        return app._consumer if app._consumer is not None and app.loop.is_running() else None

    def _run(self, turning: Coroutine[Any, Any, None]) -> None:
        def done(future: Future[None]) -> None:
            # Without this, a partition that was not woken would stand still, and nobody would know why.
            error = None if future.cancelled() else future.exception()
            if error is not None and not self.app.should_stop:
                self.fatal(error)

        asyncio.run_coroutine_threadsafe(turning, self.app.loop).add_done_callback(done)

    def is_placed(self, tp: TP | TopicPartition) -> bool:
        """Whether the group was given an offset for a partition at the start."""
        return self._placed is None or tp.partition < self._placed

    def follow(self, topic: str, partition: int) -> None:
        """Fetch one more partition. May be called from any thread, at any time; its replica must exist before."""
        with self._lock:
            if self._follows is None or (topic, partition) in self._follows:
                return
            self._follows.add((topic, partition))
        if (consumer := self._consumer()) is not None:
            self._run(consumer.follow(TP(topic, partition)))
