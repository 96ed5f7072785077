"""Brokers that are away: told from other failures, and waited for.

An audit that ended with its brokers would stay away when they are back, until somebody started it again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.jobs.health import JobHealth
from spark_streaming.records.logs import topic_partitions

AWAY = (
    "_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE",
    "org.apache.kafka.common.errors.TimeoutException", "org.apache.kafka.common.errors.DisconnectException",
)  # fmt: skip
"""What confluent-kafka and Java's clients say of brokers that do not answer in time."""

OUTAGES = 10
"""So many failures of this kind in a row, without a micro-batch between them, are waited out."""

PAUSE_S = 1.0
"""Between two questions whether the brokers are back."""


def are_away(failure: str) -> bool:
    """Say whether a query failed because brokers did not answer.

    >>> are_away('KafkaException: KafkaError{code=_MSG_TIMED_OUT,val=-192,str="Local: Message timed out"}')
    True
    >>> are_away("disk full")
    False
    """
    return any(word in failure for word in AWAY)


def await_brokers(config: AuditConfig, health: JobHealth, is_asked_to_stop: Callable[[], bool]) -> None:
    """Return once a broker answers, or a stop is asked for; the health file says meanwhile what is waited for."""
    words = f"{config.bootstrap_servers} does not answer; the audit goes on once it does"
    print(words, file=sys.stderr)
    while not is_asked_to_stop():
        try:
            topic_partitions(config.bootstrap_servers, config.logs[0].topic)
        except KafkaException:
            health.update(status="starting", error=words)
            time.sleep(PAUSE_S)
        else:
            health.update(error=None)
            return
