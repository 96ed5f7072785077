"""Reads over HTTP: rows, listings, consistency, fail-over, errors; against servers on the loopback."""

import socket
from dataclasses import asdict

import pytest

from producers.errors import NotConnected, RequestFailed, RetryableError
from producers.reads import PAGE_ENTRIES, Reads, address_of
from schemas.messages import CommitKey
from schemas.rows import BlockLocation

from .memory import MemoryCluster, bucket_row, key_row, volume_row
from .nodes import Node

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
    with pytest.raises(RequestFailed, match="is not there") as caught:
        reads.key_info("v1", "b1", "nothing")
    assert caught.value.status == "KEY_NOT_FOUND"
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


def test_the_last_reason_is_told_at_the_deadline(nodes):
    for node in nodes:
        node.error = (503, "NO_LEADER")
    reads = Reads([node.address for node in nodes], deadline_ms=120)
    with pytest.raises(RetryableError, match="NO_LEADER it is") as caught:
        reads.volume_info("v1")
    assert caught.value.status == "NO_LEADER"
    assert all(node.queries for node in nodes)


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
def test_a_name_that_a_path_cannot_carry_is_refused(reads, name):
    with pytest.raises(RequestFailed, match="not the name"):
        reads.volume_info(name)


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

    def get(path, parameters, consistency):
        asked.append(parameters.get("start_after", ""))
        return pages[asked[-1]]

    monkeypatch.setattr(reads, "get", get)
    assert [info.key for info in reads.list_keys("v1", "b1")] == ["k1", "k2"]
    assert asked == ["", "k1"]


def vars_of(key):
    commit = CommitKey(volume="v1", bucket="b1", key=key, session_id=1, size=5, blocks=[])
    return asdict(key_row(commit, {}))
