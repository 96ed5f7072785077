"""The pages about snapshot diffs, over a real database with real checkpoints."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from om_processors.execution.service import OM_FAMILIES
from om_processors.serving.snapshot_diff_api import OPEN_POSTS, _copy
from om_processors.snapdiff.diff_jobs import MAX_DIFF_JOBS
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.shell.rocks import RocksReader
from schemas.records.messages import RenameSnapshot
from tests.support.om.diff_node import ENTRIES, DiffNode
from transport.web.http_guard import HttpGuard


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[DiffNode]:
    pages = DiffNode(tmp_path)
    yield pages
    pages.close()


@pytest.fixture
def one(pages: DiffNode) -> Any:
    return pages.change()


@pytest.mark.usefixtures("one")
def test_a_snapshot_and_now(pages: DiffNode):
    status, begun = pages.begin(from_="one")
    assert (status, begun["node"], begun["from_snapshot"], begun["to_snapshot"]) == (200, "om1", "one", None)
    done = pages.ended((status, begun))
    assert (done["state"], done["entries"], done["truncated"]) == ("DONE", ENTRIES, False)
    assert done["found"] == {"DELETE": 1, "RENAME": 1, "CREATE": 1, "MODIFY": 1}
    assert done["steps"] == done["steps_done"]


@pytest.mark.usefixtures("one")
def test_now_while_others_write(pages: DiffNode):
    """A checkpoint of the present has all rows in table files, however busy the replica is."""
    done = threading.Event()
    replica = pages.node.replica

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            with replica.lock:
                pages.node.store.write([("openKeyTable", b"/vol1/bucket1/x/%d" % (number % 1000), b"value")])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            target = pages.folder / f"now-{number}"
            _copy(replica, pages.node.store, target)
            with closing(RocksReader(target, OM_FAMILIES.names)) as reader:
                assert [reader.rows_outside_files(family) for family in OM_FAMILIES.names] == [0] * len(
                    OM_FAMILIES.names
                )
    finally:
        done.set()
        writer.join()


@pytest.mark.usefixtures("one")
def test_two_snapshots_page_by_page(pages: DiffNode):
    pages.node.snapshot("two")
    pages.node.put("later")
    job = pages.ended(pages.begin(from_="one", to="two"))["job"]
    found, after = [], ""
    while True:
        _, page = pages.look(job, limit="1", start_after=after)
        found += page["entries"]
        if not page["truncated"]:
            break
        after = page["next_after"]
    assert found == ENTRIES


@pytest.mark.usefixtures("one")
def test_the_same_two_snapshots_are_one_job(pages: DiffNode):
    two = pages.node.snapshot("two")
    first = pages.begin(from_="one", to="two")[1]["job"]
    pages.node.do(RenameSnapshot(volume="vol1", bucket="bucket1", snapshot=two.snapshot, to="second"))
    assert pages.begin(from_="one", to="second")[1]["job"] == first
    assert pages.begin(from_="second", to="one")[1]["job"] != first


@pytest.mark.usefixtures("one")
def test_a_snapshot_that_was_deleted_is_named(pages: DiffNode):
    two = pages.node.snapshot("two")
    done = pages.ended(pages.begin(from_="one", to="two"))
    pages.node.delete(two)
    status, lost = pages.look(done["job"])
    assert (status, lost["state"], lost["entries"]) == (200, "FAILED", [])
    assert (lost["error"], lost["message"]) == (
        "FILE_NOT_FOUND", "snapshot two of bucket /vol1/bucket1 has been deleted",
    )  # fmt: skip
    assert pages.begin(from_="one", to="two")[0] == 404


def test_a_checkpoint_that_is_missing_is_no_answer(pages: DiffNode, one: Any):
    shutil.rmtree(pages.node.folder(one))
    status, body = pages.begin(from_="one")
    assert (status, body["error"]) == (503, "SNAPSHOT_UNREADABLE")  # another node may have it
    assert "snapshot one of bucket /vol1/bucket1 has no checkpoint on om1" in body["message"]


def test_a_checkpoint_that_lost_a_file_is_no_answer(pages: DiffNode, one: Any):
    for file in pages.node.folder(one).glob("*.sst"):
        file.unlink()
    found = pages.ended(pages.begin(from_="one"))
    assert (found["state"], found["error"]) == ("FAILED", "SNAPSHOT_UNREADABLE")
    assert pages.node.failures == []  # the node goes on


@pytest.mark.parametrize(
    ("query", "status", "code", "words"),
    [
        ({}, 400, "INVALID_SNAPSHOT_ERROR", "snapshot name"),
        ({"from_": "One"}, 400, "INVALID_SNAPSHOT_ERROR", "One"),
        ({"from_": "one", "to": ""}, 400, "INVALID_SNAPSHOT_ERROR", "snapshot name"),
        ({"from_": "one", "to": "../../x"}, 400, "INVALID_SNAPSHOT_ERROR", "snapshot name"),
        ({"from_": "absent"}, 404, "FILE_NOT_FOUND", "absent"),
        ({"from_": "one", "to": "absent"}, 404, "FILE_NOT_FOUND", "absent"),
        ({"from_": "one", "bucket": "nowhere"}, 404, "BUCKET_NOT_FOUND", "nowhere"),
        ({"from_": "one", "bucket": "x"}, 400, "INVALID_BUCKET_NAME", "x"),
        ({"from_": "one", "consistency": "later"}, 400, "INVALID_REQUEST", "later"),
        ({"from_": "one", "session": "x"}, 400, "INVALID_REQUEST", "x"),
    ],
)
@pytest.mark.usefixtures("one")
def test_what_cannot_be_compared(pages: DiffNode, query: dict[str, str], status: int, code: str, words: str):
    found, body = pages.begin(**query)
    assert (found, body["error"]) == (status, code)
    assert words in body["message"]


@pytest.mark.usefixtures("one")
def test_what_cannot_be_asked_of_a_job(pages: DiffNode):
    job = pages.ended(pages.begin(from_="one"))["job"]
    for query in (
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "x"},
        {"start_after": "x"},
        {"start_after": "00" * 9000},
    ):
        assert pages.look(job, **query)[0] == 400, query
    assert pages.look(job, start_after="ff")[1]["entries"] == []
    assert pages.look(job, start_after="30")[1]["entries"] == ENTRIES
    status, body = pages.cancel(job)
    assert (status, body["error"]) == (400, "INVALID_REQUEST")
    assert "DONE takes no on_cancel" in body["message"]
    for answer in (pages.look("f" * 32), pages.cancel("f" * 32), pages.look("../x")):
        assert (answer[0], answer[1]["error"]) == (404, "SNAPSHOT_DIFF_NOT_FOUND")


@pytest.mark.usefixtures("one")
def test_more_jobs_than_a_node_keeps(pages: DiffNode):
    for _ in range(MAX_DIFF_JOBS):
        pages.ended(pages.begin(from_="one"))
    status, body = pages.begin(from_="one")
    assert (status, body["error"]) == (503, "OVERLOADED")


@pytest.mark.usefixtures("one")
def test_a_node_in_memory_says_that_it_keeps_no_checkpoints(pages: DiffNode):
    memory = MemoryStore(OM_FAMILIES.names)
    real, pages.node.replica.store = pages.node.replica.store, memory
    for family in OM_FAMILIES.names:
        memory.write([(family, key, value) for key, value in real.iterate(family, b"")])
    status, body = pages.begin(from_="one")
    pages.node.replica.store = real
    assert (status, body["error"]) == (503, "SNAPSHOT_UNREADABLE")


@pytest.mark.parametrize(
    ("target", "is_open"),
    [
        ("/v1/volumes/v/buckets/b/snapshot-diffs?from=a&to=b", True),
        ("/v1/volumes/v/buckets/b/snapshot-diffs", True),
        ("/v1/snapshot-diffs/0123456789abcdef0123456789abcdef/cancel", True),
        ("/v1/snapshot-diffs/../shards/0/transfer", False),
        ("/v1/snapshot-diffs/0123456789abcdef0123456789abcdef/cancel?x", False),
        ("/v1/shards/0/transfer?node=x&y=/v1/volumes/v/buckets/b/snapshot-diffs", False),
        ("/v1/shards/0/transfer#/v1/volumes/v/buckets/b/snapshot-diffs", False),
        ("/v1/volumes/v/buckets/b/keys", False),
        ("/v1/volumes/v/buckets/b/snapshot-diffs/x", False),
    ],
)
def test_only_diffs_need_no_secret(target: str, is_open: bool):
    guard = HttpGuard(None, [], OPEN_POSTS)
    assert (guard.refusal("POST", target, {"Host": "127.0.0.1:1"}) is None) == is_open
    assert guard.refusal("POST", target, {"Host": "127.0.0.1:1", "Origin": "http://elsewhere"}) is not None
    assert guard.refusal("DELETE", target, {"Host": "127.0.0.1:1"}) is not None
