"""Appends that fail while batches that build on each other are in flight: nothing half done, nothing answered too early.

One leader in this process, with the real log, store, intake and outbox; only its appender can be told to misbehave. With one
request to a batch, each step of a scenario is a batch of its own, executed on the overlay of the one before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.intake.core.backlog import Backlog
from om_processors.intake.gateway import Gateway
from om_processors.intake.intake import RequestIntake
from om_processors.intake.outbox import KafkaOutbox
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import DeliveryReport
from replicated_db.shell.kafka import kafka_log
from replicated_db.shell.kafka.kafka_log import KafkaAppender, KafkaLog
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.system import SystemClock, SystemIds
from schemas import result_codes as codes
from schemas.codecs.codec import decode, decode_as, encode
from schemas.records.log import Batch
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    KeySession,
    RenameKey,
    RequestBody,
    Response,
)
from schemas.topics import OM_LOG
from stratolog.local.processes import wait_until
from stratolog.local.topics import REPLICATED, TopicPlan, ensure_topics
from tests.support.faults.stack_faults import PATIENCE_S, RawClient, log_topic_id
from tests.support.local.secret import SECRET
from tests.support.local.stack import LocalKafka
from tests.support.logs.judged_log import read_log, unsigned

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
VOLUME = "volume"
SHORT_DELIVERY_MS = 1_500
IN_FLIGHT = 4
"""A scenario's three batches, and a barrier that falls due between them."""


class FirstAppendLost:
    """Loses the next batch on its way to the broker; says so once the batches behind it are in the log."""

    def __init__(self, followers: int) -> None:
        self._followers = followers
        self._lost: int | None = None
        self._following: set[int] = set()
        self._held: list[DeliveryReport] = []
        self.done = False

    def append(self, real: KafkaAppender, token: int, value: bytes) -> None:
        if self._lost is None and isinstance(decode(value), Batch):
            self._lost = token
            return
        if self._lost is not None and isinstance(decode(value), Batch):
            self._following.add(token)
        real.append(token, value)

    def poll(self, real: KafkaAppender, wait_s: float) -> Sequence[DeliveryReport]:
        reports = real.poll(wait_s)
        if self._lost is None:
            return reports
        self._held += [report for report in reports if report.token > self._lost]
        # A barrier that falls due is held as well, but is none of the batches that are waited for.
        if sum(report.token in self._following for report in self._held) < self._followers:
            return [report for report in reports if report.token < self._lost]
        self.done = True
        return [DeliveryReport(token=self._lost, offset=-1, timestamp_ms=0, error="lost by the test"), *self._held]

    def end(self) -> None:
        """Nothing is left to undo."""


ACKNOWLEDGED_S = 0.5
"""How long a broker may take to acknowledge requests that the leader has read already."""


class BrokerFrozen:
    """Freezes the broker right before the next batch is appended: every outcome is unknown to the leader."""

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka
        self.appended = 0
        self.done = False

    def append(self, real: KafkaAppender, token: int, value: bytes) -> None:
        if isinstance(decode(value), Batch):
            if not self.appended:
                # The leader may be here before the broker has acknowledged the requests to their sender.
                time.sleep(ACKNOWLEDGED_S)
                self._kafka.pause_broker(1)
            self.appended += 1
        real.append(token, value)

    def poll(self, real: KafkaAppender, wait_s: float) -> Sequence[DeliveryReport]:
        reports = real.poll(wait_s)
        self.done = self.done or any(report.error for report in reports)
        return reports

    def end(self) -> None:
        """Let the broker go on: it finds in its sockets what the leader has given up."""
        self._kafka.resume_broker(1)


Fault = FirstAppendLost | BrokerFrozen


class FaultyAppender:
    """The real appender, which passes through the fault that is armed."""

    def __init__(self, real: KafkaAppender, armed: list[Fault]) -> None:
        self._real = real
        self._armed = armed

    def append(self, token: int, value: bytes) -> None:
        if self._armed and not self._armed[0].done:
            self._armed[0].append(self._real, token, value)
        else:
            self._real.append(token, value)

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        if self._armed and not self._armed[0].done:
            return self._armed[0].poll(self._real, wait_s)
        return self._real.poll(wait_s)

    def close(self) -> None:
        self._real.close()


class FaultyLog(KafkaLog):
    """The real log with faulty appenders."""

    armed: list[Fault]

    def appender(self) -> FaultyAppender:  # type: ignore[override]
        return FaultyAppender(super().appender(), self.armed)


class OneLeader:
    """A node's parts for one shard, led on a thread of the test's."""

    def __init__(self, kafka: LocalKafka, folder: Path) -> None:
        self.kafka = kafka
        self.log = FaultyLog(kafka.bootstrap_servers, OM_LOG, 0, log_topic_id(kafka.admin))
        self.log.armed = []
        self.store = RocksStore(folder / "shard-0", OM_FAMILIES.names)
        identity = Identity(cluster="stratolog", shard=0, shards=1, node="om1")
        self.replica = Replica(identity, OM_FAMILIES, self.store, threading.RLock())
        clock = SystemClock()
        self.outbox = KafkaOutbox(kafka.bootstrap_servers, clock, print, print)
        gateway = Gateway(shard=0, node="om1", secret=SECRET)
        self.loop = LeaderLoop(
            self.replica, self.log, OMService(Contexts(shard=0, shards=1, pipelines=("p1",))),
            LeaderLimits(max_batch_requests=1, max_in_flight=IN_FLIGHT),
            clock=clock, ids=SystemIds(), address="127.0.0.1:1", outbox=self.outbox,
            intake=lambda hint: RequestIntake(
                bootstrap_servers=kafka.bootstrap_servers, shard=0, gateway=gateway, outbox=self.outbox,
                clock=clock, hint=hint, log=print, backlog=Backlog(max_queued=10_000),
            ),
            replicas=["om1"],
        )  # fmt: skip
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reason = ""

    def lead(self) -> None:
        """Lead in the background until deposed or :meth:`rest`."""

        def run() -> None:
            self.reason = self.loop.lead(self._stop)

        self._stop.clear()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait_deposed(self) -> str:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it still leads"
        return self.reason

    def rest(self) -> None:
        self._stop.set()
        self.wait_deposed()

    def close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self.rest()
        self.outbox.close()
        self.log.close()
        self.store.close()


@pytest.fixture(scope="module")
def kafka(make_kafka: Callable[..., LocalKafka]) -> LocalKafka:
    found = make_kafka()
    plan = TopicPlan(shards=1, response_partitions=1, replication_factor=1, durability=REPLICATED)
    ensure_topics(found.bootstrap_servers, plan)
    return found


@pytest.fixture(scope="module")
def leader(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneLeader]:
    found = OneLeader(kafka, tmp_path_factory.mktemp("leader"))
    yield found
    found.close()


@pytest.fixture
def raw(kafka: LocalKafka) -> Iterator[RawClient]:
    with RawClient(kafka.bootstrap_servers, 1) as found:
        yield found


# What exists before, what is in flight together, and what must be answered in the end.
SCENARIOS: dict[str, Callable[[str], tuple[list[RequestBody], list[tuple[RequestBody, str]]]]] = {
    "create bucket, create key": lambda bucket: (
        [],
        [
            (CreateBucket(volume=VOLUME, bucket=bucket), codes.OK),
            (CreateKey(volume=VOLUME, bucket=bucket, key="k", size=0), codes.OK),
        ],
    ),
    "delete bucket, create key": lambda bucket: (
        [CreateBucket(volume=VOLUME, bucket=bucket)],
        [
            (DeleteBucket(volume=VOLUME, bucket=bucket), codes.OK),
            (CreateKey(volume=VOLUME, bucket=bucket, key="k", size=0), codes.BUCKET_NOT_FOUND),
            (CreateBucket(volume=VOLUME, bucket=bucket), codes.OK),
        ],
    ),
    "rename, delete of the old name": lambda bucket: (
        [CreateBucket(volume=VOLUME, bucket=bucket), CreateKey(volume=VOLUME, bucket=bucket, key="old", size=0)],
        [
            (RenameKey(volume=VOLUME, bucket=bucket, from_key="old", to_key="new"), codes.OK),
            (DeleteKey(volume=VOLUME, bucket=bucket, key="old"), codes.KEY_NOT_FOUND),
            (DeleteKey(volume=VOLUME, bucket=bucket, key="new"), codes.OK),
        ],
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request of a scenario, its bytes, and the status that it must be answered with in the end."""

    call_id: int
    value: bytes
    wanted: str


def prepare(raw: RawClient, bodies: list[RequestBody]) -> None:
    """Make what a scenario builds on; an opened key is committed."""
    exists = raw.call(CreateVolume(volume=VOLUME)).status
    assert exists in (codes.OK, codes.VOLUME_ALREADY_EXISTS)
    for body in bodies:
        response = raw.call(body)
        assert response.status == codes.OK
        if isinstance(body, CreateKey):
            assert isinstance(response.result, KeySession)
            session_id = response.result.session_id
            commit = CommitKey(volume=VOLUME, bucket=body.bucket, key=body.key, session_id=session_id, size=0)
            assert raw.call(commit).status == codes.OK


def run_into_fault(
    leader: OneLeader, raw: RawClient, scenario: str, fault_of: Callable[[int], Fault], bucket: str
) -> list[Sent]:
    """Lead, prepare, arm the fault, send the scenario's requests at once, wait until it is over and the leader deposed."""
    before, steps = SCENARIOS[scenario](bucket)
    leader.lead()
    prepare(raw, before)
    fault = fault_of(len(steps) - 1)
    leader.log.armed[:] = [fault]
    sent = []
    for body, status in steps:
        request = raw.request(body)
        sent.append(Sent(call_id=request.call_id, value=encode(request), wanted=status))
    raw.send(*(one.value for one in sent), shard=0)
    assert wait_until(lambda: fault.done, PATIENCE_S), "the leader has not been told of any failure"
    fault.end()
    reason = leader.wait_deposed()
    print(f"deposed: {reason}")
    leader.outbox._producer.flush(5)  # had anything been answered, it would be out now
    return sent


def state_of(leader: OneLeader) -> dict[tuple[str, bytes], bytes]:
    return {(cf, key): value for cf in OM_FAMILIES.names for key, value in leader.store.iterate(cf, b"")}


def assert_done(leader: OneLeader, raw: RawClient, sent: list[Sent]) -> None:
    """Claim anew: each request is answered as it should be, once executed, and store and log agree."""
    leader.lead()
    for one in sent:
        answers = raw.wait_answers(one.call_id, 1)
        assert decode_as(Response, answers[0]).status == one.wanted
        assert len(set(answers)) == 1
    leader.rest()
    log = read_log(leader.kafka.bootstrap_servers, 0)
    calls = log.results_by_call()
    assert [calls[raw.client_id, one.call_id.to_bytes(8, "big")] for one in sent] == [1] * len(sent)
    assert log.position.index == leader.replica.position.index
    assert unsigned(*leader.replica.digests.slots()) == log.sums()
    assert state_of(leader) == log.rows()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_first_append_is_lost(leader: OneLeader, raw: RawClient, scenario: str, fault_round: int) -> None:
    bucket = f"lost-{list(SCENARIOS).index(scenario)}-{fault_round}"
    steps = len(SCENARIOS[scenario](bucket)[1])
    leader.log.armed.clear()
    sent = run_into_fault(leader, raw, scenario, FirstAppendLost, bucket)
    reached = leader.replica.position.index
    rows = state_of(leader)
    # Nothing of it is answered, nothing is in the store, and in the log only batches that do not count.
    assert [raw.answers(one.call_id) for one in sent] == [[]] * steps
    log = read_log(leader.kafka.bootstrap_servers, 0)
    # A barrier may be due on a slow machine; it is void, too.
    void = list(takewhile(lambda judged: judged.reading is Reading.GAP, reversed(log.records)))
    assert sum(isinstance(judged.record, Batch) for judged in void) == steps - 1
    assert log.position.index == reached
    assert log.rows() == rows
    assert_done(leader, raw, sent)


def test_the_broker_freezes(
    leader: OneLeader, raw: RawClient, monkeypatch: pytest.MonkeyPatch, fault_round: int
) -> None:
    scenario = "rename, delete of the old name"
    bucket = f"frozen-{fault_round}"
    monkeypatch.setattr(kafka_log, "DELIVERY_TIMEOUT_MS", SHORT_DELIVERY_MS)
    leader.log.armed.clear()
    fault = BrokerFrozen(leader.kafka)
    try:
        sent = run_into_fault(leader, raw, scenario, lambda _: fault, bucket)
    finally:
        leader.kafka.resume_broker(1)
    assert fault.appended >= 1
    assert [raw.answers(one.call_id) for one in sent] == [[]] * len(sent)
    # What was in the broker's sockets may be in the log by now, and then counts: the log decides, not the leader's memory. Nobody
    # answers for a batch that is found in the log; a client that asks again gets the recorded answer.
    raw.send(*(one.value for one in sent), shard=0)
    assert_done(leader, raw, sent)
