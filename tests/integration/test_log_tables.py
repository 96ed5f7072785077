"""The log as tables on a real stack: equal to the Object Manager's own listings, through kills, and read by strangers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

from producers import Client, RequestFailed
from schemas.records import messages as m
from schemas.records.messages import KeySession, Response
from stratolog.local.processes import wait_until
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
STACK = {"nodes": 2, "shards": 2, "barrier_interval_ms": 200}
KEYS = 1_200
"""In each of BUCKETS at first."""
BUCKETS = (("tab1", "one"), ("tab1", "two"), ("tab2", "three"))
SIZES = (0, 1, 1023, 1024, 70_000, 1 << 20)
WAIT_S = 600.0
FIRST_LINE_S = 300.0

Json = dict[str, Any]
Listing = dict[tuple[str, str, str], Json]


class Tables:
    """The commands about tables, as a person runs them."""

    def __init__(self, stack: TestStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.log = folder.with_suffix(".log")

    def command(self, *words: str) -> list[str]:
        program = [sys.executable, "-m", "stratolog", "--config", str(self.stack.settings_file)]
        return [*program, *words, "--dir", str(self.folder)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment()
        )

    def once(self) -> Json:
        done = self.run("tables", "--once", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def sql(self, query: str, *words: str) -> list[Json]:
        done = self.run("sql", query, "--json", *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def kept(self) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                self.command("tables", "--json"), stdout=log, stderr=subprocess.STDOUT, text=True, env=environment()
            )

    def said(self) -> list[Json]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith('{"indexes"')]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def answered(futures: list[Future[Response]]) -> list[Response]:
    """Wait for answers that must all be OK."""
    return [one.result(timeout=WAIT_S) for one in futures]


def is_ok(future: Future[Response]) -> bool:
    try:
        return future.result(timeout=WAIT_S).status == "OK"
    except RequestFailed:
        return False


def write_keys(client: Client, names: list[tuple[str, str, str]], random: Random) -> Counter[str]:
    """Create and commit keys, many at a time; return how often each kind of request was answered OK."""
    sizes = [random.choice(SIZES) for _ in names]
    opened = answered(
        [
            client.submit(m.CreateKey(volume=volume, bucket=bucket, key=key, size=size, metadata={"n": key}))
            for (volume, bucket, key), size in zip(names, sizes, strict=True)
        ]
    )
    commits: list[Future[Response]] = []
    for (volume, bucket, key), size, one in zip(names, sizes, opened, strict=True):
        assert isinstance(one.result, KeySession), one
        commits.append(
            client.submit(
                m.CommitKey(volume=volume, bucket=bucket, key=key, session_id=one.result.session_id, size=size)
            )
        )
    answered(commits)
    return Counter({"CreateKey": len(names), "CommitKey": len(names)})


def change_keys(client: Client, random: Random) -> Counter[str]:
    """Delete, rename and overwrite; some are refused."""
    done: Counter[str] = Counter()
    bodies: list[m.RequestBody] = []
    for volume, bucket in BUCKETS:
        numbers = random.sample(range(KEYS), 300)
        bodies += [m.DeleteKey(volume=volume, bucket=bucket, key=f"key-{n:05}") for n in numbers[:100]]
        bodies += [
            m.RenameKey(volume=volume, bucket=bucket, from_key=f"key-{n:05}", to_key=f"moved/{n}")
            for n in numbers[90:200]
        ]
    for body, future in [(body, client.submit(body)) for body in bodies]:
        done[type(body).__name__ + ("" if is_ok(future) else " refused")] += 1
    overwritten = [
        (volume, bucket, f"key-{n:05}") for volume, bucket in BUCKETS for n in random.sample(range(KEYS), 100)
    ]
    return done + write_keys(client, overwritten, random)


def listing(client: Client) -> Listing:
    """What the Object Manager lists, in the columns of keys_current."""
    return {
        (volume, bucket, info.key): {
            "size": info.size, "object_id": info.object_id, "index": info.update_id, "owner": info.owner,
            "replication": info.replication, "metadata": info.metadata, "modified": info.modification_time_ms,
        }
        for volume, bucket in BUCKETS
        for info in client.list_keys(volume, bucket)
    }  # fmt: skip


def keys_of(tables: Tables, *words: str) -> Listing:
    query = "SELECT *, unix_millis(modification_time) AS modified FROM keys_current"
    found = tables.sql(query, *words)
    columns = ("size", "object_id", "index", "owner", "replication", "metadata", "modified")
    return {(row["volume"], row["bucket"], row["key"]): {name: row[name] for name in columns} for row in found}


@pytest.fixture(scope="module")
def tables(stack: TestStack, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(stack, tmp_path_factory.mktemp("kept") / "tables")


@pytest.fixture(scope="module")
def written(stack: TestStack, client: Client, tables: Tables) -> Json:
    """Thousands of keys, written and changed while the tables are kept, killed and kept again."""
    random = Random(17)
    done: Counter[str] = Counter()
    for volume in ("tab1", "tab2"):
        client.create_volume(volume)
    for volume, bucket in BUCKETS:
        client.create_bucket(volume, bucket)
    names = [(volume, bucket, f"key-{n:05}") for volume, bucket in BUCKETS for n in range(KEYS)]
    done += write_keys(client, names, random)
    first, before = tables.once(), listing(client)
    keeper = tables.kept()
    try:
        done += change_keys(client, random)
        client.create_snapshot("tab1", "one", "snap1")
        client.rename_snapshot("tab1", "one", "snap1", "snap2")
        assert wait_until(lambda: bool(tables.said()), FIRST_LINE_S, interval_s=0.2), tables.log.read_text()
        done += change_keys(client, random)
        keeper.send_signal(signal.SIGKILL)
        keeper.wait()
        client.create_bucket("tab1", "gone")
        client.delete_bucket("tab1", "gone")
        client.create_bucket("tab2", "empty")
        client.set_bucket_property("tab2", "empty", quota_in_namespace=5)
        done += change_keys(client, random)
        last = tables.once()
    finally:
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()
    return {"first": first, "before": before, "done": done, "last": last, "listing": listing(client)}


def test_the_keys_are_those_that_the_object_manager_lists(tables: Tables, written: Json):
    found = keys_of(tables)
    assert len(found) > 3 * KEYS - 1_000
    assert found == written["listing"]


def test_an_older_index_shows_what_was_listed_then(tables: Tables, written: Json):
    at = ",".join(f"{shard}:{index}" for shard, index in written["first"]["indexes"].items())
    assert keys_of(tables, "--at", at) == written["before"]


def test_every_request_is_there_once_and_none_that_is_not_effective(tables: Tables, written: Json):
    rows = tables.sql(
        "SELECT request_type, status, count(*) AS n, count(DISTINCT shard, index) AS different FROM effective_operations "
        "GROUP BY request_type, status"
    )
    assert [row for row in rows if row["n"] != row["different"] or row["request_type"] is None] == []
    told: Counter[str] = Counter()
    for row in rows:  # a kind is refused for several reasons
        told[row["request_type"] + ("" if row["status"] == "OK" else " refused")] += row["n"]
    done: Counter[str] = written["done"]
    assert {kind: told[kind] for kind in done} == dict(done)
    assert done["RenameKey"] > 100 < done["DeleteKey"]
    assert done["RenameKey refused"]
    assert told["CreateSnapshot"] == told["RenameSnapshot"] == told["DeleteBucket"] == 1


def test_usage_sizes_and_growth_are_the_listing_added_up(tables: Tables, client: Client, written: Json):
    query = (
        "SELECT 'usage' AS what, volume, bucket, 0L AS below, keys, bytes, quota_in_namespace AS quota "
        "FROM usage_by_bucket UNION ALL SELECT 'size', volume, bucket, below_bytes, keys, bytes, 0 FROM file_sizes "
        "UNION ALL SELECT 'growth', volume, bucket, 0L, sum(keys), sum(bytes), 0 FROM growth GROUP BY volume, bucket"
    )
    rows = tables.sql(query)
    usage = {(row["volume"], row["bucket"]): (row["keys"], row["bytes"]) for row in rows if row["what"] == "usage"}
    assert usage == {
        (volume, one.bucket): (one.usage["used_namespace"], one.usage["used_bytes"])
        for volume in ("tab1", "tab2")
        for one in client.list_buckets(volume)
    }
    assert [row["quota"] for row in rows if (row["what"], row["bucket"]) == ("usage", "empty")] == [5]
    bins: Counter[tuple[str, str, int]] = Counter()
    for (volume, bucket, _), row in written["listing"].items():
        bins[volume, bucket, max(1024, 1 << row["size"].bit_length())] += 1
    sizes = [row for row in rows if row["what"] == "size"]
    assert {(row["volume"], row["bucket"], row["below"]): row["keys"] for row in sizes} == dict(bins)
    assert sum(row["bytes"] for row in sizes) == sum(row["size"] for row in written["listing"].values())
    grown = {(row["volume"], row["bucket"]): (row["keys"], row["bytes"]) for row in rows if row["what"] == "growth"}
    assert grown == {place: usage[place] for place in grown}
    assert set(grown) == set(BUCKETS)


def test_a_second_keeper_is_refused_and_a_stop_ends_the_first(tables: Tables, written: Json):
    del written
    before = len(tables.said())
    keeper = tables.kept()
    try:
        tables.stack.client(caller="more").create_volume("more")
        assert wait_until(lambda: len(tables.said()) > before, FIRST_LINE_S, interval_s=0.2), tables.log.read_text()
        done = tables.run("tables", "--once")
        assert done.returncode == 1
        assert "another process keeps the tables" in done.stderr
        keeper.terminate()
        assert keeper.wait(WAIT_S) == 0, tables.log.read_text()
    finally:
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("DELETE FROM keys_current",), 1, "DeleteFromTable is no query"),
        (("SELECT nothing FROM keys_current",), 1, "nothing"),
        (("SELECT 1", "--at", "0:0,1:0"), 1, "no version is that old"),
    ],
)
def test_a_wrong_query_is_refused_in_a_sentence(
    tables: Tables, written: Json, words: tuple[str, ...], code: int, sentence: str
):
    del written
    done = tables.run("sql", *words)
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
