"""Who may lead: each sign alone, both bounds, and that a healthy node is left in peace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.leading.core.watchdog import (
    MAX_JOIN_LAG_RECORDS,
    MAX_LEAD_LAG_RECORDS,
    Bounds,
    ShardSigns,
    Signs,
    reasons_not_to_join,
    reasons_to_leave,
)

BOUNDS = Bounds(stall_ms=1000)
HEALTHY = ShardSigns(shard=0, turned_ago_ms=1000, lag_records=MAX_JOIN_LAG_RECORDS)


def signs(event_loop_ago_ms: float | None = 1000, **changed: Any) -> Signs:
    shards = (replace(HEALTHY, **changed), replace(HEALTHY, shard=1, turned_ago_ms=None))
    return Signs(shards=shards, event_loop_ago_ms=event_loop_ago_ms)


def test_a_healthy_node_stays_and_joins():
    assert reasons_to_leave(signs(), BOUNDS) == reasons_not_to_join(signs(), BOUNDS) == []
    assert reasons_to_leave(signs(event_loop_ago_ms=None), BOUNDS) == []


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        ({"turned_ago_ms": 1001}, "shard 0: its leader has not turned for 1001 ms"),
        ({"event_loop_ago_ms": 1001}, "the event loop has not turned for 1001 ms"),
        ({"flagged": True}, "shard 0: the replica is flagged"),
        ({"member": False}, "shard 0: this node is no member"),
        ({"lag_records": MAX_LEAD_LAG_RECORDS + 1}, "shard 0: 5001 records behind the log's end, more than 5000"),
    ],
)
def test_what_makes_a_member_leave_keeps_a_node_from_joining(sign: dict[str, Any], reason: str):
    assert reasons_to_leave(signs(**sign), BOUNDS) == [reason]
    assert [text[:20] for text in reasons_not_to_join(signs(**sign), BOUNDS)] == [reason[:20]]


def test_a_group_that_does_not_settle_is_joined_anew_by_those_that_lead_nothing():
    idle = replace(HEALTHY, turned_ago_ms=None)
    patient = Signs(shards=(idle,), unsettled_ms=BOUNDS.settle_ms)
    stuck = replace(patient, unsettled_ms=BOUNDS.settle_ms + 1)
    assert reasons_to_leave(patient, BOUNDS) == []
    assert reasons_to_leave(stuck, BOUNDS) == ["the leaders' group has not settled for 20001 ms; joining anew"]
    assert reasons_to_leave(replace(stuck, shards=(HEALTHY, idle)), BOUNDS) == []
    assert reasons_not_to_join(stuck, BOUNDS) == []


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        ({"lag_records": None}, "shard 0: the brokers do not say where its log ends"),
        ({"lingering": True}, "shard 0: its last leader thread has not ended"),
        ({"lag_records": MAX_JOIN_LAG_RECORDS + 1}, "shard 0: 1001 records behind the log's end, more than 1000"),
    ],
)
def test_what_only_keeps_a_node_from_joining(sign: dict[str, Any], reason: str):
    assert reasons_to_leave(signs(**sign), BOUNDS) == []
    assert reasons_not_to_join(signs(**sign), BOUNDS) == [reason]


def test_every_sign_is_told():
    found = reasons_to_leave(signs(event_loop_ago_ms=5000, flagged=True, lag_records=9999, turned_ago_ms=9000), BOUNDS)
    assert len(found) == 4
