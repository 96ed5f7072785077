"""Codec: round trips of every top-level type, and arbitrary bytes."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codecs import reference
from schemas.codecs.codec import HEADER_BYTES, Undecodable, decode, encode
from schemas.codecs.registry import MARKER, registry
from schemas.features import VERSIONS
from tests.golden.avro_values import SCHEMAS, Schema, data, from_json, to_json, value_of
from tests.properties.examples import examples

HISTORY = {
    f"{name}-v{number}": registry.version(name, number)
    for name, levels in VERSIONS.items()
    for number in range(1, len(levels) + 1)
}
"""Every version of the schemas that have more than one: older ones are read by another way (``codec``)."""


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=examples(40), deadline=None)
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
@settings(max_examples=examples(60), deadline=None)
@given(body=st.binary(max_size=200))
def test_arbitrary_bodies_are_read_or_refused(name: str, body: bytes):
    try:
        record = decode(MARKER + registry.current(name).fingerprint + body)
    except Undecodable:
        return
    assert type(record).__name__ == name
    assert_fastavro_agrees(name, body, record)


@pytest.mark.parametrize("version", HISTORY.values(), ids=HISTORY)
@settings(max_examples=examples(60), deadline=None)
@given(source=st.data())
def test_what_decodes_can_be_encoded_whatever_its_version(version: Any, source: st.DataObject):
    """Any bytes: random ones, damaged ones, and numbers of up to 64 bits where the schema has ``int``."""
    schema = Schema(version.parsed)
    if source.draw(st.booleans()):
        body = bytearray(source.draw(st.binary(max_size=200)))
    else:
        wide = Schema(parse_schema(json.loads(version.text.replace('"int"', '"long"'))))
        out = BytesIO()
        schemaless_writer(out, wide.root, source.draw(data(wide, wide.root)))
        body = bytearray(out.getvalue())
        for _ in range(source.draw(st.integers(0, 2))):
            body[source.draw(st.integers(0, len(body) - 1))] = source.draw(st.integers(0, 255))
    try:
        record = decode(MARKER + version.fingerprint + bytes(body))
    except Undecodable:
        return
    assert type(record).__name__ == schema.root["name"].rpartition(".")[2]
    assert decode(encode(record)) == record


@settings(max_examples=examples(200), deadline=None)
@given(value=st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(value: bytes):
    with pytest.raises(Undecodable):
        decode(value)


@settings(max_examples=examples(60), deadline=None)
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
    """What the codec accepts, fastavro reads as the same record, and it can be written again."""
    datum = schemaless_reader(BytesIO(body), registry.current(name).parsed, None, return_record_name=True)
    assert value_of(name, datum) == encode(record)
