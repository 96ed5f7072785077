"""What each side of a direct connection may hear, and when: a machine of three states and a table. Pure."""

from __future__ import annotations

from enum import Enum

from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.door.frames import (
    DOOR_VERSION,
    DOOR_VERSIONS,
    MAX_GREETING_BYTES,
    MIN_DOOR_VERSION,
    DoorFrame,
    DoorKind,
    door_frame,
)
from schemas.records.datanode import Hello, StreamError
from schemas.records.framing import BadFrame, agreed_version, check_cluster


class DoorRole(Enum):
    """The two sides."""

    NODE = "node"
    CLIENT = "client"

    @property
    def hears(self) -> frozenset[DoorKind]:
        """The kinds of frames that the side hears at all."""
        return frozenset(kind for heard in HEARD[self].values() for kind in heard)


class DoorState(Enum):
    """How far a side is."""

    GREETING = "before the peer's HELLO"
    OPEN = "open"
    FAILED = "failed"


HEARD: dict[DoorRole, dict[DoorState, dict[DoorKind, DoorState]]] = {
    DoorRole.NODE: {
        DoorState.GREETING: {DoorKind.HELLO: DoorState.OPEN},
        DoorState.OPEN: {
            DoorKind.REQUESTS: DoorState.OPEN,
            DoorKind.KEYED: DoorState.OPEN,
            DoorKind.READ: DoorState.OPEN,
        },
        DoorState.FAILED: {},
    },
    DoorRole.CLIENT: {
        DoorState.GREETING: {DoorKind.HELLO: DoorState.OPEN, DoorKind.ERROR: DoorState.FAILED},
        DoorState.OPEN: {
            DoorKind.ANSWERS: DoorState.OPEN,
            DoorKind.LEADERS: DoorState.OPEN,
            DoorKind.ROWS: DoorState.OPEN,
            DoorKind.ERROR: DoorState.FAILED,
        },
        DoorState.FAILED: {},
    },
}
"""The state after a frame that may be heard, by role and state; any other frame is the peer's fault."""


class DoorTalk:
    """One side's conversation; ``name`` and ``cluster`` are its own (cluster empty: it does not know it)."""

    def __init__(self, role: DoorRole, name: str, cluster: str = "") -> None:
        self._role = role
        self._name = name
        self._cluster = cluster
        self.state = DoorState.GREETING
        self.peer = ""
        """The peer's name, once it has said it."""
        self.peer_cluster = ""
        """The cluster that the peer has named; empty: it does not know it, or has not said HELLO."""

    def hello(self) -> bytes:
        """Return this side's first frame."""
        said = Hello(
            peer=self._name, cluster=self._cluster, min_version=MIN_DOOR_VERSION, max_version=DOOR_VERSION,
            max_payload_bytes=MAX_GREETING_BYTES,
        )  # fmt: skip
        return door_frame(DoorKind.HELLO, encode(said))

    def hear(self, frame: DoorFrame) -> None:
        """Check a frame; raises BadFrame if it is not allowed now, or is a HELLO of another cluster or version."""
        state, self.state = self.state, DoorState.FAILED
        after = HEARD[self._role][state].get(frame.kind)
        if after is None:
            raise BadFrame(f"a {frame.kind.name} frame out of place ({state.value})")
        if frame.kind is DoorKind.HELLO:
            self._greet(frame.payload)
        self.state = after

    def _greet(self, payload: bytes) -> None:
        try:
            hello = decode_as(Hello, payload)
        except Undecodable as error:
            raise BadFrame(f"HELLO cannot be read: {error}") from error
        check_cluster(hello.peer, hello.cluster, self._cluster)
        agreed_version(hello.min_version, hello.max_version, DOOR_VERSIONS)
        self.peer, self.peer_cluster = hello.peer, hello.cluster


def error_frame(code: str, message: str, node: str) -> bytes:
    """Return the frame that tells a client why its connection ends."""
    return door_frame(
        DoorKind.ERROR, encode(StreamError(code=code, message=message, datanode=node, offset=-1, hint=""))
    )
