"""Avro single-object encoding in Spark: check the fingerprint, strip the header, ``from_avro`` (design, section 3).

``from_avro`` does not know the 10-byte header (C3 01, then CRC-64-AVRO of the writer schema). One topic holds several
record types, so each type gets a column of its own, null in the records of another. Writer schemas are the registry's
current ones and their history, resolved to the current. A record that cannot be decoded is kept, with the reason in
``error``: the audit has to report it.

A union of records arrives as a struct of nullable members named ``member_<record name in lower case>``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom
from pyspark.sql.avro.functions import from_avro

from schemas.codecs.codec import HEADER_BYTES
from schemas.codecs.registry import MARKER, registry
from spark_streaming.records.core.reading import UNKNOWN_SCHEMA

ERROR = "error"
RECORD_TYPE = "record_type"
_HEADER = "_header"
_NAMED = "_named"


def column_of(record_type: str) -> str:
    """Return the name of the column that holds records of a type."""
    return "as_" + record_type.lower()


def decoded(frame: DataFrame, record_types: Iterable[str], projections: Mapping[str, Any] | None = None) -> DataFrame:
    """Add ``record_type``, ``error`` and a struct column for each of ``record_types`` (see :func:`column_of`).

    Takes any frame with a binary ``value``; keeps its columns. ``projections`` gives a narrower reader schema for a
    type: fields that are left out are skipped over, not built. A trailing byte after a record goes unnoticed here
    (``from_avro`` does not say where it stopped); replicas refuse such a record.
    """
    types = list(record_types)
    readers = {name: schema_text(name) for name in types} | {
        name: json.dumps(schema) for name, schema in (projections or {}).items()
    }
    names: list[Column] = []
    columns: dict[str, Column] = {}
    for name in types:
        found = []
        for version in registry.versions(name):
            header = F.lit(MARKER + version.fingerprint)
            names += [header, F.lit(name)]
            value = decode_value(F.col("value"), _text(version.text), readers[name])
            found.append(F.when(F.col(_HEADER) == header, value))
        columns[column_of(name)] = found[0] if len(found) == 1 else F.coalesce(*found)
    # Few, wide projections: Spark plans every micro-batch anew, and each layer makes the planning longer.
    named = frame.select("*", F.substring("value", 1, HEADER_BYTES).alias(_HEADER))
    named = named.select("*", F.create_map(*names)[F.col(_HEADER)].alias(_NAMED))
    filled = named.select("*", *(column.alias(name) for name, column in columns.items()))
    known = filled.select("*", _error(types).alias(ERROR)).drop(_HEADER)
    return known.select("*", F.when(F.col(ERROR).isNull(), F.col(_NAMED)).alias(RECORD_TYPE)).drop(_NAMED)


def schema_text(name: str) -> str:
    """Return the current schema of ``name`` without its docs: Spark repeats it in every plan it prints."""
    return _text(registry.current(name).text)


@functools.cache
def _text(schema: str) -> str:
    return json.dumps(without_docs(json.loads(schema)))


def without_docs(schema: Any) -> Any:
    """Return a parsed schema without ``doc``."""
    if isinstance(schema, dict):
        return {name: without_docs(value) for name, value in schema.items() if name != "doc"}
    if isinstance(schema, list):
        return [without_docs(item) for item in schema]
    return schema


def decode_value(value: Column, writer: str, reader: str) -> Column:
    """Decode single-object encoded bytes whose header has been checked; null fields throughout if malformed."""
    body = value.substr(F.lit(HEADER_BYTES + 1), F.length(value))
    options = {"mode": "PERMISSIVE", "avroSchema": reader, "enableStableIdentifiersForUnionType": "true"}
    return from_avro(body, writer, options)


def _error(types: list[str]) -> Column:
    """Say what is wrong with a value, null if nothing is.

    PERMISSIVE ``from_avro`` returns a struct of nulls for a malformed body. The struct's first field shows that,
    because no schema of ours lets it be null.
    """
    decodes = F.lit(False)
    for name in types:
        first = json.loads(registry.current(name).text)["fields"][0]["name"]
        decodes |= F.col(column_of(name))[first].isNotNull()
    size = F.length("value")
    return (
        F.when(decodes, F.lit(None).cast("string"))
        .when(F.col("value").isNull(), F.lit("no value"))
        .when(size < HEADER_BYTES, F.concat(size, F.lit(" bytes are no encoded record")))
        .when(F.substring("value", 1, len(MARKER)) != F.lit(MARKER), F.lit("not single-object encoded Avro"))
        .when(F.col(_NAMED).isNotNull(), F.concat(F.lit("not a valid "), F.col(_NAMED)))
        .otherwise(F.concat(F.lit(f"{UNKNOWN_SCHEMA} "), F.lower(F.substring(F.hex(_HEADER), 1 + 2 * len(MARKER), 16))))
    )
