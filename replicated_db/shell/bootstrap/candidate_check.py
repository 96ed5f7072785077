"""The checks before a candidate is installed, and the rows of the peer that do not come along.

What is checked: the database opens; it stands where the listing says; its Genesis is this cluster's and this shard's;
it is not flagged; the digest of a full scan is the one that it stores; the local families, which no digest covers, can
be read; the log's record at its position is the one that it has applied. The last check ties the rows to this log, the
scan ties them to each other. Also, the log reaches back to its anchor: who claims reads from there once more (decision
0016), and would stop otherwise.

Local rows: TRANSACTION_INFO and RETRY_EXPIRY come along, with the rest. The position, the anchor, the digests and the
control records are what every replica at that index has. The order in which retry rows age (decision 0003) must come
along, too: nothing on this replica would make it again, and retry rows that it does not list would never expire under
this node's lead. Two rows say something about the peer alone, and go: #FLAG and #UNFLAGGED. One is written: #INSTALLED.
What a replica's tasks do in the background keeps no rows here, so nothing of it can come along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.listing import ListedPosition
from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import FLAG_KEY, INSTALLED_KEY, UNFLAGGED_KEY
from replicated_db.core.ports import Log, LogUnavailable, Store
from replicated_db.core.tables.column_families import LOCAL_FAMILIES, TRANSACTION_INFO, Families
from replicated_db.shell.rocks import RocksReader, RocksStore
from replicated_db.shell.startup import check_replica

LOG_WAIT_S = 60.0
"""How long the log may be unavailable while a candidate is compared with it."""


MakeReader = Callable[[Path, Sequence[str]], RocksReader]
"""Opens a database for reading, given the names of its families. It raises ValueError at a row that it cannot read."""


class CandidateRefused(Exception):
    """The candidate may not be installed."""


def check_candidate(
    database: Path, identity: Identity, families: Families, log: Log, listed: ListedPosition, note: Callable[[str], None],
    *, make_reader: MakeReader = RocksReader, on_rows: Callable[[], None] = lambda: None, now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Check a candidate's database; raises CandidateRefused, LogUnavailable.

    ``make_reader`` opens the database; ``on_rows`` is called after each SCAN_STEP_ROWS rows of the scan.
    """
    try:
        reader = make_reader(database, families.names)
        try:
            _check(reader, identity, families, log, listed, note, now_s, sleep, on_rows)
        finally:
            reader.close()
    except (StopProcess, ValueError) as error:
        raise CandidateRefused(str(error)) from error


def _check(
    reader: RocksReader, identity: Identity, families: Families, log: Log, listed: ListedPosition,
    note: Callable[[str], None], now_s: Callable[[], float], sleep: Callable[[float], None],
    on_rows: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    # A replica only reads while it is made and scanned.
    replica = Replica(identity, families, cast(Store, reader))
    position = replica.position
    found = ListedPosition(
        term=position.term, index=position.index, offset=position.offset, record_hash=position.record_hash
    )
    if found != listed:
        raise CandidateRefused(f"its rows stand at offset {found.offset}, the listing says {listed.offset}")
    if replica.genesis is None:
        raise CandidateRefused("it holds no Genesis, so it does not say which cluster it belongs to")
    if replica.evidence is not None:
        raise CandidateRefused("it is flagged: it has diverged")
    scanned = replica.scan(reader, on_rows)
    _read_local_rows(reader)
    if scanned != replica.digests:
        raise CandidateRefused(
            f"its rows have the digest {scanned.total():016x}, and it stores {replica.digests.total():016x}"
        )
    deadline_s = now_s() + LOG_WAIT_S
    while True:
        try:
            check_replica(replica, log, note, now_s=now_s, sleep=sleep)
            if not reaches_anchor(replica, log):
                raise CandidateRefused(
                    f"its last counting record is at offset {replica.anchor.offset}, before the log's first one: it "
                    "could not lead. Its next counting record mends that"
                )
            return
        except LogUnavailable as error:
            if now_s() > deadline_s:
                raise
            note(f"shard {identity.shard}: the log does not answer: {error}")
            sleep(1)


def _read_local_rows(reader: RocksReader) -> None:
    """Read the rows that are in no digest: RocksDB's checksums say whether their files are whole."""
    for family in LOCAL_FAMILIES:
        for _ in reader.iterate(family, b""):
            pass


def reaches_anchor(replica: Replica, log: Log) -> bool:
    """Whether the log still has the last counting record of a replica, from which on a candidate reads once more."""
    return replica.anchor.offset < 0 or replica.anchor.offset >= log.bounds().first


def make_own(database: Path, families: Families, installed: bytes) -> None:
    """Remove the peer's own rows from a candidate, and write #INSTALLED; durable. Raises StoreFailure."""
    store = RocksStore(database, families.names)
    try:
        store.write(
            [
                (TRANSACTION_INFO, FLAG_KEY, None),
                (TRANSACTION_INFO, UNFLAGGED_KEY, None),
                (TRANSACTION_INFO, INSTALLED_KEY, installed),
            ]
        )
        store.sync()
    finally:
        store.close()
