"""Names of the topics, and the settings that the log contract demands of them (design, section 3)."""

from __future__ import annotations

from collections.abc import Mapping

OM_REQUESTS = "om.requests"
OM_LOG = "om.log"
OM_RESPONSES = "om.responses"
OM_AUDIT = "om.audit"
OM_VERDICTS = "om.verdicts"
OM_REJECTED = "om.requests.rejected"
DN_LOG = "dn.log"
DN_HEARTBEATS = "dn.heartbeats"
DN_AUDIT = "dn.audit"

LEADER_GROUP = "om-leaders"
"""Consumer group whose assignment of ``om.requests`` says which node may claim a shard."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest record of any topic; brokers and clients are set to it."""

SILENT_BROKER_MS = 10_000
"""A broker that leaves a request unanswered for so long is taken to be gone, and the others are asked who leads now.

A broker whose machine or network fails closes no connection, so silence is the only sign; librdkafka's default is a minute. Brokers themselves give one up
after nine seconds (``broker.session.timeout.ms``): asking earlier finds no other leader. The same goes for one that answers, but with nothing
(decision 0026), and followers ask anew who leads as often.
"""

MAX_REQUEST_BYTES = 1024 * 1024
"""Largest request that a leader reads; a larger one is rejected."""

UNCOMPRESSED: Mapping[str, str] = {"compression.type": "uncompressed"}
"""Of every topic: the broker takes a compressed record apart, and judges its size by what was in it.

``max.message.bytes`` alone bounds the compressed bytes, and 600 KB of gzip are 600 MiB in the memory of each reader. Our producers compress
nothing, so it costs nothing: what comes uncompressed is stored as it came.
"""

LOG_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    **UNCOMPRESSED,
}
"""A log is trimmed by nobody but us; every node checks these at start."""

REQUEST_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    **UNCOMPRESSED,
}

BOUNDED_RETENTION_MS = 24 * 3600 * 1000
"""Retention of requests, responses, reports, verdicts and rejected records."""
