"""Audit reports of a process's replicas, and all other records that it sends beside the log, through one producer.

A lost record does no harm: a report that is missed makes a verdict ``unknown``. All the same, all brokers in sync must
acknowledge it. A broker that is cut off from the others must not take a record and lose it (decision 0026).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

from confluent_kafka import Producer

from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.core.log.position import Position
from replicated_db.core.ports import Clock, StoreSnapshot
from replicated_db.core.tables.digests import Digests
from replicated_db.shell.logs import Notes
from schemas.codecs.codec import encode
from schemas.column_families import BUCKETS
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import Evidence
from schemas.records.verdict_words import SCAN
from schemas.topics import MAX_MESSAGE_BYTES, SILENT_BROKER_MS

QUEUE_MAX_MESSAGES = 200_000
SCRUB_PAUSE_S = 0.001
"""How long a scan pauses after each few hundred rows, because it shares the interpreter with the leader."""

REPEAT_MS = 20 * 60_000
"""How long a replica whose scans find the same again, at the same barrier, does not say so.

The audit would wake up for each. Scrub barriers make all replicas report sooner; where there are none, `equal` must
not become stale (`spark_streaming.records.core.freshness.OLD_MS`).
"""


Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class ToldScan:
    """What was last told of the stored rows of one replica: their sums as of a barrier, and when, in ms since boot."""

    offset: int
    digests: Digests
    at_ms: int

    def says(self, offset: int, digests: Digests, now_ms: int) -> bool:
        """Say whether the audit knows these sums from it."""
        return offset == self.offset and digests == self.digests and now_ms - self.at_ms < REPEAT_MS


class AuditReports:
    """Reports of every replica of a process, to ``topic``. Safe to use from several threads.

    ``fatal`` is called when a scrub finds that the store cannot be read; it ends the process.
    """

    def __init__(
        self, bootstrap_servers: Brokers, topic: str, clock: Clock, log: Callable[[str], None],
        fatal: Callable[[BaseException], None], observe: Callable[[Replica, Offered], None] | None = None,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._fatal = fatal
        self._clock = clock
        self.observe = observe
        """Called with every counting record that this process applies, on the thread that applies it."""
        self._lock = Lock()
        self._scrubbing: set[int] = set()
        self._scanned: dict[int, dict[int, int]] = {}
        self._told: dict[int, ToldScan] = {}
        self._closed = False
        self._log = log
        # Scans of different shards wait for each other: they are background work.
        self._scrubber = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scrub")
        self._producer = Producer(
            client_settings(
                bootstrap_servers,
                {
                    # A broker that is cut off from the others would acknowledge everything and lose it.
                    "acks": "all",
                    "linger.ms": 0,
                    "message.max.bytes": MAX_MESSAGE_BYTES,
                    "queue.buffering.max.messages": QUEUE_MAX_MESSAGES,
                    "delivery.report.only.error": True,
                    # The topic may grow. librdkafka refuses partitions that it does not know, and by default asks about
                    # new ones every five minutes.
                    "topic.metadata.refresh.interval.ms": SILENT_BROKER_MS,
                    "reconnect.backoff.max.ms": 1000,
                    "socket.timeout.ms": SILENT_BROKER_MS,
                },
            )
        )

    def publish(self, replica: Replica, outcome: Offered) -> None:
        """Publish evidence at once, digests at a barrier, and a scrub's digests when its scan has ended."""
        if self.observe is not None:
            self.observe(replica, outcome)
        if outcome.evidence is not None:
            self._report(replica, "evidence", outcome.position, Digests(replica.families), outcome.evidence)
        if outcome.digests is not None:
            self._report(replica, "incremental", outcome.position, outcome.digests, replica.evidence)
            self._report_scanned(replica, outcome.position, outcome.digests)
        if outcome.snapshot is not None:
            self._start_scrub(replica, outcome, outcome.snapshot)

    def judge_rows(self, replica: Replica, differences: Mapping[int, int], standing: Evidence | None) -> None:
        """Have a replica act on a scan of all its rows: by how much they are off its sums, by slot; {} if nowhere.

        Rows that are wrong end its reads and its leadership at once. ``standing``: its evidence when the scan began.
        """
        shard = replica.identity.shard
        errors = Notes({shard: replica})
        wrong = sorted({replica.families.names[slot // BUCKETS] for slot in differences})
        if not wrong:
            if replica.settle_scanned(standing):
                errors.warning(f"shard {shard}: a full scan finds the rows right again; flag taken away", shard=shard)
            return
        if (evidence := replica.flag_scanned(wrong[0])) is not None:
            errors.error(
                f"shard {shard}: this replica's rows are not those of its digest: {len(differences)} buckets of "
                f"{', '.join(wrong)}. It serves no reads and leads nothing until it is rebuilt",
                shard=shard,
            )
            self._report(replica, "evidence", replica.position, Digests(replica.families), evidence)

    def scanned(self, replica: Replica, differences: Mapping[int, int]) -> None:
        """Take what a rolling scan has found: by how much the rows are off the replica's sums, by slot; {} if nowhere.

        It is reported at a barrier: at the last one if no batch has been applied since, else at the next. An index
        names one state of the rows. What is known already is told again after REPEAT_MS.
        """
        with self._lock:
            self._scanned[replica.identity.shard] = dict(differences)
        position, digests, view = replica.snapshot()
        view.close()
        barrier = replica.barrier
        if barrier is not None and barrier.index == position.index:
            self._report_scanned(replica, barrier, digests)

    def _report_scanned(self, replica: Replica, position: Position, digests: Digests) -> None:
        """Report what was scanned, if that has not been done, as of a barrier with these sums."""
        with self._lock:
            differences = self._scanned.pop(replica.identity.shard, None)
        if differences is None:
            return
        rows = digests.copy()
        rows.change(differences)
        self._report_rows(replica, position, rows)

    def _report_rows(self, replica: Replica, position: Position, rows: Digests) -> None:
        """Report the sums of rows that were read, as of a barrier, unless a scan has told the same of it.

        A rolling scan may end just before a scrub barrier: its sums and those of the barrier's own scan are one report.
        """
        shard, now_ms = replica.identity.shard, self._clock.elapsed_ms()
        with self._lock:
            told = self._told.get(shard)
            if told is not None and told.says(position.offset, rows, now_ms):
                return
            self._told[shard] = ToldScan(position.offset, rows, now_ms)
        # What a scan has found is in these very sums. They are told as any others, so that the audit compares them.
        evidence = replica.evidence
        self._report(
            replica, "scrubbed", position, rows, None if evidence is not None and evidence.claim == SCAN else evidence
        )

    def _start_scrub(self, replica: Replica, outcome: Offered, snapshot: StoreSnapshot) -> None:
        """Scan in the background, one scan per shard at a time. A scrub left out is `unknown` to the audit."""
        shard = replica.identity.shard
        with self._lock:
            busy = shard in self._scrubbing or self._closed
            self._scrubbing.add(shard)
        if busy:
            snapshot.close()
            self._log(f"scrub of shard {shard} at {outcome.position.offset} left out: the last one still runs")
        else:
            self._scrubber.submit(self._scrub, replica, outcome, snapshot)

    def _scrub(self, replica: Replica, outcome: Offered, snapshot: StoreSnapshot) -> None:
        position, standing = outcome.position, replica.evidence
        try:
            digests = replica.scan(snapshot, partial(time.sleep, SCRUB_PAUSE_S))
            if outcome.digests is not None:
                self.judge_rows(replica, digests.off(outcome.digests), standing)
            self._report_rows(replica, position, digests)
        except StoreFailure as error:
            self._fatal(StoreFailure(f"shard {replica.identity.shard}: scrub at {position.offset}: {error}"))
        except Exception as error:  # a failed scan means no report, and the audit says `unknown`
            self._log(f"scrub of shard {replica.identity.shard} failed: {error}")
        finally:
            snapshot.close()
            with self._lock:
                self._scrubbing.discard(replica.identity.shard)

    def _report(
        self, replica: Replica, basis: str, position: Position, digests: Digests, evidence: Evidence | None
    ) -> None:
        offset = -1 if basis == "evidence" else position.offset
        report = audit_report(replica.identity, basis, offset, position, digests, evidence, self._clock.wall_ms())
        identity = replica.identity
        # Members need not decode a report without evidence.
        headers: Headers = [("kind", basis.encode()), ("flagged", b"0" if evidence is None else b"1")]
        self.send(self._topic, encode(report), f"{identity.shard}/{identity.node}".encode(), identity.shard, headers)

    def send(self, topic: str, value: bytes, key: bytes, partition: int, headers: Headers | None = None) -> None:
        """Send one record to ``partition`` (-1: by its key). A record that cannot be sent is noted in the log."""
        try:
            self._producer.produce(topic, value, key, partition, headers=headers or [])
            self._producer.poll(0)
        except Exception as error:
            self._log(f"{topic}: not sent: {error}")

    def close(self) -> None:
        """Send the records that are queued, for at most five seconds."""
        with self._lock:
            self._closed = True
        self._scrubber.shutdown(wait=False, cancel_futures=True)
        self._producer.flush(5)
