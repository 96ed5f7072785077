"""A node that follows one shard's log, without brokers, and what it publishes and notes."""

from __future__ import annotations

import asyncio
from typing import Any

from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import Offered
from replicated_db.core.tables.memory import SequenceIds
from replicated_db.shell.follower import Feed, Follower
from replicated_db.shell.leader_loop import LeaderLoop
from schemas.codecs.codec import encode
from schemas.records.messages import Evidence
from tests.support.replicated.kit import LIMITS, NODES, Kit, Shard


class Following:
    """A follower of one node of a shard; the shard's leader is n1."""

    def __init__(self, node: str = "n2", shard: Shard | None = None) -> None:
        self.shard = shard or Shard()
        self.replica = self.shard.nodes[node].replica
        self.notes: list[tuple[str, dict[str, int]]] = []
        self.errors: list[BaseException] = []
        self.published: list[tuple[Any, Offered]] = []
        outbox: Any = self
        self.loop = LeaderLoop(
            self.replica, self.shard.log, Kit(), LIMITS, clock=self.shard.clock, ids=SequenceIds(seed=9), address="",
            outbox=outbox, intake=self._no_intake, cluster="test", replicas=NODES, hint=lambda: None,
        )  # fmt: skip
        self.follower = Follower(
            Feed(node=node, log_topic="log", audit_topic="audit", members=frozenset(NODES)),
            {0: self.replica}, {0: self.loop}, {0: self.shard.log}, outbox,
            lambda text, **at: self.notes.append((text, at)), self.errors.append,
        )  # fmt: skip

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
