"""The typed methods, sync and async, over a cluster in memory; the load generator."""

import asyncio
import socket

import pytest

from om_processors.namespace import ids
from producers.async_client import READ_WORKERS, AsyncClient
from producers.bulk.load import LoadSpec, run_load
from producers.errors import ClientClosed, OutcomeUnknown, RequestFailed
from producers.requests.core.calls import Policy
from producers.requests.engine import RequestEngine
from schemas.codecs import codec
from schemas.records.messages import (
    AllocateBlock,
    AllocatedBlock,
    CommitKey,
    CreateBucket,
    CreatedSnapshot,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    DeleteSnapshot,
    DeleteVolume,
    KeySession,
    LogDigestBase,
    PutKey,
    RenameKey,
    RenameSnapshot,
    Request,
    SetBucketProperty,
    SetSnapshotProperty,
    SetVolumeProperty,
)
from schemas.records.rows import BlockLocation
from tests.support.local.secret import SECRET
from tests.support.sdk.memory import MemoryCluster, MemoryConnection, client_to, pipeline_to
from tests.support.sdk.nodes import Node

BLOCK = BlockLocation(container_id=1, local_id=2, offset=0, length=5, pipeline="p1")
CALLS = [
    (lambda c: c.create_volume("v", owner="o", quota_in_bytes=1, quota_in_namespace=2),
     CreateVolume(volume="v", owner="o", quota_in_bytes=1, quota_in_namespace=2)),
    (lambda c: c.set_volume_property("v", owner="o", quota_in_bytes=1, quota_in_namespace=2),
     SetVolumeProperty(volume="v", owner="o", quota_in_bytes=1, quota_in_namespace=2)),
    (lambda c: c.delete_volume("v"), DeleteVolume(volume="v")),
    (lambda c: c.create_bucket("v", "b", owner="o", quota_in_bytes=1, quota_in_namespace=2),
     CreateBucket(volume="v", bucket="b", owner="o", quota_in_bytes=1, quota_in_namespace=2)),
    (lambda c: c.set_bucket_property("v", "b", owner="o", quota_in_bytes=1, quota_in_namespace=2),
     SetBucketProperty(volume="v", bucket="b", owner="o", quota_in_bytes=1, quota_in_namespace=2)),
    (lambda c: c.delete_bucket("v", "b"), DeleteBucket(volume="v", bucket="b")),
    (lambda c: c.create_key("v", "b", "k", size=5, replication="R", metadata={"a": "1"}),
     CreateKey(volume="v", bucket="b", key="k", size=5, replication="R", metadata={"a": "1"})),
    (lambda c: c.allocate_block("v", "b", "k", 7, excluded_pipelines=("p",)),
     AllocateBlock(volume="v", bucket="b", key="k", session_id=7, excluded_pipelines=["p"])),
    (lambda c: c.commit_key("v", "b", "k", 7, size=5, blocks=(BLOCK,)),
     CommitKey(volume="v", bucket="b", key="k", session_id=7, size=5, blocks=[BLOCK])),
    (lambda c: c.put_key("v", "b", "k", b"x", replication="R", metadata={"a": "1"}),
     PutKey(volume="v", bucket="b", key="k", data=b"x", replication="R", metadata={"a": "1"})),
    (lambda c: c.delete_key("v", "b", "k"), DeleteKey(volume="v", bucket="b", key="k")),
    (lambda c: c.rename_key("v", "b", "k", "l"), RenameKey(volume="v", bucket="b", from_key="k", to_key="l")),
    (lambda c: c.create_snapshot("v", "b", "s"), CreateSnapshot(volume="v", bucket="b", snapshot="s")),
    (lambda c: c.create_snapshot("v", "b"), CreateSnapshot(volume="v", bucket="b", snapshot="")),
    (lambda c: c.delete_snapshot("v", "b", "s"), DeleteSnapshot(volume="v", bucket="b", snapshot="s")),
    (lambda c: c.rename_snapshot("v", "b", "s", "t"), RenameSnapshot(volume="v", bucket="b", snapshot="s", to="t")),
    (lambda c: c.set_snapshot_properties("v", "b", "s", {"a": "1"}),
     SetSnapshotProperty(volume="v", bucket="b", snapshot="s", properties={"a": "1"})),
    (lambda c: c.log_digest_base(1, 5, slots=(1,), sums=(2,), basis="oracle"),
     LogDigestBase(shard=1, index=5, slots=[1], sums=[2], basis="oracle")),
]  # fmt: skip


def prepared() -> MemoryCluster:
    """A cluster on which each request of CALLS succeeds."""
    cluster = MemoryCluster()

    def apply(body):
        if isinstance(body, CreateKey):
            return KeySession(session_id=7, object_id=6, blocks=[BLOCK])
        if isinstance(body, CreateSnapshot):
            return CreatedSnapshot(snapshot=body.snapshot or "made", snapshot_id=8)
        return AllocatedBlock(block=BLOCK) if isinstance(body, AllocateBlock) else None

    cluster.apply = apply  # type: ignore[method-assign]
    return cluster


@pytest.mark.parametrize(("act", "body"), CALLS, ids=[type(body).__name__ for _, body in CALLS])
def test_a_method_sends_its_request(act, body):
    cluster = prepared()
    client, _ = client_to(cluster)
    act(client)
    assert client.close() == []
    assert [codec.decode(value).body for value in cluster.seen] == [body]


@pytest.mark.parametrize(("act", "body"), CALLS, ids=[type(body).__name__ for _, body in CALLS])
def test_an_async_method_sends_its_request(act, body):
    cluster = prepared()

    async def main():
        async with async_client_to(cluster) as client:
            await act(client)

    asyncio.run(main())
    assert [codec.decode(value).body for value in cluster.seen] == [body]


def async_client_to(cluster, **parameters) -> AsyncClient:
    def open_pipeline(settings):
        return RequestEngine(settings, connect=lambda _settings, _client_id: MemoryConnection(cluster))

    return AsyncClient("memory:0", open_pipeline=open_pipeline, cluster_secret=SECRET, **parameters)


def test_every_method_refuses_what_the_server_refuses():
    client, _ = client_to(MemoryCluster())
    with pytest.raises(RequestFailed, match="VOLUME_NOT_FOUND.*CreateKey /v/b/k"):
        client.create_key("v", "b", "k", size=1)
    client.close()


def test_results_are_sessions_and_blocks():
    client, _ = client_to(MemoryCluster())
    client.create_volume("v")
    client.create_bucket("v", "b")
    session = client.create_key("v", "b", "k", size=5)
    assert (session.session_id, len(session.blocks)) == (ids.session_id(ids.object_id(0, 3)), 1)
    assert client.allocate_block("v", "b", "k", session.session_id).pipeline == "p1"
    assert client.positions
    client.close()


def test_a_closed_client_says_so():
    client, _ = client_to(MemoryCluster(), read_from=["http://127.0.0.1:1"])
    with client:
        pass
    with pytest.raises(ClientClosed):
        client.create_volume("v")
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.volume_info("v")


def test_reads_go_to_the_nodes_and_carry_the_session():
    cluster = MemoryCluster()
    node = Node(cluster)
    client, _ = client_to(cluster, read_from=[node.address])
    with client:
        client.create_volume("v")
        assert client.volume_info("v", consistency="session").info.volume == "v"
        (shard, index), *_ = client.positions.items()
        assert node.queries[-1][1]["session"] == f"{shard}:{index}"
        assert [info.volume for info in client.list_volumes()] == ["v"]
        assert list(client.list_buckets("v")) == []
        assert list(client.list_keys("v", "b")) == []
    node.close()


def test_thousands_of_futures():
    client, _ = client_to(MemoryCluster())
    futures = [client.submit(CreateVolume(volume=f"v{number}")) for number in range(3000)]
    assert [future.result(60).status for future in futures] == ["OK"] * 3000
    assert not futures[0].cancel()
    client.close()


def test_thousands_of_awaited_calls_with_fewer_places():
    cluster = MemoryCluster()

    async def main():
        async with async_client_to(cluster, max_in_flight=100) as client:
            await asyncio.gather(*(client.create_volume(f"v{number}") for number in range(3000)))
            with pytest.raises(RequestFailed, match="VOLUME_ALREADY_EXISTS"):
                await client.create_volume("v1")

    asyncio.run(main())
    assert len(cluster.volumes) == 3000


def test_a_cancelled_await_leaves_the_request_in_flight():
    cluster = MemoryCluster()
    connections = []

    async def main():
        def open_pipeline(settings):
            connections.append(MemoryConnection(cluster))
            connections[-1].held = True
            return RequestEngine(settings, connect=lambda _settings, _client_id: connections[-1])

        async with AsyncClient("memory:0", open_pipeline=open_pipeline) as client:
            task = asyncio.create_task(client.create_volume("v1"))
            while not cluster.volumes:  # noqa: ASYNC110 - the twin runs on other threads
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            connections[0].release()
            await client.create_volume("v2")

    asyncio.run(main())
    assert set(cluster.volumes) == {"v1", "v2"}


def test_a_client_that_is_closed_has_closed_its_connections_to_nodes_and_brokers():
    client, connection = client_to(MemoryCluster())
    assert client.close() == []
    assert client.close() == []
    assert (client.reads._http.is_closed, connection.closed) == (True, True)

    async def main():
        connected = async_client_to(MemoryCluster())
        async with connected:
            assert not connected.reads._http.is_closed
        assert connected.reads._http.is_closed

    asyncio.run(main())


def test_neither_the_close_of_an_awaited_client_nor_its_loop_waits_for_reads():
    """More of them than the loop has threads kept close() waiting until their own deadline, 40 s behind its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pipeline, _ = pipeline_to(MemoryCluster(), Policy())

        async def main():
            client = AsyncClient("memory:0", read_from=[address], deadline_ms=300_000, open_pipeline=lambda _: pipeline)
            await client.connect()
            reads = [asyncio.create_task(client.volume_info("v")) for _ in range(2 * READ_WORKERS)]
            await asyncio.sleep(0.1)
            assert await client.close(timeout_ms=0) == []
            assert not any(read.done() for read in reads)
            with pytest.raises(ClientClosed):
                await client.volume_info("v")
            with pytest.raises(ClientClosed):
                await anext(client.list_volumes())
            return reads

        assert all(read.cancelled() for read in asyncio.run(main()))


def test_an_awaited_client_has_so_many_requests_in_flight_and_the_next_waits():
    cluster = MemoryCluster()
    connections = []

    def open_pipeline(settings):
        connections.append(MemoryConnection(cluster))
        connections[-1].held = True
        return RequestEngine(settings, connect=lambda *_: connections[-1])

    async def main():
        async with AsyncClient("memory:0", open_pipeline=open_pipeline, max_in_flight=2) as client:
            futures = [await client.submit(CreateVolume(volume=name)) for name in ("v1", "v2")]
            third = asyncio.create_task(client.submit(CreateVolume(volume="v3")))
            await asyncio.sleep(0.05)
            assert not third.done()
            connections[0].release()
            assert [(await future).status for future in futures] == ["OK", "OK"]
            assert (await (await third)).status == "OK"

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_an_awaited_with_block_that_ends_with_unanswered_requests_says_so(fails, caplog, monkeypatch):
    cluster = MemoryCluster()
    connections = []

    def open_pipeline(settings):
        connections.append(MemoryConnection(cluster))
        connections[-1].lost = lambda _sent: True
        return RequestEngine(settings, connect=lambda *_: connections[-1])

    async def main():
        client = AsyncClient("memory:0", open_pipeline=open_pipeline)
        real = client.close
        monkeypatch.setattr(client, "close", lambda: real(10))
        async with client:
            await client.submit(CreateVolume(volume="v1"))
            if fails:
                raise ZeroDivisionError

    expected = ZeroDivisionError if fails else OutcomeUnknown
    with pytest.raises(expected, match=None if fails else "CreateVolume"):
        asyncio.run(main())
    assert any("CreateVolume /v1" in record.getMessage() for record in caplog.records) == fails


def test_async_reads_and_listings():
    cluster = MemoryCluster()
    node = Node(cluster)

    async def main():
        async with async_client_to(cluster, read_from=[node.address]) as client:
            await client.create_volume("v")
            await client.create_bucket("v", "b")
            assert (await client.volume_info("v")).info.volume == "v"
            assert (await client.bucket_info("v", "b", consistency="session")).info.bucket == "b"
            assert [info.volume async for info in client.list_volumes()] == ["v"]
            assert [info.bucket async for info in client.list_buckets("v")] == ["b"]
            assert [info.key async for info in client.list_keys("v", "b")] == []
            with pytest.raises(RequestFailed):
                await client.key_info("v", "b", "k")

    asyncio.run(main())
    node.close()


def test_an_async_client_before_its_connection_says_so():
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(AsyncClient("memory:0").create_volume("v"))


@pytest.mark.parametrize("in_flight", [1, 2, 50])
def test_the_load_generator_counts_every_request(in_flight):
    cluster = MemoryCluster()
    client, _ = client_to(cluster)
    client.create_volume("v")
    client.create_bucket("v", "b")
    before = len(cluster.seen)
    spec = LoadSpec(volume="v", bucket="b", in_flight=in_flight, pairs=100, warm_up_seconds=0, seconds=60, size=5)
    result = run_load(client, spec)
    assert (result.requests, result.failures, result.in_flight) == (200, {}, in_flight)
    assert len(cluster.seen) - before == 200
    assert len(cluster.keys) == 100
    assert result.requests_per_second > 0
    assert 0 < result.p50_ms <= result.p99_ms <= result.max_ms
    client.close()


def test_the_load_generator_makes_rows_as_large_as_asked():
    cluster = MemoryCluster()
    client, _ = client_to(cluster)
    client.create_volume("v")
    client.create_bucket("v", "b")
    run_load(client, LoadSpec(volume="v", bucket="b", in_flight=2, pairs=3, warm_up_seconds=0, metadata_bytes=1000))
    bodies = [codec.decode_as(Request, value).body for value in cluster.seen]
    texts = [body.metadata["random"] for body in bodies if isinstance(body, CreateKey)]
    assert [len(text) for text in texts] == [1000] * 3
    assert len(set(texts)) == 3
    client.close()


@pytest.mark.parametrize("in_flight", [1, 10])
def test_the_load_generator_names_failures_and_gives_up(in_flight):
    client, _ = client_to(MemoryCluster())
    result = run_load(client, LoadSpec(volume="v", bucket="b", in_flight=in_flight, seconds=60))
    assert result.requests == 0
    assert result.failures["VOLUME_NOT_FOUND"] >= 1000
    client.close()


def test_the_load_generator_ends_when_its_client_does():
    client, connection = client_to(MemoryCluster(), Policy(deadline_ms=50))
    connection.lost = lambda _sent: True
    result = run_load(client, LoadSpec(volume="v", bucket="b", in_flight=4, pairs=4, warm_up_seconds=0))
    assert result.failures == {"DEADLINE_EXCEEDED": 4}
    client.close()
    assert run_load(client, LoadSpec(volume="v", bucket="b", in_flight=4, pairs=9)).failures == {"CLIENT_CLOSED": 4}


@pytest.mark.parametrize(
    "wrong",
    [{"in_flight": 0}, {"seconds": 0}, {"warm_up_seconds": -1}, {"pairs": -1}, {"size": -1}, {"metadata_bytes": -1}],
)
def test_a_load_out_of_range_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoadSpec(**({"volume": "v", "bucket": "b", "in_flight": 1} | wrong))


def test_an_unknown_outcome_reaches_the_blocking_caller():
    client, connection = client_to(MemoryCluster(), Policy(deadline_ms=50))
    connection.lost = lambda _sent: True
    with pytest.raises(OutcomeUnknown, match="CreateVolume /v"):
        client.create_volume("v")
    client.close()


def test_a_request_that_is_not_taken_gives_its_room_back():
    """With room for one call, the next one would wait for ever."""

    async def main():
        async with async_client_to(MemoryCluster(), max_in_flight=1) as client:
            client.pipeline.submit = fail  # type: ignore[method-assign]
            with pytest.raises(ZeroDivisionError):
                await client.submit(CreateVolume(volume="v"))
            del client.pipeline.submit
            await asyncio.wait_for(client.call(CreateVolume(volume="v")), 10)

    def fail(*_):
        raise ZeroDivisionError

    asyncio.run(main())
