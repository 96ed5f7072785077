"""What rows mean together, by Spark in batch: a log that makes sense, and one with a fault of each kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import enveloped_responses
from schemas.column_families import (
    BUCKET_TABLE,
    DELETED_TABLE,
    INLINE_TABLE,
    KEY_TABLE,
    OPEN_KEY_TABLE,
    SNAPSHOT_TABLE,
    USAGE_TABLE,
    VOLUME_TABLE,
)
from schemas.records.log import Batch
from schemas.records.messages import Response
from schemas.records.rows import NEVER_WRITTEN, BlockLocation, BucketInfo, KeyInfo, VolumeInfo
from schemas.topics import DN_LOG, OM_RESPONSES
from spark_streaming.batch import counting
from spark_streaming.batch.acknowledgements import CHECK, SETTLE_MS, unfounded
from spark_streaming.batch.semantics import DELETION_MS, LogRows, SemanticFinding, semantic_findings
from tests.support.audit.spark import APPENDED_AT, raw_records
from tests.support.logs.logbuilder import LogBuilder, counter
from tests.support.logs.pipelinelog import PipelineLog

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
APPENDED_MS = int(APPENDED_AT.timestamp() * 1000)
LATER_MS = APPENDED_MS + 2 * DELETION_MS
WRITTEN = 5
"""Any ``bcs_id`` of a block that its pipeline has committed."""


class Namespace(LogBuilder):
    """A log of volumes, buckets and keys, with the counters that they should have."""

    def volume(self, volume: str, allotted: int = 0, buckets: int = 1) -> None:
        row = VolumeInfo(
            volume=volume, owner="o", creator="o", object_id=1, update_id=1, quota_in_bytes=-1, quota_in_namespace=-1,
            creation_time_ms=1, modification_time_ms=1,
        )  # fmt: skip
        self.batch(self.put(VOLUME_TABLE, f"/{volume}".encode(), encode(row)))
        self.counter(f"/{volume}/#allottedBytes", allotted)
        self.counter(f"/{volume}/#usedNamespace", buckets)

    def bucket(self, volume: str, bucket: str = "b", quota: int = -1, size: int = 0, keys: int = 0) -> None:
        row = BucketInfo(
            volume=volume, bucket=bucket, owner="o", layout="OBJECT_STORE", object_id=1, update_id=1,
            quota_in_bytes=quota, quota_in_namespace=-1, creation_time_ms=1, modification_time_ms=1,
        )  # fmt: skip
        self.batch(self.put(BUCKET_TABLE, f"/{volume}/{bucket}".encode(), encode(row)))
        self.counter(f"/{volume}/{bucket}/#usedBytes", size)
        self.counter(f"/{volume}/{bucket}/#usedNamespace", keys)

    def counter(self, name: str, amount: int) -> None:
        """Set a counter to 0, then add: as leaders do."""
        self.batch(self.put(USAGE_TABLE, name.encode(), counter(0)))
        if amount:
            self.batch(self.merge(name.encode(), amount + 1))
            self.batch(self.merge(name.encode(), -1))

    def key(self, volume: str, key: str, size: int, *blocks: BlockLocation, table: str = KEY_TABLE) -> None:
        row = KeyInfo(
            volume=volume, bucket="b", key=key.partition("/")[0], owner="o", object_id=1, update_id=1, size=size,
            replication="THREE", blocks=list(blocks), metadata={}, creation_time_ms=1, modification_time_ms=1,
        )  # fmt: skip
        self.batch(self.put(table, f"/{volume}/b/{key}".encode(), encode(row)))

    def inline(self, volume: str, key: str, size: int, object_id: int, data: bytes | None) -> None:
        """Put a key that says that its bytes are inline, and the row of these bytes unless that is None."""
        row = KeyInfo(
            volume=volume, bucket="b", key=key, owner="o", object_id=object_id, update_id=1, size=size,
            replication="THREE", blocks=[], metadata={}, creation_time_ms=1, modification_time_ms=1, inline=True,
        )  # fmt: skip
        put = self.put(KEY_TABLE, f"/{volume}/b/{key}".encode(), encode(row))
        more = [] if data is None else [self.put(INLINE_TABLE, b"%d" % object_id, data)]
        self.batch(put, *more)


def block(number: int, bcs_id: int = WRITTEN) -> BlockLocation:
    return BlockLocation(container_id=1, local_id=number, offset=0, length=1, pipeline="p", bcs_id=bcs_id)


def whole() -> Namespace:
    """A namespace without a fault: two buckets with quotas, a key that was replaced, one that was deleted."""
    log = Namespace().start()
    log.volume("v", allotted=70, buckets=2)
    log.bucket("v", "b", quota=70, size=18, keys=3)
    log.bucket("v", "empty")
    log.key("v", "k1", 999)
    log.key("v", "k1", 5, block(1))
    log.key("v", "k2", 7, block(2), block(3, NEVER_WRITTEN), block(4, 0))
    log.key("v", "k3", 7)
    log.batch(log.delete(KEY_TABLE, b"/v/b/k3"))
    log.key("v", "new/77", 0, block(5, 0), table=OPEN_KEY_TABLE)
    log.inline("v", "small", 5, 1280, b"first")
    log.inline("v", "small", 6, 1536, b"second")
    log.batch(log.delete(INLINE_TABLE, b"1280"))
    return log


def pipeline(*blocks: int) -> PipelineLog:
    log = PipelineLog().start()
    for number in blocks:
        log.batch(log.put_block(1, number, b"bytes"))
    return log


def rows_of(log: LogBuilder, name: str = "om.log") -> LogRows:
    records = raw_records({log.shard: log.values}, log=name)
    effective = counting.effective_records(records).persist()
    until = {shard: point.offset for shard, point in counting.ends(effective).items()}
    return LogRows(records=records, effective=effective, until=until)


def found_in(log: LogBuilder, beside: PipelineLog | None, now_ms: int = LATER_MS) -> list[tuple[str, str, str, str]]:
    pipelines = None if beside is None else rows_of(beside, DN_LOG)
    findings = semantic_findings(rows_of(log), pipelines, now_ms)
    return [(one.check, one.subject, one.said, one.found) for one in findings]


def test_rows_that_make_sense():
    stored = pipeline(1, 2, 5, 6)
    stored.batch(stored.delete_block(1, 6))
    assert found_in(whole(), stored) == []


def test_each_check_finds_what_it_is_for():
    log = whole()
    log.batch(log.merge(b"/v/b/#usedBytes", -13))
    log.counter("/gone/b/#usedBytes", 0)
    log.volume("w", buckets=0)
    log.bucket("w", size=3, keys=1)
    log.key("w", "k", 3)
    log.batch(log.delete(VOLUME_TABLE, b"/w"), log.put(USAGE_TABLE, b"/w/#usedNamespace", counter(1)))
    log.volume("x", buckets=0)
    log.key("x", "lost", 4, block(7))
    log.key("v", "k9/1", 0, block(8), table=DELETED_TABLE)
    log.key("v", "k9/2", 0, block(9), table=DELETED_TABLE)
    log.batch(log.delete(DELETED_TABLE, b"/v/b/k9/2"))
    log.inline("v", "small", 6, 1792, None)
    log.batch(log.put(INLINE_TABLE, b"2048", b"nobody's"))
    stored = pipeline(1, 2, 5, 8, 44)
    nobody = "there is no such volume or bucket"
    assert found_in(log, stored) == [
        ("usage", "/v/b/#usedBytes", "5", "18"),
        ("usage", "/x/b/#usedBytes", "0", "4"),
        ("usage", "/x/b/#usedNamespace", "0", "1"),
        ("counter without owner", "/gone/b/#usedBytes", "0", nobody),
        ("counter without owner", "/w/#allottedBytes", "0", nobody),
        ("counter without owner", "/w/#usedNamespace", "1", nobody),
        ("key without bucket", "/x/b/lost", "a live row", "there is no such bucket"),
        ("bucket without volume", "/w/b", "a live row", "there is no such volume"),
        ("inline key without bytes", "/v/b/small", "6 bytes", "no bytes"),
        ("bytes without inline key", "object 1536", "6 bytes", "no inline key has it"),
        ("bytes without inline key", "object 2048", "8 bytes", "no inline key has it"),
        ("block without replica", "block 1/7 of /x/b/lost", "committed", "no pipeline's log has it"),
        ("replica without key", "block 1/44", "stored", "no key has it"),
        ("endless deletion", "/v/b/k9/1", "deleted 48.0 h ago", "its blocks are still to be deleted"),
    ]


def test_what_waits_is_no_fault_yet():
    """What is young, and deletions that a snapshot holds; without datanodes nothing is deleted."""
    log = whole()
    log.key("v", "fresh", 0, block(7))
    log.key("v", "k9/1", 0, block(8), table=DELETED_TABLE)
    log.batch(log.put(SNAPSHOT_TABLE, b"/v/b/monday", b"any row"))
    log.batch(log.merge(b"/v/b/#usedNamespace", 1))
    assert found_in(log, pipeline(1, 2, 44), now_ms=APPENDED_MS + 1_000) == []
    assert found_in(log, None) == []
    assert [check for check, *_ in found_in(log, pipeline(1, 2, 44))] == [
        "block without replica", "replica without key"
    ]  # fmt: skip


# -- answers -----------------------------------------------------------------------------------------------------------


def answered(log: LogBuilder, *extra: bytes, read_after_s: float = 60.0) -> list[SemanticFinding]:
    """Return what is found if all results of a log were sent, some together, some twice, and others besides."""
    given = [
        one.response for value in log.values if isinstance(record := _record(value), Batch) for one in record.results
    ]
    values = [*enveloped_responses(given), *given[:2], *extra]
    rows = rows_of(log)
    indexes = {log.shard: counting.ends(rows.effective)[log.shard].index}
    responses = raw_records({0: values}, log=OM_RESPONSES)
    read_at_ms = int((APPENDED_AT + timedelta(seconds=read_after_s)).timestamp() * 1000)
    return unfounded(responses, rows, indexes, read_at_ms)


def _record(value: bytes) -> Batch | None:
    try:
        return decode_as(Batch, value)
    except ValueError:
        return None


def response(index: int, status: str = "OK", shard: int = 0) -> bytes:
    return encode(
        Response(client_id=b"c" * 16, call_id=9, shard=shard, index=index, status=status, message="", result=None)
    )


def test_every_answer_has_its_result():
    log = whole()
    assert answered(log, response(-1, "OVERLOADED"), response(1, shard=7), b"no answer") == []


def test_an_answer_without_a_result_is_named():
    log = whole()
    subject = f"request {(b'c' * 16).hex()}/9"
    (false,) = answered(log, *enveloped_responses([response(3), response(3)]))
    assert false == SemanticFinding(
        check=CHECK, shard=0, subject=subject, said="OK at index 3", found="the log has no such result"
    )
    lost = response(log.index + 1)
    assert [one.said for one in answered(log, lost)] == [f"OK at index {log.index + 1}"], "the log's end was lost"
    assert answered(log, lost, read_after_s=SETTLE_MS / 1000) == [], "it may have come after the log was read"


def test_batches_that_do_not_count_give_no_results():
    log = whole()
    void = replace(log.batch_of([], [log.result()], 1), nonce=b"twin" * 4)
    log.append(void)
    assert [one.said for one in answered(log)] == [f"OK at index {void.results[0].index}"]


def test_times_are_those_of_the_broker():
    frame = raw_records({0: [b"x"]}).select(F.unix_millis("timestamp").alias("ms")).collect()
    assert frame[0].ms == APPENDED_MS
