"""Late validation in the core: deriving, the table cache and its flushes, the leader's half; a service of plain operations."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from replicated_db.core.applying import late_apply
from replicated_db.core.errors import BrokenLog, StoreFailure
from replicated_db.core.execution.retry import RETENTION_MS
from replicated_db.core.execution.service import MAX_REQUEST_BYTES
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Executed, LeaderPhase, Proposal, Refusal, Wait
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY, TRANSACTION_INFO
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.table_cache import TableCache
from schemas.codecs.codec import encode
from schemas.records.log import LateRequest, Mode, RequestBatch
from tests.support.replicated.kit import FAMILIES, HASH, START_MS, Shard, add, assert_sound, propose, prune, put, rows


class TextExecutor:
    """``put KEY VALUE``, ``count KEY AMOUNT``, and ways to fail."""

    def prepare(self, proposal: Proposal, timestamp_ms: int, index: int, feature_level: int) -> bytes:
        return b"%s@%d" % (proposal.body, index)

    def execute(self, prepared: bytes, transaction: Transaction, timestamp_ms: int) -> Executed:
        kind, *words = prepared.split(b"@")[0].split()
        response: Any = b"done %d at %d" % (transaction.index, timestamp_ms)
        if kind == b"put":
            transaction.put("things", words[0], words[1])
        elif kind == b"count":
            transaction.submit(add(words[0], int(words[1])))
        elif kind == b"raise":
            transaction.put("things", b"half", b"done")
            raise RuntimeError("half way")
        elif kind == b"large":
            transaction.put("things", b"large", b"x" * MAX_REQUEST_BYTES)
        elif kind == b"checkpoint":
            transaction.checkpoint("c1")
        elif kind == b"text":
            response = "no bytes"
        return Executed(response=response, keep=kind != b"refuse")

    def refuse(self, prepared: bytes, refusal: Refusal, message: str, index: int) -> bytes:
        return f"{refusal.value}|{message}|{index}".encode()


class LateShard(Shard):
    """Every node can validate late, and the type "Late" is in that mode."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for node in self.nodes.values():
            node.replica.late.executor = TextExecutor()
        set_mode = Mode(**self.leader._records.header(), index=self.leader.index, request_type="Late", mode="late")
        self.append(self.leader._append(set_mode))
        self.deliver()
        self.leader.state = self.replica.state

    def logged(self, *texts: bytes, **more: Any) -> list[Proposal]:
        sent_ms = self.leader.timestamp_ms(self.clock.elapsed_ms())
        proposals = [propose(body=text, request_type="Late", **({"sent_ms": sent_ms} | more)) for text in texts]
        for proposal in proposals:
            assert self.execute(proposal) is None
            assert self.leader.phase is LeaderPhase.LOGGING
        return proposals

    def settle(self) -> list[bytes]:
        self.append(*self.leader.seal())
        return [reply.response for one in self.deliver() for reply in one.replies]

    def restart(self, name: str) -> None:
        self.nodes[name] = self.nodes[name].restart()
        self.nodes[name].replica.late.executor = TextExecutor()


# Answers.


def test_requests_are_answered_once_applied_and_lie_in_the_cache():
    shard = LateShard()
    index = shard.leader.index
    shard.logged(b"put a 1", b"put a 2", b"count n 5", b"refuse")
    assert shard.leader.building == 4
    answers = shard.settle()
    assert [answer.split()[1] for answer in answers] == [b"%d" % (index + n) for n in range(1, 5)]
    replica = shard.replica
    assert replica.late.cache.get("things", b"a") == b"2"
    assert shard.node.store.get("things", b"a") is None
    assert (replica.late.requests, replica.late.invalid) == (4, 1)
    shard.catch_up()
    for node in shard.nodes.values():
        node.replica.flush()
        assert node.store.get("things", b"a") == b"2"
        assert_sound(node.replica)
    assert rows(shard.nodes["n1"].replica) == rows(shard.nodes["n2"].replica)


@pytest.mark.parametrize("claims_anew", [False, True])
def test_answers_that_nobody_has_taken_are_forgotten_when_the_node_claims_anew(claims_anew: bool):
    shard = LateShard()
    shard.logged(b"put a 1")
    shard.append(*shard.leader.seal())
    assert list(shard.reports())  # they are lost
    shard.catch_up()
    late, offset = shard.replica.late, shard.replica.read_offset
    if claims_anew:
        shard.lead(shard.node.name, genesis=False)
        with pytest.raises(KeyError):
            late.take_answers(offset)
    else:
        assert len(late.take_answers(offset)) == 1


@pytest.mark.parametrize("before", [[], [b"put a 1"]], ids=["first", "behind another"])
def test_what_cannot_be_logged_fails_alone(before: list[bytes]):
    """It has no index and no row, and no record is written for it; those before and behind it are."""
    shard = LateShard()
    index = shard.leader.index
    shard.logged(*before)
    bad = propose(
        body="a text where bytes are wanted",
        request_type="Late",
        sent_ms=shard.leader.timestamp_ms(shard.clock.elapsed_ms()),
    )
    for proposal in (bad, replace(bad, request_hash=b"short"), bad):
        reply = shard.execute(proposal)
        assert reply is not None
        assert reply.response.startswith(b"failed|")
        assert reply.response.endswith(b"|-1")
    records = len(shard.log.entries)
    assert len(shard.settle()) == len(before)
    assert len(shard.log.entries) == records + len(before)
    shard.logged(b"put b 2")
    assert shard.settle()[0].startswith(b"done %d" % (index + len(before) + 1))
    assert shard.replica.late.cache.get("things", b"b") == b"2"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (b"raise", b"failed|RuntimeError: half way|"),
        (b"large", b"too large|its operations take"),
        (b"checkpoint", b"failed|it may only begin a batch|"),
        (b"text", b"failed|its response is a str|"),
    ],
)
def test_what_fails_is_an_answer_and_changes_nothing(text: bytes, answer: bytes):
    shard = LateShard()
    shard.logged(text)
    assert shard.settle()[0].startswith(answer)
    shard.replica.flush()
    assert [key for cf, key in rows(shard.replica) if cf == "things"] == []
    assert shard.replica.late.invalid == 1


def test_a_repeated_call_waits_for_the_first_answer_or_gets_it():
    shard = LateShard()
    [first] = shard.logged(b"count n 1")
    shard.execute(first)
    assert shard.leader.building == 1
    once, twice = shard.settle()
    assert once == twice
    reply = shard.execute(first)
    assert reply is not None
    assert reply.response == once
    shard.replica.flush()
    assert shard.execute(first) == reply


def test_a_reused_call_id_is_refused_where_it_is_applied():
    shard = LateShard()
    shard.logged(b"count n 1", call=7, hashed=b"1" * 16)
    shard.logged(b"count n 1", call=7, hashed=b"2" * 16)
    _, second = shard.settle()
    assert second.startswith(b"call id reused|")
    assert shard.replica.late.invalid == 1


def test_an_expired_request_is_refused_by_the_records_time():
    shard = LateShard()
    shard.logged(b"count n 1", sent_ms=START_MS - 10_000_000)
    assert shard.settle()[0].startswith(b"expired|")


def test_a_request_that_was_logged_twice_is_executed_once():
    """A leader that forgets what it has logged: the replicas do not."""
    shard = LateShard()
    [first] = shard.logged(b"count n 1")
    shard.leader._requests._calls.clear()
    shard.execute(first)
    once, twice = shard.settle()
    assert once == twice
    shard.replica.flush()
    assert sum(cf == RETRY for cf, _ in rows(shard.replica)) == 1


# Both modes in one log.


def test_nothing_is_executed_while_logged_requests_are_in_flight():
    shard = LateShard()
    shard.logged(b"put a 1")
    other = propose(put(b"a", b"2"))
    assert shard.leader.take(other, shard.clock.elapsed_ms()) is Wait.SEAL
    shard.append(*shard.leader.seal())
    assert shard.leader.take(other, shard.clock.elapsed_ms()) is Wait.SETTLE
    shard.deliver()
    shard.do(put(b"a", b"2"))
    assert shard.node.store.get("things", b"a") == b"2"
    shard.catch_up()
    assert shard.nodes["n2"].replica.evidence is None


def test_logging_waits_for_the_batch_being_built():
    shard = LateShard()
    shard.execute(propose(put(b"a", b"1")))
    late = propose(body=b"put a 2", request_type="Late")
    assert shard.leader.take(late, shard.clock.elapsed_ms()) is Wait.SEAL
    shard.append(*shard.leader.seal())
    shard.logged(b"put a 2")
    shard.settle()
    assert shard.replica.late.cache.get("things", b"a") == b"2"


def test_ticks_and_barriers_wait_for_what_is_being_built():
    shard = LateShard()
    shard.logged(b"put a 1")
    shard.clock.advance(10_000)
    assert shard.leader.tick() is None
    assert shard.leader.barrier(shard.clock.elapsed_ms()) is None
    shard.settle()
    shard.append(shard.leader.barrier(shard.clock.elapsed_ms()))
    [effective] = shard.deliver()
    assert effective.outcome.digests == shard.replica.digests
    assert not shard.replica.late.unwritten, "a barrier's digests are those of the store"


def test_without_an_executor_the_record_stops_the_replica():
    shard = LateShard()
    shard.logged(b"put a 1")
    shard.settle()
    shard.nodes["n2"].replica.late.executor = None
    with pytest.raises(BrokenLog, match="no late validation"):
        shard.catch_up()


@pytest.mark.parametrize(("numbers", "last"), [([1, 3], 2), ([2, 3], 2), ([1], 2), ([1, 2], 1)])
def test_requests_that_are_not_numbered_one_by_one(numbers: list[int], last: int):
    shard = LateShard()
    first = shard.leader.index + 1
    requests = [
        LateRequest(
            client_id=b"c" * 16, call_id=bytes(8), request_hash=HASH, first_sent_at_ms=START_MS, request_type="Test",
            index=first + number - 1, prepared=b"put a 1@",
        )
        for number in numbers
    ]  # fmt: skip
    record = RequestBatch(
        **shard.leader._records.header(), first_index=first, last_index=first + last - 1, timestamp_ms=START_MS + 10_000,
        request_position=None, requests=requests,
    )  # fmt: skip
    shard.log.append(encode(record))
    with pytest.raises(BrokenLog, match="RequestBatch"):
        shard.nodes["n2"].catch_up()


# Retry rows grow old.


def test_old_retry_rows_go_on_all_replicas_alike():
    shard = LateShard()
    for n in range(6):
        shard.logged(b"count n %d" % n)
        shard.settle()
    shard.nodes["n2"].catch_up()
    shard.nodes["n2"].replica.flush()
    shard.clock.advance(RETENTION_MS + 1)
    for n in range(4):
        shard.logged(b"put k %d" % n)
        shard.settle()
        prune(shard.nodes["n1"].replica)
    shard.catch_up()
    for node in shard.nodes.values():
        node.replica.flush()
        assert_sound(node.replica)
    found = rows(shard.replica)
    assert found == rows(shard.nodes["n2"].replica)
    assert sum(cf == RETRY for cf, _ in found) == 4
    assert len(list(shard.node.store.iterate(RETRY_EXPIRY, b""))) == 4


# The double buffer.


def stored_position(store: MemoryStore) -> Position:
    value = store.get(TRANSACTION_INFO, POSITION_KEY)
    assert value is not None
    return Position.decode(value)


def test_a_group_is_written_while_another_fills():
    shard = LateShard()
    replica, store = shard.replica, shard.node.store
    shard.logged(b"put a 1", b"put b 1")
    shard.settle()
    at = replica.position
    with ExitStack() as writing:
        group = replica.late.begin_flush(replica._local_rows(), writing)
        shard.logged(b"put a 2")
        shard.settle()
        replica.late.write(group)
    assert (store.get("things", b"a"), replica.late.cache.get("things", b"a")) == (b"1", b"2")
    assert stored_position(store) == at
    replica.late.end_flush(group)
    assert replica.late.cache.get("things", b"b") == b"1"
    assert replica.late.unwritten
    replica.flush()
    assert store.get("things", b"a") == b"2"
    assert len(replica.late.cache) == 0
    assert not replica.late.unwritten
    assert_sound(replica)


def test_killed_with_an_unflushed_buffer_it_gives_the_same_answers_and_rows():
    shard = LateShard()
    shard.logged(b"put a 1", b"count n 5", b"refuse")
    answers = shard.settle()
    shard.logged(b"count n 2")
    answers += shard.settle()
    before = shard.replica.digests.copy()
    shard.restart("n1")
    again = shard.nodes["n1"]
    again.open()
    assert again.replica.position.index == 0, "nothing of it was written"
    again.replica.late.answer_for(shard.leader.nonce)
    again.catch_up()
    assert again.replica.digests == before
    kept = [again.replica.late.take_answers(entry) for entry in sorted(again.replica.late._answers)]
    assert [answer for record in kept for answer in record] == answers
    with pytest.raises(KeyError):
        again.replica.late.take_answers(0)


def test_a_cache_over_its_bound_is_flushed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_apply, "MAX_CACHED_ROWS", 10)
    shard = LateShard()
    for n in range(12):
        shard.logged(b"put k%d v" % n)
        shard.settle()
        assert len(shard.replica.late.cache) <= 10
    assert stored_position(shard.node.store).index > 0


def test_a_cache_of_large_rows_is_flushed_though_they_are_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_apply, "MAX_CACHED_BYTES", 100_000)
    shard = LateShard()
    for n in range(12):
        shard.logged(b"put k%d " % n + b"v" * 20_000)
        shard.settle()
        assert shard.replica.late.cache.size_bytes <= 100_000
    assert 0 < stored_position(shard.node.store).index < 12
    shard.replica.flush()
    assert shard.replica.late.cache.size_bytes == 0


def test_after_a_failed_flush_nothing_is_written_any_more():
    shard = LateShard()
    shard.logged(b"put a 1")
    shard.settle()
    store, written = shard.node.store, shard.node.store.write

    def fail(writes: Any) -> None:
        raise StoreFailure("no space")

    store.write = fail  # type: ignore[method-assign]
    with pytest.raises(StoreFailure, match="no space"):
        shard.replica.flush_behind()
    store.write = written  # type: ignore[method-assign]
    with pytest.raises(StoreFailure, match="earlier flush"):
        shard.replica.flush()
    assert store.get("things", b"a") is None


def test_a_snapshot_holds_what_is_applied():
    shard = LateShard()
    shard.logged(b"put a 1")
    shard.settle()
    position, digests, snapshot = shard.replica.snapshot()
    assert snapshot.get("things", b"a") == b"1"
    assert position == shard.replica.position
    assert shard.replica.scan(snapshot) == digests


def test_a_flusher_and_an_applier_on_two_threads():
    """The order of locks: groups reach the store in order, whoever writes them."""
    shard = LateShard()
    replica = shard.nodes["n2"].replica
    replica.lock, replica.late._writing = threading.RLock(), threading.Lock()
    filled = threading.Event()
    replica.late.on_filled = filled.set
    stop = threading.Event()

    def flusher() -> None:
        while not stop.is_set():
            filled.wait(1)
            filled.clear()
            replica.flush_behind()

    for n in range(150):
        shard.logged(b"put k%d %d" % (n % 7, n), b"count n 1")
        shard.settle()
        if n % 10 == 9:
            shard.append(shard.leader.tick())
            shard.deliver()
    thread = threading.Thread(target=flusher)
    thread.start()
    for entry in shard.node.log.entries[replica.read_offset + 1 :]:
        replica.offer(entry.offset, entry.value)
    stop.set()
    filled.set()
    thread.join()
    replica.flush()
    shard.replica.flush()
    assert_sound(replica)
    assert rows(replica) == rows(shard.replica)


def test_the_cache_alone():
    store = MemoryStore(FAMILIES.names)
    store.write([("things", b"a", b"0"), ("things", b"c", b"0"), ("things", b"d", b"0")])
    cache = TableCache(store)
    cache.put({("things", b"b"): b"1", ("things", b"c"): None})
    first = cache.swap()
    cache.put({("things", b"b"): b"2"})
    assert [*cache.iterate("things", b"")] == [(b"a", b"0"), (b"b", b"2"), (b"d", b"0")]
    assert [*cache.iterate("things", b"b", b"d")] == [(b"b", b"2")]
    assert (cache.get("things", b"c"), cache.get("things", b"d"), cache.get("counters", b"x")) == (None, b"0", None)
    assert cache.writing
    store.write(first.writes)
    cache.drop(first.number)
    cache.drop(first.number)
    assert not cache.writing
    assert len(cache) == 1
    assert [*cache.iterate("things", b"")] == [(b"a", b"0"), (b"b", b"2"), (b"d", b"0")]


def test_the_modes_of_request_types_are_known_after_a_restart():
    shard = LateShard()
    shard.catch_up()
    for node in shard.nodes.values():
        assert node.replica.state.late == {"Late"}
        assert node.restart().replica.state == node.replica.state


def test_a_cache_says_once_that_it_is_filled_and_again_after_it_was_written():
    """The thread that writes caches sleeps until then."""
    shard = LateShard()
    filled: list[int] = []
    late = shard.replica.late
    late.on_filled = lambda: filled.append(late.requests)
    assert not late.unwritten
    for text in (b"put a 1", b"put b 2"):
        shard.logged(text)
        shard.settle()
    assert len(filled) == 1
    assert late.unwritten
    shard.replica.flush()
    assert not late.unwritten
    shard.logged(b"put c 3")
    shard.settle()
    assert len(filled) == 2
