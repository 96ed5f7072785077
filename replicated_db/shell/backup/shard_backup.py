"""Taking one shard into a repository: a peer's checkpoint, as a bootstrapping replica takes it, and the log behind it.

The machine of a bootstrap decides (``core.bootstrap.bootstrap_machine``): which peer, what next after a failure. This
carries its instructions out, with a repository in the place of the candidate's folder. One listing is taken; what was
written since is in the log.

The checkpoint is checked as a candidate for an install is: its position, its Genesis, no flag, a full scan with the
digest that it stores, and the log's record at its position. Then the log is read up to its end, while the peer's
transfer still holds it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import SCAN_STEP_ROWS, Replica
from replicated_db.core.backup.kept_log import from_where
from replicated_db.core.backup.manifest import BackupManifest, ShardBackup
from replicated_db.core.bootstrap.bootstrap_machine import (
    AskListing,
    BootstrapEvent,
    BootstrapMachine,
    Check,
    Checked,
    CheckFailed,
    FetchContent,
    Fetched,
    GiveUpBootstrap,
    Install,
    Instruction,
    Listed,
    Mark,
    PeerFailed,
    PeersSeen,
    Release,
    SeekPeers,
    WrongContent,
)
from replicated_db.core.bootstrap.file_plan import missing
from replicated_db.core.bootstrap.listing import (
    DATABASE,
    MAX_LISTED_BYTES,
    MAX_LISTED_FILES,
    Content,
    Listing,
    TransferRequest,
)
from replicated_db.core.bootstrap.pace import FetchProgress, size_words
from replicated_db.core.bootstrap.peer_choice import Choice, ServingPeer, Wanted, choose
from replicated_db.core.ports import Entry, Log, LogBounds, LogUnavailable, OffsetOutOfRange, Store, StoreView
from replicated_db.core.tables.column_families import Families
from replicated_db.shell.backup.log_files import keep_entries
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository
from replicated_db.shell.backup.tree import build_tree
from replicated_db.shell.bootstrap.candidate_check import CandidateRefused, check_candidate
from replicated_db.shell.bootstrap.peer_calls import PeerCalls, PeerError
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.rocks import RocksReader

READ_LIMIT = 500
READ_WAIT_S = 5.0
SILENT_READS = 12
"""A reader gives up after so many reads of READ_WAIT_S in a row without a record, before the end of the log."""

TOUCH_INTERVAL_S = 60.0
"""How often a transfer is touched while something else is done: it must not end for want of readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource:
    """Where a shard is taken from: what it is, its families, its log, the nodes that may serve."""

    identity: Identity
    families: Families
    log: Log
    peers: Sequence[ServingPeer]


def take_shard(
    repository: BackupRepository, source: ShardSource, calls: PeerCalls, before: Sequence[BackupManifest],
    telling: Telling, now_ms: Callable[[], int], look: Callable[[StoreView], None] = lambda _: None,
) -> ShardBackup:  # fmt: skip
    """Take a shard into the repository; return its part of the manifest.

    ``before`` are the backups that there are; ``look`` is given the checked checkpoint's rows. Raises BackupFailed,
    which names each peer and what was wrong with it; LogUnavailable.
    """
    return _Taking(repository, source, calls, before, telling, now_ms, look).run()


class _Taking:
    """One shard of one backup; the machine decides, this carries out."""

    def __init__(
        self, repository: BackupRepository, source: ShardSource, calls: PeerCalls,
        before: Sequence[BackupManifest], telling: Telling, now_ms: Callable[[], int], look: Callable[[StoreView], None],
    ) -> None:  # fmt: skip
        self._repository = repository
        self._source = source
        self._calls = calls
        self._before = before
        self._telling = telling
        self._now_ms = now_ms
        self._look = look
        self._begun_s = time.monotonic()
        self._progress = FetchProgress(begun_s=self._begun_s)
        self._scanned = 0
        self._logged = 0
        self._saved = 0
        self._mark: Mark | None = None
        self._touched_s = self._begun_s
        self._part: ShardBackup | None = None
        identity = source.identity
        wanted = Wanted(
            cluster=identity.cluster, shard=identity.shard, shards=identity.shards, own_offset=-1,
            first_offset=source.log.bounds().first, least_offset=0,
        )  # fmt: skip
        self._machine = BootstrapMachine(wanted, searches=1, last_round_bytes=MAX_LISTED_BYTES)

    def run(self) -> ShardBackup:
        """Carry out instructions until the machine has ended."""
        self._machine.run(self._carry_out)
        if self._part is None:
            raise RuntimeError("the run ended without a part")
        return self._part

    def _carry_out(self, instruction: Instruction) -> BootstrapEvent | None:
        """Carry out one instruction; return the event that it leads to, None if nothing follows."""
        match instruction:
            case SeekPeers():
                return self._seek()
            case AskListing():
                return self._ask(instruction)
            case Mark():
                self._on_mark(instruction)
            case FetchContent():
                return self._fetch(instruction)
            case Check():
                return self._check(instruction.listing)
            case Install():
                self._part = self._finished(instruction.listing)
            case Release():
                self._release(instruction)
            case GiveUpBootstrap():
                raise BackupFailed(f"{self._name}: no node gives a checkpoint: {instruction.reason}")
        return None

    @property
    def _name(self) -> str:
        return f"shard {self._source.identity.shard}"

    def _seek(self) -> BootstrapEvent:
        self._telling.at(f"{self._name}: asks the nodes where they stand")
        views, refused = [], []
        for peer in self._source.peers:
            try:
                views.append(self._calls.view(peer, self._source.identity.shard))
            except PeerError as error:
                refused.append(f"{peer}: {error}")
        choice = choose(self._machine.wanted, views)
        return PeersSeen(Choice(usable=choice.usable, refused=(*refused, *choice.refused)))

    def _ask(self, instruction: AskListing) -> BootstrapEvent:
        self._telling.at(f"{self._name}: waits for the checkpoint of {instruction.peer}")
        identity = self._source.identity
        request = TransferRequest(
            asker=identity.node, cluster=identity.cluster, shard=identity.shard, shards=identity.shards,
            offset=0, have=frozenset(self._known()), folders={},
        )  # fmt: skip
        try:
            listing = self._calls.listing(instruction.peer, request)
        except PeerError as error:
            self._telling.say(f"{self._name}: {instruction.peer}: {error}")
            return PeerFailed(str(error))
        if listing.kept:
            return PeerFailed(f"its listing leaves out checkpoint {min(listing.kept)}, which was asked for")
        return Listed(listing, self._repository.having(one.content for one in listing.files))

    def _known(self) -> Iterable[Content]:
        """Return the immutable files of the shard's last backup that are here: the exclude list."""
        shard = self._source.identity.shard
        last = [manifest.part(shard) for manifest in self._before[-1:] if shard < manifest.shards]
        found = {one.content for part in last for one in part.listing.files if one.is_immutable}
        return sorted(self._repository.having(found))[:MAX_LISTED_FILES]

    def _on_mark(self, mark: Mark) -> None:
        self._mark, listing = mark, mark.listing
        contents = {one.content for one in listing.files}
        wanted = missing(listing, self._repository.having(contents))
        come = sum(content.size for content in wanted)
        self._saved = sum(content.size for content in contents) - come
        self._repository.check_room(come)
        self._progress.wanted_bytes = self._progress.got_bytes + come
        self._telling.say(
            f"{self._name}: {mark.peer} lists a checkpoint at offset {listing.position.offset}; {size_words(come)} in "
            f"{len(wanted)} files are to be fetched, {size_words(self._saved)} are here"
        )
        self._telling.at(lambda: f"{self._name}: fetches: {self._progress.words(time.monotonic())}")

    def _fetch(self, instruction: FetchContent) -> BootstrapEvent:
        content = instruction.content
        part = self._repository.part_of(content)
        try:
            self._calls.fetch(instruction.peer, instruction.transfer, content, part, self._on_bytes)
        except PeerError as error:
            self._telling.say(f"{self._name}: {instruction.peer}: {error}")
            return PeerFailed(str(error))
        except OSError as error:
            raise BackupFailed(f"{part}: {error.strerror or error}") from error
        return Fetched(content) if self._repository.accept(content) else WrongContent(content)

    def _check(self, listing: Listing) -> BootstrapEvent:
        self._scanned = 0
        self._telling.at(lambda: f"{self._name}: scans the checkpoint, {self._scanned} rows so far")
        tree = self._repository.scratch / f"shard-{listing.shard}"
        build_tree(self._repository, listing, tree, linked=True)
        source = self._source
        try:
            check_candidate(
                tree / DATABASE, source.identity, source.families, source.log, listing.position, self._telling.say,
                on_rows=self._on_rows,
            )  # fmt: skip
        except CandidateRefused as error:
            # A file that an earlier backup fetched may have been damaged on the disk since.
            damaged = self._repository.drop_damaged(one.content for one in listing.files)
            if damaged:
                self._telling.say(f"{damaged[0]} was damaged, and is fetched anew")
                return CheckFailed(f"{error}; {len(damaged)} files were damaged here: {damaged[0]}")
            return CheckFailed(str(error))
        return Checked()

    def _finished(self, listing: Listing) -> ShardBackup:
        """Return the part of a checked listing, with the log behind it."""
        source = self._source
        tree = self._repository.scratch / f"shard-{listing.shard}"
        reader = RocksReader(tree / DATABASE, source.families.names)
        try:
            replica = Replica(source.identity, source.families, cast(Store, reader))
            position, digest = replica.position, f"{replica.digests.total():016x}"
            members, level = replica.state.replicas, replica.state.feature_level
            self._look(reader)
        finally:
            reader.close()
        shutil.rmtree(tree, ignore_errors=True)
        now_ms, bounds = self._now_ms(), source.log.bounds()
        before = [one.part(listing.shard) for one in self._before if listing.shard < one.shards]
        first = from_where(before, position.topic_id, position.offset, bounds.first)
        self._telling.at(lambda: f"{self._name}: keeps the log, {size_words(self._logged)} so far")
        log = keep_entries(self._repository, self._entries(first, bounds), first, self._on_log)
        return ShardBackup(
            listing=listing, digest=digest, timestamp_ms=position.timestamp_ms, topic_id=position.topic_id,
            members=members, level=level, log=log, log_end=max(bounds.end, first), log_end_ms=now_ms,
            fetched_bytes=self._machine.fetched_bytes + self._logged, saved_bytes=self._saved,
        )  # fmt: skip

    def _entries(self, first: int, bounds: LogBounds) -> Iterable[Entry]:
        offset, silent = first, 0
        while offset < bounds.end:
            try:
                entries = self._source.log.read(offset, min(READ_LIMIT, bounds.end - offset), READ_WAIT_S)
            except OffsetOutOfRange as error:
                raise BackupFailed(f"{self._name}: the log was trimmed meanwhile: {error}") from error
            silent = 0 if entries else silent + 1
            if silent == SILENT_READS:
                raise LogUnavailable(f"{self._name}: offset {offset} of {bounds.end} is not served")
            yield from entries
            self._touch()
            offset = entries[-1].offset + 1 if entries else offset

    def _release(self, instruction: Release) -> None:
        try:
            self._calls.release(instruction.peer, instruction.transfer)
        except PeerError as error:
            self._telling.say(f"{self._name}: {instruction.peer}: {error}; it ends the transfer by itself")

    def _on_bytes(self, count: int) -> None:
        self._progress.got_bytes += count

    def _on_log(self, count: int) -> None:
        self._logged += count

    def _on_rows(self) -> None:
        self._scanned += SCAN_STEP_ROWS
        self._touch()

    def _touch(self) -> None:
        """Keep the peer's transfer, which holds the log, alive."""
        if self._mark is None or time.monotonic() - self._touched_s < TOUCH_INTERVAL_S:
            return
        self._touched_s = time.monotonic()
        listing = self._mark.listing
        try:
            self._calls.touch(self._mark.peer, listing.transfer, listing.files[0].content)
        except PeerError as error:
            self._telling.say(f"{self._name}: {self._mark.peer}: {error}")
