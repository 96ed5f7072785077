"""The codec in C and the one in Python: the same bytes, the same records, the same refusals."""

from __future__ import annotations

import importlib
import json
import shutil
import sysconfig
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codecs import codec, python_codec
from schemas.codecs.registry import registry
from schemas.codecs.varints import encode_long
from tests.golden.avro_values import SCHEMAS, Schema, data, value_of
from tests.properties.examples import examples

C_COMPILER = shutil.which(str(sysconfig.get_config_var("CC") or "cc").split(maxsplit=1)[0])
if C_COMPILER is None:
    pytest.skip("there is no C compiler here", allow_module_level=True)
native: Any = importlib.import_module("schemas.native")

CLASSES: dict[str, Any] = dict(codec.CLASSES)
PARSED = {version.name: json.loads(registry.current(version.name).text) for version in registry}


class Number(int):
    """A number of another class."""


class Text(str):
    """A text of another class."""

    __slots__ = ()


FOREIGN: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 31,
    1 << 63,
    -(1 << 63) - 1,
    1.5,
    "text",
    "\ud800",
    b"bytes",
    bytearray(16),
    memoryview(bytes(32)),
    array("q", [1]),
    Number(5),
    Text("text"),
    [],
    [None],
    (),
    (1, -1),
    [b"bytes"],
    {},
    {1: 2},
    {"a": "b"},
    OrderedDict(a=b"b"),
    object(),
)
Attempt = tuple[str, Any]
SIXTEEN = {"type": "fixed", "name": "Sixteen", "size": 16}
WIDE = {
    name: Schema(parse_schema(json.loads(json.dumps(found).replace('"int"', '"long"'))))
    for name, found in PARSED.items()
}
"""The schemas with ``long`` for ``int``: what is written by them may not fit."""
EXAMPLES = 15
HOSTILE = [
    b"\x01",  # length -1, branch -1
    b"\x03\x02",  # a block of two items, which says its size
    b"\x80\x00",  # 0 in two bytes
    b"\xff" * 9 + b"\x01",  # -2^63
    b"\xff" * 9 + b"\x02",  # more than 64 bits
    b"\x80" * 9 + b"\x01",  # 2^62
    b"\xff" * 10 + b"\x00",  # eleven bytes
    b"\xfe\xff\xff\xff\x1f",  # more than 32 bits
]
"""What a number, a length, a count or a branch may be instead."""


@cache
def in_python(name: str) -> tuple[Any, Any]:
    """Return encoder and decoder of a type."""
    return python_codec.compile_encoder(PARSED[name], CLASSES), python_codec.compile_decoder(PARSED[name], CLASSES)


@cache
def in_c(name: str) -> tuple[Any, Any]:
    """Return encoder and decoder of a type."""
    return native.compile_encoder(PARSED[name], CLASSES), native.compile_decoder(PARSED[name], CLASSES)


def attempt(function: Callable[..., Any], *arguments: Any) -> Attempt:
    """Return what comes of a call, any of the errors that the codec's contract names being one."""
    try:
        return "done", function(*arguments)
    except (ValueError, TypeError, AttributeError, LookupError):
        return "refused", None


def read(decoder: Callable[[bytes, int], tuple[Any, int]], body: bytes) -> Attempt:
    """Return what comes of reading a body, as ``codec.decode`` sees it: what does not end where it ends is refused."""
    kind, found = attempt(decoder, body, 0)
    return (kind, found[0]) if kind == "done" and found[1] == len(body) else ("refused", None)


def encoded(schema: Any, datum: Any) -> bytes:
    """Return a body as fastavro writes it."""
    out = BytesIO()
    schemaless_writer(out, schema, datum)
    return out.getvalue()


def test_the_codec_is_the_native_one():
    assert vars(codec)["compile_encoder"] is native.compile_encoder
    assert vars(codec)["compile_decoder"] is native.compile_decoder


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(source=st.data())
def test_both_write_and_read_the_same(name: str, source: st.DataObject):
    record = codec.decode(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root))))
    (encode, decode), (native_encode, native_decode) = in_python(name), in_c(name)
    body = encode(record)
    assert native_encode(record) == body
    assert native_decode(b"ahead" + body, 5) == (record, 5 + len(body))
    assert decode(body, 0) == (record, len(body))


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=examples(2 * EXAMPLES), deadline=None)
@given(source=st.data())
def test_both_refuse_the_same_bytes(name: str, source: st.DataObject):
    body = bytearray(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root)))[codec.HEADER_BYTES :])
    change = source.draw(st.sampled_from(["damage", "insert", "cut", "any"]))
    if change == "any" or not body:
        body = bytearray(source.draw(st.binary(max_size=200)))
    elif change == "cut":
        del body[source.draw(st.integers(0, len(body) - 1)) :]
    elif change == "insert":
        place = source.draw(st.integers(0, len(body) - 1))
        body[place : place + source.draw(st.integers(0, 1))] = source.draw(st.sampled_from(HOSTILE))
    else:
        for _ in range(source.draw(st.integers(1, 4))):
            body[source.draw(st.integers(0, len(body) - 1))] = source.draw(st.integers(0, 255))
    assert read(in_c(name)[1], bytes(body)) == read(in_python(name)[1], bytes(body))


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=examples(2 * EXAMPLES), deadline=None)
@given(source=st.data())
def test_what_either_reads_both_can_write(name: str, source: st.DataObject):
    """Numbers of up to 64 bits where the schema has ``int``, and damage: what is not refused can be written again."""
    body = bytearray(encoded(WIDE[name].root, source.draw(data(WIDE[name], WIDE[name].root))))
    for _ in range(source.draw(st.integers(0, 2))):
        body[source.draw(st.integers(0, len(body) - 1))] = source.draw(st.integers(0, 255))
    kind, record = read(in_c(name)[1], bytes(body))
    assert (kind, record) == read(in_python(name)[1], bytes(body))
    if kind == "done":
        written = in_c(name)[0](record)
        assert written == in_python(name)[0](record)
        assert read(in_c(name)[1], written) == ("done", record)


LONGEST = 1 << 31
BEYOND_32_BITS = [LONGEST, -LONGEST - 1, 1 << 33, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("number", BEYOND_32_BITS)
def test_an_int_beyond_32_bits_is_refused_on_reading(number: int):
    body = encoded(WIDE["Tick"].root, {"term": 1, "nonce": bytes(16), "seq": 1, "prev_chain": bytes(32)})
    assert read(in_c("Tick")[1], body) == read(in_python("Tick")[1], body) != ("refused", None)
    base = {"term": 1, "nonce": bytes(16), "seq": 1, "prev_chain": bytes(32), "index": 1, "basis": "x", "sums": [1]}
    body = encoded(WIDE["DigestBase"].root, base | {"slots": [number]})
    for _, decoder in (in_c("DigestBase"), in_python("DigestBase")):
        with pytest.raises(ValueError, match=f"{number} does not fit in 32 bits"):
            decoder(body, 0)


@pytest.mark.parametrize("decoder", [in_c, in_python])
def test_an_array_of_more_items_than_bytes_is_refused_at_once(decoder: Callable[[str], tuple[Any, Any]]):
    """Not after as many items as memory has room for."""
    schema = {
        "type": "record",
        "name": "Requests",
        "fields": [{"name": "requests", "type": {"type": "array", "items": SIXTEEN}}],
    }
    module = native if decoder is in_c else python_codec
    for count in (2, 1 << 40, 1 << 62):
        body = encode_long(count) + bytes(20)
        with pytest.raises((IndexError, ValueError)):
            module.compile_decoder(schema, CLASSES)(body, 0)


def records_in(value: Any) -> Iterator[Any]:
    """Yield a record and those within it."""
    if isinstance(value, list):
        for item in value:
            yield from records_in(item)
    elif is_dataclass(value):
        yield value
        for field in fields(value):
            yield from records_in(getattr(value, field.name))


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=examples(EXAMPLES // 3), deadline=None)
@given(source=st.data())
def test_what_the_schema_does_not_allow_is_refused_by_both(name: str, source: st.DataObject):
    record = codec.decode(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root))))
    encode, native_encode = in_python(name)[0], in_c(name)[0]
    for part in {type(part): part for part in records_in(record)}.values():
        for field in fields(part):
            kept = getattr(part, field.name)
            for value in FOREIGN:
                object.__setattr__(part, field.name, value)
                assert attempt(native_encode, record) == attempt(encode, record), (part, field.name, value)
            object.__setattr__(part, field.name, kept)
    assert native_encode(record) == encode(record)


BOTH = pytest.mark.parametrize("module", [native, python_codec], ids=["in C", "in Python"])


@BOTH
def test_a_record_without_a_field_is_refused(module: Any):
    cls = CLASSES["BlockLocation"]
    with pytest.raises(AttributeError, match="container_id"):
        module.compile_encoder(PARSED["KeyInfo"]["fields"][8]["type"]["items"], CLASSES)(cls.__new__(cls))


@BOTH
def test_what_no_schema_of_ours_uses_is_refused(module: Any):
    with pytest.raises(NotImplementedError, match="enum"):
        module.compile_encoder({"type": "enum", "name": "Colour", "symbols": ["RED"]}, CLASSES)
    with pytest.raises(KeyError, match="Stranger"):
        module.compile_decoder({"type": "record", "name": "Stranger", "fields": []}, CLASSES)
    with pytest.raises(TypeError, match="NoneType"):
        module.compile_decoder(PARSED["Tick"], CLASSES)(None, 0)
