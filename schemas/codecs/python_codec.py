"""The codec in Python, for where the one in C (``schemas/native.pyx``) could not be built: the same, only slower.

``compile_encoder`` and ``compile_decoder`` turn a parsed schema into a tree of codecs, one for each type in it, as the
codec in C does. A codec is a pair of functions: one appends a value to a buffer, the other reads a value at a position.
The bytes are the same, and the same values and bytes are refused (``tests/properties/test_native_codec.py``).

Rules of the encoding (Avro specification, "Binary encoding"): ``long``/``int`` zigzag varint; ``string``/``bytes``
length and bytes; ``fixed`` as is; ``array``/``map`` blocks of a count and so many items, then a 0; ``union`` number of
the branch and value; ``record`` its fields in order.

What is refused raises ValueError, TypeError, AttributeError or LookupError when it is written, ValueError or IndexError
when it is read: numbers out of their type's range, lengths and counts beyond the data. So whatever can be read can be
written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, NamedTuple

from schemas.codecs.varints import read_length, read_long, write_long

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes, int], tuple[Any, int]]
Schema = Any
"""A parsed schema as JSON gives it: a name, a list (union) or a dict."""


class TypeCodec(NamedTuple):
    """Writes and reads the values of one type."""

    write: Callable[[Any, bytearray], None]
    read: Decoder


def compile_encoder(schema: Schema, classes: Mapping[str, type]) -> Encoder:
    """Return the function from a record to its Avro body.

    ``classes`` gives the class of each record by name (without namespace). Raises KeyError for a record without a
    class, NotImplementedError for a kind of schema that ours do not use.
    """
    write = _Builder(classes).codec(schema).write

    def encode(record: Any) -> bytes:
        out = bytearray()
        write(record, out)
        return bytes(out)

    return encode


def compile_decoder(schema: Schema, classes: Mapping[str, type]) -> Decoder:
    """Return the function from (body, position) to (record, position behind it); raises as ``compile_encoder`` does."""
    return _Builder(classes).codec(schema).read


# ---- One codec for each type


def _number(bits: int) -> TypeCodec:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def write(value: Any, out: bytearray) -> None:
        if not least <= index(value) <= most:
            raise ValueError(f"{value} does not fit in {bits} bits")
        write_long(index(value), out)

    def read(data: bytes, position: int) -> tuple[int, int]:
        number, position = read_long(data, position)
        if not least <= number <= most:
            raise ValueError(f"{number} does not fit in {bits} bits")
        return number, position

    return TypeCodec(write, read)


def _write_boolean(value: object, out: bytearray) -> None:
    out.append(1 if value else 0)


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    if data[position] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return data[position] == 1, position + 1


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} where bytes are wanted")
    return bytes(value)


def _write_bytes(value: object, out: bytearray) -> None:
    data = _as_bytes(value)
    write_long(len(data), out)
    out += data


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = read_length(data, position)
    return data[position : position + size], position + size


def _write_string(value: Any, out: bytearray) -> None:
    _write_bytes(str.encode(value), out)


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    value, position = _read_bytes(data, position)
    return value.decode(), position


def _fixed(name: str, size: int) -> TypeCodec:
    def write(value: object, out: bytearray) -> None:
        data = _as_bytes(value)
        if len(data) != size:
            raise ValueError(f"{name} takes {size} bytes, not {len(data)}")
        out += data

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        if len(data) - position < size:
            raise IndexError("it ends too early")
        return data[position : position + size], position + size

    return TypeCodec(write, read)


def _read_count(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of items in the next block of an array or a map, and the position behind it.

    No item is empty, so a count beyond the data is refused before any memory is taken.
    """
    count, position = read_long(data, position)
    if count < 0:  # it is followed by the block's size in bytes
        _, position = read_long(data, position)
    if abs(count) > len(data) - position:
        raise IndexError(f"{abs(count)} items where {len(data) - position} bytes are left")
    return abs(count), position


def _array(item: TypeCodec) -> TypeCodec:
    def write(values: Any, out: bytearray) -> None:
        if not isinstance(values, list | tuple):
            raise TypeError(f"{type(values).__name__} where a list is wanted")
        if values:
            write_long(len(values), out)
            for value in values:
                item.write(value, out)
        out.append(0)

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, position = _read_count(data, position)
            if count == 0:
                return values, position
            for _ in range(count):
                value, position = item.read(data, position)
                values.append(value)

    return TypeCodec(write, read)


def _map(item: TypeCodec) -> TypeCodec:
    """A map is an array of its pairs; of two values of one key the later one counts."""

    def write_pair(pair: tuple[Any, Any], out: bytearray) -> None:
        _write_string(pair[0], out)
        item.write(pair[1], out)

    def read_pair(data: bytes, position: int) -> tuple[tuple[str, Any], int]:
        key, position = _read_string(data, position)
        value, position = item.read(data, position)
        return (key, value), position

    pairs = _array(TypeCodec(write_pair, read_pair))

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        values, position = pairs.read(data, position)
        return dict(values), position

    return TypeCodec(lambda value, out: pairs.write(list(dict.items(value)), out), read)


def _union(branches: list[tuple[type, TypeCodec]]) -> TypeCodec:
    """The class of a value decides its branch; beside null there is one for all else. A branch's number is one byte."""
    numbered = {cls: (number << 1, codec.write) for number, (cls, codec) in enumerate(branches)}
    others = [branch for cls, branch in numbered.items() if cls is not type(None)]
    default = others[0] if len(branches) == 2 and len(others) == 1 else None
    readers = {number << 1: codec.read for number, (_, codec) in enumerate(branches)}

    def write(value: Any, out: bytearray) -> None:
        number, write_branch = numbered.get(type(value), default) or numbered[type(value)]
        out.append(number)
        write_branch(value, out)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if data[position] not in readers:
            raise ValueError(f"no branch {data[position]} in a union of {len(readers)}")
        return readers[data[position]](data, position + 1)

    return TypeCodec(write, read)


def _record(cls: type, fields: dict[str, TypeCodec]) -> TypeCodec:
    writers = [(name, codec.write) for name, codec in fields.items()]
    readers = [(name, codec.read) for name, codec in fields.items()]

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not cls:
            raise TypeError(f"a {type(value).__name__} where a {cls.__name__} is wanted")
        for name, write_field in writers:
            write_field(getattr(value, name), out)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        values = {}
        for name, read_field in readers:
            values[name], position = read_field(data, position)
        return cls(**values), position

    return TypeCodec(write, read)


# ---- From schemas to codecs

_PRIMITIVES: Mapping[str, tuple[type, TypeCodec]] = {
    "null": (type(None), TypeCodec(lambda _value, _out: None, lambda _data, position: (None, position))),
    "boolean": (bool, TypeCodec(_write_boolean, _read_boolean)),
    "int": (int, _number(32)),
    "long": (int, _number(64)),
    "bytes": (bytes, TypeCodec(_write_bytes, _read_bytes)),
    "string": (str, TypeCodec(_write_string, _read_string)),
}


class _Builder:
    """Remembers the named types that it has met, as Avro's rules of scope demand."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._known = dict(_PRIMITIVES)

    def codec(self, schema: Schema) -> TypeCodec:
        """Return the codec of any schema."""
        return self._typed(schema)[1]

    def _typed(self, schema: Schema) -> tuple[type, TypeCodec]:
        """Return the class of a schema's values, too: it chooses the branch of a union."""
        if isinstance(schema, list):
            return object, _union([self._typed(branch) for branch in schema])
        if isinstance(schema, str):
            return self._known[schema.rpartition(".")[2]]
        kind = schema["type"]
        if kind == "array":
            return list, _array(self.codec(schema["items"]))
        if kind == "map":
            return dict, _map(self.codec(schema["values"]))
        if kind in ("record", "fixed"):
            return self._named(schema, schema["name"].rpartition(".")[2])
        if kind not in self._known:
            raise NotImplementedError(f"no codec for Avro type {kind!r}")
        return self._known[kind]

    def _named(self, schema: Schema, name: str) -> tuple[type, TypeCodec]:
        if schema["type"] == "fixed":
            self._known[name] = bytes, _fixed(name, schema["size"])
        else:
            fields = {field["name"]: self.codec(field["type"]) for field in schema["fields"]}
            self._known[name] = self._classes[name], _record(self._classes[name], fields)
        return self._known[name]
