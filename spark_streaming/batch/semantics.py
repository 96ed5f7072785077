"""What the rows of the logs must mean together, whoever holds them: sums, owners, blocks, deletions.

Digests say that replicas hold what the log says. They cannot say that the log makes sense: a leader with a wrong rule
writes wrong rows, and every replica holds them. Here the rows that the logs give, each to its end, are compared with
each other. The checks, by the names that findings have:

===========================  ===========================================================================================
``usage``                    a counter of usageTable is the sum of the live rows: bytes and keys of a bucket, buckets
                             of a volume, bytes that its buckets' quotas allot
``counter without owner``    each counter belongs to a volume or bucket
``key without bucket``       each key of keyTable lies in a bucket (open keys outlive their bucket until they expire)
``bucket without volume``    each bucket lies in a volume
``inline key without bytes`` each inline key has a row of inlineTable, of its size
``bytes without inline key`` each row of inlineTable belongs to an inline key
``block without replica``    each block of a committed key is in the log of its pipeline
``replica without key``      each block there belongs to a key: committed, open or deleted
``endless deletion``         rows of deletedTable go within DELETION_MS, unless a snapshot holds their bucket
===========================  ===========================================================================================

The last three need datanodes. The two logs are not read at one moment: rows of the last SETTLE_MS are left out there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.column_families import (
    BLOCK_TABLE,
    BUCKET_TABLE,
    DELETED_TABLE,
    DN_COLUMN_FAMILIES,
    INLINE_TABLE,
    KEY_TABLE,
    OPEN_KEY_TABLE,
    SNAPSHOT_TABLE,
    USAGE_TABLE,
    VOLUME_TABLE,
)
from schemas.records.rows import NEVER_WRITTEN
from spark_streaming.batch import oracle
from spark_streaming.records.core.reading import BATCH
from spark_streaming.records.decode import column_of, decoded

SETTLE_MS = 60_000
"""Rows that have changed so lately are not compared across logs: a block is allocated, stored and committed in turn."""

DELETION_MS = 24 * 3_600_000
"""How long a deleted key may wait for its blocks: longer than a datanode is away as a rule, and than any grace."""

MAX_FINDINGS = 64
"""Most findings of each check that are named."""

WHOLE = (VOLUME_TABLE, BUCKET_TABLE, KEY_TABLE, OPEN_KEY_TABLE, DELETED_TABLE, SNAPSHOT_TABLE, INLINE_TABLE)
_UNSIGNED, _SIGN = 1 << 64, 1 << 63
_ID_BYTES = _LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """A log's raw records, those of them that count, and the offset up to which each of its partitions is read."""

    records: DataFrame
    effective: DataFrame
    until: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticFinding:
    """Rows that contradict each other: the check, the partition, what it is about, what is said and what is found."""

    check: str
    shard: int
    subject: str
    said: str
    found: str


def semantic_findings(
    object_manager: LogRows, pipelines: LogRows | None, now_ms: int, *, deletion_ms: int = DELETION_MS
) -> list[SemanticFinding]:
    """Return what contradicts itself, at most MAX_FINDINGS of each check; ``pipelines``: None without datanodes.

    Every partition must be computable from its log alone: no RequestBatch, not trimmed.
    """
    rows = live_values(object_manager, WHOLE).persist()
    try:
        checks = _own_checks(rows, object_manager)
        if pipelines is not None:
            checks += _block_checks(rows, pipelines, now_ms, deletion_ms)
        named = [frame.limit(MAX_FINDINGS).select(F.lit(check).alias("check"), *_FIELDS) for check, frame in checks]
        found = reduce(DataFrame.unionByName, named).collect()
    finally:
        rows.unpersist()
    order = {check: number for number, (check, _) in enumerate(checks)}
    findings = [SemanticFinding(**row.asDict()) for row in found]
    return sorted(findings, key=lambda one: (order[one.check], one.shard, one.subject))


def as_json(findings: Sequence[SemanticFinding]) -> list[dict[str, Any]]:
    """Return findings for a result (``core.results``)."""
    return [asdict(one) for one in findings]


_FIELDS = ("shard", "subject", "said", "found")
_Checks = list[tuple[str, DataFrame]]


# -- rows --------------------------------------------------------------------------------------------------------------


def live_values(log: LogRows, families: Sequence[str]) -> DataFrame:
    """Return the live rows of families without merges: shard, cf, key (text), value, changed_ms (of its last Put).

    The value of a row of inlineTable is its length, in decimal: nothing else is asked of a user's bytes.
    """
    session = log.records.sparkSession
    bounds = session.createDataFrame(list(log.until.items()), "shard int, until long")
    wanted = log.effective.where(F.col("kind") == BATCH).join(F.broadcast(bounds), "shard")
    wanted = wanted.where(F.col("offset") <= F.col("until")).select("shard", "offset")
    batches = decoded(log.records.join(F.broadcast(wanted), ["shard", "offset"]), [BATCH])
    written = F.transform(F.col(column_of(BATCH))["operations"], _operation)
    exploded = batches.select("shard", "offset", "timestamp", F.posexplode(written).alias("ordinal", "op"))
    moment = F.shiftleft("offset", oracle.ORDINAL_BITS).bitwiseOR(F.col("ordinal").cast("long"))
    ops = exploded.select("shard", moment.alias("moment"), _ms("timestamp").alias("changed_ms"), "op.*")
    last = F.max_by(F.struct("value", "changed_ms"), "moment").alias("last")
    rows = ops.where(F.col("cf").isin(*families)).groupBy("shard", "cf", "key").agg(last)
    text = F.col("key").cast("string").alias("key")
    return rows.where(F.col("last.value").isNotNull()).select("shard", "cf", text, "last.*")


def _operation(op: Column) -> Column:
    put, delete = op["member_put"], op["member_delete"]
    return F.struct(
        F.coalesce(put["cf"], delete["cf"]).alias("cf"),
        F.coalesce(put["key"], delete["key"]).alias("key"),
        F.when(put["cf"] == INLINE_TABLE, F.length(put["value"]).cast("string").cast("binary"))
        .otherwise(put["value"])
        .alias("value"),
    )


def _ms(column: str) -> Column:
    return F.unix_millis(F.col(column))


def _typed(rows: DataFrame, families: Sequence[str], record_type: str) -> DataFrame:
    """Return rows of families as their records' fields: shard, cf, key, changed_ms, row."""
    wanted = rows.where(F.col("cf").isin(*families))
    row = F.col(column_of(record_type)).alias("row")
    return decoded(wanted, [record_type]).select("shard", "cf", "key", "changed_ms", row)


def counters(log: LogRows) -> DataFrame:
    """Return the counters of usageTable: shard, key (text), said."""
    ops = oracle.operations(log.records, log.effective, log.until).where(F.col("cf") == USAGE_TABLE)
    per_key = ["shard", "key"]
    setting = F.max(F.when(F.col("kind") != oracle.MERGE, F.col("moment"))).over(Window.partitionBy(*per_key))
    since = ops.withColumn("_set", setting).where(F.col("_set").isNull() | (F.col("moment") >= F.col("_set")))
    summed = since.groupBy(*per_key).agg(
        F.sum("amount").cast("decimal(38,0)").alias("total"), F.max_by("kind", "moment").alias("last")
    )
    wrapped = F.col("total") % _number(_UNSIGNED)
    signed = F.when(wrapped >= _number(_SIGN), wrapped - _number(_UNSIGNED)).otherwise(wrapped)
    text = F.col("key").cast("string").alias("key")
    return summed.where(F.col("last") != oracle.DELETE).select("shard", text, signed.alias("said"))


def _number(value: int) -> Column:
    return F.lit(str(value)).cast("decimal(38,0)")


# -- checks of the Object Manager's rows -------------------------------------------------------------------------------


def _own_checks(rows: DataFrame, log: LogRows) -> _Checks:
    volumes = _typed(rows, [VOLUME_TABLE], "VolumeInfo").select("shard", "key", "row.volume")
    buckets = _typed(rows, [BUCKET_TABLE], "BucketInfo").select("shard", "key", "row.*").drop("owner")
    of_keys = ("row.volume", "row.bucket", "row.size", "row.object_id", "row.inline")
    keys = _typed(rows, [KEY_TABLE], "KeyInfo").select("shard", "key", *of_keys)
    inline = keys.where("inline").select("shard", "key", "size", F.col("object_id").cast("string").alias("id"))
    kept = rows.where(F.col("cf") == INLINE_TABLE).select("shard", F.col("key").alias("id"), _length("value"))
    counted = counters(log)
    return [
        ("usage", _usage(counted, buckets, keys)),
        ("counter without owner", _ownerless(counted, volumes, buckets)),
        ("key without bucket", _without(keys, buckets, ["shard", "volume", "bucket"], "there is no such bucket")),
        ("bucket without volume", _without(buckets, volumes, ["shard", "volume"], "there is no such volume")),
        ("inline key without bytes", _byteless(inline, kept)),
        ("bytes without inline key", _keyless(kept, inline)),
    ]


def _length(column: str) -> Column:
    return F.col(column).cast("string").cast("long").alias("length")


def _byteless(inline: DataFrame, kept: DataFrame) -> DataFrame:
    both = inline.join(kept, ["shard", "id"], "left")
    wrong = both.where(F.col("length").isNull() | (F.col("length") != F.col("size")))
    found = F.coalesce(F.concat(F.col("length").cast("string"), F.lit(" bytes")), F.lit("no bytes"))
    said = F.concat(F.col("size").cast("string"), F.lit(" bytes"))
    return wrong.select("shard", F.col("key").alias("subject"), said.alias("said"), found.alias("found"))


def _keyless(kept: DataFrame, inline: DataFrame) -> DataFrame:
    orphans = kept.join(inline.select("shard", "id"), ["shard", "id"], "left_anti")
    said = F.concat(F.col("length").cast("string"), F.lit(" bytes"))
    return _finding(orphans, F.concat(F.lit("object "), "id"), said, "no inline key has it")


def _usage(counted: DataFrame, buckets: DataFrame, keys: DataFrame) -> DataFrame:
    in_bucket = keys.groupBy("shard", "volume", "bucket").agg(F.sum("size").alias("a"), F.count("*").alias("b"))
    allotted = F.sum(F.greatest("quota_in_bytes", F.lit(0)))
    in_volume = buckets.groupBy("shard", "volume").agg(allotted.alias("a"), F.count("*").alias("b"))
    bucket, volume = F.concat(F.lit("/"), "volume", F.lit("/"), "bucket"), F.concat(F.lit("/"), "volume")
    wanted = [
        _wanted(in_bucket, bucket, "/#usedBytes", "a"), _wanted(in_bucket, bucket, "/#usedNamespace", "b"),
        _wanted(in_volume, volume, "/#allottedBytes", "a"), _wanted(in_volume, volume, "/#usedNamespace", "b"),
    ]  # fmt: skip
    both = counted.join(reduce(DataFrame.unionByName, wanted), ["shard", "key"], "full_outer")
    said, summed = F.coalesce("said", _number(0)), F.coalesce("sum", _number(0))
    return both.where(said != summed).select(
        "shard", F.col("key").alias("subject"), said.cast("string").alias("said"), summed.cast("string").alias("found")
    )


def _wanted(sums: DataFrame, owner: Column, counter: str, column: str) -> DataFrame:
    key = F.concat(owner, F.lit(counter)).alias("key")
    return sums.select("shard", key, F.col(column).cast("decimal(38,0)").alias("sum"))


def _ownerless(counted: DataFrame, volumes: DataFrame, buckets: DataFrame) -> DataFrame:
    owned = counted.withColumn("owner", F.regexp_replace("key", "/#[^/]*$", ""))
    owners = volumes.select("shard", "key").unionByName(buckets.select("shard", "key"))
    return _finding(
        owned.join(owners.withColumnRenamed("key", "owner"), ["shard", "owner"], "left_anti"),
        F.col("key"), F.col("said").cast("string"), "there is no such volume or bucket",
    )  # fmt: skip


def _without(rows: DataFrame, owners: DataFrame, columns: list[str], found: str) -> DataFrame:
    return _finding(rows.join(owners.select(*columns), columns, "left_anti"), F.col("key"), F.lit("a live row"), found)


def _finding(rows: DataFrame, subject: Column, said: Column, found: str) -> DataFrame:
    return rows.select("shard", subject.alias("subject"), said.alias("said"), F.lit(found).alias("found"))


# -- checks with the datanodes' log ------------------------------------------------------------------------------------


def _block_checks(rows: DataFrame, pipelines: LogRows, now_ms: int, deletion_ms: int) -> _Checks:
    keys = _typed(rows, [KEY_TABLE, OPEN_KEY_TABLE, DELETED_TABLE], "KeyInfo")
    named = keys.select("shard", "cf", "key", "changed_ms", F.explode("row.blocks").alias("block"))
    named = named.select("*", "block.container_id", "block.local_id", "block.bcs_id")
    stored = _stored(pipelines)
    settled, ids = F.col("changed_ms") < now_ms - SETTLE_MS, ["container_id", "local_id"]
    written = (F.col("cf") == KEY_TABLE) & (F.col("bcs_id") > 0) & (F.col("bcs_id") != NEVER_WRITTEN)
    missing = named.where(settled & written).join(stored.select(*ids), ids, "left_anti")
    orphans = stored.where(settled).join(named.select(*ids), ids, "left_anti")
    block = F.concat(F.lit("block "), "container_id", F.lit("/"), "local_id")
    return [
        (
            "block without replica",
            _finding(missing, F.concat(block, F.lit(" of "), "key"), F.lit("committed"), "no pipeline's log has it"),
        ),
        ("replica without key", _finding(orphans, block, F.lit("stored"), "no key has it")),
        ("endless deletion", _endless(rows, now_ms, deletion_ms)),
    ]  # fmt: skip


def _stored(pipelines: LogRows) -> DataFrame:
    """Return the blocks that pipelines store: shard (the pipeline), container_id, local_id, changed_ms."""
    ops = oracle.operations(pipelines.records, pipelines.effective, pipelines.until)
    rows = oracle.live_rows(ops, DN_COLUMN_FAMILIES).where(F.col("cf") == BLOCK_TABLE)
    last = ops.where(F.col("cf") == BLOCK_TABLE).groupBy("shard", "key").agg(F.max("moment").alias("moment"))
    times = pipelines.records.select("shard", "offset", _ms("timestamp").alias("changed_ms"))
    tombstone = F.substring(F.hex("value"), 1, 2 * _LENGTH_BYTES) == "F" * 2 * _LENGTH_BYTES
    alive = rows.where(~tombstone).join(last, ["shard", "key"])
    dated = alive.withColumn("offset", F.shiftright("moment", oracle.ORDINAL_BITS)).join(times, ["shard", "offset"])
    return dated.select(
        "shard", _id("key", 1).alias("container_id"), _id("key", _ID_BYTES + 1).alias("local_id"), "changed_ms"
    )


def _id(column: str, begin: int) -> Column:
    return F.conv(F.hex(F.substring(column, begin, _ID_BYTES)), 16, 10).cast("long")


def _endless(rows: DataFrame, now_ms: int, deletion_ms: int) -> DataFrame:
    place = F.regexp_extract("key", "^/([^/]+/[^/]+)/", 1)
    held = rows.where(F.col("cf") == SNAPSHOT_TABLE).select("shard", place.alias("place")).distinct()
    old = rows.where((F.col("cf") == DELETED_TABLE) & (F.col("changed_ms") < now_ms - deletion_ms))
    waiting = old.withColumn("place", place).join(held, ["shard", "place"], "left_anti")
    hours = F.round((F.lit(now_ms) - F.col("changed_ms")) / 3_600_000, 1).cast("string")
    since = F.concat(F.lit("deleted "), hours, F.lit(" h ago"))
    return _finding(waiting, F.col("key"), since, "its blocks are still to be deleted")
