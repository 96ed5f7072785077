"""What the audit's verdicts say about one log: how far it has come with each shard, and who has diverged.

Only a verdict ``equal`` proves that the audit has read its barrier: others also name barriers that no log holds. Of
each node the last verdict counts, apart for full scans, because an incremental digest does not see what a scan sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from replicated_db.core.trimming.places import AuditPlace
from schemas.records.messages import Verdict

EQUAL = "equal"
DIVERGED = "diverged"
UNKNOWN = "unknown"
SCRUBBED = "scrubbed"
"""Words of a Verdict, as the audit writes them (``schemas/avsc/messages/Verdict.v2.avsc``)."""

MAX_SHARDS = 4096
MAX_NODES = 64
"""Nodes of a shard whose verdicts are remembered. Anybody may write verdicts; a further node's are left out."""


@dataclass(slots=True)
class _Shard:
    offset: int = -1
    decided_at_ms: int = 0
    last: dict[tuple[str, bool], str] = field(default_factory=dict)


class AuditView:
    """Follows the verdicts on one log."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._shards: dict[int, _Shard] = {}

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in the order in which they were written."""
        for verdict in verdicts:
            if verdict.log != self._log or verdict.verdict == UNKNOWN:
                continue
            if verdict.shard not in self._shards and len(self._shards) >= MAX_SHARDS:
                continue
            shard = self._shards.setdefault(verdict.shard, _Shard())
            key = verdict.node, verdict.basis.endswith(SCRUBBED)
            if key in shard.last or len(shard.last) < MAX_NODES:
                shard.last[key] = verdict.verdict
            shard.decided_at_ms = max(shard.decided_at_ms, verdict.decided_at_ms)
            if verdict.verdict == EQUAL:
                shard.offset = max(shard.offset, verdict.barrier_offset)

    def place(self, shard: int) -> AuditPlace | None:
        """Return how far the audit has come, None if no verdict on the shard is known."""
        found = self._shards.get(shard)
        if found is None:
            return None
        diverged = {node for (node, _), word in found.last.items() if word == DIVERGED}
        return AuditPlace(offset=found.offset, decided_at_ms=found.decided_at_ms, diverged=tuple(sorted(diverged)))
