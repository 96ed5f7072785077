"""The trimmer of one log topic: it gathers what the rule must know, and deletes what the rule allows.

Only a shard's leader trims: its own position is past everything that counts. Between asking and deleting, members only
move on, so an answer stays good. A member that joins meanwhile begins with a peer's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock

from replicated_db.core.trimming.bases import Base
from replicated_db.core.trimming.places import MemberPlace, agreeing
from replicated_db.core.trimming.trim_rule import TrimDecision, TrimFacts, TrimWish, decide, lost, members_of
from replicated_db.shell.process import END_WAIT_S
from replicated_db.shell.trimming.kafka_records import KafkaRecords
from replicated_db.shell.trimming.member_calls import MemberCalls
from replicated_db.shell.trimming.verdict_tail import VerdictTail
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls

MAX_OPEN_PARTITIONS = 8
"""Partitions whose connections to the brokers are kept; each has threads of its own."""

Addresses = Mapping[str, str]
"""``host:port`` of each node's HTTP server, by its name."""


class LogTrimmer:
    """Trims the partitions of ``topic``; ``log`` is its name in verdicts. For any thread: one question at a time.

    ``now_ms`` is the log's time: records carry the brokers' time, and this node's wall clock may be set.
    """

    def __init__(
        self, bootstrap_servers: Brokers, topic: str, log: str, *, cluster: str, topic_id: str, secret: ClusterSecret | None,
        tls: ProcessTls | None = None,
    ) -> None:  # fmt: skip
        self._calls = MemberCalls(cluster, secret, tls)
        self._verdicts = VerdictTail(bootstrap_servers, log)
        self._servers, self._topic, self._topic_id = bootstrap_servers, topic, topic_id
        self._records: dict[int, KafkaRecords] = {}
        self._logged_at_ms: dict[int, dict[Base, int]] = {}
        self._lock = Lock()

    def look(self, partition: int, own: MemberPlace, addresses: Addresses, wish: TrimWish, now_ms: int) -> TrimDecision:
        """Return how far a partition may be trimmed. Raises LogUnavailable if the brokers do not answer."""
        with self._lock:
            return self._look(partition, own, addresses, wish, now_ms)

    def trim(self, partition: int, own: MemberPlace, addresses: Addresses, wish: TrimWish, now_ms: int) -> TrimDecision:
        """Trim a partition as far as the rule allows; return the decision. Raises LogUnavailable: ask again."""
        with self._lock:
            decision = self._look(partition, own, addresses, wish, now_ms)
            if decision.records:
                self._of(partition).delete_before(decision.offset)
            return decision

    def agreed(self, partition: int, own: MemberPlace, addresses: Addresses) -> str | None:
        """Say why no base may be logged now, None if one may.

        A base flags every replica that differs from its leader. So a majority must have the leader's digest at an
        index, and no unflagged member another one there.
        """
        with self._lock:
            answers = self._ask(partition, own, addresses)
        members = members_of(answers)
        places = [place for place in answers.values() if isinstance(place, MemberPlace) and place.node in members]
        index, names = agreeing(places)
        if own.flagged or own.node not in names or len(names) <= len(members) // 2:
            unknown = [f"{name}: {why}" for name, why in answers.items() if isinstance(why, str)]
            told = f" ({'; '.join(unknown)})" if unknown else ""
            return f"no majority of {', '.join(members) or 'the members'} has the leader's digest at one index{told}"
        others = [
            place.node for place in places
            if not place.flagged and place.node not in names and index in dict(place.digests)
        ]  # fmt: skip
        if others:
            return f"{', '.join(others)} has another digest at index {index} than {', '.join(names)}: repair it first"
        return None

    def base_ages_ms(self, partition: int, bases: Sequence[Base], now_ms: int) -> list[int]:
        """Return how long ago bases were logged that lie behind the log's beginning. Raises LogUnavailable."""
        with self._lock:
            first = self._of(partition).bounds().first
            return [max(0, now_ms - time_ms) for time_ms in self._times(partition, first, bases).values()]

    def age_ms(self, partition: int, now_ms: int) -> int:
        """Return how long ago the log's first record was appended; 0 if there is none. Raises LogUnavailable."""
        with self._lock:
            first_ms = self._of(partition).first_logged_at_ms()
            return 0 if first_ms is None else max(0, now_ms - first_ms)

    def _look(
        self, partition: int, own: MemberPlace, addresses: Addresses, wish: TrimWish, now_ms: int
    ) -> TrimDecision:
        answers = self._ask(partition, own, addresses)
        audit = self._verdicts.place(partition)
        records = self._of(partition)
        first, end = records.bounds()
        hash_at = cache(records.hash_at)  # several members may stand at one record
        for name, place in answers.items():
            if isinstance(place, MemberPlace) and place.record_hash and first <= place.offset < end:
                answers[name] = lost(place, hash_at(place.offset)) or place
        facts = TrimFacts(
            first=first, end=end, now_ms=now_ms, answers=answers, audit=audit,
            logged_at_ms=self._times(partition, first, own.bases),
        )  # fmt: skip
        return decide(facts, wish)

    def _times(self, partition: int, first: int, bases: Sequence[Base]) -> dict[Base, int]:
        """Return when bases behind ``first`` were logged. Those that are not in the log are left out."""
        known, records = self._logged_at_ms.get(partition, {}), self._of(partition)
        times = {
            base: known.get(base) or records.base_logged_at_ms(base.offset)
            for base in bases if base.offset > first
        }  # fmt: skip
        found = {base: time_ms for base, time_ms in times.items() if time_ms is not None}
        self._logged_at_ms[partition] = found
        return found

    def _ask(self, partition: int, own: MemberPlace, addresses: Addresses) -> dict[str, MemberPlace | str]:
        """Ask every member, and those whom a member names that has read further."""
        answers: dict[str, MemberPlace | str] = {own.node: own}
        while missing := [name for name in members_of(answers) if name not in answers]:
            for name in missing:
                answers[name] = self._calls.ask(partition, name, addresses)
        return answers

    def _of(self, partition: int) -> KafkaRecords:
        if partition not in self._records:
            if len(self._records) >= MAX_OPEN_PARTITIONS:
                self._records.pop(next(iter(self._records))).close()
            self._records[partition] = KafkaRecords(self._servers, self._topic, partition, self._topic_id)
        return self._records[partition]

    def close(self) -> None:
        """Close all connections; a question under way, which may wait for silent members, is left to its end."""
        if not self._lock.acquire(timeout=END_WAIT_S):
            return
        try:
            self._calls.close()
            self._verdicts.close()
            for records in self._records.values():
                records.close()
            self._records.clear()
        finally:
            self._lock.release()


Holds = Callable[[int], tuple[int, ...]]
"""Returns the offsets from which transfers of this process still need a shard's log."""


def no_holds(_shard: int) -> tuple[int, ...]:
    """Return no offsets: this process sends no checkpoints."""
    return ()
