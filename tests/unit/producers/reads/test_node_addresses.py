"""The nodes that reads ask: given ones, or found ones, which may move."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from producers.errors import NOT_CONNECTED, InvalidArgument, NotConnected
from producers.reads.leaders_group import is_address
from producers.reads.node_addresses import FIND_TIMEOUT_MS, NodeAddresses
from producers.reads.reads import Reads
from schemas.leader_names import member_name, node_and_address
from tests.support.sdk.memory import MemoryCluster, volume_row
from tests.support.sdk.nodes import Node
from transport.waiting.deadline import Deadline

PATIENCE_S = 10.0


class Brokers:
    """What the brokers tell: addresses, or nothing."""

    def __init__(self, *addresses: str):
        self.addresses = list(addresses)
        self.asked: int = 0

    def find(self, _timeout_s):
        self.asked += 1
        if not self.addresses:
            raise NotConnected(NOT_CONNECTED, "no node is in the group")
        return self.addresses


@pytest.fixture
def cluster():
    cluster = MemoryCluster()
    cluster.put(volume_row("v1"))
    return cluster


def host_of(node: Node) -> str:
    return str(node.address.removeprefix("http://"))


def test_nodes_are_found_at_the_first_read_and_asked_for_once(cluster):
    node = Node(cluster)
    brokers = Brokers(host_of(node))
    reads = Reads([], deadline_ms=5_000, find=brokers.find)
    asked = [brokers.asked]
    for _ in range(3):
        assert reads.volume_info("v1").info.volume == "v1"
        asked.append(brokers.asked)
    assert asked == [0, 1, 1, 1]
    node.close()


def test_a_node_that_came_back_on_another_port_is_found_there(cluster):
    before, after = Node(cluster), Node(cluster)
    brokers = Brokers(host_of(before))
    reads = Reads([], deadline_ms=10_000, find=brokers.find)
    reads.volume_info("v1")
    before.close()
    reads._http.close()  # its kept connection would be answered still
    reads._open_http = None
    brokers.addresses = [host_of(after)]
    assert reads.volume_info("v1").info.volume == "v1"
    after.close()


def test_a_node_that_starts_late_is_waited_for(cluster):
    node = Node(cluster)
    brokers = Brokers()

    def find(timeout_s):
        if brokers.asked == 2:
            brokers.addresses = [host_of(node)]
        return brokers.find(timeout_s)

    assert Reads([], deadline_ms=10_000, find=find).volume_info("v1").info.volume == "v1"
    assert brokers.asked == 3
    node.close()


def test_many_threads_ask_the_brokers_once_for_all(monkeypatch):
    monkeypatch.setattr("producers.reads.node_addresses.FIND_AGAIN_MS", 600_000)
    brokers = Brokers()
    barrier = threading.Barrier(8)
    reads = Reads([], deadline_ms=300, find=brokers.find)

    def read():
        barrier.wait()
        with pytest.raises(NotConnected, match="no node is in the group"):
            reads.volume_info("v1")

    with ThreadPoolExecutor(max_workers=8) as pool:
        for done in [pool.submit(read) for _ in range(8)]:
            done.result()
    assert brokers.asked == 1


def test_what_is_known_is_kept_while_the_brokers_tell_nothing(cluster):
    node = Node(cluster)
    brokers = Brokers(host_of(node))
    addresses = NodeAddresses([], brokers.find)
    known = addresses.in_order(Deadline.after_s(1))
    brokers.addresses = []
    addresses.none_answered()
    assert addresses.in_order(Deadline.after_s(1)) == known
    node.close()


class SlowBrokers(Brokers):
    """Brokers whose answer is held back."""

    def __init__(self, *addresses: str):
        super().__init__(*addresses)
        self.asking = threading.Event()
        self.may_answer = threading.Event()

    def find(self, timeout_s):
        self.asking.set()
        assert self.may_answer.wait(PATIENCE_S)
        return super().find(timeout_s)


def test_others_go_on_with_the_nodes_that_are_known_while_one_looks():
    """A shard without a leader had its readers look for nodes, and all other reads wait for that."""
    brokers = SlowBrokers("x:1")
    brokers.may_answer.set()
    addresses = NodeAddresses([], brokers.find)
    known = addresses.in_order(Deadline.after_s(1))
    brokers.may_answer.clear()
    brokers.asking.clear()
    addresses._looked_at_s = float("-inf")
    addresses.none_answered()
    with ThreadPoolExecutor(max_workers=2) as pool:
        looking = pool.submit(addresses.in_order, Deadline.after_s(PATIENCE_S))
        assert brokers.asking.wait(PATIENCE_S)
        try:
            assert pool.submit(addresses.in_order, Deadline.after_s(PATIENCE_S)).result(PATIENCE_S / 2) == known
            assert not looking.done()
        finally:
            brokers.may_answer.set()
        assert looking.result(PATIENCE_S) == known


def test_who_knows_no_node_waits_for_the_look_no_longer_than_it_may():
    brokers = SlowBrokers("x:1")
    addresses = NodeAddresses([], brokers.find)
    with ThreadPoolExecutor(max_workers=2) as pool:
        looking = pool.submit(addresses.in_order, Deadline.after_s(PATIENCE_S))
        assert brokers.asking.wait(PATIENCE_S)
        try:
            waiting = pool.submit(addresses.in_order, Deadline.after_s(0.01))
            with pytest.raises(NotConnected, match="have not told yet"):
                waiting.result(PATIENCE_S / 2)
        finally:
            brokers.may_answer.set()
        assert looking.result(PATIENCE_S) == ["http://x:1"]


@pytest.mark.parametrize(("timeout_s", "asked_for_s"), [(60.0, FIND_TIMEOUT_MS / 1000), (0.0, 0.0)])
def test_the_brokers_are_waited_for_no_longer_than_a_look_may_take(timeout_s, asked_for_s):
    asked = []

    def find(look_s):
        asked.append(look_s)
        return ["x:1"]

    NodeAddresses([], find).in_order(Deadline.after_s(timeout_s, lambda: 100.0))
    assert asked == [asked_for_s]


def test_a_failed_look_keeps_nothing_of_what_it_was_made_with(monkeypatch):
    """The error's traceback held the client of Kafka, with its threads and sockets, until the next look."""
    monkeypatch.setattr("producers.reads.node_addresses.FIND_AGAIN_MS", 600_000)

    class Held:
        """Stands for what a look is made with."""

    held = []

    def find(_timeout_s):
        local = Held()
        held.append(weakref.ref(local))
        raise NotConnected(NOT_CONNECTED, "no node is in the group")

    addresses = NodeAddresses([], find)
    with pytest.raises(NotConnected, match="no node is in the group"):
        addresses.in_order(Deadline.after_s(1))
    gc.collect()
    assert [one() for one in held] == [None]
    with pytest.raises(NotConnected, match="no node is in the group"):
        addresses.in_order(Deadline.after_s(1))
    assert len(held) == 1


def test_nobody_is_told_at_the_deadline():
    with pytest.raises(NotConnected, match="volume /v1: no node is in the group"):
        Reads([], deadline_ms=200, find=Brokers().find).volume_info("v1")


def test_given_addresses_are_asked_and_no_broker(cluster):
    node = Node(cluster)
    brokers = Brokers("127.0.0.1:1")
    assert Reads([node.address], deadline_ms=5_000, find=brokers.find).volume_info("v1").info.volume == "v1"
    assert not brokers.asked
    node.close()


@pytest.mark.parametrize("told", ["", ":::", "ftp://x", "[::1", "\x00", "a" * 70_000 + ":1"])
def test_a_strangers_member_is_no_node(told):
    assert not is_address(told)


@pytest.mark.parametrize(("node", "address"), [("om1", "127.0.0.1:9871"), ("om1", "[::1]:9871"), ("om1", "")])
def test_a_member_name_holds_node_and_address(node, address):
    assert node_and_address(member_name(node, address)) == (node, address)


def test_nodes_that_are_asked_in_tls_are_never_asked_in_clear():
    assert NodeAddresses(["a:1", "https://b:2"], None, is_secure=True).in_order(Deadline.after_s(1)) == [
        "https://a:1",
        "https://b:2",
    ]
    with pytest.raises(InvalidArgument, match="'http://a:1' is asked in clear, and 'tls' is given"):
        NodeAddresses(["b:2", "http://a:1"], None, is_secure=True)
    assert NodeAddresses(["a:1", "https://b:2"], None).in_order(Deadline.after_s(1)) == ["http://a:1", "https://b:2"]


def test_addresses_that_are_none_are_an_illegal_argument():
    with pytest.raises(InvalidArgument, match="read_from must hold addresses: 'ftp://a' is not the address") as refused:
        NodeAddresses(["a:1", "ftp://a"], None)
    assert refused.value.argument == "read_from"


def test_whether_there_is_any_hope_of_a_node():
    assert NodeAddresses(["a:1"], None).any_hope
    assert NodeAddresses([], Brokers().find).any_hope
    assert not NodeAddresses([], None).any_hope


def test_the_node_that_answered_last_comes_first_and_the_others_keep_their_order():
    nodes = NodeAddresses(["a:1", "b:2", "c:3"], None)
    nodes.answered("http://c:3")
    assert nodes.in_order(Deadline.after_s(1)) == ["http://c:3", "http://a:1", "http://b:2"]
    nodes.answered("http://b:2")
    assert nodes.in_order(Deadline.after_s(1)) == ["http://b:2", "http://a:1", "http://c:3"]
