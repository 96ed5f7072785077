"""The client's way straight to the nodes and back: what the request engine uses instead of Kafka's, or beside it.

A call goes to the leader of its shard, as far as known. Calls of a shard whose leader is not known or not reached wait
here, until one is or the engine sends them again. If a connection breaks, the engine is told which shards it led to,
and sends their calls again at once: a broken connection says nothing about outcomes.

One thread receives and keeps the connections (``receive``, ``serve``, ``renew``, ``close``). Any thread may ``send``
and ``look_up``.
"""

from __future__ import annotations

import itertools
import logging
import random
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

from producers.direct.core.link_talk import LinkFailed, NodeFull, OtherCluster
from producers.direct.core.reconnecting import Reconnecting
from producers.direct.core.routes import Routes
from producers.direct.node_link import NodeLink
from producers.errors import NOT_CONNECTED, NotConnected
from producers.requests.core.calls import Call
from producers.requests.core.one_cluster import OneCluster
from producers.waiting import SlowWait
from schemas.access.credentials import Credentials
from schemas.access.signatures import sealed_key
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import enveloped_requests
from schemas.door.frames import DOOR_LIMITS, MAX_NUMBER, DoorFrame, DoorKind, door_frame, keyed
from schemas.records.door import DoorLeaders, DoorRead, DoorRows
from schemas.security.certificates import AN_OM
from schemas.security.tls import ProcessTls
from transport.waiting.deadline import Deadline

logger = logging.getLogger("stratolog.client")

MAX_WAITING_LOOKUPS = 10_000
CONNECT_STEP_MS = 50.0


class DirectTransport:
    """Connections to the nodes at ``addresses`` (``host:port``), and to the leaders that they name.

    Raises NotConnected if no node tells in ``connect_timeout_ms`` which shards there are; None: does not wait for it.
    Nodes of another cluster than that of the first node that names one are left out.
    """

    reply_partition = 0
    """Answers come back the way the calls went; the topic's partition is never used."""

    def __init__(
        self, addresses: Sequence[str], client_id: bytes, *, connect_timeout_ms: int | None,
        tls: ProcessTls | None = None, credentials: Credentials | None = None, cluster: OneCluster | None = None,
    ) -> None:  # fmt: skip
        """With ``credentials`` connections and requests are signed, as in ``producers.requests.transport``.

        ``cluster`` is what the client knows of its cluster already.
        """
        self._tls = None if tls is None else tls.client(AN_OM)
        self._credentials = credentials
        self._client = client_id.hex()
        self._routes = Routes(addresses)
        self._cluster = OneCluster() if cluster is None else cluster
        self._links: dict[str, NodeLink] = {}
        self._reconnecting = Reconnecting(random.Random(client_id).random)
        self._wanted: set[int] = set()
        """Shards that somebody has wanted since ``serve``, while no connection to their leader was open."""
        self._faults: dict[str, str] = {}
        self._lock = threading.Lock()
        self._parked: dict[int, dict[int, Call]] = {}
        """Calls without a way, by shard and number."""
        self._lost: set[int] = set()
        self._lookups: dict[int, tuple[str, Future[DoorRows]]] = {}
        self._numbers = itertools.cycle(range(1, MAX_NUMBER))
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._polled: dict[NodeLink, int] = {}
        """The links that are polled, and for what."""
        self._by_number: dict[int, NodeLink] = {}
        self._closed = False
        try:
            if connect_timeout_ms is not None:
                self._wait_for_shards(connect_timeout_ms)
        except BaseException:
            self.close()
            raise

    def _wait_for_shards(self, connect_timeout_ms: int) -> None:
        patience = SlowWait("connecting to the nodes")
        deadline = Deadline.after_ms(connect_timeout_ms)
        while not self._routes.shards:
            if deadline.has_passed:
                why = "; ".join(self._faults.values()) or "no answer"
                raise NotConnected(NOT_CONNECTED, f"nodes {', '.join(self._routes.addresses)}: {why}")
            self.serve()
            self.receive(CONNECT_STEP_MS, gather=False)
            patience.still("; ".join(self._faults.values()) or "no answer yet")

    # -- from any thread -------------------------------------------------------------------------------------------

    @property
    def shards(self) -> int:
        """The number of shards; 0 until a node has said it."""
        return self._routes.shards

    @property
    def is_open(self) -> bool:
        """Whether any node is connected."""
        return any(link.is_open for link in list(self._links.values()))

    def leader_of(self, shard: int) -> str:
        """Return the address of a shard's leader, as the nodes say; empty if none is known."""
        return self._routes.leader_of(shard)

    def reaches(self, shard: int) -> bool:
        """Whether the leader of a shard is known and connected."""
        link = self._links.get(self._routes.leader_of(shard))
        return link is not None and link.is_open

    def send(self, calls: Iterable[Call]) -> None:
        """Send requests, in order within a shard; those without a way wait."""
        by_shard: dict[int, list[Call]] = {}
        for call in calls:
            by_shard.setdefault(call.shard, []).append(call)
        for shard, group in by_shard.items():
            link = self._links.get(self._routes.leader_of(shard))
            if link is None or not link.is_open:
                with self._lock:
                    self._parked.setdefault(shard, {}).update((call.call_id, call) for call in group)
                self.want(shard)
                continue
            if not link.write(_frames_of(shard, group, self._credentials)):
                if link.is_open:  # else it was closed meanwhile: its shards are lost, and their calls are sent again
                    logger.warning("%d requests were not sent: %s does not read", len(group), link.address)
            elif link.has_unsent:
                self._wake()

    def want(self, shard: int) -> None:
        """Have the shard's leader connected soon, also if it had no room for this client a while ago."""
        if shard not in self._wanted:
            self._wanted.add(shard)
            self._wake()

    def look_up(self, read: DoorRead, shard: int) -> Future[DoorRows] | None:
        """Ask for rows, the shard's leader first. The future fails with LinkFailed; whoever gives it up cancels it.

        Returns None if no node takes the question, or if no frame holds it: HTTP refuses names that are so long.
        """
        asked = encode(read)
        if len(asked) > DOOR_LIMITS[DoorKind.READ]:
            return None
        answers = (self._ask(link, asked) for link in self._links_for(shard))
        return next((answer for answer in answers if answer is not None), None)

    def _links_for(self, shard: int) -> Iterator[NodeLink]:
        """Yield the links that are open, that to the shard's leader first."""
        leader = self._links.get(self._routes.leader_of(shard))
        if leader is not None and leader.is_open:
            yield leader
        else:
            self.want(shard)
        for link in list(self._links.values()):
            if link is not leader and link.is_open:
                yield link

    def _ask(self, link: NodeLink, asked: bytes) -> Future[DoorRows] | None:
        """Ask one node for rows; None if the question was not taken, and is not awaited."""
        answer: Future[DoorRows] = Future()
        with self._lock:
            if self._closed:
                return None
            oldest = next(iter(self._lookups)) if len(self._lookups) >= MAX_WAITING_LOOKUPS else None
            number = next(self._numbers)
            self._lookups[number] = (link.address, answer)
        if oldest is not None:  # whoever waits for it has most likely gone
            self._fail_lookup(oldest, f"{MAX_WAITING_LOOKUPS} later lookups wait")
        answer.add_done_callback(lambda _: self._drop_lookup(number))
        if not link.write(door_frame(DoorKind.READ, asked, number=number)):
            self._drop_lookup(number)
            return None
        if link.has_unsent:
            self._wake()
        return answer

    def _wake(self) -> None:
        with suppress(OSError):  # full: it will wake anyway
            self._wake_write.send(b"!")

    # -- the thread that receives ----------------------------------------------------------------------------------

    def receive(self, wait_ms: float, *, gather: bool) -> list[bytes]:
        """Return the records of answers; waits for the first, ``wait_ms`` at most; with ``gather`` all that time."""
        values: list[bytes] = []
        deadline = Deadline.after_ms(wait_ms)
        while True:
            self._receive_once(deadline.left_s * 1000, values)
            if (values and not gather) or deadline.has_passed:
                return values

    def _receive_once(self, wait_ms: float, values: list[bytes]) -> None:
        for link in self._links.values():
            events = select.POLLIN | (select.POLLOUT if link.has_unsent else 0)
            if self._polled.get(link) != events:
                self._polled[link] = events
                self._poll.register(link.sock, events)
                self._by_number[link.sock.fileno()] = link
        for number, events in self._poll.poll(wait_ms):
            if (ready := self._by_number.get(number)) is None:
                with suppress(BlockingIOError):
                    self._wake_read.recv(4096)
                if self._wanted:
                    self._connect()
                continue
            try:
                if events & select.POLLOUT:
                    ready.on_writable()
                if events & ~select.POLLOUT:
                    for frame in ready.receive():
                        self._take(frame, values)
            except OtherCluster as error:
                if self._faults.get(ready.address) != str(error):
                    logger.warning("a node is left out: %s", error)
                self._drop(ready, str(error))
            except LinkFailed as error:
                self._drop(ready, str(error), is_full=isinstance(error, NodeFull))

    def _take(self, frame: DoorFrame, values: list[bytes]) -> None:
        match frame.kind:
            case DoorKind.ANSWERS:
                values.append(frame.payload)
            case DoorKind.LEADERS:
                try:
                    moved = self._routes.hear(decode_as(DoorLeaders, frame.payload))
                except Undecodable as error:
                    raise LinkFailed(f"who leads cannot be read: {error}") from error
                self._lost.update(moved)
                self._connect()
                self._send_parked()
            case DoorKind.ROWS:
                self._answer(frame)

    def _drop_lookup(self, number: int) -> Future[DoorRows] | None:
        """Await the answer to a lookup no longer; return its future unless whoever asked has given it up."""
        with self._lock:
            _, answer = self._lookups.pop(number, ("", None))
        return None if answer is None or not answer.set_running_or_notify_cancel() else answer

    def _fail_lookup(self, number: int, why: str) -> None:
        if (answer := self._drop_lookup(number)) is not None:
            answer.set_exception(LinkFailed(why))

    def _answer(self, frame: DoorFrame) -> None:
        answer = self._drop_lookup(frame.number)
        if answer is None:
            return
        try:
            answer.set_result(decode_as(DoorRows, frame.payload))
        except Undecodable as error:
            answer.set_exception(LinkFailed(f"rows cannot be read: {error}"))

    def _send_parked(self) -> None:
        now_ms = time.monotonic_ns() / 1e6
        for shard in list(self._parked):
            if self.reaches(shard):
                with self._lock:
                    calls = self._parked.pop(shard, {})
                self.send([call for call in calls.values() if call.deadline_ms > now_ms])

    def serve(self) -> None:
        """Connect to nodes that are not connected and whose turn has come; end connections that do not open."""
        now_s = time.monotonic()
        for link in list(self._links.values()):
            try:
                link.look(now_s)
            except LinkFailed as error:
                self._drop(link, str(error))
        self._connect()
        self._wanted.clear()
        self._send_parked()
        self._forget_expired()

    def _connect(self) -> None:
        now_s = time.monotonic()
        wanted = self._wanted_addresses()
        for address in self._routes.addresses:
            if address in self._links or not self._reconnecting.is_due(address, now_s, wanted=address in wanted):
                continue
            self._reconnecting.tried(address, now_s)
            try:
                self._links[address] = NodeLink(address, self._client, self._tls, self._credentials, self._cluster)
            except LinkFailed as error:
                self._faults[address] = str(error)

    def _wanted_addresses(self) -> set[str]:
        """Return the nodes for which something waits: leaders of shards.

        All nodes, while such a leader is unknown, or nobody is connected who would tell of another one.
        """
        with self._lock:
            shards = self._wanted | {shard for shard, calls in self._parked.items() if calls}
        leaders = {self._routes.leader_of(shard) for shard in shards}
        needs_word = "" in leaders or (leaders and not self.is_open) or not self._routes.shards
        return set(self._routes.addresses) if needs_word else leaders

    def _forget_expired(self) -> None:
        """Drop calls that wait for a way beyond their deadline."""
        now_ms = time.monotonic_ns() / 1e6
        with self._lock:
            for calls in self._parked.values():
                for number in [number for number, call in calls.items() if call.deadline_ms <= now_ms]:
                    del calls[number]

    def _drop(self, link: NodeLink, why: str, *, is_full: bool = False) -> None:
        if self._links.get(link.address) is not link:
            return
        if link.is_open or link.address not in self._faults:
            logger.debug("direct connection: %s", why)
        self._faults[link.address] = why
        was_open = link.was_open
        del self._links[link.address]
        if self._polled.pop(link, None) is not None:
            del self._by_number[link.sock.fileno()]
            self._poll.unregister(link.sock)
        link.close()
        if is_full:
            put_off = self._reconnecting.made_room if was_open else self._reconnecting.full
            put_off(link.address, time.monotonic())
        elif was_open:
            self._reconnecting.lost(link.address)
        self._lost.update(
            shard for shard in range(self._routes.shards) if self._routes.leader_of(shard) == link.address
        )
        with self._lock:
            left = [number for number, (address, _) in self._lookups.items() if address == link.address]
        for number in left:
            self._fail_lookup(number, why)

    def take_lost(self) -> set[int]:
        """Return the shards to which the way was lost, or is another one, since this was last asked."""
        lost, self._lost = self._lost, set()
        return lost

    def renew(self) -> None:
        """Connect anew; for use when calls stay unanswered."""
        for link in list(self._links.values()):
            self._drop(link, f"{link.address}: no answers")

    def close(self) -> None:
        """Disconnect; lookups that wait fail."""
        self._closed = True
        for link in list(self._links.values()):
            self._drop(link, "the client is closed")
        self._wake_read.close()
        self._wake_write.close()


def _frames_of(shard: int, calls: Sequence[Call], credentials: Credentials | None) -> bytes:
    """Return the frames that carry requests of one shard, in order; one with a key has a frame of its own.

    With ``credentials`` every frame has a key: the signature of what it carries.
    """
    frames: list[bytes] = []
    together: list[bytes] = []

    def framed(value: bytes) -> bytes:
        if credentials is None:
            return door_frame(DoorKind.REQUESTS, value, shard=shard)
        return door_frame(DoorKind.KEYED, keyed(sealed_key(credentials, value), value), shard=shard)

    def flush() -> None:
        frames.extend(framed(value) for value in enveloped_requests(together))
        together.clear()

    for call in calls:
        key = call.proof or call.trace_key
        if key is None:
            together.append(call.value)
            continue
        flush()
        if call.proof is None and credentials is not None:
            key = sealed_key(credentials, call.value, key)
        frames.append(door_frame(DoorKind.KEYED, keyed(key, call.value), shard=shard))
    flush()
    return b"".join(frames)
