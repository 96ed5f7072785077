"""Reads over HTTP: rows, listings, consistency, fail-over, errors; against servers on the loopback."""

import json
import socket
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial

import pytest

from producers.errors import InvalidArgument, NotConnected, NotFound, RequestFailed, RetryableError
from producers.reads.node_addresses import address_of
from producers.reads.read_views import PAGE_ENTRIES
from producers.reads.read_words import missing
from producers.reads.reads import REQUEST_TIMEOUT_MS, Reads, _answer_s
from schemas.codecs.codec import encode
from schemas.door.frames import MAX_READ_KEYS
from schemas.records.door import DoorRows
from schemas.records.messages import CommitKey
from schemas.records.rows import BlockLocation
from tests.support.sdk.memory import MemoryCluster, bucket_row, key_row, volume_row
from tests.support.sdk.nodes import Node
from transport.waiting.deadline import Deadline

BLOCK = BlockLocation(container_id=1, local_id=2, offset=0, length=5, pipeline="p1")
ODD_KEY = "a b/ü?&=#%2F+/\x01日本.txt"


def add_key(cluster, key, volume="v1", bucket="b1"):
    commit = CommitKey(volume=volume, bucket=bucket, key=key, session_id=1, size=5, blocks=[BLOCK])
    cluster.put(key_row(commit, {"sha256": "00"}))


@pytest.fixture
def cluster():
    cluster = MemoryCluster()
    for volume in ("v1", "v2", "w1"):
        cluster.put(volume_row(volume))
        cluster.put(bucket_row(volume, "b1"))
    return cluster


@pytest.fixture
def nodes(cluster):
    nodes = [Node(cluster) for _ in range(3)]
    yield nodes
    for node in nodes:
        node.close()


@pytest.fixture
def reads(nodes):
    reads = Reads([node.address for node in nodes], deadline_ms=2_000, positions=lambda: {1: 33, 0: 12})
    yield reads
    reads.close()


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_volume_comes_with_usage_and_positions(reads):
    view = reads.volume_info("v1")
    assert view.info == volume_row("v1")
    assert view.usage == {"used_namespace": 3}
    assert view.positions == {0: 5, 1: 7}


def test_keys_are_counted_by_a_node_that_may_take_longer_than_for_a_read(nodes):
    count = {"update_id": 7, "kept_bytes": 5, "counted_bytes": 5, "kept_names": 3, "counted_names": 2}
    nodes[0].raw = json.dumps(count | {"positions": {"0": 5}}).encode()
    reads = Reads([nodes[0].address], deadline_ms=1)
    found = reads.usage("v1", "b1", timeout_ms=REQUEST_TIMEOUT_MS)
    reads.close()
    assert (asdict(found), found.is_right) == (count, False)
    assert replace(found, kept_names=2).is_right
    asked = {"volume": "v1", "bucket": "b1", "consistency": "linearizable"}
    assert nodes[0].queries == [("/v1/usage", asked)]
    assert _answer_s(Deadline.after_ms(60_000), 40_000) > REQUEST_TIMEOUT_MS / 1000


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_count_without_time_is_refused(reads, timeout_ms):
    with pytest.raises(InvalidArgument):
        reads.usage("v1", timeout_ms=timeout_ms)


def test_a_bucket_is_read(reads):
    assert reads.bucket_info("v1", "b1").info == bucket_row("v1", "b1")


def test_a_key_of_any_name_is_read_with_its_blocks(reads, cluster):
    add_key(cluster, ODD_KEY)
    info = reads.key_info("v1", "b1", ODD_KEY).info
    assert info == cluster.keys["v1", "b1", ODD_KEY]
    assert info.blocks == [BLOCK]


def test_volumes_are_listed_by_prefix_and_after(reads):
    assert [info.volume for info in reads.list_volumes()] == ["v1", "v2", "w1"]
    assert [info.volume for info in reads.list_volumes(prefix="v")] == ["v1", "v2"]
    assert [info.volume for info in reads.list_volumes(start_after="v1")] == ["v2", "w1"]


def test_buckets_are_listed(reads):
    assert [info.bucket for info in reads.list_buckets("v1")] == ["b1"]


def test_a_listing_pages_until_its_end(reads, cluster, nodes):
    names = [f"k{number:05d}" for number in range(2 * PAGE_ENTRIES + 1)]
    for name in names:
        add_key(cluster, name)
    assert [info.key for info in reads.list_keys("v1", "b1")] == names
    assert len(nodes[0].queries) == 3


def test_an_empty_listing_ends(reads):
    assert list(reads.list_keys("v1", "b1")) == []


def test_a_page_is_read_only_when_it_is_needed(reads, cluster, nodes):
    for number in range(PAGE_ENTRIES + 1):
        add_key(cluster, f"k{number:05d}")
    next(reads.list_keys("v1", "b1"))
    assert len(nodes[0].queries) == 1


@pytest.mark.parametrize("consistency", ["linearizable", "stale"])
def test_consistency_is_passed_on(reads, nodes, consistency):
    reads.volume_info("v1", consistency=consistency)
    assert nodes[0].queries == [("/v1/volumes/v1", {"consistency": consistency})]


def test_a_session_read_carries_the_positions_of_my_own_writes(reads, nodes):
    reads.volume_info("v1", consistency="session")
    assert nodes[0].queries[0][1] == {"consistency": "session", "session": "0:12,1:33"}


def test_a_session_without_writes_carries_none(nodes):
    Reads([nodes[0].address], deadline_ms=1000).volume_info("v1", consistency="session")
    assert nodes[0].queries[0][1] == {"consistency": "session"}


def test_what_is_not_there_is_an_error_with_its_code_and_is_asked_once(reads, nodes):
    with pytest.raises(NotFound) as caught:
        reads.key_info("v1", "b1", "nothing")
    assert str(caught.value) == "KEY_NOT_FOUND: key 'nothing' in bucket /v1/b1 does not exist"
    assert [len(node.queries) for node in nodes] == [1, 0, 0]


@pytest.mark.parametrize("code", ["NO_LEADER", "NOT_CAUGHT_UP", "REPLICA_FLAGGED"])
def test_a_node_that_cannot_answer_is_followed_by_the_next_which_is_kept(reads, nodes, code):
    nodes[0].error = (503, code)
    assert reads.volume_info("v1").info.volume == "v1"
    assert reads.volume_info("v2").info.volume == "v2"
    assert [len(node.queries) for node in nodes] == [1, 2, 0]


def test_a_node_that_is_down_is_followed_by_the_next(nodes):
    reads = Reads([closed_port(), nodes[1].address], deadline_ms=5_000)
    assert reads.volume_info("v1").info.volume == "v1"


@pytest.mark.timeout(10)
def test_the_last_reason_is_told_at_the_deadline(nodes):
    for node in nodes:
        node.error = (503, "NO_LEADER")
    reads = Reads([node.address for node in nodes], deadline_ms=120)
    with pytest.raises(RetryableError, match="NO_LEADER it is") as caught:
        reads.volume_info("v1")
    assert caught.value.status == "NO_LEADER"
    assert all(node.queries for node in nodes)


@pytest.mark.timeout(10)
def test_no_node_up_is_told_with_an_address():
    address = closed_port()
    with pytest.raises(NotConnected, match=address):
        Reads([address], deadline_ms=60).volume_info("v1")


def test_no_node_given_is_told():
    with pytest.raises(NotConnected, match="read_from"):
        Reads([]).volume_info("v1")


@pytest.mark.parametrize("raw", [b"<html>", b"[]", b'{"volume": "v1"}'])
def test_an_answer_that_is_no_row_is_told(reads, nodes, raw):
    nodes[0].raw = raw
    with pytest.raises(RequestFailed) as caught:
        reads.volume_info("v1")
    assert caught.value.status == "INTERNAL_ERROR"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_a_path_cannot_carry_is_refused_as_a_node_refuses_others(reads, nodes, name):
    of_volume = [
        lambda: reads.volume_info(name), lambda: reads.bucket_info(name, "b1"), lambda: reads.key_info(name, "b1", "k"),
        lambda: list(reads.list_buckets(name)), lambda: list(reads.list_keys(name, "b1")),
    ]  # fmt: skip
    of_bucket = [
        lambda: reads.bucket_info("v1", name), lambda: reads.key_info("v1", name, "k"),
        lambda: list(reads.list_keys("v1", name)),
    ]  # fmt: skip
    for asks, code in ((of_volume, "INVALID_VOLUME_NAME"), (of_bucket, "INVALID_BUCKET_NAME")):
        for ask in asks:
            with pytest.raises(RequestFailed, match=f"{name!r}: it has {len(name)} characters") as refused:
                ask()
            assert refused.value.status == code
    assert not any(node.queries for node in nodes)


@pytest.mark.parametrize("key", [".", "..", "a/../b", "/", "//a//", "a%2Fb", "%2e%2e", "a?b#c", "+", "&name=x", "\x00"])
def test_a_key_that_looks_like_a_path_is_read_by_its_own_name(reads, cluster, nodes, key):
    add_key(cluster, key)
    assert reads.key_info("v1", "b1", key).info.key == key
    assert [found.key for found in reads.list_keys("v1", "b1", prefix=key)] == [key]
    assert list(reads.list_keys("v1", "b1", start_after=key)) == []
    assert {path for path, _ in nodes[0].queries} == {"/v1/volumes/v1/buckets/b1/key", "/v1/volumes/v1/buckets/b1/keys"}


@pytest.mark.parametrize("limit", [1, 2, PAGE_ENTRIES, PAGE_ENTRIES + 1, 2 * PAGE_ENTRIES + 5])
def test_a_limit_ends_a_listing_and_asks_for_no_more_than_it_gives(reads, cluster, nodes, limit):
    names = [f"k{number:05d}" for number in range(2 * PAGE_ENTRIES + 1)]
    for name in names:
        add_key(cluster, name)
    assert [info.key for info in reads.list_keys("v1", "b1", limit=limit)] == names[:limit]
    assert sum(int(query["limit"]) for _, query in nodes[0].queries) == min(limit, 3 * PAGE_ENTRIES)


def test_a_page_after_the_other_by_limit_and_start_after_lists_everything(reads, cluster):
    names = [f"k{number}" for number in range(9)]
    for name in names:
        add_key(cluster, name)
    found, after = [], ""
    while part := [info.key for info in reads.list_keys("v1", "b1", start_after=after, limit=2)]:
        found += part
        after = part[-1]
    assert found == names


def test_listed_volumes_and_buckets_have_their_usage(reads):
    assert [(found.volume, found.usage) for found in reads.list_volumes(limit=1)] == [("v1", {"used_namespace": 3})]
    assert [(found.bucket, found.usage) for found in reads.list_buckets("v1")] == [("b1", {"used_namespace": 3})]


@pytest.mark.parametrize("limit", [0, -1, 1 << 63])
def test_a_limit_out_of_range_is_refused_before_the_first_page_is_asked_for(reads, nodes, limit):
    for ask in (reads.list_volumes, lambda **given: reads.list_keys("v1", "b1", **given)):
        with pytest.raises(InvalidArgument, match="limit must be"):
            ask(limit=limit)
    assert not nodes[0].queries


@pytest.mark.parametrize("code", ["VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "INVALID_VOLUME_NAME"])
def test_errors_of_reads_show_no_url(reads, nodes, code):
    nodes[0].error = (404 if code.endswith("FOUND") else 400, code)
    asks = [
        lambda: reads.volume_info("v1"), lambda: reads.bucket_info("v1", "b1"), lambda: reads.key_info("v1", "b1", "k"),
        lambda: next(reads.list_buckets("v1")), lambda: next(reads.list_keys("v1", "b1")),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(RequestFailed) as caught:
            ask()
        assert "/v1/volumes" not in str(caught.value)
        assert caught.value.status == code
        assert isinstance(caught.value, NotFound) == code.endswith("FOUND")


@pytest.mark.timeout(10)
def test_waiting_for_a_node_is_told_in_the_words_of_the_read(nodes, caplog, monkeypatch):
    monkeypatch.setattr("producers.waiting.WORD_AFTER_MS", 10)
    for node in nodes:
        node.error = (503, "NO_LEADER")
    with pytest.raises(RetryableError, match="NO_LEADER: key 'k' in bucket /v1/b1: http"):
        Reads([nodes[0].address], deadline_ms=400).key_info("v1", "b1", "k")
    assert "key 'k' in bucket /v1/b1 takes" in caplog.text
    assert "NO_LEADER it is" in caplog.text


def test_a_volume_name_with_a_slash_is_one_segment(reads):
    with pytest.raises(RequestFailed) as caught:
        reads.volume_info("v1/buckets")
    assert caught.value.status == "KEY_NOT_FOUND"


@pytest.mark.parametrize("address", ["", "ftp://host:1", "http://", "http://[::1"])
def test_what_is_no_address_is_refused_by_name(address):
    with pytest.raises(ValueError, match="not the address"):
        address_of(address)


def test_host_and_port_alone_are_an_address():
    assert address_of("node1:9871") == "http://node1:9871"


@pytest.mark.parametrize(
    "name", ["\udcff", "x" * 70_000, "\U0001f5dd" * 20_000], ids=["no text", "long", "long when escaped"]
)
def test_a_name_that_cannot_be_asked_for_is_refused_by_name(reads, name):
    asks = [
        lambda: reads.key_info("v1", "b1", name), lambda: list(reads.list_keys("v1", "b1", prefix=name)),
        lambda: list(reads.list_volumes(start_after=name)), lambda: reads.volume_info(name), lambda: reads.bucket_info("v1", name),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(RequestFailed) as refused:
            ask()
        assert refused.value.status == "INVALID_REQUEST"


def test_a_page_says_where_the_next_one_begins(reads, monkeypatch):
    pages = {
        "": {"entries": [], "truncated": False},
        "k1": {"entries": [vars_of("k2")], "truncated": False},
    }  # fmt: skip
    pages[""] = {"entries": [vars_of("k1")], "truncated": True, "next_after": "k1"}
    asked = []

    def get(path, parameters, consistency, *, deadline):
        assert deadline is not None, "that of the page, which may have asked at the door first"
        asked.append(parameters.get("start_after", ""))
        return pages[asked[-1]]

    monkeypatch.setattr(reads, "get", get)
    assert [info.key for info in reads.list_keys("v1", "b1")] == ["k1", "k2"]
    assert asked == ["", "k1"]


def vars_of(key):
    commit = CommitKey(volume="v1", bucket="b1", key=key, session_id=1, size=5, blocks=[])
    return asdict(key_row(commit, {}))


@pytest.mark.parametrize(
    ("code", "path", "found"),
    [
        ("VOLUME_NOT_FOUND", "/v1/volumes/v", "volume /v"),
        ("VOLUME_NOT_FOUND", "/v1/volumes", None),
        ("BUCKET_NOT_FOUND", "/v1/volumes/v/buckets/b", "bucket /v/b"),
        ("BUCKET_NOT_FOUND", "/v1/volumes/v/buckets", None),
        ("KEY_NOT_FOUND", "/v1/volumes/v/buckets/b/keys", None),
        ("INTERNAL_ERROR", "/v1/volumes/v", None),
        ("BUCKET_NOT_FOUND", "/v1/other/v/buckets/b", None),
    ],
)
def test_what_is_missing_is_named_by_the_path(code, path, found):
    assert missing(code, path, {}) == found


def test_a_page_is_refused_what_a_listing_is(reads):
    for ask in (
        reads.volumes_page, lambda **wrong: reads.buckets_page("v1", **wrong),
        lambda **wrong: reads.keys_page("v1", "b1", **wrong),
    ):  # fmt: skip
        for wrong in ({"prefix": 5}, {"start_after": 5}, {"consistency": "perhaps"}, {"limit": 0}):
            (name,) = wrong
            with pytest.raises((InvalidArgument, TypeError), match=name):
                ask(**wrong)


def test_one_node_is_asked_once_and_its_own_time_limit_holds(reads, nodes, monkeypatch):
    first, second, _ = nodes
    assert reads.ask_at("GET", first.address, "/v1/volumes/v1", {"a": "b"})["volume"] == "v1"
    assert first.queries == [("/v1/volumes/v1", {"a": "b"})]
    first.error = (503, "NO_LEADER")
    with pytest.raises(RetryableError, match="NO_LEADER it is"):
        reads.ask_at("GET", first.address, "/v1/volumes/v1", {})
    with pytest.raises(NotConnected):
        reads.ask_at("GET", closed_port(), "/v1/volumes/v1", {})
    with pytest.raises(NotFound):
        reads.ask_at("GET", second.address, "/v1/volumes/v1/buckets/b1/key", {"name": "none"})
    assert len(first.queries) == 2
    limits: list[float] = []

    def ask(*arguments):
        limits.append(arguments[-1])
        return {}

    monkeypatch.setattr(reads, "_ask", ask)
    reads.ask_at("GET", first.address, "/", {})
    assert limits == [REQUEST_TIMEOUT_MS / 1000] == [10.0]


def test_several_keys_are_read_one_by_one_where_there_is_no_door(reads, cluster, nodes):
    add_key(cluster, "a")
    add_key(cluster, "c")
    found = reads.key_infos("v1", "b1", ["a", "b", "c"])
    assert [None if view is None else view.info.key for view in found] == ["a", None, "c"]
    assert len(nodes[0].queries) == 3
    nodes[0].error = (404, "BUCKET_NOT_FOUND")
    with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"):
        reads.key_infos("v1", "b1", ["a"])


class Rows:
    """A direct door that answers each question with the next of ``answers``."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, volume, bucket, keys, consistency, *, with_bytes=False, page=None):
        self.asked.append((list(keys), with_bytes, page))
        answer: Future[DoorRows] = Future()
        answer.set_result(self.answers.pop(0))
        return answer


def rows_of(*rows, status="OK", data=(), more=False):
    return DoorRows(status=status, message="why", shard=1, index=7, rows=list(rows), data=list(data), more=more)


def encoded(key, inline=False):
    commit = CommitKey(volume="v1", bucket="b1", key=key, session_id=1, size=5, blocks=[] if inline else [BLOCK])
    return encode(replace(key_row(commit, {}), inline=inline))


def test_keys_are_asked_for_by_the_door_a_thousand_at_a_time(reads, nodes):
    names = [f"k{number:05d}" for number in range(MAX_READ_KEYS + 1)]
    door = Rows(rows_of(*(encoded(name) for name in names[:MAX_READ_KEYS])), rows_of(None))
    reads.follow(dict, door)
    found = reads.key_infos("v1", "b1", names)
    assert [None if view is None else view.info.key for view in found] == [*names[:-1], None]
    assert [len(keys) for keys, _, _ in door.asked] == [MAX_READ_KEYS, 1]
    assert found[0].positions == {1: 7}
    assert reads.has_door
    assert not nodes[0].queries


def test_what_the_door_refuses_for_several_keys_is_asked_one_by_one(reads, cluster, nodes):
    add_key(cluster, "a")
    door = Rows(rows_of(status="INVALID_REQUEST"), rows_of(encoded("a")))
    reads.follow(dict, door)
    (view,) = reads.key_infos("v1", "b1", ["a"])
    assert view.info.key == "a"
    assert [keys for keys, _, _ in door.asked] == [["a"], ["a"]]
    assert not nodes[0].queries


def test_a_row_of_the_door_that_cannot_be_read_is_told(reads):
    reads.follow(dict, Rows(rows_of(b"\xff")))
    with pytest.raises(RequestFailed, match="a node's row cannot be read"):
        reads.key_info("v1", "b1", "a")


def test_a_key_of_the_door_comes_with_its_bytes_only_if_they_are_asked_for(reads):
    row = encoded("a", inline=True)
    door = Rows(rows_of(row, data=[b"12345"]), rows_of(row))
    reads.follow(dict, door)
    assert reads.key_with_bytes("v1", "b1", "a")[1] == b"12345"
    assert reads.key_info("v1", "b1", "a").info.inline
    assert [with_bytes for _, with_bytes, _ in door.asked] == [True, False]


@pytest.mark.parametrize(("data", "said"), [(None, "no bytes"), (b"1234", "4 bytes"), (b"123456", "6 bytes")])
def test_an_inline_key_whose_bytes_are_missing_or_too_few_is_told(reads, data, said):
    reads.follow(dict, Rows(rows_of(encoded("a", inline=True), data=[data])))
    with pytest.raises(RequestFailed, match=f"/v1/b1/a has 5 bytes, and the node found {said}"):
        reads.key_with_bytes("v1", "b1", "a")


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("OK", NotFound, "KEY_NOT_FOUND: key 'a' in bucket /v1/b1 does not exist"),
        ("BUCKET_NOT_FOUND", NotFound, "BUCKET_NOT_FOUND: bucket /v1/b1 does not exist"),
        ("INVALID_REQUEST", RequestFailed, "INVALID_REQUEST: why"),
    ],
)
def test_what_the_door_does_not_find_is_named(reads, status, kind, said):
    reads.follow(dict, Rows(rows_of(*([None] if status == "OK" else []), status=status)))
    with pytest.raises(kind) as failed:
        reads.key_info("v1", "b1", "a")
    assert str(failed.value) == said


def test_a_page_of_the_door_says_where_the_next_begins(reads, nodes):
    door = Rows(rows_of(encoded("a"), encoded("b"), more=True), rows_of(encoded("c")))
    reads.follow(dict, door)
    page = reads.keys_page("v1", "b1", prefix="p", start_after="x", limit=2)
    assert ([info.key for info in page.entries], page.next_after, page.positions) == (["a", "b"], "b", {1: 7})
    assert page.entries[0].blocks == [], "as over HTTP"
    (_, _, asked) = door.asked[0]
    assert (asked.prefix, asked.start_after, asked.limit) == ("p", "x", 2)
    assert reads.keys_page("v1", "b1", limit=2).next_after is None
    assert not nodes[0].queries


@pytest.mark.parametrize(("status", "said"), [("BUCKET_NOT_FOUND", "bucket /v1/b1 does not exist"), ("X", "X: why")])
def test_a_page_that_the_door_refuses_is_told(reads, status, said):
    reads.follow(dict, Rows(rows_of(status=status)))
    with pytest.raises(RequestFailed, match=said):
        reads.keys_page("v1", "b1")


@pytest.mark.parametrize(
    "broken",
    [
        {"block_tokens": {}}, {"block_tokens": {"tokens": ["zz"], "lasts_ms": 1}}, {"block_tokens": {"tokens": [], "lasts_ms": 1}},
        {"block_tokens": {"tokens": ["00"], "lasts_ms": None}}, {"block_tokens": []},
    ],
)  # fmt: skip
def test_block_tokens_that_cannot_be_read_are_told_without_them(reads, nodes, broken):
    commit = CommitKey(volume="v1", bucket="b1", key="k", session_id=1, size=5, blocks=[BLOCK])
    nodes[0].raw = json.dumps(asdict(key_row(commit, {})) | broken).encode()
    with pytest.raises(RequestFailed) as failed:
        reads.key_to_read("v1", "b1", "k")
    assert str(failed.value) == "INTERNAL_ERROR: a node's answer has block tokens that cannot be read"


def test_block_tokens_come_with_the_key(reads, nodes):
    commit = CommitKey(volume="v1", bucket="b1", key="k", session_id=1, size=5, blocks=[BLOCK])
    answer = asdict(key_row(commit, {})) | {"block_tokens": {"tokens": ["00ff"], "lasts_ms": 9}}
    nodes[0].raw = json.dumps(answer).encode()
    view, data, grant = reads.key_to_read("v1", "b1", "k")
    assert (view.info.key, data) == ("k", None)
    assert (grant.tokens, grant.lasts_ms) == ({(1, 2): b"\x00\xff"}, 9)
    assert nodes[0].queries[0][1] == {"name": "k", "tokens": "true", "consistency": "linearizable"}
    nodes[0].raw = json.dumps(answer | {"data": "!!"}).encode()
    with pytest.raises(RequestFailed, match="bytes that cannot be read"):
        reads.key_to_read("v1", "b1", "k", with_bytes=True)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"inline": True}, "the row of /v1/b1/k has 5 bytes, and the node found no bytes"),
        ({"inline": True, "data": "Zm91cg=="}, "has 5 bytes, and the node found 4 bytes"),
        ({"inline": False, "data": "Zm91cg=="}, "has 0 bytes, and the node found 4 bytes"),
    ],
)
def test_bytes_that_are_not_those_of_the_row_are_refused_with_and_without_tokens(reads, nodes, row, words):
    commit = CommitKey(volume="v1", bucket="b1", key="k", session_id=1, size=5, blocks=[])
    nodes[0].raw = json.dumps(asdict(key_row(commit, {})) | row).encode()
    for read in (partial(reads.key_to_read, with_bytes=True), reads.key_with_bytes):
        with pytest.raises(RequestFailed, match=words):
            read("v1", "b1", "k")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>busy</html>", "HTTP_400: volume /v1: {address}: <html>busy</html>"),
        (b"", "HTTP_400: volume /v1: {address}: Bad Request"),
        (b"x" * 900, "HTTP_400: volume /v1: {address}: " + "x" * 200),
        (b'{"error": "INVALID_REQUEST", "message": "odd"}', "INVALID_REQUEST: odd"),
    ],
)
def test_a_refusal_of_something_else_than_a_node_is_told_with_its_address(reads, nodes, monkeypatch, body, said):
    monkeypatch.setattr(nodes[0], "respond", lambda _: (400, body))
    with pytest.raises(RequestFailed) as failed:
        reads.volume_info("v1")
    assert str(failed.value) == said.format(address=nodes[0].address)


def test_fields_of_a_newer_node_are_left_out_and_a_missing_one_is_named(reads, nodes):
    assert reads.volume_info("v1").info == volume_row("v1")
    nodes[0].raw = json.dumps({"volume": "v1"}).encode()
    with pytest.raises(RequestFailed, match="a node's VolumeInfo lacks the field '"):
        reads.volume_info("v1")


def test_so_are_those_of_a_keys_blocks(reads, nodes):
    row = asdict(key_row(CommitKey(volume="v1", bucket="b1", key="k", session_id=1, size=5, blocks=[BLOCK]), {}))
    (block,) = row["blocks"]
    nodes[0].raw = json.dumps(row | {"blocks": [block | {"field_of_a_newer_node": 1}]}).encode()
    assert reads.key_info("v1", "b1", "k").info.blocks == [BLOCK]
    for blocks, words in [
        ([{"offset": 1}], "BlockLocation lacks the field"), ([7], "BlockLocation cannot be read"), (7, "KeyInfo cannot be read"),
    ]:  # fmt: skip
        nodes[0].raw = json.dumps(row | {"blocks": blocks}).encode()
        with pytest.raises(RequestFailed, match=f"a node's {words}"):
            reads.key_info("v1", "b1", "k")


def test_an_unknown_consistency_is_refused_before_anybody_is_asked(reads, nodes):
    door = Rows()
    reads.follow(dict, door)
    asks = [
        lambda **given: reads.key_infos("v1", "b1", [], **given), lambda **given: reads.key_infos("v1", "b1", ["a"], **given),
        lambda **given: reads.key_info("v1", "b1", "a", **given), lambda **given: reads.volume_info("v1", **given),
        lambda **given: reads.key_to_read("v1", "b1", "a", **given), lambda **given: reads.keys_page("v1", "b1", **given),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(InvalidArgument, match="consistency"):
            ask(consistency="perhaps")
    assert not door.asked
    assert not nodes[0].queries
