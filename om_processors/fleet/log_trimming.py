"""What trimming of ``om.log`` needs of a node (``DatabaseHost.trim_with``): bases as requests, the nodes' addresses.

A base is a request on ``om.requests`` like any other (``LogDigestBase``). The brokers know the addresses of the nodes
in the leaders' group; the settings win over them.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from om_processors.config import NodeConfig
from om_processors.fleet.proposer import Proposer
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.leader_names import node_and_address
from schemas.records.messages import OWN_DIGESTS, LogDigestBase
from schemas.topics import LEADER_GROUP

GROUP_TIMEOUT_S = 5.0
BASIS = "the leader's own, to trim the log to"


def ask_base(proposer: Proposer, shard: int, index: int) -> str:
    """Propose a base of a shard that stands at ``index``."""
    body = LogDigestBase(shard=shard, index=OWN_DIGESTS, slots=[], sums=[], basis=BASIS)
    # With the index in the key, a base of a later state is asked for at once.
    proposer.propose(("base", shard, index), body)
    return ""


def member_addresses(config: NodeConfig, _shard: int) -> Mapping[str, str]:
    """Return where the other nodes are, as far as the brokers and the settings tell."""
    return {**_group_addresses(config.bootstrap_servers), **dict(config.node_addresses)}


def _group_addresses(bootstrap_servers: Brokers) -> dict[str, str]:
    """Return the addresses of the nodes in the leaders' group; none if the brokers do not tell."""
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    try:
        asked = admin.describe_consumer_groups([LEADER_GROUP], request_timeout=GROUP_TIMEOUT_S)
        members = asked[LEADER_GROUP].result(GROUP_TIMEOUT_S + 1).members
    except (KafkaException, TimeoutError):
        return {}
    found = (node_and_address(member.client_id) for member in members)
    return {name: address for name, address in found if address}
