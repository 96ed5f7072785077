"""A replica in memory that executes a shard's log, to tell what became of logged requests (``debug log --execute``).

The log of late validation holds requests, not answers. Only an execution from the first record tells which requests
were invalid.
"""

from __future__ import annotations

from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.tables.memory import MemoryStore
from schemas.codecs.codec import decode_as
from schemas.records.log import LogRecord, RequestBatch
from schemas.records.messages import Response


class Replay:
    """Executes the records of one shard, from the first on; its memory grows with the shard's rows."""

    def __init__(self, *, cluster: str, shard: int, shards: int) -> None:
        identity = Identity(cluster=cluster, shard=shard, shards=shards, node="replay")
        # The leader chooses pipelines before it logs a request, so execution needs none.
        executor = OMExecutor(Contexts(shard=shard, shards=shards, pipelines=()))
        self.replica = Replica(identity, OM_FAMILIES, MemoryStore(OM_FAMILIES.names), None, executor)

    def offer(self, offset: int, value: bytes, record: LogRecord) -> list[str] | None:
        """Execute the next record; return the result code of each request of a RequestBatch that counts.

        Raises StopProcess, in its several kinds, as any replica does.
        """
        late = self.replica.late
        late.answer_for(record.nonce)
        outcome = self.replica.offer(offset, value, record)
        if outcome.snapshot is not None:
            outcome.snapshot.close()
        if not isinstance(record, RequestBatch) or outcome.reading is None or not outcome.reading.takes_effect:
            return None
        answers = late.take_answers(offset)
        self.replica.flush()
        return [decode_as(Response, answer).status for answer in answers]
