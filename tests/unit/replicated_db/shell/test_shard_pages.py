"""The pages about a replica, by which tools compare replicas with each other."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.web import shard_pages
from replicated_db.shell.web.shard_pages import BadQuery, ShardPages, number, replica_of
from tests.support.replicated.kit import FAMILIES, Node, Shard, hash_of, put

ROWS = {b"key-%d" % number: b"value" for number in range(80)}  # many enough for buckets with three of them


@pytest.fixture(scope="module")
def node() -> Node:
    """A replica with rows."""
    shard = Shard()
    shard.do(*(put(key, value) for key, value in ROWS.items()))
    shard.catch_up()
    return shard.nodes["n1"]


def page(name: str, node: Node, **query: str) -> Any:
    with closing(ShardPages()) as pages:
        return asyncio.run(getattr(pages, name)(node.replica, query))


def test_the_digest_of_a_replica(node: Node):
    found = page("digest", node)
    position = node.replica.position
    assert (found["offset"], found["index"], found["chain"]) == (
        position.offset, position.index, position.chain.hex(),
    )  # fmt: skip
    assert found["scrubbed"] is False
    assert found["incremental"] == {name: found[name] for name in ("digest", "slots", "sums")}
    assert len(found["digest"]) == 16
    assert len(found["slots"]) == len(found["sums"]) > 10


def test_a_scan_gives_the_same_digest_as_was_kept(node: Node):
    scanned, kept = page("digest", node, scrub="true"), page("digest", node, scrub="false")
    assert (scanned["scrubbed"], kept["scrubbed"]) == (True, False)
    assert scanned["digest"] == kept["digest"] == scanned["incremental"]["digest"]


def test_a_scan_finds_a_row_that_was_damaged(node: Node):
    key = b"key-7"
    node.store.write([("things", key, b"damaged")])
    try:
        found = page("digest", node, scrub="true")
        assert found["digest"] != found["incremental"]["digest"]
        assert found["incremental"]["digest"] == page("digest", node)["digest"]
    finally:
        node.store.write([("things", key, ROWS[key])])


def test_the_rows_of_all_buckets_are_the_rows_of_the_family(node: Node):
    found: dict[bytes, int] = {}
    for bucket in range(256):
        answer = page("rows", node, cf="things", bucket=str(bucket))
        assert (answer["offset"], answer["index"]) == (node.replica.position.offset, node.replica.position.index)
        assert answer["truncated"] is False
        found |= {bytes.fromhex(row["key"]): row["hash"] for row in answer["rows"]}
    assert found == {key: hash_of("things", key, value) for key, value in ROWS.items()}


def test_rows_of_a_bucket_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch):
    sizes = [len(page("rows", node, cf="things", bucket=str(bucket))["rows"]) for bucket in range(256)]
    bucket, most = str(sizes.index(max(sizes))), max(sizes)
    assert most > 2
    monkeypatch.setattr(shard_pages, "MAX_ROWS", most)
    assert page("rows", node, cf="things", bucket=bucket)["truncated"] is False
    monkeypatch.setattr(shard_pages, "MAX_ROWS", most - 1)
    found = page("rows", node, cf="things", bucket=bucket)
    assert (len(found["rows"]), found["truncated"]) == (most - 1, True)


def test_a_row_is_there_or_not(node: Node):
    found = page("row", node, cf="things", key=b"key-3".hex())
    assert (found["value"], found["offset"]) == (b"value".hex(), node.replica.position.offset)
    assert page("row", node, cf="things", key=b"nokey".hex())["value"] is None
    assert page("row", node, cf="things")["value"] is None


def test_rows_are_counted_up_to_a_limit(node: Node):
    found = page("count", node, cf="things")
    assert (found["rows"], found["more"], found["index"]) == (len(ROWS), False, node.replica.position.index)
    for limit, rows, more in [(len(ROWS) - 1, len(ROWS) - 1, True), (len(ROWS), len(ROWS), False), (1, 1, True)]:
        found = page("count", node, cf="things", limit=str(limit))
        assert (found["rows"], found["more"]) == (rows, more)


def test_what_is_asked_wrongly_is_named(node: Node):
    for name, query, wrong in [
        ("rows", {"cf": "nothings"}, f"cf 'nothings' is not one of {', '.join(FAMILIES.names)}"),
        ("rows", {}, "cf '' is not one of"),
        ("rows", {"cf": "things", "bucket": "256"}, "bucket '256' is not a number in 0..255"),
        ("count", {"cf": "nothings"}, "cf 'nothings' is not one of"),
        ("count", {"cf": "things", "limit": "0"}, f"limit '0' is not a number in 1..{shard_pages.MAX_ROWS}"),
        ("row", {"cf": "things", "key": "xy"}, "key 'xy' is not hexadecimal"),
        ("row", {"key": "00"}, "cf '' is not one of"),
    ]:
        with pytest.raises(BadQuery, match="^" + wrong.replace(".", r"\.")):
            page(name, node, **query)


@pytest.mark.parametrize(("text", "found"), [("0", 0), ("255", 255), (None, 7)])
def test_a_number_in_its_bounds(text: str | None, found: int):
    assert number({} if text is None else {"n": text}, "n", 7, 0, 255) == found


@pytest.mark.parametrize("text", ["-1", "256", "1.0", "x", ""])
def test_a_number_out_of_its_bounds(text: str):
    with pytest.raises(BadQuery, match=r"is not a number in 0\.\.255"):
        number({"n": text}, "n", 7, 0, 255)


def test_a_shard_is_found_by_its_number():
    replica = Node(MemoryLog(ManualClock())).replica
    assert replica_of({3: replica}, "3") is replica
    for text in ("2", "x", "", "-3"):
        with pytest.raises(BadQuery, match=f"there is no shard {text!r} here; there is: 3"):
            replica_of({3: replica}, text)
    with pytest.raises(BadQuery, match="there is: none"):
        replica_of({}, "0")
