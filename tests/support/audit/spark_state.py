"""Spark's state of one group, in memory: what ``transformWithStateInPandas`` hands to the operator.

As Spark does, a value that is absent reads as None, and removing an absent key changes nothing. Rows that do not fit the
declared columns are refused.
"""

from __future__ import annotations

from typing import Any


def _checked(row: tuple[Any, ...], schema: str) -> tuple[Any, ...]:
    columns = schema.split(",")
    if len(row) != len(columns):
        raise ValueError(f"{row!r} does not have the columns {schema!r}")
    kinds = {"long": int, "string": str, "binary": (bytes, bytearray), "boolean": bool}
    for value, column in zip(row, columns, strict=True):
        name, kind = column.split()
        if value is not None and not isinstance(value, kinds[kind]):  # type: ignore[arg-type]
            raise TypeError(f"{name} is a {kind}, not {value!r}")
    return row


class MapState:
    """A state of rows by key."""

    def __init__(self, key_schema: str, schema: str) -> None:
        self._key_schema, self._schema = key_schema, schema
        self.rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self.rows.get(_checked(key, self._key_schema))

    def updateValue(self, key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self.rows[_checked(key, self._key_schema)] = _checked(row, self._schema)

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self.rows.pop(_checked(key, self._key_schema), None)


class GroupState:
    """All that Spark keeps for one group."""

    def __init__(self) -> None:
        self.maps: dict[str, MapState] = {}

    def getMapState(self, name: str, key_schema: str, schema: str) -> MapState:
        return self.maps.setdefault(name, MapState(key_schema, schema))
