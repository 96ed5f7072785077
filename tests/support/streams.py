"""Stream servers in this process, with plain files and a pipeline port that takes everything: for tests of the wire."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from crc32c import crc32c

from datanode_processors.errors import BlockError
from datanode_processors.limits import Limits
from datanode_processors.ports import Readable
from datanode_processors.server import StreamServer
from datanode_processors.wire import Wire, WireClosed, connect, hello_frame, read_error, read_hello, read_record
from schemas import stream_errors
from schemas.codec import encode
from schemas.datanode import (
    Accepted,
    BlockCommitted,
    CloseContainer,
    OpenStream,
    PutBlock,
    ReadBlock,
    Route,
)
from schemas.packets import Frame, Kind, encode_frame, encode_header

CLUSTER = "test"
CONTAINER, PARTITION = 7, 3
CELL = 64 * 1024
TIMEOUT_S = 20.0
_CHECKSUM = Struct(">I")


def checksums_of(data: bytes, cell: int = CELL) -> bytes:
    return b"".join(_CHECKSUM.pack(crc32c(data[at : at + cell])) for at in range(0, len(data), cell))


class PlainWriter:
    """Writes a file as it is told, after looking at each checksum."""

    def __init__(self, blocks: PlainBlocks, path: Path) -> None:
        self._blocks = blocks
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        blocks.opened(+1)

    def write(self, offset: int, data: memoryview, crc: int) -> None:
        assert self._file is not None
        assert crc32c(data) == crc, "a packet that was not checked reached the store"
        if offset + len(data) > self._blocks.capacity_bytes:
            raise BlockError(stream_errors.DISK_FULL, "no room")
        self._blocks.slow.wait()
        os.pwrite(self._file, data, offset)

    def flush(self) -> None:
        assert self._file is not None
        self._blocks.flushes += 1

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._blocks.opened(-1)


class PlainBlocks:
    """A file for each block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.flushes = 0
        self.writers = 0
        self.capacity_bytes = 2**62
        self.slow = threading.Event()
        self.slow.set()
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def opened(self, change: int) -> None:
        with self._lock:
            self.writers += change

    def path(self, local_id: int) -> Path:
        return self.folder / f"{local_id}.block"

    def bytes_of(self, local_id: int) -> bytes:
        return self.path(local_id).read_bytes()

    def open_writer(self, container_id: int, local_id: int, offset: int, bytes_per_checksum: int) -> PlainWriter:
        path = self.path(local_id)
        stored = path.stat().st_size if path.exists() else 0
        if offset > stored:
            raise BlockError(
                stream_errors.OUT_OF_ORDER, f"offset {offset} of block {local_id}; {stored} bytes are here"
            )
        return PlainWriter(self, path)

    def read(self, container_id: int, local_id: int, offset: int, length: int) -> Iterator[tuple[int, memoryview, int]]:
        with self.path(local_id).open("rb") as file:
            file.seek(offset)
            for at in range(offset, offset + length, CELL):
                data = file.read(min(CELL, offset + length - at))
                if data:
                    yield at, memoryview(data), crc32c(data)


class PlainPipelines:
    """Takes every block, commits every PutBlock at once, and keeps what it was told."""

    def __init__(self) -> None:
        self.committed: dict[int, PutBlock] = {}
        self.corrupt: list[tuple[int, int, int]] = []
        self.closed: set[int] = set()

    def check_stream(self, partition: int, container_id: int, local_id: int) -> None:
        if partition != PARTITION:
            raise BlockError(stream_errors.NO_SUCH_PIPELINE, f"no member of pipeline-{partition}")
        if container_id in self.closed:
            raise BlockError(stream_errors.CONTAINER_CLOSED, f"container {container_id} is closed")

    def handle(self, request: Any) -> Any:
        if isinstance(request, PutBlock):
            self.committed[request.local_id] = request
            return BlockCommitted(
                container_id=request.container_id, local_id=request.local_id, length=request.length,
                bcs_id=len(self.committed), log_offset=len(self.committed),
            )  # fmt: skip
        if isinstance(request, CloseContainer):
            self.closed.add(request.container_id)
            return Accepted(detail="closed")
        if isinstance(request, Accepted):
            raise RuntimeError("a defect")
        raise BlockError(stream_errors.INVALID_REQUEST, f"{type(request).__name__} is not for this datanode")

    def readable(self, request: ReadBlock) -> Readable:
        put = self.committed.get(request.local_id)
        if put is None:
            raise BlockError(stream_errors.NO_SUCH_BLOCK, f"no block {request.container_id}/{request.local_id}")
        return Readable(length=put.length, bytes_per_checksum=put.bytes_per_checksum, checksums=put.checksums)

    def found_corrupt(self, container_id: int, local_id: int, offset: int) -> None:
        self.corrupt.append((container_id, local_id, offset))


class Datanode:
    """One stream server and what stands behind it."""

    def __init__(self, name: str, folder: Path, limits: Limits | None = None) -> None:
        self.name = name
        self.blocks = PlainBlocks(folder / name)
        self.pipelines = PlainPipelines()
        self.notes: list[str] = []
        self.server = StreamServer(
            name=name, cluster=CLUSTER, host="127.0.0.1", port=0, blocks=self.blocks, pipelines=self.pipelines,
            note=self._note, limits=limits or Limits(stop_grace_s=0.2),
        )  # fmt: skip

    def _note(self, message: str, **fields: Any) -> None:
        self.notes.append(message)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


class Client:
    """One connection of a client, driven frame by frame."""

    def __init__(self, address: str, cluster: str = CLUSTER) -> None:
        self.wire: Wire = connect(address, TIMEOUT_S)
        self.wire.wait_send(hello_frame("client", cluster), timeout_s=TIMEOUT_S)
        self.hello = read_hello(self.wire.wait_frame(TIMEOUT_S), cluster)
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

    def open(self, routes: Sequence[Route], *, block: int = 1, offset: int = 0, **changes: Any) -> None:
        """Open a stream and wait until the tree stands."""
        fields: dict[str, Any] = {
            "container_id": CONTAINER, "local_id": block, "partition": PARTITION, "offset": offset,
            "bytes_per_checksum": CELL, "window_bytes": 16 * 1024 * 1024, "routes": list(routes),
        }  # fmt: skip
        self.send(Kind.OPEN, encode(OpenStream(**{**fields, **changes})), offset=offset)
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


def write_block(
    address: str, routes: Sequence[Route], data: bytes, *, block: int = 1, offset: int = 0, put: bool = False,
    packet: int = CELL,
) -> Any:  # fmt: skip
    """Stream ``data[offset:]`` as one block, sending and hearing at once; return what END's ACK carried."""
    client = Client(address)
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


def routes_of(nodes: Sequence[Datanode], tree: Sequence[Sequence[int]]) -> list[Route]:
    """Return routes in which ``tree[n]`` are the children of node n."""
    return [
        Route(datanode=node.name, address=node.address, children=[nodes[child].name for child in tree[number]])
        for number, node in enumerate(nodes)
    ]
