"""Whether a node's settings and the log agree on who the members are. Pure.

Rules:
    1. A node reads what was in the log when it started. It must find there the same members that its settings name; if
       not, it was started with old settings, or by mistake. Two differences are allowed: members logged since the
       start, while the node was still reading; and one member more or less, if the node itself is a member, because
       another one is just being added or removed, and the log shows that before the settings do.
    2. From then on only the log says who is a member (``admin add-node`` and ``remove-node`` log it; the settings
       follow for the next start). A node that is no longer a member stops.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from replicated_db.core.applying.replica import KnownMembers
from replicated_db.core.errors import WrongCluster


class MembershipCheck:
    """The check of one node, for all shards."""

    def __init__(self, node: str, named: Collection[str]) -> None:
        """``named`` are the members in the node's settings."""
        self._node = node
        self._named = frozenset(named)
        self._ends: dict[int, int] = {}
        self._agreed: set[int] = set()

    def look(self, shard: int, read_offset: int, end: int, known: Sequence[KnownMembers]) -> None:
        """Check a shard up to ``read_offset``, with the log's present end; raises WrongCluster.

        ``known`` lists the members that the log has named, in order (empty before Genesis); the first entry is what was
        known at the start.
        """
        start_end = self._ends.setdefault(shard, end)
        if not known or read_offset + 1 < start_end:
            return
        now = known[-1].names
        if shard not in self._agreed:
            at_start = next((one.names for one in reversed(known) if one.offset < start_end), known[0].names)
            if self._named != frozenset(at_start) and not self._is_changing(at_start):
                raise WrongCluster(
                    f"shard {shard}: the members are {', '.join(at_start)} in the log "
                    f"but {', '.join(sorted(self._named))} in this node's settings"
                )
            self._agreed.add(shard)
        if self._node not in now:
            raise WrongCluster(f"shard {shard}: {self._node} is no member any more; the members are {', '.join(now)}")

    def _is_changing(self, logged: Sequence[str]) -> bool:
        """Whether the settings differ from the log by one member, and not by this node: a change that is under way."""
        different = self._named ^ frozenset(logged)
        return len(different) == 1 and self._node not in different
