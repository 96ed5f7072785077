"""Which alerts stand: a table of states, from the latest verdicts and the times of the replicas' reports. Pure.

======================  ===================================================  =====================================
alert                   begins                                               ends
======================  ===================================================  =====================================
ReplicaDiverged         a verdict ``diverged``                               a later ``equal`` on the same basis;
                                                                             for evidence, on any basis
ReplicaUnknown          a verdict ``unknown`` is the latest for a time       another verdict on the same basis
AuditSilent             replicas report, and nobody judges them              a verdict
BrokersSilent           no broker listens                                    one does
======================  ===================================================  =====================================

A replica that is a member no longer is judged no longer, on no basis: its alerts end when its partition has verdicts
that are younger by GONE_MS. A replica that is judged on another basis keeps its alert, however old: a row that a full
scan found wrong stays wrong. Of each alert only its last change is told, so a receiver that was away learns how it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, EVIDENCE, UNKNOWN
from spark_streaming.records.core.freshness import ReportedPartition, age_words
from transport.topics.core.latest_verdicts import LatestVerdicts, subject_of

UNKNOWN_MS = 60_000
"""How long the latest verdict on a replica is ``unknown`` before that is an alert: a restart takes less."""

GONE_MS = 3_600_000
"""How much younger a partition's newest verdict is than the newest one on a replica that is gone."""

FIRING = "firing"
RESOLVED = "resolved"

PAGE = "page"
TICKET = "ticket"
SEVERITY = {"ReplicaDiverged": PAGE, "BrokersSilent": PAGE, "ReplicaUnknown": TICKET, "AuditSilent": TICKET}
ACTION = {
    "ReplicaDiverged": "stratolog audit --once",
    "ReplicaUnknown": "stratolog status",
    "AuditSilent": "stratolog up",
    "BrokersSilent": "stratolog status",
}
"""The command with which a person begins."""


class AlertSubject(NamedTuple):
    """What an alert is about; fields that do not apply are empty."""

    name: str
    log: str = ""
    shard: str = ""
    node: str = ""
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert as it is told. Times in ms since the epoch; ``ended_ms`` is 0 while it stands."""

    subject: AlertSubject
    summary: str
    began_ms: int
    ended_ms: int = 0

    @property
    def state(self) -> str:
        """Return FIRING or RESOLVED."""
        return RESOLVED if self.ended_ms else FIRING


class AlertBook:
    """The alerts that stand, and the verdicts that they come from."""

    def __init__(self) -> None:
        self._latest = LatestVerdicts()
        self._standing: dict[AlertSubject, Alert] = {}

    @property
    def standing(self) -> tuple[Alert, ...]:
        """The alerts that stand."""
        return tuple(self._standing.values())

    @property
    def verdicts(self) -> list[Verdict]:
        """The latest verdict on each subject."""
        return list(self._latest)

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in the order in which they came."""
        for one in verdicts:
            evidence = subject_of(one)._replace(basis=EVIDENCE)
            if one.basis == EVIDENCE:
                self._latest.forget(evidence)  # the newest counts: much of it is of no barrier
            # Evidence is settled when the replica is judged again; nobody says `equal` on that basis.
            if self._latest.take([one]) and one.verdict == EQUAL:
                known = self._latest.of(*evidence)
                if known is not None and known.decided_at_ms < one.decided_at_ms:
                    self._latest.forget(evidence)

    def changes(
        self, silent_ms: Mapping[ReportedPartition, int], now_ms: int, *, dead_brokers: Collection[str] = ()
    ) -> list[Alert]:
        """Return the alerts that begin or end now.

        ``silent_ms``: partitions whose replicas report without being judged, and for how long (0: nobody knows).
        ``dead_brokers``: the
        brokers' addresses if nobody listens at any of them.
        """
        wanted = dict(self._wanted(silent_ms, now_ms, dead_brokers))
        begun = [
            Alert(subject=subject, summary=words, began_ms=now_ms)
            for subject, words in wanted.items()
            if subject not in self._standing
        ]
        ended = [replace(one, ended_ms=now_ms) for subject, one in self._standing.items() if subject not in wanted]
        for one in ended:
            del self._standing[one.subject]
        self._standing |= {one.subject: one for one in begun}
        return [*ended, *begun]

    def _wanted(
        self, silent_ms: Mapping[ReportedPartition, int], now_ms: int, dead_brokers: Collection[str]
    ) -> Iterable[tuple[AlertSubject, str]]:
        newest: dict[tuple[str, int, str | None], int] = {}
        for one in self._latest:
            for place in ((one.log, one.shard, one.node), (one.log, one.shard, None)):
                newest[place] = max(newest.get(place, 0), one.decided_at_ms)
        for one in self._latest:
            of_replica, of_all = newest[one.log, one.shard, one.node], newest[one.log, one.shard, None]
            is_gone = of_all - of_replica >= GONE_MS
            if one.verdict == DIVERGED and not is_gone:
                yield _about(one, "ReplicaDiverged"), _words(one, "differs from the log")
            elif one.verdict == UNKNOWN and not is_gone and now_ms - one.decided_at_ms >= UNKNOWN_MS:
                yield _about(one, "ReplicaUnknown"), _words(one, "cannot be judged")
        for partition, silence_ms in silent_ms.items():
            subject = AlertSubject("AuditSilent", partition.log, str(partition.shard))
            said = f"replicas of {partition.log}, partition {partition.shard} report"
            since = f" for {age_words(silence_ms)}" if silence_ms else ""
            yield subject, f"{said}, and nobody has judged them{since}"
        if dead_brokers:
            yield AlertSubject("BrokersSilent"), f"no broker listens at {', '.join(dead_brokers)}"


def _about(one: Verdict, name: str) -> AlertSubject:
    return AlertSubject(name, one.log, str(one.shard), one.node, one.basis)


def _words(one: Verdict, what: str) -> str:
    who = one.node or "the log"
    return f"{who} {what}: {one.log}, partition {one.shard}, basis {one.basis}: {one.reason or one.verdict}"
