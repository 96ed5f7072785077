"""The jobs' mains without Spark: what they refuse, how they end, and the health file that their parent reads."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import StreamingQueryException

from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.configuration.audit_config import AuditConfig
from spark_streaming.jobs import audit_batch, audit_stream, health, outages, running_query, wake_ups
from spark_streaming.jobs.audit_metrics import AuditMetrics
from spark_streaming.jobs.audit_stream import AuditTooOld, Reporter, partitions_of
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.progress import ProgressReader
from spark_streaming.jobs.running_query import MAX_REASON_CHARACTERS, QueryEnd, RunningQuery
from spark_streaming.jobs.wake_ups import DueWakeUps, WakeUps, wake_up
from spark_streaming.records import batch_gate
from spark_streaming.records.batch_gate import BatchGate, GateClosed
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.verdicts.core.written import WrittenBatch
from spark_streaming.verdicts.query import QUERY_NAME, SLOW_STARTS, SLOW_WORKER

EQUAL = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000,
)  # fmt: skip


def told(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "health.json"


def test_a_job_says_that_it_starts_before_its_first_micro_batch(path: Path):
    before_ms = time.time_ns() // 10**6
    JobHealth(path)
    found = told(path)
    assert (found["status"], found["pid"], found["batch_id"], found["error"]) == ("starting", os.getpid(), None, None)
    assert (found["offsets"], found["verdicts"]) == ({}, {})
    assert before_ms <= found["updated_at_ms"] <= time.time_ns() // 10**6


def test_it_runs_once_a_micro_batch_is_written(path: Path):
    job = JobHealth(path)
    job.on_written(3, [EQUAL, replace(EQUAL, log=DN_LOG, shard=7, basis="scrubbed")])
    found = told(path)
    assert (found["status"], found["batch_id"]) == ("running", 3)
    assert set(found["verdicts"]) == {"0/om1/incremental", "dn.log/7/om1/scrubbed"}
    assert found["verdicts"]["0/om1/incremental"] == {
        "log": OM_LOG, "shard": 0, "node": "om1", "barrier_offset": 10, "index": 5, "verdict": "equal",
        "basis": "incremental", "differing_slots": 0, "reason": "", "decided_at_ms": 1000,
    }  # fmt: skip


def test_a_later_verdict_on_the_same_subject_replaces(path: Path):
    job = JobHealth(path)
    job.on_written(1, [EQUAL])
    job.on_written(2, [replace(EQUAL, verdict="diverged")])
    assert [one["verdict"] for one in told(path)["verdicts"].values()] == ["diverged"]


def test_the_newest_verdicts_stay(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "MAX_VERDICTS", 3)
    job = JobHealth(path)
    job.on_written(1, [replace(EQUAL, shard=shard) for shard in range(3)])
    assert len(told(path)["verdicts"]) == 3
    job.on_written(2, [replace(EQUAL, shard=shard) for shard in (3, 4)])
    assert set(told(path)["verdicts"]) == {f"{shard}/om1/incremental" for shard in (2, 3, 4)}


def test_a_reader_never_finds_half_a_file(path: Path):
    """The file is replaced as a whole, and nothing else is left beside it."""
    job = JobHealth(path)
    with path.open() as opened:
        job.update(status="stopped")
        assert json.load(opened)["status"] == "starting"
    assert told(path)["status"] == "stopped"
    assert os.listdir(path.parent) == [path.name]


FIRST, SECOND = ReportedPartition(OM_LOG, 0), ReportedPartition(DN_LOG, 0)

# The end of the running audit.


@dataclass
class JavaProgress:
    """A progress as Py4J hands it over."""

    said: dict[str, Any]

    def timestamp(self) -> str:
        return str(self.said.get("timestamp", "2026-11-24T06:00:00.000Z"))

    def json(self) -> str:
        return json.dumps(self.said)


@dataclass
class Query:
    """A streaming query that has ended, runs, or fails; ``ends`` is what it says each time."""

    ends: list[bool | Exception]
    progress: list[dict[str, Any]] = field(default_factory=list)
    """What Spark says of it, the newest last."""
    is_stopped: bool = False
    triggers: list[bool] = field(default_factory=list)
    """Whether a micro-batch is in progress, each time it is asked."""
    isActive = True  # noqa: N815 - Spark's name

    @property
    def _jsq(self) -> Query:
        return self

    def recentProgress(self) -> list[JavaProgress]:
        return list(map(JavaProgress, self.progress))

    def lastProgress(self) -> JavaProgress | None:
        return JavaProgress(self.progress[-1]) if self.progress else None

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self.triggers.pop(0) if self.triggers else False}

    def awaitTermination(self, timeout: float) -> bool:
        assert timeout > 0
        said = self.ends.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def stop(self) -> None:
        self.is_stopped = True


@dataclass
class Session:
    """A session that notes how its log levels were set."""

    levels: list[str] = field(default_factory=list)

    @property
    def sparkContext(self) -> Session:
        return self

    def setLogLevel(self, level: str) -> None:
        self.levels.append(level)


def watched(
    path: Path, session: Any, query: Any, wakes: WakeUps, gate: BatchGate | None = None,
    sent: list[Any] | None = None, metrics: AuditMetrics | None = None, windows: Any = None,
) -> RunningQuery:  # fmt: skip
    """Return the job around a query; ``sent`` takes what goes to the topic of windows."""
    stats: Any = SimpleNamespace(send=[].append if sent is None else sent.append)
    return RunningQuery(
        session, query, JobHealth(path), gate or BatchGate(), wakes, metrics or AuditMetrics(), stats,
        lambda: [FIRST, SECOND], windows,
    )  # fmt: skip


def run(path: Path, query: Any, rounds: int = 99, gate: BatchGate | None = None) -> tuple[QueryEnd, str | None]:
    """Run until the query ends, or a signal comes after so many rounds; the query is stopped."""
    asked = iter([False] * rounds + [True])
    session: Any = Session()
    wakes = WakeUps([10**6], time.monotonic())
    job = watched(path, session, query, wakes, gate)
    found = job.run(lambda: next(asked))
    assert query.is_stopped
    assert session.levels == ["OFF", "ERROR"], "a stop is no error for Spark to log"
    return found, job.failure


ENDED = (QueryEnd.ENDED, None)


def test_a_signal_ends_the_query(path: Path):
    assert run(path, Query([False] * 2), rounds=2) == ENDED


def test_a_query_may_end_by_itself(path: Path):
    assert run(path, Query([False, True])) == ENDED


def test_why_a_query_has_failed(path: Path):
    failure = StreamingQueryException("lost offsets " + "plan " * 10_000)
    end, reason = run(path, Query([False, failure]))
    assert end is QueryEnd.FAILED
    assert reason is not None
    assert "lost offsets" in reason
    assert len(reason) == MAX_REASON_CHARACTERS


# A stop, and the micro-batch that is being written.


def test_a_stop_waits_for_the_micro_batch_that_is_being_written(path: Path):
    """It was interrupted, half written; now no query is stopped before the sink has ended."""
    gate, written, inside = BatchGate(), [], threading.Event()
    query = Query([False], triggers=[True, True, False])

    def write() -> None:
        with gate.passing():
            inside.set()
            time.sleep(0.2)
            written.append(query.is_stopped)

    writer = threading.Thread(target=write)
    writer.start()
    assert inside.wait(5)
    assert run(path, query, rounds=1, gate=gate) == ENDED
    writer.join()
    assert written == [False]
    assert query.triggers == [], "and until Spark has noted the micro-batch as done"
    with pytest.raises(GateClosed), gate.passing():
        pytest.fail("no further micro-batch begins")


def test_a_gate_is_not_waited_for_longer_than_is_said():
    gate = BatchGate()
    with gate.passing():
        assert not gate.close(0.01)
    assert gate.close(0.01)


# A log that is trimmed while the audit runs.


@dataclass
class Runs:
    """What each start of the queries gives; ``trimmed``: what each look at the checkpoints finds."""

    queries: list[Query]
    trimmed: list[bool]
    topics: int = 1
    started: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def started(*_: object, **__: object) -> Query:
            self.started += 1
            return self.queries.pop(0)

        stop = SimpleNamespace(asked=False)
        session: Any = Session()
        session.stop = lambda: None
        sent: Any = SimpleNamespace(send=lambda _: None)
        for name, value in {
            "_Stop": lambda: stop, "build_session": lambda _: session, "_start": started, "Sender": lambda *_: sent,
            "leave_trimmed_checkpoints": lambda _: self.trimmed.pop(0), "topic_partitions": lambda *_: self.topics,
        }.items():  # fmt: skip
            monkeypatch.setattr(audit_stream, name, value)


@pytest.fixture
def config(tmp_path: Path) -> AuditConfig:
    return AuditConfig(bootstrap_servers="here", work_dir=tmp_path, jars=(Path(__file__),))


def test_a_log_that_is_trimmed_past_the_audit_sets_it_back_to_the_base(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch
):
    """It ended, and stayed away until somebody started it again."""
    runs = Runs([Query([StreamingQueryException("lost offsets")]), Query([True])], trimmed=[False, True])
    runs.install(monkeypatch)
    assert audit_stream.run(config) == 0
    assert runs.started == 2
    assert told(config.health_file)["status"] == "stopped"


def test_python_that_starts_slowly_on_a_busy_machine_is_started_again(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It ended the audit: Spark waits for ten seconds."""
    slow = StreamingQueryException(f"[STREAM_FAILED] {SLOW_WORKER}. SQLSTATE: XXKST")
    runs = Runs([Query([slow]), Query([slow]), Query([True])], trimmed=[False])
    runs.install(monkeypatch)
    assert audit_stream.run(config) == 0
    assert runs.started == 3
    assert capsys.readouterr().err.count("the machine is busy") == 2
    for_ever = Runs([Query([slow]) for _ in range(SLOW_STARTS + 1)], trimmed=[False, False])
    for_ever.install(monkeypatch)
    assert audit_stream.run(config) == 1
    assert for_ever.queries == []


@dataclass
class Brokers:
    """Brokers that do not answer the first ``questions``."""

    questions: int = 2

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def topic_partitions(*_: object) -> int:
            self.questions -= 1
            if self.questions >= 0:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return 1

        monkeypatch.setattr(outages, "topic_partitions", topic_partitions)
        monkeypatch.setattr(outages, "PAUSE_S", 0)


AWAY = [
    StreamingQueryException(f"[STREAM_FAILED] {KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))}"),
    StreamingQueryException("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment"),
    KafkaException(KafkaError(KafkaError._TRANSPORT)),
]


@pytest.mark.parametrize("failure", AWAY, ids=["sink", "source", "driver"])
def test_brokers_that_are_away_are_waited_for(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception
):
    """It ended the audit, and the brokers came back without it."""
    brokers = Brokers()
    brokers.install(monkeypatch)
    runs = Runs([Query([failure]), Query([failure]), Query([True])], trimmed=[False])
    runs.install(monkeypatch)
    assert audit_stream.run(config) == 0
    assert runs.started == 3
    assert brokers.questions < 0
    assert told(config.health_file)["error"] is None
    assert capsys.readouterr().err.count("here does not answer; the audit goes on once it does") == 2


def test_brokers_that_answer_and_let_every_query_fail_are_not_waited_for_without_end(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch
):
    Brokers(questions=0).install(monkeypatch)
    runs = Runs([Query([AWAY[0]]) for _ in range(outages.OUTAGES + 1)], trimmed=[False, False])
    runs.install(monkeypatch)
    assert audit_stream.run(config) == 1
    assert runs.queries == []


def test_a_stop_ends_the_wait_for_brokers(config: AuditConfig, monkeypatch: pytest.MonkeyPatch):
    Brokers(questions=10**6).install(monkeypatch)
    health = JobHealth(config.health_file)
    asked = iter([False, False, True])
    outages.await_brokers(config, health, lambda: next(asked))
    assert "does not answer" in told(config.health_file)["error"]


def test_any_other_failure_ends_the_audit(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    runs = Runs([Query([StreamingQueryException("disk full")])], trimmed=[False, False])
    runs.install(monkeypatch)
    assert audit_stream.run(config) == 1
    assert told(config.health_file)["status"] == "failed"
    assert "disk full" in capsys.readouterr().err


def test_an_audit_without_a_log_says_so(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A pattern of topics would wait for ever."""
    Runs([], trimmed=[], topics=0).install(monkeypatch)
    assert audit_stream.run(config) == 1
    assert capsys.readouterr().err == "audit failed: there is no topic om.log\n"


def test_an_audit_without_a_topic_of_windows_says_how_one_is_made(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It ran on, and nothing that was missing on a quiet partition would be judged."""
    Runs([], trimmed=[False]).install(monkeypatch)
    monkeypatch.setattr(audit_stream, "topic_partitions", lambda _, topic: int(topic == OM_LOG))
    assert audit_stream.run(config) == 1
    assert capsys.readouterr().err == "audit failed: there is no topic om.stats: `stratolog topics ensure` makes it\n"


def test_all_partitions_of_all_logs_are_woken_up(config: AuditConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit_stream, "topic_partitions", lambda _, topic: {OM_LOG: 2}.get(topic, 1))
    assert partitions_of(config) == [FIRST, ReportedPartition(OM_LOG, 1), SECOND]


def test_an_audit_whose_brokers_are_away_at_its_start_says_so(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whoever has just written a wrong address is told at once."""

    def nobody(*_: object) -> int:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    Runs([], trimmed=[]).install(monkeypatch)
    monkeypatch.setattr(audit_stream, "topic_partitions", nobody)
    assert audit_stream.run(config) == 1
    assert told(config.health_file)["status"] == "failed"
    assert "_TRANSPORT" in capsys.readouterr().err


# A quiet cluster.


NOBODY = DueWakeUps(frozenset(), everywhere=False)
ALL = DueWakeUps(frozenset(), everywhere=True)


def due(wakes: WakeUps, *times_s: float) -> list[DueWakeUps]:
    """Return what is due at each time, and woken up then."""
    found = []
    for now_s in times_s:
        found.append(wakes.due(now_s))
        wakes.woken(now_s)
    return found


def only(partition: ReportedPartition) -> DueWakeUps:
    return DueWakeUps(frozenset([partition]), everywhere=False)


def test_a_quiet_audit_is_woken_once_for_each_delay_after_its_start():
    wakes = WakeUps([10_000, 600_000], 100.0)
    wakes.note({FIRST: None}, 0, 100.0)
    assert due(wakes, 110.9, 111.0, 111.1, 700.9) == [NOBODY, ALL, NOBODY, NOBODY]
    assert wakes.due(701.0) == wakes.due(701.0) == ALL, "until it is said that they were woken up"
    assert due(wakes, 701.0, 10**6) == [ALL, NOBODY]


def test_a_partition_is_woken_when_a_report_is_to_be_missing():
    wakes = WakeUps([], 0.0)
    wakes.note({FIRST: 50_500, SECOND: 40_000}, 40_000, 100.0)
    assert due(wakes, 100.9, 101.0, 111.4) == [NOBODY, only(SECOND), NOBODY]
    assert not wakes.due(111.4)
    assert wakes.due(111.5)
    assert due(wakes, 111.5, 10**6) == [only(FIRST), NOBODY]


def test_it_is_not_woken_once_the_report_has_come():
    wakes = WakeUps([], 0.0)
    wakes.note({FIRST: 50_000, SECOND: 50_000}, 40_000, 100.0)
    wakes.note({FIRST: None}, 41_000, 101.0)
    wakes.note({SECOND: 60_000}, 42_000, 102.0)
    assert due(wakes, 111.0, 120.9, 121.0, 10**6) == [NOBODY, NOBODY, only(SECOND), NOBODY]
    wakes.note({FIRST: 10}, 0, 0.0)
    wakes.note({SECOND: None}, 0, 0.0)
    assert wakes.due(10**6) == only(FIRST), "what has no rows waits on"


def test_wake_ups_go_to_the_topic_of_windows(path: Path, monkeypatch: pytest.MonkeyPatch):
    some: Any = Query([False] * 3)
    session: Any = Session()
    sent: list[Any] = []
    asked = iter([False, False, False, True])
    monkeypatch.setattr(wake_ups, "MARGIN_S", 0.0)
    wakes = WakeUps([0], 0.0)
    assert watched(path, session, some, wakes, sent=sent).run(lambda: next(asked)) is QueryEnd.ENDED
    assert sent == [[wake_up(SECOND), wake_up(FIRST)]], "all there are: nobody knows what they wait for"
    wakes.note({FIRST: 0}, 0, 0.0)
    asked, some.ends = iter([False, False, True]), [False] * 2
    assert watched(path, session, some, wakes, sent=sent).run(lambda: next(asked)) is QueryEnd.ENDED
    assert sent[1:] == [[wake_up(FIRST)]]


def test_wake_ups_that_brokers_do_not_take_are_sent_by_the_next_query(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wake_ups, "MARGIN_S", 0.0)
    session: Any = Session()
    wakes = WakeUps([], 0.0)
    wakes.note({FIRST: 0}, 0, 0.0)
    job = watched(path, session, Query([False] * 2), wakes)

    def refuse(_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    job.stats = SimpleNamespace(send=refuse)  # type: ignore[assignment]
    assert (job.run(lambda: False), job.are_brokers_away) == (QueryEnd.FAILED, True)
    sent: list[Any] = []
    asked = iter([False, True])
    watched(path, session, Query([False]), wakes, sent=sent).run(lambda: next(asked))
    assert sent == [[wake_up(FIRST)]]


def quiet_run(path: Path, query: Any) -> QueryEnd:
    """Run with a topic of windows until the query is put to sleep, or for three rounds."""
    session: Any = Session()
    asked = iter([False] * 3 + [True])
    return watched(path, session, query, WakeUps([], 0.0)).run(lambda: next(asked))


LOOKED: dict[str, Any] = {"sources": []}


def test_a_quiet_query_is_put_to_sleep(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_query, "QUIET_SECONDS", 0.0)
    query = Query([False], progress=[LOOKED])
    assert quiet_run(path, query) is QueryEnd.QUIET
    assert query.is_stopped


@pytest.mark.parametrize(
    "busy", [Query([False] * 3), Query([False] * 3, progress=[LOOKED], triggers=[True] * 3)], ids=["new", "busy"]
)
def test_a_query_that_has_not_looked_or_is_at_work_is_not_quiet(
    path: Path, monkeypatch: pytest.MonkeyPatch, busy: Query
):
    """On a busy machine a start may take longer than the quiet that is waited for."""
    monkeypatch.setattr(running_query, "QUIET_SECONDS", 0.0)
    assert quiet_run(path, busy) is QueryEnd.ENDED


def test_a_gate_is_quiet_since_there_was_something_to_audit(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(batch_gate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    gate = BatchGate()
    now[0] = 130.0
    assert gate.quiet_s() == 30.0
    with gate.passing():
        now[0] = 190.0
        assert gate.quiet_s() == 0.0
    assert gate.quiet_s() == 90.0, "a micro-batch alone is no news"
    gate.note()
    assert gate.quiet_s() == 0.0
    now[0] = 200.0
    assert gate.quiet_s() == 10.0


def test_a_sleeping_audit_is_started_again_by_news_or_a_wake_up_and_ended_by_a_signal(
    config: AuditConfig, monkeypatch: pytest.MonkeyPatch
):
    runs = Runs([], trimmed=[False])
    runs.install(monkeypatch)
    seen: list[float] = []

    class Told(SimpleNamespace):
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def has_come(self, timeout_s: float) -> bool:
            seen.append(timeout_s)
            return len(seen) == 3

    job = JobHealth(config.health_file)
    monkeypatch.setattr(audit_stream, "News", lambda *_: Told())
    asleep = WakeUps([10**6], time.monotonic())
    metrics = AuditMetrics()
    audit_stream.await_news(config, asleep, job, metrics, lambda: False)
    assert seen == [running_query.POLL_SECONDS] * 3
    due = WakeUps([-2000], time.monotonic())
    audit_stream.await_news(config, due, job, metrics, lambda: False)
    audit_stream.await_news(config, asleep, job, metrics, lambda: True)
    assert len(seen) == 3
    pulse = metrics.shown().registry.get_sample_value(
        "stratolog_audit_progress_timestamp_seconds", {"query": QUERY_NAME}
    )
    assert pulse == pytest.approx(time.time(), abs=60.0), "a sleeping audit shows that it lives"
    assert due.due(time.monotonic()), "the queries that are started now are still to be woken"


# What newer software wrote.


def test_a_micro_batch_that_newer_software_wrote_is_told_and_not_committed(path: Path):
    reporter = Reporter(JobHealth(path), WakeUps([], 0.0))
    reporter.on_written(WrittenBatch(batch_id=1, verdicts=[EQUAL, replace(EQUAL, verdict="unknown")]))
    too_new = replace(EQUAL, verdict="unknown", basis="log", reason="feature level 99: upgrade it")
    with pytest.raises(AuditTooOld, match="feature level 99"):
        reporter.on_written(WrittenBatch(batch_id=2, verdicts=[EQUAL, too_new]))
    assert reporter.too_old == too_new.reason
    assert told(path)["verdicts"]["0/om1/log"]["verdict"] == "unknown"


def test_the_offsets_that_the_audit_has_read_are_in_the_health_file(path: Path):
    sources = [{"endOffset": '{"om.log": {"0": 5}}'}, {"endOffset": {"om.audit": {"0": 7}}}, {"endOffset": None}]
    run(path, Query([False], progress=[{"sources": sources}]), rounds=1)
    assert told(path)["offsets"] == {"om.log": {"0": 5}, "om.audit": {"0": 7}}


def test_each_progress_counts_once_and_one_without_rows_says_that_the_query_waits(path: Path):
    """The job asks more often than there are micro-batches, and less often than on a backlog."""
    read = [
        {"timestamp": f"2026-11-24T06:00:0{second}.000Z", "numInputRows": rows, "batchId": 7 + second, "sources": []}
        for second, rows in enumerate((5, 6, 0))
    ]
    query: Any = Query([False], progress=read[:1])
    reader = ProgressReader(query)
    assert list(reader.new()) == read[:1]
    assert list(reader.new()) == []
    query.progress = read
    metrics = AuditMetrics()
    for one in reader.new():
        metrics.on_progress(QUERY_NAME, one)
    assert list(reader.new()) == []
    registry = metrics.shown().registry
    found = [
        registry.get_sample_value(f"stratolog_audit_{name}", {"query": QUERY_NAME})
        for name in ("batches_total", "rows_total", "batch_id")
    ]
    assert found == [1, 6, 8]


def test_the_metrics_say_whether_the_query_runs(path: Path):
    metrics = AuditMetrics()
    seen: list[float | None] = []

    def active() -> float | None:
        return metrics.shown().registry.get_sample_value("stratolog_audit_query_active", {"query": QUERY_NAME})

    def is_asked_to_stop() -> bool:
        seen.append(active())
        return True

    some: Any = Query([])
    session: Any = Session()
    watched(path, session, some, WakeUps([], 0.0), metrics=metrics).run(is_asked_to_stop)
    assert (*seen, active()) == (1, 0)


def test_who_goes_to_sleep_sends_the_windows_first(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_query, "QUIET_SECONDS", 0.0)
    sent: list[str] = []
    windows: Any = SimpleNamespace(send_if_due=lambda: None, send_now=lambda: sent.append("sent"))
    session: Any = Session()
    for stop, end in ((False, QueryEnd.QUIET), (True, QueryEnd.ENDED)):
        query: Any = Query([False], progress=[LOOKED])
        job = watched(path, session, query, WakeUps([], 0.0), windows=windows)
        assert job.run(partial(bool, stop)) is end
    assert sent == ["sent"], "another start sends what is open again"


def test_before_the_first_progress_there_are_no_offsets(path: Path):
    run(path, Query([False]), rounds=1)
    assert told(path)["offsets"] == {}


# What they refuse.


@pytest.mark.parametrize("main", [audit_batch.main, audit_stream.main])
def test_a_configuration_that_is_wrong_ends_with_status_2(main, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "audit.json"
    assert main(["--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    file.write_text('{"bootstrap_servers": "here"}')
    assert main(["--config", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: missing settings: work_dir\n"


def test_an_audit_without_jars_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "audit.json"
    values = {"bootstrap_servers": "here", "work_dir": str(tmp_path), "jars": [str(tmp_path / "kafka.jar")]}
    file.write_text(json.dumps(values))
    assert audit_batch.main(["--config", str(file)]) == 2
    assert capsys.readouterr().err == f"Spark jar not found: {tmp_path / 'kafka.jar'}\n"
