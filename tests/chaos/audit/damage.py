"""Six ways in which a replica may come to hold something else than its log says, each made in a stopped node's database.

Three change rows at rest: the digest that the replica keeps does not know of it, and only a scan sees it. Three are what a replica would
hold that has applied a batch wrongly: its rows and its digest agree with each other, and not with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from om_processors.execution.service import OM_FAMILIES
from replicated_db.core.tables.digest_rows import DigestRows
from replicated_db.core.tables.digests import Digests
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import BUCKETS, KEY_TABLE, USAGE_TABLE
from schemas.records.log import Batch, Merge
from schemas.records.rows import KeyInfo
from tests.chaos.audit.world import BUCKET
from tests.support.logs.judged_log import JudgedLog
from tests.support.logs.logbuilder import Rows, merged, row_hash, slot_of

ONE = (1).to_bytes(8, "big")


class DamagedRow(NamedTuple):
    """A row by column family and key."""

    cf: str
    key: bytes


Change = Mapping[DamagedRow, bytes | None]
"""Rows and their new values; None: the row is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A kind of damage. ``change`` computes the rows to change; ``at_rest``: the kept digest stays as it was."""

    name: str
    change: Callable[[Rows, JudgedLog, str], Change]
    at_rest: bool


def _key_row(volume: str, key: str) -> DamagedRow:
    return DamagedRow(KEY_TABLE, f"/{volume}/{BUCKET}/{key}".encode())


def _flipped(rows: Rows, _log: JudgedLog, volume: str) -> Change:
    row = _key_row(volume, "key-1")
    return {row: rows[row][:-1] + bytes([rows[row][-1] ^ 1])}


def _missing(_rows: Rows, _log: JudgedLog, volume: str) -> Change:
    return {_key_row(volume, "key-2"): None}


def _extra(rows: Rows, _log: JudgedLog, volume: str) -> Change:
    info = decode_as(KeyInfo, rows[_key_row(volume, "key-1")])
    return {_key_row(volume, "stray"): encode(replace(info, metadata={"from": "nowhere"}))}


def _skipped(rows: Rows, log: JudgedLog, _volume: str) -> Change:
    """What the last batch has changed is as it was before it."""
    before = replace(log, records=[one for one in log.records if one.record is not _last_batch(log)]).rows()
    changed = {row for row in rows.keys() | before.keys() if rows.get(row) != before.get(row)}
    return {DamagedRow(*row): before.get(row) for row in changed}


def _twice(rows: Rows, log: JudgedLog, _volume: str) -> Change:
    """The last batch once more: a Put gives the same row again, a Merge another one."""
    changed: dict[DamagedRow, bytes | None] = {}
    for operation in _last_batch(log).operations:
        if isinstance(operation, Merge):
            row = DamagedRow(operation.cf, operation.key)
            changed[row] = merged(changed.get(row) or rows[row], operation.operand)
    return {row: value for row, value in changed.items() if value != rows[row]}


def _wrong_merge(rows: Rows, log: JudgedLog, _volume: str) -> Change:
    """A counter of the last batch is one more than it should be."""
    counters = [one for one in _last_batch(log).operations if isinstance(one, Merge) and one.cf == USAGE_TABLE]
    row = DamagedRow(counters[-1].cf, counters[-1].key)
    return {row: merged(rows[row], ONE)}


def _last_batch(log: JudgedLog) -> Batch:
    """Return the last batch that changes rows: of the commit of the volume's last key."""
    batches: list[Batch] = log.counting(Batch)
    return next(batch for batch in reversed(batches) if batch.operations)


INJECTIONS = (
    Injection(name="a flipped bit in a value", change=_flipped, at_rest=True),
    Injection(name="a missing row", change=_missing, at_rest=True),
    Injection(name="an extra row", change=_extra, at_rest=True),
    Injection(name="a batch skipped", change=_skipped, at_rest=False),
    Injection(name="a batch applied twice", change=_twice, at_rest=False),
    Injection(name="a wrong merge", change=_wrong_merge, at_rest=False),
)


def inject(store: RocksStore, injection: Injection, change: Change) -> None:
    """Change rows of an open database; unless it happens at rest, the digest changes with them."""
    writes: list[tuple[str, bytes, bytes | None]] = [(row.cf, row.key, value) for row, value in change.items()]
    if not injection.at_rest:
        writes += _digest_writes(store, change)
    store.write(writes)


def _digest_writes(store: RocksStore, change: Change) -> list[tuple[str, bytes, bytes | None]]:
    digests, rows = Digests(OM_FAMILIES), DigestRows(OM_FAMILIES)
    rows.read(store, digests)
    for row, value in change.items():
        digests.change({slot_of(row.cf, row.key): _hash(row, value) - _hash(row, store.get(row.cf, row.key))})
    return rows.whole(digests)


def _hash(row: DamagedRow, value: bytes | None) -> int:
    return 0 if value is None else row_hash(row.cf, row.key, value)


def buckets_of(change: Change) -> set[tuple[str, int]]:
    """Return the digest buckets of the changed rows."""
    return {(row.cf, slot_of(row.cf, row.key) % BUCKETS) for row in change}
