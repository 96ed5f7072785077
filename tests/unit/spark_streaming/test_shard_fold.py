"""Logs folded into rows of tables: by a real leader's batches, and by logs that lie, break or begin late."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from om_processors.execution.requests.blocks import reserve
from om_processors.namespace import ids
from om_processors.namespace.context import Contexts
from schemas.codecs.codec import decode, decode_as, encode
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, OPEN_KEY_TABLE, USAGE_TABLE
from schemas.records import messages as m
from schemas.records.log import LATE_MODE, LEADER_MODE, Batch, Delete, Put
from schemas.records.rows import BlockLocation, BucketInfo, KeyInfo
from spark_streaming.tables.core.positions import latest, plain_position, position_from
from spark_streaming.tables.core.shard_fold import (
    GROWTH,
    KEYS,
    MAX_GAPS,
    OPERATIONS,
    USAGE,
    EffectiveOperation,
    FoldedPosition,
    ShardFold,
)
from spark_streaming.tables.core.usage_changes import HOUR_MS, number
from tests.support.logs.logbuilder import REPLICAS, LogBuilder
from tests.support.om.late_world import PIPELINES, START_MS, LateWorld

STEPS = 400
KEY_NAMES = [f"deep/key{n}" for n in range(6)] + ["ключ", "a#b"]
BUCKETS = ["bucket1", "bucket1", "bucket2"]

InBucket = (
    m.CreateKey | m.CommitKey | m.DeleteKey | m.RenameKey | m.CreateSnapshot | m.DeleteSnapshot | m.RenameSnapshot
    | m.CreateBucket | m.DeleteBucket | m.SetBucketProperty | m.ReserveBlocks | m.CommitReserved | m.ReleaseBlocks
)  # fmt: skip
Keys = dict[tuple[str, str, str], tuple[KeyInfo, int]]


def fold_of(
    values: Iterable[bytes | None], position: FoldedPosition | None = None, *, at: int = 0, **begins: int
) -> tuple[ShardFold, list[EffectiveOperation]]:
    fold = ShardFold(0, position or FoldedPosition(), begins)
    return fold, [one for offset, value in enumerate(values, start=at) for one in fold.take(offset, value)]


def keys_after(operations: Iterable[EffectiveOperation], keys: Keys | None = None) -> Keys:
    """What the operations leave, in their order in the log."""
    found = dict(keys or {})
    for one in sorted(operations, key=lambda one: (one.offset, one.at)):
        target = one.target
        if target.removes_key:
            found.pop((str(target.volume), str(target.bucket), str(target.key)), None)
        if target.row is not None:
            found[target.row.volume, target.row.bucket, target.row.key] = target.row, one.index
    return found


class Walk:
    """A leader that gets random requests in batches of random sizes; it says what it was asked."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = LateWorld(force=LEADER_MODE)
        self.asked: dict[int, InBucket] = {}
        self.opened: list[tuple[int, str, str]] = []
        self.reserved: list[tuple[int, str, list[BlockLocation]]] = []
        self.world.do(m.CreateVolume(volume="vol1"))
        for bucket in ("bucket1", "bucket2"):
            self.world.do(m.CreateBucket(volume="vol1", bucket=bucket))

    def body(self) -> InBucket:
        pick = self.random.choice
        bucket = pick(BUCKETS)
        place = {"volume": "vol1", "bucket": bucket}
        kind = self.random.choices(
            ["create", "commit", "delete", "rename", "snapshot", "unsnapshot", "resnapshot", "drop", "make", "set",
             "reserve", "use", "release"],
            [30, 30, 12, 12, 2, 2, 2, 1, 2, 2, 8, 20, 2],
        )[0]  # fmt: skip
        if kind in ("use", "release") and self.reserved:
            session, opened_in, blocks = pick(self.reserved)
            if kind == "release":
                return m.ReleaseBlocks(volume="vol1", bucket=opened_in, session_id=session)
            written = [replace(blocks.pop() if len(blocks) > 1 else blocks[0], offset=0, length=7)]
            return m.CommitReserved(
                volume="vol1", bucket=opened_in, key=pick(KEY_NAMES), session_id=session, size=7, blocks=written
            )
        if kind == "commit" and self.opened:
            session, opened_in, key = pick(self.opened)
            size = self.random.choice([0, 1, 5_000, 70_000])
            return m.CommitKey(volume="vol1", bucket=opened_in, key=key, session_id=session, size=size)
        bodies: dict[str, InBucket] = {
            "create": m.CreateKey(**place, key=pick(KEY_NAMES), size=pick([0, 0, 100]), metadata={"a": "b"}),
            "delete": m.DeleteKey(**place, key=pick(KEY_NAMES)),
            "rename": m.RenameKey(**place, from_key=pick(KEY_NAMES), to_key=pick(KEY_NAMES)),
            "snapshot": m.CreateSnapshot(**place, snapshot=pick(["snap1", "snap2"])),
            "unsnapshot": m.DeleteSnapshot(**place, snapshot=pick(["snap1", "snap2"])),
            "resnapshot": m.RenameSnapshot(**place, snapshot="snap1", to="snap2"),
            "reserve": m.ReserveBlocks(**place, count=pick([1, 2, 4])),
            "drop": m.DeleteBucket(**place),
            "make": m.CreateBucket(volume="vol1", bucket=bucket),
            "set": m.SetBucketProperty(volume="vol1", bucket=bucket, quota_in_namespace=pick([-1, 1000])),
        }
        return bodies.get(kind) or m.DeleteKey(**place, key=pick(KEY_NAMES))

    def step(self) -> None:
        body = self.body()
        index = self.world.leader.index + 1
        self.world.submit(self.world.request(body))
        self.asked[index] = body
        if isinstance(body, m.CreateKey):
            self.opened.append((ids.session_id(ids.object_id(0, index)), body.bucket, body.key))
        elif isinstance(body, m.ReserveBlocks):
            object_id = ids.object_id(0, index)
            given = reserve(Contexts(shard=0, shards=1, pipelines=PIPELINES).at(0, index), object_id, body.count)
            self.reserved.append((ids.session_id(object_id), body.bucket, given))
        draw = self.random.random()
        if draw < 0.1:
            self.world.settle()
        if draw < 0.02:
            self.world.settle()
            self.world.lead(self.random.choice(["n1", "n2"]))

    def values(self) -> list[bytes | None]:
        self.world.settle()
        return [entry.value for entry in self.world.log.entries]


@pytest.fixture(scope="module")
def walk() -> Walk:
    found = Walk(7)
    for step in range(STEPS):
        found.step()
        if step == STEPS // 2:
            found.world.settle()
            found.world.clock.advance(HOUR_MS)
    return found


def test_the_fold_leaves_the_keys_that_the_leader_has(walk: Walk):
    fold, operations = fold_of(walk.values())
    assert (fold.stopped, fold.position.gaps) == (None, ())
    rows = walk.world.leader_node.rows()
    leaders = [decode_as(KeyInfo, value) for (cf, _), value in rows.items() if cf == KEY_TABLE]
    found = keys_after(operations)
    assert len(found) >= 4
    assert {place: info for place, (info, _) in found.items()} == {
        (one.volume, one.bucket, one.key): one for one in leaders
    }
    assert {info.update_id for info, _ in found.values()} == {index for _, index in found.values()}


def test_each_effective_request_is_told_once_with_what_it_was_asked(walk: Walk):
    _, operations = fold_of(walk.values())
    told = {one.index: one for one in operations}
    assert len(told) == len(operations)
    assert set(walk.asked) <= set(told)
    kinds = set()
    for index, body in walk.asked.items():
        one = told[index]
        assert one.answer is not None
        assert one.answer.result.request_type == type(body).__name__
        if one.answer.status != "OK":
            assert one.answer.message
            assert (one.target.volume, one.target.row, one.target.removes_key) == (None, None, False)
            continue
        kinds.add(type(body).__name__)
        target = one.target
        if isinstance(body, m.ReleaseBlocks):
            assert (target.volume, target.key, target.row, target.at) == (None, None, None, -1), "as of an expiry"
            continue
        assert (target.volume, target.bucket) == (body.volume, body.bucket)
        if isinstance(body, m.RenameKey):
            assert (target.key, target.to_key, target.removes_key) == (body.from_key, body.to_key, True)
            assert target.row is not None
            assert target.row.key == body.to_key
        elif isinstance(body, m.RenameSnapshot):
            assert (target.snapshot, target.to_key) == (body.snapshot, body.to)
        elif isinstance(body, m.CreateSnapshot | m.DeleteSnapshot):
            assert target.snapshot == body.snapshot
        elif isinstance(body, m.DeleteKey):
            assert (target.key, target.removes_key, target.row) == (body.key, True, None)
        elif isinstance(body, m.CommitKey | m.CreateKey | m.CommitReserved):
            assert (target.key, target.to_key, target.removes_key) == (body.key, None, False)
            assert (target.row is not None) == isinstance(body, m.CommitKey | m.CommitReserved)
        elif isinstance(body, m.ReserveBlocks):
            assert (target.key, target.to_key, target.removes_key, target.row) == (None, None, False, None)
    assert kinds >= {"CreateKey", "CommitKey", "DeleteKey", "RenameKey", "CreateSnapshot", "RenameSnapshot",
                     "DeleteSnapshot", "SetBucketProperty", "ReserveBlocks", "CommitReserved",
                     "ReleaseBlocks"}  # fmt: skip


def test_the_usage_is_the_counters_of_the_leader_and_the_sum_of_the_keys(walk: Walk):
    fold, operations = fold_of(walk.values())
    rows = walk.world.leader_node.rows()
    sums: dict[tuple[str, str], list[int]] = {
        (one.volume, one.bucket): [0, 0]
        for (cf, _), value in rows.items() if cf == BUCKET_TABLE
        for one in [decode_as(BucketInfo, value)]
    }  # fmt: skip
    for info, _ in keys_after(operations).values():
        sums[info.volume, info.bucket][0] += 1
        sums[info.volume, info.bucket][1] += info.size
    there = {place: change for place, change in fold.usage.buckets.items() if not change.removed}
    assert {place: [change.keys, change.bytes] for place, change in there.items()} == sums
    assert all(change.afresh and change.info is not None for change in there.values())
    counters = {key: number(value) for (cf, key), value in rows.items() if cf == USAGE_TABLE}
    for (volume, bucket), change in there.items():
        assert counters[f"/{volume}/{bucket}/#usedBytes".encode()] == change.bytes
    grown: dict[tuple[str, str], list[int]] = {}
    for (hour_ms, *place), hour in fold.usage.hours.items():
        assert hour_ms % HOUR_MS == 0
        total = grown.setdefault((place[0], place[1]), [0, 0])
        total[0] += hour.keys
        total[1] += hour.bytes
    assert {place: total for place, total in grown.items() if place in sums} == {
        place: total for place, total in sums.items() if place in grown
    }
    assert len({hour_ms for hour_ms, *_ in fold.usage.hours}) > 1


def test_a_fold_goes_on_at_any_record_through_the_plain_form_of_its_position(walk: Walk):
    values = walk.values()
    whole, operations = fold_of(values)
    for cut in (1, 2, len(values) // 3, len(values) - 1):
        first, before = fold_of(values[:cut])
        held = position_from(json.loads(json.dumps(plain_position(first.position))))
        assert held == first.position
        rest, after = fold_of(values[cut:], held, at=cut)
        assert [*before, *after] == operations
        assert rest.position == whole.position


def test_a_table_that_is_ahead_takes_nothing_twice(walk: Walk):
    values = walk.values()
    _, operations = fold_of(values)
    cut = len(values) // 2
    ahead, _ = fold_of(values[cut:], fold_of(values[:cut])[0].position, at=cut)
    again, told = fold_of(values, None, **{USAGE: cut, GROWTH: cut, KEYS: cut, OPERATIONS: cut})
    assert again.usage == ahead.usage
    assert told == [one for one in operations if one.offset >= cut]


# -- logs that are not as they should be


def key_row(log: LogBuilder, key: str, size: int = 3) -> Put:
    info = KeyInfo(
        volume="v", bucket="b", key=key, owner="ann", object_id=1, update_id=log.index + 1, size=size,
        replication="RATIS/ONE", blocks=[], metadata={}, creation_time_ms=START_MS, modification_time_ms=START_MS,
    )  # fmt: skip
    return log.put(KEY_TABLE, f"/v/b/{key}".encode(), encode(info))


def reservation_row(log: LogBuilder) -> Put:
    info = KeyInfo(
        volume="v", bucket="b", key="", owner="ann", object_id=256, update_id=log.index + 1, size=0, replication="",
        blocks=[BlockLocation(container_id=1, local_id=257, offset=0, length=9, pipeline="p")], metadata={},
        creation_time_ms=START_MS, modification_time_ms=START_MS,
    )  # fmt: skip
    return log.put(OPEN_KEY_TABLE, b"/v/b//511", encode(info))


def key_gone(log: LogBuilder, key: str) -> Delete:
    return log.delete(KEY_TABLE, f"/v/b/{key}".encode())


def test_void_records_change_nothing():
    log = LogBuilder().start()
    log.batch(key_row(log, "kept"))
    stale = log.term, log.nonce, log.seq, log.chain
    log.claim("om2")
    term, nonce, seq, chain = stale
    void = Batch(
        term=term, nonce=nonce, seq=seq + 1, prev_chain=chain, first_index=log.index + 1, last_index=log.index + 1,
        timestamp_ms=log.timestamp_ms, request_position=None, operations=[key_gone(log, "kept"), key_row(log, "void")],
        results=[log.result(request_type="DeleteKey")],
    )  # fmt: skip
    log.append(void)
    log.batch(key_row(log, "later"))
    fold, operations = fold_of(log.values)
    assert {name for _, _, name in keys_after(operations)} == {"kept", "later"}
    assert [(one.index, one.leader, one.term) for one in operations] == [(1, "om1", 1), (2, "om2", 2)]
    assert fold.stopped is None


def test_a_deletion_that_no_known_request_explains_is_told_without_one():
    log = LogBuilder().start()
    log.batch(key_row(log, "one"))
    log.batch(key_row(log, "two"))
    log.batch(key_gone(log, "one"), key_row(log, "three"))  # its result says CreateKey
    _, operations = fold_of(log.values)
    assert {name for _, _, name in keys_after(operations)} == {"two", "three"}
    strangers = [one for one in operations if one.answer is None]
    assert [(one.index, one.target.key, one.target.removes_key) for one in strangers] == [(3, "one", True)]


def test_a_key_from_a_reservation_is_named_and_the_reservation_is_not():
    """What a commit leaves of a reservation is a row of the same request, before or behind the key's."""
    log = LogBuilder().start()
    log.batch(reservation_row(log))
    for name, first in (("one", True), ("two", False)):
        operations = [reservation_row(log), key_row(log, name)]
        log.batch(*(operations if first else reversed(operations)))
    _, told = fold_of(log.values)
    assert [(one.index, one.target.volume, one.target.bucket, one.target.key) for one in told] == [
        (1, "v", "b", None), (2, "v", "b", "one"), (3, "v", "b", "two"),
    ]  # fmt: skip
    assert [(one.target.at, one.target.row is not None) for one in told] == [(-1, False), (1, True), (0, True)]
    assert {place for _, _, place in keys_after(told)} == {"one", "two"}


def test_an_answer_that_cannot_be_decoded_is_told_as_such():
    log = LogBuilder().start()
    result = log.result(request_type="CommitKey")
    broken = replace(result, response=b"no")
    log.count(log.batch_of([key_row(log, "one")], [broken], 1))
    _, operations = fold_of(log.values)
    assert [(one.answer.status, one.target.key) for one in operations if one.answer] == [("?", "one")]


def test_a_broken_log_ends_the_fold_and_what_came_before_is_whole():
    log = LogBuilder().start()
    log.batch(key_row(log, "one"))
    log.append_value(b"no record")
    log.batch(key_row(log, "two"))
    fold, operations = fold_of(log.values)
    assert [one.target.key for one in operations] == ["one"]
    assert fold.stopped is not None
    assert fold.stopped.startswith("offset 3: ")
    assert fold.position.reading.next_offset == 3
    again, none = fold_of(log.values[3:], fold.position, at=3)
    assert (again.stopped, none) == (fold.stopped, [])


@pytest.mark.parametrize("value", [None, b"\xc3\x01" + b"newer!!!" + b"body", encode(m.Requests(requests=[]))])
def test_a_record_that_is_unknown_stops_the_fold(value: bytes | None):
    log = LogBuilder().start()
    fold, _ = fold_of([*log.values, value])
    assert fold.stopped is not None
    assert fold.position.reading.next_offset == 2


@pytest.mark.parametrize("value", [b"no row", encode(m.Requests(requests=[]))])
def test_a_row_that_cannot_be_decoded_stops_the_fold_before_its_batch(value: bytes):
    log = LogBuilder().start()
    log.batch(key_row(log, "one"))
    log.batch(log.merge(b"/v/b/#usedBytes", 3), log.put(KEY_TABLE, b"/v/b/two", value))
    fold, operations = fold_of(log.values)
    assert [one.target.key for one in operations] == ["one"]
    assert fold.stopped is not None
    assert fold.stopped.startswith("offset 3: ")
    assert (fold.position.reading.next_offset, fold.usage.buckets) == (3, {})


def test_a_trimmed_log_is_folded_from_its_base_on_and_the_gap_is_told():
    log = LogBuilder().start()
    log.batch(key_row(log, "before"))
    base = log.digest_base()
    log.members(*REPLICAS)
    log.batch(key_row(log, "after"))
    fold, operations = fold_of(log.values[base:], at=base)
    assert {name for _, _, name in keys_after(operations)} == {"after"}
    assert fold.position.gaps == (
        "shard 0: rows that were not changed after index 1 are missing, the log was trimmed to there",
    )
    through, operations = fold_of(log.values)
    assert {name for _, _, name in keys_after(operations)} == {"before", "after"}
    assert through.position.gaps == ()


def test_late_validation_is_a_gap_and_what_follows_is_folded():
    world = LateWorld()
    world.do(m.CreateVolume(volume="vol1"))
    world.do(m.CreateBucket(volume="vol1", bucket="bucket1"))
    world.command("CreateKey", LATE_MODE)
    late = world.do(m.CreateKey(volume="vol1", bucket="bucket1", key="k", size=0))
    session = late.result.session_id if isinstance(late.result, m.KeySession) else 0
    world.do(m.CommitKey(volume="vol1", bucket="bucket1", key="k", session_id=session, size=0))
    fold, operations = fold_of([entry.value for entry in world.log.entries])
    assert fold.position.gaps == (f"shard 0: requests under late validation, from index {late.index} on, are missing",)
    assert {name for _, _, name in keys_after(operations)} == {"k"}
    for n in range(2 * MAX_GAPS):
        fold.position = fold.position.with_gap(f"gap {n}")
    assert len(fold.position.gaps) == MAX_GAPS


def test_the_later_position_of_each_shard_is_chosen():
    log = LogBuilder().start()
    behind, ahead = (fold_of(log.values[:count])[0].position for count in (1, 2))
    assert latest([{0: behind, 1: ahead}, {0: ahead}, {1: behind}]) == {0: ahead, 1: ahead}


def test_the_record_types_of_the_walk_are_those_of_a_leader(walk: Walk):
    kinds = {type(decode(value)).__name__ for value in walk.values() if value is not None}
    assert kinds >= {"LeaderClaim", "Genesis", "Batch"}
