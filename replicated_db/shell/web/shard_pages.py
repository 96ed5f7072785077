"""Pages about a replica, served by every process that hosts one: digest, rows of a digest bucket, one row, a count.

Tools compare replicas by these pages (docs/architecture.md names paths and parameters). Illegal parameters raise
BadQuery, which names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import StoreView
from replicated_db.core.tables.digests import row_hash_in
from replicated_db.shell.web.scan_threads import MAX_SCANS, ScanThreads
from schemas.codecs.decimals import decimal_of

MAX_ROWS = 10_000
MAX_SHOWN_CHARACTERS = 100
"""Characters of an illegal parameter that are told."""
Json = dict[str, Any]

MAX_COUNTS = 256
"""Most counts that run or wait: a dashboard asks for two of each shard."""
COUNTED_ROWS = 1_000
"""Rows that a count goes on for, unless it is told another limit."""


class BadQuery(ValueError):
    """A parameter is illegal; the message names it."""


class ShardPages:
    """The pages of one process, and the threads on which they read whole tables."""

    def __init__(self) -> None:
        self._scans = ScanThreads("scan", MAX_SCANS)
        # Threads of their own: a count is over at once, and a scan of a whole table is not.
        self._counts = ScanThreads("count", MAX_COUNTS)

    def close(self) -> None:
        """Let the threads end behind the scans under way."""
        self._scans.close()
        self._counts.close()

    async def digest(self, replica: Replica, query: Mapping[str, str]) -> Json:
        """Return the incremental digest; with ``scrub=true`` that of a full scan at the same moment, as the main one.

        Raises ScansBusy.
        """
        scrub = query.get("scrub", "false") == "true"
        position, incremental, snapshot = replica.snapshot()
        digests = incremental
        if scrub:
            digests = await self._scans.run(snapshot, replica.scan)
        else:
            snapshot.close()
        slots, sums = digests.slots()
        return {
            "offset": position.offset, "index": position.index, "chain": position.chain.hex(),
            "slots": slots, "sums": sums, "scrubbed": scrub, "digest": f"{digests.total():016x}",
            "incremental": {
                "digest": f"{incremental.total():016x}",
                "slots": incremental.slots()[0],
                "sums": incremental.slots()[1],
            },
        }  # fmt: skip

    async def rows(self, replica: Replica, query: Mapping[str, str]) -> Json:
        """Return key and hash of each row of one digest bucket, to find the rows that differ. Raises ScansBusy."""
        cf, bucket = _family(replica, query), number(query, "bucket", 0, 0, 255)
        position, _, snapshot = replica.snapshot()
        found = await self._scans.run(snapshot, lambda view: _bucket_rows(replica, view, cf, bucket))
        answer = {"offset": position.offset, "index": position.index, "rows": found[:MAX_ROWS]}
        return {**answer, "truncated": len(found) > MAX_ROWS}

    async def row(self, replica: Replica, query: Mapping[str, str]) -> Json:
        """Return one row of any family, for the repair of another replica's row.

        The value is in hexadecimal, null if the row is absent.
        """
        cf = _family(replica, query)
        try:
            key = bytes.fromhex(query.get("key", ""))
        except ValueError as error:
            raise BadQuery(f"key {query.get('key')!r} is not hexadecimal") from error
        position, _, snapshot = replica.snapshot()
        try:
            value = snapshot.get(cf, key)
        finally:
            snapshot.close()
        return {"offset": position.offset, "index": position.index, "value": None if value is None else value.hex()}

    async def count(self, replica: Replica, query: Mapping[str, str]) -> Json:
        """Return how many rows a family has; ``more`` if there are further ones behind ``limit``. Raises ScansBusy.

        RocksDB's own estimate (``rocksdb.estimate-num-keys``) is of no use for tables whose rows come and go: it says
        0 of a table with 5,000 rows of which 10,000 others were removed.
        """
        cf, limit = _family(replica, query), number(query, "limit", COUNTED_ROWS, 1, MAX_ROWS)
        position, _, snapshot = replica.snapshot()
        found = await self._counts.run(snapshot, lambda view: sum(1 for _ in islice(view.iterate(cf, b""), limit + 1)))
        answer = {"offset": position.offset, "index": position.index}
        return {**answer, "rows": min(found, limit), "more": found > limit}


def replica_of(replicas: Mapping[int, Replica], shard: str) -> Replica:
    """Return the replica of a shard given as text; raises BadQuery."""
    found = decimal_of(shard)
    if found is None or found not in replicas:
        there = ", ".join(map(str, sorted(replicas))) or "none"
        raise BadQuery(f"there is no shard {shard[:MAX_SHOWN_CHARACTERS]!r} here; there is: {there}")
    return replicas[found]


def number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return one number of the parameters; raises BadQuery."""
    text = query.get(name, str(default))
    found = decimal_of(text, high)
    if found is None or found < low:
        raise BadQuery(f"{name} {text[:MAX_SHOWN_CHARACTERS]!r} is not a number in {low}..{high}")
    return found


def _family(replica: Replica, query: Mapping[str, str]) -> str:
    cf: str = query.get("cf", "")
    if cf not in replica.families.names:
        raise BadQuery(f"cf {cf!r} is not one of {', '.join(replica.families.names)}")
    return cf


def _bucket_rows(replica: Replica, view: StoreView, cf: str, bucket: int) -> list[Json]:
    found: list[Json] = []
    for key, value in view.iterate(cf, b""):
        if (row_hash := row_hash_in(replica.families, cf, key, value, bucket)) is not None:
            found.append({"key": key.hex(), "hash": row_hash})
            if len(found) > MAX_ROWS:
                break
    return found
