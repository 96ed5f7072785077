"""Barriers of the log, and the replicas' reports on them, matched with each other. Pure.

A report is treated according to the place of its barrier (:class:`BarrierPlace`). Reports on a blind barrier are held
until a majority of the members has reported the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from schemas.records.messages import Verdict
from spark_streaming.records.core.reading import Header
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.inputs import ReplicaReport, ReportKey, ReportPlace
from spark_streaming.verdicts.core.judging import judge
from spark_streaming.verdicts.core.peers import agreed
from spark_streaming.verdicts.core.shard_state import AuditState, Finding, KeptBarrier, LogStanding, Waiting
from spark_streaming.verdicts.core.words import DIVERGED, EVIDENCE, INCREMENTAL, LOG, SCRUBBED, UNKNOWN, alone_basis


class BarrierPlace(Enum):
    """Where the barrier of a report lies, relative to the part of the log that has been read."""

    KEPT = "kept"
    """It has been read, and its sums are kept."""
    BEHIND_BREAK = "behind the break"
    """The log is broken there or before."""
    PASSED = "passed"
    """The log has been read beyond it, and no barrier is kept there."""
    AHEAD = "ahead"
    """The log has not been read so far."""
    UNJUDGED = "unjudged"
    """It lies before the base of a trimmed log: no verdict is given on it."""


def place_of(state: AuditState, offset: int) -> BarrierPlace:
    """Say where the barrier at ``offset`` lies."""
    if offset in state.waiting:
        return BarrierPlace.KEPT
    if state.broken_at is not None and offset >= state.broken_at:
        return BarrierPlace.BEHIND_BREAK
    if state.position.is_unjudged(offset):
        return BarrierPlace.UNJUDGED
    return BarrierPlace.PASSED if offset < state.position.next_offset else BarrierPlace.AHEAD


class ReportMatching:
    """Keeps barriers and reports of one shard until they have been matched."""

    def __init__(self, audited: AuditedShard) -> None:
        self._audited = audited
        self._state = audited.state
        self._store = audited.store
        self._arrived: dict[ReportPlace, ReplicaReport] = {}
        self._evidence: list[ReplicaReport] = []

    # Reports.

    def take(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        """Take a report of this micro-batch; one whose barrier is AHEAD is kept for :meth:`reach_barrier`."""
        audited, offset = self._audited, report.barrier_offset
        if wrong := report.error or audited.why_foreign(report):
            yield audited.unknown(report, wrong, now_ms)
            return
        if report.basis == EVIDENCE:
            if self._state.position.has_begun:
                yield from self._judge_evidence(report, now_ms)
            else:  # whether it is of a time before the base of a trimmed log is known after this micro-batch's records
                self._evidence.append(report)
            return
        match place_of(self._state, offset):
            case BarrierPlace.KEPT:
                waiting = self._state.waiting[offset]
                waiting.missing.discard(report.key)
                yield from self._match(self._store.get_barrier(offset), waiting, report, now_ms)
            case BarrierPlace.BEHIND_BREAK:
                yield audited.verdict_on(report, DIVERGED, LOG, audited.broken_reason(), now_ms)
            case BarrierPlace.PASSED:
                yield audited.unknown(report, "no kept barrier at that offset", now_ms)
            case BarrierPlace.AHEAD:
                self._arrived[report.place] = report
            case BarrierPlace.UNJUDGED:
                pass

    def _judge_evidence(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        position = self._state.position
        if not position.seeks_base and report.index >= position.base_index:
            reason = "the replica found another row than the log claims"
            yield self._audited.verdict_on(report, DIVERGED, EVIDENCE, reason, now_ms)

    def _match(self, barrier: KeptBarrier, waiting: Waiting, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        """Judge a report on a kept barrier, or hold it until a majority of the replicas agrees there."""
        audited = self._audited
        if waiting.voters is None or audited.why_foreign(report):
            yield judge(audited, barrier, report, now_ms)
            return
        self._store.put_report(report)
        waiting.held.add(report.key)
        held = [self._store.get_report(ReportPlace(barrier.offset, *key)) for key in sorted(waiting.held)]
        found = agreed(held, len(audited.families), waiting.voters)
        if found is not None:
            barrier = replace(barrier, sums=found)
            self._store.put_barrier(barrier)
            waiting.voters = None
            yield from (judge(audited, barrier, one, now_ms) for one in held)
        elif not waiting.missing:
            reason = "no majority of the replicas holds the same"
            yield from (audited.verdict_on(one, DIVERGED, alone_basis(one.basis), reason, now_ms) for one in held)
        else:
            return
        self._release(barrier.offset, waiting)

    def _release(self, offset: int, waiting: Waiting) -> None:
        for key in waiting.held:
            self._store.drop_report(ReportPlace(offset, *key))
        waiting.held.clear()

    # Reports before their barriers.

    def keep_early(self, now_ms: int) -> Iterator[Verdict]:
        """Keep the reports of this micro-batch that preceded their barriers; judge those whose barrier cannot come."""
        audited, state = self._audited, self._state
        for report in self._evidence:
            yield from self._judge_evidence(report, now_ms)
        self._evidence.clear()
        for place in [place for place in state.early if state.position.is_unjudged(place.offset)]:
            del state.early[place]
            self._store.drop_report(place)
        for place, report in self._arrived.items():
            match place_of(state, place.offset):
                case BarrierPlace.BEHIND_BREAK:
                    yield audited.verdict_on(report, DIVERGED, LOG, audited.broken_reason(), now_ms)
                case BarrierPlace.AHEAD:
                    self._store.put_report(report)
                    state.early[place] = now_ms + audited.limits.report_timeout_ms
                case BarrierPlace.UNJUDGED:
                    pass
                case _:
                    yield audited.unknown(report, "no barrier at that offset", now_ms)
        self._arrived.clear()
        while len(state.early) > audited.limits.early_reports:
            oldest, deadline_ms = self._drop_early(min(state.early))
            if deadline_ms is not None:
                yield audited.unknown(oldest, "too many reports wait for their barriers", now_ms)

    def drop_behind_break(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Judge and drop the early reports on barriers that a log broken at ``offset`` will never reach.

        They are ``diverged``, as if they had come after the break; also those already judged ``unknown``.
        """
        audited = self._audited
        for place in [place for place in self._state.early if place.offset >= offset]:
            report, _ = self._drop_early(place)
            yield audited.verdict_on(report, DIVERGED, LOG, audited.broken_reason(), now_ms)

    def _drop_early(self, place: ReportPlace) -> tuple[ReplicaReport, int | None]:
        """Forget an early report; return it, and its deadline."""
        deadline_ms = self._state.early.pop(place)
        report = self._store.get_report(place)
        self._store.drop_report(place)
        return report, deadline_ms

    # Barriers.

    def reach_barrier(self, header: Header, now_ms: int) -> Iterator[Finding]:
        """Keep the barrier that has just been read, and match the reports that came before it."""
        state, position = self._state, self._state.position
        blind = state.standing is LogStanding.BLIND
        barrier = KeptBarrier(
            offset=header.offset, index=header.index, chain=position.chain, sums=state.sums.copy(), blind=blind
        )
        bases = (INCREMENTAL, SCRUBBED) if header.scrub else (INCREMENTAL,)
        waiting = Waiting(
            deadline_ms=now_ms + self._audited.limits.report_timeout_ms,
            index=header.index,
            missing={ReportKey(node, basis) for node in position.members for basis in bases},
            voters=len(position.members) if blind else None,
        )
        state.waiting[header.offset] = waiting
        self._store.put_barrier(barrier)
        yield barrier
        for report in self._early_of(header.offset):
            waiting.missing.discard(report.key)
            yield from self._match(self._store.get_barrier(header.offset), waiting, report, now_ms)
        while len(state.waiting) > self._audited.limits.kept_barriers:
            yield from self._drop_barrier(min(state.waiting), now_ms)

    def _early_of(self, offset: int) -> list[ReplicaReport]:
        """Return the reports that came before their barrier at ``offset``, and drop them from the store."""
        found = [self._arrived.pop(place) for place in list(self._arrived) if place.offset == offset]
        kept = [place for place in self._state.early if place.offset == offset]
        return found + [self._drop_early(place)[0] for place in kept]

    def _drop_barrier(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        waiting = self._state.waiting.pop(offset)
        self._store.drop_barrier(offset)
        if waiting.deadline_ms is not None:
            yield from self._missing(offset, waiting, "no report while the barrier was kept", now_ms)
        self._release(offset, waiting)

    # Deadlines.

    def expire(self, now_ms: int) -> Iterator[Verdict]:
        """Judge ``unknown`` the reports and barriers that are missing at their deadlines."""
        for offset, waiting in self._state.waiting.items():
            if waiting.is_due(now_ms):
                waiting.deadline_ms = None
                yield from self._missing(offset, waiting, "no report in time", now_ms)
        for place, deadline_ms in self._state.early.items():
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._state.early[place] = None
                reason = "no barrier in the log at that offset yet"
                yield self._audited.unknown(self._store.get_report(place), reason, now_ms)

    def _missing(self, offset: int, waiting: Waiting, reason: str, now_ms: int) -> Iterator[Verdict]:
        audited = self._audited
        for node, basis in sorted(waiting.missing):
            yield audited.verdict(node, offset, waiting.index, UNKNOWN, basis, reason, now_ms)
        for key in sorted(waiting.held):
            held = self._store.get_report(ReportPlace(offset, *key))
            reason = "no majority of the replicas has reported the same"
            yield audited.verdict_on(held, UNKNOWN, alone_basis(held.basis), reason, now_ms)
