"""Plain data by schema: extreme and ordinary ones for golden files, random ones for Hypothesis, and their JSON form.

A record in a union is ``(full name, datum)``, as fastavro reads it. In JSON, bytes are hexadecimal text and a record in a
union is ``{full name: datum}``, as in Avro's own JSON encoding.
"""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import Any

from fastavro import schemaless_writer
from hypothesis import strategies as st

from schemas.codecs.registry import MARKER, registry

INT = (-(1 << 31), (1 << 31) - 1)
LONG = (-(1 << 63), (1 << 63) - 1)


class Schema:
    """A schema parsed by fastavro, and the named types in it."""

    def __init__(self, parsed: Any) -> None:
        self.root = parsed
        self.names: dict[str, Any] = {}
        self._collect(parsed)

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, dict):
            if "name" in schema:
                self.names[schema["name"]] = schema
            for inner in (schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))):
                self._collect(inner)

    def of(self, schema: Any) -> tuple[str, Any]:
        """Return the kind and the definition of a schema."""
        if isinstance(schema, str) and schema in self.names:
            schema = self.names[schema]
        if isinstance(schema, list):
            return "union", schema
        if isinstance(schema, str):
            return schema, schema
        return schema["type"], schema


def tagged(schema: Schema, branch: Any, datum: Any) -> Any:
    kind, definition = schema.of(branch)
    return (definition["name"], datum) if kind == "record" else datum


SCALARS: dict[str, dict[str, Any]] = {
    "null": {"low": None, "high": None, "ordinary": None},
    "boolean": {"low": False, "high": True, "ordinary": True},
    "int": {"low": INT[0], "high": INT[1], "ordinary": 3},
    "long": {"low": LONG[0], "high": LONG[1], "ordinary": 1_750_000_000_123},
    "string": {"low": "", "high": "Öl/\u0000/𝄞", "ordinary": "vol1"},
    "bytes": {"low": b"", "high": bytes(range(256)), "ordinary": b"/vol1/bucket1/key1"},
}


def example(schema: Schema, part: Any, mode: str, choice: int) -> Any:
    """Return the ``mode`` ('low', 'high', 'ordinary') datum of a part; unions take branch ``choice`` modulo their number."""
    kind, definition = schema.of(part)
    if kind == "record":
        return {f["name"]: example(schema, f["type"], mode, choice) for f in definition["fields"]}
    if kind == "union":
        branch = definition[choice % len(definition)]
        return tagged(schema, branch, example(schema, branch, mode, choice))
    if kind == "array":
        if mode == "low":
            return []
        branches = len(definition["items"]) if isinstance(definition["items"], list) else 2
        return [example(schema, definition["items"], mode, choice + n) for n in range(branches)]
    if kind == "map":
        return {} if mode == "low" else {SCALARS["string"][mode]: example(schema, definition["values"], mode, choice)}
    if kind == "fixed":
        size = definition["size"]
        return {"low": bytes(size), "high": b"\xff" * size, "ordinary": bytes(range(size))}[mode]
    return SCALARS[kind][mode]


def branches(schema: Schema) -> int:
    """Return the largest number of branches of any union in the schema."""

    def most(part: Any) -> int:
        kind, definition = schema.of(part)
        if kind == "union":
            return max(len(definition), *map(most, definition))
        if kind == "record":
            return max((most(f["type"]) for f in definition["fields"]), default=1)
        if kind in ("array", "map"):
            return most(definition["items" if kind == "array" else "values"])
        return 1

    return most(schema.root)


def examples(schema: Schema) -> dict[str, Any]:
    """Return the golden data of a schema: extremes, and an ordinary one for every branch of its unions."""
    cases = {mode: example(schema, schema.root, mode, choice) for mode, choice in (("low", 0), ("high", -1))}
    for choice in range(branches(schema)):
        cases[f"ordinary {choice}"] = example(schema, schema.root, "ordinary", choice)
    return cases


def data(schema: Schema, part: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of all data of a part of a schema."""
    kind, definition = schema.of(part)
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: data(schema, f["type"]) for f in definition["fields"]})
    if kind == "union":
        return st.one_of([data(schema, branch).map(partial(tagged, schema, branch)) for branch in definition])
    if kind == "array":
        return st.lists(data(schema, definition["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=6), data(schema, definition["values"]), max_size=3)
    if kind == "fixed":
        return st.binary(min_size=definition["size"], max_size=definition["size"])
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(*INT),
        "long": st.integers(*LONG),
        "string": st.text(max_size=20),
        "bytes": st.binary(max_size=40),
    }[kind]


def to_json(schema: Schema, part: Any, datum: Any) -> Any:
    kind, definition = schema.of(part)
    if kind == "record":
        return {f["name"]: to_json(schema, f["type"], datum[f["name"]]) for f in definition["fields"]}
    if kind == "union":
        if isinstance(datum, tuple):
            return {datum[0]: to_json(schema, datum[0], datum[1])}
        return datum if datum is None or isinstance(datum, int | str) else {"bytes": datum.hex()}
    if kind == "array":
        return [to_json(schema, definition["items"], item) for item in datum]
    if kind == "map":
        return {key: to_json(schema, definition["values"], value) for key, value in datum.items()}
    return datum.hex() if kind in ("bytes", "fixed") else datum


def from_json(schema: Schema, part: Any, value: Any) -> Any:
    kind, definition = schema.of(part)
    if kind == "record":
        return {f["name"]: from_json(schema, f["type"], value[f["name"]]) for f in definition["fields"]}
    if kind == "union":
        if not isinstance(value, dict):
            return value
        [(name, inner)] = value.items()
        return bytes.fromhex(inner) if name == "bytes" else (name, from_json(schema, name, inner))
    if kind == "array":
        return [from_json(schema, definition["items"], item) for item in value]
    if kind == "map":
        return {key: from_json(schema, definition["values"], item) for key, item in value.items()}
    return bytes.fromhex(value) if kind in ("bytes", "fixed") else value


SCHEMAS = {version.name: Schema(version.parsed) for version in registry}
"""The current version of every top-level type, by its name."""


def value_of(name: str, datum: Any) -> bytes:
    """Return a datum of a top-level type as the value of a record, written by fastavro."""
    version = registry.current(name)
    out = BytesIO()
    schemaless_writer(out, version.parsed, datum)
    return MARKER + version.fingerprint + out.getvalue()
