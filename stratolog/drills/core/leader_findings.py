"""Findings on a leader that was deposed and does not know it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replicated_db.core.log.reading import Reading
from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.log_survey import Recorded, VoidRecord
from stratolog.drills.core.wording import named


def stale_is_void(void: Sequence[VoidRecord], *, stale_term: int, claimed_offset: int) -> Finding:
    """Judge what a deposed leader appended behind the next claim: each record must be void for its earlier term."""
    own = [record for record in void if record.term == stale_term and record.offset > claimed_offset]
    other = [record for record in own if record.reading is not Reading.STALE_TERM]
    records = named(f"{record.kind} at {record.offset} ({record.reading.value})" for record in own)
    return Finding(
        question="what the stale leader appended is void",
        holds=bool(own) and not other,
        seen=(
            f"{len(own)} records of term {stale_term} behind the claim at offset {claimed_offset}: {records or 'none'}"
        ),
    )


def stepped_down(stale: str, leader: str) -> Finding:
    """Judge which node the woken leader takes for the leader."""
    return Finding(
        question="the stale leader has stepped down", holds=bool(leader) and leader != stale,
        seen=f"{stale} follows {leader or 'nobody'}",
    )  # fmt: skip


def burst_answered(requests: int, failed: Sequence[str]) -> Finding:
    """Judge whether the requests in flight at a fault were answered in the end, by any leader."""
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
    """Judge linearizable reads of a key whose size is known.

    A read may give that size, be refused for now (503), or get no answer at all (status 0).
    """
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
    """Judge all leaders' responses to a client: each call has one answer, the one in the log if the log has one."""
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
