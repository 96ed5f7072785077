"""Batches read in C and in Python: the same hashes, headers and samples, and nothing accepted that the codec refuses."""

from __future__ import annotations

import importlib
import shutil
import sysconfig
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from schemas.codecs.codec import HEADER_BYTES, encode, encode_at, header_of
from schemas.column_families import DN_COLUMN_FAMILIES, OM_COLUMN_FAMILIES, RETRY_TABLE
from schemas.features import INITIAL
from schemas.records.log import Batch, Checkpoint, Delete, Merge, Put, RequestPosition, Result
from schemas.records.messages import AllocatedBlock, CreatedSnapshot, KeySession, LogDigestBase, Response
from schemas.records.rows import BlockLocation
from spark_streaming.verdicts.log_reader import SCANNED, LogReader, are_alike
from spark_streaming.verdicts.log_rows import CHECKED_EACH, decoded_log_record
from spark_streaming.windows.core.window_book import OTHER
from tests.properties.examples import examples

C_COMPILER = shutil.which(str(sysconfig.get_config_var("CC") or "cc").split(maxsplit=1)[0])
if C_COMPILER is None:
    pytest.skip("there is no C compiler here", allow_module_level=True)
native: Any = importlib.import_module("spark_streaming.verdicts.native")

FAMILIES = tuple(dict.fromkeys((*OM_COLUMN_FAMILIES, *DN_COLUMN_FAMILIES)))
APPENDED_MS = 1_700_000_000_000
UNCHECKED = CHECKED_EACH + 1

longs = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-70, 70))
hashes = st.one_of(st.none(), longs)
texts = st.one_of(st.text(max_size=12), st.sampled_from(("OK", "KEY_NOT_FOUND", "CreateKey")))
keys = st.binary(max_size=80)
families = st.sampled_from(FAMILIES)
blocks = st.builds(
    BlockLocation, container_id=longs, local_id=longs, offset=longs, length=longs, pipeline=texts, bcs_id=longs
)
results_of_requests = st.one_of(
    st.none(),
    st.builds(KeySession, session_id=longs, object_id=longs, blocks=st.lists(blocks, max_size=3)),
    st.builds(AllocatedBlock, block=blocks),
    st.builds(CreatedSnapshot, snapshot=texts, snapshot_id=longs),
)
responses = st.builds(
    Response, client_id=st.binary(min_size=16, max_size=16), call_id=longs,
    shard=st.integers(-(1 << 31), (1 << 31) - 1), index=longs, status=texts, message=texts, result=results_of_requests,
)  # fmt: skip
simple_responses = st.builds(
    Response, client_id=st.just(bytes(16)), call_id=st.just(1), shard=st.just(0), index=st.just(1), status=texts,
    message=texts, result=st.none(),
)  # fmt: skip
encoded = st.one_of(
    responses.map(encode), simple_responses.map(lambda one: encode_at(one, INITIAL)), st.binary(max_size=40)
)
operations = st.one_of(
    st.builds(Put, cf=families, key=keys, value=st.binary(max_size=300), prev=hashes),
    st.builds(Delete, cf=families, key=keys, prev=hashes),
    st.builds(
        Merge, cf=families, key=keys, operator=texts, operand=st.one_of(st.just(b"\xff" * 8), keys), prev=hashes,
        next=longs,
    ),
    st.builds(Checkpoint, name=texts),
)  # fmt: skip
results = st.builds(
    Result, client_id=st.binary(min_size=16, max_size=16), call_id=st.binary(min_size=8, max_size=8),
    request_hash=st.binary(min_size=16, max_size=16), first_sent_at_ms=longs,
    request_type=st.one_of(texts, st.just(LogDigestBase.__name__)), index=longs, recorded=st.booleans(),
    response=encoded,
)  # fmt: skip
positions = st.one_of(
    st.none(),
    st.builds(
        RequestPosition, offset=longs, leader_epoch=st.integers(-(1 << 31), (1 << 31) - 1),
        hash=st.binary(min_size=16, max_size=16),
    ),
)  # fmt: skip
batches = st.builds(
    Batch, term=longs, nonce=st.binary(min_size=16, max_size=16), seq=longs,
    prev_chain=st.binary(min_size=32, max_size=32), first_index=longs, last_index=longs, timestamp_ms=longs,
    request_position=positions, operations=st.lists(operations, max_size=12), results=st.lists(results, max_size=6),
)  # fmt: skip


def reader(*, scans: bool) -> LogReader:
    made = LogReader(FAMILIES)
    assert made._scanner is not None
    if not scans:
        made._scanner = None
    return made


FAST, SLOW = reader(scans=True), reader(scans=False)


@pytest.mark.parametrize("cls", SCANNED)
def test_the_scanner_reads_the_versions_that_are_written_now(cls: type):
    assert SCANNED[cls] == header_of(cls), (
        f"the schema of {cls.__name__} has changed: change spark_streaming/verdicts/native.pyx, then its version in "
        "log_reader.py; until then batches are audited in Python, at half the rate"
    )


def is_ascii(batch: Batch) -> bool:
    """Say whether the scanner does not leave a batch to others."""
    found = [op.name for op in batch.operations if isinstance(op, Checkpoint)]
    found += [op.operator for op in batch.operations if isinstance(op, Merge)]
    return all(map(str.isascii, (*found, *(one.request_type for one in batch.results))))


@given(batch=batches)
@settings(max_examples=examples(300), deadline=None)
def test_both_ways_make_the_same_of_a_batch(batch: Batch):
    value = encode(batch)
    scanned = native_scan(value)
    assert (scanned is not None) == is_ascii(batch)
    assert are_alike(FAST.read(UNCHECKED, APPENDED_MS, value), SLOW.read(UNCHECKED, APPENDED_MS, value))
    assert are_alike(FAST.read(0, APPENDED_MS, value), SLOW.read(0, APPENDED_MS, value)), "checked by fastavro, too"
    assert FAST.read(0, APPENDED_MS, value).row.header.error is None


def test_texts_that_are_no_words_of_ours_are_one_row_and_are_not_remembered():
    """A thousand request types of megabytes each filled the auditor's memory, in C and in Python."""
    long = [f"{number}{'t' * 300}" for number in range(3)]
    results = [
        Result(
            client_id=bytes(16), call_id=bytes(8), request_hash=bytes(16), first_sent_at_ms=APPENDED_MS,
            request_type=text, index=1, recorded=False, response=b"",
        )
        for text in (*long, "CreateKey")
    ]  # fmt: skip
    value = encode(
        Batch(
            term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), first_index=1, last_index=4, timestamp_ms=APPENDED_MS,
            request_position=None, operations=[], results=results,
        )
    )  # fmt: skip
    fast = FAST.read(UNCHECKED, APPENDED_MS, value)
    assert are_alike(fast, SLOW.read(UNCHECKED, APPENDED_MS, value))
    counted = {(row.kind, row.status): count for (row, _), count in fast.samples.items() if row.metric == "request"}
    assert counted[OTHER, OTHER] == 3
    one, other = (native_scan(value)[5] for _ in range(2))
    assert [first for (first, _, _), (again, _, _) in zip(one, other, strict=True) if first is again] == ["CreateKey"]


def native_scan(value: bytes, appended_ms: int = APPENDED_MS) -> Any:
    scanner: Any = FAST._scanner
    return scanner.scan(value, HEADER_BYTES, appended_ms)


@given(batch=batches, data=st.data())
@settings(max_examples=examples(600), deadline=None)
def test_what_the_codec_refuses_is_not_scanned(batch: Batch, data: st.DataObject):
    value = bytearray(encode(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, max(HEADER_BYTES, len(value) - 1)))
        match data.draw(st.sampled_from(("flip", "cut", "add", "set"))):
            case "flip":
                value[at : at + 1] = bytes([value[at] ^ 1 << data.draw(st.integers(0, 7))]) if at < len(value) else b""
            case "cut":
                del value[at:]
            case "add":
                value[at:at] = data.draw(st.binary(min_size=1, max_size=3))
            case _:
                value[at : at + 1] = b"\xff"
    damaged = bytes(value)
    if native_scan(damaged) is not None:
        assert decoded_log_record(UNCHECKED, damaged).error is None
        assert are_alike(FAST.read(UNCHECKED, APPENDED_MS, damaged), SLOW.read(UNCHECKED, APPENDED_MS, damaged))
    else:
        assert (
            FAST.read(UNCHECKED, APPENDED_MS, damaged).row.header
            == SLOW.read(UNCHECKED, APPENDED_MS, damaged).row.header
        )


@given(first=st.integers(-(1 << 63), (1 << 63) - 1), appended=st.integers(-(1 << 63), (1 << 63) - 1))
@example(first=-(1 << 63), appended=(1 << 63) - 1)
@example(first=(1 << 63) - 1, appended=-(1 << 63))
@settings(max_examples=examples(100), deadline=None)
def test_latencies_of_any_numbers_are_the_same(first: int, appended: int):
    result = Result(
        client_id=bytes(16), call_id=bytes(8), request_hash=bytes(16), first_sent_at_ms=first, request_type="CreateKey",
        index=1, recorded=True, response=b"",
    )  # fmt: skip
    batch = Batch(
        term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), first_index=1, last_index=1, timestamp_ms=1,
        request_position=None, operations=[], results=[result],
    )  # fmt: skip
    value = encode(batch)
    assert native_scan(value, appended) is not None
    assert are_alike(FAST.read(UNCHECKED, appended, value), SLOW.read(UNCHECKED, appended, value))


@given(data=st.binary(max_size=200), seed=st.integers(0, (1 << 64) - 1))
@settings(max_examples=examples(300), deadline=None)
def test_it_hashes_as_xxhash_does(data: bytes, seed: int):
    assert native.hash_of(data, seed) == xxh64_intdigest(data, seed)


def test_a_log_without_retry_rows_is_refused():
    with pytest.raises(ValueError, match=RETRY_TABLE):
        LogReader(("keyTable",))


def test_more_families_than_there_is_room_for_are_refused():
    names = [f"family{number}" for number in range(64)]
    with pytest.raises(ValueError, match="65 column families; at most 64"):
        native.BatchScanner([*names, RETRY_TABLE], RETRY_TABLE, b"", str, 1, 42)


def test_a_wrong_reading_of_every_64th_record_is_not_judged(monkeypatch: pytest.MonkeyPatch):
    batch = Batch(
        term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), first_index=1, last_index=0, timestamp_ms=1,
        request_position=None, operations=[Put(cf="keyTable", key=b"k", value=b"v", prev=None)], results=[],
    )  # fmt: skip
    value, faulty = encode(batch), LogReader(FAMILIES)
    other = native_scan(encode(replace(batch, term=2)))

    class WrongScanner:
        def scan(self, *_: object) -> Any:
            return other

    monkeypatch.setattr(faulty, "_scanner", WrongScanner())
    assert "two decoders read its records differently" in str(faulty.read(64, APPENDED_MS, value).row.header.error)
    assert faulty.read(65, APPENDED_MS, value).row.header.error is None
