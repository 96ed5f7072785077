"""The rolling scrub: a thread that reads all rows of a process's replicas again and again, slowly.

A row that changes at rest is found within ``within_ms``: a pass takes at most half of that, and finds what was changed
before it began. If there are too many rows for that within the share of time that it may take, the passes are longer;
the log and the status say so. A restart begins a new pass at once.

Each column family has a snapshot of its own, which is held while the family is read. ``core/applying/rolling_pass``
says why what was found at a snapshot holds at a later barrier; ``reports`` tells it there. A replica whose rows are
wrong is flagged at once, and serves and leads no more; a later pass that finds them right takes that flag away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from replicated_db.core.applying.replica import Replica
from replicated_db.core.applying.rolling_pass import SLICE_ROWS, FamilyScan, ScanPace
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.process import Background
from replicated_db.shell.reports import AuditReports

RETRY_SECONDS = 1.0
"""How long it waits after a pass that did not end, and while there is no replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPass:
    """What the last pass over one replica was: when it ended, its rows, its seconds, and slots that differ."""

    ended_at_ms: int
    rows: int
    took_s: float
    differing_slots: int


class RollingScrub(Background):
    """Scans replicas in turn; :meth:`start` it once, and :meth:`close` it before the stores are closed.

    ``replicas`` is asked at the beginning of each pass. With a ``within_ms`` of 0 nothing is scanned. ``fatal`` is
    called if a store cannot be read.
    """

    end_wait_s = 5.0

    def __init__(
        self, replicas: Callable[[], Iterable[Replica]], reports: AuditReports, within_ms: int,
        log: Callable[[str], None], fatal: Callable[[BaseException], None], *, what: str = "shard",
    ) -> None:  # fmt: skip
        """``what``: the word for the log of a replica, in messages."""
        super().__init__("rolling-scrub", fatal)
        self._replicas = replicas
        self._reports = reports
        self.within_ms = within_ms
        self._log = log
        self._what = what
        self._pace = ScanPace(pass_s=within_ms / 2000)
        self._last: dict[int, LastPass] = {}

    def start(self) -> None:
        """Start the thread, if anything is to be scanned."""
        if self.within_ms:
            super().start()

    def last(self, shard: int) -> LastPass | None:
        """Return what the last pass over a shard's replica was; None if there was none yet."""
        return self._last.get(shard)

    def told(self, shard: int) -> dict[str, Any] | None:
        """Return the stated time, and the last pass over a shard's replica, for the status; None if nothing scans."""
        last = self.last(shard)
        if not self.within_ms:
            return None
        return {"within_ms": self.within_ms, "last_pass": None if last is None else asdict(last)}

    def run(self) -> None:
        """Scan, pass after pass; the end of a pass that is stopped leaves no snapshot held."""
        while not self._stop.is_set():
            began_s = time.monotonic()
            rows = self._pass()
            took_s = time.monotonic() - began_s
            if rows is None:
                self._stop.wait(RETRY_SECONDS)
                continue
            if took_s > self._pace.pass_s:
                self._log(
                    f"the rolling scrub's pass over {rows} rows took {took_s:.0f} s: a row that changes at rest is "
                    f"found within {2 * took_s:.0f} s, not {self.within_ms / 1000:.0f} s"
                )
            self._pace = ScanPace(pass_s=self._pace.pass_s, rows=rows)
            self._stop.wait(self._pace.pass_s - took_s)

    def _pass(self) -> int | None:
        """Scan all replicas once; return how many rows there were, None if the pass did not end."""
        rows, replicas = 0, list(self._replicas())
        for replica in replicas:
            try:
                found = self._scan(replica)
            except StoreFailure as error:
                raise StoreFailure(f"{self._what} {replica.identity.shard}: rolling scrub: {error}") from error
            if found is None:
                return None
            rows += found
        return rows if replicas else None

    def _scan(self, replica: Replica) -> int | None:
        """Scan one replica, and have told what was found; return its rows, None if the pass was ended."""
        began_s, standing = time.monotonic(), replica.evidence
        rows, differences = 0, dict[int, int]()
        for cf in replica.families.names:
            found = self._scan_family(replica, cf, differences)
            if found is None:
                return None
            rows += found
        self._last[replica.identity.shard] = LastPass(
            ended_at_ms=time.time_ns() // 1_000_000, rows=rows, took_s=time.monotonic() - began_s,
            differing_slots=len(differences),
        )  # fmt: skip
        self._reports.judge_rows(replica, differences, standing)
        self._reports.scanned(replica, differences)
        return rows

    def _scan_family(self, replica: Replica, cf: str, differences: dict[int, int]) -> int | None:
        """Scan a family and add what differs; what differs is told at once, the rest of the pass does not matter."""
        _, kept, view = replica.snapshot()
        try:
            scan, rows = FamilyScan(replica.families, cf, view, kept.sums[replica.families.positions[cf]]), 0
            while True:
                began_s = time.monotonic()
                read = scan.step()
                rows += read
                if self._stop.wait(self._pace.rest_s(time.monotonic() - began_s)):
                    return None
                if read < SLICE_ROWS:
                    break
        finally:
            view.close()
        if found := scan.differences():
            differences |= found
            self._reports.judge_rows(replica, found, None)
            self._reports.scanned(replica, dict(differences))
        return rows
