"""A ledger: another service than the Object Manager, on nothing but the public pieces of ``replicated_db``.

Accounts with a balance (``add_int64``), their owners, and for each account the latest statement seen (``max_bytes``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import replicated_db
import replicated_db.shell.database as database_package
from replicated_db.core.applying.replica import Identity
from replicated_db.core.errors import (
    AheadOfLog,
    NeedsCheckpoint,
    Refused,
    StopProcess,
    StoreFailure,
    WrongCluster,
)
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.ports import LogBounds, Store
from replicated_db.core.tables.column_families import Families
from replicated_db.core.tables.memory import ManualClock, MemoryLog, MemoryStore, SequenceIds
from replicated_db.core.tables.merge import ADD_INT64, MAX_BYTES, decode_int64, encode_int64
from replicated_db.shell.database.embedded import EmbeddedDatabase
from replicated_db.shell.database.submissions import SubmissionUnknown
from replicated_db.shell.rocks import DOUBT_FILE, RocksStore
from schemas.codecs.codec import decode, encode
from schemas.records.log import Batch, Checkpoint, LeaderClaim, Merge
from tests.support.local.waiting import eventually
from tests.support.replicated.kit import START_MS

FAMILIES = ["owners", "balances", "statements"]
DEADLINE_S = 30.0
Stores = Callable[[str], Callable[[Families], Store]]


class Ledger:
    """The service: what its users call."""

    def __init__(self, database: EmbeddedDatabase) -> None:
        self.database = database

    def open_account(self, account: str, owner: str) -> Future[int]:
        key = account.encode()
        return self.database.submit(
            [self.database.put("owners", key, owner.encode()), self.database.put("balances", key, encode_int64(0))]
        )

    def transfer(self, source: str, target: str, cents: int) -> Future[int]:
        """Both sides or neither."""
        return self.database.submit([self._add(source, -cents), self._add(target, cents)])

    def deposit(self, account: str, cents: int) -> Future[int]:
        return self.database.submit([self._add(account, cents)])

    def close_account(self, account: str) -> Future[int]:
        return self.database.submit([self.database.delete(family, account.encode()) for family in FAMILIES])

    def statement(self, account: str, day: str) -> Future[int]:
        return self.database.submit([self.database.merge("statements", account.encode(), "max_bytes", day.encode())])

    def balance(self, account: str) -> int:
        return decode_int64(self.database.get("balances", account.encode()))

    def accounts(self) -> list[str]:
        return [key.decode() for key, _ in self.database.iterate("owners")]

    def _add(self, account: str, cents: int) -> Merge:
        return self.database.merge("balances", account.encode(), "add_int64", encode_int64(cents))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=START_MS)


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    return MemoryLog(clock)


@pytest.fixture(params=["memory", "rocks"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Makes the store of a replica by name."""
    if request.param == "memory":
        return lambda name: lambda families: MemoryStore(families.names)
    return lambda name: lambda families: RocksStore(tmp_path / name, families.names)


@pytest.fixture
def start(stores: Stores, log: MemoryLog, clock: ManualClock) -> Iterator[Callable[..., Ledger]]:
    """Open replicas of the ledger by name; closed in the end."""
    opened: list[EmbeddedDatabase] = []

    def do(name: str, **changed: Any) -> Ledger:
        settings: dict[str, Any] = {"log": log, "store": stores(name), "replicas": ["a", "b"], "clock": clock}
        identity = Identity(cluster=changed.pop("cluster", "bank"), shard=0, shards=1, node=name)
        database = EmbeddedDatabase.open(
            identity,
            FAMILIES,
            [ADD_INT64, MAX_BYTES],
            **(settings | {"ids": SequenceIds(seed=len(opened) + 1)} | changed),
        )
        opened.append(database)
        return Ledger(database)

    yield do
    for database in opened:
        database.close()


def lead(ledger: Ledger) -> Ledger:
    ledger.database.lead()
    eventually(lambda: ledger.database.leading)
    return ledger


def same_state(*ledgers: Ledger) -> bool:
    replicas = [ledger.database.replica for ledger in ledgers]
    return len({(r.position, r.digests.total()) for r in replicas}) == 1


def rows(ledger: Ledger) -> dict[Any, bytes]:
    names = ledger.database.replica.families.names
    return {(name, key): value for name in names for key, value in ledger.database.iterate(name)}


def done(future: Future[int]) -> int:
    return future.result(DEADLINE_S)


@pytest.fixture
def ledger(start: Callable[..., Ledger]) -> Ledger:
    """Replica a, leading, with two accounts."""
    ledger = lead(start("a"))
    done(ledger.open_account("alice", "Alice"))
    done(ledger.open_account("bob", "Bob"))
    return ledger


def test_what_was_submitted_is_there_when_the_future_says_so(ledger: Ledger):
    assert done(ledger.deposit("alice", 1000)) == 3
    assert ledger.balance("alice") == 1000
    assert done(ledger.transfer("alice", "bob", 250)) == 4
    assert (ledger.balance("alice"), ledger.balance("bob")) == (750, 250)
    assert ledger.accounts() == ["alice", "bob"]


def test_both_operators(ledger: Ledger):
    for day in ("2026-02-01", "2026-03-01", "2026-01-01"):
        done(ledger.statement("alice", day))
    assert ledger.database.get("statements", b"alice") == b"2026-03-01"


def test_many_submissions_at_once_from_many_threads(ledger: Ledger):
    with ThreadPoolExecutor(4) as pool:
        futures = list(pool.map(lambda n: ledger.transfer("alice", "bob", n), range(200)))
    indexes = sorted(done(future) for future in futures)
    assert indexes == list(range(3, 203))
    assert ledger.balance("bob") == sum(range(200)) == -ledger.balance("alice")


def test_deleting(ledger: Ledger):
    done(ledger.close_account("alice"))
    assert ledger.accounts() == ["bob"]
    assert ledger.database.get("balances", b"alice") is None


def test_a_follower_has_the_same_state(ledger: Ledger, start: Callable[..., Ledger]):
    follower = start("b")
    done(ledger.deposit("alice", 5))
    eventually(lambda: same_state(ledger, follower))
    assert rows(follower) == rows(ledger)
    assert follower.balance("alice") == 5
    assert not follower.database.leading


def test_the_other_replica_takes_over(ledger: Ledger, start: Callable[..., Ledger]):
    other = start("b")
    done(ledger.deposit("alice", 5))
    ledger.database.resign()
    eventually(lambda: not ledger.database.leading)
    pending = other.deposit("alice", 7)
    lead(other)
    assert done(pending) == 4, "what was submitted before it led is done now"
    eventually(lambda: same_state(ledger, other))
    assert ledger.balance("alice") == 12
    assert ledger.database.replica.position.leader == "b"


def test_a_leader_that_was_overtaken_claims_again_and_nothing_is_lost(ledger: Ledger, log: MemoryLog):
    """Another claim appears in the log under a leading replica: it is deposed, claims anew, and the submission is done once."""
    replica = ledger.database.replica
    intruder = LeaderClaim(term=replica.position.term + 1, nonce=b"i" * 16, node="x", address="", claimed_at_ms=0)
    log.append(encode(intruder))
    assert done(ledger.deposit("alice", 5)) == 3
    assert ledger.balance("alice") == 5
    assert replica.position.term == intruder.term + 1


ILLEGAL: dict[str, tuple[list[Any], str]] = {
    "family": ([EmbeddedDatabase.put("keyTable", b"k", b"v")], "no column family 'keyTable'"),
    "operator": ([EmbeddedDatabase.merge("balances", b"k", "multiply", b"2")], "no merge operator 'multiply'"),
    "operand": ([EmbeddedDatabase.merge("balances", b"k", "add_int64", b"2")], "8 bytes, not 1"),
    "checkpoint": ([Checkpoint(name="../x")], "illegal checkpoint name"),
    "key": ([EmbeddedDatabase.put("owners", "text", b"")], "a str as a key"),  # type: ignore[arg-type]
    "second": (
        [EmbeddedDatabase.put("owners", b"k", b"v"), EmbeddedDatabase.delete("nowhere", b"k")],
        "no column family 'nowhere'",
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_operations_are_refused_before_the_log(ledger: Ledger, log: MemoryLog, case: str):
    operations, message = ILLEGAL[case]
    before = len(log.entries)
    with pytest.raises(Refused, match=message):
        ledger.database.submit(operations)
    done(ledger.deposit("alice", 1))
    batches = [record for record in map(decode, values(log, before)) if isinstance(record, Batch)]
    assert [len(batch.operations) for batch in batches] == [1]
    assert ledger.database.get("owners", b"k") is None


def values(log: MemoryLog, start: int) -> list[bytes]:
    return [entry.value for entry in log.entries[start:]]


def test_too_large(stores: Stores, start: Callable[..., Ledger]):
    ledger = lead(start("a", limits=LeaderLimits(max_request_bytes=1000)))
    with pytest.raises(Refused, match="at most 1000"):
        done(ledger.open_account("alice", "A" * 2000))
    assert done(ledger.open_account("bob", "Bob")) == 2


def test_a_checkpoint(ledger: Ledger):
    done(ledger.deposit("alice", 1))
    assert done(ledger.database.submit([Checkpoint(name="month-end")])) == 4
    store: Any = ledger.database.replica.store
    if isinstance(store, MemoryStore):
        assert "month-end" in store.checkpoints
    else:
        assert (store.path.with_name("a.checkpoints") / "month-end").is_dir()


def test_a_snapshot_is_of_one_position(ledger: Ledger):
    done(ledger.deposit("alice", 1))
    position, snapshot = ledger.database.snapshot()
    done(ledger.deposit("alice", 1))
    assert decode_int64(snapshot.get("balances", b"alice")) == 1
    assert position.index == 3
    snapshot.close()


def test_a_reader_waits_for_an_index(ledger: Ledger, start: Callable[..., Ledger]):
    follower = start("b")
    index = done(ledger.deposit("alice", 5))
    follower.database.await_index(index, DEADLINE_S)
    assert follower.balance("alice") == 5
    with pytest.raises(TimeoutError, match=f"index {index + 1} is not applied here after 0.01 s"):
        follower.database.await_index(index + 1, 0.01)


def test_the_log_alone_gives_the_state(ledger: Ledger, start: Callable[..., Ledger]):
    for number in range(20):
        done(ledger.transfer("alice", "bob", number))
    late = start("b")
    eventually(lambda: same_state(ledger, late))
    assert rows(late) == rows(ledger)
    replica = late.database.replica
    assert replica.scan(replica.store) == replica.digests


def test_a_submission_that_waited_too_long_has_an_unknown_outcome(start: Callable[..., Ledger], clock: ManualClock):
    ledger = start("a")
    pending = ledger.open_account("alice", "Alice")
    clock.advance(6 * 60 * 1000)
    lead(ledger)
    with pytest.raises(SubmissionUnknown, match="expired"):
        done(pending)
    assert ledger.accounts() == []


def test_closing_abandons_what_is_pending(start: Callable[..., Ledger]):
    ledger = start("a")
    pending = ledger.open_account("alice", "Alice")
    ledger.database.close()
    with pytest.raises(SubmissionUnknown, match="closed"):
        done(pending)
    with pytest.raises(Refused, match="the database is closed"):
        ledger.database._submissions.add([])


def test_a_ledger_of_another_cluster_stops(ledger: Ledger, start: Callable[..., Ledger]):
    other = start("b", cluster="casino")
    eventually(lambda: other.database._failure is not None)
    assert isinstance(other.database._failure, WrongCluster)
    with pytest.raises(StopProcess, match="cluster is 'bank' in the log but 'casino'"):
        other.deposit("alice", 1)
    with pytest.raises(StopProcess):
        other.accounts()
    with pytest.raises(StopProcess):
        other.database.await_index(1 << 40, DEADLINE_S)
    assert done(ledger.deposit("alice", 1)) == 3, "the healthy one goes on"


def test_families_must_be_those_of_the_log(ledger: Ledger, log: MemoryLog, clock: ManualClock):
    database = EmbeddedDatabase.open(
        Identity(cluster="bank", shard=0, shards=1, node="c"), ["owners"], [ADD_INT64],
        store=lambda families: MemoryStore(families.names), log=log, replicas=[], clock=clock,
    )  # fmt: skip
    eventually(lambda: database._failure is not None)
    with pytest.raises(StopProcess, match="column_families"):
        database.get("owners", b"x")
    database.close()


def test_a_log_that_begins_behind_an_empty_replica_is_none_to_follow(
    start: Callable[..., Ledger], ledger: Ledger, log: MemoryLog, tmp_path: Path
):
    log.trim(1)
    with pytest.raises(NeedsCheckpoint, match="this replica is empty, and the log's first record is 1"):
        start("c", store=rocks(tmp_path, "c"))
    RocksStore(tmp_path / "c", ledger.database.replica.families.names).close()


def test_a_database_that_has_lost_rows_is_not_opened(
    start: Callable[..., Ledger], ledger: Ledger, log: MemoryLog, tmp_path: Path
):
    """Be it whole families, or some rows of a database that is in doubt."""
    done(ledger.open_account("alice", "Alice"))
    done(ledger.open_account("bob", "Bob"))
    follower = start("c", store=rocks(tmp_path, "c"))
    follower.database.await_index(2, DEADLINE_S)
    follower.database.close()
    for lost, doubt in ((b"alice", "a MANIFEST was cut"), (b"bob", "")):
        store = RocksStore(tmp_path / "c", follower.database.replica.families.names)
        store.write([("owners", lost, None)])
        store.close()
        if doubt:
            (tmp_path / "c" / DOUBT_FILE).write_text(doubt)
        with pytest.raises(StoreFailure, match="c: the database has lost rows"):
            start("c", store=rocks(tmp_path, "c"))
        (tmp_path / "c" / DOUBT_FILE).unlink(missing_ok=True)


def test_the_old_names_of_the_module_are_there_for_one_more_release():
    with pytest.warns(DeprecationWarning, match=r"embedded\.EmbeddedDatabase"):
        assert database_package.ReplicatedDatabase is EmbeddedDatabase
    with pytest.warns(DeprecationWarning, match=r"submissions\.SubmissionUnknown"):
        assert database_package.SubmissionUnknown is SubmissionUnknown
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = database_package.Nothing


def rocks(tmp_path: Path, name: str) -> Callable[[Families], Store]:
    return lambda families: RocksStore(tmp_path / name, families.names)


def test_a_restart_on_rocksdb(start: Callable[..., Ledger], tmp_path: Path):
    first = lead(start("a", store=rocks(tmp_path, "kept")))
    done(first.open_account("alice", "Alice"))
    done(first.deposit("alice", 5))
    before = rows(first)
    first.database.close()
    again = start("a", store=rocks(tmp_path, "kept"))
    assert rows(again) == before
    lead(again)
    assert done(again.deposit("alice", 7)) == 3
    assert again.balance("alice") == 12


class OldEnd(MemoryLog):
    """A log whose broker is cut off from the others when it is asked first: it serves an old end."""

    asked = 0

    def bounds(self) -> LogBounds:
        self.asked += 1
        return LogBounds(0, 1) if self.asked == 1 else super().bounds()


def test_a_start_waits_for_a_broker_that_knows_what_the_replica_has_read(
    start: Callable[..., Ledger], tmp_path: Path, clock: ManualClock, log: MemoryLog
):
    first = lead(start("a", store=rocks(tmp_path, "kept")))
    done(first.open_account("alice", "Alice"))
    first.database.close()
    behind = OldEnd(clock, entries=log.entries)
    again = start("a", store=rocks(tmp_path, "kept"), log=behind)
    assert behind.asked > 1
    assert again.accounts() == ["alice"]


@pytest.mark.parametrize("kept", [0, 2])
def test_a_log_recreated_under_a_replica(
    start: Callable[..., Ledger], tmp_path: Path, clock: ManualClock, kept: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("replicated_db.shell.startup.END_BEHIND_WAIT_S", -1.0)
    first = lead(start("a", store=rocks(tmp_path, "kept")))
    done(first.open_account("alice", "Alice"))
    old = first.database._log
    assert isinstance(old, MemoryLog)
    first.database.close()
    recreated = MemoryLog(clock, identity="memory-topic-2")
    with pytest.raises(AheadOfLog, match="topic memory-topic-2"):
        start("a", store=rocks(tmp_path, "kept"), log=recreated)
    truncated = MemoryLog(clock, entries=old.entries[:kept])
    with pytest.raises(AheadOfLog, match="ends before"):
        start("a", store=rocks(tmp_path, "kept"), log=truncated)


def test_no_word_of_volumes_or_keys_in_the_code():
    """Names and texts of the code itself; prose may say what it is not about."""
    forbidden = ("volume", "keytable", "buckettable", "createkey", "openkey")
    folder = Path(replicated_db.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        prose = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        words = [
            node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        ]  # fmt: skip
        words += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        words += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        words += [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert [word for word in words if any(bad in word.lower() for bad in forbidden)] == [], path.name
