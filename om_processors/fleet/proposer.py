"""How a node's own loops propose requests: on ``om.requests``, like any client. There is no other way into the log.

Nobody waits for the answer. A loop sees in the rows whether its request took effect, and proposes again after REPEAT_MS
if it did not. The request's handler decides what a repeat does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from threading import Lock

from confluent_kafka import Producer

from replicated_db.core.ports import Clock, Ids
from schemas.codecs.codec import encode_at
from schemas.features import level_of_command
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.records.messages import Request, RequestBody, shard_of_request
from schemas.topics import MAX_MESSAGE_BYTES, OM_REQUESTS, SILENT_BROKER_MS

REPEAT_MS = 5_000
MAX_REMEMBERED = 10_000


class Proposer:
    """Sends the requests of one node's loops. For many threads."""

    def __init__(
        self, bootstrap_servers: Brokers, *, node: str, shards: int, clock: Clock, ids: Ids, log: Callable[[str], None],
        secret: ClusterSecret,
    ) -> None:  # fmt: skip
        self._producer = Producer(
            client_settings(bootstrap_servers, {
                "linger.ms": 0, "message.max.bytes": MAX_MESSAGE_BYTES,
                "message.timeout.ms": REPEAT_MS, "allow.auto.create.topics": False, "log_level": 0,
                "socket.timeout.ms": SILENT_BROKER_MS,
            })
        )  # fmt: skip
        self._client_id = ids.nonce()
        self._numbers = itertools.count(1)
        self._caller = f"om/{node}"
        self._shards = shards
        self._clock = clock
        self._log = log
        self._secret = secret
        self._lock = Lock()
        self._proposed: dict[Hashable, int] = {}

    def is_due(self, key: Hashable) -> bool:
        """Return whether :meth:`propose` would send."""
        with self._lock:
            return self._clock.elapsed_ms() - self._proposed.get(key, -REPEAT_MS) >= REPEAT_MS

    def propose(self, key: Hashable, body: RequestBody) -> bool:
        """Propose a request unless ``key`` was used less than REPEAT_MS ago; return whether the request was sent."""
        now_ms = self._clock.elapsed_ms()
        with self._lock:
            if now_ms - self._proposed.get(key, -REPEAT_MS) < REPEAT_MS:
                return False
            self._proposed.pop(key, None)
            self._proposed[key] = now_ms  # the last of all: what was proposed longest ago is the first
            if len(self._proposed) > MAX_REMEMBERED:
                del self._proposed[next(iter(self._proposed))]
        request = Request(
            client_id=self._client_id, call_id=next(self._numbers), first_sent_at_ms=self._clock.wall_ms(),
            answered_below=0, reply_partition=0, caller=self._caller, body=body,
        )  # fmt: skip
        # Encoded at the level that introduced the request: until finalize, a node of the older software may lead the
        # shard.
        value = encode_at(request, level_of_command(body))
        try:
            # All of these requests are privileged: they are requests of leaders and of the fleet.
            self._producer.produce(OM_REQUESTS, value, self._secret.proof(value), shard_of_request(body, self._shards))
            self._producer.poll(0)
        except Exception as error:  # a full queue, or no broker: the loop proposes it again
            self._log(f"{type(body).__name__} not proposed: {error}")
            return False
        return True

    def close(self) -> None:
        """Send what is queued."""
        self._producer.flush(1.0)
