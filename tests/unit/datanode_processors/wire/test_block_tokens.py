"""Block tokens on real sockets: what a client may do with one, with a damaged one, and without; keys and their rolls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import read_error, read_record
from datanode_processors.wire.wire_tls import WireTls
from om_processors.fleet.datanode_client import ask
from schemas import stream_errors
from schemas.access.block_tokens import READ_BLOCK, WRITE_BLOCK, BlockToken, issued_token
from schemas.codecs.codec import encode
from schemas.conversation.conversation import with_tokens
from schemas.records.datanode import (
    Accepted,
    BlocksWritten,
    BlockTokenKey,
    BlockTokenKeys,
    GetBlock,
    PutBlocks,
    ReadBlock,
    Route,
    SalvageBlock,
    TokenedRequest,
    WatchBlock,
    WholeBlock,
    WriteBlocks,
    WriteChunk,
)
from schemas.records.packets import Kind, encode_frame
from schemas.security.certificates import Role
from tests.support.datanodes.streams import (
    CELL,
    CLUSTER,
    CONTAINER,
    PARTITION,
    Client,
    Datanode,
    blocks_together,
    introduce,
    put_block,
)
from tests.support.local.secret import SECRET
from tests.support.security.certified import Certified

MISSING, INVALID = stream_errors.BLOCK_TOKEN_MISSING, stream_errors.BLOCK_TOKEN_INVALID
EXPIRED, UNKNOWN = stream_errors.BLOCK_TOKEN_EXPIRED, stream_errors.BLOCK_TOKEN_KEY_UNKNOWN
DATA = os.urandom(2 * CELL + 100)
LIFE_MS = 1000


def key(number: int, until_ms: int = 2**50) -> BlockTokenKey:
    return BlockTokenKey(key_id=number, key=SECRET.block_token_key(number), until_ms=until_ms)


def keys(*numbers: int) -> BlockTokenKeys:
    return BlockTokenKeys(newest=max(numbers, default=0), keys=[key(number) for number in numbers])


class Site:
    """Two datanodes that demand tokens, of which the second gets what the first sends on; both know key 5."""

    def __init__(self, folder: Path) -> None:
        self.certified = Certified(folder / "authority")
        self.nodes = [self.node(f"dn{n}", folder) for n in (1, 2)]
        introduce(self.nodes)
        first, second = self.nodes
        self.routes = [
            Route(datanode=first.name, address=first.address, children=[second.name]),
            Route(datanode=second.name, address=second.address, children=[]),
        ]
        self.clients: list[Client] = []

    def node(self, name: str, folder: Path, *, told: bool = True, demands: bool = True) -> Datanode:
        found = Datanode(name, folder, tls=self.tls(name, Role.DATANODE), block_tokens=demands)
        found.pipelines.members = ("dn1", "dn2")
        if told and found.tokens is not None:
            found.tokens.tell(keys(5))
        return found

    def tls(self, name: str = "somebody", role: Role = Role.CLIENT) -> WireTls:
        return WireTls(self.certified.tls(name, role))

    def client(self, node: Datanode | None = None, name: str = "somebody", role: Role = Role.CLIENT) -> Client:
        found = Client((node or self.nodes[0]).address, tls=self.tls(name, role), name=name)
        self.clients.append(found)
        return found

    def token(self, operations: int = READ_BLOCK | WRITE_BLOCK, *, number: int = 5, **changes: Any) -> bytes:
        said: dict[str, Any] = {
            "key_id": number, "container_id": CONTAINER, "local_id": 1, "operations": operations, "length": len(DATA),
            "expires_ms": self.nodes[0].now_ms + LIFE_MS,
        }  # fmt: skip
        return issued_token(BlockToken(**(said | changes)), key(number))

    def tell(self, told: BlockTokenKeys) -> Accepted:
        """Tell the first datanode keys as a node does; return the answer."""
        tls = self.certified.tls("om1", Role.OM)
        answer: Accepted = ask(self.nodes[0].address, told, own="om1", cluster=CLUSTER, datanode="dn1", tls=tls)
        return answer

    def write(self, tokens: bytes, *, block: int = 1, data: bytes = DATA) -> None:
        client = self.client()
        client.open(self.routes, block=block, tokens=tokens)
        client.data(data, offset=0)
        client.send(Kind.END, encode(put_block(data, block)), offset=len(data))
        client.until_end()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes:
            node.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("tokens"))
    found.write(found.token())
    yield found
    found.close()


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    yield shared
    for client in shared.clients:
        client.close()
    shared.clients.clear()


def read(length: int = len(DATA), block: int = 1, offset: int = 0) -> ReadBlock:
    return ReadBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=block, offset=offset, length=length, bcs_id=0,
        committed_only=True,
    )  # fmt: skip


def salvage() -> SalvageBlock:
    return SalvageBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=1, offset=0, length=len(DATA), bcs_id=0
    )  # fmt: skip


def get() -> GetBlock:
    return GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1)


def puts(length: int = 1) -> PutBlocks:
    block = WholeBlock(container_id=CONTAINER, local_id=1, length=length, checksums=b"")
    return PutBlocks(partition=PARTITION, bytes_per_checksum=CELL, blocks=[block])


def chunk() -> WriteChunk:
    return WriteChunk(partition=PARTITION, container_id=CONTAINER, local_id=1, offset=0, data=b"x" * 10, checksum=0)


def answer(client: Client, request: Any, tokens: bytes = b"") -> Any:
    """Ask, and return the code of the refusal, the bytes that were read, or the answer."""
    client.sequence += 1
    client.wire.wait_send(client_frame(client, with_tokens(request, tokens)), timeout_s=10)
    got = b""
    while True:
        frame = client.answer()
        if frame.header.kind is Kind.ERROR:
            error = read_error(frame)
            assert len(tokens) < 10 or tokens.hex()[:20] not in error.message
            return error.code
        if frame.header.kind is Kind.REPLY:
            return read_record(frame)
        if frame.header.kind is Kind.END:
            return got
        got += bytes(frame.payload)


def client_frame(client: Client, payload: bytes) -> bytes:
    return encode_frame(Kind.REQUEST, payload, sequence=client.sequence)


def opened(site: Site, tokens: bytes, **more: Any) -> str:
    """Open a stream; return the code with which it was refused, or nothing."""
    client = site.client()
    try:
        client.open(site.routes, tokens=tokens, **more)
    except BlockError as error:
        return error.code
    finally:
        client.close()
    return ""


REQUESTS: list[Callable[[], Any]] = [read, salvage, get, puts, chunk, lambda: put_block(DATA, 1)]


def test_a_token_writes_and_reads_its_block(site: Site):
    assert [node.bytes_of() == DATA for node in site.nodes] == [True, True]
    assert answer(site.client(), read(), site.token(READ_BLOCK)) == DATA
    assert answer(site.client(), read(100, offset=CELL), site.token(READ_BLOCK)) == DATA[CELL : 2 * CELL]


@pytest.mark.parametrize("request_of", REQUESTS)
def test_without_its_token_nothing_is_asked_for(site: Site, request_of: Callable[[], Any]):
    client = site.client()
    assert answer(client, request_of()) == MISSING
    assert answer(client, request_of(), site.token(local_id=2)) == MISSING
    assert answer(client, request_of(), site.token(container_id=8)) == MISSING
    assert answer(client, request_of(), site.token(operations=0)) == INVALID
    assert answer(client, request_of(), site.token()[:-1]) == INVALID
    assert answer(client, request_of(), bytes(74)) == INVALID
    assert answer(client, request_of(), site.token(expires_ms=site.nodes[0].now_ms)) == EXPIRED


def test_a_stream_without_its_token_is_not_opened(site: Site):
    before = site.nodes[1].server.snapshot().streams_opened
    assert opened(site, b"", block=3) == MISSING
    assert opened(site, site.token(), block=3) == MISSING
    assert opened(site, site.token(READ_BLOCK, local_id=3), block=3) == INVALID
    assert opened(site, site.token(local_id=3, length=10), block=3, offset=11) == INVALID
    assert opened(site, site.token(local_id=3, expires_ms=1), block=3) == EXPIRED
    assert site.nodes[1].server.snapshot().streams_opened == before  # and nobody else was asked
    assert not site.nodes[0].path(3).exists()


def test_forged_and_expired_tokens_are_refused_on_real_sockets(site: Site):
    client = site.client()
    good = site.token(READ_BLOCK)
    for at in range(0, len(good), 7):
        forged = bytearray(good)
        forged[at] ^= 0x10
        assert answer(client, read(), bytes(forged)) in {INVALID, UNKNOWN}
    stranger = BlockTokenKey(key_id=5, key=bytes(32), until_ms=2**50)
    made_up = BlockToken(
        key_id=5, container_id=CONTAINER, local_id=1, operations=3, length=2**40, expires_ms=2**50
    )  # fmt: skip
    assert answer(client, read(), issued_token(made_up, stranger)) == INVALID
    assert answer(client, read(), site.token(expires_ms=site.nodes[0].now_ms - 1)) == EXPIRED
    assert answer(client, read(), good) == DATA  # the connection goes on


def test_a_token_to_read_does_not_write_and_a_token_to_write_does_not_read(site: Site):
    client = site.client()
    for writes in (puts(), chunk(), put_block(DATA, 1)):
        assert answer(client, writes, site.token(READ_BLOCK)) == INVALID
    for reads in (read(), salvage(), get()):
        assert answer(client, reads, site.token(WRITE_BLOCK)) == INVALID


def test_too_long_a_write_or_read_is_refused(site: Site):
    client = site.client()
    short = site.token(length=len(DATA) - 1)
    assert answer(client, put_block(DATA, 1), short) == INVALID
    assert answer(client, puts(len(DATA)), short) == INVALID
    assert answer(client, read(), short) == INVALID
    assert answer(client, read(1), short) == DATA[:CELL]  # cells are whole as far as the token goes
    client.open(site.routes, block=4, tokens=site.token(local_id=4, length=CELL))
    client.data(DATA[:CELL], offset=0)
    client.send(Kind.DATA, b"x", offset=CELL)
    with pytest.raises(BlockError, match=f"the stream's block token is for {CELL} bytes") as found:
        client.until_end()
    assert found.value.code == INVALID
    assert all(len(node.bytes_of(4)) <= CELL for node in site.nodes)


@pytest.mark.parametrize("length", [0, 1, 5, CELL - 1, CELL, CELL + 1, 2 * CELL + 99, len(DATA)])
def test_a_token_to_read_gives_no_byte_beyond_its_length(site: Site, length: int):
    """Not the rest of the last cell either, by whichever request: a block may be longer than the key that names it."""
    client = site.client()
    token = site.token(READ_BLOCK, length=length)
    for request in (read(length), replace(salvage(), offset=0, length=length)):
        assert answer(client, request, token) == DATA[:length]
    if length > CELL:
        assert answer(client, replace(read(), offset=CELL, length=length - CELL), token) == DATA[CELL:length]
    assert answer(client, read(length + 1), token) == INVALID


def test_a_cell_that_is_cut_at_a_tokens_length_is_verified_whole(site: Site):
    def put(byte: int) -> None:
        with site.nodes[0].path(1).open("r+b") as file:
            file.seek(CELL - 1)
            file.write(bytes((byte,)))

    put(DATA[CELL - 1] ^ 1)
    try:
        assert answer(site.client(), read(5), site.token(READ_BLOCK, length=5)) == stream_errors.CHECKSUM_MISMATCH
    finally:
        put(DATA[CELL - 1])


def tokened(request: WriteBlocks, tokens: bytes) -> WriteBlocks:
    return replace(request, opening=encode(TokenedRequest(tokens=tokens, request=request.opening)))


def test_small_blocks_need_a_token_each_or_none_of_them_is_written(site: Site):
    request = blocks_together(site.routes, [(11, b"eleven"), (12, b"twelve")])
    client = site.client()
    eleven, twelve = (site.token(local_id=number) for number in (11, 12))
    assert answer(client, request) == MISSING
    assert answer(client, tokened(request, eleven)) == MISSING
    assert answer(client, request, eleven + twelve) == MISSING  # they go with the opening
    assert answer(client, tokened(request, eleven + site.token(READ_BLOCK, local_id=12))) == INVALID
    assert answer(client, tokened(request, eleven + site.token(local_id=12, length=5))) == INVALID
    assert not any(node.path(number).exists() for node in site.nodes for number in (11, 12))
    written = answer(client, tokened(request, eleven + twelve))
    assert isinstance(written, BlocksWritten)
    assert [outcome.code for outcome in written.outcomes] == ["", ""]
    assert [node.bytes_of(12) for node in site.nodes] == [b"twelve", b"twelve"]


def test_members_nodes_and_operators_need_no_token(site: Site):
    for name, role in (("dn2", Role.DATANODE), ("root", Role.ADMIN)):
        assert answer(site.client(name=name, role=role), read()) == DATA
    with Peer(site.nodes[0].address, own="dn2", cluster=CLUSTER, timeout_s=10, tls=site.tls("dn2", Role.DATANODE)) as peer:  # fmt: skip
        assert b"".join(bytes(piece) for _, piece, _ in peer.read_block(read())) == DATA
    assert answer(site.client(name="root", role=Role.ADMIN), put_block(DATA, 1)) != MISSING


def test_a_watch_needs_no_token_and_says_no_byte(site: Site):
    watch = WatchBlock(partition=PARTITION, container_id=CONTAINER, local_id=1, length=1, bcs_id=1, timeout_ms=0)
    assert answer(site.client(), watch) == stream_errors.INVALID_REQUEST  # the port of these tests knows no watches


def test_any_bytes_as_tokens_end_nothing(site: Site):
    client = site.client()
    for size in (1, 73, 75, 74 * 64, 74 * 65, 200_000):
        assert answer(client, get(), os.urandom(size)) in {INVALID, UNKNOWN}
    twice = TokenedRequest(tokens=b"", request=encode(TokenedRequest(tokens=b"", request=encode(get()))))
    assert answer(client, twice) == stream_errors.INVALID_REQUEST
    assert answer(client, TokenedRequest(tokens=b"", request=b"\xff" * 30)) == stream_errors.INVALID_REQUEST
    assert answer(client, read(), site.token(READ_BLOCK)) == DATA
    assert not [note for node in site.nodes for note in node.notes if "defect" in note]


# -- keys


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Site]:
    """One datanode of its own, which was told nothing; and a second one, which takes what the first sends on."""
    found = Site(tmp_path)
    found.nodes[0].stop()
    first = found.nodes[0] = found.node("dn1", tmp_path, told=False)
    found.routes = [Route(datanode=first.name, address=first.address, children=[])]
    yield found
    found.close()


def test_keys_come_from_object_manager_nodes_in_tls_alone(lone: Site, tmp_path: Path):
    for name, role in (("somebody", Role.CLIENT), ("dn2", Role.DATANODE), ("root", Role.ADMIN)):
        assert answer(lone.client(name=name, role=role), keys(9)) == stream_errors.PERMISSION_DENIED
    plain = Datanode("dn9", tmp_path / "plain", block_tokens=True)
    client = Client(plain.address)
    assert answer(client, keys(9)) == stream_errors.PERMISSION_DENIED
    client.close()
    plain.stop()
    assert lone.tell(keys(5)).detail == "1 keys of block tokens"
    assert not any(SECRET.block_token_key(5).hex()[:12] in note for note in lone.nodes[0].notes)
    careless = lone.node("dn3", tmp_path, demands=False)
    lone.nodes.append(careless)
    tls = lone.certified.tls("om1", Role.OM)
    said = ask(careless.address, keys(5), own="om1", cluster=CLUSTER, datanode="dn3", tls=tls)
    assert said.detail == "datanode dn3 demands no block tokens"


def test_a_datanode_waits_for_its_keys_before_it_refuses(lone: Site):
    node = lone.nodes[0]
    assert node.tokens is not None
    assert answer(lone.client(), get(), lone.token()) == UNKNOWN
    assert node.tokens.status() == {"demanded": True, "told": False, "keys": [], "refused": 1}
    later = threading.Timer(0.1, lambda: lone.tell(keys(5)))
    later.start()
    lone.write(lone.token())  # it has just started, and is told meanwhile
    later.join()
    rolled = threading.Timer(0.1, lambda: lone.tell(keys(6, 5)))
    rolled.start()
    assert answer(lone.client(), read(), lone.token(number=6)) == DATA  # the token was there before the key
    rolled.join()
    begun_s = time.monotonic()
    assert answer(lone.client(), read(), lone.token(number=4)) == UNKNOWN  # an older key is not waited for
    assert time.monotonic() - begun_s < 0.4
    assert answer(lone.client(), read(), lone.token(number=7)) == UNKNOWN


def test_a_roll_ends_no_stream_and_takes_tokens_of_before_for_the_overlap(lone: Site):
    lone.tell(keys(5))
    client = lone.client()
    client.open(lone.routes, tokens=lone.token())
    client.data(DATA[:CELL], offset=0)
    lone.tell(keys(6, 5))
    assert answer(lone.client(), get(), lone.token()) not in {UNKNOWN, INVALID}
    lone.tell(keys(6))  # at once: a stolen key
    assert answer(lone.client(), get(), lone.token()) == UNKNOWN
    client.data(DATA[CELL:], offset=CELL)  # nothing is asked per packet
    client.send(Kind.END, encode(put_block(DATA, 1)), offset=len(DATA))
    client.until_end()
    assert lone.nodes[0].bytes_of() == DATA
    assert answer(lone.client(), read(), lone.token(number=6)) == DATA


def test_a_deposed_leader_brings_no_key_back(lone: Site):
    lone.tell(keys(6))
    assert lone.tell(keys(5)).detail == "key 6 of block tokens is newer, and stays"
    assert lone.tell(keys()).detail == "key 6 of block tokens is newer, and stays"
    assert answer(lone.client(), get(), lone.token()) == UNKNOWN
    assert lone.nodes[0].tokens.status()["keys"] == [6]  # type: ignore[union-attr]


def test_a_key_ends_by_itself_if_nobody_tells_the_datanode_anything(lone: Site):
    node = lone.nodes[0]
    lone.tell(BlockTokenKeys(newest=5, keys=[key(5, until_ms=node.now_ms + 500)]))
    token = lone.token()
    assert answer(lone.client(), get(), token) != EXPIRED
    node.now_ms += 500
    assert answer(lone.client(), get(), token) == EXPIRED


def test_nodes_that_give_no_tokens_yet_say_so(lone: Site):
    """A cluster that is upgraded: the software demands tokens before its feature level has any."""
    lone.tell(keys())
    lone.write(b"")
    assert answer(lone.client(), read()) == DATA
    lone.tell(keys(5))
    assert answer(lone.client(), read()) == MISSING
