"""Checks before a process takes part in a log: brokers' and topics' settings, topics' ids, a replica against the log.

Each refusal names the setting (or the shard and offset) and its right value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from replicated_db.core.applying.replica import SCAN_STEP_ROWS, Replica
from replicated_db.core.errors import NeedsCheckpoint, StopProcess
from replicated_db.core.log.log_reads import END_BEHIND_WAIT_S
from replicated_db.core.ports import Log, LogUnavailable, OffsetOutOfRange
from schemas.kafka.brokers_id import brokers_id
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.kafka.troubles import ConnectionTroubles
from schemas.topics import LOG_SETTINGS, UNCOMPRESSED

ADMIN_TIMEOUT_S = 10.0
NOTED_ROWS = 1000 * SCAN_STEP_ROWS
"""A scan before a replica serves says how far it is, each time that it has read so many rows."""
MIN_SESSION_TIMEOUT = "group.min.session.timeout.ms"
"""The brokers' setting for the shortest session time-out; 6,000 by default."""


class WrongSetting(StopProcess):
    """A broker's or topic's setting breaks the log contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics as found: the log topic's id, and each topic's number of partitions.

    ``min_session_timeout_ms`` is the shortest session time-out of a consumer group that all brokers allow.
    """

    log_topic_id: str
    partitions: Mapping[str, int]
    min_session_timeout_ms: int
    brokers_id: str = ""
    """The id of the brokers' Kafka cluster; empty if they tell none."""


def check_topics(
    bootstrap_servers: Brokers,
    log_topic: str,
    others: Sequence[str],
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> Topics:
    """Check that the topics exist, and check the settings of the brokers, of the log topic and of ``settings``.

    ``settings`` maps a topic to its wanted settings. Raises WrongSetting naming the setting, LogUnavailable if the
    brokers do not answer.
    """
    wanted = {log_topic: LOG_SETTINGS, **(settings or {})}
    # Log notices and worse: when it ends, librdkafka reports answers that nobody waits for any more.
    timeout_ms = int(ADMIN_TIMEOUT_S * 1000)
    troubles = ConnectionTroubles(bootstrap_servers)
    own = {"socket.timeout.ms": timeout_ms, "log_level": 5, "error_cb": troubles}
    admin = AdminClient(client_settings(bootstrap_servers, own))
    try:
        seen = admin.list_topics(timeout=ADMIN_TIMEOUT_S)
        described = admin.describe_topics(TopicCollection([log_topic, *others]), request_timeout=ADMIN_TIMEOUT_S)
        found = {}
        for name, future in described.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if error.args[0].code() < 0:  # the client's own errors: nobody has answered
                    raise
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    # A broker may learn of a right that was given a moment ago a little later.
                    raise LogUnavailable(f"topic {name}: {error.args[0].str()}: this process may not use it") from error
                raise WrongSetting(f"topic {name}: {error.args[0].str()}") from error
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
        # librdkafka asks each broker for that broker's own settings, and takes one broker per call.
        calls = [resources, *([ConfigResource(ResourceType.BROKER, str(broker))] for broker in seen.brokers)]
        configs = {
            (str(resource.restype), resource.name): {entry.name: entry.value for entry in future.result().values()}
            for call in calls
            for resource, future in admin.describe_configs(call, request_timeout=ADMIN_TIMEOUT_S).items()
        }
    except KafkaException as error:
        admin.poll(0)
        raise LogUnavailable(f"{error}: {troubles}" if troubles else str(error)) from error
    for (kind, name), config in configs.items():
        if name in wanted:
            _check(f"topic {name}", config, wanted[name])
            if name == log_topic:
                _check_in_sync(name, config, min(len(p.replicas) for p in found[name].partitions))
        elif config.get("auto.create.topics.enable") != "false":
            raise WrongSetting(f"{kind} {name}: auto.create.topics.enable must be false")
    return Topics(
        log_topic_id=str(found[log_topic].topic_id),
        partitions={name: len(topic.partitions) for name, topic in found.items()},
        min_session_timeout_ms=max(int(config.get(MIN_SESSION_TIMEOUT) or 0) for config in configs.values()),
        brokers_id=brokers_id(seen.cluster_id),
    )


def _check_in_sync(topic: str, config: Mapping[str, str], replication: int) -> None:
    if replication >= 3 and int(config.get("min.insync.replicas", "1")) < 2:
        raise WrongSetting(f"topic {topic}: min.insync.replicas must be at least 2 with {replication} replicas")


def _check(where: str, config: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for setting, value in wanted.items():
        if config.get(setting) != value:
            remedy = ": 'stratolog topics ensure' sets it" if setting in UNCOMPRESSED else ""
            raise WrongSetting(f"{where}: {setting} must be {value}, not {config.get(setting)}{remedy}")


def check_replica(
    replica: Replica, log: Log, note: Callable[[str], None], *,
    now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Compare the log's record at the replica's position with the record that the replica has applied.

    While the log's end is at or below the position, this waits, for END_BEHIND_WAIT_S at most. Raises AheadOfLog, and
    NeedsCheckpoint if the log begins behind the position. An empty replica passes (:func:`check_beginning`).
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
            raise NeedsCheckpoint(
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
    finally:
        log.rest()
    if not entries:
        raise LogUnavailable(f"shard {replica.identity.shard}: offset {offset} could not be read")
    replica.adopt_topic(log.topic_id(), entries[0].value)


def rows_off(replica: Replica, note: Callable[[str], None]) -> dict[int, int]:
    """Return by how much the rows are off the replica's digest, by slot; {} if nowhere as far as was looked.

    All rows are scanned if the store says that some may be missing; else families without a row are found.
    """
    if not replica.store.doubt:
        return replica.lost_families()
    where, scanned = f"shard {replica.identity.shard}: all rows are scanned before it serves", 0

    def on_rows() -> None:
        nonlocal scanned
        scanned += SCAN_STEP_ROWS
        if scanned % NOTED_ROWS == 0:
            note(f"{where}: {scanned:,} by now")
        time.sleep(0)  # what else the process does goes on

    note(f"{where}, for some may be missing: {replica.store.doubt}")
    _, digests, rows = replica.snapshot()
    try:
        found = replica.scan(rows, on_rows)
    finally:
        rows.close()
    return found.off(digests)


def check_beginning(replica: Replica, log: Log) -> None:
    """Raise NeedsCheckpoint if a replica is empty and the log no longer has its first record."""
    low, _ = log.bounds()
    if replica.position.offset < 0 < low:
        raise NeedsCheckpoint(
            f"shard {replica.identity.shard}: this replica is empty, and the log's first record is {low}; "
            "this replica needs a checkpoint from a peer"
        )
