"""Property test: what a diff says of two states of a bucket, against a plain comparison of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_processors.namespace.tables import bucket_prefix, decode_key, prefix_stop
from om_processors.snapdiff.core.entries import (
    CREATE,
    DELETE,
    MODIFY,
    ORDER,
    RENAME,
    DiffEntry,
    finish,
    match_rows,
    report,
)
from replicated_db.core.diffing.sweep import RowChange
from schemas.codecs.codec import encode
from schemas.column_families import KEY_TABLE
from schemas.records.messages import CommitKey, CreateKey, DeleteKey, RenameKey
from schemas.records.rows import KeyInfo
from tests.properties.examples import examples
from tests.support.om.om_world import World

PREFIX = bucket_prefix("vol1", "bucket1")
NAMES = st.sampled_from(["a", "a/b", "a+", "a+0", "a-", "a0", "a1", "b", "b\x00", "é", "\U0001f600"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.just("")),
    st.tuples(st.just("delete"), NAMES, st.just("")),
    st.tuples(st.just("rename"), NAMES, NAMES),
)


class DictScratch:
    """A scratch in memory."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in self.rows.items() if start <= key < stop))


def do(world: World, step: tuple[str, str, str]) -> None:
    kind, name, other = step
    place: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
    names = {info.key for info in keys(world)}
    if kind == "write":
        session = world.session(CreateKey(**place, key=name, size=0)).session_id
        world.do(CommitKey(**place, key=name, session_id=session, size=0, blocks=[]))
    elif kind == "delete" and name in names:
        world.do(DeleteKey(**place, key=name))
    elif kind == "rename" and name in names and other not in names:
        world.do(RenameKey(**place, from_key=name, to_key=other))


def rows(world: World) -> dict[bytes, bytes]:
    return dict(world.tables.iterate(KEY_TABLE, PREFIX, prefix_stop(PREFIX)))


def keys(world: World) -> list[KeyInfo]:
    return [decode_key(value) for value in rows(world).values()]


def diff(found: list[RowChange]) -> list[DiffEntry]:
    scratch = DictScratch()
    take = match_rows(PREFIX, scratch)
    for row in found:
        take(row)
    finish(scratch, lambda: None)
    return [entry for _, entry in report(scratch)]


def expected(old: list[KeyInfo], new: list[KeyInfo]) -> set[DiffEntry]:
    """Compare two states as the table in ``core/entries`` says, with everything in memory."""
    before, after = {info.object_id: info for info in old}, {info.object_id: info for info in new}
    moved = {one for one in before.keys() & after.keys() if before[one].key != after[one].key}
    gone = {before[one].key for one in before.keys() - after.keys()}
    made = {after[one].key for one in after.keys() - before.keys()}
    same = {one for one in before.keys() & after.keys() if before[one].key == after[one].key}
    return {
        *(DiffEntry(kind=RENAME, key=before[one].key, to_key=after[one].key) for one in moved),
        *(DiffEntry(kind=MODIFY, key=before[one].key) for one in same if before[one].update_id != after[one].update_id),
        *(DiffEntry(kind=MODIFY, key=name) for name in gone & made),
        *(DiffEntry(kind=DELETE, key=name) for name in gone - made),
        *(DiffEntry(kind=CREATE, key=name) for name in made - gone),
    }


@given(before=st.lists(STEPS, max_size=15), after=st.lists(STEPS, max_size=15), data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_entries_are_those_of_a_plain_comparison(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    world = World().make()
    for step in before:
        do(world, step)
    old, old_rows = keys(world), rows(world)
    for step in after:
        do(world, step)
    new, new_rows = keys(world), rows(world)
    differing = [
        RowChange(key, old_rows.get(key), new_rows.get(key))
        for key in sorted(old_rows.keys() | new_rows.keys())
        if old_rows.get(key) != new_rows.get(key)
    ]
    # Rows come in any order, and several times.
    shuffled = data.draw(st.permutations(differing + differing[:3]))
    found = diff(shuffled)
    assert set(found) == expected(old, new)
    assert found == sorted(found, key=lambda entry: (ORDER[entry.kind], entry.key.encode()))
    assert len(found) == len(set(found))
    # The entries turn the old names into the new ones.
    names = {info.key for info in old}
    names -= {entry.key for entry in found if entry.kind in (DELETE, RENAME)}
    names |= {entry.to_key or entry.key for entry in found if entry.kind in (CREATE, RENAME)}
    assert names == {info.key for info in new}


def test_a_key_that_is_renamed_and_changed_is_both(self_made: tuple[KeyInfo, KeyInfo]) -> None:
    old, new = self_made
    row = [RowChange(PREFIX + b"old", encode(old), None), RowChange(PREFIX + b"new", None, encode(new))]
    assert diff(row) == [DiffEntry(kind=RENAME, key="old", to_key="new"), DiffEntry(kind=MODIFY, key="old")]


@pytest.fixture
def self_made() -> tuple[KeyInfo, KeyInfo]:
    """Return a key before and after: no request changes a key in place today, apart from its name."""
    world = World().make()
    do(world, ("write", "old", ""))
    old = keys(world)[0]
    return replace(old, key="old"), replace(old, key="new", update_id=99, metadata={"a": "b"})
