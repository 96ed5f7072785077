"""The reports of a process's replicas, as a broker in this process gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.core.tables.digests import Digests
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.reports import AuditReports
from schemas.codecs.codec import decode_as
from schemas.records.messages import AuditReport, Evidence
from schemas.topics import MAX_MESSAGE_BYTES
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.waiting import eventually
from tests.support.replicated.kit import FAMILIES, Node

TOPIC = "reports"
EVIDENCE = Evidence(
    index=1, offset=2, term=1, leader="n2", operation=0, cf="things", key=b"k", claim="prev", claimed=None, own=7,
)  # fmt: skip


class Case:
    """One node's reports."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        broker.create(TOPIC)
        self.clock = ManualClock(now_ms=5)
        self.noted: list[str] = []
        self.failures: list[BaseException] = []
        self.observed: list[tuple[Replica, Offered]] = []
        self.replica = Node(MemoryLog(self.clock), name="n2").replica
        self.reports = AuditReports(
            broker.bootstrap_servers, TOPIC, self.clock, self.noted.append, self.failures.append,
            lambda replica, outcome: self.observed.append((replica, outcome)),
        )  # fmt: skip

    def publish(self, **fields: Any) -> None:
        self.reports.publish(self.replica, Offered(reading=None, position=self.replica.position, **fields))

    def sent(self) -> list[tuple[AuditReport, bytes, dict[str, bytes]]]:
        """Return what was sent: the report, its key, its headers."""
        self.reports.close()
        messages = self.broker.read(TOPIC, self.broker.count(TOPIC)) if self.broker.count(TOPIC) else []
        return [
            (decode_as(AuditReport, one.value() or b""), one.key() or b"", dict(one.headers() or []))  # type: ignore[arg-type]
            for one in messages
        ]


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_broker() as broker:
        case = Case(broker)
        yield case
        case.reports.close()


def digests() -> Digests:
    return Digests(FAMILIES)


class Snapshot:
    """A snapshot of a store with rows, and how often it was closed; reading waits for ``go``, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self.go = threading.Event()
        self.error = error

    def iterate(self, *_: Any) -> Iterator[tuple[bytes, bytes]]:
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return iter([(b"k", b"v")])

    def close(self) -> None:
        self.closed += 1


def test_digests_at_a_barrier_are_reported(case: Case):
    case.publish(digests=digests())
    ((report, key, headers),) = case.sent()
    position = case.replica.position
    assert (report.node, report.shard, report.basis, report.flagged) == ("n2", 0, "incremental", False)
    assert (report.barrier_offset, report.index, report.chain) == (position.offset, position.index, position.chain)
    assert (report.slots, report.sums, report.evidence, report.reported_at_ms) == ([], [], None, 5)
    assert key == b"0/n2"
    assert headers == {"kind": b"incremental", "flagged": b"0"}


def test_evidence_is_reported_at_once_and_belongs_to_no_barrier(case: Case):
    case.publish(evidence=EVIDENCE)
    ((report, _, headers),) = case.sent()
    assert (report.basis, report.barrier_offset, report.flagged, report.evidence) == ("evidence", -1, True, EVIDENCE)
    assert headers == {"kind": b"evidence", "flagged": b"1"}


def test_a_record_that_is_no_barrier_is_observed_and_not_reported(case: Case):
    case.publish()
    assert [replica for replica, _ in case.observed] == [case.replica]
    assert case.sent() == []


def test_a_scrub_is_reported_when_its_scan_has_ended(case: Case):
    snapshot = Snapshot()
    case.publish(snapshot=snapshot)
    snapshot.go.set()
    eventually(lambda: snapshot.closed)
    ((report, _, headers),) = case.sent()
    assert report.basis == "scrubbed"
    assert len(report.slots) == len(FAMILIES.names), "each family has the one row"
    assert headers["kind"] == b"scrubbed"


def test_one_scan_a_shard_at_a_time(case: Case):
    first, second = Snapshot(), Snapshot()
    case.publish(snapshot=first)
    case.publish(snapshot=second)
    assert (first.closed, second.closed) == (0, 1)
    assert any("left out" in said for said in case.noted)
    first.go.set()
    eventually(lambda: first.closed)

    def scanned() -> bool:
        """The shard is free a moment after its snapshot is closed."""
        another = Snapshot()
        another.go.set()
        noted = len(case.noted)
        case.publish(snapshot=another)
        return len(case.noted) == noted

    eventually(scanned)


def test_a_scan_that_fails_says_so_and_reports_nothing(case: Case):
    snapshot = Snapshot(ValueError("odd row"))
    snapshot.go.set()
    case.publish(snapshot=snapshot)
    eventually(lambda: snapshot.closed)
    assert case.sent() == []
    assert case.noted == ["scrub of shard 0 failed: odd row"]
    assert case.failures == []


def test_a_store_that_cannot_be_read_ends_the_process(case: Case):
    snapshot = Snapshot(StoreFailure("disk"))
    snapshot.go.set()
    case.publish(snapshot=snapshot)
    eventually(lambda: snapshot.closed)
    (failure,) = case.failures
    assert isinstance(failure, StoreFailure)
    assert str(failure).startswith("shard 0: scrub at ")
    assert case.sent() == []


def test_after_closing_nothing_is_scanned(case: Case):
    case.reports.close()
    snapshot = Snapshot()
    case.publish(snapshot=snapshot)
    assert snapshot.closed == 1


def test_a_record_that_cannot_be_sent_is_noted(case: Case):
    case.reports.send(TOPIC, bytes(MAX_MESSAGE_BYTES + 1), b"k", 0)
    assert len(case.noted) == 1
    assert case.noted[0].startswith(f"{TOPIC}: not sent: ")
    case.reports.send(TOPIC, b"x", b"k", 2)
    case.reports.close()
    assert [one.value() for one in case.broker.read(TOPIC, 1, partition=2)] == [b"x"]
