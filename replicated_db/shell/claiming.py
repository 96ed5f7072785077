"""Claiming a shard: read the log to its end, append a claim, and read the claim back from the log as valid.

Rules:
    - A delivery report proves nothing: the claim must be read from the log, with everything before it applied.
    - What this replica has applied is compared with the log before the claim and after it. If the log lost its tail in
      between, the records read from that tail must not stand. A leader whose chain is not the log's would write a
      record that stops every replica for good.
    - The thread announces each wait for the brokers (``on_turn``), so that a silent broker does not look like a stall
      of this node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event

from xxhash import xxh3_128_digest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import AheadOfLog
from replicated_db.core.leading.leader import Leader, LeaderLimits, Service, claim_for
from replicated_db.core.log.log_reads import read_log
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import advance, judge
from replicated_db.core.ports import ANSWER_WAIT_S, Appender, Clock, Entry, Ids, Log, LogUnavailable
from replicated_db.shell.system import deadline_by
from schemas.codecs.codec import decode, encode

CLAIM_WAIT_S = 10.0
READ_WAIT_S = 20.0
READ_STEP_S = 1.0
READ_LIMIT = 500
MAX_CLOCK_SKEW_MS = 60_000
"""A candidate does not lead if its wall clock is further than this from the broker's append time."""

REMEMBERED_CLAIMS = 64


class UnfitToLead(Exception):
    """The node must not lead for now. To claim again at once would only disturb the other nodes."""


class Claimer:
    """Claims one shard, any number of times, and reads its log on the thread that leads the shard.

    ``on_turn`` is called with the number of seconds for which the thread may be silent from now on, ``on_offered`` with
    the outcome of each record offered to the replica.
    """

    def __init__(
        self, replica: Replica, log: Log, service: Service, limits: LeaderLimits, *,
        clock: Clock, ids: Ids, address: str,
        on_turn: Callable[[float], None], on_offered: Callable[[Offered], None],
    ) -> None:  # fmt: skip
        self.replica = replica
        self.log = log
        self._service = service
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._address = address
        self._on_turn = on_turn
        self._on_offered = on_offered
        self._claims: deque[bytes] = deque(maxlen=REMEMBERED_CLAIMS)

    def has_claimed(self, nonce: bytes) -> bool:
        """Whether ``nonce`` is of one of this claimer's last REMEMBERED_CLAIMS claims. For any thread.

        Only claims since the start of the process are known.
        """
        return nonce in self._claims

    def claim(self, appender: Appender, stop: Event) -> Leader | None:
        """Claim the shard; return the leader, or None if another candidate was faster.

        Raises UnfitToLead, LogUnavailable if the brokers do not answer, AheadOfLog if the log is not the one that this
        replica has read.
        """
        with self._reading():
            return self._claim(appender, stop)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let the log rest when the code within has read what it needs."""
        with self.replica.reading_again():
            try:
                yield
            finally:
                self.log.rest()

    def _claim(self, appender: Appender, stop: Event) -> Leader | None:
        self.read_to(self._log_end())
        self._compare_with_log(self.replica.position)
        before, anchor = self.replica.read_offset, self.replica.anchor
        nonce = self._ids.nonce()
        self._claims.append(nonce)
        claim = claim_for(self.replica, nonce, self._address, self._clock.wall_ms())
        appender.append(0, encode(claim))
        deadline = deadline_by(self._clock, CLAIM_WAIT_S)
        report = None
        while report is None and not deadline.has_passed and not stop.is_set():
            self._on_turn(0.0)
            report = next(iter(appender.poll(0.1)), None)
        if report is None or report.error is not None or report.offset < 0:
            raise LogUnavailable(f"claim of term {claim.term}: {report.error if report else 'no report in time'}")
        elapsed_ms = self._clock.elapsed_ms()
        if abs(report.timestamp_ms - self._clock.wall_ms()) > MAX_CLOCK_SKEW_MS:
            raise UnfitToLead(f"this node's clock is over {MAX_CLOCK_SKEW_MS} ms from the broker's; it does not lead")
        if report.offset <= before:
            raise AheadOfLog(f"the claim lies at {report.offset}, but this replica has read up to {before}")
        # The claim must be read from the log as valid, with everything before it applied.
        self.read_to(report.offset + 1)
        leader = Leader(
            self.replica, self._service, self._limits,
            claim_offset=report.offset, claim_time_ms=report.timestamp_ms, elapsed_ms=elapsed_ms,
        )  # fmt: skip
        # The leader read the position once. The position may have moved since, past another candidate's claim.
        if leader.nonce != nonce:
            return None
        self._read_again(anchor, leader, report.offset)
        return leader

    def catch_up(self) -> None:
        """Read the records that the follower left to this loop while it led (``leaves_to_leader``).

        If the brokers do not answer, the follower reads them instead, before the next record that it applies.
        """
        with suppress(LogUnavailable), self._reading():
            self.read_to(self._log_end())

    def _log_end(self) -> int:
        self._on_turn(ANSWER_WAIT_S)
        end = self.log.bounds().end
        self._on_turn(0.0)
        return end

    def _read_again(self, position: Position, leader: Leader, claim_offset: int) -> None:
        """Judge again the records between ``position``, the anchor before the claim, and the claim.

        Raises AheadOfLog if another chain comes out. If the log lost its tail meanwhile, the records that this replica
        read from that tail must not stand: a leader whose chain is not the log's would write a record that stops every
        replica for good.
        """
        self._compare_with_log(position)
        if self._judge_again(position, claim_offset).chain != leader.chain:
            shard = self.replica.identity.shard
            raise AheadOfLog(f"shard {shard}: the log has lost records that this replica had read before its claim")

    def _judge_again(self, position: Position, last: int) -> Position:
        """Return the position after everything behind ``position`` up to offset ``last``, as the log has it now."""
        while (following := position.offset + 1) <= last:
            entries = self._read_some(following, min(READ_LIMIT, last + 1 - following))
            if not entries:
                raise LogUnavailable(f"no record from offset {following} on within {READ_WAIT_S} s")
            for entry in entries:
                record = decode(entry.value)
                if judge(position, record).takes_effect:
                    position = advance(position, record, entry.offset, entry.value)
                else:
                    position = replace(position, offset=entry.offset)
        return position

    def _compare_with_log(self, position: Position) -> None:
        """Compare the log's record at the replica's position with the one applied; raises AheadOfLog if they differ."""
        if position.offset < 0:
            return
        shard = self.replica.identity.shard
        entries = self._read_some(position.offset, 1)
        if not entries:
            raise LogUnavailable(
                f"shard {shard}: offset {position.offset}, which this replica has applied, cannot be read"
            )
        if xxh3_128_digest(entries[0].value) != position.record_hash:
            raise AheadOfLog(
                f"shard {shard}, offset {position.offset}: the log holds another record than the one applied"
            )

    def _read_some(self, offset: int, limit: int) -> Sequence[Entry]:
        """Return records from ``offset`` on, none after READ_WAIT_S without one. The loop beats meanwhile."""
        deadline = deadline_by(self._clock, READ_WAIT_S)
        entries = self._read_step(offset, limit)
        while not entries and not deadline.has_passed:
            entries = self._read_step(offset, limit)
        return entries

    def _read_step(self, offset: int, limit: int) -> Sequence[Entry]:
        self._on_turn(READ_STEP_S + ANSWER_WAIT_S)
        entries = read_log(self.log, offset, limit, READ_STEP_S)
        self._on_turn(0.0)
        return entries

    def read_foreign(self, end: int) -> None:
        """Read what others appended below offset ``end``, where the leader's last record does not follow its own.

        What the replica has read already did not count. It is judged once more, because the log may have lost it since
        and hold a claim in its place. The leader's own records were not lost with it then, so its appends go on.
        Raises AheadOfLog in that case.
        """
        with self._reading():
            self._read_foreign(end)

    def _read_foreign(self, end: int) -> None:
        # In this order: a follower that reads on meanwhile only moves the position nearer to what was read.
        read, position = self.replica.read_offset, self.replica.position
        if self._judge_again(position, min(read, end - 1)).chain != position.chain:
            shard = self.replica.identity.shard
            raise AheadOfLog(f"shard {shard}: the log has lost records that this leader had read behind its own")
        self.read_to(end)

    def read_to(self, end: int) -> None:
        """Offer every record below offset ``end`` to the replica.

        Raises LogUnavailable after READ_WAIT_S without a record.
        """
        deadline = deadline_by(self._clock, READ_WAIT_S)
        while (following := self.replica.read_offset + 1) < end:
            entries = self._read_step(following, min(READ_LIMIT, end - following))
            for entry in entries:
                self._on_offered(self.replica.offer(entry.offset, entry.value))
            if entries:
                deadline = deadline_by(self._clock, READ_WAIT_S)
            elif deadline.has_passed:
                raise LogUnavailable(f"no record from offset {following} on within {READ_WAIT_S} s")
