"""All that the page shows at a moment, folded from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratolog.ui.core.lags import AuditLag, ReplicaLag, audit_lags, replica_lags
from stratolog.ui.core.observed import Observed, TimelineEvent
from stratolog.ui.core.replica_grid import ReplicaGrid, grids_of
from stratolog.ui.core.sentence import Sentence, sentence_of
from stratolog.ui.core.storage_rows import DatanodeLine, UsageSummary, fleet_lines, usage_of
from stratolog.ui.core.traffic import Traffic, traffic_of

SHOWN_EVENTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The views, from the top of the page down."""

    cluster: str
    now_ms: int
    sentence: Sentence
    grids: Sequence[ReplicaGrid]
    traffic: Traffic
    replica_lags: Sequence[ReplicaLag]
    audit_lags: Sequence[AuditLag]
    events: Sequence[TimelineEvent]
    datanodes: Sequence[DatanodeLine]
    usage: UsageSummary
    stopped: Sequence[str]
    trouble: Sequence[str]


def board_of(seen: Observed) -> Board:
    """Return the views of what was observed."""
    grids = grids_of(seen)
    return Board(
        cluster=seen.cluster, now_ms=seen.now_ms, sentence=sentence_of(seen), grids=grids, traffic=traffic_of(seen),
        replica_lags=replica_lags(grids), audit_lags=audit_lags(seen, grids),
        events=sorted(set(seen.events), key=lambda event: -event.at_ms)[:SHOWN_EVENTS], datanodes=fleet_lines(seen),
        usage=usage_of(seen), stopped=seen.stopped, trouble=seen.trouble,
    )  # fmt: skip
