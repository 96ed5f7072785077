"""The serving side: checkpoints that are held for replicas that fetch them.

Rules:
    - A transfer is a checkpoint in a folder of its own, ``DB.transfers/ID``, together with links to the files of the
      replica's checkpoints. Nothing changes there, and what the replica removes meanwhile stays there until the end.
    - The checkpoint is taken under the apply lock, after what is in memory has been written: the lock is held shortly.
    - MAX_TRANSFERS transfers exist at once in a process, one for each asking node and shard: who asks again gets a new
      one for the old one. A transfer that nobody reads for TRANSFER_IDLE_S goes. What a killed process left goes when
      the next one starts.
    - A flagged replica, and an empty one, serve nobody.
    - Files are asked for by transfer and digest. The transfer's id is random, so only who got the listing can ask.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.file_plan import is_carried, offer
from replicated_db.core.bootstrap.listing import (
    CHECKPOINTS,
    DATABASE,
    ListedPosition,
    Listing,
    TransferRequest,
)
from replicated_db.core.bootstrap.pace import TokenBucket
from replicated_db.core.errors import StoreFailure
from replicated_db.core.log.position import Position
from replicated_db.shell.bootstrap.content_digests import ContentDigests, checkpoint_folders

MAX_TRANSFERS = 4
"""Most transfers of a process at once."""

TRANSFER_IDLE_S = 300.0
"""How long a transfer may be unread."""

MAX_PIECE_BYTES = 1024 * 1024
"""Most bytes of one answer; the asking side asks for the next piece."""


class TransferRefused(Exception):
    """A transfer is refused; ``again`` says whether to ask later, or another node."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class NoSuchTransfer(Exception):
    """A transfer, or a file in it, is not there (any more)."""


class CheckpointStore(Protocol):
    """What a desk needs of a replica's store."""

    path: Path

    def write_files(self) -> None:
        """Write to files what is in memory."""

    def copy_to(self, target: Path) -> None:
        """Create a checkpoint in ``target``."""

    def complete_copy(self, target: Path) -> None:
        """Put into a checkpoint what the store keeps elsewhere, so that it can be read without this store."""


@dataclass(slots=True)
class _Transfer:
    shard: int
    asker: str
    holds: int
    folder: Path
    read_at_s: float
    files: dict[str, Path]
    sizes: dict[str, int]
    making: bool = True


class TransferDesk:
    """The transfers of one process; usable from any thread. Making one takes long: call it beside an event loop."""

    def __init__(
        self, node: str, replicas: Mapping[int, Replica], leads: Callable[[int], bool], *, bytes_per_s: int = 0,
        note: Callable[[str], None] = lambda _: None, now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``leads`` says whether this node leads a shard; ``bytes_per_s`` bounds what all transfers send (0: nothing).

        ``replicas`` may grow during the desk's life.
        """
        self._node = node
        self._replicas = replicas
        self._leads = leads
        self._note = note
        self._now_s = now_s
        self._lock = threading.Lock()
        self._using_stores = threading.Lock()
        """Held while a store is flushed and a checkpoint is taken: a store must not be closed meanwhile."""
        self._closed = False
        self._transfers: dict[str, _Transfer] = {}
        self._digests = ContentDigests()
        self._bucket = TokenBucket(bytes_per_s)
        self.served_bytes = 0
        """Bytes of files that were read for askers since the start."""
        for replica in replicas.values():
            remove_transfers(_store(replica).path)

    def view(self, shard: int) -> dict[str, Any]:
        """Return where this node's replica stands; raises NoSuchTransfer if there is none."""
        replica = self._replica(shard)
        # Without the lock: each of the two is read at once, and an event loop must not wait for a checkpoint.
        offset, flagged = replica.position.offset, replica.evidence is not None
        return {
            "node": self._node, "cluster": replica.identity.cluster, "shard": shard,
            "shards": replica.identity.shards, "offset": offset, "leads": self._leads(shard), "flagged": flagged,
            "holds": self.holds(shard),
        }  # fmt: skip

    def holds(self, shard: int) -> int | None:
        """Return the lowest offset whose record an open transfer of the shard needs, None if there is none.

        The log is not to be trimmed beyond it. The installed replica compares the record at its position with its own,
        and as a candidate reads again from its anchor. While a checkpoint is made, the asking node's offset is held.
        """
        self.expire()
        with self._lock:
            return min((one.holds for one in self._transfers.values() if one.shard == shard), default=None)

    @property
    def open_transfers(self) -> int:
        """Number of transfers."""
        with self._lock:
            return len(self._transfers)

    # -- the life of a transfer ----------------------------------------------------------------------------------------

    def begin(self, request: TransferRequest) -> Listing:
        """Take a checkpoint for an asking replica; return its listing. Raises TransferRefused, StoreFailure."""
        replica = self._replica(request.shard)
        identity = replica.identity
        if (request.cluster, request.shards) != (identity.cluster, identity.shards):
            raise TransferRefused(
                f"this is cluster {identity.cluster!r} with {identity.shards} shards, not {request.cluster!r} with "
                f"{request.shards}",
                again=False,
            )
        self.expire()
        transfer_id, transfer = self._reserve(request, _store(replica).path)
        try:
            listing = self._make(transfer_id, transfer, replica, request)
        except BaseException:
            self.release(transfer_id)
            raise
        self._note(
            f"shard {request.shard}: {request.asker} fetches a checkpoint at offset {listing.position.offset}, "
            f"{len(listing.files)} files, transfer {transfer_id}"
        )
        return listing

    def _reserve(self, request: TransferRequest, database: Path) -> tuple[str, _Transfer]:
        with self._lock:
            old = [
                name for name, one in self._transfers.items()
                if (one.shard, one.asker, one.making) == (request.shard, request.asker, False)
            ]  # fmt: skip
            if len(self._transfers) - len(old) >= MAX_TRANSFERS:
                raise TransferRefused(f"{len(self._transfers)} transfers are open here, as many as may be", again=True)
            transfer_id = secrets.token_hex(16)
            folder = transfers_folder(database) / transfer_id
            transfer = _Transfer(request.shard, request.asker, request.offset, folder, self._now_s(), {}, {})
            self._transfers[transfer_id] = transfer
        for name in old:
            self.release(name)
        return transfer_id, transfer

    def _make(self, transfer_id: str, transfer: _Transfer, replica: Replica, request: TransferRequest) -> Listing:
        store = _store(replica)
        with self._using_stores:
            if self._closed:
                raise TransferRefused("this node is stopping", again=True)
            position, anchor = self._checkpoint(store, transfer, replica)
            store.complete_copy(transfer.folder / DATABASE)
        _link_checkpoints(checkpoints_folder(store.path), transfer.folder / CHECKPOINTS)
        found = self._digests.found_in(transfer.folder / DATABASE, transfer.folder / CHECKPOINTS)
        made = offer(found, request)
        with self._lock:
            transfer.holds = min(position.offset, anchor.offset)
            for one in found:
                transfer.files[one.file.content.digest] = transfer.folder / one.file.path
                transfer.sizes[one.file.content.digest] = one.file.content.size
            transfer.read_at_s = self._now_s()
            transfer.making = False
        return Listing(
            transfer=transfer_id, node=self._node, cluster=replica.identity.cluster, shard=request.shard,
            shards=replica.identity.shards, leader=position.leader,
            position=ListedPosition(term=position.term, index=position.index, offset=position.offset,
                                    record_hash=position.record_hash),
            files=made.files, links=made.links, kept=made.kept, remove=made.remove,
        )  # fmt: skip

    @staticmethod
    def _checkpoint(store: CheckpointStore, transfer: _Transfer, replica: Replica) -> tuple[Position, Position]:
        """Take a checkpoint; return the replica's position and anchor at that moment."""
        store.write_files()
        with replica.lock:
            if replica.evidence is not None:
                raise TransferRefused("this replica is flagged: it has diverged", again=False)
            if replica.position.offset < 0:
                raise TransferRefused("this replica is empty", again=False)
            replica.flush()
            store.copy_to(transfer.folder / DATABASE)
            return replica.position, replica.anchor

    def piece(self, transfer_id: str, digest: str, offset: int) -> bytes:
        """Return up to MAX_PIECE_BYTES of a file from ``offset`` on; empty at its end. Raises NoSuchTransfer."""
        with self._lock:
            transfer = self._transfers.get(transfer_id)
            path = None if transfer is None else transfer.files.get(digest)
            if transfer is None or path is None or offset > transfer.sizes[digest]:
                raise NoSuchTransfer(f"there is no transfer {transfer_id} with a file {digest} of {offset} bytes")
            transfer.read_at_s = self._now_s()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                found = file.read(MAX_PIECE_BYTES)
        except FileNotFoundError as error:
            raise NoSuchTransfer(f"transfer {transfer_id} has just ended") from error
        except OSError as error:
            raise StoreFailure(f"{path}: {error}") from error
        with self._lock:
            self.served_bytes += len(found)
        return found

    def wait_s(self, count: int) -> float:
        """Return how many seconds to wait before ``count`` bytes may be sent."""
        with self._lock:
            return self._bucket.take(count, self._now_s())

    def release(self, transfer_id: str) -> None:
        """End a transfer; one that is not there is ended already."""
        with self._lock:
            transfer = self._transfers.pop(transfer_id, None)
        if transfer is not None:
            shutil.rmtree(transfer.folder, ignore_errors=True)

    def expire(self) -> None:
        """End the transfers that nobody has read for TRANSFER_IDLE_S."""
        with self._lock:
            now_s = self._now_s()
            idle = [
                name for name, one in self._transfers.items()
                if not one.making and now_s - one.read_at_s > TRANSFER_IDLE_S
            ]  # fmt: skip
        for name in idle:
            self._note(f"transfer {name} ends: nobody has read it for {TRANSFER_IDLE_S:.0f} s")
            self.release(name)

    def close(self) -> None:
        """End all transfers, and begin no more: the stores may be closed afterwards."""
        with self._using_stores:
            self._closed = True
        with self._lock:
            names = list(self._transfers)
        for name in names:
            self.release(name)

    def _replica(self, shard: int) -> Replica:
        replica = self._replicas.get(shard)
        if replica is None:
            raise NoSuchTransfer(f"there is no shard {shard} here")
        return replica


def transfers_folder(database: Path) -> Path:
    """Return the folder of a database's transfers."""
    return database.with_name(database.name + ".transfers")


def checkpoints_folder(database: Path) -> Path:
    """Return the folder of a database's checkpoints."""
    return database.with_name(database.name + ".checkpoints")


def remove_transfers(database: Path) -> None:
    """Remove what transfers of a killed process have left."""
    shutil.rmtree(transfers_folder(database), ignore_errors=True)


def _link_checkpoints(source: Path, target: Path) -> None:
    """Link the files of all finished checkpoints. One that is removed or changed meanwhile is left out."""
    for folder in checkpoint_folders(source):
        linked = target / folder.name
        linked.mkdir(parents=True)
        try:
            before = _names(folder)
            for name in before:
                os.link(folder / name, linked / name)
            whole = before == _names(folder)
        except FileNotFoundError:
            whole = False
        except OSError as error:
            raise StoreFailure(f"{folder}: {error}") from error
        if not whole:
            shutil.rmtree(linked, ignore_errors=True)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if is_carried(path.name) and path.is_file())


def _store(replica: Replica) -> CheckpointStore:
    return cast(CheckpointStore, replica.store)
