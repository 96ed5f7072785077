"""Readers of topics while a drill runs: the replicas' reports, the answers to a client, rejected requests."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from schemas.codecs.codec import decode_as
from schemas.codecs.envelopes import responses_in
from schemas.kafka.connection import Brokers
from schemas.records.messages import AuditReport, Rejected, Response
from schemas.topics import OM_AUDIT, OM_REJECTED, OM_RESPONSES
from stratolog.cluster.verdicts import readable
from stratolog.drills.core.log_digest import Sums, unsigned
from transport.topics.topic_tail import TailStart, TopicTail

POLL_S = 0.05
MAX_KEPT = 200_000
"""Values that a tap keeps, the youngest ones: room for a drill's own and for those that others write meanwhile."""


class Tap:
    """Reads a topic from now on, or from a moment (``since_ms``); close it, or use it in a ``with`` block."""

    def __init__(self, bootstrap_servers: Brokers, topic: str, since_ms: int | None = None) -> None:
        self.values: list[bytes] = []
        self._servers = bootstrap_servers
        start = TailStart(last_records=0) if since_ms is None else TailStart(since_ms=since_ms)
        with readable(bootstrap_servers):
            self._tail = TopicTail(bootstrap_servers, topic, start)

    def poll(self) -> list[bytes]:
        """Read new values, and return all values kept so far."""
        with readable(self._servers):
            while messages := self._tail.poll(POLL_S):
                self.values += [message.value() or b"" for message in messages]
                del self.values[:-MAX_KEPT]
        return self.values

    def close(self) -> None:
        """Let go of the connection."""
        self._tail.close()

    def __enter__(self) -> Self:
        """Return the tap itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class ReportTap(Tap):
    """The replicas' reports on one shard."""

    def __init__(self, bootstrap_servers: Brokers, shard: int, since_ms: int | None = None) -> None:
        super().__init__(bootstrap_servers, OM_AUDIT, since_ms)
        self._shard = shard

    def reports(self, basis: str) -> list[AuditReport]:
        """Return the reports so far that rest on ``basis``."""
        found = [decode_as(AuditReport, value) for value in self.poll()]
        return [report for report in found if report.shard == self._shard and report.basis == basis]

    def barrier(self, basis: str, nodes: Sequence[str], after: int) -> dict[str, AuditReport] | None:
        """Return the reports at the last barrier behind ``after`` that all ``nodes`` reported; None if none yet."""
        at: dict[int, dict[str, AuditReport]] = defaultdict(dict)
        for report in self.reports(basis):
            if report.barrier_offset > after:
                at[report.barrier_offset][report.node] = report
        complete = [offset for offset, found in at.items() if set(found) >= set(nodes)]
        return at[max(complete)] if complete else None

    def at_index(self, basis: str, index: int) -> dict[str, Sums]:
        """Return the digest of each node that has reported at a managed index."""
        return {report.node: sums_of(report) for report in self.reports(basis) if report.index == index}


def sums_of(report: AuditReport) -> Sums:
    """Return a report's digest."""
    return unsigned(report.slots, report.sums)


class AnswerTap(Tap):
    """Every response to one client, repeats included."""

    def __init__(self, bootstrap_servers: Brokers, client_id: bytes) -> None:
        super().__init__(bootstrap_servers, OM_RESPONSES)
        self._client_id = client_id

    def answers(self) -> dict[int, list[bytes]]:
        """Return the responses so far, as bytes, by call id."""
        found: dict[int, list[bytes]] = defaultdict(list)
        for value in (response for record in self.poll() for response in responses_in(record)):
            response = decode_as(Response, value)
            if response.client_id == self._client_id:
                found[response.call_id].append(value)
        return found

    def answer(self, call_id: int) -> Response | None:
        """Return the first answer to a call; None if there is none yet."""
        found = self.answers().get(call_id)
        return decode_as(Response, found[0]) if found else None


class RejectedTap(Tap):
    """Rejected records of the requests' topic, which get no answer."""

    def __init__(self, bootstrap_servers: Brokers) -> None:
        super().__init__(bootstrap_servers, OM_REJECTED)

    def rejected(self) -> dict[tuple[int, int], Rejected]:
        """Return the rejections so far by shard and offset of the record rejected."""
        found = [decode_as(Rejected, value) for value in self.poll()]
        return {(rejection.shard, rejection.offset): rejection for rejection in found}


def now_ms() -> int:
    """Return the time of the wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
