"""Names of the topics, and the settings that the log contract requires (design, section 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping

OM_REQUESTS = "om.requests"
OM_LOG = "om.log"
OM_RESPONSES = "om.responses"
RESPONSES_OF = "om.responses."
"""What the topic of one user's responses begins with, where brokers know users; his name follows (USER_NAME)."""
USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
"""Names of users that have a topic of their own: Kafka takes no two topics that differ in '.' and '_' alone."""
OM_AUDIT = "om.audit"
OM_VERDICTS = "om.verdicts"
OM_STATS = "om.stats"
"""Windows of throughput, latency and lag, as the audit counts them in the logs."""
OM_REJECTED = "om.requests.rejected"
DN_LOG = "dn.log"
DN_HEARTBEATS = "dn.heartbeats"
DN_AUDIT = "dn.audit"

LEADER_GROUP = "om-leaders"
"""Consumer group whose assignment of ``om.requests`` decides which node may claim a shard."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest record of any topic; brokers and clients have it as their limit."""

SILENT_BROKER_MS = 10_000
"""How long a broker may leave a request unanswered. After that it counts as gone, and the others are asked who leads.

A broker whose machine or network fails closes no connection, so silence is the only sign. librdkafka's default is a
minute. The brokers themselves give a silent one up after nine seconds (``broker.session.timeout.ms``): an earlier
question finds no other leader. The same limit holds for a broker that answers, but with nothing (decision 0026).
Followers ask at the same interval which broker leads.
"""

MAX_REQUEST_BYTES = 1024 * 1024
"""Largest request that a leader reads; a larger one is rejected."""

UNCOMPRESSED: Mapping[str, str] = {"compression.type": "uncompressed"}
"""Setting of every topic: the broker decompresses a compressed record, and judges its size by the content.

``max.message.bytes`` by itself bounds only the compressed bytes, and 600 KB of gzip are 600 MiB in the memory of each
reader. The setting costs nothing: our producers do not compress, and an uncompressed record is stored as it arrives.
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
"""Only we trim a log; every node checks these at start."""

REQUEST_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    **UNCOMPRESSED,
}

BOUNDED_RETENTION_MS = 24 * 3600 * 1000
"""Retention of requests, responses, reports, verdicts, windows and rejected records."""

BOUNDED_RETENTION_BYTES = 1024 * 1024 * 1024
"""The most that a partition of a bounded topic keeps, beside the segment that is written to.

At 10,000 keys a second this is nearly seven minutes of requests, and a request expires after five: a leader that comes
back finds every request that it may still execute.
"""

BOUNDED_SEGMENT_BYTES = 64 * 1024 * 1024
BOUNDED_SEGMENT_MS = 6 * 3600 * 1000
"""A broker deletes whole segments, and never the one that is written to.

By Kafka's defaults that one may reach 1 GiB and an age of seven days, whatever the retention is.
"""

BOUNDED_SIZES: Mapping[str, str] = {
    "retention.bytes": str(BOUNDED_RETENTION_BYTES),
    "segment.bytes": str(BOUNDED_SEGMENT_BYTES),
    "segment.ms": str(BOUNDED_SEGMENT_MS),
}
"""What a bounded topic is made with. An operator may choose other values for a topic."""


def responses_topic(user: str) -> str | None:
    """Return the topic of a user's responses; None for a name that no topic may have.

    >>> responses_topic("alice"), responses_topic("a/b")
    ('om.responses.alice', None)
    """
    return f"{RESPONSES_OF}{user}" if USER_NAME.fullmatch(user) else None


def is_responses_topic(name: str) -> bool:
    """Whether a name is that of a user's responses.

    >>> is_responses_topic("om.responses.alice"), is_responses_topic("om.log"), is_responses_topic("om.responses.")
    (True, False, False)
    """
    return name.startswith(RESPONSES_OF) and USER_NAME.fullmatch(name.removeprefix(RESPONSES_OF)) is not None
