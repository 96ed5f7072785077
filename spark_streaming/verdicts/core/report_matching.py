"""Barriers of the log, and the replicas' reports on them, matched with each other. Pure.

A report is treated according to the place of its barrier (:class:`BarrierPlace`). Reports on a blind barrier are held
until a majority of the members has reported the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EVIDENCE, INCREMENTAL, LOG, SCAN, SCRUBBED, UNKNOWN, alone_basis
from spark_streaming.records.core.reading import Header
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.inputs import ReplicaReport, ReportKey, ReportPlace
from spark_streaming.verdicts.core.judging import agreed, judge
from spark_streaming.verdicts.core.shard_state import (
    AuditState,
    EarlyReport,
    Finding,
    KeptBarrier,
    LogStanding,
    ReportTopic,
    Waiting,
)


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

    def __init__(self, audited: AuditedShard, topic: ReportTopic | None = None) -> None:
        self._audited = audited
        self._topic = topic
        self._state = audited.state
        self._store = audited.store
        self._arrived: dict[ReportPlace, ReplicaReport] = {}
        self._evidence: list[ReplicaReport] = []
        self._early_bytes = sum(early.size for early in self._state.early.values())

    # Reports.

    def take(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        """Take a report of this micro-batch; one whose barrier is AHEAD is kept for :meth:`reach_barrier`."""
        audited, offset = self._audited, report.barrier_offset
        place = place_of(self._state, offset)
        # Whether the node is a member where the log has not been read yet is known at the barrier.
        wrong = audited.why_misplaced if place is BarrierPlace.AHEAD else audited.why_foreign
        if why := report.error or wrong(report):
            yield audited.unknown(report, why, now_ms)
            return
        if report.basis == EVIDENCE:
            if self._state.position.has_begun:
                yield from self._judge_evidence(report, now_ms)
            else:  # whether it is of a time before the base of a trimmed log is known after this micro-batch's records
                self._evidence.append(report)
            return
        match place:
            case BarrierPlace.KEPT:
                waiting = self._state.waiting[offset]
                waiting.missing.discard(report.key)
                yield from self._match(self._store.get_barrier(offset), waiting, report, now_ms)
            case BarrierPlace.BEHIND_BREAK:
                yield self._ended(report, now_ms)
            case BarrierPlace.PASSED:
                yield audited.unknown(report, "no kept barrier at that offset", now_ms)
            case BarrierPlace.AHEAD:
                self._arrived[report.place] = report
            case BarrierPlace.UNJUDGED:
                pass

    def _ended(self, report: ReplicaReport, now_ms: int) -> Verdict:
        """Return the verdict on a report of a barrier behind the end of the log's reading."""
        audited = self._audited
        return audited.verdict_on(report, audited.ended_verdict, LOG, audited.broken_reason(), now_ms)

    def _judge_evidence(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        position = self._state.position
        if not position.seeks_base and report.index >= position.base_index:
            scanned = report.evidence is not None and report.evidence.claim == SCAN
            found = "rows that are not those of its digest" if scanned else "another row than the log claims"
            reason = f"the replica found {found}"
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

    def keep_early(self, now_ms: int, *, is_read_on: bool) -> Iterator[Verdict]:
        """Keep the reports of this micro-batch that preceded their barriers; judge those whose barrier cannot come.

        ``is_read_on``: whether this micro-batch has records of the log. If they are old, the audit has a backlog, and
        kept reports wait from now on: their barriers are still to be read.
        """
        audited, state = self._audited, self._state
        for report in self._evidence:
            yield from self._judge_evidence(report, now_ms)
        self._evidence.clear()
        yield from self._drop_passed(now_ms)
        if is_read_on and state.position.timestamp_ms + audited.limits.report_timeout_ms < now_ms:
            self._wait_from(now_ms)
        yield from self.take_back(now_ms)
        for place, report in self._arrived.items():
            match place_of(state, place.offset):
                case BarrierPlace.BEHIND_BREAK:
                    yield self._ended(report, now_ms)
                case BarrierPlace.AHEAD if self._is_behind_held_back(place):
                    state.hold_back(report.offset, report.offset + 1)
                case BarrierPlace.AHEAD:
                    yield from self._keep(report, now_ms)
                case BarrierPlace.UNJUDGED:
                    pass
                case _:
                    yield audited.unknown(report, "no barrier at that offset", now_ms)
        self._arrived.clear()

    def _is_behind_held_back(self, place: ReportPlace) -> bool:
        """Say whether a report must wait for those that are held back: they are of nearer barriers, as a rule."""
        state = self._state
        return self._topic is not None and state.holds_back and (not state.early or place > max(state.early))

    def _drop_passed(self, now_ms: int) -> Iterator[Verdict]:
        """Drop kept reports at offsets that the log has been read past: there is no barrier, or it is not judged."""
        for place in list(self._state.early):
            match place_of(self._state, place.offset):
                case BarrierPlace.UNJUDGED:
                    self._drop_early(place)
                case BarrierPlace.PASSED:
                    report, deadline_ms = self._drop_early(place)
                    if deadline_ms is not None:
                        yield self._audited.unknown(report, "no barrier at that offset", now_ms)

    def _wait_from(self, now_ms: int) -> None:
        for early in self._state.early.values():
            if early.deadline_ms is not None:
                early.deadline_ms = now_ms + self._audited.limits.report_timeout_ms

    def _keep(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        """Keep an early report; if that is too much, hold back those of the farthest barriers."""
        state, limits, place = self._state, self._audited.limits, report.place
        if self._topic is not None and len(state.early) >= limits.early_reports and place > max(state.early):
            state.hold_back(report.offset, report.offset + 1)
            return
        size = self._store.put_report(report)
        self._early_bytes += size - (state.early[place].size if place in state.early else 0)
        deadline_ms: int | None = now_ms + limits.report_timeout_ms
        state.early[place] = EarlyReport(deadline_ms=deadline_ms, offset=report.offset, size=size)
        while len(state.early) > limits.early_reports or self._early_bytes > limits.early_bytes:
            farthest = max(state.early)
            offset = state.early[farthest].offset
            dropped, deadline_ms = self._drop_early(farthest)
            if deadline_ms is None:
                continue
            if self._topic is not None:
                state.hold_back(offset, offset + 1)
            else:
                yield self._audited.unknown(dropped, "too many reports wait for their barriers", now_ms)

    # Reports that were held back.

    def has_room_for_held_back(self) -> bool:
        """Say whether reports are held back, and half the room for early ones is free.

        Reports that have been judged ``unknown`` take no room: they make way. Else reports on barriers that no log will
        have would keep out all others.
        """
        if self._topic is None or self._state.held_back is None:
            return False
        limits, early = self._audited.limits, self._state.early.values()
        wanted = [one.size for one in early if one.deadline_ms is not None]
        return len(wanted) <= limits.early_reports // 2 and sum(wanted) <= limits.early_bytes // 2

    def take_back(self, now_ms: int) -> Iterator[Verdict]:
        """Read reports again that were held back, until there is no more room.

        Between them lie some that have been judged; nothing is said of those a second time.
        """
        held = self._state.held_back
        if held is None or self._topic is None or not self.has_room_for_held_back():
            return
        self._state.held_back = None
        for number, report in enumerate(self._topic.read(*held)):
            if self._state.holds_back or number >= self._audited.limits.taken_back:
                self._state.hold_back(report.offset, held.end)
                break
            yield from self._take_again(report, now_ms)

    def _take_again(self, report: ReplicaReport, now_ms: int) -> Iterator[Verdict]:
        if report.error or report.basis == EVIDENCE or self._audited.why_misplaced(report):
            return
        match place_of(self._state, report.barrier_offset):
            case BarrierPlace.KEPT:
                waiting = self._state.waiting[report.barrier_offset]
                if report.key in waiting.missing:
                    waiting.missing.discard(report.key)
                    yield from self._match(self._store.get_barrier(report.barrier_offset), waiting, report, now_ms)
            case BarrierPlace.BEHIND_BREAK:
                yield self._ended(report, now_ms)
            case BarrierPlace.AHEAD:
                if report.place not in self._state.early:
                    yield from self._keep(report, now_ms)
            case _:
                pass

    def drop_behind_break(self, offset: int, now_ms: int) -> Iterator[Verdict]:
        """Judge and drop the early reports on barriers that a log broken at ``offset`` will never reach.

        They are judged as if they had come after the break; also those already judged ``unknown``.
        """
        for place in [place for place in self._state.early if place.offset >= offset]:
            report, _ = self._drop_early(place)
            yield self._ended(report, now_ms)

    def _drop_early(self, place: ReportPlace) -> tuple[ReplicaReport, int | None]:
        """Forget an early report; return it, and its deadline."""
        early = self._state.early.pop(place)
        self._early_bytes -= early.size
        report = self._store.get_report(place)
        self._store.drop_report(place)
        return report, early.deadline_ms

    # Barriers.

    def reach_barrier(self, header: Header, now_ms: int) -> Iterator[Finding]:
        """Keep the barrier that has just been read, and match the reports that came before it.

        One micro-batch may hold more barriers than there is room for early reports, so what was held back is taken in
        the midst of it.
        """
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
        yield from self.take_back(now_ms)
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
        for place, early in self._state.early.items():
            if early.deadline_ms is not None and early.deadline_ms <= now_ms:
                early.deadline_ms = None
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
