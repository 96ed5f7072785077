"""CRC-64-AVRO against the specification's algorithm and Avro's own test data."""

from __future__ import annotations

import pytest
from fastavro.schema import to_parsing_canonical_form

from schemas.codecs.codec import HEADER_BYTES, encode
from schemas.codecs.registry import MARKER, fingerprint_of, registry
from schemas.records.log import Tick

EMPTY = 0xC15D213AA4D7A795


def table() -> list[int]:
    values = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (EMPTY & -(number & 1) & 0xFFFFFFFFFFFFFFFF)
        values.append(number)
    return values


TABLE = table()


def crc_64_avro(data: bytes) -> int:
    """The specification's fingerprint64, word for word."""
    value = EMPTY
    for byte in data:
        value = (value >> 8) ^ TABLE[(value ^ byte) & 0xFF]
    return value


# share/test/data/schema-tests.txt of Apache Avro: schema -> fingerprint as signed 64 bits.
KNOWN = {
    "null": 7195948357588979594,
    "boolean": -6970731678124411036,
    "int": 8247732601305521295,
    "long": -3434872931120570953,
    "float": 5583340709985441680,
    "double": -8181574048448539266,
    "bytes": 5746618253357095269,
    "string": -8142146995180207161,
}


@pytest.mark.parametrize(("schema", "expected"), KNOWN.items())
def test_primitives_have_avros_own_fingerprints(schema: str, expected: int):
    assert int.from_bytes(fingerprint_of(schema), "little", signed=True) == expected
    assert crc_64_avro(f'"{schema}"'.encode()) == expected % (1 << 64)


RECORDS = {
    '{"name":"foo","type":"record","fields":[]}': -4824392279771201922,
    '{"name":"foo","type":"fixed","size":15}': 1756455273707447556,
    '{"name":"foo","type":"record","fields":[{"name":"f1","type":"boolean"}]}': 7843277075252814651,
}


@pytest.mark.parametrize(("canonical", "expected"), RECORDS.items())
def test_named_types_have_avros_own_fingerprints(canonical: str, expected: int):
    assert crc_64_avro(canonical.encode()) == expected % (1 << 64)


@pytest.mark.parametrize("name", [version.name for version in registry])
def test_every_schema_by_the_specification(name: str):
    version = registry.current(name)
    canonical = to_parsing_canonical_form(version.parsed)
    assert version.fingerprint == crc_64_avro(canonical.encode()).to_bytes(8, "little")
    assert '"doc"' not in canonical


def test_docs_and_defaults_do_not_count():
    plain = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    rich = {
        "type": "record",
        "name": "r",
        "doc": "d",
        "fields": [{"name": "a", "type": "int", "default": 1, "doc": "x"}],
    }
    assert fingerprint_of(plain) == fingerprint_of(rich)


def test_what_counts():
    base = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    renamed = {"type": "record", "name": "s", "fields": [{"name": "a", "type": "int"}]}
    retyped = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    assert len({fingerprint_of(base), fingerprint_of(renamed), fingerprint_of(retyped)}) == 3


def test_header_of_an_encoded_value():
    value = encode(Tick(term=1, nonce=bytes(16), seq=2, prev_chain=bytes(32)))
    assert value[:2] == MARKER == b"\xc3\x01"
    assert value[2:HEADER_BYTES] == registry.current("Tick").fingerprint
    assert value[HEADER_BYTES:] == b"\x02" + bytes(16) + b"\x04" + bytes(32)
