"""Findings on a load's writes, and on the leaders that executed them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.log_survey import Claim, Recorded
from stratolog.drills.core.wording import named
from stratolog.drills.kit.core.journal import Journal
from stratolog.drills.kit.core.judging import Aftermath, judge_listing


def writes_hold(
    journal: Journal, listings: Mapping[str, Mapping[str, int]], found: Aftermath | None = None
) -> tuple[Finding, Finding]:  # fmt: skip
    """Judge each node's listing (key -> size): nothing is lost, and nothing invented.

    All acknowledged keys must be there, as they were written; else only keys that the load tried to write, and on all
    nodes the same. ``found`` is what the log has already told.
    """
    found = found or Aftermath()
    for node, listing in listings.items():
        judge_listing(found, node, listing, [journal])
    lost, strange = found.told("lost"), found.told("unexpected")
    if not lost and not strange and len({tuple(sorted(listing.items())) for listing in listings.values()}) > 1:
        strange = ["the replicas list different keys"]
    held = f"{len(journal.acknowledged)} acknowledged keys on {', '.join(listings)}"
    unknown = len(journal.keys) - len(journal.acknowledged)
    tried = f"{unknown} writes without an acknowledgement, {len(journal.failures)} failed"
    return (
        Finding(
            question="every acknowledged write is on every replica",
            holds=not lost and bool(journal.acknowledged) and bool(listings), seen=named(lost) if lost else held,
        ),
        Finding(
            question="the replicas hold nothing that was not written, and the same keys", holds=not strange,
            seen=named(strange) if strange else tried,
        ),
    )  # fmt: skip


def applied_once(
    calls: Mapping[bytes, Sequence[Recorded]], late_calls: Mapping[bytes, int], twice: Sequence[str],
    listings: Mapping[str, Mapping[str, int]], counters: Mapping[str, Mapping[str, int]],
) -> Finding:  # fmt: skip
    """Judge from the log's results and the replicas' counters whether any call had two effects.

    ``twice`` names the calls and keys that the log has oftener than was asked.

    A call that was logged for late validation may be in the log twice. Only the rows then tell, and counters are rows.
    """
    wrong = list(twice)
    for node, listing in listings.items():
        expected = {"used_bytes": sum(listing.values()), "used_namespace": len(listing)}
        if counters.get(node) != expected:
            wrong.append(f"{node} counts {counters.get(node)}, its keys give {expected}")
    late = f", {len(late_calls)} validated late" if late_calls else ""
    return Finding(
        question="no write was applied twice",
        holds=not wrong and bool(calls or late_calls),
        seen=named(wrong)
        if wrong
        else f"{len(calls)} calls with one result each{late}, counters equal to the keys listed",
    )


def failover_s(journal: Journal, fault_s: float, claims: Sequence[Claim], old_term: int) -> float | None:
    """Return the seconds from a fault to the first acknowledgement of a later leader's write; None if there is none."""
    later = [claim for claim in claims if claim.term > old_term]
    if not later:
        return None
    later_acks = [ack for ack in journal.acknowledged.values() if ack.index > later[0].index_before]
    return min(ack.at_ms for ack in later_acks) / 1000 - fault_s if later_acks else None


def failed_over(victim: str, successor: str, pause_s: float | None) -> Finding:
    """Judge whether another node than the victim led and acknowledged writes, ``pause_s`` after the fault."""
    seen = "no write was acknowledged by a later leader" if pause_s is None else f"{pause_s:.2f} s after the kill"
    return Finding(
        question="another node leads and acknowledges writes",
        holds=pause_s is not None and successor != victim,
        seen=f"{successor} leads after {victim}; {seen}",
    )


def pause_after(journal: Journal, fault_s: float) -> float:
    """Return the longest pause between two acknowledgements, in seconds, from the last one before the fault on."""
    moments = sorted(ack.at_ms / 1000 for ack in journal.acknowledged.values())
    before = [moment for moment in moments if moment <= fault_s][-1:] or [fault_s]
    after = [moment for moment in moments if moment > fault_s]
    return max((later - earlier for earlier, later in pairwise([*before, *after])), default=0.0)


def written_without(broker: int, writes: int, in_sync: int) -> Finding:
    """Judge whether writes went on while a broker was missing from the log's replicas in sync."""
    return Finding(
        question="writes go on without the broker", holds=in_sync == 2,
        seen=f"{writes} more writes acknowledged, {in_sync} replicas of the log in sync without broker-{broker}",
    )  # fmt: skip


def in_sync(found: Mapping[int, int], wanted: int) -> Finding:
    """Judge the number of replicas in sync of each partition."""
    behind = [f"partition {number}: {count}" for number, count in found.items() if count < wanted]
    return Finding(
        question="the broker's replicas are in sync again", holds=not behind and bool(found),
        seen=named(behind) or f"{wanted} replicas of each of {len(found)} partitions",
    )  # fmt: skip
