"""Which node leads which shard, as the nodes say; and which nodes to be connected with. Pure.

The nodes that were given are always among them: another node than the leader tells first who leads next.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.records.door import DoorLeaders

MAX_NODES = 16
"""Most nodes that a client is connected with."""


class Routes:
    """What is known of the leaders; addresses are ``host:port``.

    >>> from schemas.records.door import ShardLeader
    >>> routes = Routes(["a:1"])
    >>> routes.hear(DoorLeaders(shards=1, leaders=[ShardLeader(shard=0, term=3, node="om2", address="b:2")]))
    []
    >>> routes.leader_of(0), routes.addresses
    ('b:2', ['a:1', 'b:2'])
    """

    def __init__(self, given: Sequence[str]) -> None:
        self.shards = 0
        """The number of shards; 0 until a node has said it."""
        self._given = list(dict.fromkeys(given))[:MAX_NODES]
        self._leaders: dict[int, tuple[int, str]] = {}

    @property
    def addresses(self) -> list[str]:
        """The nodes to be connected with."""
        leaders = [address for _, address in self._leaders.values() if address]
        return list(dict.fromkeys([*self._given, *leaders]))[:MAX_NODES]

    def leader_of(self, shard: int) -> str:
        """Return the address of a shard's leader, empty if none is known."""
        return self._leaders.get(shard, (0, ""))[1]

    def hear(self, said: DoorLeaders) -> list[int]:
        """Take what a node says, but older terms; return the shards that were led from another address before."""
        self.shards = self.shards or said.shards
        moved: list[int] = []
        for one in said.leaders:
            term, address = self._leaders.get(one.shard, (0, ""))
            if one.term >= term:
                self._leaders[one.shard] = (one.term, one.address)
                if address not in ("", one.address):
                    moved.append(one.shard)
        return moved
