"""Each rule of schema resolution, and planted incompatible changes of our own schemas."""

from __future__ import annotations

import copy
import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.codecs.compatibility import PRIMITIVES, PROMOTIONS, problems, unsafe_change
from schemas.codecs.registry import registry


def record(*fields: dict[str, Any], name: str = "r", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


FIXED = {"type": "fixed", "name": "f", "size": 4}
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}


@pytest.mark.parametrize("writer", sorted(PRIMITIVES))
@pytest.mark.parametrize("reader", sorted(PRIMITIVES))
def test_primitives_equal_or_promoted(reader: str, writer: str):
    readable = reader == writer or reader in PROMOTIONS.get(writer, ())
    assert (problems(reader, writer) == []) is readable


VALUES = {"null": None, "boolean": True, "int": 7, "long": 7, "float": 1.5, "double": 1.5, "bytes": b"x", "string": "x"}


@pytest.mark.parametrize("writer", sorted(PRIMITIVES))
@pytest.mark.parametrize("reader", sorted(PRIMITIVES))
def test_primitives_as_fastavro_resolves_them(reader: str, writer: str):
    out = BytesIO()
    written, wanted = record(field("a", writer)), record(field("a", reader))
    schemaless_writer(out, parse_schema(written, named_schemas={}), {"a": VALUES[writer]})
    out.seek(0)
    try:
        schemaless_reader(out, parse_schema(written, named_schemas={}), parse_schema(wanted, named_schemas={}))
        resolved = True
    except Exception:
        resolved = False
    assert resolved is (problems(wanted, written) == [])


SAFE: dict[str, tuple[Any, Any]] = {
    "the same": (record(field("a", "int")), record(field("a", "int"))),
    "docs": (record(field("a", "int", doc="x"), doc="y"), record(field("a", "int"))),
    "new field with a default": (
        record(field("a", "int"), field("b", "string", default="")),
        record(field("a", "int")),
    ),
    "new optional field": (
        record(field("a", "int"), field("b", ["null", "int"], default=None)),
        record(field("a", "int")),
    ),
    "other order": (
        record(field("b", "string"), field("a", "int")),
        record(field("a", "int"), field("b", "string")),
    ),
    "other namespace": (record(field("a", "int"), namespace="x"), record(field("a", "int"), namespace="y")),
    "string to bytes": (record(field("a", "bytes")), record(field("a", "string"))),
    "array of the same": ({"type": "array", "items": "int"}, {"type": "array", "items": "int"}),
    "field with a default taken away": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int", default=0)),
    ),
    "wrapped primitive": (record(field("a", {"type": "int"})), record(field("a", "int"))),
    "union reordered": (record(field("a", ["int", "null"])), record(field("a", ["null", "int"]))),
    "named type by reference": (
        record(field("a", FIXED), field("b", "f")),
        record(field("a", FIXED), field("b", "f")),
    ),
    "recursive": (
        record(field("next", ["null", "r"], default=None)),
        record(field("next", ["null", "r"], default=None)),
    ),
    "enum grown with a default on both sides": (
        {**ENUM, "symbols": ["A", "B", "C"], "default": "A"},
        {**ENUM, "default": "A"},
    ),
}


@pytest.mark.parametrize("case", SAFE)
def test_safe_changes(case: str):
    newer, older = SAFE[case]
    assert unsafe_change(newer, older) == []


BREAKS: dict[str, tuple[Any, Any, str, str]] = {
    # name: reader, writer, place, part of the message
    "new field without a default": (record(field("a", "int"), field("b", "int")), record(field("a", "int")), "r.b", "no default"),
    "renamed field": (record(field("z", "int")), record(field("a", "int")), "r.z", "no default"),
    "narrowed": (record(field("a", "int")), record(field("a", "long")), "r.a", "long cannot be read as int"),
    "retyped": (record(field("a", "int")), record(field("a", "string")), "r.a", "string cannot be read as int"),
    "optional made required": (record(field("a", "int")), record(field("a", ["null", "int"])), "r.a", "null cannot be read"),
    "branch taken away": (["null", "int"], ["null", "int", "string"], "union", "writer's string"),
    "not in the union": (["null", "int"], "string", "union", "writer's string"),
    "fixed resized": (FIXED, {**FIXED, "size": 5}, "f", "5 bytes"),
    "fixed renamed": (FIXED, {**FIXED, "name": "g"}, "f", "fixed g cannot be read as fixed f"),
    "record renamed": (record(field("a", "int")), record(field("a", "int"), name="s"), "r", "record s"),
    "enum symbol taken away": ({**ENUM, "symbols": ["A"]}, ENUM, "e", "lacks B"),
    "array items": ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, "array[]", "string"),
    "map values": ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "map{}", "string"),
    "array to map": ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "map", "array"),
    "deep": (
        record(field("a", {"type": "array", "items": ["null", record(field("x", "int"), name="s")]})),
        record(field("a", {"type": "array", "items": ["null", record(field("x", "string"), name="s")]})),
        "r.a[](s).x", "string cannot be read as int",
    ),
    "recursive": (
        record(field("n", "int"), field("next", ["null", "r"], default=None)),
        record(field("n", "long"), field("next", ["null", "r"], default=None)),
        "r.n", "long",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BREAKS)
def test_incompatible_changes_are_named(case: str):
    reader, writer, place, message = BREAKS[case]
    found = problems(reader, writer)
    assert any(one.startswith(f"{place}: ") and message in one for one in found), found
    assert any(message in one for one in unsafe_change(reader, writer))


def test_aliases_of_the_reader():
    reader = record(field("new", "int", aliases=["old"]), name="now", aliases=["x.before"])
    writer = record(field("old", "int"), name="before")
    assert problems(reader, writer) == []
    assert problems(writer, reader) != []


def test_undefined_name():
    with pytest.raises(KeyError, match="nowhere"):
        problems(record(field("a", "nowhere")), record(field("a", "nowhere")))


def test_directions_are_told_apart():
    found = unsafe_change(record(field("a", "long")), record(field("a", "int")))
    assert [one.split(":")[0] for one in found] == ["reading the newer with the older"]
    found = unsafe_change(record(field("a", "int"), field("b", "int")), record(field("a", "int")))
    assert [one.split(":")[0] for one in found] == ["reading the older with the newer"]


# Changes planted into our own schemas.


def changed(name: str, change: Any) -> tuple[Any, Any]:
    older = json.loads(registry.current(name).text)
    newer = copy.deepcopy(older)
    change(newer)
    return newer, older


@pytest.mark.parametrize("name", [version.name for version in registry])
def test_our_schemas_with_a_field_taken_away(name: str):
    newer, older = changed(name, lambda schema: schema["fields"].pop(0))
    assert any("no default" in one for one in unsafe_change(newer, older))


@pytest.mark.parametrize("name", [version.name for version in registry])
def test_our_schemas_with_a_new_field(name: str):
    newer, older = changed(name, lambda schema: schema["fields"].append(field("x", "int")))
    assert any(f"{name}.x" in one for one in unsafe_change(newer, older))
    newer, older = changed(name, lambda schema: schema["fields"].append(field("x", "int", default=0)))
    assert unsafe_change(newer, older) == []


@pytest.mark.parametrize("name", [version.name for version in registry])
def test_our_schemas_retyped_one_field_at_a_time(name: str):
    for number in range(len(json.loads(registry.current(name).text)["fields"])):
        newer, older = changed(name, lambda schema, n=number: schema["fields"][n].update(type="double"))
        try:
            found = unsafe_change(newer, older)
        except KeyError:  # the field defined a type that later ones use: no schema at all
            continue
        assert found, newer["fields"][number]["name"]


def body(schema: Any) -> list[Any]:
    union: list[Any] = next(f for f in schema["fields"] if f["name"] == "body")["type"]
    return union


def test_a_request_type_may_be_added_but_not_taken_away():
    newer, older = changed(
        "Request", lambda schema: body(schema).append(record(field("v", "string"), name="NewRequest"))
    )
    assert unsafe_change(newer, older) == []
    newer, older = changed("Request", lambda schema: body(schema).pop())
    assert any("RemoveDatanode" in one for one in unsafe_change(newer, older))


def test_a_request_type_that_is_there_obeys_the_rules():
    newer, older = changed("Request", lambda schema: body(schema)[0]["fields"].append(field("x", "int")))
    assert any("Request.body(CreateVolume).x" in one for one in unsafe_change(newer, older))


def test_an_operation_may_not_be_added():
    def add(schema: Any) -> None:
        operations = next(f for f in schema["fields"] if f["name"] == "operations")["type"]["items"]
        operations.append(record(field("cf", "string"), name="DeleteRange"))

    newer, older = changed("Batch", add)
    assert any("DeleteRange" in one for one in unsafe_change(newer, older))
