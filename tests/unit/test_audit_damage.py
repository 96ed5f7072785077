"""The campaigns of the audit do what they say: each kind of damage is what it is called, and the judge sees what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from om_processors.execution.service import OM_FAMILIES
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.digest_rows import DIGEST_PREFIX, DigestRows
from replicated_db.core.tables.digests import Digests, digest_of_rows
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import decode, encode
from schemas.column_families import KEY_TABLE, OPEN_KEY_TABLE, USAGE_TABLE
from schemas.records.messages import Verdict
from schemas.records.rows import KeyInfo
from tests.chaos.audit import damage, turmoil
from tests.chaos.audit.divergences import NamingTimes, figures
from tests.support.logs.judged_log import Judged, JudgedLog
from tests.support.logs.logbuilder import LogBuilder

VOLUME, BYTES, KEYS = "v", b"/v/bucket/#usedBytes", b"/v/bucket/#usedNamespace"
Rows = dict[tuple[str, bytes], bytes]


def key_row(name: str) -> bytes:
    info = KeyInfo(
        volume=VOLUME, bucket="bucket", key=name, owner="o", object_id=1, update_id=1, size=7, replication="THREE",
        blocks=[], metadata={}, creation_time_ms=1, modification_time_ms=1,
    )  # fmt: skip
    return encode(info)


@pytest.fixture(scope="module")
def log() -> JudgedLog:
    """A log whose last batch commits the last key, as a client does it."""
    builder = LogBuilder().start()
    for name in ("key-1", "key-2", "key-3"):
        opened = f"/v/bucket/{name}/77".encode()
        builder.batch(builder.put(OPEN_KEY_TABLE, opened, key_row(name)))
        builder.batch(
            builder.delete(OPEN_KEY_TABLE, opened),
            builder.put(KEY_TABLE, f"/v/bucket/{name}".encode(), key_row(name)),
            builder.merge(BYTES, 7), builder.merge(KEYS, 1),
        )  # fmt: skip
    builder.barrier()
    records: list[Any] = [
        Judged(offset=offset, value=value, record=decode(value), reading=Reading.COUNTS)
        for offset, value in enumerate(builder.values)
    ]
    return JudgedLog(records=records, position=Position())


def digest_kept(store: RocksStore) -> Digests:
    found = Digests(OM_FAMILIES)
    DigestRows(OM_FAMILIES).read(store, found)
    return found


def digest_scanned(store: RocksStore) -> Digests:
    return digest_of_rows(
        OM_FAMILIES, ((cf, key, value) for cf in OM_FAMILIES.names for key, value in store.iterate(cf, b""))
    )


@pytest.mark.parametrize("injection", damage.INJECTIONS, ids=lambda one: one.name)
def test_each_damage_is_what_it_is_called(injection: damage.Injection, log: JudgedLog, tmp_path: Path):
    rows = log.rows()
    whole = digest_of_rows(OM_FAMILIES, ((cf, key, value) for (cf, key), value in rows.items()))
    change = injection.change(rows, log, VOLUME)
    store = RocksStore(tmp_path / "db", OM_FAMILIES.names)
    try:
        store.write([(cf, key, value) for (cf, key), value in rows.items()])
        store.write(
            [
                (TRANSACTION_INFO, DIGEST_PREFIX + name.encode(), whole.pack(position))
                for position, name in enumerate(OM_FAMILIES.names)
            ]
        )
        damage.inject(store, injection, change)
        kept, scanned = digest_kept(store), digest_scanned(store)
        assert all(store.get(row.cf, row.key) == value != rows.get(row) for row, value in change.items())
    finally:
        store.close()
    assert scanned != whole
    assert kept == (whole if injection.at_rest else scanned)
    slots, sums = scanned.slots()
    before = dict(zip(*whole.slots(), strict=True))
    after = dict(zip(slots, sums, strict=True))
    differing = {slot for slot in before.keys() | after.keys() if before.get(slot) != after.get(slot)}
    assert {(OM_FAMILIES.names[slot // 256], slot % 256) for slot in differing} == damage.buckets_of(change)


def test_what_a_batch_leaves_that_is_skipped_or_applied_twice(log: JudgedLog):
    kinds = {one.name: one.change(log.rows(), log, VOLUME) for one in damage.INJECTIONS}
    skipped = {(row.cf, row.key): value for row, value in kinds["a batch skipped"].items()}
    assert skipped[KEY_TABLE, b"/v/bucket/key-3"] is None
    assert skipped[OPEN_KEY_TABLE, b"/v/bucket/key-3/77"] == key_row("key-3")
    assert skipped[USAGE_TABLE, BYTES] == (14).to_bytes(8, "big")
    assert len(skipped) == 5, "and its retry row"
    twice = {row.key: value for row, value in kinds["a batch applied twice"].items()}
    assert twice == {BYTES: (28).to_bytes(8, "big"), KEYS: (4).to_bytes(8, "big")}
    assert {row.key: value for row, value in kinds["a wrong merge"].items()} == {KEYS: (4).to_bytes(8, "big")}


def verdict(word: str) -> Verdict:
    return Verdict(
        cluster="c", shard=0, node="om1", barrier_offset=9, index=3, verdict=word, basis="incremental", differences=[],
        differing_slots=0, evidence=None, reason="why", decided_at_ms=0, log="om.log",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["equal"], False), (["unknown"], False), (["unknown", "unknown", "equal", "equal"], False),
        (["diverged"], True), (["equal", "diverged"], True), (["equal", "unknown"], True),
        (["diverged", "equal"], True), (["unknown", "equal", "unknown"], True),
    ],
)  # fmt: skip
def test_what_last_words_may_be(words: list[str], wrong: bool):
    subject = turmoil.Subject("om1", 9, "incremental")
    assert bool(turmoil._contradictions({subject: list(map(verdict, words))})) is wrong


def test_the_figures_of_a_campaign():
    found = figures([NamingTimes("a", float(n), n + 1.0) for n in range(1, 21)])
    assert (found["injections"], found["kinds"]) == (20, {"a": 20})
    assert (found["verdict_p50_s"], found["verdict_p95_s"]) == (10.0, 19.0)
    assert (found["named_p50_s"], found["named_p95_s"], found["named_max_s"]) == (11.0, 20.0, 21.0)
