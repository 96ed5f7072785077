"""Whether a node's settings and the log agree on who the members are. Pure.

Rules:
    1. A node that has read what was in the log when it started must find there the very members that its settings name: else it
       was started with old settings, or by mistake.
    2. From then on the log alone says who is a member (``admin add-node`` and ``remove-node`` log it, settings follow for the
       next start); a node that is no member any more stops.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from replicated_db.errors import WrongCluster


class MembershipCheck:
    """Of one node, for all shards."""

    def __init__(self, node: str, named: Collection[str]) -> None:
        """``named`` are the members in the node's settings."""
        self._node = node
        self._named = frozenset(named)
        self._ends: dict[int, int] = {}
        self._agreed: set[int] = set()

    def look(self, shard: int, read_offset: int, end: int, members: Sequence[str]) -> None:
        """Look at a shard's members as of ``read_offset`` (none before Genesis), with the log's end now; raises WrongCluster."""
        start_end = self._ends.setdefault(shard, end)
        if not members or read_offset + 1 < start_end:
            return
        if shard not in self._agreed:
            if self._named != frozenset(members):
                raise WrongCluster(
                    f"shard {shard}: the members are {', '.join(members)} in the log "
                    f"but {', '.join(sorted(self._named))} in this node's settings"
                )
            self._agreed.add(shard)
        elif self._node not in members:
            raise WrongCluster(
                f"shard {shard}: {self._node} is no member any more; the members are {', '.join(members)}"
            )
