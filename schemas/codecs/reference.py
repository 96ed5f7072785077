"""The reference codec: avro-python3, which the specification's authors wrote.

It parses and validates every schema (a node does so at start, the tests always). The golden tests compare fastavro's
bytes with its bytes, in both directions. It is slow and not on the hot path. Clients do without it: only the nodes'
extras have the library.

A *plain datum* is dicts, lists and scalars. A record in a union is ``(full name, datum)``, as in fastavro. Without the
name avro-python3 would guess the branch by shape, and several requests have the same shape.
"""

from __future__ import annotations

import io
from typing import Any

import avro.io
import avro.schema

from schemas.codecs.registry import registry


class _TaggedWriter(avro.io.DatumWriter):  # type: ignore[misc]
    """Writes the branch of a union that the datum names."""

    def write(self, datum: Any, encoder: Any) -> None:
        if not avro.io.Validate(self.writer_schema, _untagged(datum)):
            raise avro.io.AvroTypeException(self.writer_schema, datum)
        self.write_data(self.writer_schema, datum, encoder)

    def write_union(self, writer_schema: Any, datum: Any, encoder: Any) -> None:
        if not isinstance(datum, tuple):
            super().write_union(writer_schema, datum, encoder)
            return
        names = [getattr(branch, "fullname", None) for branch in writer_schema.schemas]
        if datum[0] not in names:
            raise avro.io.AvroTypeException(writer_schema, datum)
        number = names.index(datum[0])
        encoder.write_long(number)
        self.write_data(writer_schema.schemas[number], datum[1], encoder)


class _TaggedReader(avro.io.DatumReader):  # type: ignore[misc]
    """Returns the name of the record that a union holds, too."""

    def read_union(self, writer_schema: Any, reader_schema: Any, decoder: Any) -> Any:  # noqa: ARG002 - the writer's
        number = int(decoder.read_long())
        if not 0 <= number < len(writer_schema.schemas):
            raise avro.io.SchemaResolutionException(f"no branch {number} in the union", writer_schema, writer_schema)
        branch = writer_schema.schemas[number]
        datum = self.read_data(branch, branch, decoder)
        return (branch.fullname, datum) if branch.type == "record" else datum


def _untagged(datum: Any) -> Any:
    if isinstance(datum, tuple):
        return _untagged(datum[1])
    if isinstance(datum, dict):
        return {key: _untagged(value) for key, value in datum.items()}
    return [_untagged(value) for value in datum] if isinstance(datum, list) else datum


def validate_schemas() -> list[str]:
    """Parse every current schema with the reference implementation and return the names.

    Raises avro.schema.SchemaParseException, naming the schema, if one is not valid Avro.
    """
    names = []
    for version in registry:
        try:
            avro.schema.parse(version.text)
        except avro.schema.SchemaParseException as error:
            raise avro.schema.SchemaParseException(f"{version.name}: {error}") from error
        names.append(version.name)
    return names


def write_body(name: str, datum: Any) -> bytes:
    """Encode a plain datum as schema ``name``'s Avro body (no single-object header).

    Raises avro.io.AvroTypeException for a datum that the schema does not allow.
    """
    out = io.BytesIO()
    schema = avro.schema.parse(registry.current(name).text)
    _TaggedWriter(schema).write(datum, avro.io.BinaryEncoder(out))
    return out.getvalue()


def read_body(name: str, body: bytes) -> Any:
    """Decode an Avro body (no single-object header) of schema ``name`` to a plain datum.

    Raises ValueError for bytes left over.
    """
    schema = avro.schema.parse(registry.current(name).text)
    source = io.BytesIO(body)
    datum = _TaggedReader(schema).read(avro.io.BinaryDecoder(source))
    if source.tell() != len(body):
        raise ValueError(f"{len(body) - source.tell()} bytes too many after a {name}")
    return datum
