"""Codec: round trips of every top-level type, and arbitrary bytes."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import reference
from schemas.codec import HEADER_BYTES, Undecodable, decode, encode
from schemas.registry import MARKER, registry
from tests.golden.avro_values import INT, Schema, data, from_json, to_json

SCHEMAS = {version.name: Schema(version.parsed) for version in registry}


def value_of(name: str, datum: Any) -> bytes:
    version = registry.current(name)
    out = BytesIO()
    schemaless_writer(out, version.parsed, datum)
    return MARKER + version.fingerprint + out.getvalue()


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=40, deadline=None)
@given(source=st.data())
def test_round_trip_and_agreement_with_the_reference(name: str, source: st.DataObject):
    schema = SCHEMAS[name]
    datum = source.draw(data(schema, schema.root))
    value = value_of(name, datum)
    record = decode(value)
    assert type(record).__name__ == name
    assert encode(record) == value
    assert decode(encode(record)) == record
    assert reference.read_body(name, value[HEADER_BYTES:]) == datum
    assert reference.write_body(name, datum) == value[HEADER_BYTES:]
    assert from_json(schema, schema.root, to_json(schema, schema.root, datum)) == datum


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200))
def test_arbitrary_bodies_are_read_or_refused(name: str, body: bytes):
    try:
        record = decode(MARKER + registry.current(name).fingerprint + body)
    except Undecodable:
        return
    assert type(record).__name__ == name
    assert_fastavro_agrees(name, body, record)


@settings(max_examples=200, deadline=None)
@given(value=st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(value: bytes):
    with pytest.raises(Undecodable):
        decode(value)


@settings(max_examples=60, deadline=None)
@given(source=st.data())
def test_a_damaged_byte_never_raises_anything_else(source: st.DataObject):
    name = source.draw(st.sampled_from(sorted(SCHEMAS)))
    value = bytearray(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root))))
    place = source.draw(st.integers(0, len(value) - 1))
    value[place] ^= source.draw(st.integers(1, 255))
    try:
        record = decode(bytes(value))
    except Undecodable:
        return
    assert_fastavro_agrees(type(record).__name__, bytes(value[HEADER_BYTES:]), record)


def assert_fastavro_agrees(name: str, body: bytes, record: Any) -> None:
    """What the codec accepts, fastavro reads as the same record."""
    datum = schemaless_reader(BytesIO(body), registry.current(name).parsed, None, return_record_name=True)
    if fits(SCHEMAS[name], SCHEMAS[name].root, datum):
        assert value_of(name, datum) == encode(record)


def fits(schema: Schema, part: Any, datum: Any) -> bool:
    """Whether every ``int`` has 32 bits: damaged bytes may hold more, which is read but never written."""
    kind, definition = schema.of(part)
    if kind == "record":
        return all(fits(schema, f["type"], datum[f["name"]]) for f in definition["fields"])
    if kind == "union":
        return fits(schema, datum[0], datum[1]) if isinstance(datum, tuple) else True
    if kind == "array":
        return all(fits(schema, definition["items"], item) for item in datum)
    return INT[0] <= datum <= INT[1] if kind == "int" else True
