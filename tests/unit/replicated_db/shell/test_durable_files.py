"""What survives a loss of power: bytes are on the disk before their name, and names before what refers to them.

The system's calls are the real ones; they are noted on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicated_db.core.bootstrap.listing import Content, ListedFile, ListedPosition, Listing
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.ports import Entry
from replicated_db.shell.backup.log_files import keep_entries
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from replicated_db.shell.backup.tree import build_tree, copy_trees, sync_tree
from replicated_db.shell.bootstrap.candidate import Candidate
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from replicated_db.shell.bootstrap.install import finish, install, journal_of, replaced_folder
from transport.files.durable_files import copy_durably, sync_folder, write_durably

PEER = ServingPeer("n1", "n1:1")


class Disk:
    """What was asked of the disk, in order: ("sync", path), ("name", new path), ("gone", path)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.done: list[tuple[str, str]] = []

    def note(self, what: str, path: str | os.PathLike[str]) -> None:
        self.done.append((what, os.path.relpath(path, self._folder)))

    def place(self, what: str, path: str) -> int:
        """Return when something was done first."""
        assert (what, path) in self.done, self.done
        return self.done.index((what, path))

    def last(self, what: str, path: str) -> int:
        """Return when something was done last."""
        assert (what, path) in self.done, self.done
        return len(self.done) - 1 - self.done[::-1].index((what, path))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk(tmp_path)
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def noted_fsync(descriptor: int) -> None:
        found.note("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(source: Any, target: Any, **more: Any) -> None:
        rename(source, target, **more)
        found.note("name", target)

    def noted_unlink(path: Any, **more: Any) -> None:
        unlink(path, **more)
        if not more:
            found.note("gone", path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(os, "unlink", noted_unlink)
    return found


def listing_of(files: dict[str, bytes], digests: ContentDigests, folder: Path) -> Listing:
    listed = []
    for path, data in files.items():
        place = folder / path.replace("/", "-")
        place.write_bytes(data)
        listed.append(ListedFile(path, digests.of(place)))
    return Listing(
        transfer="0" * 32, node="n1", cluster="c", shard=0, shards=1, leader="n1",
        position=ListedPosition(term=3, index=1, offset=1, record_hash=b"h" * 16),
        files=tuple(listed), links=(), kept=frozenset(), remove=frozenset(),
    )  # fmt: skip


def test_a_file_is_written_whole_before_it_has_its_name_and_then_the_name_is_kept(tmp_path: Path, disk: Disk) -> None:
    write_durably(tmp_path / "mark.json", "text")
    assert (tmp_path / "mark.json").read_text() == "text"
    assert disk.done == [("sync", "mark.json.tmp"), ("name", "mark.json"), ("sync", ".")]


def test_a_copy_is_on_the_disk_and_takes_nobodys_place(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    copy_durably(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"x" * 100_000
    assert disk.done == [("sync", "b")]
    with pytest.raises(FileExistsError):
        copy_durably(tmp_path / "a", tmp_path / "b")


def test_the_bytes_are_in_the_file_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python still holds back is not on the disk."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr("transport.files.durable_files.sync_folder", lambda _: None)
    write_durably(tmp_path / "mark.json", "text")
    copy_durably(tmp_path / "mark.json", tmp_path / "copy")
    assert sizes == [4, 4]


def test_a_folder_that_is_not_there_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "file")


def test_no_descriptor_is_left_of_a_folder_that_was_synced(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sync_folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


# -- backups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_repository(tmp_path: Path) -> Callable[[Callable[[BackupRepository], None]], None]:
    def act(story: Callable[[BackupRepository], None]) -> None:
        with opened(tmp_path / "b", cluster="c", writes=True) as repository:
            repository.scratch.mkdir()
            story(repository)

    return act


InRepository = Callable[[Callable[[BackupRepository], None]], None]


def test_a_content_of_a_backup_is_durable_with_its_name(in_repository: InRepository, disk: Disk) -> None:
    def story(repository: BackupRepository) -> None:
        path = repository.scratch / "x"
        path.write_bytes(b"abc")
        disk.done.clear()
        content = repository.keep_file(path)
        digest, folder = content.digest, f"b/content/{content.digest[:2]}"
        assert disk.done == [
            ("sync", "b/scratch/x"), ("name", f"{folder}/{digest}.part"), ("name", f"{folder}/{digest}"), ("sync", folder),
            ("sync", "b/content"),
        ]  # fmt: skip
        path.write_bytes(b"abc")
        assert repository.keep_file(path) == content
        assert not path.exists(), "it is there already, and nothing is left over"

    in_repository(story)


def test_a_file_that_changes_while_it_is_kept_is_refused(in_repository: InRepository) -> None:
    def story(repository: BackupRepository) -> None:
        path = repository.scratch / "x"
        path.write_bytes(b"abc")
        digests = iter([Content("a" * 32, 3), Content("b" * 32, 3)])
        repository._digests.of = lambda *_, **__: next(digests)  # type: ignore[method-assign]
        with pytest.raises(BackupFailed, match="it has changed while it was read"):
            repository.keep_file(path)

    in_repository(story)


def test_records_of_the_log_are_durable_before_they_are_part_of_a_backup(
    in_repository: InRepository, disk: Disk
) -> None:  # fmt: skip
    def story(repository: BackupRepository) -> None:
        told: list[int] = []
        entries = [Entry(offset=7 + number, timestamp_ms=number - 1, value=b"v" * number) for number in range(3)]
        disk.done.clear()
        (piece,) = keep_entries(repository, entries, 7, told.append)
        assert (piece.first, piece.end) == (7, 10)
        name = disk.place("name", f"b/content/{piece.content.digest[:2]}/{piece.content.digest}")
        assert disk.place("sync", "b/scratch/log-7") < name
        assert sum(told) == piece.content.size - len(b"SLOG0001")
        assert os.listdir(repository.scratch) == []

    in_repository(story)


def test_backups_are_gone_for_good_before_their_files_are(in_repository: InRepository, disk: Disk) -> None:
    def story(repository: BackupRepository) -> None:
        assert repository.prune(3) == ([], 0)
        assert ("sync", "b/backups") not in disk.done, "there was nothing to forget"

    in_repository(story)


def test_a_tree_of_a_backup_is_durable_unless_it_is_only_read(
    in_repository: InRepository, disk: Disk, tmp_path: Path
) -> None:  # fmt: skip
    def story(repository: BackupRepository) -> None:
        files = {"db/000001.sst": b"table", "db/CURRENT": b"c", "checkpoints/s-1/000002.sst": b"other"}
        listing = listing_of(files, ContentDigests(), tmp_path)
        for path in files:
            repository.keep_file(tmp_path / path.replace("/", "-"))
        copied: list[int] = []
        disk.done.clear()
        build_tree(repository, listing, tmp_path / "tree", linked=False, progress=copied.append)
        assert {path: (tmp_path / "tree" / path).read_bytes() for path in files} == files
        assert sorted(copied) == [1, 5, 5]
        folders = ["tree", "tree/db", "tree/checkpoints", "tree/checkpoints/s-1", "."]
        assert {("sync", path) for path in [*folders, *(f"tree/{path}" for path in files)]} <= set(disk.done)
        disk.done.clear()
        copied.clear()
        build_tree(repository, listing, tmp_path / "tree", linked=True, progress=copied.append)
        assert disk.done == [("sync", "tree/db/CURRENT")], "what may change is copied, the rest is linked"
        assert copied == [1]
        assert (tmp_path / "tree" / "db" / "000001.sst").stat().st_nlink == 2

    in_repository(story)


def test_a_tree_needs_all_of_its_files(in_repository: InRepository, tmp_path: Path) -> None:
    def story(repository: BackupRepository) -> None:
        listing = listing_of({"db/000001.sst": b"table"}, ContentDigests(), tmp_path)
        for linked in (False, True):
            with pytest.raises(BackupFailed, match=r"it is damaged or missing; the backup needs it as db/000001\.sst"):
                build_tree(repository, listing, tmp_path / "tree", linked=linked)
        (one,) = listing.files
        repository.keep_file(tmp_path / "db-000001.sst")
        repository.path_of(one.content).write_bytes(b"other")
        with pytest.raises(BackupFailed, match="it is damaged or missing"):
            build_tree(repository, listing, tmp_path / "tree", linked=False)

    in_repository(story)


def test_copies_of_folders_keep_what_is_one_file_one_file(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "a").write_bytes(b"shared")
    os.link(tmp_path / "one" / "a", tmp_path / "one" / "inner" / "b")
    os.link(tmp_path / "one" / "a", tmp_path / "two" / "c")
    (tmp_path / "two" / "d").write_bytes(b"alone")
    copied: list[int] = []
    copy_trees({tmp_path / "one": tmp_path / "to" / "1", tmp_path / "two": tmp_path / "to" / "2"}, copied.append)
    found = [tmp_path / "to" / path for path in ("1/a", "1/inner/b", "2/c")]
    assert len({path.stat().st_ino for path in found}) == 1
    assert {path.read_bytes() for path in found} == {b"shared"}
    assert (tmp_path / "to" / "2" / "d").read_bytes() == b"alone"
    assert sorted(copied) == [5, 6]
    assert [path for what, path in disk.done if what == "sync"] == ["to/1/a", "to/2/d"]
    with pytest.raises(BackupFailed, match="File exists"):
        copy_trees({tmp_path / "one": tmp_path / "to" / "1"})


def test_all_names_in_a_tree_are_synced_and_its_own(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "t" / "a" / "b").mkdir(parents=True)
    sync_tree(tmp_path / "t")
    assert disk.done == [("sync", "t"), ("sync", "t/a"), ("sync", "t/a/b"), ("sync", ".")]


# -- candidates --------------------------------------------------------------------------------------------------------

FILES = {"db/000001.sst": b"table", "db/CURRENT": b"c", "checkpoints/s-1/000001.sst": b"table"}


@pytest.fixture
def candidate(tmp_path: Path, disk: Disk) -> tuple[Candidate, Listing]:
    """A candidate with all contents of a listing."""
    listing = listing_of(FILES, ContentDigests(), tmp_path)
    made = Candidate(tmp_path / "shard-0", ContentDigests())
    made.open()
    made.mark(PEER, listing)
    for path, content in {(one.path, one.content) for one in listing.files}:
        if content not in made.have:
            made.part_of(content).write_bytes(FILES[path])
            assert made.accept(content)
    return made, listing


def test_what_a_candidate_accepts_is_durable_with_its_name(candidate: tuple[Candidate, Listing], disk: Disk) -> None:
    _, listing = candidate
    folder = "shard-0.candidate/content"
    for one in listing.files:
        assert disk.place("name", f"{folder}/{one.content.digest}") < disk.last("sync", folder)


def test_a_candidates_tree_is_durable_before_it_is_installed(
    candidate: tuple[Candidate, Listing], disk: Disk, tmp_path: Path
) -> None:  # fmt: skip
    made, listing = candidate
    disk.done.clear()
    copied: list[int] = []
    made.build(listing, copied.append)
    tree = "shard-0.candidate/tree"
    folders = [f"{tree}/db", f"{tree}/checkpoints/s-1", f"{tree}/checkpoints", tree, "shard-0.candidate", "."]
    assert disk.done == [("sync", f"{tree}/db/CURRENT"), *(("sync", path) for path in folders)]
    assert copied == [1]
    disk.done.clear()
    install(tmp_path / "shard-0", "record")
    assert (tmp_path / "shard-0" / "CURRENT").read_bytes() == b"c"
    journal = disk.place("name", "shard-0.install")
    for part in ("db", "checkpoints"):
        assert disk.place("sync", f"{tree}/{part}") < journal, "whole before the journal says so"
    for target in ("shard-0", "shard-0.checkpoints"):
        placed = disk.place("name", target)
        assert journal < placed < disk.last("sync", tree)
        assert placed < disk.place("gone", "shard-0.install"), "the journal goes last"
    assert disk.place("gone", "shard-0.install") < disk.last("sync", ".")


def test_what_an_install_replaces_is_put_aside_and_then_removed(
    candidate: tuple[Candidate, Listing], disk: Disk, tmp_path: Path
) -> None:  # fmt: skip
    made, listing = candidate
    made.build(listing)
    database = tmp_path / "shard-0"
    database.mkdir()
    (database / "old").touch()
    disk.done.clear()
    install(database, "record")
    aside = disk.place("name", "shard-0.replaced/db")
    assert disk.done[aside + 1 : aside + 3] == [("sync", "shard-0.replaced"), ("sync", ".")]
    assert aside < disk.place("name", "shard-0")
    assert not replaced_folder(database).exists()
    assert not journal_of(database).exists()
    assert sorted(path.name for path in database.iterdir()) == ["000001.sst", "CURRENT"]
    assert finish(database) == 0, "nothing is left to do"
