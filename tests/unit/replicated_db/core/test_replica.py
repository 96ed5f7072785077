"""A replica: one atomic write per record, restart, what stops it, what flags and heals it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from replicated_db.core.applying.evidence import audit_report
from replicated_db.core.applying.replica import SCAN_STEP_ROWS, Identity, Replica
from replicated_db.core.errors import AheadOfLog, BrokenLog, StoreFailure, WrongCluster
from replicated_db.core.leading.leader import claim_for
from replicated_db.core.log.position import (
    KEY_INDEX_KEY,
    REQUEST_KEY,
    UNFLAGGED_KEY,
    Position,
    encode_request_position,
)
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import Write
from replicated_db.core.tables.column_families import RETRY, TRANSACTION_INFO
from replicated_db.core.tables.digest_rows import DIGEST_PREFIX, LISTED_SUMS_KEY
from replicated_db.core.tables.digests import FIRST_CHAIN, Digests, next_chain, row_hash, row_hash_in
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.trimming.bases import Base
from schemas import features
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import BUCKETS
from schemas.records.log import (
    Barrier,
    Checkpoint,
    DigestBase,
    FeatureLevel,
    LeaderClaim,
    LogRecord,
    Members,
    RequestPosition,
    Tick,
)
from schemas.records.messages import Response
from tests.support.replicated.kit import (
    CLUSTER,
    FAMILIES,
    NONCE,
    START_MS,
    Shard,
    add,
    assert_sound,
    batch,
    delete,
    genesis,
    hash_of,
    put,
    result,
)

IDENTITY = Identity(cluster=CLUSTER, shard=0, shards=1, node="n1")
CLAIM = LeaderClaim(term=1, nonce=NONCE, node="n2", address="n2:1", claimed_at_ms=START_MS)


class Feed:
    """Offers records to a replica as they lie in a log, with the right header unless told otherwise."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(FAMILIES.names)
        self.replica = Replica(IDENTITY, FAMILIES, self.store)
        self.replica.adopt_topic("topic-1", None)
        self.values: list[bytes] = []

    def offer(self, record: LogRecord) -> Any:
        value = encode(record)
        self.values.append(value)
        return self.replica.offer(len(self.values) - 1, value)

    def count(self, record: Any, **changed: Any) -> Any:
        position = self.replica.position
        header: dict[str, Any] = {
            "term": position.term, "nonce": position.nonce, "seq": position.seq + 1, "prev_chain": position.chain,
        }  # fmt: skip
        return self.offer(replace(record, **(header | changed)))

    def batch(self, *operations: Any, results: Any = (), **changed: Any) -> Any:
        position = self.replica.position
        first = position.index + 1
        planned = batch(
            *operations, results=results, first_index=first, last_index=first + max(len(results), 1) - 1,
            timestamp_ms=position.timestamp_ms + 10,
        )  # fmt: skip
        return self.count(planned, **changed)

    def start(self) -> Feed:
        self.offer(CLAIM)
        self.count(genesis())
        return self


@pytest.fixture
def feed() -> Feed:
    return Feed().start()


def tick() -> Tick:
    return Tick(term=0, nonce=NONCE, seq=0, prev_chain=bytes(32))


def barrier(index: int = 0, *, scrub: bool = False) -> Barrier:
    return Barrier(term=0, nonce=NONCE, seq=0, prev_chain=bytes(32), index=index, scrub=scrub)


def base(feed: Feed, **changed: Any) -> DigestBase:
    slots, sums = feed.replica.digests.slots()
    fields: dict[str, Any] = {"index": feed.replica.position.index, "slots": slots, "sums": sums, "basis": "oracle"}
    return DigestBase(term=0, nonce=NONCE, seq=0, prev_chain=bytes(32), **(fields | changed))


# Ordinary reading.


def test_position_after_each_record(feed: Feed):
    feed.batch(put(b"a", b"1"), results=[result(1), result(2)])
    position = feed.replica.position
    assert (position.offset, position.term, position.seq, position.index) == (2, 1, 2, 2)
    assert (position.leader, position.address, position.topic_id) == ("n2", "n2:1", "topic-1")
    chain = FIRST_CHAIN
    for value in feed.values:
        chain = next_chain(chain, value)
    assert position.chain == chain
    assert feed.store.get(TRANSACTION_INFO, KEY_INDEX_KEY) == b"10#2"


def test_each_record_survives_a_restart(feed: Feed):
    for operations in ([put(b"a", b"1")], [add(b"n", 5, next=0)], [Checkpoint(name="c"), put(b"b", b"2")]):
        feed.batch(*operations, results=[result(feed.replica.position.index + 1)])
        assert_sound(feed.replica)
    feed.count(tick())
    feed.count(barrier(3))
    assert_sound(feed.replica)
    assert Replica(IDENTITY, FAMILIES, feed.store).genesis == feed.replica.genesis


def test_void_records_change_nothing_but_what_has_been_read(feed: Feed):
    before = feed.replica.position
    outcome = feed.offer(replace(batch(put(b"a", b"x")), term=0))
    assert outcome.reading is Reading.STALE_TERM
    assert feed.replica.position == before == outcome.position
    assert feed.replica.read_offset == 2
    assert (feed.replica.records_void, feed.replica.records_applied) == (1, 2)
    assert feed.store.get("things", b"a") is None


def test_a_restart_reads_void_records_again(feed: Feed):
    feed.offer(replace(batch(put(b"a", b"x")), term=0))
    again = Replica(IDENTITY, FAMILIES, feed.store)
    assert again.read_offset == 1
    assert again.offer(2, feed.values[2]).reading is Reading.STALE_TERM


def test_what_was_offered_before_is_skipped(feed: Feed):
    feed.batch(put(b"a", b"1"))
    before = feed.replica.position
    for offset, value in enumerate(feed.values):
        assert feed.replica.offer(offset, value).reading is None
    assert feed.replica.position == before


def test_a_hole_in_the_offsets(feed: Feed):
    with pytest.raises(AheadOfLog, match="offset 5 follows 1"):
        feed.replica.offer(5, encode(tick()))


def test_a_log_that_begins_late():
    with pytest.raises(AheadOfLog, match="offset 3 follows -1"):
        Feed().replica.offer(3, encode(CLAIM))


def test_a_new_claim_restarts_the_seq(feed: Feed):
    feed.batch(put(b"a", b"1"))
    feed.offer(replace(CLAIM, term=2, nonce=b"x" * 16, node="n3"))
    assert (feed.replica.position.term, feed.replica.position.seq, feed.replica.position.leader) == (2, 0, "n3")
    feed.batch(put(b"b", b"1"))
    assert feed.replica.position.seq == 1
    assert_sound(feed.replica)


def test_an_outcome_says_what_to_publish(feed: Feed):
    feed.batch(put(b"a", b"1"))
    outcome = feed.count(barrier(1))
    assert outcome.digests == feed.replica.digests
    assert outcome.snapshot is None
    feed.batch(put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    assert outcome.digests != feed.replica.digests, "the outcome holds a copy"


def test_a_scrubs_snapshot_is_of_the_barrier(feed: Feed):
    feed.batch(put(b"a", b"1"))
    outcome = feed.count(barrier(1, scrub=True))
    feed.batch(put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    assert feed.replica.scan(outcome.snapshot) == outcome.digests
    assert feed.replica.scan(feed.store) == feed.replica.digests
    outcome.snapshot.close()


def test_checkpoint_holds_everything_before_its_batch(feed: Feed):
    feed.batch(put(b"a", b"1"))
    feed.batch(Checkpoint(name="c"), put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    kept = feed.store.checkpoints["c"]
    assert kept.get("things", b"a") == b"1"
    assert feed.store.get("things", b"a") == b"2"


def test_a_replayed_checkpoint_replaces(feed: Feed):
    feed.store.checkpoint("c")
    feed.batch(put(b"a", b"1"))
    feed.batch(Checkpoint(name="c"))
    assert feed.store.checkpoints["c"].get("things", b"a") == b"1"


def test_retry_rows_count_in_the_digest(feed: Feed):
    feed.batch(results=[result(1)])
    slots, _ = feed.replica.digests.slots()
    assert [slot // 256 for slot in slots] == [0]
    assert feed.store.get(RETRY, b"c" * 16 + (1).to_bytes(8, "big")) is not None


class FailingStore(MemoryStore):
    """A disk that fills up."""

    failing = False

    def write(self, writes: Iterable[Write]) -> None:
        if self.failing:
            raise StoreFailure("no space left on device")
        super().write(writes)


def test_a_failing_store_stops_and_the_record_is_applied_after_a_restart():
    store = FailingStore(FAMILIES.names)
    feed = Feed(store).start()
    store.failing = True
    with pytest.raises(StoreFailure):
        feed.batch(put(b"a", b"1"))
    store.failing = False
    again = Replica(IDENTITY, FAMILIES, store)
    assert again.position.offset == 1
    assert again.offer(2, feed.values[2]).reading is Reading.COUNTS
    assert store.get("things", b"a") == b"1"
    assert_sound(again)


# What stops it.


def test_undecodable_records_stop(feed: Feed):
    for value in (b"", b"garbage", b"\xc3\x01" + bytes(8) + b"x", encode(tick())[:-1]):
        with pytest.raises(BrokenLog, match="shard 0, offset 2: "):
            feed.replica.offer(2, value)
    assert feed.replica.read_offset == 1


def test_an_unknown_schema_says_upgrade(feed: Feed):
    with pytest.raises(BrokenLog, match="upgrade this node"):
        feed.replica.offer(2, b"\xc3\x01" + bytes(8))


def test_a_record_of_another_kind_stops(feed: Feed):
    value = encode(Response(client_id=NONCE, call_id=1, shard=0, index=1, status="OK", message="", result=None))
    with pytest.raises(BrokenLog, match="offset 2: a Response does not belong in a log"):
        feed.replica.offer(2, value)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"cluster": "other"}, "cluster is 'other' in the log but 'test' in this node's settings"),
        ({"shards": 2}, "shards is 2 in the log but 1"),
        ({"shard": 1}, "shard is 1 in the log but 0"),
        ({"column_families": ["retryTable", "counters", "things"]}, "column_families is"),
    ],
)
def test_another_genesis(changed: dict[str, Any], name: str):
    feed = Feed()
    feed.offer(CLAIM)
    with pytest.raises(WrongCluster, match=name):
        feed.count(genesis(**changed))
    assert feed.replica.genesis is None
    assert feed.replica.position.offset == 0


def test_settings_that_changed_between_two_starts(feed: Feed):
    with pytest.raises(WrongCluster, match="cluster"):
        Replica(replace(IDENTITY, cluster="other"), FAMILIES, feed.store)
    with pytest.raises(WrongCluster, match="shards is 1 in the log but 3"):
        Replica(replace(IDENTITY, shards=3), FAMILIES, feed.store)


def test_a_broken_record_changes_nothing(feed: Feed):
    feed.batch(put(b"a", b"1"))
    before = list(feed.store.iterate("things", b"")), feed.replica.position
    with pytest.raises(BrokenLog):
        feed.batch(put(b"a", b"2"), prev_chain=bytes(32))
    assert (list(feed.store.iterate("things", b"")), feed.replica.position) == before
    assert_sound(feed.replica)


# The log under the replica.


def test_adopting_a_topic(feed: Feed):
    again = Replica(IDENTITY, FAMILIES, feed.store)
    again.adopt_topic("topic-1", feed.values[1])
    fresh = Replica(IDENTITY, FAMILIES, MemoryStore(FAMILIES.names))
    fresh.adopt_topic("topic-9", None)
    assert fresh.position.topic_id == "topic-9"


@pytest.mark.parametrize(
    ("topic", "change", "message"),
    [
        ("topic-2", lambda value: value, "the log is topic topic-2, this replica has read topic-1"),
        ("topic-1", lambda value: None, "the log ends before"),
        ("topic-1", lambda value: value[:-1] + bytes([value[-1] ^ 1]), "another record than the one applied"),
        ("topic-1", lambda value: b"", "another record"),
    ],
)
def test_a_recreated_or_truncated_log(feed: Feed, topic: str, change: Any, message: str):
    again = Replica(IDENTITY, FAMILIES, feed.store)
    with pytest.raises(AheadOfLog, match=message) as stop:
        again.adopt_topic(topic, change(feed.values[1]))
    assert str(stop.value).startswith("AHEAD_OF_LOG: shard 0, offset 1")


# Divergence.


def damage(feed: Feed, key: bytes = b"a", value: bytes | None = b"damaged") -> None:
    feed.store.write([("things", key, value)])


def test_a_false_claim_flags_durably_and_applying_goes_on(feed: Feed):
    feed.batch(put(b"a", b"1"))
    damage(feed)
    outcome = feed.batch(put(b"z", b"z"), put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    evidence = outcome.evidence
    assert (evidence.operation, evidence.cf, evidence.key, evidence.claim) == (1, "things", b"a", "prev")
    assert evidence.claimed == hash_of("things", b"a", b"1")
    assert evidence.own == hash_of("things", b"a", b"damaged")
    assert (evidence.index, evidence.offset, evidence.term, evidence.leader) == (2, 3, 1, "n2")
    assert feed.replica.evidence == evidence
    assert Replica(IDENTITY, FAMILIES, feed.store).evidence == evidence
    assert feed.batch(put(b"b", b"1")).evidence is None
    assert feed.replica.evidence == evidence, "the first evidence stands"
    assert feed.store.get("things", b"a") == b"2"


def test_sums_are_listed_from_their_feature_level_on_and_not_before():
    """Software of the level before reads the rows of the families alone, and may be started again until then."""
    feed = Feed()
    feed.offer(CLAIM)
    feed.count(genesis(feature_level=features.LISTED_SUMS - 1))
    for number in range(3):
        feed.batch(put(b"%d" % number, b"v"))
        assert feed.store.get(TRANSACTION_INFO, LISTED_SUMS_KEY) is None
        by_older_software = Digests(FAMILIES)
        for position, name in enumerate(FAMILIES.names):
            if (sums := feed.store.get(TRANSACTION_INFO, DIGEST_PREFIX + name.encode())) is not None:
                by_older_software.unpack(position, sums)
        assert by_older_software == feed.replica.digests
    level = FeatureLevel(
        term=0, nonce=NONCE, seq=0, prev_chain=bytes(32), index=feed.replica.position.index, level=features.LISTED_SUMS
    )
    feed.count(level)
    feed.batch(put(b"new", b"v"))
    assert feed.store.get(TRANSACTION_INFO, LISTED_SUMS_KEY)
    assert Replica(IDENTITY, FAMILIES, feed.store).digests == feed.replica.digests == feed.replica.scan(feed.store)


def test_put_heals_the_row_but_the_digest_remembers(feed: Feed):
    """A row changed behind its back: the incremental digest subtracts the row found, so it differs from a scan for ever."""
    feed.batch(put(b"a", b"1"))
    damage(feed)
    assert feed.replica.scan(feed.store) != feed.replica.digests, "a scrub sees it before it is touched"
    feed.batch(put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    assert feed.store.get("things", b"a") == b"2"
    assert feed.replica.scan(feed.store) != feed.replica.digests


def test_a_leaders_false_claim_leaves_the_digest_right(feed: Feed):
    """The other case: our rows are right and the claim is wrong. What is found is subtracted, never what is claimed."""
    feed.batch(put(b"a", b"1"))
    outcome = feed.batch(put(b"a", b"2", prev=12345))
    assert outcome.evidence is not None
    assert feed.replica.scan(feed.store) == feed.replica.digests


def test_delete_heals(feed: Feed):
    feed.batch(put(b"a", b"1"))
    damage(feed, b"ghost")
    outcome = feed.batch(delete(b"ghost"))
    assert outcome.evidence.own == hash_of("things", b"ghost", b"damaged")
    assert feed.store.get("things", b"ghost") is None


def test_a_base_equal_to_the_own_digest_unflags(feed: Feed):
    feed.batch(put(b"a", b"1"))
    feed.batch(put(b"a", b"2", prev=12345))
    assert feed.replica.evidence is not None
    outcome = feed.count(base(feed))
    assert outcome.evidence is None
    assert feed.replica.evidence is None
    assert Replica(IDENTITY, FAMILIES, feed.store).evidence is None


@pytest.mark.parametrize("changed", [{"slots": [], "sums": []}, {"sums": [1]}, {"slots": [5]}])
def test_a_base_that_differs_flags(feed: Feed, changed: dict[str, Any]):
    feed.batch(put(b"a", b"1"))
    outcome = feed.count(base(feed, **changed))
    assert outcome.evidence.claim == "base"
    assert feed.replica.evidence == outcome.evidence
    assert Replica(IDENTITY, FAMILIES, feed.store).evidence == outcome.evidence
    assert_sound(feed.replica)


def test_a_base_that_differs_leaves_earlier_evidence(feed: Feed):
    feed.batch(put(b"a", b"1", prev=1))
    first = feed.replica.evidence
    assert first is not None
    outcome = feed.count(base(feed, sums=[1]))
    assert outcome.evidence.claim == "base"
    assert feed.replica.evidence == first


def test_flag_and_settle_by_command(feed: Feed):
    feed.batch(put(b"a", b"1", prev=1))
    evidence = feed.replica.evidence
    assert evidence is not None
    feed.replica.settle()
    assert feed.replica.evidence is None
    assert_sound(feed.replica)
    feed.replica.flag(evidence)
    assert_sound(feed.replica)
    feed.replica.flag(replace(evidence, key=b"other"))
    assert feed.replica.evidence == evidence


class PoweredStore(MemoryStore):
    """Loses what is not synced with the power."""

    def __init__(self) -> None:
        super().__init__(FAMILIES.names)
        self.undo: list[list[Write]] = []

    def write(self, writes: Iterable[Write]) -> None:
        rows = list(writes)
        self.undo.append([(cf, key, self.get(cf, key)) for cf, key, _ in rows])
        super().write(rows)

    def sync(self) -> None:
        super().sync()
        self.undo.clear()

    def lose_power(self) -> None:
        while self.undo:
            super().write(reversed(self.undo.pop()))


def test_a_flag_outlives_a_loss_of_power_and_so_does_its_end():
    """A majority has shown that this replica is wrong: nothing in the log would tell it again."""
    store = PoweredStore()
    feed = Feed(store).start()
    feed.batch(put(b"a", b"1", prev=1))
    evidence = feed.replica.evidence
    assert evidence is not None
    store.lose_power()
    assert Replica(IDENTITY, FAMILIES, store).evidence == evidence
    feed.replica.settle()
    store.lose_power()
    assert Replica(IDENTITY, FAMILIES, store).evidence is None
    feed.replica.flag(evidence)
    store.lose_power()
    assert Replica(IDENTITY, FAMILIES, store).evidence == evidence


def test_report(feed: Feed):
    feed.batch(put(b"a", b"1"))
    position, digests, snapshot = feed.replica.snapshot()
    snapshot.close()
    report = audit_report(feed.replica.identity, "incremental", 7, position, digests, None, 1234)
    assert (report.cluster, report.node, report.shard, report.basis) == (CLUSTER, "n1", 0, "incremental")
    assert (report.barrier_offset, report.index, report.chain) == (7, 1, position.chain)
    assert (report.slots, report.sums) == digests.slots()
    assert (report.flagged, report.evidence, report.reported_at_ms) == (False, None, 1234)
    assert decode_as(type(report), encode(report)) == report


def test_snapshot_is_one_moments(feed: Feed):
    feed.batch(put(b"a", b"1"))
    position, digests, snapshot = feed.replica.snapshot()
    feed.batch(put(b"a", b"2", prev=hash_of("things", b"a", b"1")))
    assert feed.replica.scan(snapshot) == digests
    assert position.index == 1


def test_row_hash_in_a_bucket():
    hits = [b for b in range(BUCKETS) if row_hash_in(FAMILIES, "things", b"a", b"1", b) is not None]
    assert len(hits) == 1
    assert row_hash_in(FAMILIES, "things", b"a", b"1", hits[0]) == row_hash(FAMILIES, "things", b"a", b"1")


def test_a_fresh_replica_stands_before_the_first_record():
    assert Feed().replica.position == Position(topic_id="topic-1")


# What has counted here.


def test_whether_the_leaders_record_counted_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("replicated_db.core.applying.counted.MAX_COUNTED", 3)
    shard = Shard()
    for number in range(4):
        shard.do(put(b"k", b"%d" % number))
    shard.catch_up()
    replica = shard.nodes["n2"].replica
    last = len(shard.log.entries) - 1
    counted = replica.counted(last)
    assert counted is not None
    assert replica.has_counted(last, counted)
    with pytest.raises(AheadOfLog, match=f"shard 0: the leader's record at {last} was read here but did not count"):
        replica.has_counted(last, bytes(32))
    assert replica.has_counted(last - 2, replica.counted(last - 2) or b"")
    assert not replica.has_counted(last - 3, bytes(32)), "it is too long ago to tell"


def test_a_record_that_was_void_here_did_not_count():
    shard = Shard()
    shard.do(put(b"k", b"1"))
    void = shard.log.append(encode(Tick(term=1, nonce=b"?" * 16, seq=1, prev_chain=bytes(32))))
    shard.do(put(b"k", b"2"))
    shard.catch_up()
    replica = shard.nodes["n2"].replica
    with pytest.raises(AheadOfLog):
        replica.has_counted(void, bytes(32))


def test_a_replica_that_starts_again_right_after_a_claim_has_its_anchor_from_before():
    """A claim commits to nothing before it: the last counting record does."""
    shard = Shard()
    shard.do(put(b"k", b"1"))
    shard.catch_up()
    node = shard.nodes["n2"]
    before = node.replica.position
    assert node.replica.anchor == before
    shard.log.append(encode(claim_for(node.replica, b"2" * 16, "", shard.clock.wall_ms())))
    shard.catch_up()
    assert node.replica.position.term == before.term + 1
    again = node.restart().replica
    assert (again.position, again.anchor) == (node.replica.position, node.replica.anchor) == (again.position, before)


def test_what_is_read_again_is_kept_from_the_trimmer(feed: Feed):
    """A candidate reads again from the anchor that it had before its claim, however far its replica has come since."""
    with feed.replica.reading_again():
        held = feed.replica.durable_place().keeps_from
        feed.batch(put(b"b", b"1"))
        feed.batch(put(b"c", b"1"))
        place = feed.replica.durable_place()
        assert place.keeps_from == held < place.offset
    assert feed.replica.durable_place().keeps_from == place.offset


def test_a_claim_keeps_the_anchor_before_it(feed: Feed):
    before = feed.batch(put(b"a", b"1")).position.offset
    feed.offer(replace(CLAIM, term=2))
    assert feed.replica.durable_place().keeps_from == before
    feed.count(tick())
    assert feed.replica.durable_place().keeps_from == feed.replica.position.offset


def members() -> Members:
    return Members(term=0, nonce=NONCE, seq=0, prev_chain=bytes(32), index=0, replicas=["n1"])


def test_a_base_survives_a_restart_between_its_records(feed: Feed):
    feed.count(base(feed))
    offset, chain = feed.replica.position.offset, feed.replica.position.chain
    feed.replica = Replica(IDENTITY, FAMILIES, feed.store)
    assert not feed.replica.bases
    feed.count(members())
    assert feed.replica.bases == (Base(offset, 0, chain),)
    assert Replica(IDENTITY, FAMILIES, feed.store).bases == feed.replica.bases


@pytest.mark.parametrize("between", ["tick", "claim", "batch"])
def test_a_base_whose_members_do_not_follow_is_none(feed: Feed, between: str):
    feed.count(base(feed))
    if between == "tick":
        feed.count(tick())
    elif between == "claim":
        feed.offer(replace(CLAIM, term=2))
    else:
        feed.batch(put(b"a", b"1"))
    feed.count(replace(members(), index=feed.replica.position.index))
    assert not feed.replica.bases


def test_a_base_that_the_replica_contradicts_is_none(feed: Feed):
    feed.count(base(feed, slots=[1], sums=[2]))
    feed.count(members())
    assert not feed.replica.bases
    assert feed.replica.durable_place().flagged


def test_a_scan_pauses_after_so_many_rows(feed: Feed):
    """It shares the interpreter with a leader."""
    feed.batch(*(put(b"%04d" % number, b"v") for number in range(2 * SCAN_STEP_ROWS)))
    _, digests, view = feed.replica.snapshot()
    rows = sum(1 for name in FAMILIES.names for _ in view.iterate(name, b""))
    pauses: list[int] = []
    assert feed.replica.scan(view, lambda: pauses.append(1)) == digests
    assert len(pauses) == rows // SCAN_STEP_ROWS >= 2
    assert feed.replica.scan(view) == digests
    view.close()


def test_a_flag_that_is_settled_by_hand_leaves_a_note(feed: Feed):
    feed.replica.settle()
    assert feed.store.get(TRANSACTION_INFO, UNFLAGGED_KEY) is None
    feed.replica.settle(b"by ann")
    assert feed.store.get(TRANSACTION_INFO, UNFLAGGED_KEY) == b"by ann"
    feed.replica.settle()
    assert feed.store.get(TRANSACTION_INFO, UNFLAGGED_KEY) == b"by ann"


def test_a_moment_has_the_rows_of_the_families_that_are_asked_for(feed: Feed):
    feed.batch(put(b"a", b"1"))
    index, rows = feed.replica.moment(["things"])
    assert (index, rows.get("things", b"a")) == (1, b"1")
    with pytest.raises(StoreFailure):
        rows.get(RETRY, b"a")
    rows.close()
    with feed.replica.held() as (index, view):
        assert (index, view.get("things", b"a")) == (1, b"1")


def test_where_the_requests_stood_is_kept_with_the_batch_that_took_them(feed: Feed):
    position = RequestPosition(offset=41, leader_epoch=2, hash=bytes(16))
    planned = batch(
        put(b"a", b"1"), first_index=1, last_index=1,
        timestamp_ms=feed.replica.position.timestamp_ms + 10,
    )  # fmt: skip
    feed.count(replace(planned, request_position=position))
    assert feed.store.get(TRANSACTION_INFO, REQUEST_KEY) == encode_request_position(position)
