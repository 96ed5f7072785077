"""Tables of logs that were trimmed, broken or exchanged; columns that come later; small files joined. Real broker, real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from schemas.codecs.codec import encode
from schemas.column_families import KEY_TABLE
from schemas.records.rows import KeyInfo
from schemas.topics import OM_LOG
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import REPLICAS, LogBuilder

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
RUN_S = 500.0

PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
from spark_streaming.records.session import build_session
from spark_streaming.tables.core.shard_fold import FoldedPosition
from spark_streaming.tables.definitions import FILE_SIZES
from spark_streaming.tables.delta_tables import DeltaTables, metadata_of
from spark_streaming.tables.keeping import table_settings
from stratolog.local.jars import delta_jars, spark_jars

root = Path(sys.argv[1])
session = build_session(table_settings((*spark_jars(), *delta_jars()), root / "spark", master="local[1]"))
tables = DeltaTables(session, root)
older = dataclasses.replace(FILE_SIZES, columns=FILE_SIZES.columns[:-1])
tables.open(older)
metadata = metadata_of({0: FoldedPosition()})
for n in range(6):
    tables.append(older.name, session.createDataFrame([("v", "b", n, 1)], "volume string, bucket string, below_bytes long, keys long"), metadata)
before = tables.history(older.name).commits
files = len(tables.read(older.name).inputFiles())
tables.compact(older.name)
tables.open(FILE_SIZES)
frame = tables.read(FILE_SIZES.name)
print(json.dumps({
    "files": [files, len(frame.inputFiles())], "columns": frame.columns, "rows": frame.count(),
    "nulls": frame.where("bytes is null").count(), "commits": len(before),
    "held": tables.last_commit(FILE_SIZES.name).version == before[0].version,
    "older": tables.read(older.name, before[-1].version).count(),
    "readable": tables.history(FILE_SIZES.name).readable(before[0].as_version()) > before[0].version,
}))
"""


class TableLog:
    """A log of one shard on a broker, and the commands that keep and ask its tables."""

    def __init__(self, kafka: LocalKafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.log = LogBuilder().start()
        self.sent = 0
        self.make_topic()

    def make_topic(self) -> None:
        config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        for made in self.kafka.admin.create_topics([NewTopic(OM_LOG, 1, 1, config=config)]).values():
            made.result()

    def delete_topic(self) -> None:
        for gone in self.kafka.admin.delete_topics([OM_LOG]).values():
            gone.result()

    def key(self, name: str) -> None:
        log = self.log
        info = KeyInfo(
            volume="v", bucket="b", key=name, owner="ann", object_id=1, update_id=log.index + 1, size=5,
            replication="RATIS/ONE", blocks=[], metadata={}, creation_time_ms=1, modification_time_ms=1,
        )  # fmt: skip
        log.batch(log.put(KEY_TABLE, f"/v/b/{name}".encode(), encode(info)))

    def send(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        for value in self.log.values[self.sent :]:
            producer.produce(OM_LOG, value, partition=0)
        assert producer.flush(60) == 0
        self.sent = len(self.log.values)

    def trim(self, offset: int) -> None:
        for done in self.kafka.admin.delete_records([TopicPartition(OM_LOG, 0, offset)]).values():
            done.result()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stratolog", *words, "--dir", str(self.folder / "tables")],
            capture_output=True, text=True, timeout=RUN_S, check=False, cwd=self.folder,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "STRATOLOG_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
                "STRATOLOG_NODES": "om1=127.0.0.1:1",
            },
        )  # fmt: skip

    def keys(self) -> tuple[set[str], str]:
        done = self.run("sql", "SELECT key FROM keys_current", "--json")
        assert done.returncode == 0, done.stderr
        return {json.loads(line)["key"] for line in done.stdout.splitlines()}, done.stderr


@pytest.fixture
def table_log(lease_kafka: Callable[[], LocalKafka], tmp_path: Path) -> Any:
    found = TableLog(lease_kafka(), tmp_path)
    yield found
    found.delete_topic()


def test_a_trimmed_log_begins_at_its_base_and_tables_that_it_has_passed_are_set_aside(table_log: TableLog):
    table_log.key("one")
    table_log.send()
    assert table_log.run("tables", "--once").returncode == 0
    assert table_log.keys() == ({"one"}, "")
    table_log.key("two")
    base = table_log.log.digest_base()
    table_log.log.members(*REPLICAS)
    table_log.key("three")
    table_log.send()
    table_log.trim(base)
    done = table_log.run("tables", "--once")
    assert done.returncode == 0, done.stderr
    assert "the log was trimmed meanwhile. The tables are set aside in" in done.stderr
    assert (table_log.folder / "tables.before-trim" / "keys_current").is_dir()
    keys, said = table_log.keys()
    assert keys == {"three"}
    assert "incomplete: shard 0: rows that were not changed after index 2 are missing" in said
    table_log.key("four")
    table_log.send()
    assert table_log.run("tables", "--once").returncode == 0
    assert table_log.keys()[0] == {"three", "four"}


def test_a_broken_log_ends_the_keeper_behind_what_is_whole_and_another_log_is_refused(table_log: TableLog):
    table_log.key("one")
    table_log.log.append_value(b"no record of a log")
    table_log.send()
    for _ in range(2):
        done = table_log.run("tables", "--once")
        assert done.returncode == 1, done.stderr
        assert "shard 0, offset 3: 18 bytes" in done.stderr
        assert "Traceback" not in done.stderr
    assert table_log.keys()[0] == {"one"}
    table_log.delete_topic()
    table_log.make_topic()
    table_log.log, table_log.sent = LogBuilder().start(), 0
    table_log.send()
    done = table_log.run("tables", "--once")
    assert done.returncode == 1
    assert "they belong to another log" in done.stderr
    assert table_log.keys()[0] == {"one"}


def test_columns_that_come_later_are_added_and_small_files_are_joined(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=RUN_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "files": [6, 1], "columns": ["volume", "bucket", "below_bytes", "keys", "bytes"], "rows": 6, "nulls": 6,
        "commits": 6, "held": True, "older": 1, "readable": True,
    }  # fmt: skip


def test_a_crash_after_any_commit_leaves_every_row_once(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.audit.table_crashes", str(tmp_path)],
        capture_output=True, text=True, timeout=2 * RUN_S, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differing"] == {str(crash): [] for crash in range(1, 6)}
    assert min(found["rows"].values()) > 0, found
    assert found["rows"]["effective_operations"] > 100
