"""Schema versions: the current ones, the older ones, and their fingerprints.

``avsc/KIND/NAME.vN.avsc`` is version N of the schema of NAME. The highest N is the current version. The others are
older versions, which stay for ever, because logs hold values that were written by them. A fingerprint is CRC-64-AVRO of
the parsing canonical form (without docs and defaults). Tests refuse a field without a ``doc``, a gap in the numbers, a
version that is not the one that landed, and a current schema that cannot read, or cannot be read by, any older version.
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
FOLDER = Path(__file__).parents[1] / "avsc"


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
    """All versions of the schemas in a folder, by name and number, and by fingerprint."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._paths: dict[str, dict[int, Path]] = {}
        for path in sorted(folder.glob("*/*.avsc")):
            name, number = _name_and_number(path)
            self._paths.setdefault(name, {})[number] = path
        self._current = {name: _load(paths[max(paths)], name, None) for name, paths in self._paths.items()}
        self._by_fingerprint = {version.fingerprint: version for version in self._current.values()}

    def current(self, name: str) -> SchemaVersion:
        """Return the current version of ``name``; raises KeyError for an unknown one."""
        return self._current[name]

    def by_fingerprint(self, fingerprint: bytes) -> SchemaVersion | None:
        """Return the version with this fingerprint, or None."""
        return self._by_fingerprint.get(fingerprint) or self._older_by_fingerprint.get(fingerprint)

    def version(self, name: str, number: int) -> SchemaVersion:
        """Return a version of ``name`` by its number, from 1; raises KeyError without one."""
        return self._current[name] if number == max(self._paths[name]) else self._older[name, number]

    def versions(self, name: str) -> list[SchemaVersion]:
        """Return all versions of ``name``, the current one first; none for an unknown name."""
        return [self.version(name, number) for number in sorted(self._paths.get(name, ()), reverse=True)]

    @cached_property
    def _older(self) -> dict[tuple[str, int], SchemaVersion]:
        # Fingerprints take longest of all that a process does at its start, and few meet what older software wrote.
        return {
            (name, number): _load(path, name, self._current[name].parsed)
            for name, paths in self._paths.items()
            for number, path in paths.items()
            if number < max(paths)
        }

    @cached_property
    def _older_by_fingerprint(self) -> dict[bytes, SchemaVersion]:
        return {version.fingerprint: version for version in self._older.values()}

    def __iter__(self) -> Iterator[SchemaVersion]:
        """Iterate over the current versions."""
        return iter(self._current.values())


def _name_and_number(path: Path) -> tuple[str, int]:
    name, _, number = path.stem.partition(".v")
    if not number.isdecimal():
        raise ValueError(f"{path} is not called NAME.vN.avsc")
    return name, int(number)


def _load(path: Path, name: str, resolve_to: Any) -> SchemaVersion:
    text = path.read_text()
    schema = json.loads(text)
    # A name table for this schema alone: two versions of one schema define the same names.
    parsed = parse_schema(schema, named_schemas={})
    return SchemaVersion(name=name, text=text, parsed=parsed, fingerprint=fingerprint_of(schema), resolve_to=resolve_to)


registry = Registry()
