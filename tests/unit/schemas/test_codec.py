from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from io import BytesIO
from typing import Any

import pytest
from fastavro import schemaless_writer

from schemas.codecs import codec
from schemas.codecs.codec import HEADER_BYTES, Undecodable, UnknownSchema, decode, decode_as, encode
from schemas.codecs.registry import MARKER, registry
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
    Delete,
    LeaderClaim,
    Merge,
    Put,
    RequestPosition,
    Result,
    Tick,
)
from schemas.records.messages import (
    AllocatedBlock,
    AuditReport,
    CreateKey,
    CreateVolume,
    DeleteVolume,
    Evidence,
    KeySession,
    Request,
    RequestBody,
    Response,
    SetVolumeProperty,
)
from schemas.records.rows import BlockLocation, KeyInfo
from tests.golden.avro_values import Schema, examples

NONCE, CHAIN, HASH = bytes(range(16)), bytes(range(32)), bytes(range(100, 116))
BLOCK = BlockLocation(container_id=1, local_id=2, offset=0, length=3, pipeline="p1")
EVIDENCE = Evidence(
    index=5,
    offset=9,
    term=2,
    leader="om1",
    operation=0,
    cf="keyTable",
    key=b"/v/b/k",
    claim="prev",
    claimed=None,
    own=-5,
)
RESULT = Result(
    client_id=NONCE, call_id=(7).to_bytes(8, "big"), request_hash=HASH, first_sent_at_ms=10, request_type="CreateKey",
    index=1, recorded=True, response=b"answer",
)  # fmt: skip
BATCH = Batch(
    term=1, nonce=NONCE, seq=1, prev_chain=CHAIN, first_index=1, last_index=1, timestamp_ms=5,
    request_position=RequestPosition(offset=4, leader_epoch=-1, hash=HASH),
    operations=[
        Checkpoint(name="c"),
        Put(cf="keyTable", key=b"k", value=b"v", prev=None),
        Delete(cf="keyTable", key=b"k", prev=-(1 << 63)),
        Merge(cf="usageTable", key=b"k", operator="add_int64", operand=bytes(8), prev=None, next=(1 << 63) - 1),
    ],
    results=[RESULT],
)  # fmt: skip
REPORT = AuditReport(
    cluster="c", node="om1", shard=0, basis="incremental", barrier_offset=3, index=4, chain=CHAIN, slots=[1], sums=[-1],
    flagged=True, evidence=EVIDENCE, reported_at_ms=6,
)  # fmt: skip


def request(body: RequestBody) -> Request:
    return Request(
        client_id=NONCE, call_id=1, first_sent_at_ms=2, answered_below=0, reply_partition=0, caller="me", body=body
    )


def response(result: KeySession | AllocatedBlock | None) -> Response:
    return Response(client_id=NONCE, call_id=1, shard=0, index=3, status="OK", message="", result=result)


RECORDS = {
    "batch": BATCH,
    "batch without position": replace(BATCH, request_position=None),
    "empty batch": replace(BATCH, operations=[], results=[]),
    "report with evidence": REPORT,
    "report without evidence": replace(REPORT, flagged=False, evidence=None),
    "response with session": response(KeySession(session_id=1, object_id=2, blocks=[BLOCK, BLOCK])),
    "response with block": response(AllocatedBlock(block=BLOCK)),
    "response without result": response(None),
    "request with metadata": request(CreateKey(volume="v", bucket="b", key="k", size=-1, metadata={"a": "ä"})),
    "request without properties": request(SetVolumeProperty(volume="v")),
    "request of the same shape": request(DeleteVolume(volume="v")),
    "key row": KeyInfo(
        volume="v", bucket="b", key="k", owner="o", object_id=1, update_id=2, size=3, replication="RATIS/THREE",
        blocks=[BLOCK], metadata={}, creation_time_ms=4, modification_time_ms=5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_round_trip(record: Any):
    value = encode(record)
    assert decode(value) == record
    assert decode_as(type(record), value) == record


def test_encoding_is_a_function_of_the_record():
    assert encode(BATCH) == encode(decode(encode(BATCH)))


def test_encoding_leaves_the_record_alone():
    record = replace(BATCH, operations=list(BATCH.operations))
    encode(record)
    assert record == BATCH


def test_decoded_types_are_the_declared_ones():
    batch = decode_as(Batch, encode(BATCH))
    assert [type(operation) for operation in batch.operations] == [Checkpoint, Put, Delete, Merge]
    assert type(batch.request_position) is RequestPosition
    assert type(batch.results[0]) is Result


def test_defaults_of_request_bodies_are_those_of_the_schema():
    decoded = decode_as(Request, encode(request(CreateVolume(volume="v"))))
    assert decoded.body == CreateVolume(volume="v", owner="", quota_in_bytes=-1, quota_in_namespace=-1)


# Values that are not readable.


@pytest.mark.parametrize("data", [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01" + bytes(7), b"{}", b"\x01\xc3" + bytes(40)])
def test_no_single_object_header(data: bytes):
    with pytest.raises(Undecodable, match="single-object"):
        decode(data)


def test_unknown_fingerprint():
    with pytest.raises(UnknownSchema, match="0102030405060708.*upgrade") as caught:
        decode(MARKER + bytes(range(1, 9)) + b"body")
    assert caught.value.fingerprint == bytes(range(1, 9))
    assert isinstance(caught.value, Undecodable)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_truncated_at_every_byte(record: Any):
    value = encode(record)
    for length in range(len(value)):
        with pytest.raises(Undecodable):
            decode(value[:length])


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("tail", [b"\x00", b"\xff", b"\xc3\x01", bytes(100)])
def test_trailing_bytes(record: Any, tail: bytes):
    with pytest.raises(Undecodable, match=f"{len(tail)} bytes too many after a {type(record).__name__}"):
        decode(encode(record) + tail)


def test_two_values_in_one():
    with pytest.raises(Undecodable):
        decode(encode(BATCH) * 2)


def test_wrong_type_is_named():
    with pytest.raises(Undecodable, match="a Tick where a Batch was expected"):
        decode_as(Batch, encode(Tick(term=1, nonce=NONCE, seq=1, prev_chain=CHAIN)))


def test_body_that_is_not_the_schemas():
    fingerprint = registry.current("LeaderClaim").fingerprint
    for body in (b"\xff" * 20, b"\x02" + NONCE + b"\x7f" + b"x", b"\x02" + NONCE + b"\x02\xff" + b"\x00\x00"):
        with pytest.raises(Undecodable, match="LeaderClaim"):
            decode(MARKER + fingerprint + body)


def test_union_branch_that_does_not_exist():
    value = encode(response(None))
    assert value[-1] == 0
    for branch in (0x06, 0x7E, 0x01):
        with pytest.raises(Undecodable, match="Response"):
            decode(value[:-1] + bytes([branch]))


def test_huge_lengths_do_not_allocate():
    fingerprint = registry.current("DigestBase").fingerprint
    header = MARKER + fingerprint + b"\x02" + NONCE + b"\x02" + CHAIN + b"\x02"
    for length in (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x0f"):
        with pytest.raises(Undecodable):
            decode(header + length)
    claim = MARKER + registry.current("LeaderClaim").fingerprint + b"\x02" + NONCE
    with pytest.raises(Undecodable):
        decode(claim + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")


# Records that cannot be written.

TICK = Tick(term=1, nonce=NONCE, seq=1, prev_chain=CHAIN)


@pytest.mark.parametrize(
    "record",
    [
        replace(TICK, nonce=bytes(15)), replace(TICK, nonce=bytes(17)), replace(TICK, nonce=None),  # type: ignore[arg-type]
        replace(TICK, term=None), replace(TICK, term="1"), replace(TICK, term=1 << 63),  # type: ignore[arg-type]
        replace(REPORT, cluster="\ud800"), replace(REPORT, cluster=b"c"), replace(REPORT, slots=None),  # type: ignore[arg-type]
        replace(TICK, seq=1.5), replace(TICK, seq=1e9), replace(TICK, term=-(1 << 63) - 1),  # type: ignore[arg-type]
        replace(REPORT, shard=1 << 31), replace(REPORT, shard=-(1 << 31) - 1), replace(REPORT, slots=[1 << 40]),
        replace(BATCH, operations=[Put(cf="c", key="k", value=b"", prev=None)]),  # type: ignore[arg-type]
        replace(BATCH, operations=[None]), replace(BATCH, request_position=TICK),  # type: ignore[arg-type, list-item]
    ],
)  # fmt: skip
def test_fields_that_the_schema_does_not_allow(record: Any):
    with pytest.raises(codec.Unencodable, match=type(record).__name__):
        encode(record)


@pytest.mark.parametrize("value", [EVIDENCE, BLOCK, 5, None, "text", CreateVolume(volume="v")])
def test_only_top_level_records_are_encoded(value: Any):
    with pytest.raises(KeyError):
        encode(value)


def test_a_record_in_the_wrong_union():
    with pytest.raises(codec.Unencodable, match="Batch"):
        encode(replace(BATCH, operations=[TICK]))  # type: ignore[list-item]


# All types.

TYPES = [pytest.param(cls, id=cls.__name__) for cls in codec.TOP_LEVEL]


@pytest.mark.parametrize("cls", TYPES)
def test_every_type_decodes_and_refuses_truncation(cls: type):
    version = registry.current(cls.__name__)
    schema = Schema(version.parsed)
    for datum in examples(schema).values():
        out = BytesIO()
        schemaless_writer(out, version.parsed, datum)
        value = MARKER + version.fingerprint + out.getvalue()
        record: Any = decode(value)
        assert type(record) is cls
        assert encode(record) == value
        for length in range(HEADER_BYTES, len(value), max(1, len(value) // 60)):
            with pytest.raises(Undecodable):
                decode(value[:length])


@pytest.mark.parametrize("cls", TYPES)
def test_records_are_keyword_only(cls: type):
    with pytest.raises(TypeError):
        cls(*range(len(fields(cls))))


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_records_are_slotted(record: Any):
    assert not hasattr(record, "__dict__")
    with pytest.raises(AttributeError):
        record.unknown = 1


def test_log_records_begin_with_the_header():
    for cls in (Batch, Barrier, Tick):
        assert [f.name for f in fields(cls)][:4] == ["term", "nonce", "seq", "prev_chain"]
    assert [f.name for f in fields(LeaderClaim)][:2] == ["term", "nonce"]


def test_without_the_native_codec():
    """Where it could not be built, the codec is the one in Python."""
    program = (
        "import sys; sys.modules['schemas.native'] = None\n"
        "from schemas.codecs import codec, python_codec\n"
        "from schemas.records.log import Tick\n"
        "tick = Tick(term=1, nonce=bytes(16), seq=2, prev_chain=bytes(32))\n"
        "assert codec.compile_encoder is python_codec.compile_encoder\n"
        "print(codec.decode(codec.encode(tick)) == tick, codec.encode(tick).hex())\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["True", encode(Tick(term=1, nonce=bytes(16), seq=2, prev_chain=bytes(32))).hex()]
