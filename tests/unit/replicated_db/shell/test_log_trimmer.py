"""Trimming's shell: what it reads of a log and of the verdicts on a broker in this process, and whom it asks over HTTP.

The broker here deletes no records, so that alone is refused; the stack's tests trim a real log.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from xxhash import xxh3_128_digest

from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.bases import Base
from replicated_db.core.trimming.places import AuditPlace, MemberPlace
from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.trimming import kafka_records, log_trimmer, verdict_tail
from replicated_db.shell.trimming.kafka_records import KafkaRecords
from replicated_db.shell.trimming.log_trimmer import LogTrimmer, no_holds
from replicated_db.shell.trimming.verdict_tail import VerdictTail
from schemas.codecs.codec import encode
from schemas.records.log import DigestBase, Tick
from schemas.records.messages import Verdict
from schemas.topics import OM_VERDICTS
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from transport.topics import topic_tail

CHAIN = bytes(range(32))
HEADER: dict[str, Any] = {"term": 1, "nonce": bytes(16), "seq": 1, "prev_chain": bytes(32)}
TICK = encode(Tick(**HEADER))
BASE = encode(DigestBase(**HEADER, index=5, slots=[], sums=[], basis="test"))
OWN = MemberPlace(
    node="n1", cluster="c", shard=0, offset=3, keeps_from=3, index=6, flagged=False, members=("n1",),
    bases=(Base(2, 5, CHAIN),), digests=((6, "ab"),),
)  # fmt: skip
VERDICT = Verdict(
    cluster="c", shard=0, node="n1", barrier_offset=3, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000,
)  # fmt: skip
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: MemoryBroker) -> str:
    """A log of its own for each test: a tick, another one, a base, a tick."""
    name = f"log-{next(_numbers)}"
    broker.create(name)
    broker.append(name, TICK, TICK, BASE, TICK)
    return name


# What it reads of a log.


@pytest.fixture
def records(broker: MemoryBroker, topic: str) -> Iterator[KafkaRecords]:
    found = KafkaRecords(broker.bootstrap_servers, topic, 0, "id")
    yield found
    found.close()


def test_when_records_were_logged(records: KafkaRecords, broker: MemoryBroker, topic: str):
    written = broker.read(topic, 4)
    assert records.bounds() == (0, 4)
    assert records.first_logged_at_ms() == written[0].timestamp()[1]
    assert records.base_logged_at_ms(2) == written[2].timestamp()[1]
    assert records.base_logged_at_ms(1) is None, "no base"


def test_what_cannot_be_read_is_no_base(
    records: KafkaRecords, broker: MemoryBroker, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kafka_records, "READ_WAIT_S", 0.3)
    broker.append(topic, b"no record at all")
    assert records.base_logged_at_ms(4) is None
    assert records.base_logged_at_ms(9) is None, "behind the end"


def test_an_empty_log_has_no_first_record(broker: MemoryBroker, topic: str):
    empty = KafkaRecords(broker.bootstrap_servers, topic, 3, "id")
    assert empty.bounds() == (0, 0)
    assert empty.first_logged_at_ms() is None
    empty.close()


def test_a_broker_that_deletes_nothing_is_no_success(records: KafkaRecords, topic: str):
    with pytest.raises(LogUnavailable, match=f"{topic}/0: "):
        records.delete_before(2)


# The verdicts.


@pytest.fixture
def verdicts() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        broker.create(OM_VERDICTS)
        yield broker


def test_verdicts_are_read_on(verdicts: MemoryBroker):
    tail = VerdictTail(verdicts.bootstrap_servers, VERDICT.log)
    assert tail.place(0) is None
    verdicts.append(OM_VERDICTS, encode(VERDICT), b"anything", partition=1)
    assert tail.place(0) == AuditPlace(offset=3, decided_at_ms=1000)
    reader = tail._tail
    later = replace(VERDICT, barrier_offset=9, decided_at_ms=2000)
    verdicts.append(OM_VERDICTS, encode(later), encode(replace(later, verdict="diverged", node="n2")), partition=1)
    assert tail.place(0) == AuditPlace(offset=9, decided_at_ms=2000, diverged=("n2",))
    assert tail.place(7) is None
    assert tail._tail is reader, "it goes on where it was"
    tail.close()
    assert tail.place(0) == AuditPlace(offset=9, decided_at_ms=2000, diverged=("n2",)), "it begins anew"
    tail.close()


def test_only_the_newest_verdicts_are_read_at_first(verdicts: MemoryBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_tail, "TAIL_RECORDS", 2)
    monkeypatch.setattr(topic_tail, "READ_LIMIT", 1)
    many = [encode(replace(VERDICT, shard=shard)) for shard in range(4)]
    verdicts.append(OM_VERDICTS, *many, partition=2)
    tail = VerdictTail(verdicts.bootstrap_servers, VERDICT.log)
    assert [tail.place(shard) is not None for shard in range(4)] == [False, False, True, True]
    tail.close()


def test_verdicts_that_cannot_be_read_are_told_and_asked_for_again(
    verdicts: MemoryBroker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verdict_tail, "READ_WAIT_S", 0.2)
    silent = VerdictTail("127.0.0.1:1", VERDICT.log)
    found = silent.place(0)
    assert isinstance(found, str)
    assert found
    silent.close()
    verdicts.append(OM_VERDICTS, encode(VERDICT))
    tail = VerdictTail(verdicts.bootstrap_servers, VERDICT.log)
    monkeypatch.setattr(topic_tail, "READ_LIMIT", 0)
    monkeypatch.setattr(verdict_tail, "READ_WAIT_S", 3.0)
    assert tail.place(0) == "it is not served to its end in time"
    monkeypatch.undo()
    assert tail.place(0) == AuditPlace(offset=3, decided_at_ms=1000)
    tail.close()


def test_after_a_flood_the_newest_verdicts_are_read_anew(verdicts: MemoryBroker, monkeypatch: pytest.MonkeyPatch):
    """Nothing is allowed by what is left of them; the next question begins with what the topic has then."""
    monkeypatch.setattr(verdict_tail, "MAX_JUDGED", 3)
    monkeypatch.setattr(verdict_tail, "TAIL_RECORDS", 3)
    tail = VerdictTail(verdicts.bootstrap_servers, VERDICT.log)
    assert tail.place(0) is None
    verdicts.append(OM_VERDICTS, *(encode(replace(VERDICT, node=f"x{number}")) for number in range(9)), partition=1)
    assert tail.place(0) == "they name more than 3 replicas of om.log"
    diverged = replace(VERDICT, verdict="diverged", decided_at_ms=2000)
    verdicts.append(OM_VERDICTS, *[encode(diverged)] * 3, partition=1)
    assert tail.place(0) == AuditPlace(offset=-1, decided_at_ms=2000, diverged=("n1",))
    tail.close()


# Whom it asks, and what it says then.


class Member:
    """Another member: answers with the place that the test gives it."""

    def __init__(self) -> None:
        self.place: MemberPlace | None = None
        self.asked = 0
        member = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                member.asked += 1
                body = json.dumps(None if member.place is None else member.place.to_json()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def addresses(self) -> dict[str, str]:
        return {"n2": f"127.0.0.1:{self.http.server_port}"}


@pytest.fixture
def member() -> Iterator[Member]:
    found = Member()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def now_ms(broker: MemoryBroker, topic: str) -> int:
    """The log's time: 10 s after its first record."""
    return broker.read(topic, 1)[0].timestamp()[1] + 10_000


@pytest.fixture
def trimmer(broker: MemoryBroker, topic: str) -> Iterator[LogTrimmer]:
    broker.create(OM_VERDICTS)
    found = LogTrimmer(broker.bootstrap_servers, topic, "om.log", cluster="c", topic_id="id", secret=SECRET)
    yield found
    found.close()
    assert found._records == {}


WITHOUT_AUDIT = TrimWish(without_audit=True)


def test_how_far_a_log_may_be_trimmed(trimmer: LogTrimmer, broker: MemoryBroker, now_ms: int):
    found = trimmer.look(0, OWN, {}, WITHOUT_AUDIT, now_ms)
    assert (found.first, found.end, found.offset, found.records) == (0, 4, 2, 2)
    kept = trimmer.look(0, OWN, {}, replace(WITHOUT_AUDIT, keep_ms=20_000), now_ms)
    assert kept.offset == 0, "its base is 10 s old"
    assert trimmer.look(0, OWN, {}, replace(WITHOUT_AUDIT, keep_ms=5_000), now_ms).offset == 2
    assert trimmer.look(0, OWN, {}, TrimWish(), now_ms).offset == 2, "nobody audits here"
    judged = replace(VERDICT, barrier_offset=0, decided_at_ms=now_ms)
    broker.append(OM_VERDICTS, encode(judged))
    assert trimmer.look(0, OWN, {}, TrimWish(), now_ms).offset == 0, "the audit has not come so far"
    assert trimmer.look(0, OWN, {}, WITHOUT_AUDIT, now_ms).offset == 2
    nothing = trimmer.trim(0, replace(OWN, bases=()), {}, WITHOUT_AUDIT, now_ms)
    assert nothing.records == 0


def test_a_log_that_has_grown_again_behind_a_lost_end_is_kept(
    trimmer: LogTrimmer, broker: MemoryBroker, topic: str, now_ms: int
):
    last = broker.read(topic, 4)[3].value()
    assert last is not None
    whole = replace(OWN, record_hash=xxh3_128_digest(last).hex())
    assert trimmer.look(0, whole, {}, WITHOUT_AUDIT, now_ms).offset == 2
    other = trimmer.look(0, replace(OWN, record_hash="00" * 16), {}, WITHOUT_AUDIT, now_ms)
    assert other.offset == 0
    assert "has lost its end" in other.held_by.why


def test_a_record_at_which_several_members_stand_is_read_once(
    trimmer: LogTrimmer, now_ms: int, monkeypatch: pytest.MonkeyPatch
):
    records, asked = trimmer._of(0), list[int]()

    def hash_at(offset: int) -> str | None:
        asked.append(offset)
        return KafkaRecords.hash_at(records, offset)

    monkeypatch.setattr(records, "hash_at", hash_at)
    own = replace(OWN, members=("n1", "n2", "n3", "n4"), record_hash="00" * 16)
    places = {"n2": replace(own, node="n2"), "n3": replace(own, node="n3", offset=2), "n4": replace(own, node="n4")}
    monkeypatch.setattr(trimmer._calls, "ask", lambda _, name, __: places[name])
    assert trimmer.look(0, own, {}, WITHOUT_AUDIT, now_ms).offset == 0
    assert sorted(asked) == [2, 3]


def test_trimming_deletes_what_lies_before_the_base(trimmer: LogTrimmer, now_ms: int, monkeypatch: pytest.MonkeyPatch):
    deleted: list[int] = []
    monkeypatch.setattr(trimmer._of(0), "delete_before", deleted.append)
    assert trimmer.trim(0, replace(OWN, bases=()), {}, WITHOUT_AUDIT, now_ms).records == 0
    assert deleted == []
    assert trimmer.trim(0, OWN, {}, WITHOUT_AUDIT, now_ms).records == 2
    assert deleted == [2]


def test_how_old_a_log_and_its_bases_are(trimmer: LogTrimmer, now_ms: int, monkeypatch: pytest.MonkeyPatch):
    assert trimmer.age_ms(0, now_ms) == 10_000
    assert trimmer.age_ms(3, now_ms) == 0, "there is no record"
    (age_ms,) = trimmer.base_ages_ms(0, (Base(0, 1, CHAIN), Base(1, 2, CHAIN), Base(2, 5, CHAIN)), now_ms)
    assert 9_000 < age_ms <= 10_000, "of the three only one is a base behind the log's beginning"
    monkeypatch.setattr(trimmer._of(0), "base_logged_at_ms", lambda _: pytest.fail("it is known already"))
    assert trimmer.base_ages_ms(0, OWN.bases, now_ms) == [age_ms]
    now_ms -= 3_600_000
    assert trimmer.base_ages_ms(0, OWN.bases, now_ms) == [0], "a time before it was logged"
    assert trimmer.age_ms(0, now_ms) == 0


def test_members_are_asked_once_and_those_whom_they_name_too(trimmer: LogTrimmer, now_ms: int, member: Member):
    own = replace(OWN, offset=2, keeps_from=2, members=("n1", "n2"))
    member.place = replace(own, node="n2", offset=3, members=("n1", "n2", "n3"))
    found = trimmer.look(0, own, member.addresses, WITHOUT_AUDIT, now_ms)
    assert member.asked == 1
    assert found.offset == 0
    assert "n3 is a member and its position is not known: its address is not known here" in found.held_by.why


def test_a_base_needs_a_majority_that_has_the_leaders_digest(trimmer: LogTrimmer, member: Member):
    alone = "no majority of {} has the leader's digest at one index"
    assert trimmer.agreed(0, OWN, {}) is None
    assert trimmer.agreed(0, replace(OWN, flagged=True), {}) == alone.format("n1")
    assert trimmer.agreed(0, replace(OWN, digests=()), {}) == alone.format("n1")
    two = replace(OWN, members=("n1", "n2"))
    member.place = replace(two, node="n2")
    assert trimmer.agreed(0, two, member.addresses) is None
    unknown = trimmer.agreed(0, two, {})
    assert unknown == alone.format("n1, n2") + " (n2: its address is not known here)"
    three = replace(OWN, members=("n1", "n2", "n3"))
    member.place = replace(three, node="n2")
    assert trimmer.agreed(0, three, member.addresses) is None, "two of three"
    member.place = replace(two, node="n2", digests=((6, "cd"),))
    assert str(trimmer.agreed(0, two, member.addresses)).startswith(alone.format("n1, n2"))


def test_no_base_is_logged_while_a_member_has_another_digest(
    trimmer: LogTrimmer, member: Member, monkeypatch: pytest.MonkeyPatch
):
    """A base would flag it; a flagged one is known to differ, and one that was elsewhere is not known to."""
    three = replace(OWN, members=("n1", "n2", "n3"))
    answers = {"n2": replace(three, node="n2"), "n3": replace(three, node="n3", digests=((6, "cd"),))}
    monkeypatch.setattr(trimmer._calls, "ask", lambda _, name, __: answers[name])
    told = "n3 has another digest at index 6 than n1, n2: repair it first"
    assert trimmer.agreed(0, three, {}) == told
    for healed in (replace(answers["n3"], flagged=True), replace(answers["n3"], digests=((5, "cd"),))):
        answers["n3"] = healed
        assert trimmer.agreed(0, three, {}) is None


def test_a_process_that_sends_no_checkpoints_holds_nothing():
    assert no_holds(3) == ()


def test_only_so_many_partitions_have_connections_and_the_oldest_goes_first(
    trimmer: LogTrimmer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log_trimmer, "MAX_OPEN_PARTITIONS", 2)
    first, second = trimmer._of(0), trimmer._of(1)
    assert trimmer._of(0) is first
    trimmer._of(2)
    assert set(trimmer._records) == {1, 2}
    with pytest.raises(RuntimeError):
        first.bounds()  # it is closed
    assert trimmer._of(1) is second
    assert second.bounds() == (0, 0)
