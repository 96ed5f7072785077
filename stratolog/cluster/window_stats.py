"""Windows of throughput, latency and lag, read from ``om.stats``."""

from __future__ import annotations

from schemas.kafka.connection import Brokers
from schemas.records.messages import WindowStats
from schemas.topics import OM_STATS
from stratolog.cluster.verdicts import readable
from transport.topics.topic_tail import TailStart, TopicTail, records_of
from transport.waiting.deadline import Deadline

READ_TIMEOUT_S = 30.0
"""How long reading to the topic's end may take."""

TAIL_RECORDS = 20_000
"""Most records that are read of a partition, from its end: one for each window and micro-batch that changes it."""

HINT = "; 'stratolog topics ensure' makes a topic that is missing"


def read_windows(bootstrap_servers: Brokers, since_ms: int, deadline: Deadline | None = None) -> list[WindowStats]:
    """Return the windows that were counted since ``since_ms`` (ms since the epoch), in the order of the topic.

    Raises Unavailable if there is no such topic, or the brokers do not serve it to its end before the deadline.
    """
    deadline = deadline or Deadline.after_s(READ_TIMEOUT_S)
    with (
        readable(bootstrap_servers, HINT),
        TopicTail(bootstrap_servers, OM_STATS, TailStart(last_records=TAIL_RECORDS), deadline) as tail,
    ):
        found = (one for messages in tail.to_end(deadline) for one in records_of(WindowStats, messages))
        return [one for one in found if one.counted_at_ms >= since_ms]
