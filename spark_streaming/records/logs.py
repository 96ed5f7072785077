"""The logs to audit: the Object Manager's log, and the datanodes' log of pipelines.

Both have the same records and reports, in topics of their own. They differ in their column families and in their
partitions: each partition of ``om.log`` is a shard that must be there; one of ``dn.log`` is a pipeline once it has a
record. One query audits all of them: its state is kept by (log, partition), and a partition without new records costs
a micro-batch nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from schemas.column_families import DN_COLUMN_FAMILIES, OM_COLUMN_FAMILIES
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import DN_AUDIT, DN_LOG, OM_AUDIT, OM_LOG

METADATA_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLog:
    """A log and the topic of its replicas' reports.

    ``name``: its name in verdicts. ``topic``: its topic. ``column_families``: in their order; a log that older software
    began names only the first of them. ``every_partition``: partitions without records must be equal, too.
    """

    name: str
    topic: str
    reports_topic: str
    column_families: tuple[str, ...]
    every_partition: bool


OBJECT_MANAGER = AuditedLog(
    name=OM_LOG, topic=OM_LOG, reports_topic=OM_AUDIT, column_families=OM_COLUMN_FAMILIES, every_partition=True
)
PIPELINES = AuditedLog(
    name=DN_LOG, topic=DN_LOG, reports_topic=DN_AUDIT, column_families=DN_COLUMN_FAMILIES, every_partition=False
)
KNOWN_LOGS = (OBJECT_MANAGER, PIPELINES)


def topic_partitions(bootstrap_servers: Brokers, topic: str) -> int:
    """Return the number of a topic's partitions, 0 if there is none; raises KafkaException if no broker answers."""
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    found = admin.list_topics(topic, timeout=METADATA_SECONDS).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def existing(bootstrap_servers: Brokers, logs: tuple[AuditedLog, ...]) -> tuple[AuditedLog, ...]:
    """Return those of ``logs`` whose topics both exist. The first is always returned: a cluster may have no datanodes.

    Raises KafkaException if no broker answers.
    """
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    topics = admin.list_topics(timeout=METADATA_SECONDS).topics
    return (logs[0], *(log for log in logs[1:] if log.topic in topics and log.reports_topic in topics))
