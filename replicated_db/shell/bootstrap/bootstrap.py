"""A replica that installs a peer's checkpoint: the shell around ``core.bootstrap.bootstrap_machine``.

:func:`bootstrap` is one run: it carries out the machine's instructions, one after another, on the caller's thread, and
says every TELL_INTERVAL_S what it is at. It ends with the new database in the old one's place, or with NoPeerServes and
the old one untouched. The database must be closed. A process that is killed meanwhile runs it again at its next start,
and fetches only what the candidate's folder does not hold yet; an install that had begun is finished first
(``install.finish``).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import SCAN_STEP_ROWS
from replicated_db.core.bootstrap.bootstrap_machine import (
    LAST_ROUND_BYTES,
    AskListing,
    BootstrapEvent,
    BootstrapMachine,
    Check,
    Checked,
    CheckFailed,
    Discard,
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
from replicated_db.core.bootstrap.listing import DATABASE, Listing, TransferRequest
from replicated_db.core.bootstrap.pace import FetchProgress, size_words
from replicated_db.core.bootstrap.peer_choice import Choice, ServingPeer, Wanted, choose
from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import INSTALLED_KEY
from replicated_db.core.ports import Log, LogUnavailable, Store
from replicated_db.core.tables.column_families import TRANSACTION_INFO, Families
from replicated_db.shell.bootstrap.candidate import Candidate, candidate_folder
from replicated_db.shell.bootstrap.candidate_check import (
    CandidateRefused,
    MakeReader,
    check_candidate,
    make_own,
)
from replicated_db.shell.bootstrap.content_digests import ContentDigests
from replicated_db.shell.bootstrap.install import install
from replicated_db.shell.bootstrap.peer_calls import PeerCalls, PeerError
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.rocks import RocksReader
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls

TOUCH_INTERVAL_S = 60.0
"""How often a transfer is touched while the candidate is scanned: the log must not be trimmed meanwhile."""

SEARCH_PAUSE_S = 2.0
"""Pause between two searches for a peer."""

SEARCHES = 30
"""How often peers are sought by a replica that cannot do without one."""

MAX_SHOWN_CHARACTERS = 2_000

Note = Callable[[str], None]


class NoPeerServes(StopProcess):
    """A replica needs a checkpoint, and no peer can give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which replica installs: its database (closed), what it is a replica of, the families, the log.

    ``reader`` opens a candidate for its checks, so that rows are read as the replica's own store gives them.
    """

    database: Path
    identity: Identity
    families: Families
    log: Log
    reader: MakeReader = RocksReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms a replica installs.

    ``peers`` returns the nodes to ask; it may raise LogUnavailable, if it asks the brokers. ``own_offset`` is where the
    replica stands. A checkpoint before ``least_offset`` is not worth fetching. ``searches`` is how often peers are
    sought while none is usable. ``stopping`` says whether the process is about to end.
    """

    peers: Callable[[], Sequence[ServingPeer]]
    secret: ClusterSecret | None
    tls: ProcessTls | None = None
    own_offset: int
    least_offset: int = 0
    searches: int = SEARCHES
    last_round_bytes: int = LAST_ROUND_BYTES
    stopping: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What a run has installed, kept under #INSTALLED: from where, how far, bytes fetched and saved, and how long."""

    peer: str
    leader: str
    term: int
    index: int
    offset: int
    rounds: int
    fetched_bytes: int
    saved_bytes: int
    took_s: float


def installed_of(store: Store) -> dict[str, Any] | None:
    """Return what a replica has installed last, None if it has read the whole log."""
    row = store.get(TRANSACTION_INFO, INSTALLED_KEY)
    return None if row is None else dict(json.loads(row))


def progress_file(database: Path) -> Path:
    """Return the file that says what a bootstrap of a database is at, while there is one."""
    return candidate_folder(database) / "progress.txt"


def forget_candidate(database: Path) -> None:
    """Remove a candidate that nobody needs any more."""
    shutil.rmtree(candidate_folder(database), ignore_errors=True)


def bootstrap(target: Target, terms: Terms, note: Note, calls: PeerCalls | None = None) -> Installed:
    """Install a peer's checkpoint in the place of a replica's database.

    Raises NoPeerServes, which names each peer and what was wrong with it; StoreFailure; LogUnavailable.
    """
    own_calls = calls or PeerCalls(terms.secret, tls=terms.tls)
    try:
        with _Teller(note, f"shard {target.identity.shard}: bootstrap: ", progress_file(target.database)) as teller:
            return _BootstrapRun(target, terms, teller, own_calls).run()
    finally:
        own_calls.close()


class _BootstrapRun:
    """One run; the machine decides, this carries out."""

    def __init__(self, target: Target, terms: Terms, teller: _Teller, calls: PeerCalls) -> None:
        self._target = target
        self._terms = terms
        self._teller = teller
        self._calls = calls
        self._begun_s = time.monotonic()
        self._hashed = 0
        self._scanned = 0
        self._touched_s = self._begun_s
        self._marked: Mark | None = None
        self._candidate = Candidate(target.database, ContentDigests(self._on_hashed))
        wanted = Wanted(
            cluster=target.identity.cluster, shard=target.identity.shard, shards=target.identity.shards,
            own_offset=terms.own_offset, first_offset=target.log.bounds().first, least_offset=terms.least_offset,
        )  # fmt: skip
        self._machine = BootstrapMachine(wanted, searches=terms.searches, last_round_bytes=terms.last_round_bytes)
        self._progress = FetchProgress(begun_s=self._begun_s)
        self._saved = 0
        self._installed: Installed | None = None

    def run(self) -> Installed:
        """Carry out instructions until the machine has ended."""
        self._teller.at(lambda: f"reads which files this node has already, {size_words(self._hashed)} so far")
        self._candidate.open()
        self._machine.run(self._carry_out)
        if self._installed is None:
            raise RuntimeError("the run ended without an install")
        return self._installed

    def _carry_out(self, instruction: Instruction) -> BootstrapEvent | None:
        """Carry out one instruction; return the event that it leads to, None if nothing follows."""
        self._check_stopping()
        match instruction:
            case SeekPeers():
                return self._seek(instruction)
            case AskListing():
                return self._ask(instruction)
            case Mark():
                self._mark(instruction)
            case FetchContent():
                return self._fetch(instruction)
            case Check():
                return self._check(instruction.listing)
            case Release():
                self._release(instruction)
            case Discard():
                self._candidate.discard()
            case Install():
                self._install(instruction.listing)
            case GiveUpBootstrap():
                raise NoPeerServes(self._advice(instruction.reason))
        return None

    def _seek(self, instruction: SeekPeers) -> BootstrapEvent:
        self._teller.at("looks for a peer that has a checkpoint to give")
        if instruction.pause:
            time.sleep(SEARCH_PAUSE_S)
        views, refused = [], []
        try:
            peers = self._terms.peers()
        except LogUnavailable as error:
            return PeersSeen(Choice(usable=(), refused=(f"the brokers do not name the peers: {error}",)))
        for peer in peers:
            try:
                views.append(self._calls.view(peer, self._target.identity.shard))
            except PeerError as error:
                self._teller.say(f"{peer}: {error}")
                refused.append(f"{peer}: {error}")
        choice = choose(self._machine.wanted, views)
        return PeersSeen(Choice(usable=choice.usable, refused=(*refused, *choice.refused)))

    def _ask(self, instruction: AskListing) -> BootstrapEvent:
        self._teller.at(f"round {instruction.round}: waits for the checkpoint of {instruction.peer}")
        identity = self._target.identity
        have = self._candidate.have
        request = TransferRequest(
            asker=identity.node, cluster=identity.cluster, shard=identity.shard, shards=identity.shards,
            offset=self._terms.own_offset, have=have, folders=self._candidate.folders,
        )  # fmt: skip
        try:
            listing = self._calls.listing(instruction.peer, request)
        except PeerError as error:
            self._teller.say(f"{instruction.peer}: {error}")
            return PeerFailed(str(error))
        unknown = listing.kept - set(request.folders)
        if unknown or not listing.remove <= have:
            return PeerFailed(f"its listing leaves out what this node does not have: {min(unknown, default='')!r}")
        return Listed(listing, have)

    def _mark(self, instruction: Mark) -> None:
        listing = instruction.listing
        self._marked = instruction
        self._candidate.mark(instruction.peer, listing)
        wanted = missing(listing, self._candidate.have)
        total = sum({one.content: one.content.size for one in listing.files}.values())
        come = sum(content.size for content in wanted)
        if self._machine.rounds == 1:
            self._saved = total - come
        self._progress.wanted_bytes = self._progress.got_bytes + come
        self._teller.say(
            f"{instruction.peer} lists a checkpoint at offset {listing.position.offset}, {size_words(total)}; "
            f"{size_words(come)} in {len(wanted)} files are to be fetched, {len(listing.kept)} checkpoints are here whole"
        )
        self._teller.at(lambda: f"fetches: {self._progress.words(time.monotonic())}")

    def _fetch(self, instruction: FetchContent) -> BootstrapEvent:
        content = instruction.content
        part = self._candidate.part_of(content)
        try:
            self._calls.fetch(instruction.peer, instruction.transfer, content, part, self._on_bytes)
        except PeerError as error:
            self._teller.say(f"{instruction.peer}: {error}")
            return PeerFailed(str(error))
        if self._candidate.accept(content):
            return Fetched(content)
        self._teller.say(f"{instruction.peer}: content {content.digest} came wrong, and is fetched again")
        return WrongContent(content)

    def _check(self, listing: Listing) -> BootstrapEvent:
        self._teller.at("puts the candidate together")
        self._candidate.build(listing)
        target = self._target
        self._scanned = 0
        self._teller.at(lambda: f"scans the candidate, {self._scanned} rows so far")
        database = self._candidate.tree / DATABASE
        try:
            check_candidate(
                database, target.identity, target.families, target.log, listing.position, self._teller.say,
                make_reader=target.reader, on_rows=self._on_rows,
            )  # fmt: skip
        except CandidateRefused as error:
            self._teller.say(f"the candidate is refused: {error}")
            return CheckFailed(str(error))
        return Checked()

    def _install(self, listing: Listing) -> None:
        self._teller.at("installs the candidate")
        self._installed = Installed(
            peer=listing.node, leader=listing.leader, term=listing.position.term, index=listing.position.index,
            offset=listing.position.offset, rounds=self._machine.rounds, fetched_bytes=self._machine.fetched_bytes,
            saved_bytes=self._saved, took_s=round(time.monotonic() - self._begun_s, 3),
        )  # fmt: skip
        record = json.dumps(asdict(self._installed))
        make_own(self._candidate.tree / DATABASE, self._target.families, record.encode())
        install(self._target.database, record)
        forget_candidate(self._target.database)
        self._teller.say(
            f"installed the checkpoint of {listing.node} at offset {listing.position.offset}: "
            f"{size_words(self._installed.fetched_bytes)} fetched, {size_words(self._saved)} were here, "
            f"{self._installed.took_s:.1f} s"
        )

    def _release(self, instruction: Release) -> None:
        try:
            self._calls.release(instruction.peer, instruction.transfer)
        except PeerError as error:
            self._teller.say(f"{instruction.peer}: {error}; it ends the transfer by itself")

    def _advice(self, reason: str) -> str:
        identity, wanted = self._target.identity, self._machine.wanted
        return (
            f"shard {identity.shard}: this replica stands at offset {wanted.own_offset} and the log begins at "
            f"{wanted.first_offset}; it needs a peer's checkpoint, and no peer gives one: "
            f"{reason[:MAX_SHOWN_CHARACTERS]}. What can be done: start a node whose replica is healthy and stands "
            f"behind offset {max(wanted.first_offset, wanted.own_offset)}, or name such nodes by the setting "
            f"'bootstrap_peers', and start this one again; or stop a healthy node, and copy its folder "
            f"{self._target.database.name} here"
        )

    def _check_stopping(self) -> None:
        if self._terms.stopping():
            raise NoPeerServes(f"shard {self._target.identity.shard}: the process ends; its next start goes on")

    def _on_rows(self) -> None:
        self._check_stopping()
        self._scanned += SCAN_STEP_ROWS
        if self._marked is None or time.monotonic() - self._touched_s < TOUCH_INTERVAL_S:
            return
        self._touched_s = time.monotonic()
        with suppress(PeerError):  # the check of the log says whether it mattered
            self._calls.touch(self._marked.peer, self._marked.listing.transfer, self._marked.listing.files[0].content)

    def _on_bytes(self, count: int) -> None:
        self._check_stopping()
        self._progress.got_bytes += count

    def _on_hashed(self, count: int) -> None:
        self._hashed += count


class _Teller(Telling):
    """Says what a run is at.

    The last thing said is in a file of the candidate's folder, too: a node that bootstraps answers no HTTP yet.
    """

    def __init__(self, note: Note, prefix: str, file: Path) -> None:
        super().__init__(note, thread="bootstrap-progress")
        self._prefix = prefix
        self._file = file

    def say(self, text: str) -> None:
        """Say one thing."""
        super().say(self._prefix + text)
        with suppress(OSError):  # the folder is not there yet, or no longer
            self._file.write_text(self._prefix + text)
