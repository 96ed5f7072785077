"""Keys on datanodes that demand block tokens: real streams in TLS; the Object Manager's twin gives the tokens."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from om_processors.errors import OMError
from om_processors.serving.queries import open_key_blocks
from producers.errors import DatanodeError
from producers.files.core import block_stock
from producers.files.key_reader import KeyReader
from producers.reads.reads import Reads
from schemas.access.block_tokens import READ_BLOCK, WRITE_BLOCK, BlockToken, issued_token
from schemas.codecs.codec import decode_as
from schemas.records.datanode import BlockTokenKey, BlockTokenKeys
from schemas.records.messages import CommitReserved, ReleaseBlocks, Request
from tests.support.local.forked import begin_child, found_by
from tests.support.local.secret import SECRET
from tests.support.sdk.datanodes import KIB, OmNode, World
from tests.support.sdk.memory import lengthened
from tests.support.security.certified import Certified

DATA = os.urandom(700 * KIB)
LASTS_MS = 60_000


def key(number: int) -> BlockTokenKey:
    return BlockTokenKey(key_id=number, key=SECRET.block_token_key(number), until_ms=2**50)


class GivingNode(OmNode):
    """It gives tokens of the world's key, unless it is ``stingy``: then it says so, too."""

    def __init__(self, cluster: Any, world: Any) -> None:
        super().__init__(cluster, world)
        self.number = 1
        self.stingy = False
        self.given: list[str] = []

    def respond(self, target: str) -> tuple[int, bytes]:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/v1/pipelines":
            return 200, json.dumps(self.world.pipelines_answer() | {"block_tokens": not self.stingy}).encode()
        if url.path.endswith("/open-key"):
            _, _, _, volume, _, bucket, _ = url.path.split("/")
            place = lengthened(ReleaseBlocks(volume=volume, bucket=bucket, session_id=int(query["session_id"])))
            try:
                found = open_key_blocks(
                    self.world.cluster.tables, place.volume, place.bucket, query.get("name", ""), place.session_id
                )
            except OMError as error:
                return 404, json.dumps({"error": error.status, "message": error.message}).encode()
            self.given.append("open-key" if "name" in query else "reservation")
            blocks: Any = found["blocks"]
            return 200, json.dumps({"blocks": blocks} | self._tokens(blocks, READ_BLOCK | WRITE_BLOCK)).encode()
        status, body = super().respond(target)
        if status == 200 and query.get("tokens") == "true":
            self.given.append("key")
            answer = json.loads(body)
            return 200, json.dumps(answer | self._tokens(answer["blocks"], READ_BLOCK)).encode()
        return status, body

    def _tokens(self, blocks: list[Any], operations: int) -> dict[str, Any]:
        if self.stingy:
            return {"block_tokens": None}
        expires_ms = next(iter(self.world.nodes.values())).now_ms + LASTS_MS
        tokens = [
            issued_token(
                BlockToken(
                    key_id=self.number, container_id=block["container_id"], local_id=block["local_id"],
                    operations=operations, length=block["length"], expires_ms=expires_ms,
                ),
                key(self.number),
            ).hex()
            for block in blocks
        ]  # fmt: skip
        return {"block_tokens": {"lasts_ms": LASTS_MS, "tokens": tokens}}


class Site:
    def __init__(self, folder: Path, certified: Certified, **options: Any) -> None:
        self.world = World(folder, certified=certified, **options)
        self.node = GivingNode(self.world.cluster, self.world)
        self.world.client.reads.close()
        reads = Reads([self.node.address], deadline_ms=5_000)
        self.world.client._join(self.world.client.pipeline, reads, self.world.options)
        self.roll(1)

    def roll(self, number: int, *before: int) -> None:
        """Have a new key; only those of before stay that are named."""
        self.node.number = number
        told = BlockTokenKeys(newest=number, keys=[key(one) for one in (number, *before)])
        for node in self.world.nodes.values():
            assert node.tokens is not None
            node.tokens.tell(told)

    def refused(self) -> int:
        return sum(node.tokens.refused for node in self.world.nodes.values() if node.tokens is not None)

    def pass_time(self, ms: int) -> None:
        for node in self.world.nodes.values():
            node.now_ms += ms

    def close(self) -> None:
        self.world.close()
        self.node.close()


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["streams", "small"])
def site(request: pytest.FixtureRequest, tmp_path: Path, certified: Certified) -> Iterator[Site]:
    found = Site(tmp_path, certified, small=request.param == "small")
    yield found
    found.close()


@pytest.fixture
def streaming(tmp_path: Path, certified: Certified) -> Iterator[Site]:
    found = Site(tmp_path, certified)
    yield found
    found.close()


def test_a_client_asks_for_tokens_by_itself(site: Site):
    site.world.put(DATA)
    assert site.world.get() == DATA
    site.world.check_replicas(DATA)
    assert site.node.given == ["open-key", "key"]
    assert site.refused() == 0


def test_tokens_for_reserved_blocks_are_those_of_the_reservation(
    tmp_path: Path, certified: Certified, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(block_stock, "BUSY_S", 3600.0)
    monkeypatch.setattr(block_stock, "FRESH_S", 3600.0)
    site = Site(tmp_path, certified, small=True)
    world = site.world
    for number in range(block_stock.BUSY_KEYS):
        world.put(b"first", f"/v/b/{number}")
    world.client.create_volume("later")  # the reservation has come when this is answered
    site.node.given.clear()
    for number in range(5):
        world.put(DATA[: 1000 + number], f"/v/b/reserved-{number}")
    site.roll(2)
    world.put(DATA[:1005], "/v/b/reserved-5")
    bodies = [decode_as(Request, value).body for value in world.cluster.seen]
    assert sum(isinstance(body, CommitReserved) for body in bodies) == 6
    assert set(site.node.given) == {"reservation"}
    assert len(site.node.given) <= 2, "they are asked for once, and once more after the key was rolled"
    for number in range(6):
        world.check_replicas(DATA[: 1000 + number], f"reserved-{number}")
    site.close()


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_each_way_of_writing_shows_them(streaming: Site, way: int):
    streaming.world.put(DATA, commit_way=way)
    assert streaming.world.get() == DATA
    assert streaming.refused() == 0


def test_a_key_that_is_rolled_at_once_in_the_middle_ends_no_write_and_no_read(streaming: Site):
    world = streaming.world
    with world.client.open("/v/b/k", "wb") as file:
        file.write(DATA[: 300 * KIB])
        file.flush()
        streaming.roll(2)
        file.write(DATA[300 * KIB :])
        file.hsync()
        streaming.roll(3)
    with world.client.open("/v/b/k") as reader:
        assert reader.read(64 * KIB) == DATA[: 64 * KIB]
        streaming.roll(4)
        assert reader.pread(64 * KIB, 640 * KIB) == DATA[640 * KIB : 704 * KIB]
    assert streaming.refused() > 0
    world.check_replicas(DATA)


def test_a_forked_process_reads_over_connections_in_tls_of_its_own(streaming: Site):
    world = streaming.world
    world.put(DATA)
    with world.client.open("/v/b/k") as reader:
        begun = reader.read(64 * KIB)
        with reader._reader._tokens._lock:  # type: ignore[union-attr] # as a thread may that asks for a token
            child = begin_child(lambda: begun + reader.read() == DATA and world.get() == DATA)
        assert begun + reader.read() == DATA
        assert found_by(child)
        assert world.get() == DATA


def test_a_token_that_has_expired_is_renewed(streaming: Site):
    world = streaming.world
    with world.client.open("/v/b/k", "wb") as file:
        file.write(DATA[: 300 * KIB])
        file.flush()
        streaming.pass_time(2 * LASTS_MS)
        file.write(DATA[300 * KIB :])
    with world.client.open("/v/b/k") as reader:
        streaming.pass_time(2 * LASTS_MS)
        assert reader.read() == DATA


def test_a_key_is_written_while_datanodes_and_nodes_get_their_first_key(streaming: Site):
    world = streaming.world
    for node in world.nodes.values():
        node.tokens._told = None  # type: ignore[union-attr]
    streaming.node.stingy = True

    def begin() -> None:
        streaming.node.stingy = False
        streaming.roll(2)

    later = threading.Timer(0.4, begin)
    later.start()
    world.put(DATA[: 100 * KIB])
    later.join()
    assert world.get() == DATA[: 100 * KIB]
    assert streaming.refused() > 0


def test_without_tokens_the_error_says_what_is_missing(streaming: Site):
    world = streaming.world
    world.put(DATA[: 100 * KIB])
    reader = KeyReader(world.client.streams, world.key().blocks)
    with pytest.raises(DatanodeError, match="BLOCK_TOKEN_MISSING.* needs a block token"):
        reader.next_bytes(0, 10)
    reader.close()


def test_a_reader_of_a_key_that_was_removed_reads_on_while_its_tokens_last(streaming: Site):
    world = streaming.world
    world.put(DATA)
    with world.client.open("/v/b/k") as reader:
        world.client.delete_key("v", "b", "k")
        assert reader.read() == DATA
        streaming.pass_time(2 * LASTS_MS)
        with pytest.raises(DatanodeError, match="BLOCK_TOKEN_EXPIRED"):
            reader.pread(10, 0)
