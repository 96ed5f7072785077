"""What the audit writes of a micro-batch: verdicts, barriers, and what partitions still wait for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.records.messages import Verdict
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.verdicts.core.digests import Sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogBarrier:
    """A barrier in the audit's output, with its log; ``sums`` is None where late validation hides them from the log."""

    log: str
    shard: int
    offset: int
    index: int
    chain: bytes
    sums: Sums | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """A micro-batch once it is written; its number is Spark's.

    ``news``: how many reports it took, and records other than Ticks: leaders of datanodes append those for ever.
    ``deadlines``: of each partition that had rows, when a missing report is judged, in ms since the epoch; None if none
    is missing.
    """

    batch_id: int
    verdicts: Sequence[Verdict] = ()
    barriers: Sequence[LogBarrier] = ()
    news: int = 0
    deadlines: Mapping[ReportedPartition, int | None] = field(default_factory=dict)

    @property
    def has_news(self) -> bool:
        """Whether there was something to audit, or to say."""
        return bool(self.news or self.verdicts)
