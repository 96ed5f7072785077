"""A bare client of one node's direct door: blocking, without the SDK's rules, for judges and for hostile peers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import DOOR_PATH, UPGRADE, DoorFrame, DoorFrames, DoorKind, door_frame
from schemas.door.talk import DoorRole, DoorTalk
from schemas.records.datanode import StreamError
from schemas.records.door import DoorRead, DoorRows

TIMEOUT_S = 60.0
RECEIVE_BYTES = 65_536
UPGRADING = f"GET {DOOR_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()
HELLO = DoorTalk(DoorRole.CLIENT, "c0ffee").hello()


class DoorClosed(Exception):
    """The node has ended the connection."""


class RawDoor:
    """One connection to ``address``; what is sent is the caller's affair. HELLO is sent unless ``hello`` is another."""

    def __init__(self, address: str, *, hello: bytes = HELLO, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout_s)
        self._frames = DoorFrames(DoorRole.CLIENT.hears)
        self._heard: list[DoorFrame] = []
        self._reads = 0
        try:
            self._upgrade(hello)
        except BaseException:
            self.sock.close()
            raise

    def _upgrade(self, hello: bytes) -> None:
        self.sock.sendall(UPGRADING)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._received(1)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise DoorClosed(head.decode(errors="replace"))
        self.sock.sendall(hello)

    def _received(self, most: int = RECEIVE_BYTES) -> bytes:
        data = self.sock.recv(most)
        if not data:
            raise DoorClosed("the node has closed the connection")
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def hear(self, kind: DoorKind) -> DoorFrame:
        """Return the next frame of a kind; those before it are passed over. Raises DoorClosed."""
        while True:
            while self._heard:
                if (frame := self._heard.pop(0)).kind is kind:
                    return frame
            self._heard += self._frames.take(self._received())

    def refusal(self) -> str:
        """Return why the node ends the connection; it must end."""
        error = decode_as(StreamError, self.hear(DoorKind.ERROR).payload)
        while self.sock.recv(RECEIVE_BYTES):
            pass
        return error.message

    def look_up(
        self, volume: str, bucket: str, keys: Sequence[str], consistency: str, *, with_bytes: bool = False
    ) -> DoorRows:
        """Look up keys of a bucket, and wait for the rows."""
        self._reads += 1
        read = DoorRead(
            consistency=consistency, index=0, volume=volume, bucket=bucket, keys=list(keys), with_bytes=with_bytes
        )
        self.send(door_frame(DoorKind.READ, encode(read), number=self._reads))
        while True:
            frame = self.hear(DoorKind.ROWS)
            if frame.number == self._reads:
                return decode_as(DoorRows, frame.payload)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
