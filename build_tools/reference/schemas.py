"""docs/reference/schemas.md: every record with its fields, from the ``.avsc`` files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from build_tools.reference.markdown import code, page, prose, table
from schemas.codecs.registry import FOLDER, registry

GROUPS = {
    "messages": "Messages: requests, answers, reports, verdicts, windows",
    "log": "Records of the logs",
    "rows": "Rows of the Object Manager's databases",
    "datanode": "Datanodes: frames of streams, records and rows of pipelines",
}


def type_words(given: Any) -> str:
    """Return an Avro type in words."""
    if isinstance(given, list):
        return " or ".join(map(type_words, given))
    if isinstance(given, str):
        return given
    kind = given["type"]
    if kind == "array":
        return f"array of {type_words(given['items'])}"
    if kind == "map":
        return f"map of {type_words(given['values'])}"
    return f"{given['name']} ({given['size']} bytes)" if kind == "fixed" else str(given.get("name", kind))


def records(schema: Any) -> Iterator[Any]:
    """Yield a record and the records that it defines within."""
    if isinstance(schema, list):
        for one in schema:
            yield from records(one)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema
            for field in schema["fields"]:
                yield from records(field["type"])
        elif isinstance(schema["type"], dict | list) or schema["type"] in ("array", "map"):
            yield from records(schema.get("items") or schema.get("values") or schema["type"])


def schemas_page() -> str:
    """Return the page."""
    intro = prose(
        "The files are `schemas/avsc/KIND/NAME.vN.avsc`: version N of a schema, the highest N being the current one. "
        "Each value on a topic begins with the two bytes C3 01 and the schema's fingerprint (CRC-64-AVRO, "
        "little-endian), Avro's single-object encoding. This page is made from the files of the current versions."
    )
    parts: list[list[str]] = []
    for group, title in GROUPS.items():
        parts.append([f"## {title}", ""])
        names = {path.name.partition(".")[0] for path in (FOLDER / group).glob("*.avsc")}
        parts += [_section(name) for name in sorted(names)]
    return page("Schemas", intro, *parts)


def _section(name: str) -> list[str]:
    title = [f"### {name} (version {len(registry.versions(name))})", ""]
    lines: list[str] = []
    for depth, record in enumerate(records(json.loads(registry.current(name).text))):
        lines += [f"`{record['name']}` within it:", ""] if depth else title
        lines += prose(record.get("doc", ""))
        rows = [(code(one["name"]), type_words(one["type"]), one.get("doc", "")) for one in record["fields"]]
        lines += table(("field", "type", "meaning"), rows) if rows else prose("It has no fields.")
    return lines
