"""A node that follows one shard's log, without brokers, and what it publishes and notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import Offered
from replicated_db.core.tables.memory import SequenceIds
from replicated_db.shell.database.database import DatabaseService, ReplicatedDatabase
from replicated_db.shell.database.follower import Follower
from schemas.codecs.codec import encode
from schemas.records.messages import Evidence
from tests.support.replicated.kit import LIMITS, NODES, Kit, Shard


class Following:
    """A follower of one node of a shard; the shard's leader is n1."""

    def __init__(
        self, node: str = "n2", shard: Shard | None = None, members: Sequence[str] = NODES, log_topic: str = "log",
        audit_topic: str = "audit",
    ) -> None:  # fmt: skip
        self.shard = shard or Shard()
        self.replica = self.shard.nodes[node].replica
        self.notes: list[tuple[str, dict[str, int]]] = []
        self.errors: list[BaseException] = []
        self.published: list[tuple[Any, Offered]] = []
        outbox: Any = self
        service = DatabaseService(
            executes=Kit(), intake=self._no_intake, outbox=outbox, reports=outbox, limits=LIMITS, address="",
            replicas=NODES,
        )  # fmt: skip
        self.database = ReplicatedDatabase(
            self.replica, self.shard.log, service, clock=self.shard.clock, ids=SequenceIds(seed=9), note=self._note,
            members=frozenset(members),
        )  # fmt: skip
        self.loop = self.database.loop
        self.follower = Follower(log_topic, audit_topic, {0: self.database}, self._note, self.errors.append)

    def _note(self, text: str, **at: Any) -> None:
        self.notes.append((text, at))

    def _no_intake(self, _: Any) -> Any:
        raise AssertionError("this node does not lead")

    def publish(self, replica: Any, outcome: Offered) -> None:
        self.published.append((replica, outcome))

    def take(self, offset: int) -> None:
        asyncio.run(self.follower.take(0, offset, self.shard.log.entries[offset].value))

    def hear(self, node: str, evidence: Evidence | None, **headers: bytes) -> None:
        """Hear a report, with the headers of one that has evidence unless others are given."""
        identity = type(self.replica.identity)(cluster="test", shard=0, shards=1, node=node)
        report = audit_report(identity, "evidence", -1, self.replica.position, self.replica.digests, evidence, 0)
        self.follower.on_report(b"0/" + node.encode(), headers, encode(report))
