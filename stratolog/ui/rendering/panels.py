"""The panels of the page, each as HTML, by the id of the element that holds it; the words of their cells."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streaming.records.core.freshness import age_words
from stratolog.ui.core.board import Board
from stratolog.ui.core.observed import RowCount
from stratolog.ui.core.replica_grid import ReplicaCell
from stratolog.ui.core.sentence import shortened
from stratolog.ui.core.storage_rows import BucketUsage, DatanodeLine, ScanFigures, StreamFigures
from stratolog.ui.core.traffic import Traffic
from stratolog.ui.core.words import Tone, bytes_of, count_of, listed, partition_words, worst
from stratolog.ui.rendering.charts import HEIGHT, WIDTH, rate_chart
from stratolog.ui.rendering.markup import rendered

SHOWN_RATES = 6
SHOWN_LAGS = 6
MAX_WIDE_COLUMNS = 6
"""A grid with more partitions has small cells: the number of the partition, and the tone."""


def panels_of(board: Board) -> Mapping[str, str]:
    """Return each panel's HTML by its id."""
    return {
        "sentence": _sentence_panel(board),
        "grid": _grid_panel(board),
        "traffic": _traffic_panel(board.traffic),
        "lag": _lag_panel(board),
        "timeline": rendered("timeline.html", events=board.events, now_ms=board.now_ms),
        "datanodes": _datanodes_panel(board),
        "namespace": rendered("namespace.html", usage=board.usage, counted_of=_counted, quota_of=_quota),
    }


def _sentence_panel(board: Board) -> str:
    """Return the sentence, with what explains it and what could not be read."""
    more = [shortened(line) for line in (board.sentence.more, *board.trouble) if line]
    return rendered("sentence.html", sentence=board.sentence, more=" · ".join(more))


# -- the grid ----------------------------------------------------------------------------------------------------------


def _grid_panel(board: Board) -> str:
    """Return the grids; each cell is a button that opens the replica's dialog."""
    return rendered(
        "grids.html", grids=board.grids, MAX_WIDE_COLUMNS=MAX_WIDE_COLUMNS, where_of=_where, ages_of=_ages,
        said_of=_said, is_seen=_is_seen,
    )  # fmt: skip


def _said(cell: ReplicaCell) -> str:
    log, shard, _ = cell.replica
    return f"{partition_words(log, shard)}: {cell.verdict}, {cell.role}"


def _is_seen(cell: ReplicaCell) -> bool:
    """Whether a small cell has its number; the row says that a node does not answer."""
    return cell.tone is not Tone.GOOD and (cell.index is not None or cell.tone is Tone.BAD)


def _where(cell: ReplicaCell) -> str:
    where = cell.role if cell.index is None else f"{cell.role} at {cell.index:,}"
    return f"{where} (−{cell.behind:,})" if cell.behind else where


def _ages(cell: ReplicaCell) -> str:
    ages = [f"{age_words(cell.age_ms)} ago"] if cell.age_ms is not None else []
    ages += [f"scan {age_words(cell.scanned_ms)} ago"] if cell.scanned_ms is not None else []
    return ", ".join(ages) or "never judged"


# -- rates and lags ----------------------------------------------------------------------------------------------------


def _traffic_panel(traffic: Traffic) -> str:
    """Return the rates: now, over time, by type and result."""
    chart = rate_chart(() if traffic.age_ms is None else traffic.points)
    return rendered(
        "traffic.html", traffic=traffic, chart=chart, WIDTH=WIDTH, HEIGHT=HEIGHT, SHOWN_RATES=SHOWN_RATES
    )  # fmt: skip


def _lag_panel(board: Board) -> str:
    """Return the lag of the replicas that are furthest behind, and that of the audit in every partition."""
    replicas = board.replica_lags
    return rendered(
        "lag.html", replicas=replicas, behind=[lag for lag in replicas if lag.behind is None or lag.behind],
        audits=board.audit_lags, tone=worst([lag.tone for lag in replicas]), SHOWN_LAGS=SHOWN_LAGS,
    )  # fmt: skip


# -- below -------------------------------------------------------------------------------------------------------------


def _datanodes_panel(board: Board) -> str:
    """Return the datanodes with what they hold."""
    return rendered(
        "datanodes.html", lines=board.datanodes, streams_of=_streams, scans_of=_scans, troubles_of=_troubles
    )  # fmt: skip


def _streams(streams: StreamFigures) -> str:
    if streams.completed is None:
        return f"{streams.active:,} open"
    failed = f", {streams.failed:,} failed" if streams.failed else ""
    return f"{streams.active:,} open, {streams.completed:,} done{failed}"


def _scans(scans: ScanFigures | None) -> str:
    if scans is None:
        return "–"
    bad = f", {count_of(scans.bad_cells, 'bad cell')}" if scans.bad_cells else ""
    return f"{count_of(scans.rounds, 'round')}, {bytes_of(scans.read_bytes)} read{bad}"


def _troubles(line: DatanodeLine) -> str:
    words = [*line.faults, *line.installing]
    if line.unhealthy_blocks:
        words.append(f"{count_of(line.unhealthy_blocks, 'damaged block')}")
    if line.used_bytes is None:
        words.append("does not answer" + (f", silent for {age_words(line.silent_ms)}" if line.silent_ms else ""))
    return listed(words) or "nothing"


def _counted(count: RowCount | None) -> str:
    if count is None:
        return "not known"
    return f"{count.rows:,} and more" if count.is_cut else f"{count.rows:,}"


def _quota(one: BucketUsage) -> str:
    words = [bytes_of(one.quota_bytes)] if one.quota_bytes > 0 else []
    words += [count_of(one.quota_keys, "key")] if one.quota_keys > 0 else []
    return " and ".join(words)
