"""Which reads may be answered now (design, section 5): ``stale``, ``session``, ``linearizable``, on any replica.

Linearizable: ask the shard's leader for a read index, an effective record that it produced after the question. Wait
until that very record has counted *here*; then read. If this replica has read beyond the record's offset without
counting it, replica and leader read different logs, and the process stops. Kafka's own end offset would not do: a
broker that is cut off from its controller serves an old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from string import hexdigits

import aiohttp

from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.namespace.names import shown
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import AheadOfLog
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.read_index import NotLeading
from schemas.codecs.decimals import decimal_of
from schemas.privilege import AUTHORIZATION
from schemas.result_codes import INVALID_REQUEST
from schemas.security.certificates import AN_OM
from schemas.security.tls import scheme_of
from transport.waiting.deadline import Deadline

LINEARIZABLE, SESSION, STALE = "linearizable", "session", "stale"
READ_DEADLINE_S = 5.0
STEP_S = 0.001
ASK_AGAIN_S = 0.05


class NotReadable(Exception):
    """The read cannot be answered now; ask again, here or elsewhere. ``code`` is for the reader."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def parse_session(text: str) -> dict[int, int]:
    """Parse ``shard:index[,shard:index]``; raises OMError INVALID_REQUEST, naming the fault."""
    positions: dict[int, int] = {}
    for part in filter(None, text.split(",")):
        shard, _, index = part.partition(":")
        number, least = decimal_of(shard), decimal_of(index)
        if number is None or least is None:
            raise OMError(INVALID_REQUEST, f"session {shown(part)} is not shard:index")
        positions[number] = max(least, positions.get(number, 0))
    return positions


class Consistency:
    """Waits until a shard of this node may be read."""

    def __init__(
        self,
        config: NodeConfig,
        replicas: Mapping[int, Replica],
        loops: Mapping[int, LeaderLoop],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._loops = loops
        self._fatal = fatal
        self._http: aiohttp.ClientSession | None = None
        self.hurry: Callable[[], None] = lambda: None
        """Called when a reader waits for a record of a log that another node leads."""

    async def ready(self, shard: int, consistency: str, session: Mapping[int, int]) -> None:
        """Return when the shard may be read; raises NotReadable after READ_DEADLINE_S, or if the replica is flagged."""
        replica = self._replicas[shard]
        self.refuse_flagged(shard)
        deadline = Deadline.after_s(READ_DEADLINE_S)
        if consistency == SESSION:
            if replica.position.index < session.get(shard, 0):
                self.hurry()
            await self._until(lambda: replica.position.index >= session.get(shard, 0), deadline, shard)
        elif consistency == LINEARIZABLE:
            if not self._loops[shard].leading:
                self.hurry()
            offset, record_hash = await self._read_index(shard, deadline)
            await self._until(lambda: replica.read_offset >= offset, deadline, shard)
            self._verify(replica, offset, record_hash)

    def refuse_flagged(self, shard: int) -> None:
        """Raise NotReadable if the replica has found a divergence. Call it again once the snapshot to read is taken."""
        evidence = self._replicas[shard].evidence
        if evidence is not None:
            found = f"shard {shard} of {self._config.node} has found a divergence: {evidence}"
            raise NotReadable("REPLICA_FLAGGED", found)

    def _verify(self, replica: Replica, offset: int, record_hash: str) -> None:
        try:
            counted = replica.has_counted(offset, bytes.fromhex(record_hash))
        except AheadOfLog as error:
            self._fatal(error)
            raise
        if not counted:
            shard = replica.identity.shard
            raise NotReadable("NOT_CAUGHT_UP", f"shard {shard}: the record at {offset} is too long ago to tell")

    async def _read_index(self, shard: int, deadline: Deadline) -> tuple[int, str]:
        while True:
            try:
                return await self.ask(shard, deadline)
            except NotReadable:
                if not deadline.has_room_for(ASK_AGAIN_S):
                    raise
                await asyncio.sleep(ASK_AGAIN_S)

    async def ask(self, shard: int, deadline: Deadline) -> tuple[int, str]:
        """Ask the shard's leader, this node or another, for a read index: (offset, hash of the record)."""
        if self._loops[shard].leading:
            return await self.own_read_index(shard, deadline)
        position = self._replicas[shard].position
        if not position.address or position.leader == self._config.node:
            raise NotReadable("NO_LEADER", f"shard {shard} has no leader")
        if self._http is None:
            self._http = self._session()
        target = f"/v1/shards/{shard}/read-index"
        proof = self._config.secret.authorization("POST", position.address, target)
        headers = {"Host": position.address, AUTHORIZATION: proof}
        timeout = aiohttp.ClientTimeout(total=max(0.05, deadline.sooner(1.0).left_s))
        try:
            async with self._http.post(
                f"{scheme_of(self._config.tls)}://{position.address}{target}", headers=headers, timeout=timeout
            ) as answer:
                body = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NotReadable("NO_LEADER", f"shard {shard}: {position.leader} does not answer: {error!r}") from error
        match body:
            case {"offset": int(offset), "hash": str(record_hash)} if answer.status == 200 and _is_hash(record_hash):
                return offset, record_hash
            case {"message": message} if answer.status != 200:
                raise NotReadable("NO_LEADER", f"shard {shard}: {position.leader}: {message}")
        what = f"answers {answer.status} and {body!r:.100}, which is no read index"
        raise NotReadable("NO_LEADER", f"shard {shard}: {position.leader} {what}")

    def _session(self) -> aiohttp.ClientSession:
        tls = self._config.tls
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=True if tls is None else tls.client(AN_OM)))

    async def own_read_index(self, shard: int, deadline: Deadline) -> tuple[int, str]:
        """Return a read index as the leader; raises NotReadable if this node does not lead, or at the deadline."""
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(self._loops[shard].read_index()), deadline.left_s)
        except (NotLeading, TimeoutError) as error:
            raise NotReadable("NO_LEADER", f"shard {shard} is not led by {self._config.node}") from error
        return found.offset, found.record_hash.hex()

    async def _until(self, reached: Callable[[], bool], deadline: Deadline, shard: int) -> None:
        while not reached():
            if deadline.has_passed:
                raise NotReadable("NOT_CAUGHT_UP", f"shard {shard}: not caught up within {READ_DEADLINE_S} s")
            await asyncio.sleep(STEP_S)

    async def close(self) -> None:
        """Close the connections to other nodes."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()


def _is_hash(text: str) -> bool:
    return len(text) % 2 == 0 and all(one in hexdigits for one in text)
