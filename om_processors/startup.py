"""Checks before a node takes part: the broker's and the topics' settings, the topics' identity, the replica against the log.

Each refusal names the setting (or the shard and offset) and what it should be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from replicated_db.errors import AheadOfLog, StopProcess
from replicated_db.ports import Log, LogUnavailable, OffsetOutOfRange
from replicated_db.replica import Replica
from schemas.topics import (
    LOG_SETTINGS,
    OM_AUDIT,
    OM_LOG,
    OM_REJECTED,
    OM_REQUESTS,
    OM_RESPONSES,
    REQUEST_SETTINGS,
)

ADMIN_TIMEOUT_S = 10.0
END_BEHIND_WAIT_S = 30.0
"""How long an end of the log at or below the replica's position is waited out: a cut-off broker serves an old one."""


class WrongSetting(StopProcess):
    """A broker's or topic's setting breaks the log contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """What was found: the identity of the log topic."""

    log_topic_id: str


def check_topics(bootstrap_servers: str, shards: int) -> Topics:
    """Check the broker's and the topics' settings.

    Raises WrongSetting naming the setting, LogUnavailable if the brokers do not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "socket.timeout.ms": int(ADMIN_TIMEOUT_S * 1000)})
    names = [OM_REQUESTS, OM_LOG, OM_RESPONSES, OM_AUDIT, OM_REJECTED]
    try:
        brokers = admin.list_topics(timeout=ADMIN_TIMEOUT_S).brokers
        described = admin.describe_topics(TopicCollection(names), request_timeout=ADMIN_TIMEOUT_S)
        found = {}
        for name, future in described.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                raise WrongSetting(f"topic {name}: {error.args[0].str()}") from error
        resources = [ConfigResource(ResourceType.TOPIC, OM_LOG), ConfigResource(ResourceType.TOPIC, OM_REQUESTS)]
        # librdkafka asks each broker itself for its settings, and takes one of them in a call.
        calls = [resources, *([ConfigResource(ResourceType.BROKER, str(broker))] for broker in brokers)]
        configs = {
            (str(resource.restype), resource.name): {entry.name: entry.value for entry in future.result().values()}
            for call in calls
            for resource, future in admin.describe_configs(call, request_timeout=ADMIN_TIMEOUT_S).items()
        }
    except KafkaException as error:
        raise LogUnavailable(str(error)) from error
    for (kind, name), config in configs.items():
        if name == OM_LOG:
            _check_log_topic(config, min(len(p.replicas) for p in found[OM_LOG].partitions))
        elif name == OM_REQUESTS:
            _check(f"topic {OM_REQUESTS}", config, REQUEST_SETTINGS)
        elif config.get("auto.create.topics.enable") != "false":
            raise WrongSetting(f"{kind} {name}: auto.create.topics.enable must be false")
    for name in (OM_REQUESTS, OM_LOG):
        if len(found[name].partitions) != shards:
            raise WrongSetting(
                f"topic {name}: {len(found[name].partitions)} partitions, but the settings say {shards} shards"
            )
    return Topics(log_topic_id=str(found[OM_LOG].topic_id))


def _check_log_topic(config: dict[str, str], replication: int) -> None:
    _check(f"topic {OM_LOG}", config, LOG_SETTINGS)
    if replication >= 3 and int(config.get("min.insync.replicas", "1")) < 2:
        raise WrongSetting(f"topic {OM_LOG}: min.insync.replicas must be at least 2 with {replication} replicas")


def _check(where: str, config: dict[str, str], wanted: Mapping[str, str]) -> None:
    for setting, value in wanted.items():
        if config.get(setting) != value:
            raise WrongSetting(f"{where}: {setting} must be {value}, not {config.get(setting)}")


def check_replica(
    replica: Replica, log: Log, note: Callable[[str], None], *,
    now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Compare the log's record at the replica's position with the one it has applied.

    An end at or below the position is waited out for END_BEHIND_WAIT_S. Raises AheadOfLog.
    """
    offset = replica.position.offset
    if offset < 0:
        replica.adopt_topic(log.topic_id(), None)
        return
    if replica.position.topic_id != log.topic_id():
        replica.adopt_topic(log.topic_id(), None)
    deadline = now_s() + END_BEHIND_WAIT_S
    while True:
        low, high = log.bounds()
        if offset < low:
            raise AheadOfLog(
                f"shard {replica.identity.shard}: position {offset} lies before the log's first record {low}; "
                "this replica needs a checkpoint from a peer"
            )
        if offset < high:
            break
        if now_s() > deadline:
            replica.adopt_topic(log.topic_id(), None)
        note(f"shard {replica.identity.shard}: the log ends at {high}, this replica is at {offset}; waiting")
        sleep(1)
    try:
        entries = log.read(offset, 1, ADMIN_TIMEOUT_S)
    except OffsetOutOfRange:
        entries = []
    if not entries:
        raise LogUnavailable(f"shard {replica.identity.shard}: offset {offset} could not be read")
    replica.adopt_topic(log.topic_id(), entries[0].value)
