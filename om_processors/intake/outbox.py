"""What a node sends besides the log: responses, audit reports, rejected requests. One producer sends all of it.

Losing any of these does no harm: a client asks again and gets the recorded answer; a missing report makes a verdict
``unknown``. All brokers in sync acknowledge them all the same, so that no broker which is cut off from the others takes
them and loses them (decision 0026).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from om_processors.intake.core.seldom_note import SeldomNote
from om_processors.intake.direct_calls import DirectCalls
from om_processors.intake.reply_topics import ReplyTopics
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.leading.leader import Reply
from replicated_db.core.ports import Clock
from replicated_db.shell.reports import AuditReports
from schemas.codecs.codec import encode
from schemas.codecs.envelopes import enveloped_responses
from schemas.kafka.connection import Brokers
from schemas.records.messages import Rejected
from schemas.topics import OM_AUDIT, OM_REJECTED, OM_RESPONSES

ReplyPlace = int | tuple[str, int]
"""Where a client reads its responses: a partition of OM_RESPONSES, or of the topic that belongs to its user."""


class KafkaOutbox(AuditReports):
    """Sends for every shard of a node; safe to use from several threads."""

    def __init__(
        self, bootstrap_servers: Brokers, clock: Clock, log: Callable[[str], None], fatal: Callable[[BaseException], None],
        observe: Callable[[Replica, Offered], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bootstrap_servers, OM_AUDIT, clock, log, fatal, observe)
        self._topics = ReplyTopics(self._producer, log, fatal)
        self._unsent = SeldomNote(log)

    def reply(self, replies: Sequence[Reply]) -> None:
        """Send responses the way their calls came: to the partitions that their clients read, or straight back."""
        by_client: dict[tuple[bytes, ReplyPlace], list[bytes]] = {}
        direct: dict[DirectCalls, list[Reply]] = {}
        for reply in replies:
            proposal = reply.proposal
            if isinstance(proposal.reply_to, DirectCalls):
                direct.setdefault(proposal.reply_to, []).append(reply)
            else:
                by_client.setdefault((proposal.client_id, proposal.reply_to), []).append(reply.response)
        for calls, answered in direct.items():
            calls.answer(answered)
        if not by_client:
            return
        for (client_id, place), responses in by_client.items():
            topic, partition = (OM_RESPONSES, place) if isinstance(place, int) else place
            if not self._topics.has(topic):
                continue  # the client asks again, and the topic may be known by then
            for value in enveloped_responses(responses):
                try:
                    self._producer.produce(topic, value, client_id, partition)
                except Exception as error:  # the partition does not exist, or the queue is full: the client asks again
                    what = f"responses to client {client_id.hex()} not sent: {error}"
                    self._unsent.note(what, self._clock.elapsed_ms())
        self._producer.poll(0)

    def close(self) -> None:
        """Send what is queued, and look for no more topics."""
        self._topics.close()
        super().close()

    def reject(self, rejected: Rejected) -> None:
        """Keep a record, with the reason, whose sender cannot be answered."""
        self.send(OM_REJECTED, encode(rejected), str(rejected.shard).encode(), -1)
