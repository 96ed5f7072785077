"""The two ends of a transfer by themselves: what a desk keeps and refuses, and how often an asker asks again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from replicated_db.core.bootstrap.listing import DATABASE, Content, TransferRequest, request_from
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.bootstrap import content_digests, peer_calls, transfer_desk, transfer_pages
from replicated_db.shell.bootstrap.content_digests import ContentDigests, FileVanished
from replicated_db.shell.bootstrap.peer_calls import FETCH_ATTEMPTS, RETRY_PAUSE_S, PeerCalls, PeerError
from replicated_db.shell.bootstrap.transfer_desk import (
    MAX_TRANSFERS,
    TRANSFER_IDLE_S,
    NoSuchTransfer,
    TransferDesk,
    TransferRefused,
    transfers_folder,
)
from schemas.records.messages import Evidence
from stratolog.local.processes import wait_until
from tests.support.local.secret import SECRET
from tests.support.replicated.transfers import Answer, Log, RocksNode, serving

DEADLINE_S = 30.0
EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=1, own=None
)


def asked(**changed: Any) -> TransferRequest:
    fields = {
        "version": 1, "asker": "n2", "cluster": "test", "shard": 0, "shards": 1, "offset": -1, "have": [], "folders": {},
    }  # fmt: skip
    return request_from(fields | changed)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocksNode]:
    """A replica that serves; no test changes its rows."""
    log = Log()
    log.write(100, checkpoint="snapshot-1")
    node = RocksNode(tmp_path_factory.mktemp("transfers") / "n1", log.log, "n1").catch_up()
    yield node
    node.close()


@pytest.fixture
def desk(source: RocksNode) -> Iterator[TransferDesk]:
    source.notes.clear()
    found = source.desk()
    yield found
    found.close()


# The desk.


def test_what_a_killed_process_has_left_goes_when_the_next_one_starts(source: RocksNode):
    left = transfers_folder(source.database) / "left" / DATABASE
    left.mkdir(parents=True)
    source.desk().close()
    assert not left.exists()


def test_where_a_replica_stands(source: RocksNode, monkeypatch: pytest.MonkeyPatch):
    desk = TransferDesk("n1", {0: source.replica}, lambda shard: shard == 0)
    expected = {
        "node": "n1", "cluster": "test", "shard": 0, "shards": 1, "offset": source.replica.position.offset,
        "leads": True, "flagged": False, "holds": None,
    }  # fmt: skip
    assert desk.view(0) == expected
    monkeypatch.setattr(source.replica, "evidence", EVIDENCE)
    assert desk.view(0) == expected | {"flagged": True}
    with pytest.raises(NoSuchTransfer, match="no shard 1 here"):
        desk.view(1)


def test_while_a_checkpoint_is_made_the_askers_offset_is_held(
    source: RocksNode, desk: TransferDesk, monkeypatch: pytest.MonkeyPatch
):
    held: list[int | None] = []
    copy = source.store.copy_to

    def copying(target: Path) -> None:
        held.append(desk.holds(0))
        copy(target)

    monkeypatch.setattr(source.store, "copy_to", copying)
    desk.begin(asked(offset=3))
    assert held == [3]
    assert desk.holds(0) == source.replica.anchor.offset <= source.replica.position.offset
    assert desk.holds(1) is None


def test_an_empty_or_flagged_replica_sends_its_asker_to_another_node(
    source: RocksNode, desk: TransferDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    empty = RocksNode(tmp_path / "n3", Log().log, "n3")
    try:
        with pytest.raises(TransferRefused, match="this replica is empty") as caught:
            empty.desk().begin(asked())
        assert not caught.value.again
    finally:
        empty.close()
    monkeypatch.setattr(source.replica, "evidence", EVIDENCE)
    with pytest.raises(TransferRefused, match="it has diverged") as caught:
        desk.begin(asked())
    assert not caught.value.again
    assert desk.open_transfers == 0


def test_a_desk_that_closes_lets_ask_again_later(desk: TransferDesk):
    desk.close()
    with pytest.raises(TransferRefused, match="this node is stopping") as caught:
        desk.begin(asked())
    assert caught.value.again


def test_a_transfer_that_is_being_made_neither_ends_for_another_nor_expires(source: RocksNode):
    now = [0.0]
    desk = source.desk(now_s=lambda: now[0])
    making, _ = desk._reserve(asked(), source.database)
    listing = desk.begin(asked())
    now[0] = 2 * TRANSFER_IDLE_S
    desk.expire()
    assert list(desk._transfers) == [making]
    assert any(f"transfer {listing.transfer} ends: nobody has read it for 300 s" in note for note in source.notes)
    desk.close()


def test_transfers_are_one_for_each_asker_and_shard(source: RocksNode):
    desk = TransferDesk("n1", {0: source.replica, 1: source.replica}, lambda _: False)
    other = desk.begin(asked(shard=1))
    first = desk.begin(asked())
    second = desk.begin(asked())
    assert set(desk._transfers) == {other.transfer, second.transfer}
    assert not (transfers_folder(source.database) / first.transfer).exists()
    desk.close()


def test_who_has_a_transfer_gets_a_new_one_though_there_are_as_many_as_may_be(desk: TransferDesk):
    for number in range(MAX_TRANSFERS):
        desk.begin(asked(asker=f"n{number}"))
    desk.begin(asked(asker="n0"))
    assert desk.open_transfers == MAX_TRANSFERS
    with pytest.raises(TransferRefused, match=f"{MAX_TRANSFERS} transfers are open here") as caught:
        desk.begin(asked(asker="new"))
    assert caught.value.again


@pytest.mark.parametrize("changed", [{"cluster": "other"}, {"shards": 2}])
def test_another_cluster_is_told_to_go_elsewhere(desk: TransferDesk, changed: dict[str, Any]):
    with pytest.raises(TransferRefused, match="this is cluster 'test' with 1 shards, not ") as caught:
        desk.begin(asked(**changed))
    assert not caught.value.again
    assert desk.open_transfers == 0


def test_pieces_of_a_file(source: RocksNode, desk: TransferDesk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer_desk, "MAX_PIECE_BYTES", 1000)
    listing = desk.begin(asked())
    assert f"n2 fetches a checkpoint at offset {source.replica.position.offset}" in source.notes[-1]
    file = max(listing.files, key=lambda one: one.content.size)
    whole = (transfers_folder(source.database) / listing.transfer / file.path).read_bytes()
    assert desk.piece(listing.transfer, file.content.digest, 7) == whole[7:1007]
    assert desk.piece(listing.transfer, file.content.digest, 7) == whole[7:1007]
    assert desk.piece(listing.transfer, file.content.digest, len(whole)) == b""
    assert desk.served_bytes == 2000
    shutil.rmtree(transfers_folder(source.database) / listing.transfer)
    with pytest.raises(NoSuchTransfer, match="has just ended"):
        desk.piece(listing.transfer, file.content.digest, 0)
    (transfers_folder(source.database) / listing.transfer / file.path).mkdir(parents=True)
    with pytest.raises(StoreFailure, match=file.path):
        desk.piece(listing.transfer, file.content.digest, 0)
    assert desk.served_bytes == 2000


def test_bytes_that_may_be_sent(source: RocksNode):
    assert source.desk().wait_s(10**9) == 0.0
    now = [50.0]
    bounded = source.desk(bytes_per_s=1000, now_s=lambda: now[0])
    assert bounded.wait_s(1000) == 0.0, "a second's worth may go at once"
    assert bounded.wait_s(500) == 0.5
    now[0] += 0.25
    assert bounded.wait_s(250) == 0.5


@pytest.mark.parametrize("how", ["removed", "changed"])
def test_a_checkpoint_that_goes_or_changes_meanwhile_is_left_out(
    source: RocksNode, desk: TransferDesk, monkeypatch: pytest.MonkeyPatch, how: str
):
    link, names, looked = os.link, transfer_desk._names, iter(range(1000))

    def removed(old: Path, new: Path) -> None:
        if "snapshot-1" in str(old):
            raise FileNotFoundError(old)
        link(old, new)

    def changed(folder: Path) -> list[str]:
        return [*names(folder), "new"][: -1 if next(looked) == 0 else None]

    if how == "removed":
        monkeypatch.setattr("replicated_db.shell.bootstrap.transfer_desk.os.link", removed)
    else:
        monkeypatch.setattr(transfer_desk, "_names", changed)
    listing = desk.begin(asked())
    assert {one.path.partition("/")[0] for one in listing.files} == {DATABASE}
    monkeypatch.undo()
    assert {one.path.partition("/")[0] for one in desk.begin(asked()).files} == {DATABASE, "checkpoints"}


# Its pages.


def test_a_transfer_that_nobody_reads_ends_by_itself(source: RocksNode, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer_pages, "EXPIRE_INTERVAL_S", 0.001)
    now = [0.0]
    desk = source.desk(now_s=lambda: now[0])
    with serving(desk, "n1"):
        desk.begin(asked())
        assert desk.open_transfers == 1
        now[0] = TRANSFER_IDLE_S + 1
        assert wait_until(lambda: desk.open_transfers == 0, DEADLINE_S, interval_s=0.001)


def test_refusals_say_whether_to_ask_again(source: RocksNode, desk: TransferDesk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer_pages, "MAX_LISTING_BYTES", 1000)
    path = "/v1/shards/0/checkpoint"
    with serving(desk, "n1") as peer, httpx.Client(base_url=f"http://{peer.address}", trust_env=False) as ask:

        def post(target: str, **body: Any) -> tuple[int, str, str]:
            answer = ask.post(target, auth=SECRET.sign, **body)
            return answer.status_code, answer.json()["error"], answer.json()["message"]

        good = asked().to_json()
        long = post(path, content=b" " * 1001)
        assert long == (400, "INVALID_REQUEST", "the request has more than 1000 bytes")
        assert post(path, content=b" " * 1000)[2].startswith("the request is no JSON")
        assert post("/v1/shards/9/checkpoint", json=good | {"shard": 9})[:2] == (404, "NO_TRANSFER")
        assert post("/v1/shards/1/checkpoint", json=good)[2] == "shard: 0, but the path says 1"
        assert ask.get("/v1/shards/99999999999999999999/checkpoint").status_code == 400
        for number in range(MAX_TRANSFERS):
            desk.begin(asked(asker=f"n{10 + number}"))
        assert post(path, json=good)[:2] == (503, "OVERLOADED")
        assert post(path, json=good | {"cluster": "x"})[:2] == (409, "INVALID_REQUEST")
        transfer = next(iter(desk._transfers))
        for _ in range(2):
            assert ask.post(f"/v1/transfers/{transfer}/release", auth=SECRET.sign).json() == {}
        assert desk.open_transfers == MAX_TRANSFERS - 1

        def fails(*_: Any) -> None:
            raise StoreFailure("the disk is full")

        monkeypatch.setattr(source.store, "copy_to", fails)
        assert post(path, json=good) == (503, "OVERLOADED", "the disk is full")
        monkeypatch.setattr(desk, "piece", fails)
        assert ask.get(f"/v1/transfers/{transfer}/{'0' * 32}").status_code == 503


# The asking side.


class Pieces(PeerCalls):
    """Calls to a peer that answers each question for a piece as the script says: bytes, or None for a failure."""

    def __init__(self, *script: bytes | None) -> None:
        self.slept: list[float] = []
        super().__init__(SECRET, sleep=self.slept.append)
        self.script = list(script)
        self.offsets: list[int] = []

    def _piece(self, peer: ServingPeer, transfer: str, content: Content, offset: int) -> bytes:
        self.offsets.append(offset)
        found = self.script.pop(0)
        if found is None:
            raise PeerError("no answer")
        return found

    def get(self, part: Path, size: int) -> list[int]:
        """Fetch a content; return the sizes of the pieces that came."""
        came: list[int] = []
        self.fetch(ServingPeer("n1", "n1:1"), "t" * 32, Content("d" * 32, size), part, came.append)
        return came


def test_a_part_goes_on_where_it_ended(tmp_path: Path):
    part = tmp_path / "part"
    part.write_bytes(b"ab")
    calls = Pieces(b"cd", b"e")
    assert calls.get(part, 5) == [2, 1]
    assert (part.read_bytes(), calls.offsets, calls.slept) == (b"abcde", [2, 4], [])
    assert Pieces().get(part, 5) == []
    calls = Pieces(b"xyz")
    assert calls.get(part, 3) == [3]
    assert part.read_bytes() == b"xyz", "a part that is too long is begun anew"


def test_a_piece_is_asked_for_several_times_with_longer_pauses(tmp_path: Path):
    failures = [None] * (FETCH_ATTEMPTS - 1)
    calls = Pieces(*failures, b"a", *failures, b"b")
    calls.get(tmp_path / "part", 2)
    pauses = [RETRY_PAUSE_S * number for number in range(1, FETCH_ATTEMPTS)]
    assert calls.slept == [*pauses, *pauses], "an answer makes up for the failures before it"
    calls = Pieces(*failures, None, b"a")
    with pytest.raises(PeerError, match="no answer"):
        calls.get(tmp_path / "other", 2)
    assert calls.slept == pauses
    assert calls.script == [b"a"]


def answering(monkeypatch: pytest.MonkeyPatch, status: int, *pieces: bytes, now_s: Any = time.monotonic) -> PeerCalls:
    """Calls whose peer answers every question with these pieces; the connections are httpx's, the wire is not."""

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, content=iter(pieces))

    seen: list[httpx.Request] = []
    calls = PeerCalls(SECRET, now_s=now_s)
    monkeypatch.setattr(calls, "_http", httpx.Client(transport=httpx.MockTransport(answer)))
    monkeypatch.setattr(calls, "seen", seen, raising=False)
    return calls


PEER = ServingPeer("n1", "n1:1")
CONTENT = Content("d" * 32, 10)


def test_an_answer_is_bounded_in_size(monkeypatch: pytest.MonkeyPatch):
    whole = answering(monkeypatch, 200, b"12345", b"67890")
    assert whole._piece(PEER, "t", CONTENT, 0) == b"1234567890"
    with pytest.raises(PeerError, match=r"/v1/transfers/t/d{32}\?offset=1 has more than 9 bytes"):
        whole._piece(PEER, "t", CONTENT, 1)
    monkeypatch.setattr(peer_calls, "MAX_PIECE_BYTES", 9)
    with pytest.raises(PeerError, match="has more than 9 bytes"):
        whole._piece(PEER, "t", CONTENT, 0)
    with pytest.raises(PeerError, match="ends after 4 of 10 bytes"):
        answering(monkeypatch, 200)._piece(PEER, "t", CONTENT, 4)


def test_an_answer_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch):
    times = iter([100.0, 160.0, 160.1])
    calls = answering(monkeypatch, 200, b"1", b"2", now_s=lambda: next(times))
    with pytest.raises(PeerError, match="takes longer than 60 s"):
        calls._piece(PEER, "t", CONTENT, 0)
    times = iter([100.0, 160.0, 160.0])
    assert answering(monkeypatch, 200, b"1", b"2", now_s=lambda: next(times))._piece(PEER, "t", CONTENT, 0) == b"12"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"message": "too busy"}', "503: too busy"),
        (b'{"message": ""}', "503: no reason is given"),
        (b"[1]", "503: no reason is given"),
        (b"no json", "503: no reason is given"),
        (b'{"message": "' + b"x" * 1000 + b'"}', "503: " + "x" * 300),
    ],
)  # fmt: skip
def test_a_refusal_gives_its_reason(monkeypatch: pytest.MonkeyPatch, body: bytes, said: str):
    with pytest.raises(PeerError) as caught:
        answering(monkeypatch, 503, body).release(PEER, "t")
    assert str(caught.value) == said


def test_a_refusal_may_be_longer_than_the_answer(monkeypatch: pytest.MonkeyPatch):
    """A touch wants no bytes at all, and still hears why it is refused."""
    with pytest.raises(PeerError, match="404: gone"):
        answering(monkeypatch, 404, b'{"message": "gone"}').touch(PEER, "t", CONTENT)
    with pytest.raises(PeerError, match="has more than 0 bytes"):
        answering(monkeypatch, 200, b"x").touch(PEER, "t", CONTENT)


def test_every_call_is_signed(monkeypatch: pytest.MonkeyPatch):
    calls: Any = answering(monkeypatch, 200, b"{}")
    calls.release(PEER, "t")
    calls._piece(PEER, "t", CONTENT, 0)
    release, piece = calls.seen
    assert (release.method, release.url.path) == ("POST", "/v1/transfers/t/release")
    assert release.headers["Authorization"] == SECRET.authorization("POST", "n1:1", "/v1/transfers/t/release")
    target = piece.url.raw_path.decode()
    assert piece.headers["Authorization"] == SECRET.authorization("GET", "n1:1", target)


def test_a_peer_is_asked_in_this_process_alone(source: RocksNode, desk: TransferDesk):
    """A real peer: where it stands, a listing, a touch, and that it goes."""
    other_than_json: list[str] = []

    async def twisted(request: web.Request, answer: Answer) -> web.StreamResponse:
        return web.Response(body=b"[]") if other_than_json else await answer(request)

    calls = PeerCalls(SECRET)
    with serving(desk, "n1", twisted) as peer:
        assert calls.view(peer, 0).offset == source.replica.position.offset
        listing = calls.listing(peer, asked())
        calls.touch(peer, listing.transfer, listing.files[0].content)
        calls.release(peer, listing.transfer)
        assert desk.open_transfers == 0
        other_than_json.append("now")
        with pytest.raises(PeerError, match="its answer cannot be used"):
            calls.view(peer, 0)
        with pytest.raises(PeerError, match="its listing cannot be used"):
            calls.listing(peer, asked())
    calls.close()


# Digests.


def test_the_digest_that_was_not_asked_for_the_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_digests, "MAX_KEPT_DIGESTS", 2)
    read: list[int] = []
    digests = ContentDigests(read.append)
    files = [tmp_path / f"{number}.sst" for number in range(3)]
    for number, path in enumerate(files):
        path.write_bytes(bytes(number + 1))
    for path in (files[0], files[1], files[0], files[2], files[0]):
        digests.of(path)
    assert read == [1, 2, 3]
    digests.of(files[1])
    assert read == [1, 2, 3, 2]


def test_a_long_file_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "1.sst"
    path.write_bytes(bytes(25))
    whole = ContentDigests().of(path)
    monkeypatch.setattr(content_digests, "READ_BYTES", 10)
    read: list[int] = []
    assert ContentDigests(read.append).of(path) == whole == Content(whole.digest, 25)
    assert read == [10, 10, 5]


def test_files_of_a_database_and_of_finished_checkpoints_are_found(tmp_path: Path):
    database, checkpoints = tmp_path / "db", tmp_path / "checkpoints"
    for folder in (database, checkpoints / "c2", checkpoints / "c1"):
        folder.mkdir(parents=True)
        (folder / "1.sst").write_bytes(b"rows")
        (folder / "LOCK").write_bytes(b"")
        (folder / "sub").mkdir()
    (checkpoints / "file").write_bytes(b"")
    found = ContentDigests().found_in(database, checkpoints)
    assert [one.file.path for one in found] == ["db/1.sst", "checkpoints/c1/1.sst", "checkpoints/c2/1.sst"]
    status = (database / "1.sst").stat()
    assert found[0].inode == (status.st_dev, status.st_ino)
    assert ContentDigests().found_in(None, None) == []
    assert ContentDigests().found_in(tmp_path / "absent", tmp_path / "absent") == []
    (database / "odd name").write_bytes(b"")
    with pytest.raises(StoreFailure, match="odd name: a file of this name is not RocksDB's"):
        ContentDigests().found_in(database, None)


def test_a_file_that_vanishes_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "1.sst").write_bytes(b"rows")
    digests = ContentDigests()
    for error, kind in ((FileNotFoundError("gone"), FileVanished), (PermissionError("no"), StoreFailure)):

        def fails(path: Path, error: OSError = error) -> Content:
            raise error

        monkeypatch.setattr(digests, "of", fails)
        with pytest.raises(StoreFailure, match=str(tmp_path)) as caught:
            digests.found_in(tmp_path, None)
        assert type(caught.value) is kind
