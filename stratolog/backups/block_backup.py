"""Taking the blocks that a shard's rows need: their rows, and with ``whole`` their bytes, from the datanodes.

A block's row is asked for (ListContainer) of the members of its pipeline and of the other holders of its container, in
turn, until one has it, committed at least as far as the key says. A backup without one of its blocks is none: it fails,
and names the block. A key that is deleted while the backup runs takes its blocks along; the backup is then begun anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from replicated_db.core.bootstrap.pace import size_words
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository
from replicated_db.shell.bootstrap.telling import Telling
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.codecs.codec import Undecodable
from schemas.records.datanode import BlockRow, ContainerBlocks, ListContainer, ReadBlock
from schemas.records.rows import BlockLocation
from schemas.sharding import pipeline_of
from stratolog.backups.block_files import BlockFiles, WrongBytes
from stratolog.backups.block_modes import WHOLE
from stratolog.configuration.settings import Settings
from stratolog.nodes.answers import node_answer

ASKER = "backup"
PEER_TIMEOUT_S = 30.0
KEY_BYTES = 16


class BlocksGone(BackupFailed):
    """No datanode has a block that a key names: the key may have been deleted meanwhile."""


@dataclass(slots=True)
class BlockCounts:
    """Blocks that the rows need; bytes that were fetched, and bytes that were in the repository already."""

    blocks: int = 0
    fetched_bytes: int = 0
    saved_bytes: int = 0


class BlockTaking:
    """Takes the blocks of one shard after the other; close it at the end."""

    def __init__(
        self, settings: Settings, repository: BackupRepository, mode: str, telling: Telling
    ) -> None:  # fmt: skip
        self.counts = BlockCounts()
        self._settings = settings
        tls = settings.tls()
        self._tls = None if tls is None else WireTls(tls)
        self._files = BlockFiles(repository.folder)
        self._repository = repository
        self._whole = mode == WHOLE
        self._telling = telling
        self._peers = ExitStack()
        self._connected: dict[str, Peer] = {}
        self._pipelines: dict[int, list[str]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._peers.close()
        self._connected.clear()

    def take(self, shard: int, needed: Mapping[bytes, BlockLocation]) -> dict[bytes, bytes]:
        """Return the rows of the needed blocks; with ``whole``, their bytes are in the repository afterwards.

        Raises BlocksGone if no datanode has one of them, BackupFailed if the disk has no room.
        """
        counts = self.counts
        self._telling.at(
            lambda: (
                f"shard {shard}: blocks: {counts.blocks} taken, {size_words(counts.fetched_bytes)} fetched, "
                f"{size_words(counts.saved_bytes)} were here"
            )
        )
        by_container: defaultdict[int, dict[bytes, BlockLocation]] = defaultdict(dict)
        for key, block in needed.items():
            by_container[block.container_id][key] = block
        rows: dict[bytes, bytes] = {}
        for container_id in sorted(by_container):
            rows |= self._take_container(container_id, by_container[container_id])
        return rows

    def _take_container(self, container_id: int, needed: Mapping[bytes, BlockLocation]) -> dict[bytes, bytes]:
        left, rows, refused = dict(needed), dict[bytes, bytes](), list[str]()
        for address in self._holders(container_id):
            if not left:
                break
            try:
                listed = self._listed(address, container_id)
                for key in sorted(left):
                    row = listed.get(key)
                    if row is not None and _is_committed(row, left[key]):
                        self._keep(address, key, row)
                        rows[key] = row
                        del left[key]
            except (BlockError, WrongBytes, Undecodable) as error:
                self._forget(address)
                refused.append(f"{address}: {error}")
        if left:
            container, local = block_of_key(min(left))
            said = "; ".join(refused) or "no datanode holds its container"
            raise BlocksGone(f"block {container}/{local}, which a key names, is not to be had: {said}")
        self.counts.blocks += len(rows)
        return rows

    def _keep(self, address: str, key: bytes, value: bytes) -> None:
        row = decode_block_row(value)
        if not self._whole:
            return
        if self._files.has(key, row):
            self.counts.saved_bytes += row.length
            return
        self._repository.check_room(row.length)
        self._files.keep(key, row, self._bytes(address, key, row))
        self.counts.fetched_bytes += row.length

    def _bytes(self, address: str, key: bytes, row: BlockRow) -> Iterator[memoryview]:
        container_id, local_id = block_of_key(key)
        request = ReadBlock(
            partition=pipeline_of(container_id), container_id=container_id, local_id=local_id, offset=0,
            length=row.length, bcs_id=row.bcs_id, committed_only=True,
        )  # fmt: skip
        for _, data, _ in self._peer(address).read_block(request):
            yield data

    def _listed(self, address: str, container_id: int) -> dict[bytes, bytes]:
        request = ListContainer(partition=pipeline_of(container_id), container_id=container_id)
        answer = self._peer(address).request(request)
        if not isinstance(answer, ContainerBlocks):
            raise WrongBytes(f"ListContainer was answered with a {type(answer).__name__}")
        return {one[:KEY_BYTES]: one[KEY_BYTES:] for one in answer.blocks}

    def _peer(self, address: str) -> Peer:
        found = self._connected.get(address)
        if found is None:
            peer = Peer(address, own=ASKER, cluster=self._settings.cluster, timeout_s=PEER_TIMEOUT_S, tls=self._tls)
            found = self._connected[address] = self._peers.enter_context(peer)
        return found

    def _forget(self, address: str) -> None:
        if (peer := self._connected.pop(address, None)) is not None:
            peer.close()

    def _holders(self, container_id: int) -> list[str]:
        """Return the addresses of the datanodes to ask: the pipeline's members, then other holders."""
        if not self._pipelines:
            for one in self._ask("/v1/pipelines?consistency=stale").get("pipelines", ()):
                self._pipelines[int(one["partition"])] = [member["address"] for member in one["members"]]
        found = list(self._pipelines.get(pipeline_of(container_id), ()))
        holders = self._ask(f"/v1/containers/{container_id}?consistency=stale").get("replicas", ())
        found += [one["address"] for one in holders]
        return [address for address in dict.fromkeys(found) if address]

    def _ask(self, path: str) -> dict[str, Any]:
        answers = (node_answer(node.address, path) for node in self._settings.nodes)
        return next((answer for answer in answers if answer is not None), {})


def _is_committed(value: bytes, block: BlockLocation) -> bool:
    """Whether a datanode's row of a block reaches as far as its key says."""
    row = decode_block_row(value)
    return not row.deleted and row.length >= block.length and row.bcs_id >= block.bcs_id
