"""Which nodes there are, and who leads which shard, as the brokers know it: the members of the leaders' group.

What belongs here: the one question to the group's coordinator, and its answer in words. Nodes are members while they may
lead, under a name that holds the address of their HTTP API (``schemas/leader_names.py``). Nothing is joined and nothing written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from producers.errors import NOT_CONNECTED, NotConnected
from schemas.leader_names import node_and_address
from schemas.topics import LEADER_GROUP, OM_REQUESTS

NOBODY = "no Object Manager node is a member of the leaders' group: none runs, or none may lead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMember:
    """A node in the leaders' group; the address is empty if its software is older than addresses there."""

    node: str
    address: str
    shards: frozenset[int]


def members_of(settings: Mapping[str, Any], timeout_s: float) -> list[LeaderMember]:
    """Return the members of the leaders' group, by name; ``settings`` are those of a connection to the brokers.

    Raises NotConnected if no broker tells them in time.
    """
    admin = AdminClient(dict(settings))
    try:
        group = admin.describe_consumer_groups([LEADER_GROUP], request_timeout=timeout_s)[LEADER_GROUP].result(
            timeout_s
        )
    except (KafkaException, TimeoutError) as error:
        servers = settings["bootstrap.servers"]
        raise NotConnected(NOT_CONNECTED, f"brokers {servers}: who leads was not told: {error}") from error
    found = []
    for member in group.members:
        node, address = node_and_address(member.client_id)
        owned = member.assignment.topic_partitions if member.assignment else []
        shards = frozenset(one.partition for one in owned if one.topic == OM_REQUESTS)
        found.append(LeaderMember(node=node, address=address, shards=shards))
    return sorted(found, key=lambda member: member.node)


def owner_in_words(members: list[LeaderMember], shard: int) -> str:
    """Say who owns a shard, for one who waits for it.

    >>> owner_in_words([], 0) == NOBODY
    True
    >>> owner_in_words([LeaderMember(node="om1", address="h:1", shards=frozenset({0}))], 0)
    'shard 0 belongs to om1 (h:1), which has not answered yet'
    >>> owner_in_words([LeaderMember(node="om1", address="h:1", shards=frozenset())], 0)
    'shard 0 has no leader yet; in the group are om1'
    """
    if not members:
        return NOBODY
    for member in members:
        if shard in member.shards:
            where = f" ({member.address})" if member.address else ""
            return f"shard {shard} belongs to {member.node}{where}, which has not answered yet"
    return f"shard {shard} has no leader yet; in the group are {', '.join(member.node for member in members)}"
