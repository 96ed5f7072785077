"""The server of a process whose replicas are not all open yet: real sockets, real replicas that install from each other."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import faust
import httpx
import pytest

from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.shell.bootstrap import bootstrap as bootstrap_module
from replicated_db.shell.bootstrap.bootstrap import installed_of
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, open_replica
from replicated_db.shell.bootstrap.opening_web import MAX_SHOWN_CHARACTERS, AddressRefused, OpeningWeb
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.bootstrap.transfer_pages import TransferPages
from replicated_db.shell.follower import make_app
from replicated_db.shell.rocks import RocksStore
from stratolog.local.ports import free_ports
from tests.support.local.secret import SECRET
from tests.support.replicated.kit import CLUSTER, FAMILIES
from tests.support.replicated.transfers import Log
from transport.web.http_guard import HttpGuard

WAIT_S = 60.0
ROWS = 200


class Opening:
    """A process that opens replicas 0 and 1, one after another; what it has open it serves."""

    def __init__(self, folder: Path, name: str, port: int, logs: dict[int, Log]) -> None:
        self.folder = folder
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.logs = logs
        self.replicas: dict[int, Replica] = {}
        self.notes: list[str] = []
        self.desk = TransferDesk(name, self.replicas, lambda _: False, note=self.notes.append)
        self.pages = TransferPages(self.desk)
        self.web = OpeningWeb(
            name, "127.0.0.1", port, self.pages, [HttpGuard(SECRET).middleware()], replicas=len(logs),
            opened=lambda: len(self.replicas), headers={"X-Stratolog-Brokers": "blue"},
        )  # fmt: skip

    def make(self, shard: int) -> Replica:
        identity = Identity(cluster=CLUSTER, shard=shard, shards=2, node=self.name)
        return Replica(
            identity, FAMILIES, RocksStore(self.folder / f"shard-{shard}", FAMILIES.names), threading.RLock()
        )

    def fill(self, shard: int) -> None:
        """Have this process's replica of a shard stand at the log's end, as an earlier run has left it."""
        replica = self.make(shard)
        log = self.logs[shard].log
        replica.adopt_topic(log.topic_id(), None)
        for entry in log.entries:
            replica.offer(entry.offset, entry.value)
        replica.store.close()

    def open_all(self, peer: ServingPeer) -> None:
        policy = BootstrapPolicy(peers=lambda: [peer], secret=SECRET, records=10**6)
        for shard, log in self.logs.items():

            def note(text: str, shard: int = shard) -> None:
                self.notes.append(text)
                self.web.say(shard, text)

            database = self.folder / f"shard-{shard}"
            self.replicas[shard] = open_replica(
                ReplicaToOpen(database=database, make=partial(self.make, shard), log=log.log), policy, note
            )
            self.web.is_open(shard)

    def close(self) -> None:
        self.web.close()
        self.pages.close()
        self.desk.close()
        for replica in self.replicas.values():
            replica.store.close()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.address}{path}", trust_env=False)


def logs() -> dict[int, Log]:
    found = {}
    for shard in (0, 1):
        found[shard] = Log(seed=shard, shard=shard, shards=2)
        found[shard].write(ROWS)
    return found


@contextmanager
def both(tmp_path: Path) -> Iterator[tuple[Opening, Opening]]:
    shared = logs()
    names = zip(("n1", "n2"), free_ports(2), strict=True)
    first, second = (Opening(tmp_path / name, name, port, shared) for name, port in names)
    first.web.start()
    second.web.start()
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def test_two_processes_that_each_need_what_the_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n1 has lost shard 1, n2 shard 0. Each serves what it has open while it installs the other one."""
    monkeypatch.setattr(bootstrap_module, "SEARCH_PAUSE_S", 0.05)
    with both(tmp_path) as (first, second):
        first.fill(0)
        second.fill(1)
        for log in first.logs.values():
            log.log.trim(10)
        threads = [
            threading.Thread(target=one.open_all, args=(ServingPeer(other.name, other.address),))
            for one, other in ((first, second), (second, first))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert [sorted(one.replicas) for one in (first, second)] == [[0, 1], [0, 1]]
        assert [installed_of(first.replicas[shard].store) is None for shard in (0, 1)] == [True, False]
        assert [installed_of(second.replicas[shard].store) is None for shard in (0, 1)] == [False, True]
        for shard in (0, 1):
            assert first.replicas[shard].digests == second.replicas[shard].digests


def test_what_it_says_meanwhile(tmp_path: Path) -> None:
    with both(tmp_path) as (first, _):
        first.web.say(1, "shard 1: bootstrap: fetches: 3 of 4")
        first.web.say(0, "x" * 10_000)
        answer = first.get("/status")
        assert (answer.status_code, answer.headers["X-Stratolog-Brokers"]) == (503, "blue")
        said = answer.json()
        assert said["opening"] == ["x" * MAX_SHOWN_CHARACTERS, "shard 1: bootstrap: fetches: 3 of 4"]
        assert said["message"] == "n1 opens its replicas, 0 of 2 are open"
        assert {first.get(path).status_code for path in ("/health", "/v1/volumes", "/v1/shards/0/digest")} == {503}
        assert 'stratolog_opening_replicas{node="n1"} 2.0' in first.get("/metrics").text
        first.fill(0)
        first.replicas[0] = first.make(0)
        first.web.is_open(0)
        assert first.get("/status").json()["opening"] == ["shard 1: bootstrap: fetches: 3 of 4"]
        assert first.get("/v1/shards/0/checkpoint").json()["offset"] == first.replicas[0].position.offset
        assert first.get("/v1/shards/1/checkpoint").status_code == 404


def test_strangers_get_no_checkpoint(tmp_path: Path) -> None:
    with both(tmp_path) as (first, _):
        answer = httpx.post(f"http://{first.address}/v1/shards/0/checkpoint", content=b"{}", trust_env=False)
    assert answer.status_code == 403


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        opening = Opening(tmp_path, "n1", port, {})
        with pytest.raises(AddressRefused, match=f"cannot listen on 127.0.0.1:{port}"):
            opening.web.start()
    with pytest.raises(RuntimeError, match="was not started"):
        opening.web.hand_over()


@pytest.fixture
def app(tmp_path: Path) -> Callable[[int], faust.App]:
    def make(port: int) -> faust.App:
        made = make_app(
            "test", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=port, data_dir=tmp_path,
            fatal=lambda _: None,
        )  # fmt: skip

        @made.page("/status")
        async def status(view: Any, request: Any) -> Any:
            return view.json({"ready": True})

        return made

    return make


def test_the_process_s_own_server_takes_over_and_refuses_nobody(
    tmp_path: Path, app: Callable[[int], faust.App]
) -> None:
    """A question that comes between the two servers waits for its answer."""
    port = free_ports(1)[0]
    opening = Opening(tmp_path, "n1", port, {})
    opening.web.start()
    assert opening.get("/status").status_code == 503
    server: Any = app(port).web
    server.listening = opening.web.hand_over()
    found: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: found.append(opening.get("/status")))
    asking.start()

    async def serve() -> None:
        server.init_server()
        await server.start_server()
        await asyncio.to_thread(asking.join, WAIT_S)
        await server.stop_server()

    asyncio.run(serve())
    assert [answer.json() for answer in found] == [{"ready": True}]


def test_a_name_with_several_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may take any of them: it listens on all that this machine has."""
    port = free_ports(1)[0]
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
        for address in ("127.0.0.1", "192.0.2.1", "127.0.0.2")
    ]
    opening = Opening(tmp_path, "n1", port, {})
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        opening.web.start()
    try:
        for address in ("127.0.0.1", "127.0.0.2"):
            assert httpx.get(f"http://{address}:{port}/status", trust_env=False).status_code == 503
    finally:
        opening.close()
