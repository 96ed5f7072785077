"""When the replicas of each partition last reported: the sign that a silent audit has something to judge."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.logs import KNOWN_LOGS, AuditedLog

ASK_SECONDS = 5.0
"""How long an answer of the brokers is used."""

ANSWER_SECONDS = 2.0
"""How long they may take for one; then the last one holds."""


class ReportTimes:
    """Asks the brokers for the newest report of each partition, every few seconds."""

    def __init__(self, bootstrap_servers: Brokers, logs: Sequence[AuditedLog] = KNOWN_LOGS) -> None:
        self._admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
        self._logs = {log.reports_topic: log.name for log in logs}
        self._found: dict[ReportedPartition, int] = {}
        self._asked_at_s = float("-inf")

    def newest_ms(self) -> Mapping[ReportedPartition, int]:
        """Return the time of each partition's newest report, in ms since the epoch; none for one without reports."""
        if time.monotonic() - self._asked_at_s >= ASK_SECONDS:
            try:
                self._found |= self._ask()
            except KafkaException:
                pass  # what was known holds: verdicts are shown all the same
            self._asked_at_s = time.monotonic()
        return self._found

    def _ask(self) -> dict[ReportedPartition, int]:
        topics = self._admin.list_topics(timeout=ANSWER_SECONDS).topics
        spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        asked = {
            TopicPartition(topic, number): spec
            for topic in self._logs
            if topic in topics
            for number in topics[topic].partitions
        }
        if not asked:
            return {}
        answers = self._admin.list_offsets(asked, request_timeout=ANSWER_SECONDS)
        found = {one: future.result() for one, future in answers.items()}
        return {
            ReportedPartition(self._logs[one.topic], one.partition): answer.timestamp
            for one, answer in found.items()
            if answer.offset >= 0 and answer.timestamp > 0
        }
