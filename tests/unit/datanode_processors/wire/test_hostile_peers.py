"""Peers that send what they please, or nothing, and leave when they please: the server goes on, and nothing of them stays.

Real sockets and files. After each attack: no connection, no stream and no descriptor is left, no thread has died, the threads that served
it took a bounded number of turns (turns are counted, no time is), and a client that behaves writes a block.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from datanode_processors import errors
from datanode_processors.errors import MAX_MESSAGE_CHARACTERS, BlockError
from datanode_processors.pipeline.leader_calls import unwrap
from datanode_processors.wire import server
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.forwarding import Forwarding
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import Wire, WireClosed, connect, read_error
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import (
    Accepted,
    BlockId,
    DeleteBlocks,
    Forwarded,
    Hello,
    OpenStream,
    PutBlock,
    ReadBlock,
    Route,
    WriteChunk,
)
from schemas.records.packets import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_BYTES,
    FrameHeader,
    Kind,
    encode_frame,
    encode_header,
)
from tests.support.datanodes.streams import (
    CELL,
    CLUSTER,
    CONTAINER,
    PARTITION,
    TIMEOUT_S,
    Behind,
    Client,
    Datanode,
    NodeProcess,
    Proxy,
    hello_frame,
    put_block,
    routes_of,
    write_block,
)
from tests.support.local.waiting import eventually
from transport.datanodes.dialing import split_address

MIB = 1024 * 1024
MAX_TURNS = 60
"""Turns of waiting that an attack of a few frames may cost."""
SHORT = WireLimits(
    handshake_timeout_s=0.2, idle_timeout_s=0.25, open_timeout_s=0.3, connect_timeout_s=0.5, stall_timeout_s=0.3,
    end_timeout_s=0.3, send_timeout_s=0.3, linger_s=0.1, alive_s=0.1, stop_grace_s=0.2,
)  # fmt: skip


class Child:
    """A datanode below that greets, takes everything, and never acknowledges."""

    def __init__(self, name: str = "dn2", *, reads: bool = True) -> None:
        self.name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._reads = reads
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.sendall(hello_frame(self.name, CLUSTER))
            while sock.recv(65536):
                pass
        except OSError:
            pass
        finally:
            sock.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Watched:
    """One datanode, and what must not happen to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, limits: WireLimits = SHORT) -> None:
        self.folder = folder
        self.node = Datanode("dn1", folder, limits)
        self.child = Child()
        eventually(lambda: self.writes(os.urandom(4 * MIB), 9))
        eventually(lambda: self.node.server.snapshot().connections == 0)
        self.dead: list[Any] = []
        monkeypatch.setattr(threading, "excepthook", self.dead.append)
        self.turns: Counter[str] = Counter()
        self._count(monkeypatch, Forwarding)
        self._count(monkeypatch, Wire)
        self.descriptors = open_descriptors()

    def _count(self, monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
        wait = cls._wait

        def counted(*args: Any) -> Any:
            self.turns[cls.__name__] += 1
            return wait(*args)

        monkeypatch.setattr(cls, "_wait", counted)

    def holds_anything(self) -> bool:
        """Whether a connection of the datanode or a block's file is open: others in this process open descriptors, too."""
        process, port = psutil.Process(), self.node.server.port
        ends = [
            end for one in process.net_connections("tcp") if one.status != "LISTEN" for end in (one.laddr, one.raddr)
        ]
        return any(end and end.port == port for end in ends) or any(
            one.path.endswith(".block") and one.path.startswith(str(self.folder)) for one in process.open_files()
        )

    def is_unharmed(self, turns: int = MAX_TURNS) -> None:
        eventually(lambda: self.node.server.snapshot().connections == 0)
        assert self.node.server.snapshot().streams == 0
        assert self.turns.total() <= turns, self.turns
        eventually(lambda: open_descriptors() <= self.descriptors or not self.holds_anything())
        assert self.node.server._accepting.is_alive()
        assert self.dead == []
        eventually(lambda: self.writes(b"right" * 1000, 2))
        assert self.node.bytes_of(2) == b"right" * 1000
        assert max(map(len, self.node.notes), default=0) < 3 * MAX_MESSAGE_CHARACTERS

    def writes(self, data: bytes, block: int) -> bool:
        """Whether a client can write a block; on a busy machine it may be too slow for SHORT."""
        try:
            write_block(self.node.address, routes_of([self.node], [[]]), data, block=block, put=True)
        except (BlockError, WireClosed):
            return False
        return True

    def stop(self) -> None:
        self.node.stop()
        self.child.close()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(tmp_path, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """With time-outs that a client meets on a busy machine, but for a child's."""
    made = Watched(tmp_path, monkeypatch, WireLimits(open_timeout_s=0.3, linger_s=0.1, stop_grace_s=0.2))
    yield made
    made.stop()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def opening(routes: list[Route], block: int = 1) -> bytes:
    request = OpenStream(
        container_id=CONTAINER, local_id=block, partition=PARTITION, offset=0, bytes_per_checksum=CELL,
        window_bytes=16 * MIB, routes=routes,
    )  # fmt: skip
    return encode_frame(Kind.OPEN, encode(request), stream=1)


def reading(length: int) -> bytes:
    request = ReadBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=9, offset=0, length=length, bcs_id=0, committed_only=True
    )
    return encode_frame(Kind.REQUEST, encode(request), sequence=1)


HELLO = hello_frame("stranger", CLUSTER)
DATA = encode_frame(Kind.DATA, bytes(CELL), stream=1, sequence=1)
PUT = encode(put_block(bytes(CELL), 1))
END = encode_frame(Kind.END, PUT, stream=1, sequence=2, offset=CELL)

States = Callable[[Watched], bytes]


def alone(watched: Watched) -> bytes:
    return opening(routes_of([watched.node], [[]]))


def with_child(watched: Watched) -> bytes:
    return opening(routes_of([watched.node, watched.child], [[1], []]))


STATES: dict[str, States] = {
    "connected": lambda _: b"",
    "half a header": lambda _: HELLO[: HEADER_BYTES // 2],
    "half a HELLO": lambda _: HELLO[:-3],
    "HELLO": lambda _: HELLO,
    "half a request": lambda _: HELLO + reading(1)[:-1],
    "a read that nobody takes": lambda _: HELLO + reading(4 * MIB),
    "half an OPEN": lambda w: HELLO + alone(w)[:-1],
    "OPEN": lambda w: HELLO + alone(w),
    "OPEN that waits for a child": lambda w: HELLO + with_child(w),
    "OPEN that waits for a child, and packets": lambda w: HELLO + with_child(w) + DATA + END,
    "half a packet": lambda w: HELLO + alone(w) + DATA[:-1],
    "a packet": lambda w: HELLO + alone(w) + DATA,
    "half an END": lambda w: HELLO + alone(w) + DATA + END[:-1],
    "a whole stream": lambda w: HELLO + alone(w) + DATA + END,
}


def leave(sock: socket.socket) -> None:
    sock.close()


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def say_nothing(sock: socket.socket) -> None:
    """Keep the connection."""


def say_anything(sock: socket.socket) -> None:
    sock.sendall(random.Random(sock.getsockname()[1]).randbytes(300))


@pytest.mark.parametrize("act", [leave, reset, half_close, say_nothing, say_anything], ids=lambda act: act.__name__)
@pytest.mark.parametrize("state", STATES)
def test_a_peer_that_stops_to_behave_in_any_state(watched: Watched, state: str, act: Callable[..., None]) -> None:
    sock = socket.create_connection(split_address(watched.node.address))
    with suppress(OSError):  # on a busy machine a deadline may have passed, and the node has left first
        sock.sendall(STATES[state](watched))
        act(sock)
    eventually(lambda: watched.node.server.snapshot().connections == 0)
    sock.close()
    watched.is_unharmed()


@pytest.mark.parametrize("state", STATES)
def test_a_peer_that_trickles_is_no_better_than_a_silent_one(watched: Watched, state: str) -> None:
    """A byte now and then of a frame that never ends: events, and deadlines all the same."""
    sock = socket.create_connection(split_address(watched.node.address))
    sock.sendall(STATES[state](watched))
    sent = 0
    begin = encode_header(Kind.DATA, 1, 1, 0, 4 * MIB, 0)
    try:
        for byte in begin + bytes(4 * MIB):
            sock.send(bytes([byte]))
            sent += 1
            time.sleep(0.02)
            if not watched.node.server.snapshot().connections:
                break
    except OSError:
        pass
    sock.close()
    watched.is_unharmed(turns=MAX_TURNS + 2 * sent)


def test_a_client_that_leaves_while_its_stream_waits_for_a_child_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Datanode("dn1", tmp_path, WireLimits(stop_grace_s=0.1, open_timeout_s=600.0))
    child = Child()
    try:
        sock = socket.create_connection(split_address(node.address))
        sock.sendall(HELLO + opening(routes_of([node, child], [[1], []])))
        eventually(lambda: node.server.snapshot().streams == 1)
        sock.close()
        eventually(lambda: node.server.snapshot().connections == 0)
        assert node.server.snapshot().streams_reclaimed == 1
    finally:
        node.stop()
        child.close()


def test_packets_that_come_too_early_do_not_wake_the_one_who_waits(patient: Watched) -> None:
    """The child is given up when its time is over, after as few turns as without the packets."""
    client = Client(patient.node.address)
    before = patient.turns["Forwarding"]
    client.wire.wait_send(with_child(patient) + DATA, timeout_s=TIMEOUT_S)
    error = read_error(client.answer())
    assert (error.code, error.datanode, error.hint) == (stream_errors.DOWNSTREAM_FAILED, "dn2", stream_errors.TIMED_OUT)
    assert patient.turns["Forwarding"] - before <= 10
    client.close()
    patient.is_unharmed()


# ------------------------------------------------------------------------------------------------- any bytes


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_bytes(watched: Watched, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        with socket.create_connection(split_address(watched.node.address)) as sock:
            sock.settimeout(TIMEOUT_S)
            state = chance.choice(list(STATES.values()))(watched)
            cut = state[: chance.randrange(len(state) + 1)]
            try:
                sock.sendall(cut + chance.randbytes(chance.randrange(200)))
                if chance.random() < 0.5:
                    sock.sendall(encode_frame(chance.choice(list(Kind)), chance.randbytes(chance.randrange(500))))
            except OSError:  # it has closed the connection already
                pass
    watched.is_unharmed(turns=10 * MAX_TURNS)


@pytest.mark.parametrize("seed", SEEDS)
def test_right_frames_with_a_flipped_bit_or_in_any_order(watched: Watched, seed: int) -> None:
    chance = random.Random(seed)
    frames = [HELLO, alone(watched), DATA, END, reading(10), encode_frame(Kind.ACK), encode_frame(Kind.REPLY, PUT)]
    for _ in range(10):
        with socket.create_connection(split_address(watched.node.address)) as sock:
            chosen = [HELLO, *chance.choices(frames, k=6)]
            if chance.random() < 0.7:
                damaged = bytearray(chosen.pop())
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
                chosen.append(bytes(damaged))
            try:
                sock.sendall(b"".join(chosen))
            except OSError:
                pass
    watched.is_unharmed(turns=10 * MAX_TURNS)


def test_a_flood_of_greetings(watched: Watched) -> None:
    greeting = encode_frame(
        Kind.HELLO, encode(Hello(peer="x" * 3000, cluster=CLUSTER, min_version=1, max_version=1, max_payload_bytes=1))
    )
    for _ in range(5):
        socks = [socket.create_connection(split_address(watched.node.address)) for _ in range(40)]
        for sock in socks:
            sock.sendall(greeting + greeting)
        for sock in socks:
            sock.close()
    watched.is_unharmed(turns=200 * 6)
    assert sum(map(len, watched.node.notes)) < 100_000
    assert len(watched.node.server.snapshot().bytes_in) <= 65


# ------------------------------------------------------------------------------------------------- memory


def many_blocks() -> DeleteBlocks:
    return DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=1, local_id=1)] * 1_000_000)


@pytest.mark.parametrize("greeted", [False, True], ids=["before HELLO", "after HELLO"])
def test_a_record_that_would_grow_is_not_decoded(patient: Watched, greeted: bool) -> None:
    bomb = encode_frame(Kind.REQUEST, encode(many_blocks()), sequence=1)
    assert len(bomb) > MIB
    wire = connect(patient.node.address, TIMEOUT_S)
    wire.wait_frame(TIMEOUT_S)
    tracemalloc.start()
    try:
        wire.wait_send(HELLO + bomb if greeted else bomb[:CELL], timeout_s=TIMEOUT_S)
        error = read_error(wire.wait_frame(TIMEOUT_S))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    wire.close()
    assert peak_bytes < (8 * MIB if greeted else MIB)
    if greeted:
        assert error.code == stream_errors.INVALID_REQUEST
        assert "DeleteBlocks of 2" in error.message
    else:
        assert error.code == stream_errors.BAD_FRAME
    patient.is_unharmed()


def test_what_is_sent_on_is_not_decoded_either() -> None:
    with pytest.raises(BlockError, match="a DeleteBlocks of 2") as caught:
        unwrap(Forwarded(by="dn2", request=encode(many_blocks())))
    assert caught.value.code == stream_errors.INVALID_REQUEST


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.OPEN, Kind.ERROR])
def test_a_header_alone_gets_no_room(patient: Watched, kind: Kind) -> None:
    wire = connect(patient.node.address, TIMEOUT_S)
    wire.wait_frame(TIMEOUT_S)
    wire.wait_send(HELLO + encode_header(kind, 0, 0, 0, MAX_PAYLOAD_BYTES, 0), timeout_s=TIMEOUT_S)
    assert read_error(wire.wait_frame(TIMEOUT_S)).code == stream_errors.BAD_FRAME
    wire.close()
    patient.is_unharmed()


def test_large_frames_of_all_peers_together_have_a_limit(tmp_path: Path) -> None:
    node = Datanode("dn1", tmp_path, WireLimits(stop_grace_s=0.1, max_large_bytes=9 * MIB))
    room = node.server._room
    large = HELLO + encode_header(Kind.REQUEST, 0, 1, 0, 4 * MIB, 0)
    socks = [socket.create_connection(split_address(node.address)) for _ in range(2)]
    try:
        for sock in socks:
            sock.sendall(large + bytes(MIB))
        eventually(lambda: room.taken_bytes > 7 * MIB)
        client = Client(node.address)
        client.wire.wait_send(large[len(HELLO) :], timeout_s=TIMEOUT_S)
        assert read_error(client.answer()).code == stream_errors.OVERLOADED
        client.close()
        write_block(node.address, routes_of([node], [[]]), os.urandom(MIB))
        for sock in socks:
            sock.close()
        eventually(lambda: room.taken_bytes == 0)
        client = Client(node.address)
        error = read_error(client.request(Accepted(detail="x" * 3 * MIB)))
        assert "Accepted of" in error.message
        eventually(lambda: room.taken_bytes == 0)
        assert node.server.snapshot().connections == 1, "it is open, and keeps nothing"
        client.close()
        write_block(node.address, routes_of([node], [[]]), os.urandom(8 * MIB), block=2, packet=4 * MIB)
        eventually(lambda: room.taken_bytes == 0)
    finally:
        for sock in socks:
            sock.close()
        node.stop()


def test_what_is_large_for_a_reason_is_taken(patient: Watched) -> None:
    cells = bytes(4 * (MAX_RECORD_BYTES // 4 + 100))
    put = PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=1, length=CELL * (len(cells) // 4), bytes_per_checksum=CELL,
        checksums=cells, wait_effective=True,
    )  # fmt: skip
    chunk = WriteChunk(
        partition=PARTITION, container_id=CONTAINER, local_id=1, offset=0, data=bytes(4 * MIB), checksum=0
    )
    assert unwrap(Forwarded(by="dn2", request=encode(put))) == put
    assert unwrap(Forwarded(by="dn2", request=encode(chunk))) == chunk
    client = Client(patient.node.address)
    assert client.request(put).header.kind is Kind.REPLY
    error = read_error(client.request(chunk))
    assert "WriteChunk is not for" in error.message, "it was decoded"
    assert "a Accepted of" in read_error(client.request(Accepted(detail="x" * MAX_RECORD_BYTES))).message
    client.close()
    patient.is_unharmed()


# ------------------------------------------------------------------------------------------------- logs


def test_what_a_peer_says_does_not_fill_or_forge_the_log(patient: Watched) -> None:
    name = "evil\n2026-01-01 CRITICAL forged\x1b[31m" + "x" * 3000
    wire = connect(patient.node.address, TIMEOUT_S)
    hello = Hello(peer=name, cluster=CLUSTER, min_version=1, max_version=1, max_payload_bytes=1)
    routes = [Route(datanode="y\n" * 14_000, address="z" * 14_000, children=["w" * 14_000])]
    wire.wait_send(encode_frame(Kind.HELLO, encode(hello)) + opening(routes), timeout_s=TIMEOUT_S)
    wire.wait_frame(TIMEOUT_S)
    error = read_error(wire.wait_frame(TIMEOUT_S))
    assert error.code == stream_errors.INVALID_REQUEST
    assert len(error.message) < 2 * MAX_MESSAGE_CHARACTERS + 100
    wire.close()
    patient.is_unharmed()
    assert patient.node.notes
    assert all(note.isprintable() for note in patient.node.notes)
    assert max(map(len, patient.node.notes)) < 3 * MAX_MESSAGE_CHARACTERS
    assert max(map(len, patient.node.server.snapshot().bytes_in)) < 400


def test_an_error_of_a_peer_is_cut_where_it_comes_in() -> None:
    error = BlockError("C" * 9999, "a\nb" * 9999, 5, "h" * 9999, "d\x00" * 9999)
    for text in (error.code, error.message, error.hint, error.datanode, str(error)):
        assert len(text) < 3 * MAX_MESSAGE_CHARACTERS
        assert text.isprintable()
    assert errors.shown("dn1 at a:1", 20) == "dn1 at a:1"


# ------------------------------------------------------------------------------------------------- what runs out


def hello_or_error(address: str) -> str:
    wire = connect(address, TIMEOUT_S)
    try:
        frame = wire.wait_frame(TIMEOUT_S)
        return "HELLO" if frame.header.kind is Kind.HELLO else read_error(frame).code
    finally:
        wire.close()


def test_a_thread_that_cannot_be_started_is_one_connection_less(
    patient: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.endswith("-connection"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started)
        assert [hello_or_error(patient.node.address) for _ in range(5)] == [stream_errors.OVERLOADED] * 5
        assert patient.node.server.snapshot().connections == 0
    assert hello_or_error(patient.node.address) == "HELLO"
    assert len([note for note in patient.node.notes if "thread" in note]) == 1, "one line for all of them"
    patient.is_unharmed()


def test_a_defect_in_accepting_does_not_end_it(patient: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(server, "ServedConnection", lambda *_: 1 / 0)
        with socket.create_connection(split_address(patient.node.address)) as sock:
            assert sock.recv(1) == b""
    patient.is_unharmed()


def test_without_descriptors_a_peer_is_told_so(tmp_path: Path) -> None:
    node = NodeProcess("dn1", tmp_path)
    socks: list[Wire] = []
    try:
        write_block(node.address, routes_of([node], [[]]), b"before")
        folder = Path(f"/proc/{node.process.pid}/fd")
        eventually(lambda: hello_or_error(node.address) == "HELLO")
        limit = len(list(folder.iterdir())) + 5
        before = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        said = []
        for _ in range(20):
            socks.append(connect(node.address, TIMEOUT_S))
            frame = socks[-1].wait_frame(TIMEOUT_S)
            said.append("HELLO" if frame.header.kind is Kind.HELLO else read_error(frame).code)
        assert said.index(stream_errors.OVERLOADED) >= 2
        assert set(said[said.index(stream_errors.OVERLOADED) :]) == {stream_errors.OVERLOADED}
        for sock in socks:
            sock.close()
        eventually(lambda: hello_or_error(node.address) == "HELLO")
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, before)
        write_block(node.address, routes_of([node], [[]]), b"after", block=2)
        assert node.bytes_of(2) == b"after"
    finally:
        for sock in socks:
            sock.close()
        node.stop()


def test_a_node_without_descriptors_does_not_blame_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", none_left)
    with pytest.raises(BlockError) as caught:
        connect("127.0.0.1:9", 1.0)
    assert caught.value.code == stream_errors.OVERLOADED


# ------------------------------------------------------------------------------------------------- addresses


NO_HOSTS = ["a" * 300, "a..b", ".", "a\0b", "é" * 80, "[::1", " ", "\ud800", "a\nb", "x" * 64 + ".y", "-1", "%", ""]


@pytest.mark.parametrize("host", NO_HOSTS, ids=ascii)
def test_an_address_that_is_none_is_an_error_and_no_defect(host: str) -> None:
    """Addresses come from peers, and threads that must not end connect to them."""
    with pytest.raises((BlockError, WireClosed)):
        connect(f"{host}:1", 1.0)
    with pytest.raises(BlockError):
        Peer(f"{host}:1", own="dn1", cluster=CLUSTER, timeout_s=1.0)


# ------------------------------------------------------------------------------------------------- offsets


def test_an_error_of_the_store_says_what_all_have_and_not_how_far_this_one_is(tmp_path: Path) -> None:
    nodes = [Datanode(f"dn{number}", tmp_path) for number in (1, 2)]
    proxy = Proxy(nodes[1].address)
    client = Client(nodes[0].address)
    try:
        client.open(routes_of([nodes[0], Behind(nodes[1], proxy)], [[1], []]))
        proxy.answering.clear()
        client.data(bytes(4 * CELL), offset=0)
        eventually(lambda: nodes[0].store.written_length(CONTAINER, 1) == 4 * CELL)
        nodes[0].store.reclaim(CONTAINER, 1, 4 * CELL)
        client.data(bytes(CELL), offset=4 * CELL)
        while (frame := client.answer()).header.kind is Kind.ACK:
            assert frame.header.offset == 0
        error = read_error(frame)
        assert (error.code, error.offset) == (stream_errors.CONTAINER_CLOSED, 0)
    finally:
        client.close()
        proxy.close()
        for node in nodes:
            node.stop()


def test_headers_of_any_numbers_are_answered(patient: Watched) -> None:
    """Numbers at the ends of their fields come back as they were."""
    last = 2**64 - 1
    header = FrameHeader(kind=Kind.REQUEST, stream=last, sequence=last, offset=last, length=0, crc=0)
    client = Client(patient.node.address)
    frame = encode_frame(
        header.kind, b"no record", stream=header.stream, sequence=header.sequence, offset=header.offset
    )
    client.wire.wait_send(frame, timeout_s=TIMEOUT_S)
    answer = client.answer()
    assert (answer.header.kind, answer.header.stream, answer.header.sequence) == (Kind.ERROR, last, last)
    client.close()
    with Peer(patient.node.address, own="dn9", cluster=CLUSTER, timeout_s=TIMEOUT_S) as peer:
        assert peer.name == "dn1"
    patient.is_unharmed()
