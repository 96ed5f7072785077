"""Trimming of a log's shards by the process that leads them: on an operator's word, and regularly (design, section 7).

Rules:
    - The rule of ``core/trimming/trim_rule.py`` decides how far; here is who asks, and when.
    - Regular trimming keeps the records of the last ``keep_ms``. It logs a base each sixteenth of that time, if the
      shard was written meanwhile, and trims to the newest base that is old enough. It leaves nobody behind.
    - A shard that is not written still gets records: leaders' signs of life, read indexes. After IDLE_RECORDS of them
      it gets a base too, or the log would grow for ever.
    - A base is logged only while a majority of the members has the leader's digests: a base flags all who differ.
    - If the brokers or a member do not answer, the next turn tries again. A refusal is told when its reason changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.core.trimming.trim_rule import TrimDecision, TrimWish
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from replicated_db.shell.trimming.log_trimmer import Addresses, Holds, LogTrimmer, no_holds

TURN_S = 20.0
BASES_KEPT = 16
"""Bases that regular trimming logs within the time that it keeps."""

LEAST_INTERVAL_MS = 60_000
"""The least time between two bases that regular trimming logs."""

IDLE_RECORDS = 10_000
"""Records behind a base of the present state after which another one is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAnswer:
    """Whether a base is on its way; if not, why. ``index`` is the shard's at that moment."""

    asked: bool
    index: int
    why: str = ""


class LogTrimming:
    """Trims the shards that this process leads. For any thread; ``loops`` may grow."""

    def __init__(
        self, trimmer: LogTrimmer, loops: Mapping[int, LeaderLoop], ask_base: Callable[[int, int], str],
        addresses: Callable[[int], Addresses], holds: Holds = no_holds,
    ) -> None:  # fmt: skip
        """``ask_base`` has a base of a shard logged, given the shard's index; it returns why it cannot, or nothing.

        ``addresses`` returns where a shard's members are, as far as this process knows.
        """
        self._trimmer = trimmer
        self._loops = loops
        self._ask_base = ask_base
        self._addresses_of = addresses
        self._holds = holds

    def has(self, shard: int) -> bool:
        """Whether this process has a replica of a shard."""
        return shard in self._loops

    def led(self) -> list[int]:
        """Return the shards that this process leads now."""
        return sorted(shard for shard, loop in list(self._loops.items()) if loop.leading)

    def leads(self, shard: int) -> bool:
        """Whether this process leads a shard."""
        return self._loops[shard].leading

    def place(self, shard: int) -> MemberPlace:
        """Return where this process's replica stands, on the disk. Raises StoreFailure."""
        return self._loops[shard].replica.durable_place(self._holds(shard))

    def look(self, shard: int, wish: TrimWish, addresses: Addresses) -> TrimDecision:
        """Return how far a shard's log may be trimmed. ``addresses``: of members that this process does not know.

        Raises LogUnavailable.
        """
        now_ms = self._loops[shard].log_time_ms()
        return self._trimmer.look(shard, self.place(shard), self._addresses(shard, addresses), wish, now_ms)

    def trim(self, shard: int, wish: TrimWish, addresses: Addresses) -> TrimDecision:
        """Trim a shard's log as far as the rule allows. Raises LogUnavailable."""
        now_ms = self._loops[shard].log_time_ms()
        return self._trimmer.trim(shard, self.place(shard), self._addresses(shard, addresses), wish, now_ms)

    def log_base(self, shard: int, addresses: Addresses) -> BaseAnswer:
        """Ask for a base, unless the last one is of the present state. It takes effect like any request."""
        own = self.place(shard)
        if own.bases:
            last = own.bases[-1]
            if own.index <= last.index + 1 and own.offset - last.offset < IDLE_RECORDS:  # its own batch has an index
                return BaseAnswer(asked=False, index=last.index)
        if (why := self._trimmer.agreed(shard, own, self._addresses(shard, addresses))) is None:
            why = self._ask_base(shard, own.index)
        return BaseAnswer(asked=not why, index=own.index, why=why)

    def base_ages_ms(self, shard: int) -> list[int]:
        """Return how long ago the bases were logged to which the log could be trimmed. Raises LogUnavailable."""
        loop = self._loops[shard]
        return self._trimmer.base_ages_ms(shard, loop.replica.bases, loop.log_time_ms())

    def age_ms(self, shard: int) -> int:
        """Return how long ago the log's first record was appended. Raises LogUnavailable."""
        return self._trimmer.age_ms(shard, self._loops[shard].log_time_ms())

    def _addresses(self, shard: int, others: Addresses) -> Addresses:
        return {**others, **self._addresses_of(shard)}

    def close(self) -> None:
        """Close all connections."""
        self._trimmer.close()


class LogTrimLoop(Background):
    """Trims regularly, on a thread of its own; ``keep_ms`` of 0 = never."""

    def __init__(self, trimming: LogTrimming, keep_ms: int, note: Note, fatal: Callable[[BaseException], None]) -> None:
        super().__init__("log trimming", fatal)
        self._trimming = trimming
        self._wish = TrimWish(keep_ms=keep_ms)
        self._interval_ms = max(keep_ms // BASES_KEPT, LEAST_INTERVAL_MS)
        self._note = note
        self._told: dict[int, str] = {}

    def run(self) -> None:
        """Take turns."""
        while self._wish.keep_ms and not self._stop.wait(TURN_S):
            for shard in self._trimming.led():
                if not self._stop.is_set():
                    self.turn(shard)

    def turn(self, shard: int) -> None:
        """Log a base if one is due, and trim to one that is old enough."""
        try:
            ages_ms = self._trimming.base_ages_ms(shard)
            newest_ms = min(ages_ms) if ages_ms else self._trimming.age_ms(shard)
            if newest_ms >= self._interval_ms:
                asked = self._trimming.log_base(shard, {})
                if asked.why:
                    self._tell(shard, f"no base is logged: {asked.why}")
                    return
            if max(ages_ms, default=-1) < self._wish.keep_ms:
                return
            done = self._trimming.trim(shard, self._wish, {})
        except LogUnavailable as error:
            self._tell(shard, f"not trimmed: {error}")
            return
        except StoreFailure as error:
            self._fatal(error)
            return
        if done.records:
            self._tell(shard, f"the log is trimmed to offset {done.offset}, {done.records:,} records are deleted")
        elif done.held_by.rule not in ("base", "keep"):
            self._tell(shard, f"the log is not trimmed: {done.held_by.why}")

    def _tell(self, shard: int, text: str) -> None:
        if self._told.get(shard) != text:
            self._told[shard] = text
            self._note(text, shard=shard)
