"""Stream servers with real block files and a pipeline port that takes everything: for tests and measurements of the wire.

    python -m tests.support.datanodes.streams NAME FOLDER FSYNC

serves one until it is killed; the first line that it prints is its port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.blocks_together import BlocksTogether
from datanode_processors.blocks.containers import CONTAINERS, block_name
from datanode_processors.blocks.fsync import NEVER
from datanode_processors.errors import BlockError
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.ports import Readable
from datanode_processors.wire.server import StreamServer
from datanode_processors.wire.wire import Wire, WireClosed, connect, failure, read_error, read_record, refusal
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import ConversationFailed, PeerGreeted, PeerRefused, own_hello, with_tokens
from schemas.conversation.states import ConversationRole
from schemas.records.datanode import (
    Accepted,
    BlockCommitted,
    BlockOutcome,
    BlocksCommitted,
    BlocksWatched,
    CloseContainer,
    OpenBlocks,
    OpenStream,
    PutBlock,
    PutBlocks,
    ReadBlock,
    Route,
    SalvageBlock,
    WatchBlocks,
    WholeBlock,
    WriteBlocks,
)
from schemas.records.packets import Frame, Kind, encode_frame, encode_header

CLUSTER = "test"
CONTAINER, PARTITION = 7, 3
CELL = 64 * 1024
TIMEOUT_S = 30.0
ROOT = Path(__file__).parents[3]
_CHECKSUM = Struct(">I")


def checksums_of(data: bytes, cell: int = CELL) -> bytes:
    return b"".join(_CHECKSUM.pack(crc32c(data[at : at + cell])) for at in range(0, len(data), cell))


def hello_frame(name: str, cluster: str = CLUSTER) -> bytes:
    """Return the HELLO of a peer, as bytes: for peers that break the rules after it."""
    return encode_frame(Kind.HELLO, encode(own_hello(name, cluster)))


class Addressed(Protocol):
    """A datanode, or a proxy in front of it."""

    name: str
    address: str


class Behind:
    """A datanode that is reached through a proxy."""

    def __init__(self, node: Addressed, proxy: Proxy) -> None:
        self.name = node.name
        self.address = proxy.address


class Taking:
    """A pipeline port that takes every block, commits every PutBlock at once, and keeps what it was told."""

    def __init__(self) -> None:
        self.committed: dict[int, PutBlock] = {}
        self.corrupt: list[tuple[int, int, int]] = []
        self.closed: set[int] = set()
        self.members: tuple[str, ...] = ("dn1", "dn2", "dn3")
        self.addresses: dict[str, str] = {}
        """Where members are; for datanodes that speak TLS."""
        self.deaf = False
        """Whether watches are never satisfied here."""
        self.batches: list[PutBlocks] = []
        self.leader: Taking = self
        """Whose commits a watch here waits for."""

    def everywhere(self) -> dict[int, PutBlock]:
        return self.leader.committed

    def _put_all(self, request: PutBlocks) -> BlocksCommitted:
        self.batches.append(request)
        outcomes = []
        for block in request.blocks:
            put = PutBlock(
                partition=request.partition, container_id=block.container_id, local_id=block.local_id,
                length=block.length, bytes_per_checksum=request.bytes_per_checksum, checksums=block.checksums,
                wait_effective=True,
            )  # fmt: skip
            outcomes.append(BlockOutcome(code="", message="", bcs_id=self.handle(put).bcs_id))
        return BlocksCommitted(leader="dn1", outcomes=outcomes)

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        if partition != PARTITION:
            raise BlockError(stream_errors.NO_SUCH_PIPELINE, f"no member of pipeline-{partition}")
        if container_id in self.closed:
            raise BlockError(stream_errors.CONTAINER_CLOSED, f"container {container_id} is closed")

    def members_for(self, request: Any) -> tuple[int, Sequence[str]]:
        return PARTITION, self.members

    def address_of(self, partition: int, datanode: str) -> str:
        if datanode not in self.members:
            raise BlockError(stream_errors.INVALID_REQUEST, f"datanode {datanode} is no member of pipeline-{partition}")
        return self.addresses[datanode]

    def handle(self, request: Any) -> Any:
        if isinstance(request, PutBlock):
            self.committed[request.local_id] = request
            return BlockCommitted(
                container_id=request.container_id, local_id=request.local_id, length=request.length,
                bcs_id=len(self.committed), log_offset=len(self.committed),
            )  # fmt: skip
        if isinstance(request, PutBlocks):
            return self._put_all(request)
        if isinstance(request, WatchBlocks):
            watched = not self.deaf and all(block.local_id in self.everywhere() for block in request.blocks)
            return BlocksWatched(datanode="", bcs_id=len(self.committed), satisfied=watched)
        if isinstance(request, CloseContainer):
            self.closed.add(request.container_id)
            return Accepted(detail="closed")
        if isinstance(request, Accepted):
            raise RuntimeError("a defect")
        raise BlockError(stream_errors.INVALID_REQUEST, f"{type(request).__name__} is not for this datanode")

    def readable(self, request: ReadBlock | SalvageBlock) -> Readable:
        put = self.committed.get(request.local_id)
        if put is None:
            raise BlockError(stream_errors.NO_SUCH_BLOCK, f"no block {request.container_id}/{request.local_id}")
        return Readable(length=put.length, bytes_per_checksum=put.bytes_per_checksum, checksums=put.checksums)

    def on_corrupt_cell(self, container_id: int, local_id: int, offset: int) -> None:
        self.corrupt.append((container_id, local_id, offset))


class Datanode:
    """One stream server and what stands behind it, in this process."""

    def __init__(
        self, name: str, folder: Path, limits: WireLimits | None = None, fsync: str = NEVER,
        tls: WireTls | None = None, block_tokens: bool = False,
    ) -> None:  # fmt: skip
        """With ``block_tokens`` clients need some; ``tokens`` is what judges them, and waits for keys for a moment."""
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = BlockStore(self.folder, fsync=fsync)
        self.pipelines = Taking()
        self.notes: list[str] = []
        self.now_ms = int(time.time() * 1000)
        self.tokens = BlockTokenGuard(lambda: self.now_ms, self._note, wait_s=0.5) if block_tokens else None
        self._together = BlocksTogether(self.store)
        self.server = StreamServer(
            name=name, cluster=CLUSTER, host="127.0.0.1", port=0, blocks=self.store, pipelines=self.pipelines,
            note=self._note, limits=limits or WireLimits(stop_grace_s=0.2), small_blocks=self._together,
            tls=tls, block_tokens=self.tokens,
        )  # fmt: skip
        self.address = f"127.0.0.1:{self.server.port}"

    def _note(self, message: str, **fields: Any) -> None:
        self.notes.append(message)

    def bytes_of(self, block: int = 1) -> bytes:
        return self.path(block).read_bytes()

    def path(self, block: int = 1) -> Path:
        return self.folder / CONTAINERS / str(CONTAINER) / block_name(block)

    def stop(self) -> None:
        self.server.stop()
        self._together.close()


def introduce(nodes: Sequence[Datanode]) -> None:
    """Tell datanodes where all of them are, as the Object Manager does."""
    for node in nodes:
        node.pipelines.addresses.update({other.name: other.address for other in nodes})


class NodeProcess:
    """One stream server in a process of its own."""

    def __init__(self, name: str, folder: Path, fsync: str = NEVER) -> None:
        self.name = name
        self.folder = folder / name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.datanodes.streams", name, str(folder), fsync],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"

    def bytes_of(self, block: int = 1) -> bytes:
        return (self.folder / CONTAINERS / str(CONTAINER) / block_name(block)).read_bytes()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Proxy:
    """A TCP proxy in front of a datanode: slows, freezes, cuts, or damages what goes towards it."""

    def __init__(
        self, target: str, *, flip_at: int | None = None, cut_at: int | None = None, bytes_per_s: float = 0
    ) -> None:
        """Flip a bit of byte ``flip_at``, close after ``cut_at`` bytes, read no faster than ``bytes_per_s`` (0: any)."""
        self._target = target
        self._flip_at, self._cut_at, self.bytes_per_s = flip_at, cut_at, bytes_per_s
        self.passing = threading.Event()
        self.passing.set()
        self.answering = threading.Event()
        """Cleared: what comes from the datanode is held back."""
        self.answering.set()
        self.forwarded = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        # So that a slow reader is felt soon.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._pumps: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(near)
            host, port = self._target.split(":")
            far = socket.create_connection((host, int(port)))
            self._open.append(far)
            for source, sink, towards in ((near, far, True), (far, near, False)):
                self._pumps.append(threading.Thread(target=self._pump, args=(source, sink, towards), daemon=True))
                self._pumps[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket, towards: bool) -> None:
        done = 0
        try:
            while data := bytearray(source.recv(16 * 1024)):
                if towards:
                    self.passing.wait()
                    if self.bytes_per_s:
                        time.sleep(len(data) / self.bytes_per_s)
                    if self._flip_at is not None and done <= self._flip_at < done + len(data):
                        data[self._flip_at - done] ^= 4
                    if self._cut_at is not None and done + len(data) >= self._cut_at:
                        return
                    self.forwarded += len(data)
                else:
                    self.answering.wait()
                done += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def close(self) -> None:
        """Cut what is connected, and return when the threads have ended."""
        self.passing.set()
        self.answering.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # this wakes who accepts; closing does not
        self._accepting.join(TIMEOUT_S)
        self._listener.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for pump in self._pumps:
            pump.join(TIMEOUT_S)
        for sock in self._open:  # what was accepted, and had no far side
            sock.close()


class Client:
    """One connection of a client, driven frame by frame."""

    def __init__(
        self, address: str, cluster: str = CLUSTER, tls: WireTls | None = None, name: str = "client"
    ) -> None:  # fmt: skip
        self.wire: Wire = connect(address, TIMEOUT_S, tls)
        talk = self.wire.conversation(ConversationRole.CLIENT, own_hello(name, cluster))
        self.wire.wait_send(talk.hello(), timeout_s=TIMEOUT_S)
        try:
            greeted = self.wire.wait_event(talk, TIMEOUT_S)
        except ConversationFailed as error:
            raise failure(error) from error
        if isinstance(greeted, PeerRefused):
            raise refusal(greeted.error)
        assert isinstance(greeted, PeerGreeted), greeted
        self.hello = greeted.hello
        self.sequence = 0
        self.ended = -1
        """Sequence number of END, once it is about to be sent."""
        self.acknowledged = 0

    def send(self, kind: Kind, payload: bytes = b"", *, offset: int = 0) -> None:
        self.sequence += 1
        if kind is Kind.END:
            self.ended = self.sequence
        header = encode_header(kind, 1, self.sequence, offset, len(payload), crc32c(payload))
        self.wire.wait_send(header, payload, timeout_s=TIMEOUT_S)

    def answer(self) -> Frame:
        return self.wire.wait_frame(TIMEOUT_S)

    def until_end(self) -> Any:
        """Take ACKs until END's; return its record, or None. Raises the ERROR that came instead."""
        while True:
            frame = self.answer()
            if frame.header.kind is Kind.ERROR:
                error = read_error(frame)
                raise BlockError(error.code, error.message, error.offset, error.hint, error.datanode)
            assert frame.header.kind is Kind.ACK, frame.header
            assert frame.header.offset >= self.acknowledged
            self.acknowledged = frame.header.offset
            if frame.header.sequence == self.sequence:
                return read_record(frame) if frame.header.length else None

    def open(
        self, routes: Sequence[Route], *, block: int = 1, offset: int = 0, tokens: bytes = b"", **changes: Any
    ) -> None:  # fmt: skip
        """Open a stream and wait until the tree stands."""
        fields: dict[str, Any] = {
            "container_id": CONTAINER, "local_id": block, "partition": PARTITION, "offset": offset,
            "bytes_per_checksum": CELL, "window_bytes": 16 * 1024 * 1024, "routes": list(routes),
        }  # fmt: skip
        self.send(Kind.OPEN, with_tokens(OpenStream(**{**fields, **changes}), tokens), offset=offset)
        self.acknowledged = offset
        self.until_end()

    def data(self, data: bytes, *, offset: int, packet: int = CELL) -> None:
        """Send bytes as packets; reads nothing, so keep it below what sockets buffer, or read on another thread."""
        for at in range(0, len(data), packet):
            self.send(Kind.DATA, data[at : at + packet], offset=offset + at)

    def request(self, request: Any) -> Frame:
        self.sequence += 1
        self.wire.wait_send(encode_frame(Kind.REQUEST, encode(request), sequence=self.sequence), timeout_s=TIMEOUT_S)
        return self.answer()

    def close(self) -> None:
        self.wire.close()


def blocks_together(routes: Sequence[Route], blocks: Sequence[tuple[int, bytes]], /, **changes: Any) -> WriteBlocks:
    """Return the request to write whole blocks, by local id, together."""
    opening = OpenBlocks(
        partition=PARTITION, bytes_per_checksum=CELL, watch_timeout_ms=500, routes=list(routes),
        blocks=[
            WholeBlock(container_id=CONTAINER, local_id=block, length=len(data), checksums=checksums_of(data))
            for block, data in blocks
        ],
    )  # fmt: skip
    opening = replace(opening, **changes)
    return WriteBlocks(opening=encode(opening), data=b"".join(data for _, data in blocks))


def write_block(
    address: str, routes: Sequence[Route], data: bytes, *, block: int = 1, offset: int = 0, put: bool = False,
    packet: int = CELL, tls: WireTls | None = None,
) -> Any:  # fmt: skip
    """Stream ``data[offset:]`` as one block, sending and hearing at once; return what END's ACK carried."""
    client = Client(address, tls=tls)
    try:
        client.open(routes, block=block, offset=offset)
        hearing = _Hearing(client)
        try:
            client.data(data[offset:], offset=offset, packet=packet)
            client.send(Kind.END, encode(put_block(data, block)) if put else b"", offset=len(data))
        except WireClosed:
            pass  # the error that explains it has come, or comes
        return hearing.result()
    finally:
        client.close()


class _Hearing:
    """Takes a client's acknowledgements on a thread of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                frame = self._client.answer()
                if frame.header.kind is Kind.ERROR:
                    error = read_error(frame)
                    raise BlockError(error.code, error.message, error.offset, error.hint, error.datanode)
                self._client.acknowledged = frame.header.offset
                if frame.header.kind is Kind.ACK and frame.header.length:
                    self._answer = read_record(frame)
                if self._client.ended == frame.header.sequence:
                    return
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "no answer"
        if self._error is not None:
            raise self._error
        return self._answer


def put_block(data: bytes, block: int) -> PutBlock:
    return PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=block, length=len(data), bytes_per_checksum=CELL,
        checksums=checksums_of(data), wait_effective=True,
    )  # fmt: skip


def routes_of(nodes: Sequence[Addressed], tree: Sequence[Sequence[int]]) -> list[Route]:
    """Return routes in which ``tree[n]`` are the children of node n."""
    return [
        Route(datanode=node.name, address=node.address, children=[nodes[child].name for child in tree[number]])
        for number, node in enumerate(nodes)
    ]


if __name__ == "__main__":
    served = Datanode(sys.argv[1], Path(sys.argv[2]), fsync=sys.argv[3])
    print(served.server.port, flush=True)
    threading.Event().wait()
