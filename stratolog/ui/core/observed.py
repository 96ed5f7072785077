"""What was observed of a cluster at a moment: the input of all views. Pure.

Statuses are nodes' answers as they came (``om_processors/serving/node_status.py``, ``datanode_processors/status.py``);
None stands for a node that does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.records.messages import Verdict, WindowStats
from spark_streaming.records.core.freshness import ReportedPartition
from stratolog.ui.core.words import Tone

Json = Mapping[str, Any]


class TimelineEvent(NamedTuple):
    """Something that happened at a time (ms since the epoch) to a partition, or to a process, in words."""

    at_ms: int
    where: str
    text: str
    tone: Tone


class IndexSample(NamedTuple):
    """The sum of the shards' newest managed indexes at a time (ms since the epoch)."""

    at_ms: int
    indexes: int


class RowCount(NamedTuple):
    """Rows of a column family, in all shards together; ``is_cut``: there are more, or a shard was not counted."""

    rows: int
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was read last of each source; ``trouble`` says in words what could not be read.

    ``waiting`` has the counts by column family, none of a family that no node counts. ``is_cut_off`` says that no
    broker listens.
    """

    now_ms: int
    cluster: str
    shards: int
    nodes: Mapping[str, Json | None]
    verdicts: Sequence[Verdict] = ()
    reported_ms: Mapping[ReportedPartition, int] = field(default_factory=dict)
    windows: Sequence[WindowStats] = ()
    datanodes: Sequence[Json] = ()
    pipelines: Sequence[Json] = ()
    datanode_statuses: Mapping[str, Json | None] = field(default_factory=dict)
    buckets: Sequence[Json] = ()
    buckets_cut: bool = False
    waiting: Mapping[str, RowCount] = field(default_factory=dict)
    events: Sequence[TimelineEvent] = ()
    samples: Sequence[IndexSample] = ()
    stopped: Sequence[str] = ()
    trouble: Sequence[str] = ()
    is_cut_off: bool = False
