"""Trimming of ``om.log``: the shards' trimming of ``replicated_db``, with bases as requests and the nodes' addresses.

A base is a request on ``om.requests`` like any other (``LogDigestBase``). The brokers know the addresses of the nodes
in the leaders' group; the settings win over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from om_processors.config import NodeConfig
from om_processors.fleet.proposer import Proposer
from replicated_db.core.ports import Clock
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.trimming.log_trimmer import Holds, LogTrimmer, no_holds
from replicated_db.shell.trimming.log_trimming import LogTrimming
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.leader_names import node_and_address
from schemas.records.messages import OWN_DIGESTS, LogDigestBase
from schemas.topics import LEADER_GROUP, OM_LOG

GROUP_TIMEOUT_S = 5.0
BASIS = "the leader's own, to trim the log to"


def om_log_trimming(
    config: NodeConfig, topic_id: str, loops: Mapping[int, LeaderLoop], proposer: Proposer, clock: Clock,
    holds: Holds = no_holds,
) -> LogTrimming:  # fmt: skip
    """Return the trimming of the shards that a node leads."""
    trimmer = LogTrimmer(
        config.bootstrap_servers, OM_LOG, OM_LOG, cluster=config.cluster, topic_id=topic_id, secret=config.secret, tls=config.tls,
        clock=clock,
    )  # fmt: skip
    return LogTrimming(trimmer, loops, partial(_propose, proposer), partial(_addresses, config), holds)


def _propose(proposer: Proposer, shard: int, index: int) -> str:
    body = LogDigestBase(shard=shard, index=OWN_DIGESTS, slots=[], sums=[], basis=BASIS)
    # With the index in the key, a base of a later state is asked for at once.
    proposer.propose(("base", shard, index), body)
    return ""


def _addresses(config: NodeConfig, _shard: int) -> Mapping[str, str]:
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
