"""The log read by somebody who has Spark, its jars and the .avsc files, and nothing of Stratolog's.

python examples/foreign/spark_reader.py BROKERS SCHEMAS JARS

SCHEMAS is the folder ``schemas/avsc/log``, JARS a folder with spark-sql-kafka-0-10, spark-avro and what they need.
Prints the log's operations by minute and kind. A value is Avro in single-object encoding: the bytes C3 01, the
fingerprint of the schema (8 bytes), the record. Records that are void (written by a leader that led no longer) are
counted as well: the reading rule is in section 3 of docs/design.md, and the tables (``stratolog tables``) follow it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom
from pyspark.sql.avro.functions import from_avro

MARKER, HEADER_BYTES = b"\xc3\x01", 10
KINDS = ("put", "delete", "merge", "checkpoint")


def header_of(session: SparkSession, schema: str) -> bytes:
    """Return the bytes that begin every value of a schema: Avro's own library, which Spark has, computes them."""
    jvm: Any = session.sparkContext._jvm
    avro = jvm.org.apache.avro
    parsed = avro.Schema.Parser().parse(schema)
    fingerprint = avro.SchemaNormalization.parsingFingerprint64(parsed)
    return MARKER + int(fingerprint).to_bytes(8, "little", signed=True)


def main(brokers: str, schemas: str, jars: str) -> int:
    """Print the table."""
    paths = ",".join(str(path) for path in Path(jars).glob("*.jar"))
    session = SparkSession.builder.master("local[2]").config("spark.jars", paths).getOrCreate()
    newest = max(Path(schemas).glob("Batch.v*.avsc"), key=lambda path: int(path.stem.removeprefix("Batch.v")))
    schema = newest.read_text()
    log = session.read.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", "om.log").load()
    batches = log.where(F.substring("value", 1, HEADER_BYTES) == F.lit(header_of(session, schema)))
    body = F.col("value").substr(F.lit(HEADER_BYTES + 1), F.length("value"))
    options = {"enableStableIdentifiersForUnionType": "true"}
    operations = batches.select(F.explode(from_avro(body, schema, options)["operations"]).alias("op"), "timestamp")
    kind = F.coalesce(*(F.when(F.col(f"op.member_{name}").isNotNull(), F.lit(name)) for name in KINDS))
    counted = operations.groupBy(F.date_trunc("minute", "timestamp").alias("minute"), kind.alias("kind")).count()
    for row in counted.orderBy("minute", "kind").collect():
        print(row["minute"].isoformat(), row["kind"], row["count"])
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
