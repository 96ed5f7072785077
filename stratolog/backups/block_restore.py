"""Restoring blocks onto new datanodes: as copies of closed containers, put into their folders before they start.

A copy is what a datanode has of a container whose pipeline it is no member of (docs/datanodes.md). It holds rows and
bytes, and needs no log. So no pipeline of the old cluster has to come back. Each container goes to COPIES datanodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.layout import LayoutRefused, open_folder
from datanode_processors.repair.transfer import has_rows, import_container
from replicated_db.core.bootstrap.pace import size_words
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository
from replicated_db.shell.bootstrap.telling import Telling
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.records.rows import BlockLocation
from stratolog.backups.block_files import BlockFiles, attached_bytes
from stratolog.configuration.settings import Settings

COPIES = 3
"""On how many datanodes a container is restored, if there are that many."""


@dataclass(slots=True)
class PlacedBlocks:
    """Containers, blocks and bytes that were put onto datanodes, each counted once for each copy."""

    containers: int = 0
    blocks: int = 0
    bytes: int = 0


def rows_for(
    needed: Mapping[bytes, BlockLocation], lists: Iterable[Mapping[bytes, bytes]]
) -> tuple[dict[bytes, bytes], list[bytes]]:  # fmt: skip
    """Return the rows of needed blocks, and the keys of those that no list has as far as they are needed. Pure.

    Of several rows of a block the longest does: a committed block only grows.
    """
    rows: dict[bytes, bytes] = {}
    for one in lists:
        for key in needed.keys() & one.keys():
            if key not in rows or decode_block_row(rows[key]).length < decode_block_row(one[key]).length:
                rows[key] = one[key]
    wanting = {
        key for key, block in needed.items()
        if key not in rows or decode_block_row(rows[key]).length < block.length
    }  # fmt: skip
    return {key: row for key, row in rows.items() if key not in wanting}, sorted(wanting)


def place_blocks(
    settings: Settings, repository: BackupRepository, rows: Mapping[bytes, bytes], disks: Sequence[Path],
    telling: Telling,
) -> PlacedBlocks:  # fmt: skip
    """Put blocks into the folders of the settings' datanodes; a container that is there already stays.

    Bytes come from the repository, or from old datanodes' folders (``disks``). Raises BackupFailed.
    """
    placed = PlacedBlocks()
    if not rows:
        return placed
    if not settings.datanodes:
        raise BackupFailed(
            "there are blocks to restore, and no datanodes: give --datanodes, or --accept-missing-blocks"
        )
    telling.at(lambda: f"blocks: {placed.containers} containers placed, {size_words(placed.bytes)}")
    by_container: defaultdict[int, list[bytes]] = defaultdict(list)
    for key in sorted(rows):
        by_container[block_of_key(key)[0]].append(key)
    names = [node.name for node in settings.datanodes]
    for number, name in enumerate(names):
        mine = [
            container_id for turn, container_id in enumerate(sorted(by_container))
            if (number - turn) % len(names) < COPIES
        ]  # fmt: skip
        _fill(settings, name, {one: by_container[one] for one in mine}, rows, repository, disks, placed)
    return placed


def _fill(
    settings: Settings, name: str, containers: Mapping[int, Sequence[bytes]], rows: Mapping[bytes, bytes],
    repository: BackupRepository, disks: Sequence[Path], placed: PlacedBlocks,
) -> None:  # fmt: skip
    """Put containers into the folder of one datanode, which does not run."""
    path = settings.data_dir / "datanodes" / name
    try:
        folder = open_folder(path, datanode=name, cluster=settings.cluster)
    except (LayoutRefused, OSError) as error:
        raise BackupFailed(f"datanode {name}: {error}") from error
    try:
        store = BlockStore(path, reserve_bytes=settings.datanode_reserve_bytes)
        for container_id, keys in containers.items():
            if has_rows(store, container_id):
                continue
            found = import_container(store, container_id, _blocks(repository, keys, rows, disks))
            placed.containers += 1
            placed.blocks += found.blocks
            placed.bytes += found.bytes
    except BlockError as error:
        raise BackupFailed(f"datanode {name}: {error}") from error
    finally:
        folder.close()


def _blocks(
    repository: BackupRepository, keys: Sequence[bytes], rows: Mapping[bytes, bytes], disks: Sequence[Path]
) -> Iterator[tuple[bytes, bytes, Iterator[bytes]]]:  # fmt: skip
    files = BlockFiles(repository.folder)
    for key in keys:
        row = decode_block_row(rows[key])
        yield key, rows[key], files.pieces(key, row) if files.has(key, row) else attached_bytes(disks, key, row)
