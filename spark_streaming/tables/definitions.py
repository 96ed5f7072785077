"""The tables: their columns, as Spark's DDL writes them. A column that is added here is added to tables that exist.

Times are those of batches, in UTC. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streaming.tables.core.shard_fold import GROWTH, KEYS, OPERATIONS, SIZES, USAGE

KEY_COLUMNS = (
    ("owner", "string"), ("object_id", "bigint"), ("size", "bigint"), ("replication", "string"), ("blocks", "int"),
    ("metadata", "map<string,string>"), ("creation_time", "timestamp"), ("modification_time", "timestamp"),
)  # fmt: skip
"""What is kept of a key's row beside its name; ``blocks`` is their number."""

_PLACE = (("volume", "string"), ("bucket", "string"))
_USED = (("keys", "bigint"), ("bytes", "bigint"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table: columns with their types, and those by which its files are clustered."""

    name: str
    columns: tuple[tuple[str, str], ...]
    clustered_by: tuple[str, ...] = ()
    change_feed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(name for name, _ in self.columns)


EFFECTIVE_OPERATIONS = TableDefinition(
    name=OPERATIONS,
    columns=(
        ("shard", "int"), ("index", "bigint"), ("offset", "bigint"), ("ordinal", "int"), ("term", "bigint"),
        ("leader", "string"), ("time", "timestamp"), ("request_type", "string"), ("status", "string"),
        ("message", "string"), ("client_id", "string"), ("call_id", "bigint"), ("first_sent_at", "timestamp"),
        *_PLACE, ("key", "string"), ("to_key", "string"), ("snapshot", "string"), ("removes_key", "boolean"),
        ("row", f"struct<{','.join(f'{name}:{kind}' for name, kind in KEY_COLUMNS)}>"),
    ),
)  # fmt: skip
KEYS_CURRENT = TableDefinition(
    name=KEYS,
    columns=(*_PLACE, ("key", "string"), ("shard", "int"), ("index", "bigint"), *KEY_COLUMNS),
    clustered_by=("volume", "bucket", "key"),
    change_feed=True,
)
USAGE_BY_BUCKET = TableDefinition(
    name=USAGE,
    columns=(
        *_PLACE, ("shard", "int"), ("index", "bigint"), *_USED, ("owner", "string"), ("object_id", "bigint"),
        ("quota_in_bytes", "bigint"), ("quota_in_namespace", "bigint"), ("creation_time", "timestamp"),
        ("changed_at", "timestamp"),
    ),
)  # fmt: skip
GROWTH_BY_HOUR = TableDefinition(name=GROWTH, columns=(("hour", "timestamp"), *_PLACE, *_USED))
FILE_SIZES = TableDefinition(name=SIZES, columns=(*_PLACE, ("below_bytes", "bigint"), *_USED))
"""Keys whose size is less than ``below_bytes``, and at least half of it (or 0, for the smallest)."""

TABLES = (GROWTH_BY_HOUR, USAGE_BY_BUCKET, KEYS_CURRENT, FILE_SIZES, EFFECTIVE_OPERATIONS)
"""In the order in which a micro-batch commits them. The last one's position holds for all."""
