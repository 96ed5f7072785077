"""A candidate before it is installed: what is kept of it, what its checks refuse, and that a run is never silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.bootstrap_machine import Release
from replicated_db.core.bootstrap.listing import CHECKPOINTS, DATABASE, Content, ListedPosition, Listing, request_from
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StoreFailure
from replicated_db.core.log.log_reads import END_BEHIND_WAIT_S
from replicated_db.core.log.position import FLAG_KEY, INSTALLED_KEY, UNFLAGGED_KEY
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.shell.bootstrap import bootstrap as bootstrap_module
from replicated_db.shell.bootstrap import opening
from replicated_db.shell.bootstrap.bootstrap import NoPeerServes, Terms, _BootstrapRun, _Teller, bootstrap
from replicated_db.shell.bootstrap.candidate import Candidate, candidate_folder
from replicated_db.shell.bootstrap.candidate_check import (
    LOG_WAIT_S,
    CandidateRefused,
    check_candidate,
    make_own,
    reaches_anchor,
)
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from replicated_db.shell.bootstrap.install import finish, install, journal_of, replaced_folder
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, open_replica
from replicated_db.shell.bootstrap.peer_calls import PeerError
from schemas.records.messages import Evidence
from stratolog.local.processes import wait_until
from tests.support.local.secret import SECRET
from tests.support.replicated.kit import FAMILIES
from tests.support.replicated.transfers import Log, RocksNode

DEADLINE_S = 30.0
PEER = ServingPeer("n1", "n1:1")
EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=1, own=None
)


@pytest.fixture(scope="module")
def log() -> Log:
    made = Log()
    made.write(100, checkpoint="snapshot-1")
    return made


@pytest.fixture(scope="module")
def source(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocksNode]:
    """A replica that is listed and copied; no test changes it."""
    node = RocksNode(tmp_path_factory.mktemp("candidates") / "n1", log.log, "n1").catch_up()
    yield node
    node.close()


@pytest.fixture
def listing(source: RocksNode) -> Iterator[Listing]:
    desk = source.desk()
    asked = {
        "version": 1, "asker": "n2", "cluster": "test", "shard": 0, "shards": 1, "offset": -1, "have": [], "folders": {},
    }  # fmt: skip
    yield desk.begin(request_from(asked))
    desk.close()


@pytest.fixture
def copied(source: RocksNode, tmp_path: Path) -> Path:
    """A copy of the source's database, which a test may change."""
    target = tmp_path / "copied"
    source.store.copy_to(target)
    return target


# What is kept.


class Fetched:
    """A candidate beside a database that is not there, with all content of a listing."""

    def __init__(self, folder: Path, listing: Listing, source: RocksNode) -> None:
        self.listing = listing
        self.database = folder / "shard-0"
        self.candidate = Candidate(self.database, ContentDigests())
        self.candidate.open()
        self.candidate.mark(PEER, listing)
        served = source.folder / "shard-0.transfers" / listing.transfer
        for one in listing.files:
            if one.content not in self.candidate.have:
                self.candidate.part_of(one.content).write_bytes((served / one.path).read_bytes())
                assert self.candidate.accept(one.content)

    @property
    def contents(self) -> set[str]:
        return {path.name for path in (self.candidate.folder / "content").iterdir()}


@pytest.fixture
def fetched(tmp_path: Path, listing: Listing, source: RocksNode) -> Fetched:
    return Fetched(tmp_path, listing, source)


def test_content_that_a_listing_does_not_need_goes(fetched: Fetched):
    candidate, listing = fetched.candidate, fetched.listing
    needed = replace(listing, files=listing.files[:2], links=())
    (candidate.folder / "content" / ("e" * 32 + ".part")).write_bytes(b"of another listing")
    kept = candidate.part_of(needed.files[0].content)
    kept.write_bytes(b"unfinished")
    candidate.mark(PEER, needed)
    wanted = {one.content.digest for one in needed.files}
    assert fetched.contents == {*wanted, kept.name}
    assert {one.digest for one in candidate.have} == wanted


def test_what_a_former_run_has_fetched_is_used_and_what_is_wrong_is_not(fetched: Fetched):
    wrong = fetched.candidate.folder / "content" / ("e" * 32)
    wrong.write_bytes(b"not what the name says")
    part = fetched.candidate.part_of(Content("d" * 32, 5))
    part.write_bytes(b"ab")
    again = Candidate(fetched.database, ContentDigests())
    again.open()
    assert again.have == fetched.candidate.have
    assert part.exists(), "it is continued"
    assert not wrong.exists()


def test_a_part_that_is_wrong_is_deleted(fetched: Fetched):
    content = Content("d" * 32, 3)
    fetched.candidate.part_of(content).write_bytes(b"abc")
    assert not fetched.candidate.accept(content)
    assert not fetched.candidate.part_of(content).exists()
    assert content not in fetched.candidate.have


def test_the_tree_is_made_from_nothing_each_time(fetched: Fetched):
    candidate, copied = fetched.candidate, list[int]()
    (candidate.tree / DATABASE).mkdir(parents=True)
    (candidate.tree / DATABASE / "old.sst").write_bytes(b"of another listing")
    candidate.build(fetched.listing, copied.append)
    made = {str(path.relative_to(candidate.tree)) for path in candidate.tree.rglob("*") if path.is_file()}
    assert made == {one.path for one in fetched.listing.files}
    sizes = sorted(one.content.size for one in fetched.listing.files if not one.is_immutable)
    assert sorted(copied) == sizes, "what RocksDB may change is copied"
    assert (candidate.tree / CHECKPOINTS).is_dir()
    candidate.build(replace(fetched.listing, files=fetched.listing.files[:1], links=()))
    assert len([path for path in candidate.tree.rglob("*") if path.is_file()]) == 1


def test_a_listing_that_leaves_out_what_is_not_here_gives_no_tree(fetched: Fetched):
    with pytest.raises(StoreFailure, match="leaves out checkpoint snapshot-7, which is not here"):
        fetched.candidate.build(replace(fetched.listing, kept=frozenset({"snapshot-7"})))
    absent = replace(fetched.listing.files[0], content=Content("d" * 32, 9))
    with pytest.raises(StoreFailure, match=f"content {'d' * 32} is not here"):
        fetched.candidate.build(replace(fetched.listing, files=(absent,), links=()))


def test_a_candidate_that_is_discarded_leaves_nothing(fetched: Fetched):
    fetched.candidate.build(fetched.listing)
    fetched.candidate.discard()
    assert fetched.candidate.have == frozenset()
    assert [path.name for path in fetched.candidate.folder.iterdir()] == ["content"]
    assert fetched.contents == set()


def test_checkpoints_that_the_replica_has_are_taken_over(source: RocksNode, listing: Listing, tmp_path: Path):
    own = RocksNode(tmp_path / "own", source.log, "n2").catch_up()
    own.close()
    read: list[int] = []
    candidate = Candidate(own.database, ContentDigests(read.append))
    candidate.open()
    assert list(candidate.folders) == ["snapshot-1"]
    read.clear()
    own.database.with_name("shard-0.checkpoints").joinpath("other").mkdir()
    (own.database.with_name("shard-0.checkpoints") / "other" / "1.sst").write_bytes(b"")
    candidate.build(replace(listing, files=(), links=(), kept=frozenset({"snapshot-1"})))
    assert read == [], "a checkpoint that is taken over has all others read again"
    kept = own.database.with_name("shard-0.checkpoints") / "snapshot-1"
    made = candidate.tree / CHECKPOINTS / "snapshot-1"
    carried = {path.name for path in kept.iterdir() if not path.name.startswith(("LOG", "LOCK"))}
    assert {path.name for path in made.iterdir()} == carried
    for path in made.iterdir():
        assert path.read_bytes() == (kept / path.name).read_bytes()
        assert path.samefile(kept / path.name) == (path.suffix == ".sst")


# What the checks refuse.


class Checking:
    """The check of a copy of the source, against a log that may be silent."""

    def __init__(self, database: Path, source: RocksNode) -> None:
        self.database = database
        self.source = source
        self.notes: list[str] = []
        self.slept: list[float] = []
        self.now_s = 0.0
        self.rows = 0
        self.log: Any = source.log
        position = source.replica.position
        self.listed = ListedPosition(
            term=position.term, index=position.index, offset=position.offset, record_hash=position.record_hash
        )

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def on_rows(self) -> None:
        self.rows += 1

    def check(self) -> None:
        check_candidate(
            self.database, self.source.identity, FAMILIES, self.log, self.listed, self.notes.append,
            on_rows=self.on_rows, now_s=lambda: self.now_s, sleep=self.sleep,
        )  # fmt: skip


@pytest.fixture
def checking(copied: Path, source: RocksNode) -> Checking:
    return Checking(copied, source)


def test_a_good_candidate_passes(checking: Checking):
    checking.check()
    assert checking.slept == []


class Around:
    """A log that another one is around."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class EndsBefore(Around):
    """A log whose end is told by a broker that is behind."""

    def __init__(self, log: Any, end: int) -> None:
        super().__init__(log)
        self._end = end

    def bounds(self) -> tuple[int, int]:
        return 0, self._end


def test_a_log_that_ends_before_the_candidate_is_waited_for_by_the_callers_clock(checking: Checking):
    checking.log = EndsBefore(checking.source.log, checking.listed.offset)
    with pytest.raises(CandidateRefused):
        checking.check()
    assert END_BEHIND_WAIT_S < sum(checking.slept) <= END_BEHIND_WAIT_S + 1


@pytest.mark.parametrize("field", ["term", "index", "offset"])
def test_a_candidate_that_stands_elsewhere_than_its_listing(checking: Checking, field: str):
    checking.listed = replace(checking.listed, **{field: getattr(checking.listed, field) + 1})
    with pytest.raises(CandidateRefused, match=f"its rows stand at offset {checking.source.replica.position.offset}"):
        checking.check()


def test_an_empty_candidate(checking: Checking, tmp_path: Path):
    empty = RocksNode(tmp_path / "empty", checking.source.log, "n2")
    position = empty.replica.position
    empty.close()
    checking.database = empty.database
    checking.listed = ListedPosition(
        term=position.term, index=position.index, offset=position.offset, record_hash=position.record_hash
    )
    with pytest.raises(CandidateRefused, match="it holds no Genesis"):
        checking.check()


def test_a_flagged_candidate(checking: Checking, source: RocksNode, tmp_path: Path):
    flagged = RocksNode(tmp_path / "flagged", source.log, "n2").catch_up()
    flagged.replica.flag(EVIDENCE)
    flagged.close()
    checking.database = flagged.database
    with pytest.raises(CandidateRefused, match="it is flagged: it has diverged"):
        checking.check()


class Silent(Around):
    """A log that does not answer for so many questions."""

    def __init__(self, log: Any, times: float) -> None:
        super().__init__(log)
        self.left = times

    def bounds(self) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise LogUnavailable("no broker answers")
        return self._log.bounds()


def test_a_log_that_does_not_answer_is_asked_again_for_a_while(checking: Checking):
    checking.log = Silent(checking.source.log, 2)
    checking.check()
    assert checking.slept == [1, 1]
    assert checking.notes == ["shard 0: the log does not answer: no broker answers"] * 2
    checking.log = Silent(checking.source.log, float("inf"))
    checking.slept.clear()
    with pytest.raises(LogUnavailable):
        checking.check()
    assert sum(checking.slept) == LOG_WAIT_S + 1


def test_a_candidate_reads_again_from_its_anchor(source: RocksNode, monkeypatch: pytest.MonkeyPatch):
    assert reaches_anchor(source.replica, source.log)
    monkeypatch.setattr(source.log, "first", source.replica.anchor.offset)
    assert reaches_anchor(source.replica, source.log)
    monkeypatch.setattr(source.log, "first", source.replica.anchor.offset + 1)
    assert not reaches_anchor(source.replica, source.log)


def test_the_peers_own_rows_do_not_come_along(copied: Path, source: RocksNode):
    node = RocksNode(copied.parent / "other", source.log, "n2")
    node.close()
    store = node.open().store
    store.write([(TRANSACTION_INFO, FLAG_KEY, b"x"), (TRANSACTION_INFO, UNFLAGGED_KEY, b"y")])
    node.close()
    make_own(node.database, FAMILIES, b"{}")
    rows = dict(node.open().store.iterate(TRANSACTION_INFO, b""))
    assert (rows.get(FLAG_KEY), rows.get(UNFLAGGED_KEY), rows[INSTALLED_KEY]) == (None, None, b"{}")
    node.close()


# A run.


def test_a_run_says_what_it_is_at_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("replicated_db.shell.bootstrap.telling.TELL_INTERVAL_S", 0.001)
    notes: list[str] = []
    file = tmp_path / "progress.txt"
    counted = iter(range(10**9))
    with _Teller(notes.append, "shard 0: ", file) as teller:
        teller.at("waits")
        assert wait_until(lambda: notes.count("shard 0: waits") > 2, DEADLINE_S, interval_s=0.001)
        # It is written again and again, so a reader may find it empty for a moment.
        assert wait_until(lambda: file.read_text() == "shard 0: waits", DEADLINE_S, interval_s=0.001)
        teller.at(lambda: f"has {next(counted)} rows")
        assert wait_until(lambda: "shard 0: has 3 rows" in notes, DEADLINE_S, interval_s=0.001)
        thread = next(one for one in threading.enumerate() if one.name == "bootstrap-progress")
    assert not thread.is_alive()
    said = len(notes)
    teller.say("ends")
    assert notes[said:] == ["shard 0: ends"]


class Calls:
    """Peers that say nothing of use."""

    def __init__(self) -> None:
        self.closed = False

    def view(self, peer: ServingPeer, shard: int) -> Any:
        raise PeerError(f"no answer about shard {shard}")

    def release(self, peer: ServingPeer, transfer: str) -> None:
        raise PeerError("gone")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def asker(log: Log, tmp_path: Path) -> RocksNode:
    node = RocksNode(tmp_path / "n2", log.log, "n2")
    node.close()
    return node


def terms(peers: Callable[[], Any], **more: Any) -> Terms:
    return Terms(**{"peers": peers, "secret": SECRET, "own_offset": -1, "searches": 3, **more})


def test_peers_are_sought_again_after_a_pause(asker: RocksNode, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(bootstrap_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    calls: Any = Calls()
    with pytest.raises(NoPeerServes, match="n1 at n1:1: no answer about shard 0"):
        bootstrap(asker.target(), terms(lambda: [PEER]), asker.notes.append, calls)
    assert pauses == [bootstrap_module.SEARCH_PAUSE_S] * 2
    assert calls.closed
    assert asker.notes.count("shard 0: bootstrap: looks for a peer that has a checkpoint to give") == 3


def test_brokers_that_do_not_name_the_peers_are_a_reason(asker: RocksNode):
    def peers() -> Any:
        raise LogUnavailable("no broker answers")

    calls: Any = Calls()
    with pytest.raises(NoPeerServes, match="the brokers do not name the peers: no broker answers"):
        bootstrap(asker.target(), terms(peers, searches=1), asker.notes.append, calls)


def test_a_peer_that_cannot_be_told_ends_its_transfer_by_itself(asker: RocksNode, tmp_path: Path):
    calls: Any = Calls()
    with _Teller(asker.notes.append, "", tmp_path / "progress.txt") as teller:
        run = _BootstrapRun(asker.target(), terms(list), teller, calls)
        run._release(Release(PEER, "t" * 32))
    assert asker.notes == ["n1 at n1:1: gone; it ends the transfer by itself"]


# Installing, and opening.


def test_an_install_that_the_disk_refuses_says_how_far_it_came(fetched: Fetched, monkeypatch: pytest.MonkeyPatch):
    fetched.candidate.build(fetched.listing)

    def full(*_: Any) -> None:
        raise OSError("no space left")

    install_module = "replicated_db.shell.bootstrap.install"
    with monkeypatch.context() as patched:
        patched.setattr(f"{install_module}.write_durably", full)
        with pytest.raises(StoreFailure, match="no space left; nothing was installed"):
            install(fetched.database, "{}")
    assert not journal_of(fetched.database).exists()
    with monkeypatch.context() as patched:
        patched.setattr(f"{install_module}._do", full)
        with pytest.raises(StoreFailure, match="no space left; an install is not finished"):
            install(fetched.database, "record")
    assert journal_of(fetched.database).read_text() == "record"
    steps: list[Any] = []
    assert finish(fetched.database, steps.append) == len(steps) > 2
    assert fetched.database.is_dir()
    assert not replaced_folder(fetched.database).exists()
    assert not journal_of(fetched.database).exists()
    assert finish(fetched.database) == 0


def policy(**more: Any) -> BootstrapPolicy:
    return BootstrapPolicy(**{"peers": list, "secret": SECRET, "records": 10**6, "searches": 1, **more})


def test_a_start_tells_that_it_has_finished_an_install(fetched: Fetched, source: RocksNode):
    fetched.candidate.build(fetched.listing)
    journal_of(fetched.database).write_text("{}")
    node = RocksNode(fetched.database.parent / "elsewhere", source.log, "n2")
    node.close()
    node.folder = fetched.database.parent
    open_replica(
        ReplicaToOpen(database=node.database, make=lambda: node.open().replica, log=node.log),
        policy(),
        node.notes.append,
    )
    assert node.replica.position == source.replica.position
    assert any("what a former process had begun to install is in order now" in note for note in node.notes)
    node.close()


@pytest.mark.parametrize("when", ["first", "after the search"])
def test_a_replica_that_cannot_be_checked_is_closed(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    node = RocksNode(tmp_path / "n2", log.log, "n2")
    node.close()
    checks = iter(range(10))

    def check(*_: Any) -> None:
        if next(checks) == (0 if when == "first" else 1):
            raise StoreFailure("the disk fails")

    monkeypatch.setattr(opening, "check_replica", check)
    with pytest.raises(StoreFailure, match="the disk fails"):
        open_replica(
            ReplicaToOpen(database=node.database, make=lambda: node.open().replica, log=node.log),
            policy(records=1),
            node.notes.append,
        )
    node.open().close()


def test_a_folder_that_cannot_be_locked(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")

    def make() -> Replica:
        raise AssertionError("it must not be opened")

    anything: Any = None
    with pytest.raises(StoreFailure, match=r"db\.lock"):
        open_replica(ReplicaToOpen(database=tmp_path / "file" / "db", make=make, log=anything), policy(), anything)
    assert not candidate_folder(tmp_path / "file" / "db").exists()
