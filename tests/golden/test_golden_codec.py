"""The bytes of every record type, fixed in ``codec/NAME.json``: produced by avro-python3, held against fastavro both ways.

A file holds the schema's fingerprint and, for each case, a datum and its Avro body. ``REWRITE_GOLDEN=1 pytest tests/golden``
writes them afresh; a difference that you did not mean is a broken contract.
"""

from __future__ import annotations

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer

from schemas.codecs import reference
from schemas.codecs.codec import decode, encode
from schemas.codecs.registry import MARKER, registry
from tests.golden.avro_values import Schema, examples, from_json, to_json

FOLDER = Path(__file__).parent / "codec"
NAMES = [version.name for version in registry]


def produce(name: str) -> dict[str, Any]:
    version = registry.current(name)
    schema = Schema(version.parsed)
    cases = {
        case: {"datum": to_json(schema, schema.root, datum), "body": reference.write_body(name, datum).hex()}
        for case, datum in examples(schema).items()
    }
    return {"schema": name, "fingerprint": version.fingerprint.hex(), "cases": cases}


def load(name: str) -> Any:
    path = FOLDER / f"{name}.json"
    if os.environ.get("REWRITE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps(produce(name), indent=1, ensure_ascii=True) + "\n")
    return json.loads(path.read_text())


def cases() -> list[Any]:
    return [
        pytest.param(name, case["datum"], bytes.fromhex(case["body"]), id=f"{name}-{title}")
        for name in NAMES
        for title, case in load(name)["cases"].items()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_file_is_what_the_reference_produces(name: str):
    assert load(name) == produce(name)


def test_every_file_belongs_to_a_schema():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(NAMES)


@pytest.mark.parametrize(("name", "datum", "body"), cases())
def test_fastavro_writes_the_golden_bytes(name: str, datum: Any, body: bytes):
    version = registry.current(name)
    schema = Schema(version.parsed)
    out = BytesIO()
    schemaless_writer(out, version.parsed, from_json(schema, schema.root, datum))
    assert out.getvalue() == body


@pytest.mark.parametrize(("name", "datum", "body"), cases())
def test_fastavro_reads_the_golden_bytes(name: str, datum: Any, body: bytes):
    version = registry.current(name)
    schema = Schema(version.parsed)
    read = schemaless_reader(BytesIO(body), version.parsed, None, return_record_name=True)
    assert to_json(schema, schema.root, read) == datum


@pytest.mark.parametrize(("name", "datum", "body"), cases())
def test_the_reference_reads_the_golden_bytes(name: str, datum: Any, body: bytes):
    schema = Schema(registry.current(name).parsed)
    assert to_json(schema, schema.root, reference.read_body(name, body)) == datum


@pytest.mark.parametrize(("name", "datum", "body"), cases())
def test_the_codec_decodes_and_encodes_the_golden_bytes(name: str, datum: Any, body: bytes):
    value = MARKER + registry.current(name).fingerprint + body
    record = decode(value)
    assert type(record).__name__ == name
    assert encode(record) == value


@pytest.mark.parametrize(("name", "datum", "body"), cases())
def test_the_reference_reads_what_the_codec_encodes(name: str, datum: Any, body: bytes):
    record = decode(MARKER + registry.current(name).fingerprint + body)
    schema = Schema(registry.current(name).parsed)
    assert to_json(schema, schema.root, reference.read_body(name, encode(record)[10:])) == datum
