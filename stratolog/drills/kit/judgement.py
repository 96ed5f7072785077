"""From what a drill has seen to findings. Pure: no waiting, no asking, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from replicated_db.core.log.reading import Reading
from schemas.column_families import BUCKETS
from stratolog.cluster.verdicts import EQUAL
from stratolog.drills.kit.load import Journal, Write
from stratolog.drills.kit.logview import Claim, Digest, Recorded, Sums, VoidRecord, differing, total
from stratolog.drills.kit.report import Finding

MAX_MESSAGE_CHARACTERS = 120
NAMED = 3
"""Keys, calls or slots that a finding names at most."""


def named(items: Iterable[object]) -> str:
    """Return the first few of many, and how many there are."""
    found = [str(item) for item in items]
    more = "" if len(found) <= NAMED else f" and {len(found) - NAMED} more"
    return ", ".join(found[:NAMED]) + more


# -- what a load's journal says ----------------------------------------------------------------------------------------


def nothing_lost(journal: Journal, listings: Mapping[str, Mapping[str, int]]) -> Finding:
    """Judge each node's listing (key -> size): all that was acknowledged is there, as it was written."""
    wrong = [
        f"{node}: {key} has {listing.get(key, 'no')} bytes, {write.size} were acknowledged"
        for node, listing in listings.items()
        for key, write in journal.acknowledged.items()
        if listing.get(key) != write.size
    ]
    seen = f"{len(journal.acknowledged)} acknowledged keys on {', '.join(listings)}"
    return Finding(
        question="every acknowledged write is on every replica",
        holds=not wrong and bool(journal.acknowledged) and bool(listings),
        seen=named(wrong) if wrong else seen,
    )


def nothing_invented(journal: Journal, listings: Mapping[str, Mapping[str, int]]) -> Finding:
    """Judge that nodes have nothing but what was tried, and all of them the same."""
    wrong = [
        f"{node}: {key}"
        for node, listing in listings.items()
        for key, size in listing.items()
        if journal.tried.get(key) != size
    ]
    if not wrong and len({tuple(sorted(listing.items())) for listing in listings.values()}) > 1:
        wrong = ["the replicas list different keys"]
    unknown = len(journal.tried) - len(journal.acknowledged)
    return Finding(
        question="the replicas hold nothing that was not written, and the same keys",
        holds=not wrong,
        seen=named(wrong) if wrong else f"{unknown} writes without an acknowledgement, {len(journal.failures)} failed",
    )


def applied_once(
    calls: Mapping[bytes, Sequence[Recorded]], late_calls: Mapping[bytes, int], listings: Mapping[str, Mapping[str, int]],
    counters: Mapping[str, Mapping[str, int]],
) -> Finding:  # fmt: skip
    """Judge from the log's results and the replicas' counters that no call had two effects.

    A call that was logged for late validation may be in the log twice: there only the rows tell, and counters are rows.
    """
    twice = [call.hex() for call, found in calls.items() if sum(result.recorded for result in found) > 1]
    wrong = [f"call {call} has several results in the log" for call in twice]
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
    """Return seconds from a fault to the first acknowledgement of a write that a later leader executed; None if there is none."""
    later = [claim for claim in claims if claim.term > old_term]
    if not later:
        return None
    moments = [write.acknowledged_s for write in by_later_leader(journal, later[0])]
    return min(moments) - fault_s if moments else None


def by_later_leader(journal: Journal, claim: Claim) -> list[Write]:
    """Return the acknowledged writes that were executed under a claim or a later one."""
    return [write for write in journal.acknowledged.values() if write.index > claim.index_before]


def failed_over(victim: str, successor: str, pause_s: float | None) -> Finding:
    """Judge that another node than the victim led and acknowledged writes, ``pause_s`` after the fault."""
    seen = "no write was acknowledged by a later leader" if pause_s is None else f"{pause_s:.2f} s after the kill"
    return Finding(
        question="another node leads and acknowledges writes",
        holds=pause_s is not None and successor != victim,
        seen=f"{successor} leads after {victim}; {seen}",
    )


# -- digests -----------------------------------------------------------------------------------------------------------


def digests_equal(nodes: Sequence[str], reported: Mapping[str, Sums], log: Digest, *, basis: str) -> Finding:
    """Judge that all nodes have reported one digest, equal to the log's Σ(next − prev) if the log gives it."""
    missing = [node for node in nodes if node not in reported]
    truth = log.sums if log.known else next(iter(reported.values()), {})
    wrong = [
        f"{node} differs in {slots_named(log.families, slots)}"
        for node, sums in reported.items()
        if (slots := differing(sums, truth))
    ]
    compared = (
        "the log's Σ(next − prev)" if log.known else "each other (the log alone does not give it: late validation)"
    )
    if missing:
        seen = f"no report from {', '.join(missing)}"
    else:
        seen = named(wrong) if wrong else f"{total(truth)} at index {log.index} on {', '.join(sorted(reported))}"
    return Finding(
        question=f"{basis} digests at offset {log.offset} are equal to {compared}",
        holds=not wrong and not missing and bool(reported),
        seen=seen,
    )


def slots_named(families: Sequence[str], slots: Sequence[int]) -> str:
    """Name digest slots as column family and bucket."""
    return named(f"{families[slot // BUCKETS]} bucket {slot % BUCKETS}" for slot in slots)


def rules_agree(rules_differ: int | None) -> Finding:
    """Judge that nodes' and auditor's reading rules say the same of every record."""
    return Finding(
        question="the nodes' and the auditor's reading rule agree on every record",
        holds=rules_differ is None,
        seen="they do" if rules_differ is None else f"not on offset {rules_differ}",
    )


# -- stale leaders -----------------------------------------------------------------------------------------------------


def stale_is_void(void: Sequence[VoidRecord], *, stale_term: int, claimed_offset: int) -> Finding:
    """Judge what a deposed leader appended behind the next claim: the rule must call each of its records one of an earlier term."""
    own = [record for record in void if record.term == stale_term and record.offset > claimed_offset]
    other = [record for record in own if record.reading is not Reading.STALE_TERM]
    records = named(f"{record.kind} at {record.offset} ({record.reading.value})" for record in own)
    return Finding(
        question="what the stale leader appended is void",
        holds=bool(own) and not other,
        seen=f"{len(own)} records of term {stale_term} behind the claim at offset {claimed_offset}: {records or 'none'}",
    )


def stepped_down(stale: str, leader: str) -> Finding:
    """Judge whom the woken leader takes for the leader."""
    return Finding(
        question="the stale leader has stepped down", holds=bool(leader) and leader != stale,
        seen=f"{stale} follows {leader or 'nobody'}",
    )  # fmt: skip


def burst_answered(requests: int, failed: Sequence[str]) -> Finding:
    """Judge that the requests in flight at a fault were answered by whoever led then."""
    return Finding(
        question="every request of the burst was answered in the end", holds=not failed,
        seen=f"{requests} requests" if not failed else f"{len(failed)} of {requests} were not: {named(failed)}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An answer of a node to a linearizable read: HTTP status, and the size that it gave."""

    status: int
    size: int | None


def reads_right(reads: Sequence[Read], size: int) -> Finding:
    """Judge linearizable reads of a key whose size is known: right, or refused for now (503), or no answer at all (status 0)."""
    wrong = [read for read in reads if read.status not in (0, 200, 503) or (read.status == 200 and read.size != size)]
    right = sum(read.status == 200 for read in reads)
    return Finding(
        question="linearizable reads from the stale leader are right or refused",
        holds=not wrong,
        seen=named(wrong) if wrong else f"{right} right, {len(reads) - right} refused or unanswered",
    )


def answers_right(
    answers: Mapping[int, Sequence[bytes]], calls: Mapping[bytes, Sequence[Recorded]], late_calls: Mapping[bytes, int]
) -> Finding:  # fmt: skip
    """Judge every response that a client was sent, by all leaders: for each call one answer, the one in the log if it has one."""
    recorded = {
        int.from_bytes(call, "big"): found[0].response
        for call, found in calls.items()
        if any(r.recorded for r in found)
    }
    logged = set(recorded) | {int.from_bytes(call, "big") for call in late_calls}
    wrong, checked = [], 0
    for call, values in answers.items():
        if call not in logged:
            continue
        checked += len(values)
        if len(set(values)) != 1 or values[0] != recorded.get(call, values[0]):
            wrong.append(f"call {call} has an answer that is not the log's")
    return Finding(
        question="every answer, repeats included, is the one that the log records",
        holds=not wrong and checked > 0,
        seen=named(wrong) if wrong else f"{checked} answers to {len(logged)} calls",
    )


# -- replicas ----------------------------------------------------------------------------------------------------------


def resumed(stored: int, read_offset: int, records_read: int) -> Finding:
    """Judge from where a node went on: right behind the position that it had stored, reading each record once."""
    began = read_offset - records_read
    return Finding(
        question="the replica went on from its own position",
        holds=began == stored and stored >= 0,
        seen=f"stored offset {stored}, began behind {began}, read {records_read} records up to {read_offset}",
    )


# -- bad requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that was put aside with the reason."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was answered with a result code."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node's process (None: it does not run), and whom it takes for the leader."""

    pid: int | None
    leader: str
    term: int


def poison_refused(name: str, code: str, seen: Rejection | Answered | None) -> Finding:
    """Judge what became of a bad record: rejected or answered with ``code`` and a message."""
    word = "answered" if isinstance(seen, Answered) else "rejected"
    return Finding(
        question=f"{name} is refused with {code}",
        holds=seen is not None and seen.code == code and bool(seen.message),
        seen="nothing became of it"
        if seen is None
        else f"{word}, {seen.code}: {seen.message[:MAX_MESSAGE_CHARACTERS]}",
    )


def data_unchanged(before: Mapping[str, Sums], after: Mapping[str, Sums]) -> Finding:
    """Judge each node's digest of the data before and after."""
    wrong = [node for node, sums in before.items() if differing(sums, after.get(node, {}))]
    return Finding(
        question="the digest of the data is unchanged on every node",
        holds=not wrong and bool(before),
        seen=f"changed on {', '.join(wrong)}"
        if wrong
        else named(f"{node} {total(sums)}" for node, sums in after.items()),
    )


def nothing_stopped(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> Finding:
    """Judge that the same processes run, under the same leader in the same term."""
    wrong = [f"{node}: {one} before, {after.get(node)} after" for node, one in before.items() if after.get(node) != one]
    wrong += [f"{node} does not run" for node, one in after.items() if one.pid is None]
    standing = next(iter(after.values()), None)
    seen = "" if standing is None else f"{len(after)} nodes run on, {standing.leader} leads in term {standing.term}"
    return Finding(
        question="no process stopped and no leader stepped down", holds=not wrong and bool(after),
        seen=named(wrong) if wrong else seen,
    )  # fmt: skip


def still_writes(error: str | None) -> Finding:
    """Judge a good request after the bad ones."""
    return Finding(
        question="a good request is executed as before", holds=error is None,
        seen="a volume was created and deleted" if error is None else error,
    )  # fmt: skip


# -- rebuilt replicas --------------------------------------------------------------------------------------------------


def rebuilt_equal(rebuilt: Mapping[str, Sums], log: Digest) -> Finding:
    """Judge a rebuilt replica's digests (running and scanned, by name) against the log's Σ(next − prev)."""
    wrong = [
        f"its {basis} digest differs in {slots_named(log.families, slots)}"
        for basis, sums in rebuilt.items()
        if (slots := differing(sums, log.sums))
    ]
    return Finding(
        question=f"the rebuilt replica at index {log.index} is equal to the log's Σ(next − prev), running digest and full scan",
        holds=not wrong, seen=named(wrong) if wrong else total(log.sums),
    )  # fmt: skip


def scan_equal(incremental: Sums, scrubbed: Sums) -> Finding:
    """Judge a rebuilt replica by itself, where the log alone does not give the digest."""
    return Finding(
        question="the rebuilt replica's running digest is equal to its full scan (the log alone does not give it: late validation)",
        holds=incremental == scrubbed, seen=f"{total(incremental)} and {total(scrubbed)}",
    )  # fmt: skip


def no_evidence(evidence: str | None) -> Finding:
    """Judge whether a replay has found a row that is not what the log claims."""
    return Finding(
        question="every claim of the log was true when it was applied",
        holds=evidence is None,
        seen=evidence or "no evidence",
    )


def live_equal(live: Mapping[str, Sums], rebuilt: Sums, families: Sequence[str], silent: Sequence[str]) -> Finding:
    """Judge live replicas' digests at the same index; ``silent`` are the nodes whose digest at that index is not to be had."""
    wrong = [
        f"{name} differs in {slots_named(families, slots)}"
        for name, sums in live.items()
        if (slots := differing(sums, rebuilt))
    ]
    missing = f"; not to be had of {', '.join(silent)}" if silent else ""
    return Finding(
        question="live replicas had the same digest at that index",
        holds=not wrong and bool(live),
        seen=(named(wrong) if wrong else f"{', '.join(sorted(live)) or 'none'}") + missing,
    )


def oracle_equal(digest: str, index: int, log: Digest) -> Finding:
    """Judge the batch oracle's digest: the rows recomputed by Spark, no claim of the log's used."""
    return Finding(
        question="Spark's oracle, which uses no claim of the log's, comes to the same",
        holds=(digest, index) == (total(log.sums), log.index), seen=f"{digest} at index {index}",
    )  # fmt: skip


# -- a damaged row -----------------------------------------------------------------------------------------------------


def scrub_names(damaged: str, scans: Mapping[str, Sums], log: Digest, slots: Sequence[int]) -> Finding:
    """Judge full scans at a barrier: the damaged replica's alone differs from the log's digest, in one bucket (``slots``)."""
    others = [name for name, sums in scans.items() if name != damaged and differing(sums, log.sums)]
    seen = f"{damaged} differs in {slots_named(log.families, slots) or 'nothing'}"
    return Finding(
        question="a full scan names the damaged replica, and one digest bucket",
        holds=len(slots) == 1 and not others and len(scans) > 1,
        seen=seen + (f"; so do {', '.join(others)}" if others else f"; {len(scans) - 1} others are equal to the log"),
    )


def audit_names(damaged: str, seen: Sequence[tuple[str, int]], expected: Sequence[tuple[str, int]]) -> Finding:
    """Judge what the Spark audit's verdict on the damaged replica names: column families and buckets."""
    return Finding(
        question="the Spark audit says diverged, and names the bucket", holds=list(seen) == list(expected) and bool(seen),
        seen=f"{damaged}: {named(f'{cf} bucket {bucket}' for cf, bucket in seen) or 'nothing'}",
    )  # fmt: skip


def audit_agrees(repaired: str, verdict: str, index: int) -> Finding:
    """Judge the Spark audit's verdict on the full scan of a repaired replica."""
    return Finding(
        question="the Spark audit says equal again", holds=verdict == EQUAL,
        seen=f"{repaired}: {verdict} at index {index}, by a full scan",
    )  # fmt: skip


def narrowed(damaged: bytes, keys: Sequence[bytes]) -> Finding:
    """Judge which keys of the bucket differ between the damaged replica and a healthy one."""
    return Finding(
        question="the bucket's rows name the damaged row and no other", holds=list(keys) == [damaged],
        seen=named(key.decode(errors="replace") for key in keys) or "no row differs",
    )  # fmt: skip


# -- a lost broker -----------------------------------------------------------------------------------------------------


def pause_after(journal: Journal, fault_s: float) -> float:
    """Return the longest time between two acknowledgements, from the last one before the fault on, in seconds."""
    moments = sorted(write.acknowledged_s for write in journal.acknowledged.values())
    before = [moment for moment in moments if moment <= fault_s][-1:] or [fault_s]
    after = [moment for moment in moments if moment > fault_s]
    return max((later - earlier for earlier, later in pairwise([*before, *after])), default=0.0)


def written_without(broker: int, writes: int, in_sync: int) -> Finding:
    """Judge that writes went on while a broker was missing from the log's replicas in sync."""
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


# -- mixed versions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """What became of a shard with nodes of two versions.

    ``first_index`` is where digests first differed (None: nowhere), ``odd`` the nodes that differ from the leader in the end, ``slots``
    their differing digest slots, ``rows`` (column family, slot, key) of their differing rows, ``evidence`` the nodes that found a
    false claim, ``scanned`` whether full scans are equal to running digests.
    """

    requests: int
    refused: int
    first_index: int | None
    odd: tuple[str, ...]
    slots: tuple[int, ...]
    rows: tuple[tuple[str, int, str], ...]
    families: tuple[str, ...]
    evidence: tuple[str, ...]
    scanned: bool


def late_diverges(where: str, odd: str, seen: Mixed) -> Finding:
    """Judge late validation with mixed versions: the odd one diverges, and comparing digests, then rows, says where."""
    explained = {slot for _, slot, _ in seen.rows} == set(seen.slots)
    holds = seen.first_index is not None and seen.odd == (odd,) and bool(seen.rows) and explained and seen.scanned
    buckets = slots_named(seen.families, seen.slots)
    rows = named(f"{cf} {key}" for cf, _, key in sorted(seen.rows, key=lambda row: row[0] == seen.families[0]))
    return Finding(
        question=f"late validation diverges with {where}, and the audit's comparison says where", holds=holds,
        seen=f"{', '.join(seen.odd) or 'nobody'} differs, first at index {seen.first_index}, in {buckets or 'no bucket'}: {rows or 'no row'}",
    )  # fmt: skip


def leader_side_holds(where: str, seen: Mixed) -> Finding:
    """Judge leader-side execution with mixed versions: nothing differs, at any index."""
    holds = seen.first_index is None and not seen.odd and not seen.rows and not seen.evidence and seen.scanned
    return Finding(
        question=f"leader-side execution does not diverge with {where}",
        holds=holds and seen.requests > 0,
        seen=f"{seen.requests} requests, digests equal after each"
        if holds
        else f"{', '.join(seen.odd) or 'nobody'} differs, first at index {seen.first_index}; evidence of {named(seen.evidence) or 'nobody'}",
    )
