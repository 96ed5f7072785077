"""The newest verdicts of the audit, read from the end of ``om.verdicts``."""

from __future__ import annotations

from dataclasses import replace

from replicated_db.core.trimming.audit_view import MAX_JUDGED, audit_place
from replicated_db.core.trimming.places import AuditPlace
from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_VERDICTS
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.topics.topic_tail import TailStart, TopicTail, TopicUnavailable, records_of
from transport.waiting.deadline import Deadline

TAIL_RECORDS = 10_000
"""Verdicts that are read of each partition at first; afterwards only what is new."""

READ_WAIT_S = 10.0
"""How long reading to the topic's end may take."""


class VerdictTail:
    """Follows the verdicts on one log. For one thread at a time."""

    def __init__(self, bootstrap_servers: Brokers, log: str) -> None:
        self._servers = bootstrap_servers
        self._log = log
        self._latest = LatestVerdicts(log, most=MAX_JUDGED)
        self._tail: TopicTail | None = None

    def place(self, shard: int) -> AuditPlace | str | None:
        """Read what is new, and return how far the audit has come with a shard; in words, why that is not known."""
        try:
            self._read_on(Deadline.after_s(READ_WAIT_S))
        except TopicUnavailable as error:
            self.close()
            return error.why
        place = audit_place(self._latest, self._log, shard)
        if self._latest.dropped:
            self._latest = LatestVerdicts(self._log, most=MAX_JUDGED)
            self.close()
        return place

    def _read_on(self, deadline: Deadline) -> None:
        if self._tail is None:
            self._tail = TopicTail(self._servers, OM_VERDICTS, TailStart(last_records=TAIL_RECORDS), deadline)
        for messages in self._tail.to_end(deadline):
            self._latest.take(map(_light, records_of(Verdict, messages)))

    def close(self) -> None:
        """Let go of the connection; the next question begins anew."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _light(verdict: Verdict) -> Verdict:
    """Leave out what trimming does not ask for, and what a stranger may make long."""
    return replace(verdict, differences=[], evidence=None, reason="", containers=[])
