"""Copies of closed containers of other pipelines, fetched when the Object Manager asks for them (re-replication).

Rules:
    - A copy is fetched from a source that has the container closed. Its rows come first (ListContainer), then each
      block's bytes, which are verified against the row as they arrive. The copy appears whole or not at all
      (``transfer``).
    - A copy answers GetBlock, ListContainer and reads as a member does. Nothing is written to it, and it is in no
      pipeline's database. Its rows say what may be read of it and what the bytes must be: length, checksums and index.
      Its files may have been damaged since.
    - If a member of the container's pipeline is asked to fetch a copy, nothing is to be done: its own replica answers.
    - Blocks of a copy are deleted by a DeleteBlocks to the node that has it, or when a member says that they are
      deleted (``copy_upkeep``). Their rows become tombstones, then their files go; on a full disk it is the other way
      round. The last block takes the copy with it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.request_checks import check_texts
from datanode_processors.repair.copy_sources import MAX_SOURCES
from datanode_processors.repair.transfer import check_rows, has_rows, import_container, replace_rows, stored_rows
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.shell.logs import Note
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, block_of_key, decode_block_row, encode_block_row
from schemas.records.datanode import (
    Accepted,
    BlockRow,
    BlocksDeleted,
    ContainerBlocks,
    DeleteBlocks,
    FetchContainer,
    ListContainer,
    ReadBlock,
)
from schemas.sharding import pipeline_of

KEY_BYTES = 16
MAX_FETCHING = 2
"""Containers fetched at once."""
PEER_TIMEOUT_S = 30.0
MAX_KNOWN = 256
"""Copies whose rows are kept in memory."""
MAX_KNOWN_BYTES = 64 * 1024 * 1024
"""Bytes of those rows; the copy that was read last stays."""


class Copies:
    """The copies of one datanode; for many threads."""

    def __init__(self, blocks: BlockStore, *, node: str, cluster: str, note: Note, tls: WireTls | None = None) -> None:
        self._tls = tls
        self._blocks = blocks
        self._node = node
        self._cluster = cluster
        self._note = note
        self._lock = threading.Lock()
        self._deleting = threading.Lock()
        self._fetching: set[int] = set()
        self._known: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self._known_bytes = 0
        self._strays: dict[int, frozenset[int]] = {}
        """By container: files without a row here, of which the source of the rows knows nothing either. They stay."""
        self._deletions = 0

    def fetch(self, request: FetchContainer) -> Accepted:
        """Copy a container from the first source that has it whole; returns when it is here. Raises BlockError."""
        container_id = request.container_id
        if not 1 <= len(request.sources) <= MAX_SOURCES:
            raise BlockError(
                codes.INVALID_REQUEST, f"{len(request.sources)} sources of a container; 1 to {MAX_SOURCES}"
            )
        check_texts(*request.sources)
        if self.is_here(container_id):
            return Accepted(detail=f"container {container_id} is here already")
        with self._lock:
            if container_id in self._fetching or len(self._fetching) >= MAX_FETCHING:
                raise BlockError(codes.OVERLOADED, f"containers {sorted(self._fetching)} are being fetched")
            self._fetching.add(container_id)
        try:
            return self._fetch(request)
        finally:
            with self._lock:
                self._fetching.discard(container_id)

    def _fetch(self, request: FetchContainer) -> Accepted:
        reasons = []
        for source in request.sources:
            try:
                with Peer(
                    source, own=self._node, cluster=self._cluster, timeout_s=PEER_TIMEOUT_S, tls=self._tls
                ) as peer:
                    rows = closed_rows(peer, request.container_id)
                    if all(decode_block_row(value).deleted for _, value in rows):
                        return Accepted(detail=f"container {request.container_id}: all its blocks are deleted")
                    imported = import_container(self._blocks, request.container_id, self._received(peer, request, rows))
            except BlockError as error:
                reasons.append(f"{source}: {error}")
                continue
            self._note(
                f"container {request.container_id}: {imported.blocks} blocks, {imported.bytes} bytes from {source}"
            )
            return Accepted(
                detail=f"container {request.container_id}: {imported.blocks} blocks, {imported.bytes} bytes"
            )
        raise BlockError(
            codes.NOT_COMMITTED, f"container {request.container_id} is not to be had: {'; '.join(reasons)}"
        )

    def _received(
        self, peer: Peer, request: FetchContainer, rows: list[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, bytes, Iterator[memoryview]]]:
        for key, value in rows:
            yield key, value, self._bytes(peer, request.partition, key, decode_block_row(value))

    @staticmethod
    def _bytes(peer: Peer, partition: int, key: bytes, row: BlockRow) -> Iterator[memoryview]:
        if row.deleted or not row.length:
            return
        container_id, local_id = block_of_key(key)
        request = ReadBlock(
            partition=partition, container_id=container_id, local_id=local_id, offset=0, length=row.length,
            bcs_id=row.bcs_id, committed_only=True,
        )  # fmt: skip
        for _, data, _ in peer.read_block(request):
            yield data

    def delete(self, request: DeleteBlocks) -> BlocksDeleted:
        """Delete blocks of copies, also a second time, because a file may have stayed behind. Raises BlockError.

        NO_SUCH_PIPELINE if none of the containers is here: the request is meant for its pipeline, which this node does
        not know.
        """
        by_container: dict[int, list[int]] = {}
        for block in request.blocks:
            by_container.setdefault(block.container_id, []).append(block.local_id)
        indexes: list[int] = []
        failure: BlockError | None = None
        with self._deleting:
            for container_id, local_ids in by_container.items():
                try:
                    index = self._delete(container_id, local_ids)
                except BlockError as error:  # one damaged copy must not keep the others from being deleted
                    failure = error
                    continue
                if index is not None:
                    indexes.append(index)
        if failure is not None:
            raise failure
        if by_container and not indexes:
            raise self._not_here(min(by_container))
        return BlocksDeleted(bcs_id=max(indexes, default=0))

    def _delete(self, container_id: int, local_ids: Collection[int]) -> int | None:
        """Delete blocks of one copy; return the highest index of their rows, None if there is no copy here."""
        rows = self.stored(container_id)
        if not rows:
            return None
        held = {local_id: rows[local_id] for local_id in local_ids if local_id in rows}
        fresh = {local_id: row for local_id, row in held.items() if not row.deleted}
        left = {**rows, **{local_id: _tombstone(row) for local_id, row in fresh.items()}}
        last = all(row.deleted for row in left.values())
        try:
            # Rows first: a block without its file would be damaged, while a file without its row is only garbage.
            if fresh:
                self._replace_rows(container_id, left)
        except BlockError as error:
            if error.code != codes.DISK_FULL:
                raise
            # Now files first, or a full disk could never be emptied. If the rows then stay behind, the blocks are
            # missing until they are deleted once more: the Object Manager asks until it is answered, and members tell
            # (copy_upkeep).
            self._remove(container_id, held, last=last)
            if not last:
                self._replace_rows(container_id, left)
        else:
            self._remove(container_id, held, last=last)
        self._forget(container_id)
        return max((row.bcs_id for row in held.values()), default=0)

    def _replace_rows(self, container_id: int, rows: Mapping[int, BlockRow]) -> None:
        encoded = [(block_key(container_id, local_id), encode_block_row(rows[local_id])) for local_id in sorted(rows)]
        replace_rows(self._blocks, container_id, encoded)
        self._forget(container_id)

    def _remove(self, container_id: int, local_ids: Iterable[int], *, last: bool) -> None:
        """Remove files; if they are of the ``last`` blocks, remove the copy too."""
        for local_id in local_ids:
            self._blocks.delete(container_id, local_id, drop=False)
        if last:
            self._blocks.recount(container_id)  # a file that was lost must not keep the copy
            self._blocks.drop_if_empty(container_id)
            if not self.is_here(container_id):
                self._strays.pop(container_id, None)
            self._forget(container_id)

    def _forget(self, container_id: int) -> None:
        """Have rows read anew, also for a reader that is reading them now."""
        with self._lock:
            self._drop_known(container_id)
            self._deletions += 1

    def _drop_known(self, container_id: int) -> None:
        self._known_bytes -= _bytes_of(self._known.pop(container_id, {}))

    # -- what they hold --------------------------------------------------------------------------------------------

    def is_here(self, container_id: int) -> bool:
        """Return whether there is a copy here, even a damaged one."""
        return has_rows(self._blocks, container_id) or self._blocks.is_closed(container_id)

    def rows(self, container_id: int) -> dict[int, bytes]:
        """Return the rows of a copy by local id; empty if there is none.

        Raises BlockError FAILED if they are damaged.
        """
        with self._lock:
            if (known := self._known.get(container_id)) is not None:
                self._known.move_to_end(container_id)
                return known
            deletions = self._deletions
        found = {block_of_key(key)[1]: value for key, value in self._stored_rows(container_id)}
        with self._lock:
            if found and deletions == self._deletions:
                self._drop_known(container_id)
                self._known[container_id] = found
                self._known_bytes += _bytes_of(found)
                while len(self._known) > MAX_KNOWN or (self._known_bytes > MAX_KNOWN_BYTES and len(self._known) > 1):
                    self._drop_known(next(iter(self._known)))
        return found

    def stored(self, container_id: int) -> dict[int, BlockRow]:
        """Return the rows of a copy as they are on the disk now; empty if there is none.

        Raises BlockError FAILED if they are damaged.
        """
        return {block_of_key(key)[1]: decode_block_row(value) for key, value in self._stored_rows(container_id)}

    def _stored_rows(self, container_id: int) -> Iterator[tuple[bytes, bytes]]:
        return stored_rows(self._blocks, container_id, self._strays.get(container_id, ()))

    def restore_rows(self, container_id: int, rows: list[tuple[bytes, bytes]]) -> bool:
        """Put rows as :func:`closed_rows` gave them in place of damaged or lost ones.

        Returns False if the rows here can be read after all. Raises BlockError DISK_FULL, FAILED.
        """
        with self._deleting:
            with suppress(BlockError):
                if self.stored(container_id):  # they may have tombstones that others do not have yet
                    return False
            replace_rows(self._blocks, container_id, rows)
            there = (local_id for local_id, _ in self._blocks.blocks(container_id))
            self._strays[container_id] = frozenset(there).difference(block_of_key(key)[1] for key, _ in rows)
            self._forget(container_id)
        return True

    def recount(self, container_id: int) -> None:
        """Count a copy's files anew after some were lost or restored. Raises BlockError FAILED."""
        with self._deleting:
            self._blocks.recount(container_id)

    def drop_if_deleted(self, container_id: int) -> bool:
        """Remove a copy if all of its blocks are deleted; return whether it has gone.

        In a copy that stays, files that deletions left behind are removed. A copy that has neither rows nor files goes
        too: nothing is left that could be repaired. Raises BlockError FAILED.
        """
        with self._deleting:
            rows = self.stored(container_id)
            deleted = [local_id for local_id, row in rows.items() if row.deleted]
            there = {local_id for local_id, _ in self._blocks.blocks(container_id)}
            last = len(deleted) == len(rows) and bool(rows or not there)
            self._remove(container_id, there.intersection(deleted), last=last)
            return last and not self.is_here(container_id)  # a file that belongs to no block keeps the copy

    def _not_here(self, container_id: int) -> BlockError:
        return BlockError(
            codes.NO_SUCH_PIPELINE, f"datanode {self._node} has no replica or copy of container {container_id}"
        )

    def block(self, container_id: int, local_id: int) -> BlockRow | None:
        """Return a block's row in a copy, None if there is none here."""
        value = self.rows(container_id).get(local_id)
        return None if value is None else decode_block_row(value)

    def listed(self, container_id: int) -> ContainerBlocks:
        """Return a copy's rows; raises BlockError."""
        rows = self.rows(container_id)
        if not rows:
            raise self._not_here(container_id)
        blocks = [block_key(container_id, local_id) + rows[local_id] for local_id in sorted(rows)]
        return ContainerBlocks(container_id=container_id, closed=True, blocks=blocks)


def _bytes_of(rows: Mapping[int, bytes]) -> int:
    return sum(map(len, rows.values()))


def _tombstone(row: BlockRow) -> BlockRow:
    return BlockRow(bcs_id=row.bcs_id, length=row.length, bytes_per_checksum=0, checksums=b"", deleted=True)


def closed_rows(peer: Peer, container_id: int) -> list[tuple[bytes, bytes]]:
    """Ask a source for the (key, row)s of a container, ascending.

    Raises BlockError, also if the container is not closed there, or the rows cannot be a container's.
    """
    listed = peer.request(ListContainer(partition=pipeline_of(container_id), container_id=container_id))
    if not isinstance(listed, ContainerBlocks):
        raise BlockError(codes.BAD_FRAME, f"ListContainer was answered with a {type(listed).__name__}")
    if not listed.closed:
        raise BlockError(codes.NOT_COMMITTED, f"container {listed.container_id} is not closed there")
    rows = [(one[:KEY_BYTES], one[KEY_BYTES:]) for one in listed.blocks]
    check_rows(container_id, rows)
    return rows
