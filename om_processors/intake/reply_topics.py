"""Which topics of users' responses there are. A leader writes to those alone.

Any client may name any topic that a user may have. Responses to topics that do not exist would wait in the producer's
queue, and fill it, until the brokers say so. So a leader asks the brokers first, on a thread of its own, and at once
for the first topic that is ever named. A response without a place is dropped: its client asks again, and the recorded
response finds its place then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from replicated_db.shell.process import Background
from schemas.topics import OM_RESPONSES, is_responses_topic

LOOK_PAUSE_S = 1.0
"""The least time between two questions for the topics."""
LOOK_WITHIN_S = 5.0


class ReplyTopics(Background):
    """The topics that exist. The first question for a user's topic starts the thread that looks."""

    def __init__(
        self, producer: Producer, log: Callable[[str], None], fatal: Callable[[BaseException], None]
    ) -> None:  # fmt: skip
        super().__init__("reply-topics", fatal)
        self._producer = producer
        self._log = log
        self._known: frozenset[str] = frozenset()
        self._wanted = threading.Event()
        self._lock = threading.Lock()

    def has(self, topic: str) -> bool:
        """Say whether a topic exists; only the first question of all waits for the brokers. For any thread."""
        if topic == OM_RESPONSES or topic in self._known:
            return True
        with self._lock:
            if not self.is_begun and not self._stop.is_set():
                self._look()
                self.start()
        if topic not in self._known:
            self._wanted.set()
        return topic in self._known

    def run(self) -> None:
        """Look for topics when one was asked for that is not known."""
        while not self._stop.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if not self._stop.is_set():
                self._look()
                self._stop.wait(LOOK_PAUSE_S)

    def _look(self) -> None:
        try:
            topics = self._producer.list_topics(timeout=LOOK_WITHIN_S).topics
        except KafkaException as error:
            self._log(f"topics of users' responses: {error}")
        else:
            self._known = frozenset(filter(is_responses_topic, topics))

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._wanted.set()
        super().close()
