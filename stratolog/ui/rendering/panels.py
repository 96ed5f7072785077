"""The panels of the page, each as HTML, by the id of the element that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from schemas.topics import OM_LOG
from spark_streaming.records.core.freshness import age_words
from stratolog.ui.core.board import Board
from stratolog.ui.core.lags import AuditLag, ReplicaLag
from stratolog.ui.core.observed import RowCount, TimelineEvent
from stratolog.ui.core.replica_grid import ReplicaCell, ReplicaGrid
from stratolog.ui.core.sentence import Sentence, shortened
from stratolog.ui.core.storage_rows import BucketUsage, DatanodeLine, ScanFigures, StreamFigures, UsageSummary
from stratolog.ui.core.traffic import Traffic
from stratolog.ui.core.words import Tone, bytes_of, count_of, listed, partition_words, rate_of, worst
from stratolog.ui.rendering.charts import meter, rate_chart
from stratolog.ui.rendering.markup import Content, Markup, badge, element, facts_line, joined, quiet, table

SHOWN_RATES = 6
SHOWN_LAGS = 6
MAX_WIDE_COLUMNS = 6
"""A grid with more partitions has small cells: the number of the partition, and the tone."""
MARKS = {Tone.GOOD: "✓", Tone.WARN: "!", Tone.BAD: "✕", Tone.STALE: "–", Tone.PLAIN: "·"}
"""Signs beside the colours, for who does not see them."""


def panels_of(board: Board) -> Mapping[str, Markup]:
    """Return each panel's HTML by its id."""
    return {
        "sentence": sentence_panel(board.sentence, board.trouble),
        "grid": joined([grid_panel(grid) for grid in board.grids]),
        "traffic": traffic_panel(board.traffic),
        "lag": lag_panel(board.replica_lags, board.audit_lags),
        "timeline": timeline_panel(board.events, board.now_ms),
        "datanodes": datanodes_panel(board.datanodes),
        "namespace": namespace_panel(board.usage),
    }


def sentence_panel(sentence: Sentence, trouble: Sequence[str]) -> Markup:
    """Return the sentence, with what explains it and what could not be read."""
    more = [shortened(line) for line in (sentence.more, *trouble) if line]
    return element(
        "div",
        element("span", MARKS[sentence.tone], class_="mark", aria_hidden="true"),
        element("div", element("h1", sentence.text), element("p", " · ".join(more) or " ")),
        class_=f"sentence {sentence.tone.value}", data_tone=sentence.tone.value,
    )  # fmt: skip


# -- the grid ----------------------------------------------------------------------------------------------------------


def grid_panel(grid: ReplicaGrid) -> Markup:
    """Return a grid; each cell is a button that opens the replica's dialog."""
    what = "node" if grid.log == OM_LOG else "datanode"
    if len(grid.columns) > MAX_WIDE_COLUMNS:
        return _small_grid(grid, what)
    head = [element("th", what, scope="col"), *(element("th", name, scope="col") for _, name in grid.columns)]
    rows = [
        element("tr", element("th", node, None if answers else badge("no answer", Tone.BAD), scope="row"),
                [element("td", _cell(cell)) for cell in cells])
        for node, answers, cells in grid.rows
    ]  # fmt: skip
    return element("table", element("thead", element("tr", head)), element("tbody", rows), class_="grid")


def _small_grid(grid: ReplicaGrid, what: str) -> Markup:
    """Return a grid of many partitions: a row of small cells for each node."""
    columns = "shards" if grid.log == OM_LOG else "pipelines"
    head = [element("th", what, scope="col"), element("th", f"{len(grid.columns)} {columns}", scope="col")]
    rows = [
        element("tr", element("th", node, None if answers else badge("no answer", Tone.BAD), scope="row"),
                element("td", [_dot(cell) for cell in cells if cell is not None], class_="dots"))
        for node, answers, cells in grid.rows
    ]  # fmt: skip
    return element("table", element("thead", element("tr", head)), element("tbody", rows), class_="grid small-grid")


def _dot(cell: ReplicaCell) -> Markup:
    """Return a small cell, with its number if it is to be seen. No index: all cells would be sent anew each second."""
    log, shard, node = cell.replica
    is_seen = cell.tone is not Tone.GOOD and (cell.index is not None or cell.tone is Tone.BAD)  # else the row says it
    mark = f"{shard}{MARKS[cell.tone]}" if is_seen else None
    said = f"{partition_words(log, shard)}: {cell.verdict}, {cell.role}"
    return element(
        "button", mark, type="button", id=f"cell-{log}-{shard}-{node}",
        class_=f"cell {cell.tone.value}{_leads(cell)}", title=said, aria_label=said,
        data_open=f"replica?{urlencode({'log': log, 'shard': shard, 'node': node})}", data_tone=cell.tone.value,
    )  # fmt: skip


def _cell(cell: ReplicaCell | None) -> Content:
    if cell is None:
        return element("span", "no replica", class_="none")
    log, shard, node = cell.replica
    ages = [f"{age_words(cell.age_ms)} ago"] if cell.age_ms is not None else []
    ages += [f"scan {age_words(cell.scanned_ms)} ago"] if cell.scanned_ms is not None else []
    where = cell.role if cell.index is None else f"{cell.role} at {cell.index:,}"
    behind = f" (−{cell.behind:,})" if cell.behind else ""
    return element(
        "button",
        element("span", element("i", MARKS[cell.tone], aria_hidden="true"), f" {cell.verdict}", class_="verdict"),
        element("span", f"{where}{behind}", class_="where"),
        element("span", ", ".join(ages) or "never judged", class_="ages"),
        type="button", id=f"cell-{log}-{shard}-{node}", class_=f"cell {cell.tone.value}{_leads(cell)}",
        data_open=f"replica?{urlencode({'log': log, 'shard': shard, 'node': node})}", data_tone=cell.tone.value,
    )  # fmt: skip


def _leads(cell: ReplicaCell) -> str:
    return " leads" if cell.role == "leader" else ""


# -- rates and lags ----------------------------------------------------------------------------------------------------


def traffic_panel(traffic: Traffic) -> Markup:
    """Return the rates: now, over time, by type and result."""
    live = "" if traffic.live_per_second is None else rate_of(traffic.live_per_second)
    head = element(
        "p", element("strong", live or "–", class_="figure"), element("span", " indexes/s now, by the replicas")
    )
    if traffic.age_ms is None:
        return joined([head, rate_chart(()), quiet("No windows were counted yet: the audit counts them.")])
    rows = [
        (rate.kind, badge(rate.status, Tone.GOOD if rate.status in ("OK", "LOGGED") else Tone.WARN),
         rate_of(rate.per_second), f"{rate.p50_ms:,}", f"{rate.p99_ms:,}")
        for rate in traffic.rates[:SHOWN_RATES]
    ]  # fmt: skip
    left = len(traffic.rates) - SHOWN_RATES
    window = f"window of {traffic.seconds} s, {age_words(traffic.age_ms)} ago" + (f"; {left} more" if left > 0 else "")
    return joined([
        head, rate_chart(traffic.points),
        table(("request", "result", "/s", "p50 ms", "p99 ms"), rows, numbers=(2, 3, 4), caption="Requests"),
        quiet(window),
    ])  # fmt: skip


def lag_panel(replicas: Sequence[ReplicaLag], audits: Sequence[AuditLag]) -> Markup:
    """Return the lag of the replicas that are furthest behind, and that of the audit in every partition."""
    behind = [lag for lag in replicas if lag.behind is None or lag.behind]
    tone = worst([lag.tone for lag in replicas])
    if replicas and not behind:
        words: Content = element(
            "p",
            badge("level", Tone.GOOD),
            f" all {count_of(len(replicas), 'replica')} stand at the newest index of their partition",
        )
    else:
        rows = [
            (lag.name, lag.where, "no answer" if lag.behind is None else f"{lag.behind:,}")
            for lag in behind[:SHOWN_LAGS]
        ]
        left = len(behind) - SHOWN_LAGS
        more = quiet(f"{left} more are behind") if left > 0 else None
        words = element("div", table(("replica", "of", "behind"), rows, numbers=(2,), caption="Replicas behind"), more)
    seen = [
        (lag.where, badge("silent", Tone.STALE) if lag.tone is Tone.STALE else badge("judges", Tone.GOOD),
         f"{lag.behind:,}", "never" if lag.age_ms is None else f"{age_words(lag.age_ms)} ago")
        for lag in audits[:SHOWN_LAGS]
    ]  # fmt: skip
    audit = table(("audit of", "", "indexes behind", "last verdict"), seen, numbers=(2, 3), caption="Audit")
    left = len(audits) - SHOWN_LAGS
    more = quiet(f"{left} more, none of them further behind") if left > 0 else None
    return element("div", element("div", words), element("div", audit, more), class_="two", data_tone=tone.value)


# -- below -------------------------------------------------------------------------------------------------------------


def timeline_panel(events: Sequence[TimelineEvent], now_ms: int) -> Markup:
    """Return the events, the newest first."""
    if not events:
        return quiet("Nothing has happened as far back as was read.")
    lines = [
        element(
            "li", element("time", clock_of(event.at_ms), title=f"{age_words(now_ms - event.at_ms)} ago"),
            element("span", event.where, class_="place"), element("span", event.text), class_=event.tone.value,
        )
        for event in events
    ]  # fmt: skip
    return element("ol", lines, class_="timeline")


def clock_of(at_ms: int) -> str:
    """Return a time of day in UTC, with its date.

    >>> clock_of(1_767_225_599_999)
    '2025-12-31 23:59:59Z'
    """
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # a stranger's record may say anything


def datanodes_panel(lines: Sequence[DatanodeLine]) -> Markup:
    """Return the datanodes with what they hold."""
    if not lines:
        return quiet("This cluster has no datanodes.")
    rows = [
        (
            line.name, badge(line.health, line.tone), line.state, _room(line),
            "–" if line.used_bytes is None else bytes_of(line.used_bytes),
            "–" if line.blocks is None else f"{line.blocks:,}", _streams(line.streams), _scans(line.scans),
            _troubles(line),
        )
        for line in lines
    ]  # fmt: skip
    columns = (
        "datanode", "health", "state", "free of capacity", "blocks' bytes", "blocks", "streams", "scans", "to look at",
    )  # fmt: skip
    return table(columns, rows, numbers=(4, 5), caption="Datanodes")


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


def _room(line: DatanodeLine) -> Content:
    if not line.capacity_bytes:
        return "–"
    share = 1 - line.free_bytes / line.capacity_bytes
    return [meter(share), f" {bytes_of(line.free_bytes)} of {bytes_of(line.capacity_bytes)}"]


def _troubles(line: DatanodeLine) -> str:
    words = [*line.faults, *line.installing]
    if line.unhealthy_blocks:
        words.append(f"{count_of(line.unhealthy_blocks, 'damaged block')}")
    if line.used_bytes is None:
        words.append("does not answer" + (f", silent for {age_words(line.silent_ms)}" if line.silent_ms else ""))
    return listed(words) or "nothing"


def namespace_panel(usage: UsageSummary) -> Markup:
    """Return what waits, and the largest buckets."""
    waits = [("open keys", usage.open_keys), ("deleted, blocks not freed yet", usage.deletions)]
    facts = facts_line((name, _counted(count)) for name, count in waits)
    if not usage.bucket_count:
        return joined([facts, quiet("There are no buckets.")])
    rows = [
        (one.name, f"{one.keys:,}", bytes_of(one.used_bytes), _quota(one), _sizes_button(one)) for one in usage.buckets
    ]
    more = " of the first volumes (there are more)" if usage.is_cut else ""
    total = (
        f"{count_of(usage.bucket_count, 'bucket')}{more}: {count_of(usage.keys, 'key')}, {bytes_of(usage.used_bytes)}; "
        f"the {len(rows)} largest are shown"
    )
    columns = ("bucket", "keys", "bytes", "quota", "")
    return joined([facts, table(columns, rows, numbers=(1, 2, 4), caption="Largest buckets"), quiet(total)])


def _counted(count: RowCount | None) -> str:
    if count is None:
        return "not known"
    return f"{count.rows:,} and more" if count.is_cut else f"{count.rows:,}"


def _sizes_button(one: BucketUsage) -> Markup:
    target = f"sizes?{urlencode({'volume': one.volume, 'bucket': one.bucket})}"
    return element("button", "sizes", type="button", class_="small", id=f"sizes-{one.name}", data_open=target)


def _quota(one: BucketUsage) -> Content:
    if one.share is None:
        return "none"
    words = [bytes_of(one.quota_bytes)] if one.quota_bytes > 0 else []
    words += [count_of(one.quota_keys, "key")] if one.quota_keys > 0 else []
    return [meter(one.share), f" {one.share:.0%} of {' and '.join(words)}"]
