"""One direct connection as a conversation, from the HTTP upgrade on: bytes in, frames out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import h11

from producers.requests.core.one_cluster import OneCluster
from schemas.codecs.codec import Undecodable, decode_as
from schemas.door.frames import DOOR_PATH, UPGRADE, DoorFrame, DoorFrames, DoorKind
from schemas.door.talk import DoorRole, DoorTalk
from schemas.kafka.brokers_id import BROKERS_HEADER
from schemas.privilege import AUTHORIZATION
from schemas.records.datanode import StreamError
from schemas.records.framing import BadFrame
from schemas.result_codes import OVERLOADED
from schemas.transitions import next_state

MAX_HEAD_BYTES = 16 * 1024
"""Most bytes of the HTTP answer to the upgrade."""
MAX_SHOWN_BYTES = 500
MAX_WORDS_BYTES = 50
HTTP = b"HTTP/"
SWITCHING = 101


class LinkState(Enum):
    """How far a connection is."""

    UPGRADING = "asks for the direct door"
    GREETING = "waits for HELLO"
    OPEN = "open"
    FAILED = "failed"


class LinkEvent(Enum):
    """What happens to a connection."""

    SWITCHED = "the node has switched"
    GREETED = "the node has said HELLO"
    BROKEN = "something was wrong"


LINK_STATES: Mapping[LinkState, Mapping[LinkEvent, LinkState]] = {
    LinkState.UPGRADING: {LinkEvent.SWITCHED: LinkState.GREETING, LinkEvent.BROKEN: LinkState.FAILED},
    LinkState.GREETING: {LinkEvent.GREETED: LinkState.OPEN, LinkEvent.BROKEN: LinkState.FAILED},
    LinkState.OPEN: {LinkEvent.BROKEN: LinkState.FAILED},
    LinkState.FAILED: {LinkEvent.BROKEN: LinkState.FAILED},
}


class LinkFailed(Exception):
    """The connection is of no further use; the text says why."""


class NodeFull(LinkFailed):
    """The node has no room for the connection, or needs its room for others."""


class OtherCluster(LinkFailed):
    """The node is of another cluster than those that the client speaks with."""


class LinkTalk:
    """The client's side of one connection to ``host`` (``host:port``, as in the header Host).

    ``authorization`` is the header that says who it is, if that is to be said. ``cluster`` is the one of which the node
    must be; all connections of a client share it.
    """

    def __init__(
        self, host: str, client: str, authorization: str | None = None, cluster: OneCluster | None = None
    ) -> None:
        self._authorization = authorization
        self._cluster = OneCluster() if cluster is None else cluster
        self.state = LinkState.UPGRADING
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._host = host
        self._talk = DoorTalk(DoorRole.CLIENT, client)
        self._frames = DoorFrames(DoorRole.CLIENT.hears)
        self._answer: h11.Response | None = None
        self._body = b""
        self._begun = b""
        self._brokers_id = ""
        """The id of the node's brokers, which it tells as it switches; empty: it is older."""

    @property
    def node(self) -> str:
        """The node's name, once it has said it."""
        return self._talk.peer

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        headers = [("Host", self._host), ("Connection", "Upgrade"), ("Upgrade", UPGRADE)]
        if self._authorization is not None:
            headers.append((AUTHORIZATION, self._authorization))
        asked = self._http.send(h11.Request(method="GET", target=DOOR_PATH, headers=headers))
        return (asked or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def hello(self) -> bytes:
        """Return what to send once the state is GREETING."""
        return self._talk.hello()

    def hear(self, data: bytes) -> Iterator[DoorFrame]:
        """Yield the frames but HELLO; raises LinkFailed for whatever ends the connection, its end (b"") included.

        Raises OtherCluster for a node of another cluster, before the connection counts as open.
        """
        try:
            if self.state is LinkState.UPGRADING:
                data = self._upgrade(data)
            elif not data:
                raise LinkFailed("the node has closed the connection")
            if self.state is not LinkState.UPGRADING:
                yield from self._hear_frames(data)
        except (BadFrame, h11.RemoteProtocolError) as error:
            self._after(LinkEvent.BROKEN)
            raise LinkFailed(f"what answers is no node: {error}") from error
        except LinkFailed:
            self._after(LinkEvent.BROKEN)
            raise

    def _hear_frames(self, data: bytes) -> Iterator[DoorFrame]:
        for frame in self._frames.take(data):
            self._talk.hear(frame)
            if frame.kind is DoorKind.HELLO:
                self._check_cluster()
                self._after(LinkEvent.GREETED)
            elif frame.kind is DoorKind.ERROR:
                raise _error_of(frame.payload)
            else:
                yield frame

    def _check_cluster(self) -> None:
        who = f"{self._talk.peer!r} at {self._host}"
        fault = self._cluster.fault_of(self._talk.peer_cluster, who, self._brokers_id)
        if fault is not None:
            raise OtherCluster(fault)

    def _upgrade(self, data: bytes) -> bytes:
        """Take bytes of the HTTP answer; return what follows it."""
        self._begun = (self._begun + data)[: len(HTTP)]
        if not HTTP.startswith(self._begun):
            raise LinkFailed(f"what answers is no node: it says {data[:MAX_WORDS_BYTES]!r}")
        if not data and self._answer is None:
            raise LinkFailed("the node has closed the connection")
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING:
                self._after(LinkEvent.SWITCHED)
                self._brokers_id = dict(event.headers).get(BROKERS_HEADER.lower().encode(), b"").decode("latin-1")
                return bytes(self._http.trailing_data[0])
            if isinstance(event, h11.Response):
                self._answer = event
            elif isinstance(event, h11.Data):
                self._body = (self._body + bytes(event.data))[:MAX_SHOWN_BYTES]
            elif event is h11.NEED_DATA:
                return b""
            else:
                raise self._refusal()

    def _refusal(self) -> LinkFailed:
        if self._answer is None:
            return LinkFailed("the node has closed the connection")
        status, text = self._answer.status_code, self._body.decode(errors="replace")
        if status == 404:
            return LinkFailed("the node has no direct door: its software is older, or it is still opening its replicas")
        kind = NodeFull if status == 503 and OVERLOADED in text else LinkFailed
        return kind(f"the node answers with HTTP {status}: {text}")

    def _after(self, event: LinkEvent) -> None:
        self.state = next_state(LINK_STATES, self.state, event)


def _error_of(payload: bytes) -> LinkFailed:
    try:
        error = decode_as(StreamError, payload)
    except Undecodable:
        return LinkFailed("the node ended the connection with an error that cannot be read")
    kind = NodeFull if error.code == OVERLOADED else LinkFailed
    return kind(f"{error.datanode} ended the connection: {error.code}: {error.message}")
