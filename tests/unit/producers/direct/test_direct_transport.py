"""Clients at the direct door of nodes, on real sockets: calls, lookups, and what happens when nodes come and go."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from producers.client import Client
from producers.direct.direct_transport import DirectTransport
from producers.errors import ClientClosed, NotConnected, NotFound, OutcomeUnknown, RequestFailed
from producers.requests.engine import make_settings
from schemas.records.door import DoorRead
from schemas.records.messages import CreateVolume, DeleteVolume, PurgeBlocks, Response
from stratolog.local.ports import free_ports
from tests.support.local.secret import SECRET
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite

WAIT_S = 30.0


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        yield found


def submitted(client: Client, count: int) -> list[Future[Response]]:
    return [client.submit(CreateVolume(volume=f"vol{number}")) for number in range(count)]


def test_calls_are_answered_in_order_and_carry_positions(site: DoorSite):
    leader = site.lead()
    with Client(nodes=[site.address], caller="ann") as client:
        assert client.shards == 1
        answers = [one.result(WAIT_S) for one in submitted(client, 300)]
    assert [answer.index for answer in answers] == list(range(1, 301))
    assert [request.body for request in leader.executed] == [CreateVolume(volume=f"vol{n}") for n in range(300)]
    assert {request.caller for request in leader.executed} == {"ann"}
    assert client.positions == {0: 300}


def test_a_node_is_named_by_url_too(site: DoorSite):
    site.lead()
    with Client(nodes=[f"http://{site.address}/"]) as client:
        assert client.call(DeleteVolume(volume="v")).index == 1


def test_privileged_calls_bring_their_proof(site: DoorSite):
    leader = site.lead()
    with Client(nodes=[site.address], cluster_secret=SECRET) as client:
        client.call(CreateVolume(volume="v"))
        client.call(PurgeBlocks(shard=0, rows=[b"row"]))
    assert [type(request.body) for request in leader.executed] == [CreateVolume, PurgeBlocks]


def test_calls_wait_for_a_leader_and_go_to_the_next_one(site: DoorSite):
    with DoorSite(node="om2") as other:
        with Client(nodes=[site.address, other.address]) as client:
            waiting = submitted(client, 5)
            time.sleep(0.05)
            assert not any(one.done() for one in waiting), "nobody leads"
            first = site.lead(term=1)
            assert [one.result(WAIT_S).index for one in waiting] == [1, 2, 3, 4, 5]
            first.holds = True
            held = submitted(client, 3)
            eventually(lambda: len(first.executed) >= 8)
            site.depose()
            site.follow(2, "om2", other.address)
            second = other.lead(term=2)
            assert [one.result(WAIT_S).status for one in held] == ["OK"] * 3
        calls = [request.call_id for request in second.executed]
        assert sorted(set(calls)) == [6, 7, 8], "the same calls, for retry rows to absorb"
        assert [request.body for request in first.executed[5:8]] == [second.executed[0].body] + [
            CreateVolume(volume=f"vol{n}") for n in (1, 2)
        ]


def test_a_leader_that_is_not_among_the_nodes_given_is_found(site: DoorSite):
    with DoorSite(node="om2") as other:
        leader = other.lead(term=3)
        site.follow(3, "om2", other.address)
        with Client(nodes=[site.address]) as client:
            client.call(CreateVolume(volume="v"))
        assert len(leader.executed) == 1


def test_a_call_whose_connection_breaks_is_sent_again_at_once(site: DoorSite):
    leader = site.lead()
    leader.holds = True
    with Client(nodes=[site.address]) as client:
        call = client.submit(CreateVolume(volume="v"))
        eventually(lambda: leader.executed)
        leader.holds = False
        begun_s = time.monotonic()

        async def cut() -> None:
            for connection in list(site.door._connections):
                transport = connection._transport
                assert transport is not None
                transport.abort()

        site.do(cut())
        assert call.result(WAIT_S).index == 2
        assert time.monotonic() - begun_s < client.pipeline._settings.policy.silence_ms / 1000
    assert len({request.call_id for request in leader.executed}) == 1


def test_without_a_node_there_is_no_client():
    (port,) = free_ports(1)
    with pytest.raises(NotConnected, match=f"127.0.0.1:{port}: ECONNREFUSED"):
        Client(nodes=[f"127.0.0.1:{port}"], connect_timeout_ms=200)


def test_what_answers_but_is_no_node_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def smtp() -> None:
            peer, _ = server.accept()
            peer.sendall(b"220 mail ready\r\n")
            time.sleep(1)
            peer.close()

        threading.Thread(target=smtp, daemon=True).start()
        with pytest.raises(NotConnected, match="what answers is no node"):
            Client(nodes=[f"127.0.0.1:{server.getsockname()[1]}"], connect_timeout_ms=300)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_an_address_that_is_none_is_refused_by_name(address: str):
    with pytest.raises(ValueError, match="nodes must hold addresses of nodes"):
        make_settings(
            "", caller=None, deadline_ms=1, max_in_flight=1, max_linger_ms=0, connect_timeout_ms=1, nodes=[address]
        )


def test_a_client_needs_brokers_or_nodes():
    with pytest.raises(ValueError, match=r"must name a broker, as in 127.0.0.1:9092 \(or give nodes\)"):
        Client()


def test_a_closed_client_says_so(site: DoorSite):
    site.lead().holds = True
    client = Client(nodes=[site.address])
    call = client.submit(CreateVolume(volume="v"))
    client.close(timeout_ms=50)
    assert isinstance(call.exception(), OutcomeUnknown)
    with pytest.raises(ClientClosed):
        client.submit(CreateVolume(volume="v"))


# -- lookups -----------------------------------------------------------------------------------------------------------


def test_keys_are_looked_up_by_the_door(site: DoorSite):
    for name in ("a", "ü/ß"):
        site.add_key(name)
    with Client(nodes=[site.address]) as client:
        for consistency in ("stale", "session", "linearizable"):
            view = client.key_info("vol1", "bucket1", "ü/ß", consistency=consistency)
            assert (view.info.key, view.positions) == ("ü/ß", {0: 100})
        found = client.key_infos("vol1", "bucket1", ["a", "none", "ü/ß"], consistency="stale")
    assert [None if view is None else view.info.key for view in found] == ["a", None, "ü/ß"]
    assert site.opened == [], "few keys make no snapshot"
    assert site.asked == [("linearizable", {})], "the session's index is there: nobody is asked"


def test_what_does_not_exist_is_named_as_over_http(site: DoorSite):
    with Client(nodes=[site.address]) as client:
        with pytest.raises(NotFound, match="key 'x' in bucket /vol1/bucket1 does not exist") as key:
            client.key_info("vol1", "bucket1", "x", consistency="stale")
        with pytest.raises(NotFound, match="bucket /vol1/none does not exist") as bucket:
            client.key_info("vol1", "none", "x", consistency="stale")
        with pytest.raises(NotFound, match="volume /vol9 does not exist") as volume:
            client.key_info("vol9", "bucket1", "x", consistency="stale")
        with pytest.raises(RequestFailed, match="bucket name") as name:
            client.key_info("vol1", "B", "x", consistency="stale")
    statuses = [caught.value.status for caught in (key, bucket, volume, name)]
    assert statuses == ["KEY_NOT_FOUND", "BUCKET_NOT_FOUND", "VOLUME_NOT_FOUND", "INVALID_BUCKET_NAME"]


def test_names_that_no_frame_holds_are_refused_as_over_http(site: DoorSite):
    long = "k" * 5_000_000
    with Client(nodes=[site.address]) as client:
        for ask in (
            lambda: client.key_info("vol1", "bucket1", long, consistency="stale"),
            lambda: client.key_infos("vol1", "bucket1", ["a", long], consistency="stale"),
            lambda: list(client.list_keys("vol1", "bucket1", prefix=long)),
        ):
            with pytest.raises(RequestFailed, match="bucket /?.*bucket1.*: a name is too long") as refused:
                ask()
            assert refused.value.status == "INVALID_REQUEST"
            assert len(str(refused.value)) < 1000, "the name is cut"
        transport = client.pipeline._transport
        assert isinstance(transport, DirectTransport)
        assert transport._lookups == {}


def test_a_session_waits_for_its_own_writes(site: DoorSite):
    site.add_key("a")
    site.lead()
    with Client(nodes=[site.address]) as client:
        client.pipeline._calls.positions[0] = 101
        answer = client.pipeline.look_up("vol1", "bucket1", ["a"], "session")
        assert answer is not None
        time.sleep(0.05)
        assert not answer.done()
        site.position.index = 101
        assert answer.result(WAIT_S).index == 101


def test_many_lookups_share_one_read_index(site: DoorSite):
    site.add_key("a")
    with Client(nodes=[site.address]) as client:
        asked = [client.pipeline.look_up("vol1", "bucket1", ["a"], "linearizable") for _ in range(200)]
        answers = [one.result(WAIT_S) for one in asked if one is not None]
    assert len(answers) == 200
    assert {answer.status for answer in answers} == {"OK"}
    assert len([consistency for consistency, _ in site.asked if consistency == "linearizable"]) < 50


@pytest.mark.parametrize("code", ["NO_LEADER", "NOT_CAUGHT_UP", "REPLICA_FLAGGED"])
def test_a_node_that_may_not_answer_says_so(site: DoorSite, code: str):
    site.readable = code
    with Client(nodes=[site.address]) as client:
        answer = client.pipeline.look_up("vol1", "bucket1", ["a"], "linearizable")
        assert answer is not None
        assert answer.result(WAIT_S).status == code


def test_a_lookup_whose_connection_breaks_fails(site: DoorSite):
    site.readable = None
    transport = DirectTransport([site.address], bytes(16), connect_timeout_ms=5000)
    site.do(_close_all(site))
    read = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["a"])
    answer = transport.look_up(read, 0)
    transport.receive(200, gather=True)
    transport.close()
    assert answer is None or answer.exception(WAIT_S) is not None


async def _close_all(site: DoorSite) -> None:
    for connection in list(site.door._connections):
        connection.close()


def test_keys_are_listed_by_the_door_in_pages(site: DoorSite):
    names = [f"dir/{number:03d}" for number in range(7)]
    for name in [*names, "other"]:
        site.add_key(name)
    with Client(nodes=[site.address]) as client:
        listed = list(client.list_keys("vol1", "bucket1", consistency="session"))
        assert [info.key for info in listed] == [*names, "other"]
        assert listed[0] == replace(client.key_info("vol1", "bucket1", "dir/000", consistency="stale").info, blocks=[])
        assert [info.key for info in client.list_keys("vol1", "bucket1", prefix="dir/", start_after="dir/003")] == [
            "dir/004", "dir/005", "dir/006",
        ]  # fmt: skip
        page = client.reads.keys_page("vol1", "bucket1", prefix="dir/", limit=3, consistency="stale")
        assert ([info.key for info in page.entries], page.next_after, page.positions) == (names[:3], names[2], {0: 100})
        page = client.reads.keys_page("vol1", "bucket1", prefix="dir/", start_after=names[3], limit=3)
        assert ([info.key for info in page.entries], page.next_after) == (names[4:], None)
        assert list(client.list_keys("vol1", "bucket1", prefix="dir0")) == []
        with pytest.raises(NotFound, match="bucket /vol1/nowhere does not exist"):
            list(client.list_keys("vol1", "nowhere"))
        with pytest.raises(NotFound, match="volume /nowhere does not exist"):
            list(client.list_keys("nowhere", "nowhere"))
    assert all(rows.closed == 1 for rows in site.opened)
