"""A client of whose doors one leads to another cluster: it refuses to start, or leaves that door out. Both have one name."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from producers.async_client import AsyncClient
from producers.blocks.datanodes import Datanodes
from producers.client import Client
from producers.direct.direct_transport import DirectTransport
from producers.errors import DatanodeError, InvalidArgument, NotConnected, StratologError
from producers.reads.reads import Reads
from producers.requests.core.calls import Policy
from producers.requests.core.one_cluster import OneCluster
from schemas import stream_errors
from schemas.kafka.brokers_id import brokers_mark
from schemas.records.datanode import Member
from schemas.topics import OM_LOG, OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import memory_broker
from tests.support.om.door_site import DoorSite
from tests.support.sdk.datanodes import CLUSTER, World
from tests.support.sdk.memory import MemoryCluster, bucket_row, pipeline_to, volume_row
from tests.support.sdk.nodes import Node

NAMES_BOTH = r"read_from \(or nodes\) must be nodes of one cluster: .*'red'.*'blue', that of brokers memory:0"


def cluster_of(brokers_id: str) -> MemoryCluster:
    made = MemoryCluster()
    made.brokers_id = brokers_id
    made.put(volume_row("v"))
    return made


@pytest.fixture
def blue() -> MemoryCluster:
    return cluster_of("blue")


@pytest.fixture
def nodes(blue: MemoryCluster) -> Iterator[tuple[Node, Node]]:
    """One of each cluster."""
    with closing(Node(blue)) as ours, closing(Node(cluster_of("red"))) as others:
        yield ours, others


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[tuple[World, World]]:
    with (
        closing(World(tmp_path / "a", small=True, brokers_id="blue")) as ours,
        closing(World(tmp_path / "b", small=True, brokers_id="red")) as others,
    ):
        yield ours, others


def test_requests_to_one_and_blocks_to_another_are_refused_at_the_start(worlds: tuple[World, World]):
    ours, others = worlds
    engine, connection = pipeline_to(ours.cluster, Policy())
    with pytest.raises(InvalidArgument, match=NAMES_BOTH):
        Client.over(engine, Reads([ours.om.address, others.om.address], deadline_ms=5_000), ours.options)
    assert connection.closed


def test_an_awaited_client_is_refused_too(blue: MemoryCluster, nodes: tuple[Node, Node]):
    engine, connection = pipeline_to(blue, Policy())

    async def main() -> None:
        client = AsyncClient("memory:0", read_from=[nodes[1].address], open_pipeline=lambda _: engine)
        with pytest.raises(InvalidArgument, match=NAMES_BOTH):
            await client.connect()
        await client.close()

    asyncio.run(main())
    assert connection.closed


def test_nodes_of_older_software_and_silent_ones_are_taken(blue: MemoryCluster, nodes: tuple[Node, Node]):
    ours, older = nodes
    older.cluster.brokers_id = ""
    engine, _ = pipeline_to(blue, Policy())
    with Client.over(engine, Reads(["http://127.0.0.1:1", older.address, ours.address], deadline_ms=5_000)) as client:
        assert client.volume_info("v").info.volume == "v"


def test_a_client_of_older_brokers_asks_nobody(nodes: tuple[Node, Node]):
    engine, _ = pipeline_to(MemoryCluster(), Policy())
    with Client.over(engine, Reads([node.address for node in nodes], deadline_ms=5_000)):
        assert [node.queries for node in nodes] == [[], []]


def test_an_address_that_passes_on_to_another_cluster_is_left_out(blue: MemoryCluster, nodes: tuple[Node, Node]):
    first, second = nodes
    second.cluster.brokers_id = "blue"
    engine, _ = pipeline_to(blue, Policy())
    with Client.over(engine, Reads([second.address, first.address], deadline_ms=400)) as client:
        second.cluster.brokers_id = "red"
        second.cluster.put(bucket_row("v", "of-red"))
        assert list(client.list_buckets("v")) == [], "the other node has answered"
        first.error = (503, "NO_LEADER")
        with pytest.raises(NotConnected, match="is of Kafka cluster 'red', and this client speaks with .*'blue'"):
            client.volume_info("v")


def test_reads_alone_stay_with_the_cluster_that_answered_first(nodes: tuple[Node, Node]):
    ours, others = nodes
    with closing(Reads([ours.address, others.address], deadline_ms=400)) as reads:
        assert reads.volume_info("v").info.volume == "v"
        ours.error = (503, "NO_LEADER")
        with pytest.raises(StratologError, match="'red', and this client speaks with Kafka cluster 'blue'"):
            reads.volume_info("v")


def test_a_datanode_of_other_brokers_is_told_nothing(worlds: tuple[World, World]):
    """Its cluster has the same name, it has the same one, and it answers at the address that one of ours had."""
    ours, others = worlds
    name, node = next(iter(others.nodes.items()))
    assert name in ours.nodes
    moved = Member(datanode=name, address=node.address, http_address="", rack="/r")
    with pytest.raises(DatanodeError, match=f"'{name}' is of cluster .* at other brokers") as caught:
        ours.client.streams.datanodes.connect(moved)
    assert caught.value.status == stream_errors.WRONG_CLUSTER
    others.client.streams.datanodes.connect(moved).close()
    older = Datanodes(cluster=CLUSTER)
    older.connect(moved).close()
    older.close()


def test_brokers_tell_their_id_and_a_node_at_others_is_refused(nodes: tuple[Node, Node]):
    with memory_broker() as broker:
        broker.create(OM_REQUESTS, OM_RESPONSES, OM_LOG)
        with pytest.raises(InvalidArgument, match=r"Kafka cluster 'blue', .* 'mockCluster.*', that of brokers 127"):
            Client(broker.bootstrap_servers, read_from=[nodes[0].address])
        with pytest.raises(InvalidArgument, match=r"Kafka cluster 'blue', .* 'mockCluster.*', that of brokers 127"):
            Client(broker.bootstrap_servers, nodes=[nodes[0].address.removeprefix("http://")])


def test_the_door_tells_the_id_as_it_opens():
    ours = OneCluster()
    assert ours.fault_of("", "brokers b:9092", "blue") is None
    with DoorSite(brokers_id="blue") as site:
        DirectTransport([site.address], bytes(16), connect_timeout_ms=30_000, cluster=ours).close()
    with DoorSite(brokers_id="red") as site, pytest.raises(NotConnected, match="Kafka cluster 'red', .*'blue'"):
        DirectTransport([site.address], bytes(16), connect_timeout_ms=300, cluster=ours)


def test_what_is_named_first_counts_for_all():
    cluster = OneCluster()
    assert cluster.fault_of("", "a") is None
    assert cluster.fault_of("", "b", "blue") is None
    assert (
        cluster.fault_of("", "c", "red")
        == "c is of Kafka cluster 'red', and this client speaks with Kafka cluster 'blue', that of b"
    )
    assert brokers_mark("blue") != brokers_mark("red") != 0
