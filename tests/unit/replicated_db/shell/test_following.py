"""What a follower does with the log and with the members' reports, and where its group begins."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from faust.types import TP

from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import Offered
from replicated_db.core.errors import StopProcess
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import follower as follower_module
from replicated_db.shell.follower import make_app, place_group, remove_former_groups, rest_while_leading
from schemas.codecs.codec import encode
from schemas.records.log import Tick
from schemas.records.messages import AuditReport, Evidence
from stratolog.local.ports import free_ports
from stratolog.local.processes import wait_until
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.replicated.following import Following
from tests.support.replicated.kit import CHAIN, NODES, Node, Shard, put

DEADLINE_S = 60.0
EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=None, own=1
)  # fmt: skip
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        yield broker


@pytest.fixture
def following() -> Following:
    return Following()


# -- the log ----------------------------------------------------------------------------------------------------------


def test_each_record_is_applied_and_published(following: Following):
    following.shard.do(put(b"a", b"1"))
    end = len(following.shard.log.entries)
    for offset in range(following.replica.read_offset + 1, end):
        following.take(offset)
    assert following.replica.position == following.shard.replica.position
    assert [outcome.reading for _, outcome in following.published] == [Reading.COUNTS] * len(following.published)
    assert [replica for replica, _ in following.published] == [following.replica] * len(following.published)
    assert following.published[-1][1].position.offset == end - 1
    assert (following.notes, following.errors) == ([], [])
    following.take(end - 1)
    assert following.replica.read_offset == end - 1, "a record that comes twice changes nothing"
    assert (following.notes, following.errors) == ([], [])


def test_a_record_that_does_not_count_is_noted_and_not_published(following: Following):
    following.shard.catch_up()
    void = following.shard.log.append(encode(Tick(term=1, nonce=b"?" * 16, seq=1, prev_chain=CHAIN)))
    following.take(void)
    assert following.replica.read_offset == void
    assert following.notes == [(f"shard 0, offset {void}: {Reading.TWIN.value}", {"shard": 0, "offset": void})]
    assert (following.published, following.errors) == ([], [])


def test_a_claim_is_neither_noted_nor_published():
    following = Following(shard=Shard(genesis=False))
    following.replica.read_offset = -1
    claim = following.shard.log.entries[0]
    following.take(0)
    assert following.replica.position.offset == claim.offset
    assert (following.notes, following.published, following.errors) == ([], [], [])


def test_a_gap_before_a_record_is_filled_from_the_log(following: Following):
    for number in range(3):
        following.shard.do(put(b"a", b"%d" % number))
    end = len(following.shard.log.entries)
    first = following.replica.read_offset + 1
    assert not following.database.has_gap(first)
    assert following.database.has_gap(first + 1)
    following.take(end - 1)
    assert following.errors == []
    assert following.replica.position == following.shard.replica.position
    assert following.published[-1][1].position.offset == end - 1


def test_records_of_this_nodes_leader_are_left_to_it(following: Following):
    following.shard.catch_up()
    following.shard.do(put(b"a", b"1"))
    last = len(following.shard.log.entries) - 1
    before = following.replica.read_offset
    following.loop.leading, following.loop._nonce = True, following.shard.leader.nonce
    following.take(last)
    assert following.replica.read_offset == before
    following.loop._nonce = b"another's claim."
    following.take(last)
    assert following.replica.read_offset == last


def test_a_record_that_cannot_be_applied_ends_the_process(following: Following):
    following.shard.catch_up()
    asyncio.run(following.follower.take(0, following.replica.read_offset + 1, b"\xc3\x01 of nobody's schema"))
    [error] = following.errors
    assert isinstance(error, StopProcess)


def test_a_gap_that_cannot_be_filled_ends_the_process(following: Following):
    following.shard.log.trim(len(following.shard.log.entries))
    following.shard.do(put(b"a", b"1"))
    asyncio.run(following.follower.take(0, len(following.shard.log.entries) - 1, b""))
    assert isinstance(following.errors[0], StopProcess)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_a_false_claim_is_published_and_an_error_in_the_log(following: Following, caplog: pytest.LogCaptureFixture):
    outcome = Offered(reading=Reading.COUNTS, position=following.replica.position, evidence=EVIDENCE)
    following.database._publish(7, outcome)
    assert following.published == [(following.replica, outcome)]
    assert errors_in(caplog) == [f"shard 0: false claim found: {EVIDENCE}"]


# -- reports ----------------------------------------------------------------------------------------------------------


def test_a_leader_that_a_majority_contradicts_flags_itself(caplog: pytest.LogCaptureFixture):
    following = Following("n1")
    following.hear("n2", EVIDENCE)
    assert following.replica.evidence is None, "one is no majority of three"
    following.hear("n3", EVIDENCE)
    assert following.replica.evidence == EVIDENCE
    assert errors_in(caplog) == [f"shard 0: a majority contradicts this node's batch: {EVIDENCE}"]


def test_a_flag_that_a_majority_shares_is_taken_away(following: Following):
    following.shard.catch_up()
    following.replica.flag(EVIDENCE)
    following.hear("n1", None)
    assert following.replica.evidence == EVIDENCE
    assert following.notes == []
    following.hear("n3", EVIDENCE)
    assert following.replica.evidence is None
    [(text, at)] = following.notes
    assert text == "shard 0: a majority has the same row: the leader was wrong; flag taken away"
    assert at == {"shard": 0}


@pytest.mark.parametrize("first", ["the barrier", "the report"])
@pytest.mark.parametrize("wrong", [False, True])
def test_who_replays_a_batch_that_its_peers_settled_is_settled_at_the_next_barrier(first: str, wrong: bool):
    """After ``admin rebuild`` a replica stayed flagged: it met the false batch, and nobody spoke of it any more."""
    shard = Shard()
    shard.do(put(b"a", b"1"))
    shard.replica.store.write([("things", b"a", b"damaged")])
    shard.lead("n1", genesis=False)  # the next claim of a leader whose row is wrong: it has read none yet
    shard.do(put(b"a", b"2"))
    following, peer = Following("n2", shard), Node(shard.log, "n3")
    shard.clock.advance(10 * shard.limits.barrier_interval_ms)
    shard.append(shard.leader.barrier(shard.clock.elapsed_ms()))
    shard.deliver()
    *before, barrier = range(following.replica.read_offset + 1, len(shard.log.entries))
    for offset in before:
        if wrong and following.replica.store.get("things", b"a") == b"1":
            following.replica.store.write([("things", b"a", b"wrong here too")])
        following.take(offset)
    assert following.replica.evidence is not None
    peer.catch_up()
    report = audit_report(
        peer.replica.identity, "incremental", barrier, peer.replica.position, peer.replica.digests, None, 0
    )
    turns = [
        lambda: following.take(barrier),
        lambda: following.follower.on_report(b"0/n3", {"kind": b"incremental", "flagged": b"0"}, encode(report)),
    ]
    for turn in turns if first == "the barrier" else turns[::-1]:
        assert following.replica.evidence is not None
        turn()
    assert (following.replica.evidence is not None) is wrong, "one whose row was wrong has other sums ever after"
    assert any("n3 and this replica hold the same behind the batch" in text for text, _ in following.notes) is not wrong


def test_what_a_replicas_own_scan_has_found_is_nobody_elses_to_settle():
    following, leading = Following("n2"), Following("n1")
    found = following.replica.flag_scanned("things")
    assert found is not None
    for member in ("n1", "n3"):
        following.hear(member, found)
    assert following.replica.evidence == found
    blamed = replace(found, leader="n1")
    for member in ("n2", "n3"):
        leading.hear(member, blamed)
    assert leading.replica.evidence is None


def test_a_member_that_is_healthy_again_takes_its_evidence_back():
    following = Following("n1")
    following.hear("n2", EVIDENCE)
    following.hear("n2", None, flagged=b"0")
    following.hear("n3", EVIDENCE)
    assert following.replica.evidence is None
    following.hear("n2", EVIDENCE, flagged=b"1")
    assert following.replica.evidence == EVIDENCE


def test_a_healthy_report_of_a_shard_that_nobody_spoke_of_is_nothing(following: Following):
    following.hear("n2", None, flagged=b"0")
    assert (following.notes, following.follower.unreadable_reports) == ([], 0)


def test_reports_of_blocks_say_nothing_about_rows():
    following = Following("n1")
    following.hear("n2", EVIDENCE)
    following.hear("n3", EVIDENCE, kind=b"blocks")
    assert following.replica.evidence is None
    following.hear("n3", EVIDENCE, kind=b"rows")
    assert following.replica.evidence == EVIDENCE


def test_a_strangers_report_has_no_weight():
    following = Following("n1")
    for stranger in ("n8", "n9"):
        following.hear(stranger, EVIDENCE)
    assert following.replica.evidence is None


@pytest.mark.parametrize("genesis", [True, False])
def test_the_members_are_the_logs_or_those_of_the_feed_until_it_names_some(genesis: bool):
    following = Following("n1", Shard(genesis=genesis), members=("n1", "m2"))
    following.shard.catch_up()
    assert tuple(following.replica.state.replicas) == (tuple(NODES) if genesis else ())
    for node in ("n2", "n3", "m2"):
        following.hear(node, EVIDENCE)
    assert following.database._quorum.members == (frozenset(NODES) if genesis else {"n1", "m2"})
    assert (following.replica.evidence is not None) is genesis


# -- the app ----------------------------------------------------------------------------------------------------------


def app_of(folder: Path, name: str = "app", servers: str = "127.0.0.1:1", **more: Any) -> Any:
    [port] = free_ports(1)
    return make_app(name, bootstrap_servers=servers, host="127.0.0.1", port=port, data_dir=folder, **more)


def test_a_log_is_wanted_after_what_its_replica_has_read(following: Following, tmp_path: Path):
    app = app_of(tmp_path, fatal=following.errors.append)
    following.follower.attach(app)
    following.replica.read_offset = 41
    assert [app.transport.next_offset(tp) for tp in (TP("log", 0), TP("log", 1), TP("audit", 0))] == [42, None, None]


def test_the_follower_rests_while_its_leader_appends(following: Following, tmp_path: Path):
    app = app_of(tmp_path, fatal=following.errors.append)
    rest_while_leading(app, "log", following.loop)
    following.loop.on_rest(True)
    assert [app.transport.rests(tp) for tp in (TP("log", 0), TP("log", 1), TP("audit", 0))] == [True, False, False]
    following.loop.on_rest(False)
    assert not app.transport.rests(TP("log", 0))


def committed(broker: MemoryBroker, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0})
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [place.offset for place in consumer.committed(places, timeout=DEADLINE_S)]
    finally:
        consumer.close()


def test_a_group_begins_after_what_its_replicas_have_read(broker: MemoryBroker, following: Following):
    number = next(_numbers)
    log, audit, group = f"log-{number}", f"audit-{number}", f"group-{number}"
    broker.append(log, b"a", b"b")
    broker.append(audit, b"a", b"b", b"c", partition=2)
    broker.create(audit)
    following.replica.read_offset = 6
    place_group(
        broker.bootstrap_servers, group, log_topic=log, audit_topic=audit, replicas={1: following.replica},
        partitions=PARTITIONS,
    )  # fmt: skip
    assert committed(broker, group, log) == [0, 7, 0, 0]
    assert committed(broker, group, audit) == [0, 0, 3, 0]


def test_a_group_is_not_placed_on_partitions_that_no_broker_knows(broker: MemoryBroker):
    broker.create("known")
    with pytest.raises(LogUnavailable, match="group lost: "):
        place_group(
            broker.bootstrap_servers, "lost", log_topic="known", audit_topic="known", replicas={},
            partitions=PARTITIONS + 1,
        )  # fmt: skip


def test_a_group_is_not_placed_without_brokers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follower_module, "ADMIN_TIMEOUT_S", 0.1)
    with pytest.raises(LogUnavailable, match="group alone: "):
        place_group("127.0.0.1:1", "alone", log_topic="log", audit_topic="audit", replicas={}, partitions=1)


def test_groups_that_cannot_be_removed_stop_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follower_module, "ADMIN_TIMEOUT_S", 0.1)
    notes: list[str] = []
    remove_former_groups("127.0.0.1:1", "om-follower-om1-0123abcd", notes.append)
    [note] = notes
    assert note.startswith("the groups of former starts are not removed: ")


class Running:
    """The app of a follower, on a thread of its own."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.app.start())
        self._loop.run_forever()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.app.stop(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)


def test_a_follower_applies_its_log_and_hears_reports(broker: MemoryBroker, tmp_path: Path):
    number = next(_numbers)
    log, audit, group = f"log-{number}", f"audit-{number}", f"group-{number}"
    broker.create(log, audit)
    following = Following(log_topic=log, audit_topic=audit)
    app = app_of(tmp_path, group, broker.bootstrap_servers, fatal=following.errors.append, follows=[(log, 0)] + [
        (audit, one) for one in range(PARTITIONS)
    ])  # fmt: skip
    following.follower.attach(app)
    following.shard.do(put(b"a", b"1"))
    place_group(
        broker.bootstrap_servers, group, log_topic=log, audit_topic=audit, replicas={0: following.replica},
        partitions=PARTITIONS,
    )  # fmt: skip
    broker.append(log, *(entry.value for entry in following.shard.log.entries))
    broker.append(log, b"of a partition without a replica", partition=1)
    running = Running(app)
    try:
        assert wait_until(lambda: following.replica.position == following.shard.replica.position, DEADLINE_S)
        report = AuditReport(
            cluster="", node="n1", shard=9, basis="", barrier_offset=0, index=0, chain=bytes(32), slots=[], sums=[],
            flagged=True, evidence=EVIDENCE, reported_at_ms=0,
        )  # fmt: skip
        broker.append(audit, encode(report), b"unreadable", partition=3)
        assert wait_until(lambda: following.follower.unreadable_reports == 1, DEADLINE_S)
    finally:
        running.stop()
    assert following.errors == []
