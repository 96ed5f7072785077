"""Reading heartbeats: every node reads all of ``dn.heartbeats``, and keeps the picture from which its leaders allocate.

Rules:
    - Partitions are assigned without a group: each node hears everything. Reading begins one time-out back, so that a
      node that starts has a picture at once. The age of a heartbeat is the broker's timestamp against this machine's
      clock, cut to 0..time-out.
    - The picture is made anew at most each REFRESH_MS, and without news each QUIET_REFRESH_MS, from the heartbeats and
      shard 0's rows as they are applied here.
      Leaders use the latest picture: they read one attribute, and never wait.
    - Nothing here decides. An old or wrong picture costs a client a retry, or a loop a turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from om_processors.config import NodeConfig
from om_processors.fleet.core import placement
from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.namespace import tables
from om_processors.namespace.context import Allocation
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S, consumer_settings
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.codecs.codec import Undecodable, decode_as
from schemas.features import DELETION_GRACE, PIPELINE_GENERATIONS
from schemas.records.datanode import Heartbeat
from schemas.topics import DN_HEARTBEATS, SILENT_BROKER_MS

REFRESH_MS = 200
QUIET_REFRESH_MS = 1_000
"""How old the picture may get while nothing is heard and no row changes: datanodes grow old in it."""
POLL_S = 0.2
FETCH_WAIT_MS = 500
"""How long a broker may hold a question for heartbeats while there are none."""
MAX_MESSAGES = 500
RETRY_S = 1.0
NOTHING = Allocation(pipelines=(), closed_containers=frozenset(), generations={}, with_room=frozenset())


class LatestAllocation:
    """Where blocks may be allocated, by the latest picture; NOTHING before the first.

    It is made before the replicas.
    """

    def __init__(self) -> None:
        self.now = NOTHING

    def choose(self) -> Allocation:
        """Return where blocks may be allocated now; never waits."""
        return self.now


class FleetView(Background):
    """The node's present picture, for loops and readers. It updates ``allocation`` for the leaders' threads."""

    def __init__(
        self, config: NodeConfig, replica: Replica, allocation: LatestAllocation, clock: Clock, note: Note,
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        """``replica`` is shard 0's."""
        super().__init__("heartbeats", fatal)
        self._config = config
        self._replica = replica
        self._clock = clock
        self._note = note
        self._fleet = Fleet(
            cluster=config.cluster, timeout_ms=config.datanode_timeout_ms, min_free_bytes=config.block_bytes,
            since_ms=clock.elapsed_ms(),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._ends: dict[int, int] = {}
        """Where each partition ended when listening began: what lies behind was sent since, so it is young."""
        self._allocation = allocation
        self.picture: Picture = self._fleet.picture((), (), clock.elapsed_ms())

    def refresh(self) -> Picture:
        """Make the picture anew, from the heartbeats and the rows as they are applied now."""
        with self._lock:
            with self._replica.lock:
                pipelines, rows = tables.pipelines(self._replica.rows), tables.datanodes(self._replica.rows)
                level = self._replica.state.feature_level
            self.picture = picture = self._fleet.picture(
                pipelines, rows, self._clock.elapsed_ms(), reopens=level >= PIPELINE_GENERATIONS,
                names_rows=level >= DELETION_GRACE,
            )  # fmt: skip
            self._allocation.now = Allocation(
                pipelines=placement.choices(picture), closed_containers=picture.closed_containers,
                generations=placement.generations(picture),
                with_room=picture.containers_with_room(self._config.container_bytes), gone=placement.GoneDatanodes(picture),
            )  # fmt: skip
            return picture

    def run(self) -> None:
        """Listen; begin again after a broker's error or a long silence."""
        while not self._stop.is_set():
            try:
                self._listen()
            except KafkaException as error:
                self._note(f"heartbeats of datanodes: {error}; trying again")
                self._stop.wait(RETRY_S)

    def _listen(self) -> None:
        options = {"auto.offset.reset": "latest", "fetch.wait.max.ms": FETCH_WAIT_MS}
        consumer = Consumer(consumer_settings(self._config.bootstrap_servers, **options))
        try:
            self._assign(consumer)
            heard_ms = now_ms = self._clock.elapsed_ms()
            refreshed_ms, seen_index = now_ms - max(REFRESH_MS, QUIET_REFRESH_MS), -1
            # A silent broker may be cut off from the others (replicated_db/shell/kafka/fresh_consumer.py).
            while not self._stop.is_set() and now_ms - heard_ms < SILENT_BROKER_MS:
                now_ms = self._clock.elapsed_ms()
                for message in consumer.consume(MAX_MESSAGES, POLL_S):
                    self._hear(message)
                    heard_ms = now_ms
                index = self._replica.position.index
                has_news = heard_ms > refreshed_ms or index != seen_index
                if now_ms - refreshed_ms >= (REFRESH_MS if has_news else QUIET_REFRESH_MS):
                    self.refresh()
                    refreshed_ms, seen_index = now_ms, index
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        """Place the consumer one time-out back in every partition. Raises KafkaException."""
        found = consumer.list_topics(DN_HEARTBEATS, timeout=REQUEST_TIMEOUT_S).topics[DN_HEARTBEATS]
        if found.error is not None:
            raise KafkaException(found.error)
        since_ms = self._clock.wall_ms() - self._config.datanode_timeout_ms
        places = [TopicPartition(DN_HEARTBEATS, partition, since_ms) for partition in found.partitions]
        # A partition without so young a record is placed at its end.
        self._ends = {
            place.partition: consumer.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S)[1] for place in places
        }
        consumer.assign(consumer.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S))

    def _hear(self, message: Message) -> None:
        if message.error() is not None:
            return  # librdkafka goes on by itself
        try:
            heartbeat = decode_as(Heartbeat, message.value() or b"")
        except Undecodable as error:
            self._note(f"a heartbeat on {DN_HEARTBEATS} is unreadable: {error}")
            return
        with self._lock:
            self._fleet.on_heartbeat(heartbeat, self._clock.elapsed_ms() - self._age_ms(message))

    def _age_ms(self, message: Message) -> int:
        """Return the age of a heartbeat: 0 of one that was sent since listening began, whatever the wall clock says.

        The wall clock may be set while a node leads. If it were asked always, all datanodes could seem dead for good.
        """
        if (message.offset() or 0) >= self._ends[message.partition() or 0]:
            return 0
        age_ms = self._clock.wall_ms() - message.timestamp()[1]
        return max(0, min(age_ms, self._config.datanode_timeout_ms))
