"""Schema versions: the current ones, their history, their fingerprints, and the compatibility check.

``avsc/**/NAME.avsc`` is the current schema of NAME. ``history/NAME/vK.avsc`` are the released versions, which are kept
for ever; the newest equals the current one. A fingerprint is CRC-64-AVRO of the parsing canonical form (without docs
and defaults). Tests refuse a field without a ``doc``, and a current schema that cannot read, or cannot be read by, any
version of its history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from schemas.records.record import record

NAMESPACE = "stratolog"
MARKER = b"\xc3\x01"
FINGERPRINT_BYTES = 8
_HERE = Path(__file__).parents[1]


@record
class SchemaVersion:
    """One version of a schema. ``resolve_to`` is the reader schema to use, None for the version's own."""

    name: str
    text: str
    parsed: Any
    fingerprint: bytes
    resolve_to: Any


def fingerprint_of(schema: Any) -> bytes:
    """Return the 8-byte little-endian CRC-64-AVRO fingerprint of a schema."""
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return bytes.fromhex(digest)


class Registry:
    """All known schema versions, by name (current) and by fingerprint (current and history)."""

    def __init__(self, folder: Path = _HERE) -> None:
        self._current: dict[str, SchemaVersion] = {}
        self._by_fingerprint: dict[bytes, SchemaVersion] = {}
        self._by_number: dict[tuple[str, int], SchemaVersion] = {}
        for path in sorted(folder.glob("avsc/*/*.avsc")):
            version = _load(path, path.stem, None)
            self._current[version.name] = version
            self._by_fingerprint[version.fingerprint] = version
        for path in sorted(folder.glob("history/*/v*.avsc")):
            old = _load(path, path.parent.name, self._current[path.parent.name].parsed)
            self._by_fingerprint.setdefault(old.fingerprint, old)
            self._by_number[old.name, int(path.stem[1:])] = old

    def current(self, name: str) -> SchemaVersion:
        """Return the current version of ``name``; raises KeyError for an unknown one."""
        return self._current[name]

    def by_fingerprint(self, fingerprint: bytes) -> SchemaVersion | None:
        """Return the version with this fingerprint, or None."""
        return self._by_fingerprint.get(fingerprint)

    def version(self, name: str, number: int) -> SchemaVersion:
        """Return a released version of ``name`` by its number in the history, from 1; raises KeyError without one."""
        return self._by_number[name, number]

    def versions(self, name: str) -> list[SchemaVersion]:
        """Return all known versions of ``name``: the current one first, then released ones that differ from it."""
        return [version for version in self._by_fingerprint.values() if version.name == name]

    def __iter__(self) -> Iterator[SchemaVersion]:
        """Iterate over the current versions."""
        return iter(self._current.values())


def _load(path: Path, name: str, resolve_to: Any) -> SchemaVersion:
    text = path.read_text()
    schema = json.loads(text)
    # A name table for this schema alone: two versions of one schema define the same names.
    parsed = parse_schema(schema, named_schemas={})
    return SchemaVersion(name=name, text=text, parsed=parsed, fingerprint=fingerprint_of(schema), resolve_to=resolve_to)


registry = Registry()
