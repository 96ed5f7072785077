"""A replica installs a peer's checkpoint: real RocksDB, real HTTP, one log in memory; every fault of a peer and of the way."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from replicated_db.core.bootstrap.install_steps import Next, Part
from replicated_db.core.bootstrap.listing import Content, request_from
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import NeedsCheckpoint, StoreFailure
from replicated_db.core.log.position import FLAG_KEY, INSTALLED_KEY, UNFLAGGED_KEY
from replicated_db.core.tables.column_families import RETRY_EXPIRY, TRANSACTION_INFO
from replicated_db.shell.bootstrap import bootstrap as bootstrap_module
from replicated_db.shell.bootstrap import candidate as candidate_module
from replicated_db.shell.bootstrap import peer_calls
from replicated_db.shell.bootstrap.bootstrap import NoPeerServes, installed_of
from replicated_db.shell.bootstrap.candidate import Candidate, candidate_folder
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from replicated_db.shell.bootstrap.install import finish, install, journal_of, look, replaced_folder
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, open_replica
from replicated_db.shell.bootstrap.peer_calls import PeerCalls
from replicated_db.shell.bootstrap.transfer_desk import (
    MAX_TRANSFERS,
    TRANSFER_IDLE_S,
    NoSuchTransfer,
    TransferRefused,
    transfers_folder,
)
from replicated_db.shell.rocks import BLOB_BYTES
from replicated_db.shell.startup import check_beginning, check_replica
from schemas.records.messages import Evidence
from tests.support.local.secret import SECRET
from tests.support.replicated.kit import FAMILIES
from tests.support.replicated.transfers import Answer, Log, RocksNode, serving

ROWS = 300


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers fail often here: wait shortly for each."""
    monkeypatch.setattr(peer_calls, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(bootstrap_module, "SEARCH_PAUSE_S", 0.01)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.write(ROWS, checkpoint="snapshot-1")
    return made


@pytest.fixture
def source(log: Log, tmp_path: Path) -> Iterator[RocksNode]:
    node = RocksNode(tmp_path / "n1", log.log, "n1").catch_up()
    yield node
    node.close()


@pytest.fixture
def other(log: Log, tmp_path: Path) -> Iterator[RocksNode]:
    """A second peer; ask for it before ``asker``, which trims the log."""
    node = RocksNode(tmp_path / "n3", log.log, "n3").catch_up()
    yield node
    node.close()


@pytest.fixture
def asker(log: Log, tmp_path: Path) -> Iterator[RocksNode]:
    """An empty replica whose log was trimmed."""
    node = RocksNode(tmp_path / "n2", log.log, "n2")
    log.log.trim(20)
    yield node
    node.close()


def assert_equal(node: RocksNode, source: RocksNode) -> None:
    node.catch_up()
    source.catch_up()
    assert node.replica.position == source.replica.position
    assert node.scanned() == source.scanned()
    assert list(node.store.iterate(RETRY_EXPIRY, b"")) == list(source.store.iterate(RETRY_EXPIRY, b""))
    kept = ("shard-0", "shard-0.checkpoints", "shard-0.lock")
    assert [path.name for path in node.folder.iterdir() if path.name not in kept] == []


# What is installed.


def test_blob_files_come_along(tmp_path: Path):
    log = Log()
    log.write(300, size=2 * BLOB_BYTES, checkpoint="snapshot-1")
    source = RocksNode(tmp_path / "with-blobs", log.log, "n1", blobs=FAMILIES.names).catch_up()
    source.store.write_files()
    assert list(source.database.glob("*.blob"))
    empty = RocksNode(tmp_path / "fresh", log.log, "n2", blobs=FAMILIES.names)
    log.log.trim(20)
    with serving(source.desk(), "n1") as peer:
        empty.install(peer)
    assert {path.name for path in empty.database.glob("*.blob")} == {
        path.name for path in source.database.glob("*.blob")
    }
    log.write(20, size=2 * BLOB_BYTES)
    assert_equal(empty, source)
    for node in (source, empty):
        node.close()


def test_an_empty_replica_gets_all(source: RocksNode, asker: RocksNode, log: Log):
    log.write(100)
    source.catch_up()
    desk = source.desk()
    with serving(desk, "n1") as peer:
        found = asker.install(peer)
    assert (found.peer, found.offset, found.saved_bytes) == ("n1", source.replica.position.offset, 0)
    assert found.fetched_bytes == desk.served_bytes > 0
    assert desk.open_transfers == 0
    assert not any(transfers_folder(source.database).iterdir())
    log.write(50)
    assert_equal(asker, source)
    row = installed_of(asker.store)
    assert row is not None
    assert (row["peer"], row["offset"]) == ("n1", found.offset)


def test_checkpoints_come_along_with_their_links(source: RocksNode, asker: RocksNode, log: Log):
    log.write(100, checkpoint="snapshot-2")
    source.catch_up()
    with serving(source.desk(), "n1") as peer:
        asker.install(peer)

    def tree(node: RocksNode) -> tuple[dict[str, bytes], set[frozenset[str]]]:
        folder = node.database.with_name("shard-0.checkpoints")
        files = {str(path.relative_to(folder)): path for path in sorted(folder.glob("*/*")) if "LOG" not in path.name}
        inodes: dict[int, set[str]] = {}
        for name, path in files.items():
            if name.endswith(".sst"):
                inodes.setdefault(path.stat().st_ino, set()).add(name)
        return {name: path.read_bytes() for name, path in files.items()}, {frozenset(one) for one in inodes.values()}

    assert tree(asker) == tree(source)
    assert any(len(group) > 1 for group in tree(asker)[1])
    in_use = {path.stat().st_ino for path in asker.database.glob("*.sst")}
    kept = {path.stat().st_ino for path in asker.database.with_name("shard-0.checkpoints").glob("*/*.sst")}
    assert in_use & kept


def test_what_the_asker_has_is_not_sent(source: RocksNode, asker: RocksNode, log: Log):
    with serving(source.desk(), "n1") as peer:
        first = asker.install(peer)
    log.write(20)
    source.catch_up()
    desk = source.desk()
    with serving(desk, "n1") as peer:
        second = asker.install(peer)
    assert second.saved_bytes > first.fetched_bytes / 2
    assert second.fetched_bytes < first.fetched_bytes / 2
    assert any("1 checkpoints are here whole" in note for note in asker.notes)
    assert_equal(asker, source)


def test_rows_that_say_something_about_the_peer_alone_do_not_come(source: RocksNode, asker: RocksNode):
    source.replica.settle(by_hand=b"somebody looked")
    with serving(source.desk(), "n1") as peer:
        asker.install(peer)
    assert source.store.get(TRANSACTION_INFO, UNFLAGGED_KEY) is not None
    assert asker.store.get(TRANSACTION_INFO, UNFLAGGED_KEY) is None
    assert asker.store.get(TRANSACTION_INFO, FLAG_KEY) is None
    assert asker.store.get(TRANSACTION_INFO, INSTALLED_KEY) is not None
    assert source.store.get(TRANSACTION_INFO, INSTALLED_KEY) is None


def test_rounds_go_on_while_much_is_new(source: RocksNode, asker: RocksNode, log: Log):
    async def grow(request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/checkpoint"):
            log.write(30)
            source.catch_up()
        return await answer(request)

    with serving(source.desk(), "n1", grow) as peer:
        found = asker.install(peer, last_round_bytes=30_000)
    assert 2 <= found.rounds <= 5
    assert_equal(asker, source)


def test_the_source_goes_on_applying(source: RocksNode, asker: RocksNode, log: Log):
    """Each checkpoint stands at one position, though another thread applies records all the time."""
    stop = threading.Event()

    def apply() -> None:
        while not stop.wait(0.001):
            log.write(20, size=50)
            source.catch_up()

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        desk = source.desk()
        with serving(desk, "n1") as peer:
            offsets = [asker.install(peer).offset for _ in range(4)]
    finally:
        stop.set()
        thread.join()
    assert offsets == sorted(set(offsets))
    assert_equal(asker, source)


# Which peer.


def test_the_leader_changes_in_the_middle(source: RocksNode, other: RocksNode, asker: RocksNode, log: Log):
    """A listing of an earlier term's end stays a prefix of the log; a peer that goes away is replaced."""
    served = 0

    async def breaks(request: web.Request, answer: Answer) -> web.StreamResponse:
        nonlocal served
        served += "/transfers/" in request.path
        if served > 4:
            raise web.HTTPInternalServerError
        return await answer(request)

    log.claim("n3")
    log.write(40)
    other.catch_up()
    with serving(source.desk(), "n1", breaks) as first, serving(other.desk(), "n3") as second:
        source_view = replace(first)
        found = asker.install(source_view, second, calls=Preferring("n1"))
    assert found.peer == "n3"
    assert (found.term, found.leader) == (2, "n3")
    assert_equal(asker, other)


class Preferring(PeerCalls):
    """Calls that show one peer as the leader, so that it is asked first."""

    def __init__(self, name: str) -> None:
        super().__init__(SECRET)
        self._name = name

    def view(self, peer: ServingPeer, shard: int) -> Any:
        return replace(super().view(peer, shard), leads=peer.node == self._name)


def test_a_peer_of_another_cluster(asker: RocksNode, tmp_path: Path):
    strange = Log(cluster="strange")
    strange.write(ROWS)
    other = RocksNode(tmp_path / "n3", strange.log, "n3", cluster="strange").catch_up()
    with serving(other.desk(), "n3") as peer, pytest.raises(NoPeerServes, match="its cluster is 'strange'"):
        asker.install(peer)
    assert asker.replica.position.offset == -1
    other.close()


def test_a_peer_of_another_log_that_lies_about_its_cluster(asker: RocksNode, tmp_path: Path):
    """The record at the position is not this log's: the rows do not belong to it, whatever the listing says."""
    strange = Log(seed=7)
    strange.write(ROWS)
    other = RocksNode(tmp_path / "n3", strange.log, "n3").catch_up()
    with serving(other.desk(), "n3") as peer, pytest.raises(NoPeerServes, match="another record than the one applied"):
        asker.install(peer)
    assert asker.replica.position.offset == -1
    assert list(asker.store.iterate("things", b"")) == []
    other.close()


def test_a_peer_whose_genesis_is_another_clusters(source: RocksNode, asker: RocksNode, tmp_path: Path):
    strange = Log(cluster="strange")
    strange.write(ROWS)
    other = RocksNode(tmp_path / "n3", strange.log, "n3", cluster="strange").catch_up()

    async def lies(request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/checkpoint"):
            asked = json.loads(await request.read())
            request._read_bytes = None
            listing = desk.begin(_request(asked | {"cluster": "strange"}))
            return web.json_response(listing.to_json() | {"cluster": "test"})
        found = await answer(request)
        if request.path.endswith("/checkpoint") and isinstance(found, web.Response):
            return web.json_response(json_of(found) | {"cluster": "test"})
        return found

    desk = other.desk()
    with serving(desk, "n3", lies) as peer, pytest.raises(NoPeerServes, match="cluster is 'strange' in the log"):
        asker.install(peer)
    other.close()


def _request(record: Any) -> Any:
    return request_from(record)


def test_an_old_peer(source: RocksNode, log: Log, tmp_path: Path):
    """A peer behind this replica, or before the log's start, does not do."""
    own = RocksNode(tmp_path / "n2", log.log, "n2").catch_up(15)
    old = RocksNode(tmp_path / "n3", log.log, "n3").catch_up(10)
    with serving(old.desk(), "n3") as peer, pytest.raises(NoPeerServes, match="offset 9, and this replica at 14"):
        own.install(peer)
    old.catch_up(18)
    log.log.trim(25)
    with serving(old.desk(), "n3") as peer, pytest.raises(NoPeerServes, match="offset 17, and the log begins at 25"):
        own.install(peer)
    assert own.replica.position.offset == 14
    for node in (own, old):
        node.close()


def json_of(answer: web.Response) -> Any:
    assert isinstance(answer.body, bytes)
    return json.loads(answer.body)


EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=1, own=None
)


def test_a_flagged_peer_serves_nobody(source: RocksNode, asker: RocksNode):
    source.replica.flag(EVIDENCE)
    desk = source.desk()
    with serving(desk, "n1") as peer:
        with pytest.raises(NoPeerServes, match="flagged"):
            asker.install(peer)
        answer = httpx.post(
            f"http://{peer.address}/v1/shards/0/checkpoint", json=_asked(), auth=SECRET.sign, trust_env=False
        )
    assert (answer.status_code, answer.json()["message"]) == (409, "this replica is flagged: it has diverged")
    assert desk.open_transfers == 0


def test_a_peer_whose_rows_are_not_those_of_its_digests(source: RocksNode, asker: RocksNode):
    key = next(source.store.iterate("things", b""))[0]
    source.store.write([("things", key, b"damaged")])
    with serving(source.desk(), "n1") as peer, pytest.raises(NoPeerServes, match="its rows have the digest"):
        asker.install(peer)
    assert asker.replica.position.offset == -1


@pytest.mark.parametrize("family", ["things", RETRY_EXPIRY])
def test_a_peer_whose_disk_has_damaged_a_file(source: RocksNode, other: RocksNode, asker: RocksNode, family: str):
    """The damage has a right digest, for it was there before. Rows of any family are read before the install."""
    source.store.write_files()
    file = next(path for path in source.database.glob("*.sst") if family.encode() in path.read_bytes()[-4096:])
    body = bytearray(file.read_bytes())
    body[20] ^= 1
    file.write_bytes(body)
    with serving(source.desk(), "n1") as bad, serving(other.desk(), "n3") as good:
        assert asker.install(bad, good, calls=Preferring("n1")).peer == "n3"
    assert any("the candidate is refused" in note and "Corruption" in note for note in asker.notes)
    assert_equal(asker, other)


def test_nobody_answers(asker: RocksNode):
    with pytest.raises(NoPeerServes) as caught:
        asker.install(ServingPeer("n1", "127.0.0.1:1"), ServingPeer("n3", "no such host:77"))
    said = str(caught.value)
    assert "n1 at 127.0.0.1:1: it does not answer" in said
    assert "n3 at no such host:77" in said
    assert "stands at offset -1 and the log begins at 20" in said
    assert "'bootstrap_peers'" in said


def test_a_transfer_stays_while_the_candidate_is_scanned(
    source: RocksNode, asker: RocksNode, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap_module, "TOUCH_INTERVAL_S", 0.0)
    ends: list[bool] = []

    async def watch(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        if request.method == "GET" and "/transfers/" in request.path and isinstance(found, web.Response):
            ends.append(found.status == 200 and not found.body)
        return found

    with serving(source.desk(), "n1", watch) as peer:
        asker.install(peer)
    assert ends[-1]
    assert_equal(asker, source)


# Faults on the way.


@pytest.mark.parametrize("seed", range(6))
def test_a_transfer_that_is_cut_anywhere_is_resumed(source: RocksNode, asker: RocksNode, seed: int):
    """Connections break in the middle of answers; what has come is not fetched again."""
    chance = random.Random(seed)
    offsets: list[int] = []

    async def cut(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        if "/transfers/" not in request.path or not isinstance(found, web.Response) or not found.body:
            return found
        offsets.append(int(request.query.get("offset", 0)))
        body = bytes(found.body)  # type: ignore[arg-type]
        length = chance.randint(1, len(body))
        if chance.random() < 0.2:
            partial = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await partial.prepare(request)
            await partial.write(body[:length])
            assert request.transport is not None
            request.transport.abort()
            return partial
        return web.Response(body=body[:length])

    desk = source.desk()
    with serving(desk, "n1", cut) as peer:
        found = asker.install(peer)
    assert any(offsets)
    assert_equal(asker, source)
    assert found.fetched_bytes <= desk.served_bytes


def test_a_run_that_was_killed_goes_on_with_what_it_has(source: RocksNode, asker: RocksNode):
    class Killed(BaseException):
        pass

    class Dies(PeerCalls):
        fetches = 0

        def fetch(self, *arguments: Any) -> None:
            Dies.fetches += 1
            if Dies.fetches > 8:
                part: Path = arguments[3]
                part.write_bytes(b"a few bytes")
                raise Killed
            super().fetch(*arguments)

    with serving(source.desk(), "n1") as peer:
        with pytest.raises(Killed):
            asker.install(peer, calls=Dies(SECRET))
        assert asker.replica.position.offset == -1
        found = asker.install(peer)
    assert found.saved_bytes > 0
    assert_equal(asker, source)


def test_a_bit_that_flips_in_any_file(source: RocksNode, asker: RocksNode):
    """Every file comes wrong once: each is found by its digest, and fetched again."""
    flipped: set[str] = set()

    async def flip(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        digest = request.path.rpartition("/")[2]
        if (
            request.method == "GET"
            and "/transfers/" in request.path
            and isinstance(found, web.Response)
            and found.body
            and digest not in flipped
        ):
            flipped.add(digest)
            body = bytearray(found.body)  # type: ignore[arg-type]
            body[len(body) // 2] ^= 16
            return web.Response(body=bytes(body))
        return found

    with serving(source.desk(), "n1", flip) as peer:
        asker.install(peer)
    assert len(flipped) > 10
    assert sum("came wrong" in note for note in asker.notes) == len(flipped)
    assert_equal(asker, source)


@pytest.mark.parametrize("seed", range(12))
def test_a_bit_that_flips_in_a_listing(source: RocksNode, asker: RocksNode, seed: int):
    """A listing names files, and nothing else proves their names: a damaged one is refused whatever it damages."""
    chance, flipped = random.Random(seed), 0

    async def flip(request: web.Request, answer: Answer) -> web.StreamResponse:
        nonlocal flipped
        found = await answer(request)
        if not request.path.endswith("/checkpoint") or not isinstance(found, web.Response) or flipped >= 3:
            return found
        flipped += request.method == "POST"
        body = bytearray(found.body)  # type: ignore[arg-type]
        if request.method == "POST":
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        return web.Response(body=bytes(body), headers=found.headers)

    with serving(source.desk(), "n1", flip) as peer:
        asker.install(peer)
    assert sum("came damaged" in note for note in asker.notes) == flipped == 3
    assert_equal(asker, source)


def test_a_damaged_answer_of_a_peer_is_told_though_nobody_asks_it(
    source: RocksNode, other: RocksNode, asker: RocksNode
):
    async def flip(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        assert isinstance(found, web.Response)
        return web.Response(body=bytes(found.body)[:-1] + b" ", headers=found.headers)  # type: ignore[arg-type]

    with serving(source.desk(), "n1", flip) as bad, serving(other.desk(), "n3") as good:
        assert asker.install(bad, good).peer == "n3"
    assert any("n1 at" in note and "came damaged" in note for note in asker.notes)


def test_a_file_that_always_comes_wrong(source: RocksNode, other: RocksNode, asker: RocksNode):
    async def wrong(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        if request.method == "GET" and "/transfers/" in request.path and isinstance(found, web.Response):
            return web.Response(body=bytes(len(found.body or b"")))  # type: ignore[arg-type]
        return found

    desk = source.desk()
    with serving(desk, "n1", wrong) as bad, serving(other.desk(), "n3") as good:
        assert asker.install(bad, good, calls=Preferring("n1")).peer == "n3"
        assert desk.open_transfers == 0
    assert_equal(asker, source)


def _answers(body: bytes, status: int = 200) -> Any:
    async def answer(request: web.Request, true_answer: Answer) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/checkpoint"):
            return await true_answer(request)
        return web.Response(body=body, status=status)

    return answer


async def _endless(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Send for ever, whatever is asked."""
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"{" * 65536)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    return response


async def _endless_files(request: web.Request, answer: Answer) -> web.StreamResponse:
    is_file = request.method == "GET" and "/transfers/" in request.path
    return await (_endless(request, answer) if is_file else answer(request))


async def _silent(request: web.Request, answer: Answer) -> web.StreamResponse:
    if request.method == "GET" and request.path.endswith("/checkpoint"):
        return await answer(request)
    await asyncio.sleep(60)
    raise web.HTTPServiceUnavailable


async def _dripping(request: web.Request, answer: Answer) -> web.StreamResponse:
    if request.method == "GET" and request.path.endswith("/checkpoint"):
        return await answer(request)
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        for _ in range(600):
            await response.write(b" ")
            await asyncio.sleep(0.05)
    except ConnectionError:
        pass
    return response


@pytest.mark.parametrize(
    "twist",
    [_answers(b"no json"), _answers(b"[" * 100_000), _answers(b"{}"), _answers(b"x" * 100_000, status=500),
     _answers(b"", status=302), _endless, _endless_files, _silent, _dripping],
    ids=["no json", "deep json", "empty record", "error", "redirect", "endless", "endless files", "silent", "dripping"],
)  # fmt: skip
def test_a_hostile_peer(
    source: RocksNode, other: RocksNode, asker: RocksNode, monkeypatch: pytest.MonkeyPatch, twist: Any
):
    """Whatever a peer answers, the run goes on to the next peer, and nothing of the first one is installed."""
    monkeypatch.setattr(peer_calls, "LISTING_TIMEOUT_S", 0.5)
    monkeypatch.setattr(peer_calls, "PIECE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(peer_calls, "FETCH_ATTEMPTS", 1)
    monkeypatch.setattr(peer_calls, "MAX_LISTING_BYTES", 300_000)
    monkeypatch.setattr("replicated_db.core.bootstrap.bootstrap_machine.MAX_LISTINGS_PER_PEER", 2)
    with serving(source.desk(), "n1", twist) as bad, serving(other.desk(), "n3") as good:
        if twist is _endless:
            asker.install(bad, good)
        else:
            assert asker.install(bad, good, calls=Preferring("n1")).peer == "n3"
    assert_equal(asker, source)


def test_names_that_lead_out_of_the_folder(source: RocksNode, asker: RocksNode, tmp_path: Path):
    async def traverse(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        if request.method == "POST" and request.path.endswith("/checkpoint") and isinstance(found, web.Response):
            record = json_of(found)
            record["files"][0][0] = "db/../../../stolen"
            return web.json_response(record)
        return found

    with serving(source.desk(), "n1", traverse) as peer, pytest.raises(NoPeerServes, match="is no path"):
        asker.install(peer)
    assert not list(tmp_path.rglob("stolen"))


def test_a_listing_that_keeps_what_is_not_here(source: RocksNode, asker: RocksNode):
    async def keeps(request: web.Request, answer: Answer) -> web.StreamResponse:
        found = await answer(request)
        if request.method == "POST" and request.path.endswith("/checkpoint") and isinstance(found, web.Response):
            return web.json_response(json_of(found) | {"kept": ["snapshot-77"]})
        return found

    with serving(source.desk(), "n1", keeps) as peer, pytest.raises(NoPeerServes, match="snapshot-77"):
        asker.install(peer)


def test_a_disk_without_room(source: RocksNode, asker: RocksNode, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(candidate_module, "SPARE_BYTES", 2**60)
    with serving(source.desk(), "n1") as peer, pytest.raises(StoreFailure, match="more bytes does not fit"):
        asker.install(peer)
    assert asker.replica.position.offset == -1


def test_what_a_candidate_holds_is_read_again(source: RocksNode, asker: RocksNode):
    """A content that rots in the candidate's folder between two runs is not used."""
    content = candidate_folder(asker.database) / "content"
    content.mkdir(parents=True)
    (content / ("a" * 32)).write_bytes(b"not what the name says")
    with serving(source.desk(), "n1") as peer:
        asker.install(peer)
    assert_equal(asker, source)


# The serving side.


def _asked(**changed: Any) -> dict[str, Any]:
    return {
        "version": 1, "asker": "n2", "cluster": "test", "shard": 0, "shards": 1, "offset": -1, "have": [], "folders": {},
    } | changed  # fmt: skip


def test_transfers_are_bounded_and_expire(source: RocksNode):
    now = [0.0]
    desk = source.desk(now_s=lambda: now[0])
    first = desk.begin(_request(_asked(asker="a")))
    again = desk.begin(_request(_asked(asker="a")))
    assert desk.open_transfers == 1
    with pytest.raises(NoSuchTransfer):
        desk.piece(first.transfer, first.files[0].content.digest, 0)
    for number in range(MAX_TRANSFERS - 1):
        desk.begin(_request(_asked(asker=f"b{number}")))
    with pytest.raises(TransferRefused, match="as many as may be"):
        desk.begin(_request(_asked(asker="c")))
    assert desk.holds(0) == desk.view(0)["holds"] == source.replica.position.offset
    now[0] = TRANSFER_IDLE_S
    desk.piece(again.transfer, again.files[0].content.digest, 0)
    now[0] = TRANSFER_IDLE_S + 1
    desk.expire()
    assert desk.open_transfers == 1
    desk.close()
    assert desk.holds(0) is None
    assert not any(transfers_folder(source.database).iterdir())


def test_a_desk_that_is_closed_touches_no_store(source: RocksNode):
    desk = source.desk()
    desk.begin(_request(_asked()))
    desk.close()
    with pytest.raises(TransferRefused, match="stopping"):
        desk.begin(_request(_asked()))
    assert desk.open_transfers == 0


def test_a_desk_that_fails_leaves_nothing(source: RocksNode, monkeypatch: pytest.MonkeyPatch):
    desk = source.desk()

    def fails(target: Path) -> None:
        target.mkdir(parents=True)
        raise StoreFailure("the disk is full")

    monkeypatch.setattr(source.store, "copy_to", fails)
    with pytest.raises(StoreFailure):
        desk.begin(_request(_asked()))
    assert desk.open_transfers == 0
    assert not any(transfers_folder(source.database).iterdir())


def test_an_empty_replica_serves_nobody(asker: RocksNode):
    with pytest.raises(TransferRefused, match="empty"):
        asker.desk().begin(_request(_asked()))


def test_what_strangers_may_ask(source: RocksNode):
    desk = source.desk()
    with serving(desk, "n1") as peer, httpx.Client(base_url=f"http://{peer.address}", trust_env=False) as ask:
        assert ask.post("/v1/shards/0/checkpoint", json=_asked()).status_code == 403
        assert ask.get("/v1/shards/0/checkpoint").json()["offset"] == source.replica.position.offset
        assert ask.get("/v1/shards/9/checkpoint").status_code == 404
        assert ask.get("/v1/shards/x/checkpoint").status_code in (400, 404)
        listing = desk.begin(_request(_asked()))
        content = max((one.content for one in listing.files), key=lambda one: one.size)
        path = f"/v1/transfers/{listing.transfer}/{content.digest}"
        assert len(ask.get(path).content) == min(content.size, 1024 * 1024)
        assert ask.get(f"{path}?offset={content.size}").content == b""
        for target in (
            f"{path}?offset={content.size + 1}",
            f"/v1/transfers/{listing.transfer}/{'0' * 32}",
            f"/v1/transfers/{'0' * 32}/{content.digest}",
            f"/v1/transfers/{listing.transfer}/..%2f..%2fshard-0%2fCURRENT",
        ):
            assert ask.get(target).status_code == 404
        for offset in ("-1", "x", "1e3", "9" * 19, "9" * 40):
            assert ask.get(f"{path}?offset={offset}").status_code in (400, 404)
        for body in (b"", b"no json", b"[" * 50_000, json.dumps(_asked(shard=1)).encode()):
            answer = ask.post("/v1/shards/0/checkpoint", content=body, auth=SECRET.sign)
            assert answer.status_code == 400
        assert ask.post("/v1/shards/0/checkpoint", json=_asked(cluster="x"), auth=SECRET.sign).status_code == 409
    desk.close()


def test_the_throttle_is_kept(source: RocksNode, asker: RocksNode):
    waits: list[float] = []
    desk = source.desk(bytes_per_s=1_000_000)
    take = desk.wait_s

    def noted(count: int) -> float:
        waits.append(take(count))
        return 0.0

    desk.wait_s = noted  # type: ignore[method-assign]
    with serving(desk, "n1") as peer:
        found = asker.install(peer)
    assert len(waits) >= found.fetched_bytes / 2**20


def test_a_piece_that_the_throttle_holds_back_waits(
    source: RocksNode, asker: RocksNode, monkeypatch: pytest.MonkeyPatch
):
    held: list[float] = []
    real = asyncio.sleep

    async def sleep(delay_s: float, *given: Any) -> Any:
        held.append(delay_s)
        return await real(delay_s, *given)

    desk = source.desk(bytes_per_s=1_000_000)
    monkeypatch.setattr(desk, "wait_s", lambda _: 0.003)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with serving(desk, "n1") as peer:
        asker.install(peer)
    assert 0.003 in held


# Killed while it installs.


def kill_at(asker: RocksNode, number: int) -> bool:
    """Install in a process of its own that is killed before its step ``number``; return whether it lived."""
    pid = os.fork()
    if pid == 0:
        steps = iter(range(number))

        def on_step(_: Next) -> None:
            if next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            install(asker.database, "{}", on_step)
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == 0


def prepare(source: RocksNode, asker: RocksNode) -> None:
    """Bring an install to its last moment before the journal is written, and close the asker's database."""
    desk = source.desk()
    calls = PeerCalls(SECRET)
    asker.close()
    with serving(desk, "n1") as peer:
        candidate = Candidate(asker.database, ContentDigests())
        candidate.open()
        listing = calls.listing(peer, _request(_asked()))
        candidate.mark(peer, listing)
        for content in {one.content for one in listing.files}:
            calls.fetch(peer, listing.transfer, content, candidate.part_of(content), lambda _: None)
            assert candidate.accept(content)
        candidate.build(listing)
    calls.close()
    desk.close()


@pytest.mark.parametrize("old", [0, 10], ids=["empty", "with rows"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "again while it is put in order"])
def test_killed_at_every_step(log: Log, source: RocksNode, tmp_path: Path, old: int, twice: bool):
    """The database is the old one or the new one, whole, wherever kill -9 comes."""
    number, lived = 0, False
    while not lived:
        asker = RocksNode(tmp_path / f"asker-{number}", log.log, "n2").catch_up(old)
        asker.database.with_name("shard-0.checkpoints").joinpath("prepare-1").mkdir(parents=True)
        prepare(source, asker)
        lived = kill_at(asker, number)
        if twice and not lived:
            pid = os.fork()
            if pid == 0:
                finish(asker.database, lambda _: os.kill(os.getpid(), signal.SIGKILL))
                os._exit(0)
            os.waitpid(pid, 0)
        finish(asker.database)
        asker.open()
        assert asker.replica.position == source.replica.position
        names = sorted(path.name for path in asker.database.with_name("shard-0.checkpoints").iterdir())
        assert names == ["snapshot-1"]
        assert asker.scanned() == source.scanned()
        assert not journal_of(asker.database).exists()
        assert not replaced_folder(asker.database).exists()
        asker.close()
        number += 1
    assert number > 6


def test_killed_before_the_journal(source: RocksNode, asker: RocksNode):
    """Without a journal the tree counts for nothing: the replica is the old one."""
    prepare(source, asker)
    assert look(asker.database).coming == frozenset(Part)
    assert finish(asker.database) == 1
    asker.open()
    assert asker.replica.position.offset == -1
    assert not look(asker.database).tree


def test_another_mark_removes_the_tree_and_what_is_unfinished(source: RocksNode, asker: RocksNode):
    """Peer, term and leader are the mark. Contents that are whole stay: their names say what they are."""
    desk = source.desk()
    calls = PeerCalls(SECRET)
    with serving(desk, "n1") as peer:
        candidate = Candidate(asker.database, ContentDigests())
        candidate.open()
        listing = calls.listing(peer, _request(_asked()))
        contents = sorted({one.content for one in listing.files})
        candidate.mark(peer, listing)
        for content in contents[:-1]:
            calls.fetch(peer, listing.transfer, content, candidate.part_of(content), lambda _: None)
            assert candidate.accept(content)
        part = candidate.part_of(contents[-1])
        for again in (replace(listing, transfer="e" * 32), listing):
            candidate.tree.mkdir(exist_ok=True)
            part.write_bytes(b"unfinished")
            candidate.mark(peer, again)
            assert candidate.tree.exists()
            assert part.exists()
        for other_peer, other in (
            (ServingPeer("n3", "n3:1"), listing),
            (peer, replace(listing, leader="n3")),
            (peer, replace(listing, position=replace(listing.position, term=9))),
        ):
            candidate.mark(peer, listing)
            candidate.tree.mkdir(exist_ok=True)
            part.write_bytes(b"unfinished")
            candidate.mark(other_peer, other)
            assert not candidate.tree.exists()
            assert not part.exists()
        assert candidate.have >= frozenset(contents[:-1])
        assert sorted(path.name for path in (candidate.folder / "content").iterdir()) == sorted(
            content.digest for content in contents[:-1]
        )
    calls.close()
    desk.close()


def test_a_tree_that_is_not_whole_is_not_installed(source: RocksNode, asker: RocksNode):
    prepare(source, asker)
    (candidate_folder(asker.database) / "tree" / "db").rename(asker.folder / "elsewhere")
    with pytest.raises(StoreFailure, match="not whole"):
        install(asker.database, "{}")
    assert not journal_of(asker.database).exists()
    asker.open()


def test_older_software_ran_in_the_middle_of_an_install(source: RocksNode, asker: RocksNode):
    """It knows no journal, and makes an empty database where none is: the install goes on all the same."""
    prepare(source, asker)
    assert not kill_at(asker, 3)
    assert not asker.database.exists() or look(asker.database).journal
    asker.open()
    asker.close()
    finish(asker.database)
    asker.open()
    assert_equal_position(asker, source)


def assert_equal_position(node: RocksNode, source: RocksNode) -> None:
    assert node.replica.position == source.replica.position


# When a process starts.


def policy(*peers: ServingPeer, records: int = 1_000_000) -> BootstrapPolicy:
    return BootstrapPolicy(peers=lambda: peers, secret=SECRET, records=records, searches=1)


def opened(node: RocksNode, given: BootstrapPolicy) -> RocksNode:
    node.close()
    found = open_replica(
        ReplicaToOpen(database=node.database, make=lambda: node.open().replica, log=node.log), given, node.notes.append
    )
    assert found is node.replica
    return node


def test_a_start_installs_where_the_log_does_not_reach(source: RocksNode, log: Log, tmp_path: Path):
    with serving(source.desk(), "n1") as peer:
        for number, old in enumerate((0, 10)):
            node = RocksNode(tmp_path / f"late-{number}", log.log, "n2")
            if old:
                node.catch_up(old)
            log.log.trim(20)
            check = check_beginning if old == 0 else partial(check_replica, note=node.notes.append)
            with pytest.raises(NeedsCheckpoint):
                check(node.replica, log.log)
            opened(node, policy(peer))
            assert_equal(node, source)
            node.close()
            log.log.first = 0


def test_a_start_that_needs_nothing_fetches_nothing(source: RocksNode, log: Log, tmp_path: Path):
    node = RocksNode(tmp_path / "n2", log.log, "n2").catch_up(10)
    candidate_folder(node.database).mkdir()
    transfers_folder(node.database).mkdir()
    opened(node, policy(ServingPeer("n1", "127.0.0.1:1"), records=1))
    assert node.replica.position.offset == 9
    assert sorted(path.name for path in node.folder.iterdir()) == ["shard-0", "shard-0.checkpoints", "shard-0.lock"]
    node.close()


def test_an_empty_replica_of_a_long_log_installs_if_it_can(source: RocksNode, log: Log, tmp_path: Path):
    node = RocksNode(tmp_path / "n2", log.log, "n2")
    opened(node, policy(ServingPeer("n1", "127.0.0.1:1"), records=10))
    assert node.replica.position.offset == -1
    assert any("so this replica reads the log" in note for note in node.notes)
    with serving(source.desk(), "n1") as peer:
        opened(node, policy(peer, records=10_000))
        assert node.replica.position.offset == -1
        opened(node, policy(peer, records=10))
    assert_equal(node, source)
    node.close()


def test_a_replica_that_could_not_lead(source: RocksNode, log: Log, tmp_path: Path):
    """Only its last claim is left in the log: it takes the checkpoint of a peer that stands behind a counting record."""
    log.claim("n1")
    node = RocksNode(tmp_path / "n2", log.log, "n2").catch_up()
    source.catch_up()
    log.log.trim(node.replica.position.offset)
    with serving(source.desk(), "n1") as peer:
        opened(node, policy(peer))
        assert any("already" in note and "so this replica reads the log" in note for note in node.notes)
        empty = RocksNode(tmp_path / "n4", log.log, "n4")
        with pytest.raises(NoPeerServes, match="it could not lead"):
            empty.install(peer)
        log.write(10)
        source.catch_up()
        for late in (node, empty):
            opened(late, policy(peer))
            assert installed_of(late.store) is not None
            assert_equal(late, source)
            late.close()


def test_a_transfer_holds_the_anchor(source: RocksNode, log: Log):
    counting = source.replica.position.offset
    log.claim("n1")
    source.catch_up()
    desk = source.desk()
    assert desk.holds(0) is None
    desk.begin(_request(_asked()))
    assert (source.replica.position.offset, desk.holds(0)) == (counting + 1, counting)
    desk.close()


def test_two_processes_on_one_folder(log: Log, tmp_path: Path):
    node = opened(RocksNode(tmp_path / "n2", log.log, "n2"), policy())
    script = (
        "import sys; from pathlib import Path; from replicated_db.shell.bootstrap import opening\n"
        "try: opening._lock(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, node.database], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("StoreFailure")
    assert "another process uses it" in run.stdout
    node.close()


def test_a_start_without_a_peer_says_what_can_be_done(log: Log, asker: RocksNode):
    with pytest.raises(NoPeerServes, match="What can be done"):
        opened(asker, policy())
    asker.open()


def test_a_shard_that_the_node_never_had(source: RocksNode, log: Log, tmp_path: Path):
    """A folder and an identity are enough."""
    node = RocksNode(tmp_path / "new" / "deep", log.log, "n9")
    log.log.trim(20)
    with serving(source.desk(), "n1") as peer:
        opened(node, policy(peer))
    assert_equal(node, source)
    assert node.replica.identity.node == "n9"
    assert node.replica.families is FAMILIES
    node.close()


def test_content_is_what_its_digest_says(tmp_path: Path):
    read: list[int] = []
    digests = ContentDigests(read.append)
    path = tmp_path / "000001.sst"
    path.write_bytes(b"bytes")
    first = digests.of(path)
    assert digests.of(path) == first == Content(first.digest, 5)
    assert read == [5]
    assert digests.of(path, fresh=True) == first
    other = tmp_path / "CURRENT"
    other.write_bytes(b"bytes")
    assert digests.of(other) == digests.of(other) == first
    assert read == [5, 5, 5, 5]
