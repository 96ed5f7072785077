"""A node's direct door on real sockets, on a thread of its own, before rows and a leader of the test's."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from aiohttp import web

from om_processors.doors.direct_door import DirectDoor
from om_processors.doors.door_lookups import DoorLookups
from om_processors.identity.identities import Identities
from om_processors.identity.readers import ReaderGuard
from om_processors.intake.direct_calls import DirectCalls
from om_processors.intake.gateway import Gateway, Received
from om_processors.serving.consistency import LINEARIZABLE, SESSION, NotReadable
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.shell.system import SystemClock
from schemas.codecs.codec import encode
from schemas.records.messages import CommitKey, CreateBucket, CreateKey, CreateVolume, Rejected, Request, Response
from tests.support.local.secret import SECRET
from tests.support.om.dict_transaction import DictTables
from tests.support.om.om_world import World
from transport.web.bounded_server import BoundedServer
from transport.web.http_guard import HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of

JOIN_S = 30.0


class DoorRows(DictTables):
    """Rows that must be closed once."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class AnsweringLeader:
    """Leads a shard on a thread: what the gateway admits is answered with OK and an index, unless ``holds``."""

    def __init__(self, shard: int, identities: Identities | None = None) -> None:
        self.shard = shard
        self.gateway = Gateway(shard=shard, node="om1", secret=SECRET, identities=identities)
        self.calls = DirectCalls(shard)
        self.executed: list[Request] = []
        self.holds = False
        self._queue: queue.SimpleQueue[Sequence[Received] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, requests: Sequence[Received]) -> bool:
        self._queue.put(requests)
        return True

    def _run(self) -> None:
        while (arrived := self._queue.get()) is not None:
            replies = [reply for received in arrived if (reply := self._execute(received)) is not None]
            if not self.holds:
                self.calls.answer(replies)

    def _execute(self, received: Received) -> Reply | None:
        way = received.way
        assert way is not None
        admitted = self.gateway.admit(received, 0)
        assert admitted is not None
        if isinstance(admitted, Rejected):
            way.reject(admitted.message)
            return None
        if isinstance(admitted, Reply):
            self.calls.begin(admitted.proposal, way)
            return admitted
        proposal: Proposal = self.calls.begin(admitted, way)
        self.executed.append(proposal.body)
        request = proposal.body
        answer = Response(
            client_id=request.client_id, call_id=request.call_id, shard=self.shard, index=len(self.executed),
            status="OK", message="", result=None,
        )  # fmt: skip
        return Reply(proposal=proposal, response=encode(answer))

    def stop(self) -> None:
        """Let the thread end, behind what was put."""
        self._queue.put(None)
        self._thread.join(JOIN_S)

    def end(self) -> None:
        """End the leadership."""
        self.stop()
        self.calls.end("the leadership ended")


class DoorSite:
    """One node of one shard; it leads once :meth:`lead` is called. If it is ``signed``, it demands signatures.

    It ends with its ``with`` block.
    """

    def __init__(self, *, node: str = "om1", cluster: str = "c", signed: bool = False, brokers_id: str = "") -> None:
        self.world = World()
        self.world.do(CreateVolume(volume="vol1"))
        self.world.do(CreateBucket(volume="vol1", bucket="bucket1"))
        self.position: Any = SimpleNamespace(term=0, leader="", address="", index=100)
        self.opened: list[DoorRows] = []
        self.readable: str | None = None
        """The code with which reads are refused."""
        self.asked: list[tuple[str, dict[int, int]]] = []
        self.hurried = 0
        self.failures: list[BaseException] = []
        self.leader: AnsweringLeader | None = None
        self._led: list[AnsweringLeader] = []
        replica: Any = self
        consistency: Any = self
        self.lookups = DoorLookups({0: replica}, consistency, self.failures.append)
        self.evidence: str | None = None
        self.lock = nullcontext()
        self.identities = Identities(SECRET, lambda: replica, SystemClock()) if signed else None
        self.door = DirectDoor(node, cluster, {0: replica}, self.lookups, self.identities, brokers_id)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self.do(self._start())

    def hurry(self) -> None:
        """A lookup waits for the index of its session."""
        self.hurried += 1

    @property
    def server(self) -> BoundedServer:
        """The server of the HTTP connections."""
        return self._server.bounded

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def do(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(JOIN_S)

    async def _start(self) -> int:
        guards = [HttpGuard(SECRET).middleware()]
        if self.identities is not None:
            guards.append(ReaderGuard(SECRET, self.identities, HttpGuard(SECRET, signed=True)).middleware())
        app = web.Application(middlewares=guards)
        self.door.attach(app)
        self._server = HttpServer(app)
        listening = listen("127.0.0.1", 0)
        await self._server.start(listening)
        return port_of(listening)

    def lead(self, term: int = 1, address: str = "") -> AnsweringLeader:
        """Lead from now on."""
        self.follow(term, "om1", address or self.address)
        self.leader = AnsweringLeader(0, self.identities)
        self._led.append(self.leader)
        intake: Any = self.leader
        self.door.opened(0, intake)
        return self.leader

    def follow(self, term: int, leader: str, address: str) -> None:
        """Read a claim."""
        self.position = SimpleNamespace(term=term, leader=leader, address=address, index=100)

    def depose(self) -> None:
        """Lead no more."""
        assert self.leader is not None
        self.door.closed(0)
        self.leader.end()

    def close(self) -> None:
        async def end() -> None:
            self.door.close()
            await self._server.close()

        with suppress(TimeoutError):
            self.do(end())
        for leader in self._led:  # while the loop runs, which takes the answers
            leader.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_S)
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_key(self, name: str, size: int = 0) -> None:
        session = self.world.session(CreateKey(volume="vol1", bucket="bucket1", key=name, size=size))
        self.world.do(CommitKey(volume="vol1", bucket="bucket1", key=name, session_id=session.session_id, size=size))

    # the replica, and its consistency

    @property
    def rows(self) -> DictTables:
        return self.world.tables

    @contextmanager
    def held(self) -> Iterator[tuple[int, DoorRows]]:
        rows = DoorRows()
        rows.tables = self.world.tables.tables
        yield self.position.index, rows

    def moment(self, families: Iterable[str] = ()) -> tuple[int, DoorRows]:
        rows = DoorRows()
        rows.tables = self.world.tables.tables
        self.opened.append(rows)
        return self.position.index, rows

    async def ready(self, shard: int, consistency: str, session: dict[int, int]) -> None:
        assert shard == 0
        self.asked.append((consistency, session))
        if self.readable is not None:
            raise NotReadable(self.readable, "not now")
        if consistency == SESSION:
            while self.position.index < session.get(0, 0):  # noqa: ASYNC110 - as the real one does
                await asyncio.sleep(0.001)
        else:
            assert consistency == LINEARIZABLE
            await asyncio.sleep(0.01)

    def refuse_flagged(self, shard: int) -> None:
        if self.readable == "REPLICA_FLAGGED":
            raise NotReadable(self.readable, f"shard {shard}")
