"""Manifests, the reach of the kept log, and how a new log begins: the pure part of backups."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_db.core.backup import manifest as records
from replicated_db.core.backup.kept_log import (
    KeptRange,
    NotKept,
    RestoreMoment,
    backup_for,
    check_reached,
    from_where,
    kept_range,
)
from replicated_db.core.backup.manifest import (
    MAX_MEMBERS,
    MAX_SHARD_PARTS,
    VERSION,
    BackupManifest,
    BadManifest,
    FutureManifest,
    LogPiece,
    ShardBackup,
    is_backup_name,
    manifest_from,
)
from replicated_db.core.backup.new_log import INDEX_GAP, MAX_INDEX, TooManyRestores, new_log
from replicated_db.core.bootstrap.listing import (
    MAX_LISTED_BYTES,
    MAX_NUMBER,
    MAX_TEXT_CHARACTERS,
    Content,
    ListedFile,
    ListedPosition,
    Listing,
)
from replicated_db.core.log.position import Position
from replicated_db.core.tables.digests import DigestSlots
from schemas.codecs.codec import decode
from spark_streaming.records.core.reading import AuditPosition, Header, Ruling, read

TOPIC = "topic-1"


def content(number: int) -> Content:
    return Content(f"{number:032x}", 10 + number)


def part(
    offset: int = 9, *, pieces: tuple[tuple[int, int], ...] = (), end: int | None = None, topic: str = TOPIC,
    index: int = 5, timestamp_ms: int = 1000, end_ms: int = 2000, shard: int = 0, shards: int = 1,
) -> ShardBackup:  # fmt: skip
    listing = Listing(
        transfer="0" * 32, node="n1", cluster="c", shard=shard, shards=shards, leader="n1",
        position=ListedPosition(term=3, index=index, offset=offset, record_hash=b"h" * 16),
        files=(ListedFile("db/000001.sst", content(1)),), links=(), kept=frozenset(), remove=frozenset(),
    )  # fmt: skip
    log = tuple(LogPiece(first, stop, content(100 + first)) for first, stop in pieces)
    return ShardBackup(
        listing=listing, digest="ab" * 8, timestamp_ms=timestamp_ms, topic_id=topic, members=("n1", "n2"), level=1,
        log=log, log_end=end if end is not None else (pieces[-1][1] if pieces else offset + 1), log_end_ms=end_ms,
        fetched_bytes=1, saved_bytes=2,
    )  # fmt: skip


def manifest(*parts: ShardBackup, name: str = "one", created_at_ms: int = 1) -> BackupManifest:
    return BackupManifest(
        name=name, created_at_ms=created_at_ms, cluster="c", shards=len(parts), parts=parts, service={"blocks": "none"}
    )


# The record.


def test_a_manifest_comes_back_as_it_was_written():
    made = manifest(part(pieces=((10, 14), (14, 20)), shards=2), part(shard=1, shards=2))
    assert manifest_from(made.to_json()) == made
    assert {one.digest for one in made.contents()} == {content(n).digest for n in (1, 110, 114)}


def test_files_and_offsets_up_to_the_limits_come_back_too():
    made = replace(
        manifest(part(pieces=((0, 10), (10, MAX_NUMBER)))), service_files=(content(7), Content("ab" * 16, 0))
    )
    found = manifest_from(made.to_json())
    assert found == made
    assert {content(7), Content("ab" * 16, 0)} < found.contents()


def test_a_later_version_is_told_apart():
    with pytest.raises(FutureManifest, match=f"version {VERSION + 1}: .* upgrade"):
        manifest_from({**manifest(part()).to_json(), "version": VERSION + 1})
    with pytest.raises(BadManifest, match="version"):
        manifest_from([])


BROKEN: list[tuple[tuple[Any, ...], Any, str]] = [
    (("name",), "../x", "name"),
    (("name",), 7, "name"),
    (("shards",), 2, "parts: 1 of 2|shard 0 of 1"),
    (("shards",), 0, "shards"),
    (("cluster",), "other", "of cluster 'c', not 'other'"),
    (("service",), [], "service"),
    (("service_files",), [["ab" * 16]], "service_files: a file is digest, size"),
    (("service_files",), [["xyz", 1]], "service_files: a file is digest, size"),
    (("service_files",), [[7, 1]], "service_files: a file is digest, size"),
    (("service_files",), [["ab" * 16, True]], "service_files: a file is digest, size"),
    (("service_files",), [["ab" * 16, -1]], "service_files: a file is digest, size"),
    (("parts",), {}, "parts"),
    (("parts", 0), 3, r"parts\[0\]"),
    (("parts", 0, "digest"), "zz", r"parts\[0\]: digest"),
    (("parts", 0, "level"), 0, r"parts\[0\]: level"),
    (("parts", 0, "members"), [""], r"parts\[0\]: members"),
    (("parts", 0, "log"), [[14, 10, "0" * 32, 3]], r"parts\[0\]: log"),
    (("parts", 0, "log"), [[10, 14, "xyz", 3]], r"parts\[0\]: log"),
    (("parts", 0, "log"), [[10, MAX_NUMBER + 1, "0" * 32, 3]], r"parts\[0\]: log"),
    (("parts", 0, "log"), [[10, 14, "0" * 32, 3], [15, 20, "0" * 32, 3]], "offset 15 follows 14"),
    (("parts", 0, "log_end"), 99, "it ends at 20, not at 99"),
    (("parts", 0, "listing", "files", 0, 0), "../../etc/passwd", r"parts\[0\]: files"),
    (("parts", 0, "listing", "shard"), 1, "shard 1 of 1"),
    (("parts", 0, "listing", "kept"), ["s-1"], "checkpoint s-1 is left out"),
]


@pytest.mark.parametrize(("where", "value", "said"), BROKEN)
def test_a_broken_manifest_is_refused_by_the_field(where: tuple[Any, ...], value: Any, said: str):
    with pytest.raises(BadManifest, match=said):
        manifest_from(changed(where, value))


def changed(where: tuple[Any, ...], value: Any) -> Any:
    """Return a good manifest's JSON with another value at one place."""
    given_json: Any = copy.deepcopy(manifest(part(pieces=((10, 14), (14, 20)))).to_json())
    inner = given_json
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    return given_json


@pytest.mark.parametrize(
    ("where", "most", "too_much"),
    [
        (("name",), "n" * 100, "n" * 101),
        (("created_at_ms",), 0, -1),
        (("created_at_ms",), MAX_NUMBER, MAX_NUMBER + 1),
        (("service_files",), [["ab" * 16, 1]] * MAX_SHARD_PARTS, [["ab" * 16, 1]] * (MAX_SHARD_PARTS + 1)),
        (("parts", 0, "level"), 1, 0),
        (("parts", 0, "timestamp_ms"), 0, -1),
        (("parts", 0, "topic_id"), "t" * MAX_TEXT_CHARACTERS, "t" * (MAX_TEXT_CHARACTERS + 1)),
        (("parts", 0, "topic_id"), "t", ""),
        (("parts", 0, "members"), ["n"] * MAX_MEMBERS, ["n"] * (MAX_MEMBERS + 1)),
        (("parts", 0, "members"), ["n" * MAX_TEXT_CHARACTERS], ["n" * (MAX_TEXT_CHARACTERS + 1)]),
        (("parts", 0, "members"), [], "n1"),
        (("parts", 0, "fetched_bytes"), 0, -1),
        (("parts", 0, "saved_bytes"), 0, True),
        (("parts", 0, "log_end_ms"), 0, "0"),
        (("parts", 0, "log", 0, 3), 0, -1),
        (("parts", 0, "log", 0, 3), MAX_LISTED_BYTES, MAX_LISTED_BYTES + 1),
        (("parts", 0, "log", 0, 0), 13, 14),
        (("parts", 0, "log", 0, 0), 0, -1),
    ],
)
def test_what_is_exactly_as_much_as_may_be_is_taken(where: tuple[Any, ...], most: Any, too_much: Any):
    assert manifest_from(changed(where, most)).shards == 1
    field = next(step for step in reversed(where) if isinstance(step, str))
    with pytest.raises(BadManifest, match=field):
        manifest_from(changed(where, too_much))


def test_a_backup_has_as_many_shards_as_the_limit_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "MAX_SHARD_PARTS", 2)
    two = manifest(*(part(shard=shard, shards=2) for shard in range(2)))
    assert manifest_from(two.to_json()) == two
    three = manifest(*(part(shard=shard, shards=3) for shard in range(3)))
    with pytest.raises(BadManifest, match=r"shards: '3' is no number in 1..2"):
        manifest_from(three.to_json())


def test_a_part_has_as_many_pieces_of_the_log_as_the_limit_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "MAX_LOG_PIECES", 2)
    assert len(manifest_from(changed(("name",), "one")).part(0).log) == 2
    monkeypatch.setattr(records, "MAX_LOG_PIECES", 1)
    with pytest.raises(BadManifest, match="log: a list of at most 1 entries"):
        manifest_from(changed(("name",), "one"))


def test_a_wrong_value_is_shown_cut():
    for where in (("created_at_ms",), ("parts", 0, "log", 0, 2)):
        with pytest.raises(BadManifest) as refused:
            manifest_from(changed(where, "x" * 5_000))
        assert "x" * MAX_TEXT_CHARACTERS in str(refused.value)
        assert "x" * (MAX_TEXT_CHARACTERS + 1) not in str(refused.value)


@pytest.mark.parametrize("version", [VERSION - 1, None, "1", 1.5])
def test_a_record_of_no_version_is_none(version: Any):
    with pytest.raises(BadManifest, match="version: .* is unknown"):
        manifest_from(changed(("version",), version))


@pytest.mark.parametrize(("name", "is_one"), [("a", True), ("a" * 100, True), ("a" * 101, False), (".a", False)])
def test_a_backup_has_a_name_that_is_a_folders(name: str, is_one: bool):
    assert is_backup_name(name) is is_one


def test_moments_in_words():
    assert [str(one) for one in (RestoreMoment(), RestoreMoment(index=0), RestoreMoment(time_ms=0))] == [
        "the end", "index 0", "time 0 ms",
    ]  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=10,
)  # fmt: skip


@settings(max_examples=30)
@given(st.data())
def test_no_json_does_anything_but_be_refused(data: st.DataObject):
    """Any field, at any depth, replaced by anything."""
    given_json: Any = copy.deepcopy(manifest(part(pieces=((10, 14),))).to_json())
    inner: Any = given_json
    while True:
        step = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        if not isinstance(inner[step], dict | list) or not inner[step] or data.draw(st.booleans()):
            inner[step] = data.draw(JSON)
            break
        inner = inner[step]
    with suppress(BadManifest):
        assert manifest_from(given_json).shards == 1


# How far the kept log reaches.


def test_the_log_is_kept_from_the_end_of_the_last_backup_on():
    first = part(9, pieces=((10, 30),))
    assert from_where([], TOPIC, 9, 0) == 10
    assert from_where([first], TOPIC, 50, 0) == 30
    assert from_where([first], TOPIC, 25, 0) == 26, "a replica that was behind: its own position comes first"
    assert from_where([first], TOPIC, 50, 31) == 51, "the log was trimmed in between"
    assert from_where([first], "another topic", 50, 0) == 51


def test_a_range_is_joined_over_backups_and_ends_at_a_gap():
    one = part(9, pieces=((10, 30),), end_ms=100)
    two = part(50, pieces=((30, 60),), end_ms=200)
    four = part(90, pieces=((70, 99),), end_ms=300)
    found = kept_range([one, two, four], one)
    assert [(piece.first, piece.end) for piece in found.pieces] == [(10, 30), (30, 60)]
    assert (found.first, found.end, found.end_ms) == (10, 60, 200)
    assert kept_range([one, replace(two, topic_id="x")], one).end == 30


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=6), st.integers(0, 30))
def test_a_range_holds_each_record_that_can_be_reached(spans: list[tuple[int, int]], position: int):
    """Against the plain way: go on as long as some piece has the next record."""
    parts = [part(0, pieces=((first, first + count),)) for first, count in spans]
    begin = part(position)
    found = kept_range([begin, *parts], begin)
    offset = position + 1
    while any(first <= offset < first + count for first, count in spans):
        offset += 1
    assert (found.first, found.end) == (position + 1, offset)
    reached = position + 1
    for piece in found.pieces:
        assert piece.first <= reached < piece.end
        reached = piece.end
    assert reached == offset


def test_the_backup_to_begin_with_is_the_last_one_before_the_moment():
    early = manifest(part(9, index=5, timestamp_ms=100), name="early")
    late = manifest(part(50, index=40, timestamp_ms=900), name="late")
    assert backup_for([early, late], [RestoreMoment(index=40)]) is late
    assert backup_for([early, late], [RestoreMoment(index=39)]) is early
    assert backup_for([early, late], [RestoreMoment(time_ms=899)]) is early
    assert backup_for([early, late], [RestoreMoment()]) is late
    with pytest.raises(NotKept, match="index 4 lies before the first backup: shard 0 of early is at index 5"):
        backup_for([early, late], [RestoreMoment(index=4)])


def test_a_moment_behind_what_is_kept_is_refused():
    kept = KeptRange(first=10, end=60, end_ms=2000, pieces=())
    check_reached(0, RestoreMoment(), kept, 5, passed=False)
    check_reached(0, RestoreMoment(index=5), kept, 5, passed=False)
    check_reached(0, RestoreMoment(time_ms=2000), kept, 5, passed=False)
    check_reached(0, RestoreMoment(index=9), kept, 5, passed=True)
    with pytest.raises(NotKept, match="index 6 lies behind what the backups keep, which ends with index 5"):
        check_reached(0, RestoreMoment(index=6), kept, 5, passed=False)
    with pytest.raises(NotKept, match="ends at 2000 ms"):
        check_reached(0, RestoreMoment(time_ms=2001), kept, 5, passed=False)


# How a new log begins.

POSITION = Position(
    topic_id="old", offset=77, term=4, nonce=b"n" * 16, seq=12, chain=b"c" * 32, index=30, timestamp_ms=9
)
SUMS = DigestSlots([3, 8], [-5, 7])


def begun(**changed: Any) -> Any:
    options: dict[str, Any] = {"topic_id": "new", "backup": "b", "created_at_ms": 1, "level": 1} | changed
    return new_log(POSITION, SUMS, ["n1", "n2"], **options)


def test_terms_indexes_and_chain_go_on_rising():
    made = begun()
    claim, base, members = (decode(value) for value in made.values)
    assert (claim.term, claim.node) == (5, "restore")
    assert (base.term, base.nonce, base.seq, members.seq) == (5, claim.nonce, 1, 2)
    assert base.index == members.index == 30 + INDEX_GAP
    assert (base.slots, base.sums) == SUMS
    assert members.replicas == ["n1", "n2"]
    assert (made.before.offset, made.before.chain, made.before.topic_id) == (-1, b"c" * 32, "new")


def test_it_is_the_same_each_time_and_another_one_elsewhere():
    assert begun() == begun()
    assert begun().values != begun(topic_id="other").values


def test_the_auditor_reads_it_as_a_trimmed_log():
    _, base, members = (decode(value) for value in begun().values)
    position = AuditPosition()
    rulings = []
    for offset, record in ((1, base), (2, members)):
        header = Header(
            offset=offset, kind=type(record).__name__, term=record.term, nonce=record.nonce, seq=record.seq,
            prev_chain=record.prev_chain, chain_after=b"%d" % offset * 32, index=record.index,
            replicas=tuple(getattr(record, "replicas", ())),
        )  # fmt: skip
        if offset == 2:
            position = replace(position, chain=record.prev_chain)
        position, ruling = read(position, header)
        rulings.append(ruling)
    assert rulings == [Ruling.OPENS_BASE, Ruling.COUNTS]
    assert (position.base_offset, position.base_index, position.members) == (1, 30 + INDEX_GAP, ("n1", "n2"))


def test_a_shard_without_room_for_another_gap_is_refused():
    full = replace(POSITION, index=MAX_INDEX - 2 * INDEX_GAP)
    new_log(full, SUMS, ["n1"], topic_id="t", backup="b", created_at_ms=1, level=7)
    with pytest.raises(TooManyRestores, match="leaves no room"):
        new_log(replace(full, index=full.index + 1), SUMS, ["n1"], topic_id="t", backup="b", created_at_ms=1, level=7)
