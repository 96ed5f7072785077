"""A shard in this process whose nodes run different versions of the request handlers, for ``rolling-upgrade``.

Real are the leader's core, the log's records, the replicas and their RocksDB, both modes of execution. Not real are the
log, which is in memory, and the *next version*. This module makes it up from two changes such as upgrades bring: a
stricter rule (key names without empty parts), and another way to fill in a value (owners of buckets in lower case). No
product code knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from xxhash import xxh3_128_digest

from om_processors.errors import OMError
from om_processors.execution.late import OMExecutor
from om_processors.execution.requests import LATE_REQUEST_TYPES
from om_processors.execution.service import OM_FAMILIES, OMService, refusal_response
from om_processors.namespace.context import Contexts
from producers.requests.keys import session_of
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.errors import StopProcess
from replicated_db.core.execution.service import Executed, Proposal
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Append, Leader, LeaderLimits, Reply, claim_for
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.system import SystemIds
from schemas import result_codes as codes
from schemas.codecs.codec import decode_as, encode
from schemas.records.log import LATE_MODE
from schemas.records.messages import (
    SHARD_COMMANDS,
    CreateBucket,
    CreateKey,
    CreateVolume,
    DeleteKey,
    PreparedRequest,
    RenameKey,
    Request,
    RequestBody,
    Response,
    SetRequestMode,
)
from stratolog.drills.core.log_digest import Sums, unsigned
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit.taps import now_ms
from stratolog.drills.kit.writer import commit_of

CLUSTER = "drill"
PIPELINES = ("pipeline-1",)
CALLER = "Operator"
VOLUME = "drill"
BUCKET = "bucket"
KEYS = ("plain", "with//gap", "dir/file", "deep//er//still", "last")

THIS = "this version"
NEXT = "the next version"


# -- the next version --------------------------------------------------------------------------------------------------


def as_next_version(request: Request) -> Request:
    """Return a request as the next version takes it; raises OMError for a request that it refuses."""
    body = request.body
    if isinstance(body, CreateKey) and "//" in body.key:
        raise OMError(codes.INVALID_KEY_NAME, f"key {body.key!r} has an empty part")
    if isinstance(body, CreateBucket):
        return replace(request, body=replace(body, owner=(body.owner or request.caller).lower()))
    return request


class NextService(OMService):
    """Leader-side execution by the next version."""

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a request."""
        try:
            request = as_next_version(proposal.body)
        except OMError as error:
            response = refusal_response(proposal.body, 0, error.status, error.message, transaction.index)
            return Executed(response=response, keep=False)
        return super().execute(replace(proposal, body=request), transaction, timestamp_ms)


class NextExecutor(OMExecutor):
    """Late validation by the next version."""

    def execute(self, prepared: bytes, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a logged request."""
        logged = decode_as(PreparedRequest, prepared)
        if logged.status == codes.OK:
            try:
                request = as_next_version(decode_as(Request, logged.request))
                logged = replace(logged, request=encode(request))
            except OMError as error:
                logged = replace(logged, status=error.status, message=error.message)
        return super().execute(encode(logged), transaction, timestamp_ms)


def service_of(version: str) -> OMService:
    """Return a version's leader-side handlers."""
    return (NextService if version == NEXT else OMService)(Contexts(shard=0, shards=1, pipelines=PIPELINES))


def executor_of(version: str) -> OMExecutor:
    """Return a version's handlers for late validation."""
    return (NextExecutor if version == NEXT else OMExecutor)(Contexts(shard=0, shards=1, pipelines=PIPELINES))


# -- the shard ---------------------------------------------------------------------------------------------------------


class MixedShard:
    """Nodes by name, each with a version; the first one leads."""

    def __init__(self, stores: Mapping[str, RocksStore], versions: Mapping[str, str], *, late: bool) -> None:
        self._versions = dict(versions)
        self._clock = ManualClock(now_ms=now_ms(), elapsed=1_000)
        self._log = MemoryLog(self._clock, auto=False)
        self._ids = SystemIds()
        self._calls = 0
        self._answers: dict[bytes, bytes] = {}
        self.replicas = {name: self._replica(name, store) for name, store in stores.items()}
        self.leader_name = next(iter(versions))
        self._claim()
        if late:
            for request_type in sorted(LATE_REQUEST_TYPES):
                self.do(SetRequestMode(shard=0, request_type=request_type, mode=LATE_MODE))

    def _replica(self, name: str, store: RocksStore) -> Replica:
        identity = Identity(cluster=CLUSTER, shard=0, shards=1, node=name)
        replica = Replica(identity, OM_FAMILIES, store, executor=executor_of(self._versions[name]))
        replica.adopt_topic(self._log.topic_id(), None)
        return replica

    def _claim(self) -> None:
        replica = self.replicas[self.leader_name]
        offset = self._log.append(
            encode(claim_for(replica, self._ids.nonce(), self.leader_name, self._clock.wall_ms()))
        )
        self._catch_up(replica)
        self._leader = Leader(
            replica, service_of(self._versions[self.leader_name]), LeaderLimits(), claim_offset=offset,
            claim_time_ms=self._log.entries[offset].timestamp_ms, elapsed_ms=self._clock.elapsed_ms(),
        )  # fmt: skip
        self._appender = self._log.appender()
        self._append([self._leader.genesis(CLUSTER, list(self._versions))])
        self._settle()

    def do(self, body: RequestBody) -> Response:
        """Have the leader take one request; return its answer, once every replica has applied what was logged."""
        self._calls += 1
        self._clock.advance(1)
        elapsed_ms = self._clock.elapsed_ms()
        request = Request(
            client_id=b"drill-of-upgrade", call_id=self._calls, first_sent_at_ms=self._leader.timestamp_ms(elapsed_ms),
            answered_below=0, reply_partition=0, caller=CALLER, body=body,
        )  # fmt: skip
        call_id = self._calls.to_bytes(8, "big")
        proposal = Proposal(
            client_id=request.client_id, call_id=call_id, request_hash=xxh3_128_digest(encode(request)),
            first_sent_at_ms=request.first_sent_at_ms, request_type=type(body).__name__, body=request, reply_to=0,
            begins_batch=isinstance(body, SHARD_COMMANDS),
        )  # fmt: skip
        if isinstance(reply := self._leader.take(proposal, elapsed_ms), Reply):
            self._answers[call_id] = reply.response
        self._append(self._leader.seal())
        self._settle()
        return decode_as(Response, self._answers[call_id])

    def _append(self, appends: Iterable[Append | None]) -> None:
        for append in appends:
            if append is not None:
                self._appender.append(append.token, append.value)

    def _settle(self) -> None:
        """Deliver the appends in flight, take the answers, let every node read."""
        while self._appender.in_flight:
            self._appender.deliver()
        leading = self.replicas[self.leader_name]
        for report in self._appender.poll(0):
            effective = list(self._leader.on_report(report))
            while (offset := self._leader.must_read) is not None:
                self._catch_up(leading, offset)
                effective += self._leader.on_read()
            for one in effective:
                for reply in one.replies:
                    self._answers[reply.proposal.call_id] = reply.response
        for replica in self.replicas.values():
            self._catch_up(replica)

    def _catch_up(self, replica: Replica, until: int | None = None) -> None:
        end = len(self._log.entries) if until is None else until + 1
        for entry in self._log.entries[replica.read_offset + 1 : end]:
            replica.offer(entry.offset, entry.value)

    # -- comparing -----------------------------------------------------------------------------------------------------

    def digests(self) -> dict[str, Sums]:
        """Return every node's running digest."""
        return {name: unsigned(*replica.digests.slots()) for name, replica in self.replicas.items()}

    def scans(self) -> dict[str, Sums]:
        """Return every node's digest of a full scan."""
        found = {}
        for name, replica in self.replicas.items():
            replica.flush()
            found[name] = unsigned(*replica.scan(replica.store).slots())
        return found

    def rows(self, name: str) -> dict[tuple[str, bytes], bytes]:
        """Return a node's rows, by column family and key."""
        store = self.replicas[name].store
        return {(cf, key): value for cf in OM_FAMILIES.names for key, value in store.iterate(cf, b"")}

    def evidence(self) -> list[str]:
        """Return the nodes that have found a false claim."""
        return [name for name, replica in self.replicas.items() if replica.evidence is not None]


def some_requests(shard: MixedShard) -> Iterator[Response]:
    """Send typical requests to a shard: a volume, a bucket, keys, a deletion, a renaming; yield each answer."""
    yield shard.do(CreateVolume(volume=VOLUME))
    yield shard.do(CreateBucket(volume=VOLUME, bucket=BUCKET))
    for size, key in enumerate(KEYS, start=1):
        opened = shard.do(CreateKey(volume=VOLUME, bucket=BUCKET, key=key, size=size))
        yield opened
        if opened.status == codes.OK:
            session = session_of(opened)
            yield shard.do(commit_of((VOLUME, BUCKET), key, size, session))
    yield shard.do(DeleteKey(volume=VOLUME, bucket=BUCKET, key="plain"))
    yield shard.do(RenameKey(volume=VOLUME, bucket=BUCKET, from_key="dir/file", to_key="dir/renamed"))


@contextmanager
def mixed_shard(folder: Path, versions: Mapping[str, str], *, late: bool) -> Iterator[MixedShard]:
    """Open a shard with a RocksDB for each node in ``folder``; raises StepFailed if a replica stops."""
    with ExitStack() as opened:
        try:
            stores = {}
            for name in versions:
                store = RocksStore(folder / name, OM_FAMILIES.names)
                opened.callback(store.close)
                stores[name] = store
            yield MixedShard(stores, versions, late=late)
        except StopProcess as error:
            raise StepFailed(f"a replica stopped: {error}") from error
