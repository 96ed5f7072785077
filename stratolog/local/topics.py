"""The topics of a cluster: create them with the settings of the log contract, or verify those that exist.

The settings themselves are in ``schemas.topics``. The number of partitions and copies, and how durable an acknowledged
record is, are the cluster's choice (:class:`TopicPlan`). Every node checks the log's settings again at its own start;
here the operator learns of a mismatch first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    TopicMetadata,
)

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.kafka.troubles import ConnectionTroubles
from schemas.topics import (
    BOUNDED_RETENTION_MS,
    BOUNDED_SIZES,
    DN_AUDIT,
    DN_HEARTBEATS,
    DN_LOG,
    LOG_SETTINGS,
    MAX_MESSAGE_BYTES,
    OM_AUDIT,
    OM_LOG,
    OM_REJECTED,
    OM_REQUESTS,
    OM_RESPONSES,
    OM_STATS,
    OM_VERDICTS,
    REQUEST_SETTINGS,
    UNCOMPRESSED,
)
from stratolog.errors import Unavailable, UserError
from stratolog.local.kafka import min_in_sync
from stratolog.local.processes import wait_until
from transport.waiting.deadline import Deadline

CONTACT_TIMEOUT_S = 10.0
ADMIN_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 30.0
SETTLE_POLL_S = 0.1

REPLICATED = "replicated"
FSYNC = "fsync"
"""An acknowledged record is in page caches (REPLICATED) or on disks (FSYNC) of min.insync.replicas brokers."""
NEVER_FLUSH = str(2**63 - 1)

DN_LOG_PARTITIONS = 32
"""Pipelines for which there is room at first; the Object Manager adds partitions when these are used up."""
GROWING = (DN_LOG, DN_AUDIT)
"""Topics to which the Object Manager adds partitions."""
UNBOUNDED = (OM_LOG, DN_LOG)
"""Topics from which only we remove records."""
HEARTBEAT_RETENTION_MS = 3_600_000
HEARTBEAT_SEGMENT_MS = 600_000


class TopicMismatch(UserError):
    """A topic exists with other settings or another number of partitions than the cluster needs."""


class WantedTopic(NamedTuple):
    """What a topic must have: its number of partitions, and its settings."""

    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What the topics of one cluster must have."""

    shards: int
    response_partitions: int
    replication_factor: int
    durability: str
    datanodes: bool = False
    """Whether the cluster has datanodes, and therefore their topics."""

    def topics(self) -> Mapping[str, WantedTopic]:
        """Return what each topic must have, by the topic's name."""
        in_sync = {"min.insync.replicas": str(min_in_sync(self.replication_factor))}
        bounded = {
            "retention.ms": str(BOUNDED_RETENTION_MS),
            "max.message.bytes": str(MAX_MESSAGE_BYTES),
            **UNCOMPRESSED,
            **BOUNDED_SIZES,
        }
        flush = {"flush.messages": "1" if self.durability == FSYNC else NEVER_FLUSH}
        topics: dict[str, WantedTopic] = {
            OM_LOG: WantedTopic(self.shards, {**LOG_SETTINGS, **in_sync, **flush}),
            OM_REQUESTS: WantedTopic(self.shards, {**bounded, **REQUEST_SETTINGS}),
            OM_RESPONSES: WantedTopic(self.response_partitions, bounded),
            OM_AUDIT: WantedTopic(self.shards, bounded),
            OM_VERDICTS: WantedTopic(self.shards, bounded),
            OM_STATS: WantedTopic(1, bounded),
            OM_REJECTED: WantedTopic(1, bounded),
        }
        if self.datanodes:
            topics |= {
                DN_LOG: WantedTopic(DN_LOG_PARTITIONS, {**LOG_SETTINGS, **in_sync, **flush}),
                DN_HEARTBEATS: WantedTopic(
                    1,
                    {
                        "retention.ms": str(HEARTBEAT_RETENTION_MS),
                        "message.timestamp.type": "LogAppendTime",
                        "max.message.bytes": str(MAX_MESSAGE_BYTES),
                        **UNCOMPRESSED,
                        **BOUNDED_SIZES,
                        "segment.ms": str(HEARTBEAT_SEGMENT_MS),
                    },
                ),
                DN_AUDIT: WantedTopic(DN_LOG_PARTITIONS, bounded),
            }
        return topics


def ensure_topics(
    bootstrap_servers: Brokers, plan: TopicPlan, *, contact_timeout_s: float = CONTACT_TIMEOUT_S
) -> list[str]:
    """Create the topics that are missing and verify the others; return the names of those created.

    Topics that an older version made get the settings that were added since, which may be set at any time:
    UNCOMPRESSED, and BOUNDED_SIZES unless an operator has chosen other sizes. Raises
    TopicMismatch naming topic and setting, Unavailable if the brokers do not answer.
    """
    troubles = ConnectionTroubles(bootstrap_servers)
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0, "error_cb": troubles}))
    try:
        admin.list_topics(timeout=contact_timeout_s)
        return _ensure(admin, plan)
    except KafkaException as error:
        admin.poll(0)
        known = f" ({troubles})" if troubles else ""
        raise Unavailable(f"Kafka at {bootstrap_servers}: {error.args[0].str()}{known}") from error


def _ensure(admin: AdminClient, plan: TopicPlan) -> list[str]:
    created = _create_missing(admin, plan)
    _await_leaders(admin, plan)
    _mend(admin, plan)
    mismatches = _mismatches(admin, plan)
    if mismatches:
        raise TopicMismatch("topics are not as the cluster needs them: " + "; ".join(mismatches))
    return created


def _create_missing(admin: AdminClient, plan: TopicPlan) -> list[str]:
    """Create the topics that are missing; another process may do the same at the same time."""
    existing = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    new = [
        NewTopic(name, num_partitions=count, replication_factor=plan.replication_factor, config=dict(settings))
        for name, (count, settings) in plan.topics().items()
        if name not in existing
    ]
    created = []
    futures = admin.create_topics(new, operation_timeout=ADMIN_TIMEOUT_S) if new else {}
    for name, future in futures.items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def _await_leaders(admin: AdminClient, plan: TopicPlan) -> None:
    """Wait until every partition has a leader: before that, clients see unknown topics."""

    def are_led() -> bool:
        found = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        return all(
            name in found
            and found[name].partitions
            and all(partition.leader >= 0 for partition in found[name].partitions.values())
            for name in plan.topics()
        )

    if not wait_until(are_led, SETTLE_TIMEOUT_S):
        raise Unavailable(f"topics have no leaders after {SETTLE_TIMEOUT_S:.0f} s")


def _described(
    admin: AdminClient, plan: TopicPlan
) -> tuple[dict[str, TopicMetadata], dict[str, dict[str, ConfigEntry]]]:
    """Return every topic's partitions and settings.

    With several brokers, the one that is asked may learn of a topic a moment after another one has named its leaders.
    """
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in plan.topics()]
    deadline = Deadline.after_s(SETTLE_TIMEOUT_S)
    while True:
        try:
            futures = admin.describe_configs(resources)
            settings = {resource.name: future.result() for resource, future in futures.items()}
            found = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
            if settings.keys() <= found.keys():
                return found, settings
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or deadline.has_passed:
                raise
        if deadline.has_passed:
            raise Unavailable(f"topics are not known to every broker after {SETTLE_TIMEOUT_S:.0f} s")
        time.sleep(SETTLE_POLL_S)


def _mend(admin: AdminClient, plan: TopicPlan) -> None:
    """Give every topic the settings that it lacks (:func:`_lacking`), and wait until the brokers say so."""

    def lacking() -> list[ConfigResource]:
        _, actual = _described(admin, plan)
        found = {name: _lacking(plan.topics()[name].settings, actual[name]) for name in actual}
        return [
            ConfigResource(
                ConfigResource.Type.TOPIC, name,
                incremental_configs=[
                    ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
                    for setting, value in settings.items()
                ],
            )
            for name, settings in found.items() if settings
        ]  # fmt: skip

    if not (resources := lacking()):
        return
    for future in admin.incremental_alter_configs(resources).values():
        future.result()
    # The controller has the settings; the broker that is asked learns of them a little later.
    if not wait_until(lambda: not lacking(), SETTLE_TIMEOUT_S):
        raise Unavailable(f"topics have not taken their settings after {SETTLE_TIMEOUT_S:.0f} s")


def _lacking(wanted: Mapping[str, str], actual: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return what a topic is to be given: UNCOMPRESSED, and sizes that it has only by the broker's defaults."""
    return {
        setting: value
        for setting, value in wanted.items()
        if actual[setting].value != value
        and (setting in UNCOMPRESSED or (setting in BOUNDED_SIZES and not _is_chosen(actual[setting])))
    }


def _is_chosen(entry: ConfigEntry) -> bool:
    """Whether somebody has set this setting for this topic."""
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def _mismatches(admin: AdminClient, plan: TopicPlan) -> list[str]:
    """Return, in words, where topics differ from the plan."""
    found, actual = _described(admin, plan)
    words = []
    for name, (count, settings) in plan.topics().items():
        partitions = found[name].partitions
        # The log's partitions are the shards. Who adds some to another topic does no harm.
        if len(partitions) < count or (len(partitions) > count and name == OM_LOG):
            words.append(f"{name} has {len(partitions)} partitions, not {count}")
        if {len(partition.replicas) for partition in partitions.values()} != {plan.replication_factor}:
            words.append(f"{name} is not replicated {plan.replication_factor} times")
        words += [
            f"{name} has {key}={actual[name][key].value}, not {value}"
            for key, value in settings.items()
            if actual[name][key].value != value and not (key in BOUNDED_SIZES and name not in UNBOUNDED)
        ]
    return words
