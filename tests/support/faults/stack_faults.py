"""What the fault tests share: raw requests and answers, taps on topics, damage, and assertions on what must hold.

What belongs here: the means to inject a fault into a running :class:`~tests.support.local.stack.TestStack`. Loads, their journals and the
judge are the drills' (``stratolog.drills.kit``). What the log says is in ``judged_log``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, Self

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from producers import Client
from producers.errors import RequestFailed
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import DeliveryReport
from replicated_db.shell.kafka.kafka_log import KafkaAppender, KafkaLog
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import responses_in
from schemas.privilege import ClusterSecret
from schemas.records.log import Batch, LeaderClaim, Put
from schemas.records.messages import AuditReport, Rejected, Request, RequestBody, Response
from schemas.result_codes import INDEX_MOVED
from schemas.sharding import shard_of
from schemas.topics import MAX_MESSAGE_BYTES, OM_AUDIT, OM_LOG, OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from stratolog.drills.kit.aftermath import judge_listings
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core.judging import Aftermath
from stratolog.drills.kit.load import Load, listed, usage
from stratolog.drills.kit.rebuild import database_of, opened_store
from stratolog.local.processes import wait_until
from stratolog.local.spawning import node_command, node_environment
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import JudgedLog, read_log, unsigned
from tests.support.logs.logbuilder import digest, signed
from transport.topics.topic_tail import FIRST_RECORD, TailStart, TopicTail
from transport.waiting.deadline import Deadline

PATIENCE_S = 60.0

# --------------------------------------------------------------------------------------------- a topic, from some moment


class Tap:
    """Everything that is written to a topic from the tap's opening on, decoded; ``poll`` is called by the waits."""

    def __init__(self, bootstrap_servers: str, topic: str, *, from_beginning: bool = False) -> None:
        start = FIRST_RECORD if from_beginning else TailStart(last_records=0)
        self._tail = TopicTail(bootstrap_servers, topic, start, Deadline.after_s(PATIENCE_S))
        self.values: list[bytes] = []

    def poll(self) -> list[bytes]:
        """Take what has come, and return all values so far."""
        while messages := self._tail.poll(0.05):
            self.values += [m.value() or b"" for m in messages]
        return self.values

    def close(self) -> None:
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AuditTap(Tap):
    """The replicas' reports."""

    def __init__(self, bootstrap_servers: str, *, from_beginning: bool = False) -> None:
        super().__init__(bootstrap_servers, OM_AUDIT, from_beginning=from_beginning)

    def reports(self, shard: int, basis: str) -> list[AuditReport]:
        found = [decode_as(AuditReport, value) for value in self.poll()]
        return [report for report in found if report.shard == shard and report.basis == basis]

    def barrier(self, shard: int, basis: str, nodes: Sequence[str], after: int = -1) -> dict[str, AuditReport] | None:
        """Return the reports of a barrier behind offset ``after`` on which all ``nodes`` have reported, None so far."""
        by_offset: dict[int, dict[str, AuditReport]] = defaultdict(dict)
        for report in self.reports(shard, basis):
            if report.barrier_offset > after:
                by_offset[report.barrier_offset][report.node] = report
        complete = [found for found in by_offset.values() if set(found) >= set(nodes)]
        return complete[-1] if complete else None


class RejectedTap(Tap):
    """Records that nobody can be answered for."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers, OM_REJECTED)

    def records(self) -> list[Rejected]:
        return [decode_as(Rejected, value) for value in self.poll()]


# ------------------------------------------------------------------------------------------------------ raw requests


class RawClient:
    """Sends bytes to ``om.requests`` and collects every response to this client, repeats included.

    With a ``secret`` each record has a proof of it.
    """

    def __init__(self, bootstrap_servers: str, shards: int, *, secret: ClusterSecret | None = None) -> None:
        self.client_id = os.urandom(16)
        self.secret = secret
        self.shards = shards
        self._calls = count(1)
        self._producer = Producer(
            # They go in one request: a fault that the first of them triggers may freeze the broker before the others are sent.
            {"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "message.max.bytes": MAX_MESSAGE_BYTES}
        )
        self._tap = Tap(bootstrap_servers, OM_RESPONSES)

    def request(self, body: RequestBody, *, call_id: int | None = None, age_ms: int = 0) -> Request:
        """Return a request of this client, sent first ``age_ms`` ago."""
        return Request(
            client_id=self.client_id, call_id=next(self._calls) if call_id is None else call_id,
            first_sent_at_ms=time.time_ns() // 1_000_000 - age_ms, answered_below=1, reply_partition=0,
            caller="tester", body=body,
        )  # fmt: skip

    def shard_of(self, request: Request) -> int:
        return shard_of(request.body.volume, self.shards)  # type: ignore[union-attr]

    def send(self, *values: bytes, shard: int) -> None:
        """Produce values, in order, in one go."""
        for value in values:
            key = None if self.secret is None else self.secret.proof(value)
            self._producer.produce(OM_REQUESTS, value, key, shard)
        assert self._producer.flush(PATIENCE_S) == 0, "the broker does not take requests"

    def call(self, body: RequestBody, *, shard: int | None = None, age_ms: int = 0) -> Response:
        """Send a request (to a shard of choice) and wait for its response."""
        request = self.request(body, age_ms=age_ms)
        self.send(encode(request), shard=self.shard_of(request) if shard is None else shard)
        return decode_as(Response, self.wait_answers(request.call_id, 1)[0])

    def answers(self, call_id: int | None = None) -> list[bytes]:
        """Return the responses so far to a call, or to all calls, as bytes."""
        found = []
        for value in (response for record in self._tap.poll() for response in responses_in(record)):
            try:
                response = decode_as(Response, value)
            except Undecodable:  # a stranger's
                continue
            if response.client_id == self.client_id and call_id in (None, response.call_id):
                found.append(value)
        return found

    def wait_answers(self, call_id: int, number: int) -> list[bytes]:
        """Wait until there are so many responses to a call."""
        if not wait_until(lambda: len(self.answers(call_id)) >= number, PATIENCE_S):
            raise AssertionError(f"call {call_id}: {len(self.answers(call_id))} of {number} answers")
        return self.answers(call_id)

    def close(self) -> None:
        self._tap.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --------------------------------------------------------------------------------------------------- what must hold


def assert_journal_holds(stack: TestStack, load: Load) -> None:
    """Assert on every running node: all that was acknowledged is there, nothing else, and the counters say the same.

    Call when all nodes have converged.
    """
    cluster, found = Cluster(settings=stack.settings), Aftermath()
    for volume, journal in load.journals.items():
        assert not journal.failures, journal.failures[:5]
        for node in stack.nodes:
            judge_listings(found, cluster, node, [journal])
            keys = listed(cluster, node, volume)
            expected = {"used_bytes": sum(keys.values()), "used_namespace": len(keys)}
            assert usage(cluster, node, volume) == expected, f"{node}, {volume}"
    assert found.sound, found.words


def assert_log_agrees(stack: TestStack, shard: int) -> JudgedLog:
    """Assert that a shard's log alone gives what its replicas hold, and that each call has one effect; return the log.

    Call when all nodes have converged and nothing writes.
    """
    log = read_log(stack.kafka.bootstrap_servers, shard)
    assert set(log.results_by_call().values()) <= {1}, "a call was executed twice"
    for node in stack.nodes:
        answer = stack.get(node, f"/v1/shards/{shard}/digest", scrub="true").json()
        assert answer["index"] == log.position.index
        assert unsigned(answer["slots"], answer["sums"]) == log.sums(), (
            f"{node}: scrubbed digest against the log's sums"
        )
        assert stack.shard(node, shard)["digest"] == answer["digest"], f"{node}: incremental against scrubbed"
    return log


def assert_all_agree(stack: TestStack, load: Load) -> None:
    """Wait until all nodes have converged, and assert that journals, replicas and logs agree."""
    stack.wait_converged()
    assert_journal_holds(stack, load)
    for shard in range(stack.settings.shards):
        assert_log_agrees(stack, shard)


# ----------------------------------------------------------------------------------------------------- names and places


def load_on_all_shards(client: Client, shards: int, **options: Any) -> Load:
    """Return a load, not begun, on a fresh volume of each shard."""
    return Load(client, [fresh_volume(shard, shards) for shard in range(shards)], **options)


_volume_numbers = count(1)


def fresh_volumes(shard: int, shards: int, number: int = 1) -> list[str]:
    """Return names of volumes of one shard that no test has used yet."""
    names = (f"vol-{n}" for n in _volume_numbers)
    return list(islice((name for name in names if shard_of(name, shards) == shard), number))


def fresh_volume(shard: int, shards: int) -> str:
    return fresh_volumes(shard, shards)[0]


def bystander(stack: TestStack) -> str:
    """Return a running node that leads nothing."""
    leading = {name for shard in range(stack.settings.shards) for name in stack.leaders(shard)}
    return next(name for name in stack.nodes if name not in leading)


# ------------------------------------------------------------------------------------------------------------ damage


@contextmanager
def database(stack: TestStack, node: str, shard: int) -> Iterator[RocksStore]:
    """Open the RocksDB of a node that does not run."""
    assert node not in stack.nodes, f"{node} runs"
    with opened_store(database_of(stack.settings, node, shard)) as store:
        yield store


def run_to_its_end(stack: TestStack, node: str, timeout_s: float = 3 * PATIENCE_S) -> tuple[int, str]:
    """Start a node that is expected to refuse; return its exit status and what it printed.

    A node refuses only once it has read the log as it was at the start, which takes long on a machine with other work.
    """
    process = subprocess.Popen(
        [str(word) for word in node_command(node)], env=dict(node_environment(stack.settings_file)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"{node} did not refuse to start:\n{output}") from None
    return process.returncode, output


def log_topic_id(admin: AdminClient) -> str:
    """Return the identity of the log topic's incarnation."""
    return str(admin.describe_topics(TopicCollection([OM_LOG]))[OM_LOG].result().topic_id)


def restart_log_sums(bootstrap_servers: str, client: Client, shard: int) -> None:
    """Do what an operator does after a repair: log a DigestBase, from the last operation on each key."""
    for _ in range(10):
        log = read_log(bootstrap_servers, shard)
        sums = digest(log.rows())
        try:
            client.log_digest_base(
                shard, log.position.index, slots=list(sums), sums=[signed(total) for total in sums.values()],
                basis="oracle",
            )  # fmt: skip
        except RequestFailed as error:
            if error.status != INDEX_MOVED:
                raise
        else:
            return
    raise AssertionError(f"shard {shard} does not hold still")


def lie_as_leader(stack: TestStack, node: str, shard: int, operation: Callable[[Position], Put]) -> int:
    """Claim a shard in the name of a node that does not run, append one batch with one operation, and fall silent.

    Return the batch's offset, once it counts. The shard's real leader may claim in between: then it is tried again.
    """
    assert node not in stack.nodes, f"{node} runs"
    servers = stack.settings.bootstrap_servers
    for _ in range(10):
        log = KafkaLog(servers, OM_LOG, shard, log_topic_id(stack.kafka.admin))
        appender = log.appender()
        try:
            before = read_log(servers, shard).position
            claim = LeaderClaim(
                term=before.term + 1, nonce=os.urandom(16), node=node, address=stack.address(node),
                claimed_at_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            _append(appender, encode(claim))
            position = read_log(servers, shard).position
            batch = Batch(
                term=claim.term, nonce=claim.nonce, seq=1, prev_chain=position.chain,
                first_index=position.index + 1, last_index=position.index + 1,
                timestamp_ms=max(position.timestamp_ms, time.time_ns() // 1_000_000), request_position=None,
                operations=[operation(position)], results=[],
            )  # fmt: skip
            offset = _append(appender, encode(batch))
        finally:
            appender.close()
            log.close()
        if read_log(servers, shard).records[offset].reading is Reading.COUNTS:
            return offset
    raise AssertionError(f"the real leader of shard {shard} was always faster")


def _append(appender: KafkaAppender, value: bytes) -> int:
    appender.append(0, value)
    reports: list[DeliveryReport] = []

    def reported() -> bool:
        reports.extend(appender.poll(0.1))
        return bool(reports)

    assert wait_until(reported, PATIENCE_S)
    assert reports[0].error is None
    return reports[0].offset
