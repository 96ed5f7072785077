"""Schema compatibility: whether a reader with one schema can read what a writer wrote with another.

What belongs here: the rules of the Avro specification ("Schema Resolution") as a pure function over parsed JSON
schemas. Nothing is read from disk; ``registry`` knows the versions, and a test compares each pair of them.

Rules (reader R, writer W):
    - primitives must be equal, or W promotable to R: int -> long, float, double; long -> float, double; float ->
      double; string <-> bytes;
    - arrays and maps: items and values must match;
    - records, enums, fixed: same unqualified name (or an alias of R's); fixed also the same size; each symbol of W must
      be in R (or R has a default symbol);
    - fields by name (or an alias of R's): each field of R must be in W or have a default; fields that only W has are
      skipped;
    - unions: each branch of W must match some branch of R; if only R is a union, W must match one of its branches.

A change is *safe* iff it has no problems in either direction: new nodes read old logs, and new nodes can write the old
version until the last node is upgraded. One thing may grow: a union at a place named in GROWING_UNIONS may gain
branches (request types), which nobody sends before the upgrade is finalized.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Writer's primitive -> readers' primitives to which it is promoted."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
GROWING_UNIONS = frozenset({"Request.body", "Response.result"})
"""Places whose union may gain branches; the branches that it already has obey the rules like everything else."""

Names = dict[str, Mapping[str, Any]]


def problems(reader: Any, writer: Any, growing: Collection[str] = ()) -> list[str]:
    """Return why data of schema ``writer`` may be unreadable with schema ``reader``; empty if it is always readable.

    Both are schemas as JSON gives them (or parsed by fastavro). Each problem names its place. Raises KeyError for a
    schema that refers to a name that it does not define. At the places ``growing`` the writer's union may have
    additional branches.
    """
    return _Comparison(reader, writer, growing).schema(reader, writer, _short(reader) or _kind(reader))


def unsafe_change(newer: Any, older: Any) -> list[str]:
    """Return why the change from ``older`` to ``newer`` is not safe, each reason with its direction; empty if it is."""
    backward = [f"reading the older with the newer: {problem}" for problem in problems(newer, older)]
    forward = problems(older, newer, GROWING_UNIONS)
    return backward + [f"reading the newer with the older: {problem}" for problem in forward]


class _Comparison:
    """One comparison: the names that both sides define, and the pairs being compared (schemas may be recursive)."""

    def __init__(self, reader: Any, writer: Any, growing: Collection[str]) -> None:
        self.growing = growing
        self.reader_names: Names = {}
        self.writer_names: Names = {}
        _collect(reader, "", self.reader_names)
        _collect(writer, "", self.writer_names)
        self.under_way: set[tuple[int, int]] = set()

    def schema(self, reader: Any, writer: Any, where: str) -> list[str]:
        reader = _resolve(reader, self.reader_names)
        writer = _resolve(writer, self.writer_names)
        if isinstance(writer, list):
            return [problem for branch in writer for problem in self.schema(reader, branch, where)]
        if isinstance(reader, list):
            return self.union(reader, writer, where)
        reader_kind, writer_kind = _kind(reader), _kind(writer)
        if reader_kind != writer_kind:
            if reader_kind in PROMOTIONS.get(writer_kind, ()):
                return []
            return [f"{where}: a {_describe(writer)} cannot be read as {_describe(reader)}"]
        if reader_kind in PRIMITIVES:
            return []
        if reader_kind == "array":
            return self.schema(reader["items"], writer["items"], f"{where}[]")
        if reader_kind == "map":
            return self.schema(reader["values"], writer["values"], f"{where}{{}}")
        return self.named(reader, writer, where)

    def union(self, reader: list[Any], writer: Any, where: str) -> list[str]:
        branches = [_resolve(branch, self.reader_names) for branch in reader]
        if any(not self.schema(branch, writer, where) for branch in branches):
            return []
        namesake = next((branch for branch in branches if _short(writer) and _short(branch) == _short(writer)), None)
        if namesake is not None:
            return self.schema(namesake, writer, f"{where}({_short(writer)})")
        if where in self.growing:
            return []
        return [f"{where}: no branch of the reader's union takes the writer's {_describe(writer)}"]

    def named(self, reader: Mapping[str, Any], writer: Mapping[str, Any], where: str) -> list[str]:
        if _short(writer) not in {_short(reader), *(alias.rpartition(".")[2] for alias in reader.get("aliases", ()))}:
            return [f"{where}: a {_describe(writer)} cannot be read as {_describe(reader)}"]
        kind = _kind(reader)
        if kind == "fixed":
            if reader["size"] != writer["size"]:
                return [f"{where}: fixed {_short(reader)} of {writer['size']} bytes cannot be read as {reader['size']}"]
            return []
        if kind == "enum":
            unknown = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if unknown and "default" not in reader:
                return [f"{where}: the reader's enum {_short(reader)} lacks {', '.join(unknown)} and has no default"]
            return []
        pair = (id(reader), id(writer))
        if pair in self.under_way:
            return []
        self.under_way.add(pair)
        try:
            return self.fields(reader, writer, where)
        finally:
            self.under_way.discard(pair)

    def fields(self, reader: Mapping[str, Any], writer: Mapping[str, Any], where: str) -> list[str]:
        written = {field["name"]: field for field in writer["fields"]}
        found: list[str] = []
        for field in reader["fields"]:
            place = f"{where}.{field['name']}"
            name = next((n for n in (field["name"], *field.get("aliases", ())) if n in written), None)
            if name is not None:
                found += self.schema(field["type"], written[name]["type"], place)
            elif "default" not in field:
                found.append(f"{place}: the writer has no such field, and the reader has no default for it")
        return found


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, str):
        return schema
    kind = schema["type"]
    return kind if isinstance(kind, str) else _kind(kind)


def _short(schema: Any) -> str:
    """Return the unqualified name of a named schema, or ''."""
    return schema["name"].rpartition(".")[2] if isinstance(schema, Mapping) and "name" in schema else ""


def _describe(schema: Any) -> str:
    return f"{_kind(schema)} {_short(schema)}".rstrip()


def _collect(schema: Any, namespace: str, names: Names) -> None:
    """Collect the named schemas that ``schema`` defines, by full and by unqualified name."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, names)
        return
    if not isinstance(schema, Mapping):
        return
    kind = schema["type"]
    if kind in ("array", "map"):
        _collect(schema["items" if kind == "array" else "values"], namespace, names)
    elif not isinstance(kind, str):
        _collect(kind, namespace, names)
    elif kind in NAMED:
        name = schema["name"]
        namespace = name.rpartition(".")[0] or schema.get("namespace", namespace)
        names[f"{namespace}.{_short(schema)}".lstrip(".")] = schema
        names.setdefault(_short(schema), schema)
        for field in schema.get("fields", ()):
            _collect(field["type"], namespace, names)


def _resolve(schema: Any, names: Names) -> Any:
    """Return the definition that ``schema`` stands for."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else names[schema]
    if isinstance(schema, Mapping) and not isinstance(schema["type"], str):
        return _resolve(schema["type"], names)
    if isinstance(schema, Mapping) and schema["type"] not in NAMED | {"array", "map"} | PRIMITIVES:
        return names[schema["type"]]
    return schema
