"""When a node must not lead: the signs of a stall, and the reasons that follow from them. Pure.

A node is judged as a whole (design, section 4): what stalls one shard (a disk, the interpreter's lock, a starved
processor) will stall the others too. So the node leaves the leaders' group with all its shards, and joins again only
when no sign is left. The bounds for joining are tighter than those for leaving, so that a node at the edge does not
join and leave in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.topics import SILENT_BROKER_MS

MAX_JOIN_LAG_RECORDS = 1_000
"""A node further behind the end of any shard's log than this does not join the leaders' group; in records."""

MAX_LEAD_LAG_RECORDS = 5_000
"""A member further behind than this leaves the group; in records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSigns:
    """The signs of one shard on this node.

    ``turned_ago_ms`` is how long ago its leader's loop last turned, None if no thread leads it. ``lag_records`` is how
    far the replica is behind the log's end, None if the brokers do not say. ``leaderless``: the log's partition has no
    leader. ``lingering``: a thread that was told to end still runs.
    """

    shard: int
    turned_ago_ms: float | None = None
    lag_records: int | None = 0
    leaderless: bool = False
    flagged: bool = False
    member: bool = True
    lingering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """The signs of a node.

    ``event_loop_ago_ms`` is how long ago its event loop turned, None before its first turn. ``unsettled_ms`` is how
    long the group has been neither joined nor left: its coordinator may be a broker that is cut off from the others and
    cannot complete a rebalance.
    """

    shards: tuple[ShardSigns, ...]
    event_loop_ago_ms: float | None = None
    unsettled_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits for the signs."""

    stall_ms: float
    settle_ms: float = 2 * SILENT_BROKER_MS
    max_join_lag_records: int = MAX_JOIN_LAG_RECORDS
    max_lead_lag_records: int = MAX_LEAD_LAG_RECORDS


def reasons_to_leave(signs: Signs, bounds: Bounds) -> list[str]:
    """Return why a member must leave the group; empty if it may stay."""
    return _stalls(signs, bounds) + _lags(signs, bounds.max_lead_lag_records) + _unsettled(signs, bounds)


def reasons_not_to_join(signs: Signs, bounds: Bounds) -> list[str]:
    """Return why a node may not join the group; empty if it may."""
    found = _stalls(signs, bounds) + _lags(signs, bounds.max_join_lag_records)
    for one in signs.shards:
        # The lag of a partition that nobody can read does not keep the node from leading the other shards.
        if one.lag_records is None and not one.leaderless:
            found.append(f"shard {one.shard}: the brokers do not say where its log ends")
        if one.lingering:
            found.append(f"shard {one.shard}: its last leader thread has not ended")
    return found


def _stalls(signs: Signs, bounds: Bounds) -> list[str]:
    found = []
    if signs.event_loop_ago_ms is not None and signs.event_loop_ago_ms > bounds.stall_ms:
        found.append(f"the event loop has not turned for {signs.event_loop_ago_ms:.0f} ms")
    for one in signs.shards:
        if one.turned_ago_ms is not None and one.turned_ago_ms > bounds.stall_ms:
            found.append(f"shard {one.shard}: its leader has not turned for {one.turned_ago_ms:.0f} ms")
        if one.flagged:
            found.append(f"shard {one.shard}: the replica is flagged")
        if not one.member:
            found.append(f"shard {one.shard}: this node is no member")
    return found


def _unsettled(signs: Signs, bounds: Bounds) -> list[str]:
    """Return the reason if the group does not settle; none for a node that leads, which may well be a sound leader."""
    if signs.unsettled_ms <= bounds.settle_ms or any(one.turned_ago_ms is not None for one in signs.shards):
        return []
    return [f"the leaders' group has not settled for {signs.unsettled_ms:.0f} ms; joining anew"]


def _lags(signs: Signs, limit: int) -> list[str]:
    return [
        f"shard {one.shard}: {one.lag_records} records behind the log's end, more than {limit}"
        for one in signs.shards
        if one.lag_records is not None and one.lag_records > limit
    ]
