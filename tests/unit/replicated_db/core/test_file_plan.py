"""Transfers from two lists of files: whatever both sides hold, the tree is the source, and nothing comes twice."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_db.core.bootstrap import listing
from replicated_db.core.bootstrap.file_plan import (
    CarriedFile,
    folder_digest,
    folders_of,
    is_carried,
    missing,
    offer,
    placement,
)
from replicated_db.core.bootstrap.listing import (
    MAX_LISTED_BYTES,
    MAX_LISTED_FILES,
    MAX_NUMBER,
    MAX_TEXT_CHARACTERS,
    BadListing,
    Content,
    ListedFile,
    ListedPosition,
    Listing,
    TransferRequest,
    is_path,
    listing_from,
    request_from,
)
from replicated_db.core.bootstrap.pace import FetchProgress, TokenBucket, size_words
from replicated_db.core.bootstrap.peer_choice import ServingPeer, view_from

NAMES = ("000001.sst", "000002.sst", "000003.blob", "CURRENT", "MANIFEST-000005", "000007.log", "OPTIONS-000008")
FOLDERS = ("db", "checkpoints/snapshot-1", "checkpoints/snapshot-2", "checkpoints/prepare-9")
CONTENTS = [Content(f"{number:032x}", 100 * number) for number in range(8)]


def is_fixed(path: str) -> bool:
    return path.endswith((".sst", ".blob"))


@st.composite
def disks(draw: st.DrawFn) -> list[CarriedFile]:
    """A node's files; immutable files of one content are one inode, or several."""
    paths = draw(
        st.lists(
            st.sampled_from([f"{folder}/{name}" for folder in FOLDERS for name in NAMES]), unique=True, max_size=20
        )
    )
    found = []
    for number, path in enumerate(paths):
        which = draw(st.integers(0, len(CONTENTS) - 1))
        inode = (1, which) if is_fixed(path) and draw(st.booleans()) else (1, 1000 + number)
        found.append(CarriedFile(file=ListedFile(path, CONTENTS[which]), inode=inode))
    return found


def request_of(disk: list[CarriedFile]) -> TransferRequest:
    folders = folders_of(one.file for one in disk)
    return TransferRequest(
        asker="n2", cluster="test", shard=0, shards=1, offset=-1,
        have=frozenset(one.file.content for one in disk if one.file.is_immutable),
        folders={name: folder_digest(files) for name, files in folders.items()},
    )  # fmt: skip


def listing_of(found: list[CarriedFile], request: TransferRequest) -> Listing:
    made = offer(found, request)
    return Listing(
        transfer="f" * 32, node="n1", cluster="test", shard=0, shards=1, leader="n1",
        position=ListedPosition(term=1, index=2, offset=3, record_hash=b"h" * 16),
        files=made.files, links=made.links, kept=made.kept, remove=made.remove,
    )  # fmt: skip


@given(disks(), disks())
def test_the_tree_equals_the_source(source: list[CarriedFile], own: list[CarriedFile]):
    request = request_from(json.loads(json.dumps(request_of(own).to_json())))
    assert request == request_of(own)
    listing = listing_from(json.loads(json.dumps(listing_of(source, request).to_json())))
    assert listing == listing_of(source, request)
    fetched = missing(listing, request.have)
    assert set(fetched).isdisjoint(request.have)
    assert len(set(fetched)) == len(fetched)
    tree: dict[str, Content] = {}
    inodes: dict[str, tuple[str, ...]] = {}
    for placed in placement(listing):
        assert placed.content in request.have | set(fetched)
        for path in placed.paths:
            assert path not in tree
            tree[path] = placed.content
            inodes[path] = placed.paths
        assert len(placed.paths) == 1 or all(map(is_fixed, placed.paths))
        assert placed.linked == is_fixed(placed.paths[0])
    for name in listing.kept:
        tree |= {one.file.path: one.file.content for one in own if one.file.path.startswith(f"checkpoints/{name}/")}
    assert tree == {one.file.path: one.file.content for one in source}
    by_inode: dict[Any, set[str]] = {}
    for one in source:
        if one.file.path in inodes and one.file.is_immutable:
            by_inode.setdefault(one.inode, set()).add(one.file.path)
    assert all(set(inodes[path]) == paths for paths in by_inode.values() for path in paths)
    assert listing.remove == request.have - {one.content for one in listing.files}


@given(disks())
def test_who_has_everything_fetches_nothing_that_is_immutable(disk: list[CarriedFile]):
    listing = listing_of(disk, request_of(disk))
    assert all(not path.startswith("checkpoints/") for path in (one.path for one in listing.files))
    fetched = missing(listing, request_of(disk).have)
    changing = {one.content for one in listing.files if not one.is_immutable}
    assert set(fetched) <= changing


def good() -> dict[str, Any]:
    found = [
        CarriedFile(file=ListedFile("db/000001.sst", CONTENTS[1]), inode=(1, 1)),
        CarriedFile(file=ListedFile("checkpoints/s-1/000009.sst", CONTENTS[1]), inode=(1, 1)),
        CarriedFile(file=ListedFile("db/CURRENT", CONTENTS[2]), inode=(1, 2)),
    ]
    record: dict[str, Any] = json.loads(json.dumps(listing_of(found, request_of([])).to_json()))
    listing_from(record)
    return record


D1, D2 = CONTENTS[1].digest, CONTENTS[2].digest


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "version: 2 is unknown"),
        ({"files": [["../etc/passwd", D1, 1]]}, "files: '../etc/passwd' is no path"),
        ({"files": [["db/../../x", D1, 1]]}, "is no path"),
        ({"files": [["/etc/passwd", D1, 1]]}, "is no path"),
        ({"files": [["db/..", D1, 1]]}, "is no path"),
        ({"files": [["db/.hidden", D1, 1]]}, "is no path"),
        ({"files": [["checkpoints/a/b/c", D1, 1]]}, "is no path"),
        ({"files": [["checkpoints/../x", D1, 1]]}, "is no path"),
        ({"files": [["db/a\n", D1, 1]]}, "is no path"),
        ({"files": [["db/" + "a" * 200, D1, 1]]}, "is no path"),
        ({"files": [["db/a\u0000b", D1, 1]]}, "is no path"),
        ({"files": [["db/a", D1, 1], ["db/a", D1, 1]]}, "a path occurs twice"),
        ({"files": [["db/a", D1, 1], ["db/b", D1, 2]]}, "one digest has two sizes"),
        ({"files": [["db/a", D1, -1]]}, "no digest and size"),
        ({"files": [["db/a", D1, True]]}, "no digest and size"),
        ({"files": [["db/a", D1, 2**60]]}, "no digest and size"),
        ({"files": [["db/a", D1.upper() + "G", 1]]}, "no digest and size"),
        ({"files": [["db/a", D1, 2**50], ["db/b", D2, 2**50]], "links": []}, "bytes together"),
        ({"files": 7}, "files: a list"),
        ({"files": [7]}, "is not path, digest, size"),
        ({"files": [["db/a", D1, 1]] * (MAX_LISTED_FILES + 1)}, f"at most {MAX_LISTED_FILES}"),
        ({"links": [["db/CURRENT", "db/000001.sst"]]}, "may not be linked"),
        ({"links": [["db/000002.sst"]]}, "is not listed"),
        ({"links": [["db/000001.sst"], ["db/000001.sst"]]}, "is in two groups"),
        ({"links": ["db/000001.sst"]}, "links: a list"),
        ({"kept": ["../x"]}, "no legal name"),
        ({"kept": ["s-1"]}, "is listed, too"),
        ({"transfer": "../x"}, "not 32 hexadecimal digits"),
        ({"position": None}, "position: a record"),
        ({"position": {"term": 1, "index": 1, "offset": -1, "hash": D1}}, "offset: -1 is no number"),
        ({"position": {"term": 1, "index": 1, "offset": 1, "hash": "x"}}, "position.hash"),
        ({"node": ""}, "node"),
        ({"cluster": "c" * 300}, "cluster"),
        ({"shard": 1.5}, "shard: 1.5 is no number"),
        ({"remove": [["x"]]}, "is not digest, size"),
    ],
)
def test_a_hostile_listing_is_refused(changed: dict[str, Any], said: str):
    with pytest.raises(BadListing, match=said.replace(".", r"\.").replace("[", r"\[")):
        listing_from(good() | changed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*good(), "asker", "have", "folders"]), JSON, max_size=6))
def test_any_record_is_taken_or_refused(changed: dict[str, Any]):
    for read in (listing_from, request_from, lambda record: view_from(ServingPeer("n1", "n1:1"), record)):
        try:
            read({**good(), "asker": "n2", "have": [], "folders": {}, "offset": 1, **changed})
        except BadListing:
            continue


@given(JSON)
def test_anything_else_is_refused(record: Any):
    for read in (listing_from, request_from, lambda given: view_from(ServingPeer("n1", "n1:1"), given)):
        with pytest.raises(BadListing):
            read(record)


def test_names_of_folders_in_a_request_are_judged():
    with pytest.raises(BadListing, match="folders"):
        request_from(replace(request_of([]), folders={"../x": D1}).to_json())


@given(st.text(max_size=30))
def test_a_path_leads_nowhere_else(text: str):
    if is_path(text):
        parts = text.split("/")
        assert len(parts) == (2 if parts[0] == "db" else 3)
        assert not any(part in ("", ".", "..") for part in parts)


def test_what_is_not_carried():
    assert not any(map(is_carried, ("LOG", "LOG.old.1", "LOCK", "000001.dbtmp", "snapshot-1.tmp")))
    assert all(map(is_carried, NAMES))


@given(st.lists(st.tuples(st.integers(1, 5_000), st.floats(0, 3)), min_size=1, max_size=50))
def test_a_throttle_holds_its_rate(takes: list[tuple[int, float]]):
    bucket, now, sent = TokenBucket(1_000), 100.0, 0
    for count, pause in takes:
        now += pause + bucket.take(count, now + pause)
        sent += count
        assert sent <= 1_000 * (now - 100.0) + 1_001  # a second's worth may go at once
    assert TokenBucket(0).take(10**12, 0.0) == 0.0


def test_progress_in_words():
    progress = FetchProgress(begun_s=5.0)
    assert progress.words(5.0) == "0 B of 0 B"
    progress.wanted_bytes, progress.got_bytes = 4096, 1024
    assert progress.words(6.0) == "1.0 KiB of 4.0 KiB, 1.0 KiB/s, 3 s left"


def test_what_is_exactly_as_large_as_it_may_be_is_taken():
    record = good()
    most = record | {
        "node": "n" * MAX_TEXT_CHARACTERS, "cluster": "c", "leader": "", "shard": MAX_NUMBER, "shards": 0,
        "position": {"term": 0, "index": MAX_NUMBER, "offset": 0, "hash": D1},
        "files": [["db/a", D1, MAX_LISTED_BYTES], ["db/b", D2, 0]], "links": [], "remove": [[D1, 0]],
    }  # fmt: skip
    found = listing_from(most)
    assert (len(found.node), found.leader, found.shard, found.shards) == (MAX_TEXT_CHARACTERS, "", MAX_NUMBER, 0)
    assert (found.position.index, found.position.offset) == (MAX_NUMBER, 0)
    assert sum(one.content.size for one in found.files) == MAX_LISTED_BYTES
    assert found.remove == {Content(D1, 0)}
    for changed, said in (
        ({"node": "n" * (MAX_TEXT_CHARACTERS + 1)}, "node"), ({"shard": MAX_NUMBER + 1}, "shard"), ({"shards": -1}, "shards"),
        ({"leader": "n" * (MAX_TEXT_CHARACTERS + 1)}, "leader"), ({"leader": None}, "leader"),
        ({"files": [["db/a", D1, MAX_LISTED_BYTES], ["db/b", D2, 1]]}, "bytes together"),
    ):  # fmt: skip
        with pytest.raises(BadListing, match=said):
            listing_from(most | changed)


def test_a_list_may_have_as_many_entries_as_the_limit_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "MAX_LISTED_FILES", 3)
    kept = [f"s-{number}" for number in range(4)]
    record = good() | {"files": [], "links": []}
    assert listing_from(record | {"kept": kept[:3]}).kept == set(kept[:3])
    with pytest.raises(BadListing, match="kept: a list of at most 3 entries"):
        listing_from(record | {"kept": kept})
    asked = request_of([])
    assert len(request_from(replace(asked, folders=dict.fromkeys(kept[:3], D1)).to_json()).folders) == 3
    with pytest.raises(BadListing, match="folders"):
        request_from(replace(asked, folders=dict.fromkeys(kept, D1)).to_json())


def test_an_asking_replica_may_have_read_nothing():
    assert request_from(replace(request_of([]), offset=-1).to_json()).offset == -1
    with pytest.raises(BadListing, match="offset: -2 is no number"):
        request_from(replace(request_of([]), offset=-2).to_json())


def test_what_is_shown_of_a_wrong_value_is_cut():
    with pytest.raises(BadListing) as refused:
        listing_from(good() | {"kept": ["/" * 5_000]})
    assert str(refused.value) == f"kept: {repr('/' * 5_000)[:MAX_TEXT_CHARACTERS]} is no legal name"


def test_a_throttle_lets_a_second_of_bytes_go_after_a_pause_and_no_more():
    bucket = TokenBucket(1_000)
    assert bucket.take(1_000, 50.0) == 0.0
    assert bucket.take(500, 50.0) == 0.5
    assert bucket.take(500, 50.0) == 1.0
    assert bucket.take(0, 51.0) == 0.0
    assert bucket.take(1_500, 1_000.0) == 0.5, "however long the pause was"
    assert TokenBucket(1).take(1, 50.0) == 0.0


def test_bytes_in_words_change_their_unit_at_its_size():
    assert [size_words(count) for count in (0, 1023, 1024, 1024**2 - 1, 1024**2, 1024**3, 3 * 1024**3 // 2)] == [
        "0 B", "1023 B", "1.0 KiB", "1024.0 KiB", "1.0 MiB", "1.0 GiB", "1.5 GiB",
    ]  # fmt: skip


def test_progress_that_has_come_to_its_end_or_has_no_time_yet():
    done = FetchProgress(begun_s=5.0, wanted_bytes=2048, got_bytes=4096)
    assert done.words(7.0) == "4.0 KiB of 2.0 KiB, 2.0 KiB/s, 0 s left"
    assert done.words(5.0) == "4.0 KiB of 2.0 KiB"
    assert FetchProgress(begun_s=5.0, wanted_bytes=2048).words(9.0) == "0 B of 2.0 KiB"
    assert FetchProgress(begun_s=5.0, wanted_bytes=2048, got_bytes=1).words(5.5) == "1 B of 2.0 KiB, 2 B/s, 1024 s left"
