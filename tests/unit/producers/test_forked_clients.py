"""A client on both sides of a fork (decision 0098): real forks, datanodes and doors on real sockets.

What a forked process does to the Object Manager in memory happens in its own copy of it; datanodes, nodes' HTTP and the
door are those of the first process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from producers.async_client import AsyncClient
from producers.client import Client
from producers.errors import (
    WRONG_PROCESS,
    ClientClosed,
    NotConnected,
    OutcomeUnknown,
    RequestFailed,
    StratologError,
)
from producers.files.core.block_stock import BUSY_KEYS
from producers.reads.reads import Reads
from producers.requests.core.calls import Done, Policy
from producers.requests.engine import RequestSettings
from schemas.records.messages import CreateVolume, ReleaseBlocks, RequestBody
from stratolog.local.ports import free_ports
from tests.support.local.forked import begin_child, found_by, in_child
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite
from tests.support.sdk.datanodes import KIB, World
from tests.support.sdk.memory import MemoryCluster, client_to, pipeline_to
from tests.support.sdk.nodes import Node
from tests.support.sdk.written import some_bytes
from transport.waiting.deadline import Deadline

SIZE = 60 * KIB
SHORT_MS = 500


def refused(do: Callable[[], object], status: str = WRONG_PROCESS) -> bool:
    """Say whether a call is refused with a status."""
    try:
        do()
    except StratologError as error:
        return error.status == status
    return False


def name_other_blocks(world: World) -> None:
    """Have a forked process's copy of the Object Manager allocate no block that the first one's may."""
    world.cluster.allocated.extend([None] * 1000)


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        found.lead()
        yield found


# -- reads


def test_processes_that_read_at_the_same_time_each_get_their_own_bytes(make: Any) -> None:
    world: World = make(replicas=1)
    keys = {f"/v/b/k{n}": bytes([n]) * SIZE for n in range(5)}
    for path, data in keys.items():
        world.put(data, path)
        assert world.get(path) == data  # its connection is kept now
    opened = {path: world.client.open(path) for path in keys}
    begun = {path: file.read(KIB) for path, file in opened.items()}  # an answer is under way on each

    def reads(path: str) -> bool:
        rest = begun[path] + opened[path].read() == keys[path]
        return rest and all(world.get(path) == keys[path] for _ in range(50))

    paths = iter(keys)
    mine = next(paths)
    children = [begin_child(lambda path=path: reads(path)) for path in paths]  # type: ignore[misc]
    assert reads(mine)
    assert [found_by(child) for child in children] == [True] * 4
    for path, file in opened.items():
        file.seek(0)
        assert file.read() == keys[path]
        file.close()


def test_a_forked_process_reads_rows_over_connections_of_its_own() -> None:
    cluster = MemoryCluster()
    client, _ = client_to(cluster)
    client.create_volume("v1")
    with closing(Node(cluster)) as node, closing(Reads([node.address], deadline_ms=5_000)) as reads:
        assert reads.volume_info("v1").info.volume == "v1"
        first = reads._http
        assert in_child(lambda: reads._http is not first and reads.volume_info("v1").info.volume == "v1")
        assert reads._http is first
        assert reads.volume_info("v1").info.volume == "v1"
    client.close()


# -- requests


def test_a_request_of_a_forked_process_is_one_of_another_client(site: DoorSite) -> None:
    assert site.leader is not None
    with Client(nodes=[site.address], deadline_ms=5_000) as client:
        first = client.client_id
        client.create_volume("before")

        def look() -> bool:
            answer = client.call(CreateVolume(volume="child"))
            return answer.client_id == client.client_id != first and answer.call_id == 1

        children = [begin_child(look) for _ in range(4)]
        answers = [client.call(CreateVolume(volume=f"mine{n}")) for n in range(20)]
        assert [found_by(child) for child in children] == [True] * 4
        assert {answer.client_id for answer in answers} == {first}
        assert [answer.call_id for answer in answers] == list(range(2, 22))
        executed = [(request.client_id, request.call_id) for request in site.leader.executed]
        assert len(executed) == len(set(executed)) == 25
        assert len({client_id for client_id, _ in executed}) == 5


def test_what_the_first_process_wrote_is_seen_by_session_reads_of_a_forked_one() -> None:
    client, _ = client_to(MemoryCluster())
    client.create_volume("v1")
    before = dict(client.positions)
    assert before
    assert in_child(lambda: client.positions == before and client.in_flight == 0)
    client.close()


@pytest.mark.parametrize("held", ["_lock", "_send_lock", "_opening"])
def test_a_lock_that_a_thread_holds_at_the_fork_does_not_stop_the_forked_process(held: str) -> None:
    client, _ = client_to(MemoryCluster())

    def look() -> bool:
        client.create_volume("child")
        return client.close() == []

    with getattr(client.pipeline, held):
        assert in_child(look)
    client.create_volume("mine")
    client.close()


def test_a_call_that_nobody_answers_ends_at_its_deadline_in_a_forked_process(site: DoorSite) -> None:
    assert site.leader is not None
    client = Client(nodes=[site.address], deadline_ms=SHORT_MS)
    site.leader.holds = True

    def look() -> bool:
        return refused(lambda: client.create_volume("v"), "DEADLINE_EXCEEDED") and client.close(timeout_ms=0) == []

    assert in_child(look)
    client.close(timeout_ms=0)


def test_a_forked_process_that_cannot_connect_says_so_within_the_deadline(site: DoorSite) -> None:
    """Nobody listens any more, or who listens takes connections and says nothing."""
    client = Client(nodes=[site.address], deadline_ms=SHORT_MS, connect_timeout_ms=600_000)
    client.create_volume("before")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], *free_ports(1)):
            elsewhere = replace(client.pipeline._settings, nodes=(f"127.0.0.1:{port}",))

            def look(elsewhere: RequestSettings = elsewhere) -> bool:
                client.pipeline._settings = elsewhere
                for _ in range(2):  # each call tries anew
                    with pytest.raises(NotConnected):
                        client.create_volume("v")
                return client.close() == []

            assert in_child(look)
    client.close()


def test_an_answer_to_the_first_process_is_not_awaited_in_a_forked_one() -> None:
    client, connection = client_to(MemoryCluster())
    told = client.submit(CreateVolume(volume="told"))
    told.result(10)
    connection.held = True
    asked: Future[Any] = client.submit(CreateVolume(volume="asked"))

    def look() -> bool:
        for wait in (asked.result, asked.exception):
            with pytest.raises(OutcomeUnknown, match="sent the request and hears the answer"):
                wait()
        return told.result().status == "OK" and told.exception() is None

    assert in_child(look)
    connection.release()
    assert asked.result(10).status == "OK"
    client.close()


def test_a_callback_that_forks_leaves_both_processes_as_they_should_be() -> None:
    client, connection = client_to(MemoryCluster())
    found: list[bool] = []
    done = threading.Event()

    def fork(_outcome: object) -> None:
        found.append(in_child(lambda: client.call(CreateVolume(volume="child")).status == "OK"))
        done.set()

    client.submit_with(CreateVolume(volume="v"), fork)
    assert done.wait(60)
    assert found == [True]
    assert client.call(CreateVolume(volume="w")).status == "OK"
    assert not connection.closed
    client.close()


def test_what_a_callbacks_fork_has_of_the_poller_ends_without_closing_anything() -> None:
    pipeline, connection = pipeline_to(MemoryCluster(), Policy())
    child: list[int] = []

    def fork(_outcome: object) -> None:
        child.append(os.fork())

    pipeline.submit(CreateVolume(volume="v"), fork)
    eventually(lambda: bool(child))
    try:  # its only thread ends, and with it the process
        eventually(lambda: os.waitpid(child[0], os.WNOHANG)[0] != 0)
    except BaseException:
        os.kill(child[0], signal.SIGKILL)
        raise
    assert not connection.closed
    pipeline.close(Deadline.after_s(10))


def test_a_client_that_is_closed_stays_closed_and_one_that_is_not_is_closed_in_one_process_alone() -> None:
    closed, _ = client_to(MemoryCluster())
    closed.close()
    client, connection = client_to(MemoryCluster())

    def look() -> bool:
        with pytest.raises(ClientClosed):
            closed.create_volume("v")
        assert client.close() == []
        with pytest.raises(ClientClosed):
            client.create_volume("v")
        return client.close() == []

    assert in_child(look)
    assert not connection.closed
    client.create_volume("v")
    client.close()


def test_the_forked_process_of_a_forked_process_is_another_client_again() -> None:
    client, _ = client_to(MemoryCluster())
    first = client.client_id

    def look() -> bool:
        client.create_volume("child")
        second = client.client_id

        def look_again() -> bool:
            client.create_volume("grandchild")
            return len({first, second, client.client_id}) == 3

        return in_child(look_again)

    assert in_child(look)
    client.close()


# -- writing


def test_a_key_that_is_being_written_is_the_first_processes_alone(make: Any) -> None:
    world: World = make()
    data = some_bytes(700 * KIB)
    file = world.client.open("/v/b/k", "wb", options=world.options)
    file.write(data[: 300 * KIB])
    file.hsync()

    def look() -> bool:
        uses = (
            lambda: file.write(b"x"), file.flush, file.hsync, file.tell, file.locations, file.statistics,
            file.__enter__, lambda: file.interrupt("x"), file.close,
        )  # fmt: skip
        assert all(refused(use) for use in uses)
        assert file.closed
        file.close()
        file.abort()
        file.__del__()
        return True

    first = os.getpid()

    def says() -> bool:
        with pytest.raises(
            RequestFailed, match=f"by process {first}, and this one, {os.getpid()}, .*open the key again"
        ):
            file.write(b"x")
        return True

    assert in_child(says)
    assert in_child(look)

    def lets_go() -> bool:
        file.abort()
        return file.closed

    assert in_child(lets_go)
    file.write(data[300 * KIB :])
    file.close()
    world.check_replicas(data)
    assert world.get() == data


def test_a_forked_process_writes_keys_of_its_own(make: Any) -> None:
    world: World = make()
    data = some_bytes(300 * KIB)
    world.put(data, "/v/b/before")

    def look() -> bool:
        name_other_blocks(world)
        world.put(data, "/v/b/child")
        return world.get("/v/b/before") == data and bool(world.key("child").blocks)

    assert in_child(look)
    world.put(data, "/v/b/after")
    assert world.get("/v/b/after") == data


def test_what_the_first_process_has_reserved_is_neither_used_nor_given_back_by_a_forked_one(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world: World = make(small=True)
    for n in range(4 * BUSY_KEYS):
        world.put(b"x" * KIB, f"/v/b/small{n}")
    stocks = world.client.streams.reservations._stocks
    assert stocks, "blocks are reserved"

    def look() -> bool:
        assert not world.client.streams.reservations._stocks
        name_other_blocks(world)
        world.put(b"y" * KIB, "/v/b/child")
        sent: list[object] = []
        submit = world.client.pipeline.submit

        def note(body: RequestBody, done: Done) -> None:
            sent.append(body)
            submit(body, done)

        monkeypatch.setattr(world.client.pipeline, "submit", note)
        world.client.close()
        return not any(isinstance(body, ReleaseBlocks) for body in sent)

    assert in_child(look)
    assert world.client.streams.reservations._stocks is stocks
    for n in range(BUSY_KEYS):
        world.put(b"z" * KIB, f"/v/b/more{n}")
        assert world.get(f"/v/b/more{n}") == b"z" * KIB


# -- asyncio


def test_an_asyncio_client_is_of_the_process_that_connected_it(make: Any) -> None:
    world: World = make()
    world.put(b"hello")

    async def main() -> None:
        pipeline, connection = pipeline_to(world.cluster, Policy())
        client = AsyncClient("memory:0", read_from=[world.om.address], open_pipeline=lambda _: pipeline)
        unconnected = AsyncClient("memory:0", open_pipeline=lambda _: pipeline_to(world.cluster, Policy())[0])
        async with client:
            await client.create_volume("v2")
            file = await client.open("/v/b/k")

            def look() -> bool:
                async def use() -> None:
                    with pytest.raises(RequestFailed, match="make one of its own in each process"):
                        await client.create_volume("v3")
                    for do in (client.connect, lambda: client.volume_info("v"), file.read, file.close, file.abort):
                        with pytest.raises(RequestFailed, match="WRONG_PROCESS"):
                            await do()
                    with pytest.raises(RequestFailed, match="WRONG_PROCESS"):
                        _ = client.client_id
                    assert await client.close() == []
                    await unconnected.connect()
                    await unconnected.create_volume("v4")

                in_loop = threading.Thread(target=lambda: seen.append(asyncio.run(use()) is None))
                seen: list[bool] = []
                in_loop.start()
                in_loop.join()
                return seen == [True]

            assert in_child(look)
            assert await file.read() == b"hello"
            await file.close()
            await client.create_volume("v5")
            assert not connection.closed

    asyncio.run(main())


# -- the end of a forked process


ENDS = """
import os, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.support.sdk.datanodes import KIB, World
world = World(Path(sys.argv[1]), small=True)
for n in range(40):
    world.put(b"x" * KIB, f"/v/b/{n}")
writing = world.client.open("/v/b/open", "wb", options=world.options)
writing.write(b"a" * 300 * KIB)
reading = world.client.open("/v/b/1")
reading.read(10)
if os.fork() == 0:
    assert world.get("/v/b/0") == b"x" * KIB
    world.client.create_volume("child")
    sys.exit(3)  # as an interpreter ends, with all that is open
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 3, status
writing.write(b"b" * 300 * KIB)
writing.close()
assert world.get("/v/b/open") == b"a" * 300 * KIB + b"b" * 300 * KIB
assert reading.read() == b"x" * (KIB - 10)
world.close()
print("well")
"""


def test_a_forked_process_that_ends_as_an_interpreter_does_takes_nothing_from_the_first(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "well", "")
