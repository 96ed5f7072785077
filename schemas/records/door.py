"""Records of the direct door beside requests and responses: who leads, lookups, and their rows.

They are payloads of frames (``schemas/door/frames.py``). Both sides begin with ``Hello`` (``datanode``).
"""

from __future__ import annotations

from dataclasses import field

from schemas.records.record import record


@record
class ShardLeader:
    """Who leads a shard; ``address`` is ``host:port`` of the node's HTTP server, empty without a leader."""

    shard: int
    term: int
    node: str
    address: str


@record
class DoorLeaders:
    """What a node says of the cluster: the number of shards, and the leaders that it knows."""

    shards: int
    leaders: list[ShardLeader]


@record
class DoorRead:
    """Looks up keys of one bucket; ``index`` is what the replica must have applied, for session reads.

    ``with_bytes`` asks for the bytes of inline keys, too. With a ``limit`` it names no keys and asks for a page of the
    bucket's: so many at most, whose names begin with ``prefix`` and come after ``start_after``.
    """

    consistency: str
    index: int
    volume: str
    bucket: str
    keys: list[str]
    with_bytes: bool = False
    limit: int = 0
    prefix: str = ""
    start_after: str = ""


@record
class DoorRows:
    """Answer to DoorRead: encoded KeyInfo rows in the order of the keys, None for a key that does not exist.

    ``status`` is OK, or why nothing was looked up; ``shard`` and ``index`` are the shard that was read and the last
    index that was applied there. With ``with_bytes``, ``data`` has for each key its bytes, None if it is not inline;
    rows and bytes are of one moment. ``more``: keys follow behind this page of a listing.
    """

    status: str
    message: str
    shard: int
    index: int
    rows: list[bytes | None]
    data: list[bytes | None] = field(default_factory=list)
    more: bool = False
