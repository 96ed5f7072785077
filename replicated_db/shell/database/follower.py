"""The follower: it feeds this process's databases with the records of their log topic, through a Faust app (design, 5).

Rules:
    - Records of a claim that leads in this process are left to the leader's thread, which has them decoded already.
      When that leader stops leading, the follower reads from the log the records that the leader left unapplied.
    - Faust acknowledges on exception. So a failure to apply ends the process before Faust hears of it.
    - No record of the reports' topic may end a node: anybody may have written it.

``replicated_db.shell.follower`` makes the app, and says what it fetches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import faust

from replicated_db.shell.database.database import ReplicatedDatabase
from replicated_db.shell.logs import Note
from schemas.codecs.codec import Undecodable, decode_as
from schemas.records.messages import AuditReport
from schemas.records.verdict_words import INCREMENTAL

if TYPE_CHECKING:
    from replicated_db.shell.tracing.follower_spans import FollowerSpans

PARTITION = re.compile(r"[0-9]{1,9}")
"""A partition's number in a report's key."""

NO_REPLICA_REPORT = b"blocks"
"""Kind (a header) of those reports on the same topic that say nothing about rows."""


class Follower:
    """Feeds databases, by shard, and has them hear the other members' reports. ``databases`` may grow meanwhile."""

    def __init__(
        self, log_topic: str, audit_topic: str, databases: Mapping[int, ReplicatedDatabase], note: Note,
        fatal: Callable[[BaseException], None], spans: FollowerSpans | None = None,
    ) -> None:  # fmt: skip
        self._log_topic = log_topic
        self._audit_topic = audit_topic
        self._databases = databases
        self._note = note
        self._fatal = fatal
        self.spans = spans
        """Where the spans of traced requests go; None leaves none."""
        self.unreadable_reports = 0

    def attach(self, app: faust.App) -> None:
        """Subscribe the app to the log and to the reports."""
        # The log is not acknowledged: the position is the replica's. Faust would see gaps, because records are left out
        # while a leader is at work.
        log = app.topic(self._log_topic, value_serializer="raw", key_serializer="raw", acks=False)
        audit = app.topic(self._audit_topic, value_serializer="raw", key_serializer="raw")
        transport: Any = app.transport
        transport.next_offset = self._next_offset

        @app.agent(log, name="apply")
        async def apply(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                if self.spans is not None and message.headers:
                    await self._take_traced(self.spans, message)
                else:
                    await self.take(message.partition, message.offset, message.value or b"")

        @app.agent(audit, name="hear")
        async def hear(stream: Any) -> None:
            async for event in stream.events():
                message = event.message
                self._guard(self.on_report, message.key, dict(message.headers or ()), message.value)

    def _next_offset(self, tp: Any) -> int | None:
        """Return the offset from which a partition is wanted: after the last one its replica read; None for reports."""
        database = self._databases.get(tp.partition) if tp.topic == self._log_topic else None
        return None if database is None else database.replica.read_offset + 1

    def _guard(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except BaseException as error:
            self._fatal(error)

    async def take(self, shard: int, offset: int, value: bytes) -> None:
        """Leave a record to this node's leader, or apply it after any records that this leader left unapplied.

        Brokers may be slow to tell what the leader left, so that is read beside the event loop.
        """
        database = self._databases[shard]
        if database.leaves_to_leader(value):
            return
        if database.has_gap(offset):
            await asyncio.to_thread(self._guard, database.fill, offset)
        self._guard(database.apply, offset, value)

    async def _take_traced(self, spans: FollowerSpans, message: Any) -> None:
        """Do what ``take`` does, and leave spans if the record is applied here."""
        shard, offset, begun_ns = message.partition, message.offset, spans.now_ns()
        replica = self._databases[shard].replica
        before = replica.read_offset
        await self.take(shard, offset, message.value or b"")
        if before < offset <= replica.read_offset:
            spans.applied(message.headers, shard, offset, round(message.timestamp * 1000), begun_ns)

    def on_report(self, key: bytes | None, headers: Mapping[str, bytes], value: bytes | None) -> None:
        """Have a member's report heard. A healthy member's says so in its headers.

        It is not decoded, unless its digest may settle this node's evidence. Any other record on the topic is skipped.
        """
        kind = headers.get("kind")
        if kind == NO_REPLICA_REPORT:
            return
        if headers.get("flagged") == b"0":
            decodes = False
            shard, _, node = (key or b"").decode(errors="replace").partition("/")
            if PARTITION.fullmatch(shard) and (database := self._databases.get(int(shard))) is not None:
                database.hear_healthy(node)
                decodes = database.unsettled and kind == INCREMENTAL.encode()
            if not decodes:
                return
        try:
            report = decode_as(AuditReport, value or b"")
        except Undecodable as error:
            self.unreadable_reports += 1
            if (count := self.unreadable_reports).bit_count() == 1:  # the first, second, fourth … one
                self._note(f"a report on {self._audit_topic} is unreadable, the {count}. one: {error}")
            return
        if (database := self._databases.get(report.shard)) is not None:
            database.hear(report)
