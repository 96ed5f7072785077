"""One pipeline on one of its members: the replica of its database, its leader's loop, and its blocks' health here.

Rules:
    - A member applies the partition's records, whoever leads. When it is this member's turn, the loop leads on a thread
      of its own (``election``).
    - A block is *verified* up to a length when this node's own bytes to that length have the committed row's checksums
      and are stored under the fsync policy. Bytes that are not verified satisfy no watch.
    - A block whose committed bytes are missing or wrong here is *unhealthy*, and with it the pipeline's report, until
      they have been fetched from a peer (``verifier``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import BlockService
from datanode_processors.pipeline.core.block_tables import CLOSED, block_row, pipeline_row
from datanode_processors.pipeline.core.election import Silence, claim_after_ms, tick_interval_ms
from datanode_processors.pipeline.proposals import HandedOver, Proposals
from replicated_db.core.applying.replica import Replica
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.ports import Log, LogUnavailable
from replicated_db.shell.bootstrap.bootstrap import installed_of
from replicated_db.shell.claiming import UnfitToLead
from replicated_db.shell.database.database import DatabaseService
from replicated_db.shell.database.host import DatabaseHost
from replicated_db.shell.leader_loop import Publisher
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, block_of_key
from schemas.records.datanode import (
    BlockRow,
    BlocksWatched,
    BlockWatched,
    OpenPipeline,
    PipelineReport,
    WatchBlock,
    WatchBlocks,
)
from transport.waiting.deadline import Deadline

MAX_VERIFIED = 65_536
"""Blocks whose verified length is remembered; the others are verified again when somebody asks."""

MAX_BATCH_BYTES = 2 * 1024 * 1024
MAX_REQUEST_BYTES = 4 * 1024 * 1024 + 128 * 1024
"""One chunk joins at most this much of other requests. With the batch's limit, a record stays below the log's limit."""
MAX_IN_FLIGHT = 5
"""Records in flight: as many as an idempotent producer sends before it waits for an acknowledgement."""

RETRY_S = 0.5
BEHIND_WAIT_S = 0.1
WATCH_STEP_S = 1.0
MAX_WATCH_MS = 600_000
"""How long a watch may wait at most."""


class Pipeline:
    """A pipeline that this datanode is a member of. For many threads."""

    def __init__(
        self, opened: OpenPipeline, replica: Replica, log: Log, config: DatanodeConfig, blocks: BlockStore,
        host: DatabaseHost, wanted: Callable[[Pipeline, bytes], None],
    ) -> None:  # fmt: skip
        """``replica`` is open and checked against ``log``, which is the leader's from here on; ``host`` closes it.

        ``wanted`` is called with a block that must be verified because somebody waits for it.
        """
        self.opened = opened
        self.partition = opened.partition
        self.changed = threading.Condition()
        """Notified when a record was applied here, or a block verified."""
        self._config = config
        self._blocks = blocks
        self._clock = host.clock
        self._note = host.note
        self._fatal = host.fatal
        self._wanted = wanted
        self._verified: OrderedDict[bytes, int] = OrderedDict()
        self.unhealthy: dict[bytes, str] = {}
        """Why blocks are unhealthy, by key."""
        self.replica = replica
        self.store = replica.store
        self.log = log
        self.proposals = Proposals(
            BlockService(partition=self.partition, node=config.node), host.reports, first=self._missing_row
        )
        self.database = host.add(replica, HandedOver(log, self.proposals.handed_over), self._service(host.reports))
        self.loop = self.database.loop
        self._silence = Silence(self._clock.elapsed_ms(), self.replica.records_applied)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticked_ms = 0

    def _service(self, reports: Publisher) -> DatabaseService:
        config = self._config
        return DatabaseService(
            executes=self.proposals, intake=self.proposals.begin, outbox=self.proposals, reports=reports,
            limits=LeaderLimits(
                max_batch_bytes=MAX_BATCH_BYTES, max_request_bytes=MAX_REQUEST_BYTES, max_in_flight=MAX_IN_FLIGHT,
                barrier_interval_ms=config.barrier_interval_ms, scrub_interval_ms=config.datanode_scrub_interval_ms,
            ),
            address=config.address, replicas=self.members,
        )  # fmt: skip

    @property
    def members(self) -> list[str]:
        """Names of the members, the first leader first."""
        return [member.datanode for member in self.opened.members]

    def address_of(self, datanode: str) -> str:
        """Return the address of a member's stream server; empty if ``name`` is no member."""
        return next((member.address for member in self.opened.members if member.datanode == datanode), "")

    def leader_address(self) -> str:
        """Return where the leader can be asked, as its claim says; empty if there is none."""
        position = self.replica.position
        return position.address if position.term else ""

    def _missing_row(self) -> OpenPipeline | None:
        """Return the request to open the pipeline, which is executed before all others of a claim.

        None if the log has opened this generation, or a later one.
        """
        return self.opened if self.generation < self.opened.generation else None

    @property
    def generation(self) -> int:
        """The generation that is opened or closed in the rows applied here; 0 before the first."""
        row = pipeline_row(self.store)
        return 0 if row is None else row.generation

    # -- leading ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Claim the leadership if it is this member's turn; as an idle leader, append a sign of life.

        Call it several times a second.
        """
        now_ms = self._clock.elapsed_ms()
        silence_ms = self._silence.look(now_ms, self.replica.records_applied)
        self.loop.look()
        if self.loop.leading:
            interval_ms = tick_interval_ms(self._config.pipeline_watchdog_ms)
            if silence_ms >= interval_ms and now_ms - self._ticked_ms >= interval_ms:
                self._ticked_ms = now_ms
                self.loop.read_index()
            return
        if self._stop.is_set() or self.replica.evidence is not None:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        after_ms = claim_after_ms(
            self.members, self._config.node, self.replica.position.leader, self._config.pipeline_watchdog_ms
        )
        if after_ms is None or silence_ms < after_ms:
            return
        self.loop.beat()
        self._thread = self._started(threading.Thread(target=self._lead, name=f"leader-{self.partition}", daemon=True))

    def _started(self, thread: threading.Thread) -> threading.Thread | None:
        """Start a leader's thread. If none can be started, the member tries again after as much silence."""
        try:
            thread.start()
        except RuntimeError as error:
            self._note(f"{self.opened.pipeline}: not led here now: {error}", shard=self.partition)
            self._silence.broken()
            return None
        return thread

    def _lead(self) -> None:
        try:
            if not self._has_read_all():
                self._silence.broken()
                self._stop.wait(BEHIND_WAIT_S)
                return
            reason = self.loop.lead(self._stop)
            self._note(f"{self.opened.pipeline}: leadership ended: {reason}", shard=self.partition)
        except (LogUnavailable, UnfitToLead) as error:
            self._note(f"{self.opened.pipeline}: {error}; trying again", shard=self.partition)
        except BaseException as error:
            self._fatal(error)
            return
        self._stop.wait(RETRY_S)

    def _has_read_all(self) -> bool:
        """Whether this member has read the whole log: an unread record may be from a leader that lives."""
        return self.replica.read_offset + 1 >= self.log.bounds()[1]

    def stop(self) -> None:
        """Stop leading once the requests in flight are settled."""
        self._stop.set()
        self.loop.wake()

    def join(self, timeout_s: float) -> None:
        """Wait for the leader's thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -- rows ------------------------------------------------------------------------------------------------------

    def block(self, container_id: int, local_id: int) -> BlockRow | None:
        """Return a block's row as it is applied here."""
        return block_row(self.store, block_key(container_id, local_id))

    def is_closed(self) -> bool:
        """Whether the pipeline takes nothing new."""
        row = pipeline_row(self.store)
        return row is not None and row.state == CLOSED

    # -- verified bytes --------------------------------------------------------------------------------------------

    def on_applied(self) -> None:
        """Tell the threads that wait that a record was applied."""
        with self.changed:
            self.changed.notify_all()

    def on_verified(self, key: bytes, length: int) -> None:
        """Take note that this node's bytes of a block are right and stored up to ``length``.

        Called when no repair of the block is planned any more (``verifier``, rule 5): an older length does not make a
        damaged block healthy.
        """
        self.on_all_verified([(key, length)])

    def on_all_verified(self, blocks: Sequence[tuple[bytes, int]]) -> None:
        """As :meth:`on_verified`, for blocks (key, length) that were found right together."""
        with self.changed:
            for key, length in blocks:
                self._verified[key] = max(length, self._verified.pop(key, 0))
                self.unhealthy.pop(key, None)
            while len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
            self.changed.notify_all()

    def on_failed(self, key: bytes, reason: str) -> None:
        """Take note that committed bytes of a block are missing or wrong here."""
        with self.changed:
            self._verified.pop(key, None)
            self.unhealthy[key] = reason

    def forget(self, key: bytes) -> None:
        """Forget a block: it was deleted."""
        with self.changed:
            self._verified.pop(key, None)
            self.unhealthy.pop(key, None)
            self.changed.notify_all()

    def watch(self, request: WatchBlock) -> BlockWatched:
        """Wait until this member has applied and verified the length that is asked for, for ``timeout_ms`` at most.

        Returns unsatisfied at once if the entry that was to commit the length is not in the log. Raises BlockError:
        BLOCK_DELETED.
        """
        key = block_key(request.container_id, request.local_id)
        deadline = Deadline.after_ms(min(max(request.timeout_ms, 0), MAX_WATCH_MS))
        asked = False
        while True:
            with self.changed:
                index = self.replica.position.index
                row = block_row(self.store, key)
                if row is not None and row.deleted:
                    raise BlockError(codes.BLOCK_DELETED, f"block {request.container_id}/{request.local_id} is deleted")
                length = 0 if row is None else row.length
                applied = index >= request.bcs_id
                verified = self._verified.get(key, 0)
                if applied and length >= request.length and verified >= request.length:
                    return self._watched(index, length, satisfied=True)
                vain = applied and request.bcs_id and length < request.length
                if deadline.has_passed or self._stop.is_set() or vain:
                    return self._watched(index, length, satisfied=False)
                if length < request.length or verified >= length or asked:
                    self.changed.wait(deadline.sooner(WATCH_STEP_S).left_s)
                    asked = False
                    continue
            asked = True
            self._wanted(self, key)

    def watch_all(self, request: WatchBlocks) -> BlocksWatched:
        """As :meth:`watch`, for several blocks: satisfied once all of them are.

        Once a second it looks whether waiting still makes sense. Raises BlockError: BLOCK_DELETED.
        """
        wanted = {block_key(block.container_id, block.local_id): block.length for block in request.blocks}
        deadline = Deadline.after_ms(min(max(request.timeout_ms, 0), MAX_WATCH_MS))
        look = deadline.sooner(WATCH_STEP_S)
        while wanted:
            with self.changed:
                index = self.replica.position.index
                if index >= request.bcs_id:
                    wanted = {key: length for key, length in wanted.items() if self._verified.get(key, 0) < length}
                if not wanted or deadline.has_passed or self._stop.is_set():
                    break
                self.changed.wait(look.left_s)
            if look.has_passed:
                look = deadline.sooner(WATCH_STEP_S)
                if not self._may_come(request.bcs_id, wanted):
                    break
        return BlocksWatched(datanode=self._config.node, bcs_id=self.replica.position.index, satisfied=not wanted)

    def _may_come(self, bcs_id: int, wanted: dict[bytes, int]) -> bool:
        """Return whether waiting for blocks makes sense; have those verified that are applied and not known to be."""
        if self.replica.position.index < bcs_id:
            return True
        for key, length in wanted.items():
            row = block_row(self.store, key)
            if row is not None and row.deleted:
                container_id, local_id = block_of_key(key)
                raise BlockError(codes.BLOCK_DELETED, f"block {container_id}/{local_id} is deleted")
            if row is None or row.length < length:
                return False
            self._wanted(self, key)
        return True

    def _watched(self, index: int, length: int, *, satisfied: bool) -> BlockWatched:
        return BlockWatched(datanode=self._config.node, bcs_id=index, length=length, satisfied=satisfied)

    # -- what it says of itself ------------------------------------------------------------------------------------

    def report(self) -> PipelineReport:
        """Return the pipeline as this member sees it."""
        evidence = self.replica.evidence
        fault = "" if evidence is None else f"divergence at index {evidence.index}"
        if not fault and self.unhealthy:
            with self.changed:
                fault = next(iter(self.unhealthy.values()), "")
        return PipelineReport(
            partition=self.partition, generation=self.generation, leading=self.loop.leading,
            applied_index=self.replica.position.index, healthy=not fault, fault=fault,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Return the pipeline for ``/status``; a shard's fields under the Object Manager's names."""
        replica = self.replica
        with replica.lock:
            position, digest, evidence = replica.position, replica.digests.total(), replica.evidence
        row = pipeline_row(self.store)
        with self.changed:
            unhealthy = len(self.unhealthy)
        return {
            "pipeline": self.opened.pipeline, "shard": self.partition, "generation": self.opened.generation,
            "state": "OPENING" if row is None else row.state, "members": self.members,
            "role": "leader" if self.loop.leading else "follower", "leader": position.leader,
            "leader_address": position.address, "term": position.term, "applied_offset": position.offset,
            "applied_index": position.index, "read_offset": replica.read_offset, "timestamp_ms": position.timestamp_ms,
            "digest": f"{digest:016x}", "chain": position.chain.hex(), "flagged": evidence is not None,
            "records_applied": replica.records_applied, "records_void": replica.records_void,
            "unhealthy_blocks": unhealthy, "silence_ms": self._silence.ms, "installed": installed_of(self.store),
        }  # fmt: skip


def folder_of(data_dir: Path, partition: int) -> Path:
    """Return the directory of a pipeline's database."""
    return data_dir / "pipelines" / str(partition)
