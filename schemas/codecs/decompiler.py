"""Decoders compiled from the Avro schemas, the counterpart of ``compiler``: from an Avro body to a record of ours.

``compile_decoder`` turns each record schema into the source of one Python function ``(data, position) -> (record,
position)`` and compiles it. It reads only values of the *current* version of a schema; older versions go through
fastavro, which resolves them (``codec``).

A malformed body raises ValueError (UnicodeDecodeError included) or IndexError, and so do numbers out of their type's
range, and lengths and counts beyond the data. So whatever can be read can be written again: a record that came in as
bytes never fails to be encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Decoder = Callable[[bytes, int], tuple[Any, int]]
Schema = Any

MAX_VARINT_BYTES = 10


def read_varint(first: int, data: bytes, position: int) -> tuple[int, int]:
    """Read the rest of a varint whose ``first`` byte, before ``position``, announces more; return (unsigned, position).

    Raises ValueError beyond 64 bits, IndexError at the end of the data.
    """
    number = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift == 7 * MAX_VARINT_BYTES:
            raise ValueError("a number of more than 64 bits")
    if number >> 64:
        raise ValueError("a number of more than 64 bits")
    return number, position


def too_early(end: int, data: bytes) -> IndexError:
    """Return the error for a value that would end at ``end``, beyond the data."""
    return IndexError(f"it ends {end - len(data)} bytes too early")


def beyond_32_bits(number: int) -> ValueError:
    """Return the error for an ``int`` of more than 32 bits."""
    return ValueError(f"{number} does not fit in 32 bits")


_HELPERS: Mapping[str, Any] = {"read_varint": read_varint, "too_early": too_early, "beyond_32_bits": beyond_32_bits}
"""Names that the compiled functions use."""


def compile_decoder(schema: Schema, classes: Mapping[str, type]) -> Decoder:
    """Return the function from (body, position) to (record, position behind it); raises as ``compile_encoder`` does."""
    return _Decompiler(classes).record(schema)


_NUMBER = """\
    n = data[p]; p += 1
    if n > 127: n, p = read_varint(n, data, p)
"""
_LENGTH = (
    _NUMBER
    + """\
    if n & 1: raise ValueError("a negative length")
    e = p + (n >> 1)
    if e > len(data): raise too_early(e, data)
"""
)
_PRIMITIVES = {
    "long": _NUMBER + "    {v} = n >> 1 ^ -(n & 1)\n",
    "int": _NUMBER + "    {v} = n >> 1 ^ -(n & 1)\n    if n >> 32: raise beyond_32_bits({v})\n",
    "bytes": _LENGTH + "    {v} = data[p:e]; p = e\n",
    "string": _LENGTH + "    {v} = data[p:e].decode(); p = e\n",
    "boolean": '    {v} = data[p]; p += 1\n    if {v} > 1: raise ValueError("a boolean that is neither 0 nor 1")\n    {v} = {v} == 1\n',
}
_FIXED = "    e = p + {size}\n    if e > len(data): raise too_early(e, data)\n    {v} = data[p:e]; p = e\n"


class _Decompiler:
    """Remembers the named types that it has met."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._records: dict[str, Decoder] = {}
        self._fixed: dict[str, int] = {}

    def record(self, schema: Schema) -> Decoder:
        """Compile the function of a record schema."""
        name = schema["name"].rpartition(".")[2]
        names: dict[str, Any] = {"cls": self._classes[name], **_HELPERS}
        lines = ["def decode(data, p):\n"]
        for number, field in enumerate(schema["fields"]):
            lines.append(self._field(field["type"], f"v{number}", names))
        arguments = ", ".join(f"{field['name']}=v{number}" for number, field in enumerate(schema["fields"]))
        lines.append(f"    return cls({arguments}), p\n")
        # The source holds only field names of our own schemas.
        exec("".join(lines), names)  # noqa: S102
        decoder: Decoder = names["decode"]
        self._records[name] = decoder
        return decoder

    def _field(self, schema: Schema, variable: str, names: dict[str, Any]) -> str:
        """Return the lines that read a value of any schema into ``variable``."""
        if isinstance(schema, dict) and schema["type"] in _PRIMITIVES:
            schema = schema["type"]
        if isinstance(schema, str):
            short = schema.rpartition(".")[2]
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema].format(v=variable)
            if short in self._fixed:
                return _FIXED.format(size=self._fixed[short], v=variable)
            return self._call(self._records[short], variable, names)
        if isinstance(schema, dict) and schema["type"] == "fixed":
            self._fixed[schema["name"].rpartition(".")[2]] = schema["size"]
            return _FIXED.format(size=schema["size"], v=variable)
        if isinstance(schema, list) and len(schema) == 2 and schema[0] == "null":
            inner = self._field(schema[1], variable, names).replace("\n    ", "\n        ")
            # Inline, because every operation has one or two of these.
            return (
                f"    n = data[p]; p += 1\n    if n == 0:\n        {variable} = None\n"
                f"    elif n == 2:\n    {inner.rstrip(' ')}"
                '    else: raise ValueError(f"no branch {n}")\n'
            )
        return self._call(self._function(schema), variable, names)

    def _call(self, decoder: Decoder, variable: str, names: dict[str, Any]) -> str:
        names[f"read_{variable}"] = decoder
        return f"    {variable}, p = read_{variable}(data, p)\n"

    def _function(self, schema: Schema) -> Decoder:
        """Return a function for a type that is not read inline."""
        if isinstance(schema, list):
            return _union([self._value(branch) for branch in schema])
        if schema["type"] == "record":
            return self.record(schema)
        if schema["type"] == "array":
            return _array(self._value(schema["items"]))
        if schema["type"] == "map":
            return _map(self._value(schema["values"]))
        raise NotImplementedError(f"no decoder for Avro type {schema['type']!r}")

    def _value(self, schema: Schema) -> Decoder:
        """Return a function that reads one value of any schema."""
        if schema == "null":
            return _null
        if isinstance(schema, dict) and schema["type"] == "record":
            return self.record(schema)
        if isinstance(schema, str) and schema.rpartition(".")[2] in self._records:
            return self._records[schema.rpartition(".")[2]]
        names: dict[str, Any] = dict(_HELPERS)
        exec(f"def decode(data, p):\n{self._field(schema, 'v', names)}    return v, p\n", names)  # noqa: S102
        decoder: Decoder = names["decode"]
        return decoder


def _null(data: bytes, position: int) -> tuple[Any, int]:  # noqa: ARG001 - a decoder's signature
    return None, position


def _union(branches: list[Decoder]) -> Decoder:
    numbered = {number << 1: branch for number, branch in enumerate(branches)}

    def union(data: bytes, position: int) -> tuple[Any, int]:
        branch = numbered.get(data[position])
        if branch is None:
            raise ValueError(f"no branch {data[position]} in a union of {len(numbered)}")
        return branch(data, position + 1)

    return union


def _blocks(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of items in the next block of an array or map, and the position behind it. No item is empty."""
    number = data[position]
    position += 1
    if number > 0x7F:
        number, position = read_varint(number, data, position)
    count = number >> 1
    if number & 1:  # a negative count is followed by the block's size in bytes
        count += 1
        size = data[position]
        position += 1
        if size > 0x7F:
            _, position = read_varint(size, data, position)
    if count > len(data) - position:
        raise IndexError(f"{count} items where {len(data) - position} bytes are left")
    return count, position


def _array(item: Decoder) -> Decoder:
    def array(data: bytes, position: int) -> tuple[Any, int]:
        values: list[Any] = []
        while True:
            count, position = _blocks(data, position)
            if count == 0:
                return values, position
            for _ in range(count):
                value, position = item(data, position)
                values.append(value)

    return array


def _map(item: Decoder) -> Decoder:
    key_names: dict[str, Any] = dict(_HELPERS)
    exec(f"def decode(data, p):\n{_PRIMITIVES['string'].format(v='v')}    return v, p\n", key_names)  # noqa: S102
    read_key: Decoder = key_names["decode"]

    def mapping(data: bytes, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        while True:
            count, position = _blocks(data, position)
            if count == 0:
                return values, position
            for _ in range(count):
                key, position = read_key(data, position)
                values[key], position = item(data, position)

    return mapping
