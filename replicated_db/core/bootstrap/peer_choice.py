"""Which peer to take a checkpoint from: the leader first, else the member that stands furthest in the log.

A peer is passed over, with the reason in words, if it belongs to another cluster or shard, is flagged, stands no
further than the asking replica, or stands before the log's first record, so that its checkpoint would not do either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from replicated_db.core.bootstrap.listing import MAX_NUMBER, MAX_TEXT_CHARACTERS, BadListing


@dataclass(frozen=True, slots=True, order=True)
class ServingPeer:
    """A node that may serve: its name, and ``host:port`` of its HTTP server."""

    node: str
    address: str

    def __str__(self) -> str:
        return f"{self.node} at {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """What a peer says of its replica of the shard."""

    peer: ServingPeer
    node: str
    cluster: str
    shard: int
    shards: int
    offset: int
    leads: bool
    flagged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the asking replica needs: a checkpoint of this shard, at ``least_offset`` or behind it.

    ``own_offset`` is where the asking replica stands, ``first_offset`` where the log begins.
    """

    cluster: str
    shard: int
    shards: int
    own_offset: int
    first_offset: int
    least_offset: int

    def against(self, cluster: str, shard: int, shards: int, offset: int) -> str | None:
        """Return what speaks against a checkpoint at ``offset`` of a shard, None if nothing does."""
        for name, mine, theirs in (
            ("cluster", self.cluster, cluster), ("shard", self.shard, shard), ("shards", self.shards, shards),
        ):  # fmt: skip
            if mine != theirs:
                return f"its {name} is {theirs!r}, not {mine!r}"
        if offset <= self.own_offset:
            return f"it stands at offset {offset}, and this replica at {self.own_offset} already"
        if offset < self.first_offset:
            return f"it stands at offset {offset}, and the log begins at {self.first_offset}"
        if offset < self.least_offset:
            return f"it stands at offset {offset}: replaying the log up to there is as good"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Peers to ask, the best first, and for each of the others why it is not asked."""

    usable: tuple[ServingPeer, ...]
    refused: tuple[str, ...]


def view_from(peer: ServingPeer, given: Any) -> PeerView:
    """Return what a peer has sent about its replica; raises BadListing."""
    if not isinstance(given, Mapping):
        raise BadListing("a record is wanted")
    for name in ("node", "cluster"):
        if not isinstance(given.get(name), str) or not 0 < len(given[name]) <= MAX_TEXT_CHARACTERS:
            raise BadListing(f"{name}: a text of 1..{MAX_TEXT_CHARACTERS} characters is wanted")
    for name, least in (("shard", 0), ("shards", 1), ("offset", -1)):
        if type(given.get(name)) is not int or not least <= given[name] <= MAX_NUMBER:
            raise BadListing(f"{name}: a number in {least}..{MAX_NUMBER} is wanted")
    for name in ("leads", "flagged"):
        if type(given.get(name)) is not bool:
            raise BadListing(f"{name}: true or false is wanted")
    return PeerView(
        peer=peer, node=given["node"], cluster=given["cluster"], shard=given["shard"], shards=given["shards"],
        offset=given["offset"], leads=given["leads"], flagged=given["flagged"],
    )  # fmt: skip


def choose(wanted: Wanted, views: Iterable[PeerView]) -> Choice:
    """Return the peers to ask, in order."""
    usable, refused = [], []
    for view in views:
        if view.node != view.peer.node:
            against: str | None = f"{view.node} answers there"
        elif view.flagged:
            against = "its replica is flagged: it has diverged"
        else:
            against = wanted.against(view.cluster, view.shard, view.shards, view.offset)
        if against is None:
            usable.append(view)
        else:
            refused.append(f"{view.peer}: {against}")
    usable.sort(key=lambda view: (not view.leads, -view.offset, view.peer))
    return Choice(usable=tuple(view.peer for view in usable), refused=tuple(refused))
