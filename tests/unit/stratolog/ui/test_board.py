"""The views of the dashboard: grid, rates, lag, events, storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from schemas.topics import DN_LOG
from stratolog.ui.core.board import SHOWN_EVENTS, board_of
from stratolog.ui.core.observed import IndexSample, RowCount, TimelineEvent
from stratolog.ui.core.replica_grid import details_of, grids_of
from stratolog.ui.core.storage_rows import fleet_lines, histogram_of, usage_of
from stratolog.ui.core.traffic import traffic_of
from stratolog.ui.core.verdict_book import JudgedReplica, VerdictBook
from stratolog.ui.core.words import Tone
from stratolog.ui.rendering.panels import panels_of
from tests.support.ui.observations import (
    INDEX,
    NODES,
    NOW_MS,
    WELL,
    all_equal,
    bucket,
    datanode,
    seen,
    status,
    verdict,
    view,
    window,
)
from transport.topics.core.latest_verdicts import MAX_SUBJECTS

# -- the grid ----------------------------------------------------------------------------------------------------------


def test_a_cell_joins_what_the_node_and_the_audit_say() -> None:
    (grid,) = grids_of(WELL)
    assert grid.columns == [(0, "shard 0"), (1, "shard 1")]
    assert [node for node, _, _ in grid.rows] == list(NODES)
    cell = grid.rows[0][2][0]
    assert cell is not None
    assert (cell.role, cell.index, cell.behind, cell.verdict, cell.tone) == ("leader", INDEX, 0, "equal", Tone.GOOD)
    assert (cell.age_ms, cell.scanned_ms) == (4_000, 4_000)


def test_a_killed_node_keeps_its_verdicts_and_a_replica_behind_is_counted() -> None:
    late = {"node": "om2", "shards": [view(0, applied_index=INDEX - 34), view(1)]}
    board = board_of(seen(nodes={"om1": None, "om2": late, "om3": status("om3")}))
    (_, answers, cells), behind, _ = board.grids[0].rows
    assert not answers
    assert [(cell.role, cell.index, cell.verdict, cell.tone) for cell in cells if cell] == [
        ("no answer", None, "equal", Tone.WARN)
    ] * 2
    assert behind[2][0] is not None
    assert behind[2][0].behind == 34
    lags = [(lag.name, lag.where, lag.behind) for lag in board.replica_lags]
    assert lags[:3] == [("om1", "shard 0", None), ("om1", "shard 1", None), ("om2", "shard 0", 34)]


def test_a_flag_is_red_and_a_dead_audit_grey() -> None:
    flagged = {"node": "om2", "shards": [view(0, flagged=True), view(1)]}
    (grid,) = grids_of(seen(nodes={"om1": status("om1"), "om2": flagged}, stopped=["audit"]))
    tones = [[cell.tone for cell in cells if cell] for _, _, cells in grid.rows]
    assert tones == [[Tone.STALE, Tone.STALE], [Tone.BAD, Tone.STALE]]


def test_datanodes_have_a_grid_of_open_pipelines() -> None:
    pipelines = [
        {"partition": 1, "pipeline": "p-1", "state": "OPEN"}, {"partition": 0, "pipeline": "p-0", "state": "CLOSED"},
    ]  # fmt: skip
    statuses = {"dn1": {"pipelines": [view(1)]}, "dn2": None}
    verdicts = [verdict("dn2", 1, log=DN_LOG), verdict("dn1", 1, "diverged", log=DN_LOG)]
    known = seen(
        datanodes=[datanode("dn1"), datanode("dn2"), datanode("dn3")], pipelines=pipelines, verdicts=verdicts,
        datanode_statuses={**statuses, "dn3": None},
    )  # fmt: skip
    grid = grids_of(known)[1]
    assert grid.columns == [(1, "p-1")]
    found = {node: cells[0] for node, _, cells in grid.rows}
    assert found["dn1"] is not None
    assert found["dn1"].tone is Tone.BAD
    assert found["dn2"] is not None
    assert found["dn2"].role == "no answer"
    assert found["dn3"] is None


def test_details_name_a_replica_or_nobody() -> None:
    found = details_of(WELL, JudgedReplica("om.log", 1, "om2"))
    assert found is not None
    assert (found.view["term"], len(found.verdicts), found.is_diverged) == (3, 2, False)
    assert details_of(WELL, JudgedReplica("om.log", 7, "om2")) is None
    assert details_of(WELL, JudgedReplica("<script>", 0, "om1")) is None


# -- rates -------------------------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_newest_full_window_over_all_shards() -> None:
    start = NOW_MS - NOW_MS % 10_000 - 20_000
    windows = [
        window(start, 500), window(start, 300, shard=1), window(start, 20, result="QUOTA_EXCEEDED"),
        window(start + 10_000, 7),
    ]  # fmt: skip
    # Each partition has one record for a window; here they are split to keep the table short.
    found = traffic_of(seen(windows=windows))
    assert [(one.kind, one.status, one.per_second) for one in found.rates] == [
        ("CreateKey", "OK", 80.0), ("CreateKey", "QUOTA_EXCEEDED", 2.0),
    ]  # fmt: skip
    assert (found.rates[0].p50_ms, found.rates[0].p99_ms) == (12, 40)
    assert (found.points[-2].fine, found.points[-2].refused) == (80.0, 2.0)
    assert found.age_ms == NOW_MS - start - 10_000


def test_where_nothing_was_counted_the_chart_has_zeros() -> None:
    found = traffic_of(seen(windows=[window(NOW_MS - NOW_MS % 10_000 - 3_600_000)]))
    assert {point.fine for point in found.points} == {0.0}
    assert found.age_ms is not None
    assert found.age_ms > 3_500_000
    assert traffic_of(seen(windows=[])).age_ms is None


def test_the_live_rate_is_the_growth_of_indexes() -> None:
    samples = [IndexSample(NOW_MS - 60_000, 1), IndexSample(NOW_MS - 4_000, 100), IndexSample(NOW_MS, 300)]
    assert traffic_of(seen(samples=samples)).live_per_second == 50.0
    assert traffic_of(seen(samples=samples[:1])).live_per_second is None


# -- lag of the audit, events ------------------------------------------------------------------------------------------


def test_the_audit_is_behind_by_indexes_and_silent_when_it_says_nothing() -> None:
    ahead = {name: {"shards": [view(0, applied_index=INDEX + 66), view(1)]} for name in NODES}
    zero, one = board_of(seen(nodes=ahead)).audit_lags
    assert (zero.where, zero.behind, zero.age_ms, zero.tone) == ("shard 0", 66, 4_000, Tone.GOOD)
    assert one.behind == 0
    assert {lag.tone for lag in board_of(seen(stopped=["audit"])).audit_lags} == {Tone.STALE}
    assert {lag.age_ms for lag in board_of(seen(verdicts=[])).audit_lags} == {None}


def test_events_are_the_newest_first_each_once_and_bounded() -> None:
    events = [TimelineEvent(at, "shard 0", f"event {at}", Tone.PLAIN) for at in range(SHOWN_EVENTS + 9)]
    found = board_of(seen(events=[*events, *events])).events
    assert [event.at_ms for event in found[:2]] == [SHOWN_EVENTS + 8, SHOWN_EVENTS + 7]
    assert len(found) == SHOWN_EVENTS


def test_verdicts_make_events_when_they_change() -> None:
    book = VerdictBook()
    book.take([
        verdict(), verdict(said="diverged", barrier_offset=110), verdict(said="diverged", barrier_offset=120),
        verdict(barrier_offset=130), verdict(said="diverged", barrier_offset=125),
        verdict("", 0, "unknown", "base", reason="forced: by tester"),
    ])  # fmt: skip
    assert [(event.text, event.tone) for event in book.events] == [
        (f"om1 DIVERGED at index {INDEX:,} (incremental)", Tone.BAD),
        (f"om1 equal again at index {INDEX:,} (incremental)", Tone.GOOD),
        (f"digest base at index {INDEX:,}: forced: by tester", Tone.WARN),
    ]
    latest = book.latest.of("om.log", 0, "om1", "incremental")
    assert latest is not None
    assert latest.barrier_offset == 130


def test_a_flood_of_names_does_not_grow_the_book() -> None:
    book = VerdictBook()
    book.take(replace(all_equal()[0], node=f"n{number}") for number in range(MAX_SUBJECTS + 50))
    assert len(book.latest) == MAX_SUBJECTS


# -- storage -----------------------------------------------------------------------------------------------------------


def test_a_datanode_joins_heartbeat_and_status() -> None:
    own = {
        "store": {"used_bytes": 700, "blocks": 4}, "copies": {"unhealthy_blocks": 1},
        "pipelines": [{"unhealthy_blocks": 2}], "installing": [{"progress": "at 5 %"}],
        "streams": {"active": 1, "completed": 7, "failed": 2, "reclaimed": 1},
        "scrub": {"rounds": 3, "blocks": 9, "bytes": 4096, "bad_cells": 1, "errors": 0},
    }  # fmt: skip
    lines = fleet_lines(
        seen(datanodes=[datanode("dn2", health="DEAD"), datanode("dn1")], datanode_statuses={"dn1": own})
    )
    assert [line.name for line in lines] == ["dn1", "dn2"]
    assert (lines[0].unhealthy_blocks, lines[0].streams, lines[0].tone) == (3, (1, 7, 3), Tone.BAD)
    assert lines[0].scans == (3, 4096, 1)
    assert lines[0].installing == ["at 5 %"]
    assert (lines[1].used_bytes, lines[1].streams, lines[1].tone) == (None, (2, None, None), Tone.BAD)
    assert lines[1].scans is None


def test_buckets_are_shown_by_size_and_near_their_quota_in_yellow() -> None:
    found = usage_of(seen(buckets=[bucket("a", 10), bucket("b", 95, 3, quota=100), bucket("c", 50, 2, quota_keys=20)]))
    assert [(one.name, one.share, one.tone) for one in found.buckets] == [
        ("v/b", 0.95, Tone.WARN), ("v/c", 0.1, Tone.PLAIN), ("v/a", None, Tone.PLAIN),
    ]  # fmt: skip
    assert (found.bucket_count, found.keys, found.used_bytes) == (3, 6, 155)
    assert (found.open_keys, found.deletions) == (None, None)  # nodes of an older version count nothing
    waiting = {OPEN_KEY_TABLE: RowCount(3, is_cut=False), DELETED_TABLE: RowCount(9, is_cut=True)}
    counted = usage_of(seen(waiting=waiting))
    assert (counted.open_keys, counted.deletions) == ((3, False), (9, True))


@pytest.mark.parametrize(
    ("sizes", "classes"),
    [
        ([], []), ([0, 0], []), ([1], [(1024, 1)]), ([1024, 1025], [(1024, 1), (2048, 1)]),
        ([1, 5000], [(1024, 1), (2048, 0), (4096, 0), (8192, 1)]), ([2**62], [(2**62, 1)]),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_are_counted_in_classes_without_gaps(sizes: list[int], classes: list[tuple[int, int]]) -> None:
    found = histogram_of(sizes, is_cut=False)
    assert list(found.classes) == classes
    assert sum(one.keys for one in found.classes) + found.empty == found.keys == len(sizes)
    assert (found.total_bytes, found.largest) == (sum(sizes), max(sizes, default=0))


# -- a large cluster ---------------------------------------------------------------------------------------------------


def test_a_hundred_shards_on_seven_nodes_fit() -> None:
    nodes, shards = [f"om{number}" for number in range(1, 8)], range(100)
    statuses: dict[str, Any] = {name: {"shards": [view(shard) for shard in shards]} for name in nodes}
    verdicts = [verdict(name, shard, index=INDEX + shard) for name in nodes for shard in shards]
    board = board_of(seen(shards=len(shards), nodes=statuses, verdicts=verdicts))
    assert sum(len(cells) for _, _, cells in board.grids[0].rows) == 700
    assert board.sentence.text.startswith("700 replicas equal at indexes 1,234 to 1,333, ")
    panels = panels_of(board)
    assert panels["grid"].count("data-open=") == 700
    assert panels["lag"].count("<tr>") < 20
    assert "94 more, none of them further behind" in panels["lag"]
    # Nothing in it changes while all is well, so it is not sent again.
    later = panels_of(board_of(seen(shards=len(shards), nodes=statuses, verdicts=verdicts, now_ms=NOW_MS + 5_000)))
    assert later["grid"] == panels["grid"]
