"""The cache of open checkpoints, on real RocksDB directories."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from om_processors.snapshots.checkpoints import CheckpointName, CheckpointUnreadable, RocksCheckpoints
from om_processors.snapshots.open_snapshots import OpenSnapshots, SnapshotsBusy
from replicated_db.shell.rocks import RocksStore

FAMILY = "keyTable"
S1, S2, S3 = (CheckpointName(0, name) for name in ("s1", "s2", "s3"))


class Counted(RocksCheckpoints):
    """Real checkpoints that say what is opened and closed, and open only when they may."""

    def __init__(self, databases, families):
        super().__init__(databases, families)
        self.opened, self.closed = [], []
        self.may_open = threading.Event()
        self.may_open.set()
        self.asked = threading.Event()

    def open(self, which):
        self.asked.set()
        assert self.may_open.wait(30)
        view = super().open(which)
        self.opened.append(which)
        close = view.close

        def closing():
            self.closed.append(which)
            close()

        setattr(view, "close", closing)  # noqa: B010 - mypy lets nobody assign a method
        return view


@pytest.fixture(name="store")
def _store(tmp_path):
    store = RocksStore(tmp_path / "shard-0", [FAMILY])
    for number, which in enumerate((S1, S2, S3), 1):
        store.write([(FAMILY, b"k%06d" % row, b"%d" % number) for row in range(2000)])
        store.checkpoint(which.name)
    yield store
    store.close()


@pytest.fixture(name="checkpoints")
def _checkpoints(store):
    return Counted({0: store.path}, [FAMILY])


def value(cache, which, key=b"k000001"):
    with cache.reading(which) as view:
        return view.get(FAMILY, key)


def test_a_snapshot_is_opened_once_and_its_rows_do_not_change(store, checkpoints):
    cache = OpenSnapshots(checkpoints)
    store.write([(FAMILY, b"k000001", None)])
    assert [value(cache, which) for which in (S1, S2, S1, S3, S1)] == [b"1", b"2", b"1", b"3", b"1"]
    assert checkpoints.opened == [S1, S2, S3]
    with cache.reading(S2) as view:
        assert len(list(view.iterate(FAMILY, b"k000100", b"k000200"))) == 100
        assert view.get("transactionInfoTable", b"none") is None
    cache.close()
    assert sorted(checkpoints.closed) == [S1, S2, S3]


def test_the_least_recently_used_that_nobody_reads_makes_room(checkpoints):
    cache = OpenSnapshots(checkpoints, limit=2)
    with cache.reading(S1) as first:
        value(cache, S2)
        assert value(cache, S3) == b"3"
        assert checkpoints.closed == [S2]
        assert first.get(FAMILY, b"k000001") == b"1"
        assert cache.names() == [S1, S3]
    value(cache, S2)  # the first one was used longer ago than the third
    assert checkpoints.closed == [S2, S1]
    cache.close()


def test_one_more_than_are_read_is_refused_and_taken_later(checkpoints):
    cache = OpenSnapshots(checkpoints, limit=2)
    with cache.reading(S1), cache.reading(S2):
        with pytest.raises(SnapshotsBusy, match="2 snapshots are being read"):
            value(cache, S3)
        assert value(cache, S1) == b"1"
    assert value(cache, S3) == b"3"
    cache.close()


def test_others_wait_while_a_snapshot_is_opened(checkpoints):
    cache = OpenSnapshots(checkpoints)
    checkpoints.may_open.clear()
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(value, cache, S1) for _ in range(4)]
        assert checkpoints.asked.wait(30)
        checkpoints.may_open.set()
        assert [one.result(30) for one in found] == [b"1"] * 4
    assert checkpoints.opened == [S1]
    cache.close()


def test_a_checkpoint_that_is_absent_is_refused_and_leaves_nothing(checkpoints):
    cache = OpenSnapshots(checkpoints)
    absent = CheckpointName(0, "no-such")
    with pytest.raises(CheckpointUnreadable, match="no-such is not there"):
        value(cache, absent)
    with pytest.raises(CheckpointUnreadable, match="there is no database"):
        RocksCheckpoints.open(checkpoints, absent)
    assert not checkpoints.folder(absent).exists()
    assert cache.names() == []


def test_a_damaged_checkpoint_is_refused_and_may_come_back(checkpoints):
    cache = OpenSnapshots(checkpoints)
    current = checkpoints.folder(S1) / "CURRENT"
    text = current.read_bytes()
    current.write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(CheckpointUnreadable, match="does not open"):
        value(cache, S1)
    current.write_bytes(text)
    assert value(cache, S1) == b"1"
    cache.close()


def test_a_reader_goes_on_when_the_directory_is_removed_and_later_ones_are_refused(checkpoints):
    cache = OpenSnapshots(checkpoints)
    with cache.reading(S1) as view:
        rows = view.iterate(FAMILY, b"")
        next(rows)
        assert not cache.drop(S1)
        shutil.rmtree(checkpoints.folder(S1))
        with pytest.raises(CheckpointUnreadable, match="not there"):
            value(cache, S1)
        assert len(list(rows)) == 1999
        assert checkpoints.closed == []
    assert checkpoints.closed == [S1]
    assert cache.drop(S1)
    cache.close()


def test_a_directory_that_vanishes_unannounced_is_closed_at_the_next_use_of_the_cache(checkpoints):
    cache = OpenSnapshots(checkpoints)
    value(cache, S1)
    shutil.rmtree(checkpoints.folder(S1))
    value(cache, S2)
    assert checkpoints.closed == [S1]
    assert cache.names() == [S2]
    cache.close()


def test_a_checkpoint_made_anew_is_opened_anew(store, checkpoints):
    cache = OpenSnapshots(checkpoints)
    with cache.reading(S1) as old:
        store.write([(FAMILY, b"k000001", b"new")])
        store.checkpoint("s1")
        assert value(cache, S1) == b"new"
        assert old.get(FAMILY, b"k000001") == b"1"
    assert checkpoints.closed == [S1]
    cache.close()


def test_dropping_waits_for_readers(checkpoints):
    cache = OpenSnapshots(checkpoints)
    reads, may_end = threading.Event(), threading.Event()

    def read():
        with cache.reading(S1) as view:
            reads.set()
            assert may_end.wait(30)
            return view.get(FAMILY, b"k000001")

    with ThreadPoolExecutor(2) as threads:
        reader = threads.submit(read)
        assert reads.wait(30)
        assert not cache.drop(S1)
        dropped = threads.submit(cache.drop, S1, 30)
        may_end.set()
        assert dropped.result(30)
        assert reader.result(30) == b"1"
    assert checkpoints.closed == [S1]


def test_a_snapshot_dropped_while_it_is_opened_leaves_with_its_first_reader(checkpoints):
    cache = OpenSnapshots(checkpoints)
    checkpoints.may_open.clear()
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(value, cache, S1)
        assert checkpoints.asked.wait(30)
        assert not cache.drop(S1)
        checkpoints.may_open.set()
        assert reader.result(30) == b"1"
    assert checkpoints.closed == [S1]
    assert cache.names() == []


def test_a_view_is_refused_once_it_was_given_back(checkpoints):
    cache = OpenSnapshots(checkpoints)
    with cache.reading(S1) as view:
        rows = view.iterate(FAMILY, b"")
        next(rows)
    with pytest.raises(CheckpointUnreadable, match="given back"):
        view.get(FAMILY, b"k000001")
    with pytest.raises(CheckpointUnreadable, match="given back"):
        next(rows)
    cache.close()


def test_a_closed_cache_refuses_and_closes_with_the_last_reader(checkpoints):
    cache = OpenSnapshots(checkpoints)
    with cache.reading(S1) as view:
        cache.close()
        assert view.get(FAMILY, b"k000001") == b"1"
        with pytest.raises(SnapshotsBusy, match="ending"):
            value(cache, S2)
        assert checkpoints.closed == []
    assert checkpoints.closed == [S1]


def test_many_threads_read_more_snapshots_than_may_be_open(checkpoints):
    cache = OpenSnapshots(checkpoints, limit=2)
    refused = []

    def read(number):
        for turn in range(60):
            which = (S1, S2, S3)[(number + turn) % 3]
            try:
                with cache.reading(which) as view:
                    assert view.get(FAMILY, b"k%06d" % turn) == which.name[1:].encode()
                    assert len(list(view.iterate(FAMILY, b"k000000", b"k000050"))) == 50
            except SnapshotsBusy:
                refused.append(which)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(read, number) for number in range(4)]:
            done.result(120)
    assert len(cache.names()) <= 2
    cache.close()
    assert sorted(checkpoints.opened) == sorted(checkpoints.closed)
    assert len(refused) < 240


def test_checkpoints_that_are_made_and_dropped_are_read_whole_or_not_at_all(store, checkpoints):
    cache = OpenSnapshots(checkpoints, limit=2)
    done = threading.Event()

    def read(number):
        found = 0
        while not done.is_set() or not found:
            found += 1
            try:
                with cache.reading((S1, S2, S3)[(number + found) % 3]) as view:
                    assert len(list(view.iterate(FAMILY, b"k000100", b"k000200"))) == 100
            except (CheckpointUnreadable, SnapshotsBusy):
                continue

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read, number) for number in range(2)]
        for turn in range(15):
            for which in (S1, S2, S3):
                store.checkpoint(which.name)
                if turn % 2:
                    cache.drop(which)
                if turn % 3:
                    store.drop_checkpoint(which.name)
        done.set()
        for reader in readers:
            reader.result(60)
    for which in (S1, S2, S3):
        store.drop_checkpoint(which.name)
    assert store.checkpoint_names() == []
    cache.close()
    assert sorted(checkpoints.opened) == sorted(checkpoints.closed)


def test_disk_use_counts_shared_files_and_those_of_this_snapshot_alone(store, checkpoints):
    shared = checkpoints.disk_use(S1)
    files = list(checkpoints.folder(S1).glob("*.sst"))
    assert shared.files == len(files) > 0
    assert shared.total_bytes == sum(file.stat().st_size for file in files)
    assert shared.only_bytes == 0
    # A second name within the checkpoint is the same file.
    os.link(files[0], files[0].with_name("999999.sst"))
    assert checkpoints.disk_use(S1) == shared
    files[0].with_name("999999.sst").unlink()
    for other in (S2, S3):
        shutil.rmtree(checkpoints.folder(other))
    store.close()
    shutil.rmtree(store.path)
    alone = checkpoints.disk_use(S1)
    assert (alone.total_bytes, alone.only_bytes) == (shared.total_bytes, shared.total_bytes)
    with pytest.raises(CheckpointUnreadable, match="not there"):
        checkpoints.disk_use(S2)
