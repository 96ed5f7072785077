"""The codec in C and the one in Python: the same bytes, the same records, the same refusals."""

from __future__ import annotations

import importlib
import json
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec, compiler, decompiler
from schemas.registry import registry
from tests.golden.avro_values import data
from tests.properties.test_replicated_codec import SCHEMAS, value_of

C_COMPILER = shutil.which(str(sysconfig.get_config_var("CC") or "cc").split(maxsplit=1)[0])
if C_COMPILER is None:
    pytest.skip("there is no C compiler here", allow_module_level=True)
native: Any = importlib.import_module("schemas.native")

CLASSES: dict[str, Any] = dict(codec._CLASSES)
PARSED = {version.name: json.loads(registry.current(version.name).text) for version in registry}
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
    [],
    [None],
    {},
    {1: 2},
    object(),
)
Attempt = tuple[str, Any]
EXAMPLES = 15


@cache
def in_python(name: str) -> tuple[Any, Any]:
    """Return encoder and decoder of a type."""
    return compiler.compile_encoder(PARSED[name], CLASSES), decompiler.compile_decoder(PARSED[name], CLASSES)


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


def test_the_codec_is_the_native_one():
    assert vars(codec)["compile_encoder"] is native.compile_encoder
    assert vars(codec)["compile_decoder"] is native.compile_decoder


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(source=st.data())
def test_both_write_and_read_the_same(name: str, source: st.DataObject):
    record = codec.decode(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root))))
    (encode, decode), (native_encode, native_decode) = in_python(name), in_c(name)
    body = encode(record)
    assert native_encode(record) == body
    assert native_decode(b"ahead" + body, 5) == (record, 5 + len(body))
    assert decode(body, 0) == (record, len(body))


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(source=st.data())
def test_both_refuse_the_same_bytes(name: str, source: st.DataObject):
    body = bytearray(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root)))[codec.HEADER_BYTES :])
    change = source.draw(st.sampled_from(["damage", "cut", "any"]))
    if change == "any" or not body:
        body = bytearray(source.draw(st.binary(max_size=200)))
    elif change == "cut":
        del body[source.draw(st.integers(0, len(body) - 1)) :]
    else:
        for _ in range(source.draw(st.integers(1, 4))):
            body[source.draw(st.integers(0, len(body) - 1))] = source.draw(st.integers(0, 255))
    assert read(in_c(name)[1], bytes(body)) == read(in_python(name)[1], bytes(body))


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(source=st.data())
def test_what_the_schema_does_not_allow_is_refused_by_both(name: str, source: st.DataObject):
    record = codec.decode(value_of(name, source.draw(data(SCHEMAS[name], SCHEMAS[name].root))))
    encode, native_encode = in_python(name)[0], in_c(name)[0]
    for field in fields(record):
        kept = getattr(record, field.name)
        for value in FOREIGN:
            object.__setattr__(record, field.name, value)
            expected, found = attempt(encode, record), attempt(native_encode, record)
            # A text is a sequence to Python, which takes it for an array of texts; the codec in C wants a list.
            assert found == expected or found[0] == "refused", (field.name, value)
        object.__setattr__(record, field.name, kept)
    assert native_encode(record) == encode(record)


def test_a_record_without_a_field_is_refused():
    cls = CLASSES["BlockLocation"]
    with pytest.raises(AttributeError, match="container_id"):
        native.compile_encoder(PARSED["KeyInfo"]["fields"][8]["type"]["items"], CLASSES)(cls.__new__(cls))


def test_what_no_schema_of_ours_uses_is_refused():
    with pytest.raises(NotImplementedError, match="enum"):
        native.compile_encoder({"type": "enum", "name": "Colour", "symbols": ["RED"]}, CLASSES)
    with pytest.raises(KeyError, match="Stranger"):
        native.compile_decoder({"type": "record", "name": "Stranger", "fields": []}, CLASSES)
    with pytest.raises(TypeError, match="NoneType"):
        native.compile_decoder(PARSED["Tick"], CLASSES)(None, 0)
