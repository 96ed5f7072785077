"""What a follower makes of records that no node of ours wrote: on the topic of reports anybody may have written them."""

from __future__ import annotations

from typing import Any

import pytest

from replicated_db.core.applying.evidence import audit_report
from schemas.codecs.codec import encode
from schemas.records.messages import AuditReport, Evidence
from tests.support.replicated.following import Following

EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=None, own=1
)  # fmt: skip


class Hearing:
    """A follower of node n1 and what it notes."""

    def __init__(self) -> None:
        following = Following("n1", audit_topic="om.audit")
        self.shard, self.errors, self.follower = following.shard, following.errors, following.follower
        self.told = following.notes

    @property
    def notes(self) -> list[str]:
        return [text for text, _ in self.told]

    def hear(self, key: Any, headers: Any, value: Any) -> None:
        self.follower._guard(self.follower.on_report, key, headers, value)


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"\xc3\x01" + bytes(400), bytes(2_000_000)])
def test_a_report_that_is_none_is_skipped_and_counted(value: bytes | None):
    hearing = Hearing()
    for _ in range(100):
        hearing.hear(b"0/n2", {}, value)
    assert not hearing.errors
    assert hearing.follower.unreadable_reports == 100
    assert len(hearing.notes) == 7, "one line for the first, second, fourth, … one"
    assert "om.audit is unreadable, the 64. one: " in hearing.notes[-1]


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"/",
        b"9" * 5_000 + b"/n2",
        b"-1/n2",
        b"7/n2",
        "٣/n2".encode(),
        "²/n2".encode(),
        b"\xff/n2",
        b"0",
        b"0/",
    ],
)
@pytest.mark.parametrize("headers", [{"flagged": b"0"}, {"flagged": None}, {"kind": None}, {"": b""}])
def test_a_report_with_an_odd_key_or_odd_headers_is_skipped(key: bytes | None, headers: dict[str, bytes | None]):
    hearing = Hearing()
    report = audit_report(
        hearing.shard.replica.identity,
        "evidence",
        -1,
        hearing.shard.replica.position,
        hearing.shard.replica.digests,
        EVIDENCE,
        0,
    )
    hearing.hear(b"0/n2", {}, encode(report))
    for value in (None, encode(report)):
        hearing.hear(key, headers, value)
    assert not hearing.errors


def test_a_report_of_a_shard_that_is_not_here_is_ignored():
    hearing = Hearing()
    numbers = {"shard": 1 << 30, "barrier_offset": -(1 << 63), "index": (1 << 63) - 1, "reported_at_ms": -(1 << 63)}
    report = AuditReport(
        cluster="", node="n2", basis="", chain=bytes(32), slots=[], sums=[], flagged=True, evidence=EVIDENCE, **numbers
    )
    hearing.hear(b"", {}, encode(report))
    assert not hearing.errors
    assert hearing.shard.replica.evidence is None
