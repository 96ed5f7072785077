"""The audit of one shard as Spark runs it, without Spark: micro-batches in, verdicts out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.records.messages import AuditReport, Verdict
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.shard_state import AuditState, Finding, KeptBarrier, MatchingLimits
from spark_streaming.verdicts.state import state_from, state_row
from tests.support.audit.auditmodel import MatchingState, ReportsInMemory, log_rows, report
from tests.support.logs.logbuilder import LogBuilder

LIMITS = MatchingLimits(report_timeout_ms=1000)


class Auditor:
    """A ShardAudit whose state goes through its stored form between micro-batches, as in Spark."""

    def __init__(self, limits: MatchingLimits = LIMITS, shard: int = 0) -> None:
        self.shard = shard
        self.limits = limits
        self.row: tuple[str, bytes] | None = None
        self.store = MatchingState(shard)
        self.read = 0
        self.findings: list[Finding] = []
        self.topic: ReportsInMemory | None = ReportsInMemory()

    def audit(self) -> ShardAudit:
        state: AuditState = state_from(self.row, len(OM_COLUMN_FAMILIES))
        return ShardAudit(
            shard=self.shard, families=OM_COLUMN_FAMILIES, limits=self.limits, state=state, store=self.store,
            topic=self.topic,
        )  # fmt: skip

    def take(self, values: list[bytes], reports: list[AuditReport] | None = None, now_ms: int = 0) -> list[Verdict]:
        """Read what is new in a log, and reports, in one micro-batch of shuffled rows."""
        audit = self.audit()
        rows = log_rows(values, self.read)
        random.Random(len(rows)).shuffle(rows)
        self.read = max(self.read, len(values))
        first = 0
        if self.topic is not None:
            first = len(self.topic.reports)
            self.topic.reports += reports or []
        found = list(audit.take(rows, [report(r, first + n) for n, r in enumerate(reports or [])], now_ms))
        return self.keep(audit, found)

    def expire(self, now_ms: int) -> list[Verdict]:
        audit = self.audit()
        return self.keep(audit, list(audit.expire(now_ms)))

    def keep(self, audit: ShardAudit, found: Sequence[Finding]) -> list[Verdict]:
        self.row = state_row(audit.state)
        self.findings += found
        return [finding for finding in found if isinstance(finding, Verdict)]

    @property
    def barriers(self) -> list[KeptBarrier]:
        return [finding for finding in self.findings if isinstance(finding, KeptBarrier)]


def told(verdicts: list[Verdict]) -> Counter[tuple[str, str, str]]:
    return Counter((v.node, v.verdict, v.basis) for v in verdicts)


def simple_log() -> LogBuilder:
    log = LogBuilder().start()
    log.batch(log.put("keyTable", b"/v/b/k", b"1"), log.merge(b"/v/b/#usedBytes", 5))
    return log
