"""The log decoded by somebody who has kcat, fastavro and the .avsc files, and nothing of Stratolog's.

kcat -C -b BROKERS -t om.log -e -q -f '%R%s' | python examples/foreign/with_fastavro.py schemas/avsc/log

kcat writes each value behind its length (4 bytes, big-endian). Each becomes a line of JSON: the record's type, and its
fields, bytes as hexadecimal. The folder has every version of each schema. A record of a schema that is not in it is
told as such.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

MARKER, HEADER_BYTES, LENGTH_BYTES = b"\xc3\x01", 10, 4


def schemas_of(folders: list[str]) -> dict[bytes, Any]:
    """Return the schemas by the bytes that begin their values."""
    found = {}
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("*.avsc"))):
        schema = fastavro.parse_schema(json.loads(path.read_text()))
        digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        found[MARKER + bytes.fromhex(digest)] = schema
    return found


def values(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the values that kcat writes."""
    while length := stream.read(LENGTH_BYTES):
        yield stream.read(int.from_bytes(length, "big"))


def main(folders: list[str]) -> int:
    """Print the records."""
    known = schemas_of(folders)
    for value in values(sys.stdin.buffer):
        schema = known.get(value[:HEADER_BYTES])
        if schema is None:
            print(json.dumps({"type": None, "header": value[:HEADER_BYTES].hex()}))
            continue
        record: Any = fastavro.schemaless_reader(
            io.BytesIO(value[HEADER_BYTES:]), schema, None, return_record_name=True
        )
        print(json.dumps({"type": schema["name"].rpartition(".")[2], **record}, default=lambda one: one.hex()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
