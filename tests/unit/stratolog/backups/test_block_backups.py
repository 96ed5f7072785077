"""Blocks in backups: which rows need them, their files, and copies of them in the folders of new datanodes; real files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.containers import block_name
from datanode_processors.blocks.core.checksums import CellChecksums
from datanode_processors.layout import open_folder
from datanode_processors.repair.transfer import stored_rows
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace import ids
from om_processors.namespace.snapshots import snapshot_key
from om_processors.namespace.tables import deleted_key, key_key, open_key_key
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from replicated_db.shell.bootstrap.telling import Telling
from schemas.codecs.block_rows import block_key, decode_block_row, encode_block_row
from schemas.codecs.codec import encode
from schemas.column_families import DELETED_TABLE, KEY_TABLE, OPEN_KEY_TABLE, SNAPSHOT_TABLE
from schemas.records.datanode import BlockRow
from schemas.records.rows import ACTIVE, NEVER_WRITTEN, BlockLocation, KeyInfo, SnapshotInfo
from schemas.sharding import MAX_PIPELINES
from stratolog.backups.block_files import BlockFiles, WrongBytes
from stratolog.backups.block_lists import MAGIC, needed_blocks, read_list, write_list
from stratolog.backups.block_restore import COPIES, place_blocks, rows_for
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings, default_datanodes

CELL = 64 * 1024
PARTITION = 3


def block(number: int, length: int, *, pipeline: str = f"pipeline-{PARTITION}", bcs_id: int = 7) -> BlockLocation:
    return BlockLocation(
        container_id=number * MAX_PIPELINES + PARTITION, local_id=number + 1, offset=0, length=length,
        pipeline=pipeline, bcs_id=bcs_id,
    )  # fmt: skip


def key_of(found: BlockLocation) -> bytes:
    return block_key(found.container_id, found.local_id)


def info(*blocks: BlockLocation, index: int = 5, update_id: int = 6) -> KeyInfo:
    return KeyInfo(
        volume="vol", bucket="bucket", key="k", owner="o", object_id=ids.object_id(0, index), update_id=update_id,
        size=sum(one.length for one in blocks), replication="RATIS/THREE", blocks=list(blocks), metadata={},
        creation_time_ms=1, modification_time_ms=1,
    )  # fmt: skip


def row_of(data: bytes, bcs_id: int = 7) -> bytes:
    cells = CellChecksums(CELL)
    cells.write(0, data)
    return encode_block_row(
        BlockRow(
            bcs_id=bcs_id, length=len(data), bytes_per_checksum=CELL, checksums=cells.packed(len(data)), deleted=False
        )
    )


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[BackupRepository]:
    with opened(tmp_path / "b", cluster="stratolog", writes=True) as made:
        yield made


@pytest.fixture
def telling() -> Iterator[Telling]:
    with Telling(lambda _: None) as made:
        yield made


# What is needed.


def test_blocks_of_keys_and_of_what_snapshots_need():
    store = MemoryStore(OM_FAMILIES.names)
    held, open_one, gone, kept = block(1, 10), block(2, 10), block(3, 10), block(4, 10)
    never, unstored = block(5, 10, bcs_id=NEVER_WRITTEN), block(6, 10, pipeline="pipeline-1")
    store.write(
        [
            (KEY_TABLE, key_key("vol", "bucket", "a"), encode(info(held, never, unstored, block(7, 0)))),
            (OPEN_KEY_TABLE, open_key_key("vol", "bucket", "b", 1), encode(info(open_one))),
            (DELETED_TABLE, deleted_key("vol", "bucket", "c", 1), encode(info(gone, index=20, update_id=30))),
            (DELETED_TABLE, deleted_key("vol", "bucket", "d", 2), encode(info(kept, index=5, update_id=30))),
            (SNAPSHOT_TABLE, snapshot_key("vol", "bucket", "one"), encode(snapshot(10))),
        ]
    )
    assert needed_blocks(store) == {key_of(held): held, key_of(kept): kept}


def snapshot(index: int) -> SnapshotInfo:
    return SnapshotInfo(
        volume="vol", bucket="bucket", snapshot="one", snapshot_id=ids.object_id(0, index), index=index, state=ACTIVE,
        creator="o", bucket_object_id=1, checkpoint="snapshot-1", creation_time_ms=1, deletion_time_ms=0, referenced_keys=1, referenced_bytes=1, properties={},
    )  # fmt: skip


def test_a_key_that_names_more_of_a_block_decides():
    store = MemoryStore(OM_FAMILIES.names)
    longer = replace(block(1, 10), length=30)
    store.write([(KEY_TABLE, b"/v/b/%d" % n, encode(info(one))) for n, one in enumerate((block(1, 10), longer))])
    assert needed_blocks(store) == {key_of(longer): longer}


def test_the_longest_row_of_a_block_does_and_what_is_missing_is_said():
    short, long = row_of(b"x" * 10), row_of(b"x" * 20)
    needed = {key_of(one): one for one in (block(1, 15), block(2, 15), block(3, 15))}
    first, second, third = sorted(needed)
    rows, missing = rows_for(needed, [{first: short, second: short}, {first: long, b"other": long}])
    assert (rows, missing) == ({first: long}, [second, third])


# Files.


def test_a_list_comes_back(repository: BackupRepository):
    rows = {block_key(1, n): row_of(bytes(n)) for n in (3, 1, 2)}
    content = write_list(repository, 0, rows)
    assert read_list(repository, content) == rows
    repository.path_of(content).write_bytes(b"x")
    with pytest.raises(BackupFailed, match=content.digest):
        read_list(repository, content)


@pytest.mark.parametrize("data", [b"", b"SBLK0002", MAGIC + b"x", MAGIC + bytes(16) + b"\xff" * 4])
def test_bytes_that_are_no_list(data: bytes, repository: BackupRepository):
    path = repository.scratch / "x"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    content = repository.keep_file(path)
    with pytest.raises(BackupFailed, match=content.digest):
        read_list(repository, content)


def test_bytes_are_kept_only_if_every_cell_is_right(tmp_path: Path):
    files, data = BlockFiles(tmp_path), random.Random(1).randbytes(3 * CELL + 5)
    key, value = block_key(1, 2), row_of(data)
    row = decode_block_row(value)
    for wrong in (data[:-1], data + b"x", data[:CELL] + b"\x00" + data[CELL + 1 :]):
        with pytest.raises(WrongBytes):
            files.keep(key, row, [memoryview(wrong)])
        assert not files.has(key, row)
    files.keep(key, row, [memoryview(data[:CELL]), memoryview(data[CELL:])])
    assert files.is_right(key, row)
    assert b"".join(files.pieces(key, row)) == data
    assert not list(tmp_path.glob("**/*.part"))
    path = files.path_of(key, row)
    path.write_bytes(b"\x00" + data[1:])
    assert not files.is_right(key, row)
    assert files.remove_unused([(key, value)]) == 0
    assert files.remove_unused([(block_key(9, 9), value)]) == len(data)


# Onto new datanodes.


def settings_for(tmp_path: Path, count: int) -> Settings:
    return replace(
        load_settings(environment={}), data_dir=tmp_path / "new", datanodes=default_datanodes(count),
        datanode_reserve_bytes=0,
    )  # fmt: skip


def test_each_container_becomes_a_copy_on_three_datanodes(
    repository: BackupRepository, telling: Telling, tmp_path: Path
):
    settings, files, source = settings_for(tmp_path, 4), BlockFiles(repository.folder), random.Random(2)
    data = {key_of(block(n, 1)): source.randbytes(n * 1000 + 1) for n in range(8)}
    rows = {key: row_of(one) for key, one in data.items()}
    for key, one in data.items():
        files.keep(key, decode_block_row(rows[key]), [memoryview(one)])
    placed = place_blocks(settings, repository, rows, [], telling)
    assert (placed.containers, placed.blocks) == (8 * COPIES, 8 * COPIES)
    assert place_blocks(settings, repository, rows, [], telling).containers == 0, "what is there stays"
    holders: dict[bytes, int] = {}
    for node in settings.datanodes:
        folder = settings.data_dir / "datanodes" / node.name
        open_folder(folder, datanode=node.name, cluster=settings.cluster).close()
        store = BlockStore(folder)
        assert all(one.closed for one in store.containers())
        for key, one in data.items():
            container_id, local_id = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
            if dict(stored_rows(store, container_id)) == {key: rows[key]}:
                assert (store.container_folder(container_id) / block_name(local_id)).read_bytes() == one
                holders[key] = holders.get(key, 0) + 1
    assert holders == dict.fromkeys(data, COPIES)


def test_blocks_come_from_old_disks_and_the_disks_stay_as_they_are(
    repository: BackupRepository, telling: Telling, tmp_path: Path
):
    settings, data, found = settings_for(tmp_path, 1), random.Random(3).randbytes(CELL + 9), block(1, 1)
    disks = [tmp_path / "dn1", tmp_path / "dn2"]
    paths = [disk / "containers" / str(found.container_id) / block_name(found.local_id) for disk in disks]
    for path, stored in zip(paths, (b"\x00" + data[1:], data + b"not committed"), strict=True):
        path.parent.mkdir(parents=True)
        path.write_bytes(stored)
    rows = {key_of(found): row_of(data)}
    assert place_blocks(settings, repository, rows, disks, telling).bytes == len(data)
    assert paths[1].read_bytes() == data + b"not committed"
    paths[1].unlink()
    with pytest.raises(BackupFailed, match=f"block {found.container_id}/{found.local_id} is not whole on any disk"):
        place_blocks(settings_for(tmp_path / "again", 1), repository, rows, disks, telling)


def test_blocks_without_datanodes_are_refused(repository: BackupRepository, telling: Telling, tmp_path: Path):
    with pytest.raises(BackupFailed, match="there are blocks to restore, and no datanodes"):
        place_blocks(settings_for(tmp_path, 0), repository, {b"k" * 16: row_of(b"x")}, [], telling)


def test_a_datanode_of_another_name_keeps_its_folder(repository: BackupRepository, telling: Telling, tmp_path: Path):
    settings = settings_for(tmp_path, 1)
    open_folder(settings.data_dir / "datanodes" / "dn1", datanode="dn9", cluster=settings.cluster).close()
    with pytest.raises(BackupFailed, match="datanode dn1: .*dn9"):
        place_blocks(settings, repository, {key_of(block(1, 1)): row_of(b"x")}, [], telling)
