"""The direct door of a node (design, section 11): it upgrades HTTP connections, and passes on what they bring.

``GET /v1/door`` with ``Upgrade: stratolog-door``, on the node's HTTP server. So a node has one address, and one guard
(``web/http_guard``) stands before both. The connection then speaks frames, on the same event loop.

Requests go to the intake of the shard's leader, if this node leads. Otherwise they are answered with NOT_LEADER at
once, behind a word on who leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from om_processors.doors.core.room import DoorRoom
from om_processors.doors.door_connection import DoorConnection
from om_processors.doors.door_lookups import DoorLookups, Told, refused
from om_processors.execution.service import refusal_response
from om_processors.identity.identities import Denied, Identities
from om_processors.identity.readers import token_of
from om_processors.intake.gateway import Received
from om_processors.intake.intake import RequestIntake
from replicated_db.core.applying.replica import Replica
from schemas.access.signatures import Seal
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.door.frames import DOOR_PATH, UPGRADE, DoorKind, door_frame
from schemas.kafka.brokers_id import brokers_header
from schemas.records.door import DoorLeaders, DoorRead, ShardLeader
from schemas.records.messages import Request
from schemas.result_codes import INVALID_REQUEST, NOT_LEADER, OVERLOADED

MAX_DOOR_CONNECTIONS = 1000
"""Most direct connections of a node. For a further one the connection makes room that has rested longest, if it has
rested for REST_S (``core/room``); else the new one is answered with 503."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Most bytes that a node holds for all direct connections together; the one with the most is ended to make room."""
CROWDED_BYTES = MAX_HELD_BYTES // 2
"""From here on each connection may have less unanswered."""
LOOK_INTERVAL_S = 1.0
"""How often silent clients are looked for, while there are connections."""


def _switching(brokers_id: str) -> bytes:
    """Return the answer to an upgrade."""
    headers = {"Connection": "Upgrade", "Upgrade": UPGRADE, **brokers_header(brokers_id)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode()


class DirectDoor:
    """The connections of one node. :meth:`opened` and :meth:`closed` are for leaders' threads, the rest for the event
    loop's.
    """

    def __init__(
        self, node: str, cluster: str, replicas: Mapping[int, Replica], lookups: DoorLookups,
        identities: Identities | None = None, brokers_id: str = "",
    ) -> None:  # fmt: skip
        """With ``identities``, the upgrade has been signed (``identity/readers``), and rights are judged.

        ``brokers_id`` is that of the node's brokers, which the upgrade tells.
        """
        self._switching = _switching(brokers_id)
        self._identities = identities
        self.node = node
        self.cluster = cluster
        self.shards = len(replicas)
        self._replicas = replicas
        self._lookups = lookups
        self._intakes: dict[int, RequestIntake] = {}
        """The intakes of the shards that this node leads."""
        self._connections: set[DoorConnection] = set()
        self._room = DoorRoom[DoorConnection]()
        self._leaving: set[DoorConnection] = set()
        """Connections that have made room for others, until they are closed."""
        self._held: dict[DoorConnection, int] = {}
        """What each connection was last heard to hold."""
        self._held_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = self._leaders()
        self._looking: asyncio.TimerHandle | None = None

    def attach(self, app: web.Application) -> None:
        """Register the path."""
        app.router.add_get(DOOR_PATH, self._enter)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    # -- from a leader's thread ------------------------------------------------------------------------------------

    def opened(self, shard: int, intake: RequestIntake) -> None:
        """Pass on requests of a shard that this node leads from now on."""
        self._intakes[shard] = intake
        self._news()

    def closed(self, shard: int) -> None:
        """Refuse requests of a shard that this node does not lead any more."""
        self._intakes.pop(shard, None)
        self._news()

    def _news(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_leaders)

    # -- connections -----------------------------------------------------------------------------------------------

    async def _enter(self, request: web.Request) -> Any:
        if request.headers.get("Upgrade", "").lower() != UPGRADE:
            text = f"{DOOR_PATH} is for clients that send 'Upgrade: {UPGRADE}'"
            answer = web.json_response({"error": INVALID_REQUEST, "message": text}, status=426)
            answer.headers["Upgrade"] = UPGRADE
            return answer
        transport = request.transport
        if transport is None:
            return web.Response()
        self._loop = loop = asyncio.get_running_loop()
        if not self._has_place(loop.time()):
            text = f"{MAX_DOOR_CONNECTIONS} direct connections are open at {self.node}, and no more are taken"
            return web.json_response({"error": OVERLOADED, "message": text}, status=503)
        ended: asyncio.Future[None] = loop.create_future()
        served = request.protocol

        def lost(connection: DoorConnection) -> None:
            self._connections.discard(connection)
            self._leaving.discard(connection)
            self._held_bytes -= self._held.pop(connection, 0)
            served.connection_lost(None)
            if not ended.done():
                ended.set_result(None)

        connection = DoorConnection(self, loop, lost)
        connection.token = token_of(request)
        self._connections.add(connection)
        self._look_regularly()
        transport.write(self._switching)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        await ended
        return web.Response()  # aiohttp finds that its client has gone, and sends nothing

    def _has_place(self, now_s: float) -> bool:
        """Whether a new connection is taken; another one makes room for it if all places are."""
        if len(self._connections) - len(self._leaving) < MAX_DOOR_CONNECTIONS:
            return True
        if (rested := self._room.who_goes(self._resting(), now_s)) is None:
            return False
        self._leaving.add(rested)
        what = f"{MAX_DOOR_CONNECTIONS} direct connections are open at {self.node}"
        rested.make_room(f"{what}; this one has rested longest, and makes room for another one")
        return True

    def _resting(self) -> Iterator[tuple[DoorConnection, float]]:
        for connection in self._connections:
            if (since_s := connection.rests_since_s) is not None:
                yield connection, since_s

    def _look_regularly(self) -> None:
        if self._looking is None and self._loop is not None:
            self._looking = self._loop.call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._looking = None
        if not self._connections or self._loop is None:
            return
        now_s = self._loop.time()
        for connection in list(self._connections):
            connection.look(now_s)
        self._tell_leaders()
        self._look_regularly()

    def close(self) -> None:
        """Close all connections; for the event loop's thread."""
        self._lookups.close()
        for connection in list(self._connections):
            connection.close()

    # -- what a connection needs -----------------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Whether all connections together hold so much that each may have less unanswered."""
        return self._held_bytes > CROWDED_BYTES

    def held(self, connection: DoorConnection, held_bytes: int) -> None:
        """Hear how many bytes a connection makes the node hold; end the greediest if it is too much for all."""
        self._held_bytes += held_bytes - self._held.get(connection, 0)
        self._held[connection] = held_bytes
        if self._held_bytes > MAX_HELD_BYTES:
            self._make_room()

    def _make_room(self) -> None:
        # The kernel takes answers without a word: ask all before one is ended.
        self._held = {one: one.held_bytes for one in self._connections}
        self._held_bytes = sum(self._held.values())
        if self._held_bytes <= MAX_HELD_BYTES:
            return
        greedy = max(self._held, key=lambda one: self._held[one])
        what = f"the direct connections of {self.node} hold {self._held_bytes} bytes, more than {MAX_HELD_BYTES}"
        self._held_bytes -= (most := self._held.pop(greedy))
        greedy.make_room(f"{what}; this one holds most, {most}")

    def leaders_frame(self) -> bytes:
        """Return the frame that says who leads, as far as this node has read."""
        return _frame_of(self._leaders())

    def _leaders(self) -> DoorLeaders:
        return DoorLeaders(shards=self.shards, leaders=[self._leader_of(shard) for shard in self._replicas])

    def _leader_of(self, shard: int) -> ShardLeader:
        position = self._replicas[shard].position
        return ShardLeader(shard=shard, term=position.term, node=position.leader, address=position.address)

    def _tell_leaders(self) -> None:
        """Tell every client who leads, if that has changed."""
        if (leaders := self._leaders()) == self._told:
            return
        self._told = leaders
        frame = _frame_of(leaders)
        for connection in list(self._connections):
            connection.tell_leaders(frame)

    def submit(
        self, connection: DoorConnection, shard: int, requests: Sequence[bytes], key: bytes | None, seal: Seal | None
    ) -> None:
        """Pass requests to the shard's leader."""
        intake = self._intakes.get(shard)
        received = [Received(offset=-1, value=value, key=key, way=connection, seal=seal) for value in requests]
        if intake is not None and intake.put(received):
            return
        leader = self._leader_of(shard)
        message = f"shard {shard} is not led by {self.node}, but by {leader.node or 'nobody'}"
        if leader.node == self.node:  # as far as this node has read: its claim begins, or has just ended
            message = f"shard {shard} is not led by {self.node} just now"
        responses: list[bytes] = []
        for value in requests:
            try:
                request = decode_as(Request, value)
            except Undecodable as error:
                connection.reject(str(error))
                return
            responses.append(refusal_response(request, shard, NOT_LEADER, message))
        connection.tell_leaders(self.leaders_frame())
        connection.answer(shard, responses)

    def look_up(self, connection: DoorConnection, reads: Sequence[tuple[DoorRead, Told]]) -> None:
        """Answer lookups, by the rights that the connection's token has now, unless their client has gone."""
        token = connection.token
        reader = None if self._identities is None or token is None else self._identities.of_token(token)
        if isinstance(reader, Denied):
            for _, told in reads:
                told(refused(reader.status, reader.message))
            return
        self._lookups.ask(reads, reader, lambda: connection.is_gone)


def _frame_of(leaders: DoorLeaders) -> bytes:
    return door_frame(DoorKind.LEADERS, encode(leaders))
