"""Replicas on real RocksDB that serve checkpoints over real HTTP, in this process; one log in memory for all of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.tables.digests import Digests
from replicated_db.core.tables.memory import ManualClock, MemoryLog, MemoryStore
from replicated_db.shell.bootstrap.bootstrap import Installed, Target, Terms, bootstrap
from replicated_db.shell.bootstrap.peer_calls import PeerCalls
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.bootstrap.transfer_pages import TransferPages
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import encode
from schemas.records.log import Checkpoint, LeaderClaim, LogRecord
from tests.support.local.secret import SECRET
from tests.support.replicated.kit import (
    CLUSTER,
    FAMILIES,
    NODES,
    NONCE,
    START_MS,
    batch,
    delete,
    genesis,
    hash_of,
    put,
    result,
)
from transport.web.http_guard import HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.threaded_server import ThreadedServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Twist = Callable[[web.Request, Answer], Awaitable[web.StreamResponse]]
"""What a server does to a request instead of answering it; it may call the true answer."""


class Log:
    """A log in memory, written by a leader that is always right."""

    def __init__(self, cluster: str = CLUSTER, seed: int = 0, shard: int = 0, shards: int = 1) -> None:
        self.log = MemoryLog(ManualClock())
        self._random = random.Random(seed)
        identity = Identity(cluster=cluster, shard=shard, shards=shards, node="n1")
        self.author = Replica(identity, FAMILIES, MemoryStore(FAMILIES.names))
        self.author.adopt_topic(self.log.topic_id(), None)
        self.claim("n1")
        self._count(replace(genesis(), cluster=cluster, shard=shard, shards=shards))

    def claim(self, node: str) -> None:
        term = self.author.position.term + 1
        nonce = bytes([term % 256]) * 16 if term > 1 else NONCE
        self._offer(LeaderClaim(term=term, nonce=nonce, node=node, address=f"{node}:1", claimed_at_ms=START_MS))

    def _offer(self, record: LogRecord) -> None:
        value = encode(record)
        self.author.offer(self.log.append(value), value)

    def _count(self, record: Any) -> None:
        position = self.author.position
        self._offer(
            replace(record, term=position.term, nonce=position.nonce, seq=position.seq + 1, prev_chain=position.chain)
        )

    def remove_newest(self, rows: int) -> None:
        """Append a batch that removes the last ``rows`` rows of ``things``."""
        index = self.author.position.index + 1
        newest = list(self.author.store.iterate("things", b""))[-rows:]
        self._count(
            batch(
                *(delete(key, prev=hash_of("things", key, value)) for key, value in newest), results=[result(index)],
                first_index=index, last_index=index, timestamp_ms=self.author.position.timestamp_ms + 10,
            )
        )  # fmt: skip

    def write(self, rows: int, size: int = 200, checkpoint: str | None = None) -> None:
        """Append batches of ten fresh rows each, the first one with a checkpoint before it."""
        for number in range(0, rows, 10):
            index = self.author.position.index + 1
            operations: list[Any] = [
                put(b"%08d-%d" % (index, one), self._random.randbytes(size)) for one in range(min(10, rows - number))
            ]
            if checkpoint is not None and number == 0:
                operations.insert(0, Checkpoint(name=checkpoint))
            self._count(
                batch(
                    *operations, results=[result(index)], first_index=index, last_index=index,
                    timestamp_ms=self.author.position.timestamp_ms + 10,
                )
            )  # fmt: skip


@dataclass
class RocksNode:
    """A replica of shard 0 in ``folder``, open or closed."""

    folder: Path
    log: MemoryLog
    name: str = NODES[0]
    cluster: str = CLUSTER
    replica: Replica = field(init=False)
    store: RocksStore = field(init=False)
    notes: list[str] = field(default_factory=list)
    blobs: tuple[str, ...] = ()
    """Families whose large values lie in blob files."""

    def __post_init__(self) -> None:
        self.open()

    @property
    def database(self) -> Path:
        return self.folder / "shard-0"

    @property
    def identity(self) -> Identity:
        return Identity(cluster=self.cluster, shard=0, shards=1, node=self.name)

    def open(self) -> RocksNode:
        self.store = RocksStore(self.database, FAMILIES.names, blobs=self.blobs)
        assert not self.store.doubt
        self.replica = Replica(self.identity, FAMILIES, self.store, threading.RLock())
        if self.replica.position.offset < 0:
            self.replica.adopt_topic(self.log.topic_id(), None)
        return self

    def close(self) -> None:
        self.store.close()

    def catch_up(self, end: int | None = None) -> RocksNode:
        end = len(self.log.entries) if end is None else end
        while (offset := self.replica.read_offset + 1) < end:
            for entry in self.log.read(offset, min(100, end - offset), 0):
                self.replica.offer(entry.offset, entry.value)
        return self

    def scanned(self) -> Digests:
        _, incremental, snapshot = self.replica.snapshot()
        found = self.replica.scan(snapshot)
        snapshot.close()
        assert found == incremental
        return found

    def desk(self, **options: Any) -> TransferDesk:
        return TransferDesk(self.name, {0: self.replica}, lambda _: False, note=self.notes.append, **options)

    def target(self) -> Target:
        return Target(database=self.database, identity=self.identity, families=FAMILIES, log=self.log)

    def install(self, *peers: ServingPeer, **terms: Any) -> Installed:
        """Close, install a checkpoint of one of the peers, and open again: also when nothing was installed."""
        own_offset = self.replica.position.offset
        calls: PeerCalls | None = terms.pop("calls", None)
        self.close()
        options: dict[str, Any] = {"secret": SECRET, "own_offset": own_offset, "searches": 1, **terms}
        given = Terms(peers=lambda: peers, **options)
        try:
            return bootstrap(self.target(), given, self.notes.append, calls)
        finally:
            self.open()


@contextmanager
def serving(desk: TransferDesk, node: str, twist: Twist | None = None) -> Iterator[ServingPeer]:
    """Serve a desk over HTTP, with the guard of every node; ``twist`` may answer instead."""
    server = _Server(desk, twist)
    try:
        yield ServingPeer(node, f"127.0.0.1:{server.port}")
    finally:
        server.close()


class _Server:
    def __init__(self, desk: TransferDesk, twist: Twist | None) -> None:
        middlewares = [HttpGuard(SECRET).middleware()]
        if twist is not None:
            middlewares.append(_twisting(twist))
        app = web.Application(middlewares=middlewares)
        self._pages = TransferPages(desk)
        self._pages.attach(app)
        listening = listen("127.0.0.1", 0)
        self.port = port_of(listening)
        self._server = ThreadedServer(HttpServer(app, end_timeout_s=0.1), "transfers").start(listening)

    def close(self) -> None:
        self._server.close()
        self._pages.close()


def _twisting(twist: Twist) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: Answer) -> web.StreamResponse:
        return await twist(request, handler)

    return answer
