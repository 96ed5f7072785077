"""The client's side of a direct connection, from the HTTP upgrade on; without a socket."""

from __future__ import annotations

import pytest

from producers.direct.core.link_talk import LinkFailed, LinkState, LinkTalk, OtherCluster
from producers.direct.core.routes import MAX_NODES, Routes
from producers.requests.core.one_cluster import OneCluster
from schemas.codecs.codec import encode
from schemas.door.frames import DoorFrame, DoorKind, door_frame
from schemas.door.talk import DoorRole, DoorTalk, error_frame
from schemas.records.door import DoorLeaders, ShardLeader

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stratolog-door\r\n\r\n"
NODE = DoorTalk(DoorRole.NODE, "om1", "c")


def talk() -> LinkTalk:
    found = LinkTalk("127.0.0.1:9871", "c0ffee")
    found.begin()
    return found


def hear(link: LinkTalk, *parts: bytes) -> list[DoorFrame]:
    return [frame for part in parts for frame in link.hear(part)]


def test_it_asks_for_the_upgrade():
    asked = LinkTalk("127.0.0.1:9871", "c0ffee").begin().decode().lower()
    assert asked.startswith("get /v1/door http/1.1\r\n")
    assert "host: 127.0.0.1:9871\r\n" in asked
    assert "upgrade: stratolog-door\r\n" in asked
    assert asked.endswith("\r\n\r\n")


def test_every_byte_may_come_by_itself():
    link = talk()
    sent = SWITCHING + NODE.hello() + door_frame(DoorKind.ANSWERS, b"answer", shard=1)
    found = hear(link, *(sent[n : n + 1] for n in range(len(sent))))
    assert [(frame.kind, frame.payload, frame.shard) for frame in found] == [(DoorKind.ANSWERS, b"answer", 1)]
    assert link.state is LinkState.OPEN
    assert link.node == "om1"


def test_all_bytes_may_come_together():
    link = talk()
    (frame,) = hear(link, SWITCHING + NODE.hello() + door_frame(DoorKind.LEADERS, b""))
    assert frame.kind is DoorKind.LEADERS


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "no direct door"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull", "HTTP 503: full"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "HTTP 200: hi"),
        (b"220 smtp.example.org\r\n", "what answers is no node"),
        (b"HTTP/1.1 101 X\r\n" + b"a: " + b"x" * 20_000, "what answers is no node"),
        (SWITCHING + b"nonsense", "what answers is no node"),
        (SWITCHING + door_frame(DoorKind.ANSWERS, b""), "ANSWERS frame out of place"),
        (SWITCHING + door_frame(DoorKind.REQUESTS, b""), "REQUESTS is not taken here"),
        (SWITCHING + error_frame("OVERLOADED", "too many", "om1"), "om1 ended the connection: OVERLOADED: too many"),
        (SWITCHING + door_frame(DoorKind.ERROR, b"\x00"), "an error that cannot be read"),
    ],
)
def test_what_ends_a_connection_is_named(said: bytes, why: str):
    link = talk()
    with pytest.raises(LinkFailed, match=why):
        hear(link, said, b"")
    assert link.state is LinkState.FAILED


def test_the_end_of_an_open_connection_is_told():
    link = talk()
    hear(link, SWITCHING + NODE.hello())
    with pytest.raises(LinkFailed, match="closed the connection"):
        hear(link, b"")


def switching(brokers_id: str) -> bytes:
    """Return the answer to an upgrade that tells the node's brokers."""
    return SWITCHING.removesuffix(b"\r\n") + f"X-Stratolog-Brokers: {brokers_id}\r\n\r\n".encode()


def greeted(cluster: OneCluster, node: str, named: str, brokers_id: str = "") -> LinkTalk:
    """Return a connection whose node has named its cluster, and its brokers."""
    link = LinkTalk(f"{node}:1", "c0ffee", None, cluster)
    link.begin()
    hear(link, (switching(brokers_id) if brokers_id else SWITCHING) + DoorTalk(DoorRole.NODE, node, named).hello())
    return link


def test_a_node_of_another_cluster_than_the_first_is_refused_before_the_connection_is_open():
    ours = OneCluster()
    assert greeted(ours, "om1", "blue").state is LinkState.OPEN
    link = LinkTalk("om4:1", "c0ffee", None, ours)
    link.begin()
    with pytest.raises(OtherCluster) as refused:
        hear(link, SWITCHING + DoorTalk(DoorRole.NODE, "om4", "red").hello() + door_frame(DoorKind.LEADERS, b""))
    assert link.state is LinkState.FAILED
    assert str(refused.value) == (
        "'om4' at om4:1 is of cluster 'red', and this client speaks with cluster 'blue', that of 'om1' at om1:1"
    )
    assert greeted(ours, "om2", "blue").state is LinkState.OPEN, "the refusal changes nothing"
    assert ours.name == "blue"


def test_a_node_at_other_brokers_is_refused_though_its_cluster_has_the_same_name():
    ours = OneCluster()
    assert ours.fault_of("", "brokers b:9092", "blue-id") is None
    assert greeted(ours, "om1", "blue", "blue-id").state is LinkState.OPEN
    assert greeted(ours, "om2", "blue").state is LinkState.OPEN, "an older one, which tells none"
    with pytest.raises(OtherCluster) as refused:
        greeted(ours, "om4", "blue", "red-id")
    assert str(refused.value) == (
        "'om4' at om4:1 is of Kafka cluster 'red-id', and this client speaks with Kafka cluster 'blue-id', "
        "that of brokers b:9092"
    )


def test_a_refused_node_is_no_witness():
    ours = OneCluster()
    assert ours.fault_of("", "brokers b:9092", "blue-id") is None
    assert ours.fault_of("red", "om4", "red-id") is not None
    assert (ours.name, ours.brokers_id) == ("", "blue-id")
    assert ours.fault_of("blue", "om1", "blue-id") is None
    assert ours.name == "blue"


def test_a_node_that_names_no_cluster_is_of_any():
    ours = OneCluster()
    assert greeted(ours, "om1", "").state is LinkState.OPEN
    assert greeted(ours, "om2", "red").state is LinkState.OPEN, "the first that names one counts"
    assert greeted(ours, "om3", "").state is LinkState.OPEN
    with pytest.raises(OtherCluster):
        greeted(ours, "om4", "blue")


# -- routes ------------------------------------------------------------------------------------------------------------


def said(*leaders: tuple[int, int, str], shards: int = 2) -> DoorLeaders:
    return DoorLeaders(
        shards=shards,
        leaders=[ShardLeader(shard=shard, term=term, node="n", address=address) for shard, term, address in leaders],
    )


def test_the_newest_leader_counts():
    routes = Routes(["a:1"])
    assert routes.leader_of(0) == ""
    assert routes.hear(said((0, 3, "b:1"), (1, 5, "a:1"))) == [], "no calls can have gone elsewhere"
    assert routes.hear(said((0, 2, "c:1"), (1, 5, "a:1"))) == [], "an older claim, and nothing new"
    assert routes.hear(said((1, 6, "a:1"))) == [], "the same node leads again"
    assert routes.hear(said((0, 4, "c:1"), (1, 5, "a:1"))) == [0]
    assert routes.hear(said((0, 4, ""))) == [0], "its leader has left"
    routes.hear(said((0, 4, "c:1")))
    assert (routes.leader_of(0), routes.leader_of(1), routes.shards) == ("c:1", "a:1", 2)


def test_the_nodes_given_stay_and_leaders_join_them():
    routes = Routes(["a:1", "a:1", "d:1"])
    routes.hear(said((0, 1, "b:1"), (1, 1, "")))
    assert routes.addresses == ["a:1", "d:1", "b:1"]
    routes.hear(said((0, 2, "c:1")))
    assert routes.addresses == ["a:1", "d:1", "c:1"]


def test_a_node_that_names_a_thousand_leaders_costs_few_connections():
    routes = Routes(["a:1"])
    routes.hear(said(*((shard, 1, f"x{shard}:1") for shard in range(1000)), shards=1000))
    assert len(routes.addresses) == MAX_NODES
    assert routes.addresses[0] == "a:1"


def test_leaders_can_be_encoded():
    assert encode(said((0, 1, "a:1")))
