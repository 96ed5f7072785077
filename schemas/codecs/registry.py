"""Schema versions: the current ones, their history, their fingerprints, and the compatibility check.

``avsc/**/NAME.avsc`` is the current schema of NAME. ``history/NAME/vK.avsc`` are the released versions, which are kept
for ever; the newest equals the current one. A fingerprint is CRC-64-AVRO of the parsing canonical form (without docs
and defaults). Tests refuse a field without a ``doc``, and a current schema that cannot read, or cannot be read by, any
version of its history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
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


@record
class _History:
    """The released versions, by name and number, and by fingerprint."""

    by_number: dict[tuple[str, int], SchemaVersion]
    by_fingerprint: dict[bytes, SchemaVersion]


class Registry:
    """All known schema versions, by name (current) and by fingerprint (current and history)."""

    def __init__(self, folder: Path = _HERE) -> None:
        self._folder = folder
        self._current: dict[str, SchemaVersion] = {}
        self._by_fingerprint: dict[bytes, SchemaVersion] = {}
        for path in sorted(folder.glob("avsc/*/*.avsc")):
            version = _load(path, path.stem, None)
            self._current[version.name] = version
            self._by_fingerprint[version.fingerprint] = version

    def current(self, name: str) -> SchemaVersion:
        """Return the current version of ``name``; raises KeyError for an unknown one."""
        return self._current[name]

    def by_fingerprint(self, fingerprint: bytes) -> SchemaVersion | None:
        """Return the version with this fingerprint, or None."""
        return self._by_fingerprint.get(fingerprint) or self._history.by_fingerprint.get(fingerprint)

    def version(self, name: str, number: int) -> SchemaVersion:
        """Return a released version of ``name`` by its number in the history, from 1; raises KeyError without one."""
        return self._history.by_number[name, number]

    def versions(self, name: str) -> list[SchemaVersion]:
        """Return all known versions of ``name``: the current one first, then released ones that differ from it."""
        known = self._history.by_fingerprint | self._by_fingerprint
        return sorted((version for version in known.values() if version.name == name), key=self._is_released)

    @cached_property
    def _history(self) -> _History:
        # Fingerprints take longest of all that a process does at its start, and few meet what older software wrote.
        by_number = {}
        for path in sorted(self._folder.glob("history/*/v*.avsc")):
            name = path.parent.name
            by_number[name, int(path.stem[1:])] = _load(path, name, self._current[name].parsed)
        return _History(by_number=by_number, by_fingerprint={old.fingerprint: old for old in by_number.values()})

    def _is_released(self, version: SchemaVersion) -> bool:
        return version is not self._current[version.name]

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
