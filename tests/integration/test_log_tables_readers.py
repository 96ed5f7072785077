"""Readers of the log and of its tables that are not ours, or are examples: each as docs/log-as-data.md has it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from producers import Client
from schemas.codecs.codec import decode
from schemas.records.log import Batch
from schemas.records.messages import KeySession
from schemas.topics import OM_LOG
from stratolog.local.jars import spark_jars
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
STACK = {"nodes": 1, "shards": 2, "barrier_interval_ms": 200}
PLACE = ("read", "bucket")
KEYS = 40
RUN_S = 500.0

Json = dict[str, Any]


def run(*words: object, given: bytes | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], input=given, capture_output=True, timeout=RUN_S, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def write_key(client: Client, key: str, size: int) -> None:
    session = client.create_key(*PLACE, key, size=size)
    assert isinstance(session, KeySession)
    client.commit_key(*PLACE, key, session.session_id, size=size, blocks=[])


def keep(stack: TestStack, tables: Path) -> None:
    run("-m", "stratolog", "--config", stack.settings_file, "tables", "--once", "--json", "--dir", tables)


def listed(client: Client) -> dict[str, int]:
    return {info.key: info.size for info in client.list_keys(*PLACE)}


@pytest.fixture(scope="module")
def tables(stack: TestStack, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    client.create_volume(PLACE[0])
    client.create_bucket(*PLACE)
    for n in range(KEYS):
        write_key(client, f'key {n}, "quoted"', n * 100)
    folder = tmp_path_factory.mktemp("read") / "tables"
    keep(stack, folder)
    return folder


def replayed(lines: list[Json], keys: dict[str, int]) -> dict[str, int]:
    """What a follower of the changes has; a rename's deletion and its insertion are of different keys."""
    found = dict(keys)
    for line in lines:
        if line["change"] == "delete":
            del found[line["key"]]
        elif line["change"] != "update_preimage":
            found[line["key"]] = line["size"]
    return found


def test_changes_are_captured_once(stack: TestStack, client: Client, tables: Path, tmp_path: Path):
    def captured() -> list[Json]:
        out = run("examples/tables/change_data_capture.py", tables, tmp_path / "state")
        return [json.loads(line) for line in out.splitlines()]

    first = captured()
    held = replayed(first, {})
    assert held == listed(client)
    assert len(first) == KEYS
    names = sorted(held)
    client.delete_key(*PLACE, names[0])
    client.rename_key(*PLACE, names[1], "renamed")
    write_key(client, names[2], 7)
    keep(stack, tables)
    more = captured()
    assert Counter(line["change"] for line in more) == {
        "delete": 2, "insert": 1, "update_preimage": 1, "update_postimage": 1
    }  # fmt: skip
    assert replayed(more, held) == listed(client)
    renamed = {line["object_id"] for line in more if line["key"] in ("renamed", names[1])}
    assert len(renamed) == 1


def test_the_inventory_is_the_listing_with_its_digests(client: Client, tables: Path, tmp_path: Path):
    del client
    folder = tmp_path / "inventory"
    run("examples/tables/inventory.py", tables, folder, *PLACE)
    told = json.loads((folder / "manifest.json").read_text())
    rows: dict[str, int] = {}
    for file in told["files"]:
        content = (folder / file["key"]).read_bytes()
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == file["MD5checksum"]
        assert len(content) == file["size"]
        for row in csv.DictReader(gzip.decompress(content).decode().splitlines(), told["fileSchema"].split(", ")):
            rows[row["Key"]] = int(row["Size"])
            assert (row["Bucket"], row["LastModifiedDate"][-1]) == ("/".join(PLACE), "Z")
    keys = run("-m", "stratolog", "sql", "SELECT key, size FROM keys_current", "--json", "--dir", tables,
               "--at", told["stratologIndex"])  # fmt: skip
    assert rows == {row["key"]: row["size"] for row in map(json.loads, keys.splitlines())}
    assert len(rows) > KEYS // 2


def log_values(stack: TestStack) -> list[bytes]:
    """All records of the log, by Kafka's client alone."""
    consumer = Consumer(
        {"bootstrap.servers": stack.settings.bootstrap_servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    try:
        partitions = [TopicPartition(OM_LOG, shard, 0) for shard in range(2)]
        ends = {one.partition: consumer.get_watermark_offsets(one, timeout=30)[1] for one in partitions}
        consumer.assign(partitions)
        found: list[bytes] = []
        while len(found) < sum(ends.values()):
            found += [
                message.value() or b""
                for message in consumer.consume(500, timeout=5)
                if (message.offset() or 0) < ends[message.partition() or 0]
            ]
        return found
    finally:
        consumer.close()


def test_spark_alone_counts_the_operations(stack: TestStack, tables: Path):
    del tables
    jars = spark_jars()[0].parent
    out = run("examples/foreign/spark_reader.py", stack.settings.bootstrap_servers, "schemas/avsc/log", jars)
    told: Counter[str] = Counter()
    for line in out.splitlines():
        _, kind, count = line.split()
        told[kind] += int(count)
    operations = [op for value in log_values(stack) for record in [decode(value)] if isinstance(record, Batch)
                  for op in record.operations]  # fmt: skip
    assert told == Counter(type(op).__name__.lower() for op in operations)
    assert told["put"] > 2 * KEYS


def test_kcat_and_fastavro_read_the_log(stack: TestStack, tables: Path):
    del tables
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    read = subprocess.run(
        [kcat, "-C", "-b", stack.settings.bootstrap_servers, "-t", OM_LOG, "-e", "-q", "-f", "%R%s"],
        capture_output=True, timeout=RUN_S, check=True,
    )  # fmt: skip
    out = run("examples/foreign/with_fastavro.py", "schemas/avsc/log", given=read.stdout)
    records = [json.loads(line) for line in out.splitlines()]
    kinds = Counter(record["type"] for record in records)
    assert kinds["LeaderClaim"] >= 2
    assert kinds["Genesis"] == 2
    values = [decode(value) for value in log_values(stack)]
    results = sum(len(value.results) for value in values if isinstance(value, Batch))
    assert sum(len(record["results"]) for record in records if record["type"] == "Batch") == results
