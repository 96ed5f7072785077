"""The batch oracle: computes a shard's live rows and trusts no claimed hash (design, sections 3 and 9).

The last effective operation on each key decides. Merges are computed from their operands, on top of the last Put if
there is one: ``add_int64`` by addition, ``max_bytes`` (rows of blockTable, in the datanodes' log) as the bytewise
largest. The oracle uses no ``prev`` and no ``next``. The live rows give the digest that the stream and every replica
must agree with, and the digest for a DigestBase. ``counting`` finds the effective records. Built-in functions do
everything else, so Spark manages the state per key.

The oracle also checks merges: the row that the operands give must have the hash that its last Merge claims (``next``),
else the log claims another row. The stream does not check this, because a sum per key would be state per key.

Of a trimmed log the oracle computes nothing: most rows were last changed before the log's first record. The log's own
sums since the base are all there is then, and the result says so.

The rows of blockTable carry the checksums of all cells. So they say what each container's stored bytes must be
(:func:`container_digests`).

All functions take records of one log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.codecs.block_rows import MAX_BYTES
from schemas.column_families import ADD_INT64, BLOCK_TABLE, RETRY_TABLE
from spark_streaming.batch.core.computed import CounterDifference, LogPoint, ShardDigest
from spark_streaming.records.core.reading import BATCH
from spark_streaming.records.decode import column_of, decoded
from spark_streaming.records.transforms import (
    operation_family,
    operation_key,
    retry_key,
    retry_value,
    slot_of,
)
from spark_streaming.verdicts.core import digests

MAX_COUNTER_DIFFERENCES = 64
"""Most false counters that the check names for each shard."""

PUT, DELETE, MERGE = 1, 2, 3
ORDINAL_BITS = 23
"""Bits of an operation's position in its batch: a record of 8 MiB holds fewer; 40 bits remain for the offset."""

COUNTER_BYTES = 8
BLOCK_ROW = "BlockRow"
_ID_BYTES = _LENGTH_BYTES = 8
_UNSIGNED = 1 << 64


class OracleError(ValueError):
    """The log holds a merge that cannot be computed."""


def operations(records: DataFrame, effective: DataFrame, until: Mapping[int, int]) -> DataFrame:
    """Return effective operations up to and including each shard's offset in ``until``, and the retry rows of results.

    Columns: shard, moment (orders all operations of a shard), kind (PUT, DELETE, MERGE), cf, key, hash (of a Put's
    row), amount (of a Merge's operand or of a Put's value, if they have a counter's 8 bytes: unsigned, as a decimal),
    operator, claimed (a Merge's ``next``), and content (the value or operand of a row of blockTable). Other values are
    dropped here: sorting them would cost far more.
    """
    session = records.sparkSession
    bounds = session.createDataFrame(list(until.items()), "shard int, until long")
    wanted = (
        effective.where(F.col("kind") == BATCH)
        .join(F.broadcast(bounds), "shard")
        .where(F.col("offset") <= F.col("until"))
        .select("shard", "offset")
    )
    batches = decoded(records.join(F.broadcast(wanted), ["shard", "offset"]), [BATCH])
    batch = F.col(column_of(BATCH))
    written = F.transform(batch["operations"], _operation)
    recorded = F.transform(F.filter(batch["results"], lambda result: result["recorded"]), _retry_row)
    exploded = batches.select("shard", "offset", F.posexplode(F.concat(written, recorded)).alias("ordinal", "op"))
    # Plain integers throughout, so that Spark aggregates by hash and does not sort.
    moment = F.shiftleft("offset", ORDINAL_BITS).bitwiseOR(F.col("ordinal").cast("long")).alias("moment")
    return exploded.select("shard", moment, "op.*").where(F.col("cf").isNotNull())


def _operation(op: Column) -> Column:
    put, delete, merge = op["member_put"], op["member_delete"], op["member_merge"]
    kind = F.when(put.isNotNull(), PUT).when(delete.isNotNull(), DELETE).when(merge.isNotNull(), MERGE)
    return F.struct(
        kind.alias("kind"),
        operation_family(op).alias("cf"),
        operation_key(op).alias("key"),
        F.when(put.isNotNull(), F.xxhash64(put["cf"], put["key"], put["value"])).alias("hash"),
        _counter(F.coalesce(put["value"], merge["operand"])).alias("amount"),
        merge["operator"].alias("operator"),
        merge["next"].alias("claimed"),
        F.when(operation_family(op) == BLOCK_TABLE, F.coalesce(put["value"], merge["operand"])).alias("content"),
    )


def _counter(value: Column) -> Column:
    """Read 8 bytes as an unsigned number; null for any other length."""
    number = F.conv(F.hex(value), 16, 10).cast("decimal(20,0)")
    return F.when(F.length(value) == COUNTER_BYTES, number)


def _retry_row(result: Column) -> Column:
    return F.struct(
        F.lit(PUT).alias("kind"),
        F.lit(RETRY_TABLE).alias("cf"),
        retry_key(result).alias("key"),
        F.xxhash64(F.lit(RETRY_TABLE), retry_key(result), retry_value(result)).alias("hash"),
        F.lit(None).cast("decimal(20,0)").alias("amount"),
        F.lit(None).cast("string").alias("operator"),
        F.lit(None).cast("long").alias("claimed"),
        F.lit(None).cast("binary").alias("content"),
    )


def live_rows(ops: DataFrame, families: Sequence[str]) -> DataFrame:
    """Return the rows that :func:`operations` leave.

    Columns: shard, cf, key, hash. A row whose last operation is a Merge also has value (the counter's bytes) and
    claimed (the Merge's ``next``). Every row of blockTable has its value. For each key the function finds the last Put
    or Delete. It adds the operands of later Merges mod 2^64, or in blockTable takes the largest: Spark compares bytes
    unsigned and a prefix is smaller than the whole, as in ``max_bytes``.
    """
    per_key = ["shard", "cf", "key"]
    setting = F.max(F.when(F.col("kind") != MERGE, F.col("moment"))).over(Window.partitionBy(*per_key))
    since = ops.withColumn("_set", setting).where(F.col("_set").isNull() | (F.col("moment") >= F.col("_set")))
    has_blocks = BLOCK_TABLE in families
    is_block = F.col("cf") == BLOCK_TABLE if has_blocks else F.lit(False)
    operator = F.when(is_block, MAX_BYTES).otherwise(ADD_INT64)
    # The maximum of a column of bytes makes Spark sort instead of hash: left out for a log without such rows.
    largest = [F.max("content").alias("largest")] if has_blocks else []
    # Sums of 20-digit numbers have 30 digits: they overflow only after 10^10 merges of one key.
    summed = since.groupBy(*per_key).agg(
        F.coalesce(F.sum("amount"), F.lit(0)).cast("decimal(38,0)").alias("total"),
        *(F.max_by(name, "moment").alias(name) for name in ("kind", "hash", "claimed")),
        F.bool_and((F.col("kind") != MERGE) | (F.col("operator") == operator)).alias("known"),
        F.bool_and((F.col("kind") == DELETE) | F.col("amount").isNotNull() | is_block).alias("sized"),
        *largest,
    )
    wrapped = F.col("total") % F.lit(str(_UNSIGNED)).cast("decimal(38,0)")
    counter = F.unhex(F.lpad(F.conv(wrapped.cast("string"), 10, 16), 2 * COUNTER_BYTES, "0"))
    complaint = F.concat(F.lit("cannot compute the merges of "), "cf", F.lit(" "), F.hex("key"))
    row = F.when(is_block, F.col("largest")).otherwise(counter) if has_blocks else counter
    computed = F.when(F.col("known") & F.col("sized"), row).otherwise(F.raise_error(complaint))
    needed = (F.col("kind") == MERGE) | is_block
    live = summed.where(F.col("kind") != DELETE).select(
        *per_key, "hash", "claimed", F.when(needed, computed).alias("value")
    )
    own = F.coalesce("hash", F.xxhash64("cf", "key", "value"))
    return live.select(*per_key, own.alias("hash"), "value", "claimed")


def row_digests(rows: DataFrame, families: Sequence[str]) -> DataFrame:
    """Add up the hashes of :func:`live_rows`: (shard, slot, low, high, rows, false).

    The sum is ``low + high * 2^32`` mod 2^64. High and low 32 bits are added apart, because a plain sum of 64-bit
    hashes overflows. ``false`` are the rows whose last Merge claims another hash.
    """
    slot = slot_of(F.col("cf"), F.col("key"), F.array(*map(F.lit, families)))
    hashed = rows.select("*", slot.alias("slot"), F.col("hash").alias("own"))
    false = F.when(F.col("claimed") != F.col("own"), F.struct("cf", "key", "value", "claimed", "own"))
    return hashed.groupBy("shard", "slot").agg(
        F.sum(F.col("own").bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
        F.sum(F.shiftrightunsigned("own", 32)).alias("high"),
        F.count("*").alias("rows"),
        # collect_list omits nulls.
        F.slice(F.collect_list(false), 1, MAX_COUNTER_DIFFERENCES).alias("false"),
    )


def check(
    records: DataFrame, families: Sequence[str], effective: DataFrame, until: Mapping[int, LogPoint]
) -> tuple[dict[int, ShardDigest], list[CounterDifference]]:
    """Return each shard's digest after ``until``, and the counters that the log claims falsely there.

    Do not call it for a shard with a RequestBatch before that offset (``counting.first_logged_requests``).

    ``until`` gives for each shard the point of an effective record (see ``counting.ends``). Names at most
    MAX_COUNTER_DIFFERENCES counters for each shard, by column family and key. Raises OracleError for a row in an
    unknown column family, and Spark's own error for a merge that cannot be computed.
    """
    if not until:
        return {}, []
    ops = operations(records, effective, {shard: point.offset for shard, point in until.items()})
    summed = row_digests(live_rows(ops, families), families).collect()
    false: list[CounterDifference] = []
    for shard in sorted(until):
        rows = [row for slot in summed if slot.shard == shard for row in slot.false]
        rows.sort(key=lambda row: (row.cf, row.key))
        false += [_difference(shard, row) for row in rows[:MAX_COUNTER_DIFFERENCES]]
    return _digests(summed, families, until), false


def _digests(summed: Sequence[Row], families: Sequence[str], until: Mapping[int, LogPoint]) -> dict[int, ShardDigest]:
    sums = {shard: digests.zeros(len(families)) for shard in until}
    counts = dict.fromkeys(until, 0)
    for row in summed:
        if row.slot < 0:
            raise OracleError(f"shard {row.shard} has rows in a column family that is not among {list(families)}")
        sums[row.shard][row.slot] = (row.low + (row.high << 32)) % _UNSIGNED
        counts[row.shard] += row.rows
    return {
        shard: ShardDigest(shard=shard, index=point.index, offset=point.offset, sums=sums[shard], rows=counts[shard])
        for shard, point in until.items()
    }


def _difference(shard: int, row: Row) -> CounterDifference:
    return CounterDifference(
        shard=shard,
        cf=row.cf,
        key=bytes(row.key),
        value=int.from_bytes(row.value[:COUNTER_BYTES], "big", signed=row.cf != BLOCK_TABLE),
        claimed=row.claimed,
        own=row.own,
    )


def container_digests(
    records: DataFrame, families: Sequence[str], effective: DataFrame, until: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """Return shard -> container id -> digest (signed) that the members' stored bytes must have after offset ``until``.

    The digest is a chain of XXH64 over key, length and checksums (``schemas/codecs/block_rows.py``). Spark's
    ``xxhash64`` of an array computes it: each element's hash is the seed of the next, from 42 on. Containers without
    blocks are left out. Raises OracleError for a row that cannot be decoded.
    """
    if not until or BLOCK_TABLE not in families:
        return {}
    rows = live_rows(operations(records, effective, until), families).where(F.col("cf") == BLOCK_TABLE)
    split = rows.select(
        "shard",
        "key",
        F.col("value").substr(F.lit(1), F.lit(_LENGTH_BYTES)).alias("length"),
        F.col("value").substr(F.lit(_LENGTH_BYTES + 1), F.length("value")).alias("value"),
    )
    row = F.col(column_of(BLOCK_ROW))
    container = F.conv(F.hex(F.substring("key", 1, _ID_BYTES)), 16, 10).cast("long").alias("container")
    block = F.struct("key", "length", row["checksums"].alias("checksums"))
    found = decoded(split, [BLOCK_ROW]).select(
        "shard", "key", "error", container, row["deleted"].alias("deleted"), block.alias("b")
    )
    blocks = F.sort_array(F.collect_list(F.when(~F.col("deleted"), F.col("b"))))
    links = F.flatten(F.transform(blocks, lambda b: F.array(b["key"], b["length"], b["checksums"])))
    wrong = F.when(F.col("error").isNotNull(), F.concat(F.hex("key"), F.lit(": "), F.col("error")))
    summed = found.groupBy("shard", "container").agg(
        F.xxhash64(links).alias("digest"), F.count_if(~F.col("deleted")).alias("blocks"), F.max(wrong).alias("wrong")
    )
    digests_of: dict[int, dict[int, int]] = {shard: {} for shard in until}
    for one in summed.collect():
        if one.wrong is not None:
            raise OracleError(f"shard {one.shard} has a row of {BLOCK_TABLE} that cannot be read: {one.wrong}")
        if one.blocks:
            digests_of[one.shard][one.container] = one.digest
    return digests_of
