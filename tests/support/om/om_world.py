"""A one-shard Object Manager in memory: pure execution on dict tables, with the leader's choices made here."""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.execute import execute
from om_processors.namespace.context import ALLOW_ALL, Authorizer, Contexts, PreExecuteContext, Result
from schemas.features import LATEST
from schemas.records.identity import ProvenCaller
from schemas.records.messages import AllocatedBlock, CreateBucket, CreateVolume, KeySession, Request, RequestBody
from tests.support.om.dict_transaction import DictTables, DictTransaction, Write

BLOCK_SIZE_BYTES = 100
PIPELINES = ("pipeline-0", "pipeline-1", "pipeline-2")


def request_of(body: RequestBody, caller: str = "ann") -> Request:
    return Request(
        client_id=bytes(16), call_id=1, first_sent_at_ms=0, answered_below=0, reply_partition=0, caller=caller, body=body
    )  # fmt: skip


class World:
    """Executes bodies one after another; the index and the clock go up by one and by ten each time."""

    def __init__(self, shard: int = 0, shards: int = 1, authorizer: Authorizer = ALLOW_ALL) -> None:
        self.tables = DictTables()
        self.shard, self.shards, self.authorizer = shard, shards, authorizer
        self.index = 0
        self.now_ms = 1_000
        self.level = LATEST
        """The shard's feature level."""
        self.gone: frozenset[str] = frozenset()
        """The datanodes that the leader takes to be switched off."""
        self.writes: list[Write] = []
        self.standing: ProvenCaller | None = None
        """What the leader knows of whoever calls next; None: requests are not signed."""

    def context(self) -> PreExecuteContext:
        contexts = Contexts(shard=self.shard, shards=self.shards, pipelines=PIPELINES, block_bytes=BLOCK_SIZE_BYTES)
        context = contexts.at(self.now_ms, self.index)
        return replace(context, allocation=replace(context.allocation, gone=self.gone))

    def begin(self) -> DictTransaction:
        tx = DictTransaction(self.tables, self.index)
        tx.feature_level = self.level
        return tx

    def do(self, body: RequestBody, caller: str = "ann") -> Result:
        self.index += 1
        self.now_ms += 10
        tx = self.begin()
        result = execute(request_of(body, caller), tx, self.context(), self.authorizer, self.standing)
        tx.commit()
        self.writes = tx.writes
        return result

    def session(self, body: RequestBody, caller: str = "ann") -> KeySession:
        result = self.do(body, caller)
        assert isinstance(result, KeySession)
        return result

    def block(self, body: RequestBody) -> AllocatedBlock:
        result = self.do(body)
        assert isinstance(result, AllocatedBlock)
        return result

    def refusal(self, body: RequestBody, caller: str = "ann") -> OMError:
        """Execute a body that must be refused; it must change nothing."""
        before = self.tables.rows()
        try:
            self.do(body, caller)
        except OMError as error:
            assert self.tables.rows() == before
            return error
        raise AssertionError(f"{body} was not refused")

    def make(self, volume: str = "vol1", bucket: str | None = "bucket1") -> World:
        """Create a volume and, unless None, a bucket in it."""
        self.do(CreateVolume(volume=volume))
        if bucket is not None:
            self.do(CreateBucket(volume=volume, bucket=bucket))
        return self
