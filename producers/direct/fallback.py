"""Both doors for one client: straight to the leader where it is reached, through the brokers where it is not.

A call may be sent again through the other door: retry rows make it one call. Replies of both are awaited; those of the
brokers only while a call that went to them may be unanswered.

Nothing goes straight to nodes that may be of another cluster: they tell of another number of shards, or the brokers do
not know them (``brokers_word``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future

from producers.direct.brokers_word import BrokersWord
from producers.direct.direct_transport import DirectTransport
from producers.requests.core.calls import Call
from producers.requests.engine import RequestConnection
from schemas.records.door import DoorRead, DoorRows
from transport.waiting.deadline import Deadline

TURN_MS = 5.0
"""How long one door is listened to while replies may come by both."""
CONNECTING_MS = 50.0
"""How long the brokers are listened to at a time while no node is reached."""
KAFKA_REPLIES_S = 60.0
"""How long after the last request through the brokers replies are expected from them."""


class FallbackConnection:
    """Joins a connection to the brokers with one to the nodes, which need not be reached yet.

    Without the brokers' ``word`` on the nodes, those with the same number of shards are taken for the brokers' own.
    """

    def __init__(self, kafka: RequestConnection, direct: DirectTransport, word: BrokersWord | None = None) -> None:
        self._word = word
        self._kafka = kafka
        self._direct = direct
        self.shards = kafka.shards
        self.reply_partition = kafka.reply_partition
        self._kafka_until_s = 0.0

    def _is_direct(self, shard: int) -> bool:
        if not self._direct.reaches(shard):
            self._direct.want(shard)
            return False
        return self._is_ours(shard)

    def _is_ours(self, shard: int) -> bool:
        """Whether the node that leads a shard, as the nodes say, is of the brokers' cluster."""
        if self._direct.shards != self.shards:
            return False
        return self._word is None or self._word.passes(self._direct.leader_of(shard))

    def send(self, calls: Iterable[Call]) -> None:
        """Send requests, in order within a shard."""
        here: list[Call] = []
        there: list[Call] = []
        for call in calls:
            (here if self._is_direct(call.shard) else there).append(call)
        if here:
            self._direct.send(here)
        if there:
            self._kafka_until_s = time.monotonic() + KAFKA_REPLIES_S
            self._kafka.send(there)

    def receive(self, wait_ms: float, *, gather: bool) -> list[bytes]:
        """Return the records of replies of either door; waits as the doors do."""
        direct = self._direct
        if direct.is_open and time.monotonic() > self._kafka_until_s:
            return direct.receive(wait_ms, gather=gather)
        turn_ms = TURN_MS if direct.is_open else CONNECTING_MS
        values: list[bytes] = []
        deadline = Deadline.after_ms(wait_ms)
        while (gather or not values) and (left_ms := deadline.left_s * 1000) > 0:
            values += direct.receive(min(left_ms, TURN_MS) if direct.is_open else 0, gather=False)
            values += self._kafka.receive(0 if values else min(left_ms, turn_ms), gather=False)
        return values

    def serve(self) -> None:
        """Do both doors' regular work."""
        self._kafka.serve()
        self._direct.serve()

    def look_up(self, read: DoorRead, shard: int) -> Future[DoorRows] | None:
        """Ask a node for rows; None if none is connected, or the leader may be of another cluster."""
        return self._direct.look_up(read, shard) if self._is_ours(shard) else None

    def take_lost(self) -> set[int]:
        """Return the shards whose direct calls can no more be answered."""
        return self._direct.take_lost()

    def renew(self) -> None:
        """Listen anew, at both doors."""
        self._kafka.renew()
        self._direct.renew()

    def close(self) -> None:
        """Close both."""
        self._direct.close()
        self._kafka.close()
