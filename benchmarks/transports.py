"""Ways to move packets client -> n1 -> n2 -> n3; the datanodes' transport was chosen by these figures.

    python -m benchmarks.transports [--mib 512] [--rounds 3] [--only NAME ...] [--reads] [--fsync never close]

Each node checks CRC32C and writes a file. There are four processes on this machine, with files on its disk. Every way
runs once a round, round after round, so that all meet the same conditions; a way's figure is its median. Prints tables,
and one JSON object a line with `way`, `packet_kib`, `mb_per_second`, `cpu_s_per_gib` (all processes, system time
included). `server` is the real server: `datanode_processors.wire.server` with its block store. The others do the same
work with as little around it as possible: one acknowledgement each ACK_PACKETS, relayed upward, and nothing else. `tcp`
has no checksum and no file: the cost of the sockets alone. Nothing is asserted.

The ways: blocking threads that receive header and payload in one buffer and send it on with one call (`threads`), in
two buffers with `sendmsg` (`threads-vectored`) or two calls (`threads-two-sends`), or many packets at once
(`threads-large-reads`); the file's pages sent on with `sendfile` (`threads-sendfile`); bytes that no process looks at,
from socket to socket and file by `splice` and `tee` (`splice-unchecked`, no checksum); asyncio's streams
(`asyncio-streams`); uvloop with a BufferedProtocol (`uvloop`); gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from benchmarks.processor_time import spent_s
from schemas.records.packets import HEADER_BYTES, Kind, decode_header, encode_frame, encode_header

ROOT = Path(__file__).parents[1]
KIB, MIB, GIB = 1024, 1024 * 1024, 1024**3
ACK_PACKETS = 16
LARGE_READ_BYTES = MIB
BUFFER_BYTES = MIB
TIMEOUT_S = 300
END = encode_frame(Kind.END)
ACK = encode_frame(Kind.ACK)


def tune(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return sock


def connect(port: int) -> socket.socket:
    return tune(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))


def receive(sock: socket.socket, view: memoryview) -> bool:
    """Fill ``view``; False if the peer has closed."""
    while len(view):
        count = sock.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def relay(down: socket.socket, up: socket.socket) -> None:
    """Send acknowledgements upward as they arrive."""
    while data := down.recv(64 * KIB):
        up.sendall(data)
        if data.endswith(END):
            return


# ---------------------------------------------------------------------------------------------- blocking threads


@dataclass
class Hop:
    """A node's connections and file: a connection from above, one to below or none."""

    up: socket.socket
    down: socket.socket | None
    file: int

    def acknowledge(self, packets: int) -> None:
        if self.down is None and packets % ACK_PACKETS == 0:
            self.up.sendall(ACK)


def ended(hop: Hop, relaying: threading.Thread | None) -> None:
    if hop.down is None or relaying is None:
        hop.up.sendall(END)
        return
    hop.down.sendall(END)
    relaying.join()


def one_buffer(hop: Hop, relaying: threading.Thread | None) -> None:
    buffer = memoryview(bytearray(4 * MIB + HEADER_BYTES))
    packets, offset = 0, 0
    while receive(hop.up, buffer[:HEADER_BYTES]):
        header = decode_header(buffer[:HEADER_BYTES])
        if header.kind is Kind.END:
            break
        end = HEADER_BYTES + header.length
        payload = buffer[HEADER_BYTES:end]
        receive(hop.up, payload)
        check(payload, header.crc)
        if hop.down is not None:
            hop.down.sendall(buffer[:end])
        os.pwrite(hop.file, payload, offset)
        offset += header.length
        packets += 1
        hop.acknowledge(packets)
    ended(hop, relaying)


def two_buffers(hop: Hop, relaying: threading.Thread | None, vectored: bool) -> None:
    head, body = memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(4 * MIB))
    packets, offset = 0, 0
    while receive(hop.up, head):
        header = decode_header(head)
        if header.kind is Kind.END:
            break
        payload = body[: header.length]
        receive(hop.up, payload)
        check(payload, header.crc)
        if hop.down is not None:
            if vectored:
                sent = hop.down.sendmsg([head, payload])
                if sent < HEADER_BYTES + header.length:
                    hop.down.sendall(payload[sent - HEADER_BYTES :])
            else:
                hop.down.sendall(head)
                hop.down.sendall(payload)
        os.pwrite(hop.file, payload, offset)
        offset += header.length
        packets += 1
        hop.acknowledge(packets)
    ended(hop, relaying)


def large_reads(hop: Hop, relaying: threading.Thread | None) -> None:
    """Receive up to LARGE_READ_BYTES that are there; send and write all whole frames with one call each."""
    buffer = memoryview(bytearray(LARGE_READ_BYTES + 4 * MIB + HEADER_BYTES))
    start = end = packets = offset = 0
    going = True
    while going:
        if start:
            buffer[: end - start] = buffer[start:end]
            start, end = 0, end - start
        count = hop.up.recv_into(buffer[end : end + LARGE_READ_BYTES])
        if not count:
            break
        end += count
        payloads = []
        while end - start >= HEADER_BYTES:
            header = decode_header(buffer[start : start + HEADER_BYTES])
            if header.kind is Kind.END:
                going = False
                break
            stop = start + HEADER_BYTES + header.length
            if stop > end:
                break
            payload = buffer[start + HEADER_BYTES : stop]
            check(payload, header.crc)
            payloads.append(payload)
            start = stop
        if payloads:
            if hop.down is not None:
                hop.down.sendall(buffer[:start])
            offset += os.pwritev(hop.file, payloads, offset)
            for _ in payloads:
                packets += 1
                hop.acknowledge(packets)
    ended(hop, relaying)


def from_file(hop: Hop, relaying: threading.Thread | None) -> None:
    """Write first, then send on the file's pages, which saves one copy."""
    head, body = memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(4 * MIB))
    packets, offset = 0, 0
    while receive(hop.up, head):
        header = decode_header(head)
        if header.kind is Kind.END:
            break
        payload = body[: header.length]
        receive(hop.up, payload)
        check(payload, header.crc)
        os.pwrite(hop.file, payload, offset)
        if hop.down is not None:
            hop.down.send(head, socket.MSG_MORE)
            left, at = header.length, offset
            while left:
                sent = os.sendfile(hop.down.fileno(), hop.file, at, left)
                left, at = left - sent, at + sent
        offset += header.length
        packets += 1
        hop.acknowledge(packets)
    ended(hop, relaying)


def spliced(hop: Hop, relaying: threading.Thread | None) -> None:
    """Move the payloads through pipes. They never enter this process, so nothing is checked."""
    tee = ctypes.CDLL(None, use_errno=True).tee
    tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
    tee.restype = ctypes.c_ssize_t
    to_file, to_down = os.pipe(), os.pipe()
    for pipe in (to_file, to_down):
        with suppress(OSError):
            import fcntl

            fcntl.fcntl(pipe[1], 1031, MIB)  # F_SETPIPE_SZ
    head = memoryview(bytearray(HEADER_BYTES))
    packets, offset = 0, 0
    while receive(hop.up, head):
        header = decode_header(head)
        if header.kind is Kind.END:
            break
        if hop.down is not None:
            hop.down.send(head, socket.MSG_MORE)
        left = header.length
        while left:
            count = os.splice(hop.up.fileno(), to_file[1], left)
            if hop.down is not None:
                copied = tee(to_file[0], to_down[1], count, 0)
                assert copied == count, (copied, count)
                while copied:
                    copied -= os.splice(to_down[0], hop.down.fileno(), copied)
            while count:
                written = os.splice(to_file[0], hop.file, count, offset_dst=offset)
                offset, count, left = offset + written, count - written, left - written
        packets += 1
        hop.acknowledge(packets)
    ended(hop, relaying)


def sockets_alone(hop: Hop, relaying: threading.Thread | None) -> None:
    buffer = memoryview(bytearray(4 * MIB + HEADER_BYTES))
    packets = 0
    while receive(hop.up, buffer[:HEADER_BYTES]):
        header = decode_header(buffer[:HEADER_BYTES])
        if header.kind is Kind.END:
            break
        end = HEADER_BYTES + header.length
        receive(hop.up, buffer[HEADER_BYTES:end])
        if hop.down is not None:
            hop.down.sendall(buffer[:end])
        packets += 1
        hop.acknowledge(packets)
    ended(hop, relaying)


def check(payload: memoryview, crc: int) -> None:
    if crc32c(payload) != crc:
        raise SystemExit("a packet does not have its checksum")


THREADS: dict[str, Callable[[Hop, threading.Thread | None], None]] = {
    "threads": one_buffer,
    "threads-vectored": lambda hop, relaying: two_buffers(hop, relaying, vectored=True),
    "threads-two-sends": lambda hop, relaying: two_buffers(hop, relaying, vectored=False),
    "threads-large-reads": large_reads,
    "threads-sendfile": from_file,
    "splice-unchecked": spliced,
    "tcp": sockets_alone,
}


def serve_threads(way: str, port_below: int, path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        up = tune(listener.accept()[0])
        down = connect(port_below) if port_below else None
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        relaying = None
        if down is not None:
            relaying = threading.Thread(target=relay, args=(down, up))
            relaying.start()
        THREADS[way](Hop(up, down, file), relaying)
        os.close(file)
        up.close()
        if down is not None:
            down.close()


# ---------------------------------------------------------------------------------------------------- asyncio


def serve_streams(port_below: int, path: Path) -> None:
    async def handle(up: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        below: asyncio.StreamWriter | None = None
        relaying: asyncio.Task[None] | None = None
        if port_below:
            acks, below = await asyncio.open_connection("127.0.0.1", port_below, limit=MIB)

            async def relay_answers() -> None:
                while data := await acks.read(64 * KIB):
                    answers.write(data)
                    if data.endswith(END):
                        return

            relaying = asyncio.create_task(relay_answers())
        packets = offset = 0
        while True:
            head = await up.readexactly(HEADER_BYTES)
            header = decode_header(head)
            if header.kind is Kind.END:
                break
            payload = await up.readexactly(header.length)
            check(memoryview(payload), header.crc)
            if below is not None:
                below.write(head)
                below.write(payload)
                await below.drain()
            os.pwrite(file, payload, offset)
            offset += header.length
            packets += 1
            if below is None and packets % ACK_PACKETS == 0:
                answers.write(ACK)
        if below is not None and relaying is not None:
            below.write(END)
            await relaying
            below.close()
        else:
            answers.write(END)
        await answers.drain()
        os.close(file)
        answers.close()

    async def serve() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=MIB)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(serve())


class Answers(asyncio.Protocol):
    """Relays acknowledgements; lets the connection above read again when the one below takes more."""

    def __init__(self, hop: Receiving) -> None:
        self.hop = hop

    def data_received(self, data: bytes) -> None:
        assert self.hop.up is not None
        self.hop.up.write(data)
        if data.endswith(END):
            self.hop.finish()

    def pause_writing(self) -> None:
        assert self.hop.up is not None
        self.hop.up.pause_reading()

    def resume_writing(self) -> None:
        assert self.hop.up is not None
        self.hop.up.resume_reading()


class Receiving(asyncio.BufferedProtocol):
    """The connection from above."""

    def __init__(self, port_below: int, path: Path) -> None:
        self.port_below, self.path = port_below, path
        self.buffer = memoryview(bytearray(4 * MIB + HEADER_BYTES))
        self.have = self.offset = self.packets = 0
        self.up: asyncio.Transport | None = None
        self.down: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.up = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        if self.port_below:
            self.up.pause_reading()
            self.task = asyncio.ensure_future(self.open_below())

    async def open_below(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: Answers(self), "127.0.0.1", self.port_below)
        self.down = transport
        assert self.up is not None
        self.up.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame says how much
        wanted = HEADER_BYTES
        if self.have >= HEADER_BYTES:
            wanted += decode_header(self.buffer[:HEADER_BYTES]).length
        return self.buffer[self.have : wanted]

    def buffer_updated(self, count: int) -> None:
        self.have += count
        if self.have < HEADER_BYTES:
            return
        header = decode_header(self.buffer[:HEADER_BYTES])
        if self.have < HEADER_BYTES + header.length:
            return
        self.have = 0
        assert self.up is not None
        if header.kind is Kind.END:
            if self.down is not None:
                self.down.write(END)
            else:
                self.up.write(END)
                self.finish()
            return
        frame = self.buffer[: HEADER_BYTES + header.length]
        check(frame[HEADER_BYTES:], header.crc)
        if self.down is not None:
            self.down.write(bytes(frame))  # the transport may keep it, and this buffer is reused
        os.pwrite(self.file, frame[HEADER_BYTES:], self.offset)
        self.offset += header.length
        self.packets += 1
        if self.down is None and self.packets % ACK_PACKETS == 0:
            self.up.write(ACK)

    def finish(self) -> None:
        os.close(self.file)
        assert self.up is not None
        self.up.close()
        if self.down is not None:
            self.down.close()


def serve_uvloop(port_below: int, path: Path) -> None:
    import uvloop

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Receiving(port_below, path), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(serve())


# ------------------------------------------------------------------------------------------------------- gRPC

GRPC_OPTIONS = [("grpc.max_receive_message_length", 8 * MIB), ("grpc.max_send_message_length", 8 * MIB)]
METHOD = "/bench.Stream/Write"


def serve_grpc(port_below: int, path: Path) -> None:
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port_below}", options=GRPC_OPTIONS) if port_below else None

    def packets_of(requests: Iterator[bytes], file: int, count: list[int]) -> Iterator[bytes]:
        offset = 0
        for frame in requests:
            view = memoryview(frame)
            header = decode_header(view[:HEADER_BYTES])
            if header.kind is not Kind.END:
                check(view[HEADER_BYTES:], header.crc)
                os.pwrite(file, view[HEADER_BYTES:], offset)
                offset += header.length
                count[0] += 1
            yield frame

    def write(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        count = [0]
        coming = packets_of(requests, file, count)
        if channel is not None:
            yield from channel.stream_stream(METHOD, None, None)(coming)
        else:
            for _ in coming:
                if count[0] % ACK_PACKETS == 0:
                    yield ACK
            yield END
        os.close(file)

    handler = grpc.method_handlers_generic_handler(
        "bench.Stream", {"Write": grpc.stream_stream_rpc_method_handler(write)}
    )
    server = grpc.server(ThreadPoolExecutor(8), options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


# ----------------------------------------------------------------------------------------------------- clients


def packets(data: memoryview, total: int, size: int, first: int = 0) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (header, payload) of ``total`` bytes; the checksum is computed for each, as a client must."""
    for number, offset in enumerate(range(0, total, size), first):
        payload = data[offset % len(data) :][:size]
        yield encode_header(Kind.DATA, 1, number, offset, len(payload), crc32c(payload)), payload


def send_all(port: int, data: memoryview, total: int, size: int) -> None:
    """Send as a blocking client, for any of the ways that use frames over TCP."""
    sock = connect(port)
    heard = threading.Event()

    def hear() -> None:
        last = b""
        while received := sock.recv(64 * KIB):
            last = (last + received)[-len(END) :]
            if last == END:
                heard.set()
                return

    threading.Thread(target=hear, daemon=True).start()
    for header, payload in packets(data, total, size):
        sent = sock.sendmsg([header, payload])
        if sent < len(header) + len(payload):
            sock.sendall(payload[sent - len(header) :])
    sock.sendall(END)
    assert heard.wait(TIMEOUT_S), "no last acknowledgement"
    sock.close()


def send_grpc(port: int, data: memoryview, total: int, size: int) -> None:
    import grpc

    def frames() -> Iterator[bytes]:
        for header, payload in packets(data, total, size):
            yield header + bytes(payload)
        yield END

    with grpc.insecure_channel(f"127.0.0.1:{port}", options=GRPC_OPTIONS) as channel:
        last = b""
        for answer in channel.stream_stream(METHOD, None, None)(frames()):
            last = answer
        assert last == END, "no last acknowledgement"


# ------------------------------------------------------------------------------------------------- measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    mb_per_second: float
    cpu_s_per_gib: float


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(spent_s(process) for process in processes)


def measured(processes: list[psutil.Process], total: int, run: Callable[[], None]) -> Figure:
    everyone = [*processes, psutil.Process()]
    before, began = cpu_s(everyone), time.perf_counter()
    run()
    took_s = time.perf_counter() - began
    return Figure(mb_per_second=total / took_s / 1e6, cpu_s_per_gib=(cpu_s(everyone) - before) * GIB / total)


def start(arguments: list[str]) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def run_way(way: str, folder: Path, data: memoryview, total: int, size: int) -> Figure:
    """Start three nodes, the last one first; send once to warm up and once for the figure."""
    nodes: list[subprocess.Popen[str]] = []
    port = 0
    try:
        for number in (3, 2, 1):
            process, port = start(["benchmarks.transports", "--node", way, str(port), str(folder / f"n{number}")])
            nodes.append(process)
        send = send_grpc if way == "grpc" else send_all
        send(port, data, total, size)
        processes = [psutil.Process(node.pid) for node in nodes]
        return measured(processes, total, lambda: send(port, data, total, size))
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def run_server(way: str, folder: Path, data: memoryview, total: int, size: int) -> Figure:
    """Send blocks of 256 MiB through the real servers, one after another, by one client.

    ``way`` names topology and fsync.
    """
    from tests.support.datanodes import streams

    _, topology, fsync = way.split("-")
    tree = [[1], [2], []] if topology == "chain" else [[1, 2], [], []]
    nodes = [streams.NodeProcess(f"dn{number}", folder, fsync) for number in (1, 2, 3)]
    try:
        routes = streams.routes_of(nodes, tree)
        block_bytes = 256 * MIB

        def send(length: int, first: int) -> None:
            for number, offset in enumerate(range(0, length, block_bytes), first):
                send_block(nodes[0].address, routes, data, min(block_bytes, length - offset), size, number)
                # Like the other ways, which truncate their file. Memory that a virtual machine touches for the first
                # time costs more than everything else (docs/performance.md), and would dominate the figure.
                for path in folder.glob(f"*/containers/*/{number}.block"):
                    path.unlink()

        send(block_bytes, 1000)
        processes = [psutil.Process(node.process.pid) for node in nodes]
        return measured(processes, total, lambda: send(total, 1))
    finally:
        for node in nodes:
            node.stop()


def send_block(address: str, routes: Any, data: memoryview, length: int, size: int, block: int) -> None:
    """Send one block like a client: one thread, a window of 16 MiB, acknowledgements received between packets."""
    from tests.support.datanodes.streams import TIMEOUT_S as WAIT_S
    from tests.support.datanodes.streams import Client

    client = Client(address)
    client.open(routes, block=block)
    wire = client.wire
    window = 16 * MIB
    acknowledged = sent = 0
    for header, payload in packets(data, length, size, first=client.sequence + 1):
        while sent + len(payload) - acknowledged > window:
            acknowledged = wire.wait_frame(WAIT_S).header.offset
        wire.wait_send(header, payload, timeout_s=WAIT_S)
        client.sequence += 1
        sent += len(payload)
    client.send(Kind.END, offset=length)
    client.until_end()
    client.close()


# ------------------------------------------------------------------------------------------------------- reads


def read_ways(path: Path) -> dict[str, Callable[[socket.socket, int], None]]:
    """Return ways to send a file of ``total`` bytes as packets of 64 KiB; checksums are known, like those of a row."""
    import mmap

    size = 64 * KIB
    file = os.open(path, os.O_RDONLY)
    mapped = memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))

    def copied(sock: socket.socket, total: int) -> None:
        step = 512 * KIB
        for start in range(0, total, step):
            data = memoryview(os.pread(file, step, start))
            for at in range(0, len(data), size):
                cell = data[at : at + size]
                send_whole(sock, encode_header(Kind.DATA, 1, 0, start + at, size, crc32c(cell)), cell)

    def checked_in_place(sock: socket.socket, total: int) -> None:
        for offset in range(0, total, size):
            crc = crc32c(mapped[offset : offset + size])
            sock.send(encode_header(Kind.DATA, 1, 0, offset, size, crc), socket.MSG_MORE)
            send_pages(sock, file, offset, size)

    def mapped_and_sent(sock: socket.socket, total: int) -> None:
        for offset in range(0, total, size):
            cell = mapped[offset : offset + size]
            send_whole(sock, encode_header(Kind.DATA, 1, 0, offset, size, crc32c(cell)), cell)

    def unchecked(sock: socket.socket, total: int) -> None:
        for offset in range(0, total, size):
            sock.send(encode_header(Kind.DATA, 1, 0, offset, size, 0), socket.MSG_MORE)
            send_pages(sock, file, offset, size)

    return {
        "read, check, sendmsg": copied,
        "map, check, sendmsg": mapped_and_sent,
        "map, check, sendfile": checked_in_place,
        "sendfile, unchecked": unchecked,
    }


def send_whole(sock: socket.socket, header: bytes, payload: memoryview) -> None:
    sent = sock.sendmsg([header, payload])
    if sent < len(header) + len(payload):
        sock.sendall(payload[sent - len(header) :])


def send_pages(sock: socket.socket, file: int, offset: int, size: int) -> None:
    while size:
        sent = os.sendfile(sock.fileno(), file, offset, size)
        offset, size = offset + sent, size - sent


def run_read(send: Callable[[socket.socket, int], None], total: int) -> Figure:
    """Send to a process that receives and checks, as a client does."""
    reader, port = start(["benchmarks.transports", "--reader"])
    try:
        sock = connect(port)
        process = psutil.Process(reader.pid)

        def run() -> None:
            send(sock, total)
            sock.sendall(END)
            sock.recv(len(END))

        return measured([process], total, run)
    finally:
        reader.kill()
        reader.wait()


def serve_reader() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    sock = tune(listener.accept()[0])
    buffer = memoryview(bytearray(HEADER_BYTES + 4 * MIB))
    while receive(sock, buffer[:HEADER_BYTES]):
        header = decode_header(buffer[:HEADER_BYTES])
        if header.kind is Kind.END:
            break
        receive(sock, buffer[: header.length])
        crc32c(buffer[: header.length])
    sock.sendall(END)


# -------------------------------------------------------------------------------------------------------- main

WAYS = [*THREADS, "asyncio-streams", "uvloop", "grpc"]
PACKETS_KIB = {"threads": (64, 256, 1024), "threads-large-reads": (64, 256)}


def show(title: str, figures: dict[tuple[str, int], list[Figure]]) -> None:
    table = Table(title=title)
    for column in ("way", "packet KiB", "MB/s", "lowest", "highest", "processor s per GiB"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for (way, kib), found in figures.items():
        speeds = [figure.mb_per_second for figure in found]
        spent = statistics.median(figure.cpu_s_per_gib for figure in found)
        median = statistics.median(speeds)
        table.add_row(way, str(kib), f"{median:.0f}", f"{min(speeds):.0f}", f"{max(speeds):.0f}", f"{spent:.2f}")
        line = {"way": way, "packet_kib": kib, "mb_per_second": round(median, 1), "cpu_s_per_gib": round(spent, 3)}
        print(json.dumps(line), flush=True)
    Console().print(table)


def node_main(way: str, port_below: int, path: Path) -> None:
    if way in THREADS:
        serve_threads(way, port_below, path)
    elif way == "asyncio-streams":
        serve_streams(port_below, path)
    elif way == "uvloop":
        serve_uvloop(port_below, path)
    else:
        serve_grpc(port_below, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="MiB that each run moves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="these ways alone")
    parser.add_argument("--reads", action="store_true", help="ways to send a block to a reader, instead")
    parser.add_argument("--fsync", nargs="*", default=["never", "close"], help="policies of the real server")
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--reader", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        node_main(options.node[0], int(options.node[1]), Path(options.node[2]))
        return
    if options.reader:
        serve_reader()
        return
    total = options.mib * MIB
    data = memoryview(os.urandom(64 * MIB))
    with tempfile.TemporaryDirectory(prefix="stratolog-transports-") as name:
        folder = Path(name)
        if options.reads:
            path = folder / "block"
            with path.open("wb") as file:
                for at in range(0, total, len(data)):
                    file.write(data[: min(len(data), total - at)])
            ways = read_ways(path)
            reads: dict[tuple[str, int], list[Figure]] = {}
            for _ in range(options.rounds):
                for way, send in ways.items():
                    reads.setdefault((way, 64), []).append(run_read(send, total))
            show("A block to one reader", reads)
            return
        servers = [f"server-{topology}-{fsync}" for fsync in options.fsync for topology in ("chain", "star")]
        chosen = [way for way in [*servers, *WAYS] if not options.only or way in options.only]
        figures: dict[tuple[str, int], list[Figure]] = {}
        for _ in range(options.rounds):
            for way in chosen:
                for kib in PACKETS_KIB.get(way, (64,)):
                    run = run_server if way in servers else run_way
                    figure = run(way, folder, data, total, kib * KIB)
                    figures.setdefault((way, kib), []).append(figure)
                    for left in folder.iterdir():
                        if left.is_dir():
                            subprocess.run(["rm", "-rf", str(left)], check=True)
        show("Through three replicas", figures)


if __name__ == "__main__":
    main()
