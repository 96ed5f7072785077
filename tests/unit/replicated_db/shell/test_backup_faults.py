"""What a backup or a restore makes of peers, brokers and disks that fail it; without rows, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import Offered
from replicated_db.core.bootstrap.bootstrap_machine import AskListing, FetchContent, Mark, PeerFailed, Release
from replicated_db.core.bootstrap.listing import Content, ListedFile, ListedPosition, Listing
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import BrokenLog
from replicated_db.core.log.position import Position
from replicated_db.core.ports import DeliveryReport, Entry, LogBounds, LogUnavailable, OffsetOutOfRange
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.backup import shard_backup, shard_restore
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from replicated_db.shell.backup.shard_backup import READ_LIMIT, SILENT_READS, ShardSource
from replicated_db.shell.bootstrap.peer_calls import PeerError
from schemas.records.messages import Evidence
from tests.support.replicated.kit import CLUSTER, FAMILIES

PEER = ServingPeer("n1", "n1:1")
CONTENT = Content("ab" * 16, 3)
EVIDENCE = Evidence(
    index=7, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=1, own=None
)


def listing(*kept: str) -> Listing:
    return Listing(
        transfer="0" * 32, node="n1", cluster=CLUSTER, shard=0, shards=1, leader="n1",
        position=ListedPosition(term=1, index=1, offset=1, record_hash=b"h" * 16),
        files=(ListedFile("db/000001.sst", CONTENT),), links=(), kept=frozenset(kept), remove=frozenset(),
    )  # fmt: skip


class Calls:
    """A peer that fails each call, or answers with a listing."""

    def __init__(self) -> None:
        self.error: Exception | None = PeerError("connection refused")
        self.kept: tuple[str, ...] = ()
        self.touched: list[Content] = []

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def listing(self, *_: Any) -> Listing:
        self._fail()
        return listing(*self.kept)

    def fetch(self, *_: Any) -> None:
        self._fail()

    def release(self, *_: Any) -> None:
        self._fail()

    def touch(self, peer: ServingPeer, transfer: str, content: Content) -> None:
        self.touched.append(content)
        self._fail()


class Log:
    """A log that answers with what the test gives it."""

    def __init__(self) -> None:
        self.answers: list[Sequence[Entry] | Exception] = []
        self.asked: list[tuple[int, int]] = []

    def bounds(self) -> LogBounds:
        return LogBounds(0, 10)

    def read(self, offset: int, limit: int, _: float) -> Sequence[Entry]:
        self.asked.append((offset, limit))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


class Telling:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def at(self, _: str | Callable[[], str]) -> None:
        pass


class Run:
    """One shard's backup, of which single steps are taken."""

    def __init__(self, repository: BackupRepository) -> None:
        self.calls, self.log, self.telling = Calls(), Log(), Telling()
        given: Any = ShardSource(
            identity=Identity(cluster=CLUSTER, shard=0, shards=1, node="backup"), families=FAMILIES,
            log=self.log, peers=(PEER,),  # type: ignore[arg-type]
        )  # fmt: skip
        calls: Any = self.calls
        telling: Any = self.telling
        self.run = shard_backup._Taking(repository, given, calls, [], telling, lambda: 0, lambda _: None)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        yield Run(repository)


def entries(*offsets: int) -> list[Entry]:
    return [Entry(offset=offset, timestamp_ms=0, value=b"") for offset in offsets]


def test_a_peer_that_gives_no_listing_is_told_and_another_may_be_asked(run: Run) -> None:
    assert run.run._ask(AskListing(PEER, 1)) == PeerFailed("connection refused")
    assert run.telling.said == ["shard 0: n1 at n1:1: connection refused"]


def test_a_listing_that_leaves_out_a_checkpoint_is_none_for_a_backup(run: Run) -> None:
    run.calls.error, run.calls.kept = None, ("s-2", "s-1")
    failed = run.run._ask(AskListing(PEER, 1))
    assert failed == PeerFailed("its listing leaves out checkpoint s-1, which was asked for")


def test_a_fetch_that_fails_is_the_peers_or_the_disks_fault(run: Run) -> None:
    instruction = FetchContent(PEER, "0" * 32, CONTENT)
    assert run.run._fetch(instruction) == PeerFailed("connection refused")
    assert run.telling.said == ["shard 0: n1 at n1:1: connection refused"]
    run.calls.error = OSError(28, "No space left on device")
    with pytest.raises(BackupFailed, match=rf"{CONTENT.digest}\.part: No space left on device"):
        run.run._fetch(instruction)


def test_a_peer_that_cannot_be_told_of_the_end_is_left_alone(run: Run) -> None:
    run.run._release(Release(PEER, "0" * 32))
    assert run.telling.said == ["shard 0: n1 at n1:1: connection refused; it ends the transfer by itself"]


def test_a_transfer_is_touched_now_and_then_and_a_failure_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(shard_backup, "time", SimpleNamespace(monotonic=lambda: now_s))
    run.run._touched_s = now_s
    run.run._touch()
    assert run.calls.touched == [], "nothing is fetched yet"
    run.run._mark = Mark(PEER, listing())
    now_s += shard_backup.TOUCH_INTERVAL_S - 0.01
    run.run._touch()
    assert run.calls.touched == []
    now_s += 0.01
    run.run._touch()
    run.run._touch()
    assert run.calls.touched == [CONTENT]
    assert run.telling.said == ["shard 0: n1 at n1:1: connection refused"]


def test_the_log_is_read_in_parts_up_to_where_it_ended(run: Run) -> None:
    run.log.answers = [entries(3, 4), [], entries(5, 6, 7, 8, 9)]
    found = list(run.run._entries(3, LogBounds(0, 10)))
    assert [entry.offset for entry in found] == [3, 4, 5, 6, 7, 8, 9]
    assert run.log.asked == [(3, 7), (5, 5), (5, 5)]
    assert list(run.run._entries(10, LogBounds(0, 10))) == []
    run.log.asked.clear()
    run.log.answers = [entries(0)]
    assert next(iter(run.run._entries(0, LogBounds(0, 10_000)))).offset == 0
    assert run.log.asked[0] == (0, READ_LIMIT)


def test_a_log_that_stays_silent_is_given_up_and_one_that_answers_now_and_then_is_not(run: Run) -> None:
    silence: list[Sequence[Entry] | Exception] = [[]] * (SILENT_READS - 1)
    run.log.answers = [*silence, entries(0, 1, 2, 3, 4), *silence, entries(5, 6, 7, 8, 9)]
    assert len(list(run.run._entries(0, LogBounds(0, 10)))) == 10
    run.log.asked.clear()
    with pytest.raises(LogUnavailable, match="shard 0: offset 0 of 10 is not served"):
        list(run.run._entries(0, LogBounds(0, 10)))
    assert len(run.log.asked) == SILENT_READS


def test_a_log_that_is_trimmed_meanwhile_ends_the_backup(run: Run) -> None:
    run.log.answers = [OffsetOutOfRange("offset 0")]
    with pytest.raises(BackupFailed, match="shard 0: the log was trimmed meanwhile: offset 0"):
        list(run.run._entries(0, LogBounds(0, 10)))


# Restoring.


class Snapshot:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_snapshots_of_barriers_are_let_go_of_and_a_contradiction_ends_the_restore() -> None:
    snapshot: Any = Snapshot()
    shard_restore._judge_offered(Offered(reading=None, position=Position(), snapshot=snapshot), "shard 0")
    assert snapshot.closed == 1
    with pytest.raises(BackupFailed, match="shard 0: the rows contradict the log at index 7, things b'k'"):
        shard_restore._judge_offered(Offered(reading=None, position=Position(), evidence=EVIDENCE), "shard 0")


class Appender:
    """Reports what the test says after some polls."""

    def __init__(self, *polls: list[DeliveryReport]) -> None:
        self.polls = list(polls)
        self.waits: list[float] = []
        self.appended: list[tuple[int, bytes]] = []
        self.closed = 0

    def appender(self) -> Appender:
        return self

    def append(self, token: int, value: bytes) -> None:
        self.appended.append((token, value))

    def poll(self, wait_s: float) -> list[DeliveryReport]:
        self.waits.append(wait_s)
        return self.polls.pop(0) if self.polls else []

    def close(self) -> None:
        self.closed += 1


def report(offset: int, error: str | None = None) -> DeliveryReport:
    return DeliveryReport(token=3, offset=offset, timestamp_ms=1, error=error)


def appended(appender: Appender) -> None:
    log: Any = appender
    try:
        shard_restore._append("log/0", log, 3, b"value")
    finally:
        assert appender.closed == 1
        assert appender.appended == [(3, b"value")]


def test_a_record_is_appended_once_and_waited_for() -> None:
    appender = Appender([], [], [report(3)])
    appended(appender)
    assert appender.waits == [1.0, 1.0, 1.0]


def test_a_record_that_nobody_acknowledges_or_that_is_refused_is_no_success() -> None:
    silent = Appender()
    with pytest.raises(LogUnavailable, match="log/0: no acknowledgement"):
        appended(silent)
    assert len(silent.waits) == shard_restore.APPEND_WAIT_S
    with pytest.raises(LogUnavailable, match="log/0: not enough replicas"):
        appended(Appender([report(-1, "not enough replicas")]))


def test_a_record_that_comes_to_lie_elsewhere_says_that_somebody_else_writes() -> None:
    with pytest.raises(BackupFailed, match="log/0: a record came to lie at offset 4, not at 3: somebody else"):
        appended(Appender([report(4)]))


def test_a_database_that_does_not_open_is_named(tmp_path: Path) -> None:
    for error in (BrokenLog("no such family"), ValueError("an odd name")):

        def make(_: Path, error: Exception = error) -> Any:
            raise error

        with pytest.raises(BackupFailed, match=f"{tmp_path}: {error}"), shard_restore._open(make, tmp_path):
            pass


# The repository.


def test_a_content_that_is_not_there_is_not_right_and_one_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        assert not repository.is_right(CONTENT)

        def refuse(*_: Any, **__: Any) -> Content:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(repository._digests, "of", refuse)
        with pytest.raises(BackupFailed, match=f"{CONTENT.digest}: .*Permission denied"):
            repository.is_right(CONTENT)


@pytest.mark.parametrize("text", ["no json", "[]", '{"version": 1}', "[" * 100_000])
def test_a_repository_whose_record_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True):
        pass
    (tmp_path / "b" / "repository.json").write_text(text)
    with pytest.raises(BackupFailed, match=r"repository\.json: it cannot be used: "):
        opened(tmp_path / "b", cluster=CLUSTER, writes=False).__enter__()


def test_a_log_in_memory_takes_a_restores_records() -> None:
    log = MemoryLog(ManualClock())
    log.append(b"one")
    with pytest.raises(BackupFailed, match="came to lie at offset 1, not at 3"):
        shard_restore._append("log/0", log, 3, b"value")
