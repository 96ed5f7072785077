"""What the audit's verdicts say about one shard: how far it has come, and who has diverged.

Only a verdict ``equal`` proves that the audit has read its barrier: others also name barriers that no log holds. Of
each node the last word counts that is not ``unknown``, apart for full scans, because an incremental digest does not see
what a scan sees. What was left out of the verdicts might have named a replica that diverged, so it allows nothing.
"""

from __future__ import annotations

from replicated_db.core.trimming.places import AuditPlace
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, SCRUBBED
from transport.topics.core.latest_verdicts import LatestVerdicts

MAX_JUDGED = 65_536
"""Replicas times bases of one log whose verdicts are remembered. Anybody may write verdicts; with more, none counts."""


def audit_place(latest: LatestVerdicts, log: str, shard: int) -> AuditPlace | str | None:
    """Return how far the audit has come with a shard, None if no verdict on it is known; in words, why that is unknown.

    ``latest`` has taken the verdicts in the order in which they were written.
    """
    if latest.dropped:
        return f"they name more than {len(latest):,} replicas of {log}"
    offset, decided_at_ms = -1, 0
    last: dict[tuple[str, bool], tuple[int, Verdict]] = {}
    for subject, said in latest.subjects():
        if (subject.log, subject.shard) != (log, shard) or said.word is None:
            continue
        offset = max(offset, said.equal_offset)
        decided_at_ms = max(decided_at_ms, said.word.decided_at_ms)
        key = subject.node, subject.basis.endswith(SCRUBBED)
        last[key] = max(last.get(key, (0, said.word)), (said.word_number, said.word), key=lambda word: word[0])
    diverged = {node for (node, _), (_, word) in last.items() if word.verdict == DIVERGED}
    return AuditPlace(offset=offset, decided_at_ms=decided_at_ms, diverged=tuple(sorted(diverged))) if last else None
