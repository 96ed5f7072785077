"""The stateful operator without Spark: rows of a micro-batch in, rows of findings out, all state through the store."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import pandas as pd
import pytest

from schemas.codecs.codec import decode_as, encode
from schemas.codecs.registry import registry
from schemas.features import INITIAL, LATEST
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport, Verdict
from schemas.topics import DN_LOG, OM_AUDIT, OM_LOG
from spark_streaming.records.logs import KNOWN_LOGS
from spark_streaming.records.transforms import AUDIT_SCHEMA
from spark_streaming.verdicts.audit import NO_DEADLINE, AuditProcessor, clock_ms, verdict_value
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.shard_state import MatchingLimits
from spark_streaming.windows.sample_text import decoded_samples
from tests.support.audit.spark_state import GroupState
from tests.support.local.memory_broker import memory_broker
from tests.support.logs.logbuilder import CLUSTER, REPLICAS, LogBuilder, digest, ordinary_log
from tests.support.logs.pipelinelog import MEMBERS, PipelineLog, ordinary_pipeline

LIMITS = MatchingLimits(report_timeout_ms=1200)
NAMES = AUDIT_SCHEMA.fieldNames()


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """Return rows as Spark hands them over: every column is there, and is null where a row's kind does not have it."""
    assert all(set(row) <= set(NAMES) for row in rows)
    return pd.DataFrame([[row.get(name) for name in NAMES] for row in rows], columns=NAMES, dtype=object)


def log_frame(log: LogBuilder, start: int = 0, name: str = OM_LOG) -> pd.DataFrame:
    of = {"log": name, "shard": log.shard, "source": "log", "appended_ms": 12_345}
    return frame(*(of | {"offset": n, "value": value} for n, value in list(enumerate(log.values))[start:]))


def report_row(sent: AuditReport | BlockReport, offset: int = 0) -> dict[str, Any]:
    log, shard = (DN_LOG, sent.partition) if isinstance(sent, BlockReport) else (OM_LOG, sent.shard)
    of = {"log": log, "shard": shard, "source": "report", "offset": offset, "appended_ms": 23_456}
    return of | {"key": b"0/om7", "value": encode(sent)}


class Operator:
    """The operator on one group. Each micro-batch has an operator of its own, as if Spark had restarted in between."""

    def __init__(
        self, log: str = OM_LOG, shard: int = 0, *, deadlines: bool = True, servers: str = "",
        limits: MatchingLimits | None = None, window_ms: int = 0,
    ) -> None:  # fmt: skip
        self.window_ms = window_ms
        self.key = (log, shard)
        self.servers = servers
        self.limits = limits
        self.state = GroupState()
        self.deadlines = deadlines
        self.now_ms = 0
        self.news = 0
        self.waits_until_ms: int | None = None
        """What the last call said of it, as of its news."""

    def started(self) -> AuditProcessor:
        limits = self.limits or LIMITS
        processor = AuditProcessor(
            KNOWN_LOGS, limits, deadlines=self.deadlines, bootstrap_servers=self.servers, window_ms=self.window_ms,
            clock=lambda: self.now_ms,
        )  # fmt: skip
        processor.init(self.state)
        return processor

    def take(self, *frames: pd.DataFrame, now_ms: int = 0) -> list[Any]:
        self.now_ms = now_ms
        rows = [
            row
            for one in self.started().handleInputRows(self.key, iter(frames), None)
            for row in one.itertuples(index=False)
        ]
        said = [row for row in rows if row.finding == "partition"]
        assert [(row.log, row.shard) for row in said] in ([], [self.key])
        self.news, self.waits_until_ms = (said[0].offset, said[0].index) if said else (0, None)
        return [row for row in rows if row.finding != "partition"]

    def wake(self, now_ms: int) -> list[Any]:
        """Take a row without a record."""
        return self.take(frame({"log": self.key[0], "shard": self.key[1], "source": "wake-up"}), now_ms=now_ms)

    def kept(self, kind: str) -> list[Any]:
        """Return the keys of what the state keeps of a kind."""
        return sorted(key[1:] for key in self.state.maps["kept"].rows if key[0] == kind)


def verdicts(rows: list[Any]) -> list[Verdict]:
    return [decode_as(Verdict, row.value) for row in rows if row.finding == "verdict"]


def told(rows: list[Any]) -> list[tuple[str, str, int]]:
    return sorted((one.node, one.verdict, one.barrier_offset) for one in verdicts(rows))


def simple() -> LogBuilder:
    log = LogBuilder().start()
    log.batch(log.put("keyTable", b"/v/b/k", b"1"))
    return log


def test_held_back_reports_are_read_again_from_the_brokers():
    log = simple()
    barriers = [log.barrier() for _ in range(9)]
    sent = [log.report(at, node) for at in barriers for node in REPLICAS]
    with memory_broker() as broker:
        broker.append(OM_AUDIT, *map(encode, sent))
        operator = Operator(servers=broker.bootstrap_servers, limits=MatchingLimits(early_reports=4))
        assert operator.take(frame(*(report_row(one, n) for n, one in enumerate(sent)))) == []
        assert len(operator.kept("report")) == 4
        assert operator.waits_until_ms == 10_000
        assert told(operator.take(log_frame(log))) == sorted((one.node, "equal", one.barrier_offset) for one in sent)
    assert not operator.kept("report")


def test_what_is_left_of_them_is_taken_at_the_next_wake_up():
    log = simple()
    barriers = [log.barrier() for _ in range(9)]
    sent = [log.report(at, node) for at in barriers for node in REPLICAS]
    with memory_broker() as broker:
        broker.append(OM_AUDIT, *map(encode, sent))
        limits = MatchingLimits(report_timeout_ms=10**6, early_reports=4, taken_back=2)
        operator = Operator(servers=broker.bootstrap_servers, limits=limits)
        operator.take(frame(*(report_row(one, n) for n, one in enumerate(sent))), now_ms=700)
        found = told(operator.take(log_frame(log), now_ms=700))
        assert len(found) < len(sent)
        assert operator.waits_until_ms == 701, "at once"
        while len(found) < len(sent):
            found += told(operator.wake(1000))
    assert sorted(found) == sorted((one.node, "equal", one.barrier_offset) for one in sent)


def test_samples_for_the_windows_are_added_up_by_partition():
    log = ordinary_log()
    blocks = report_row(ordinary_pipeline().block_report(ordinary_pipeline().barriers[0], "dn1"))
    reports = frame(report_row(log.report(log.barriers[0])), blocks, blocks | {"value": b"garbage"})
    (found,) = (row for row in Operator(window_ms=10_000).take(log_frame(log), reports) if row.finding == "samples")
    samples = list(decoded_samples(found.log, found.shard, found.value))
    records = [one for one in samples if one.row.metric == "record"]
    assert sum(one.total for one in records) == sum(map(len, log.values))
    assert sum(one.samples for one in records) == len(log.values)
    replicas = [(one.stream.source, one.start_ms, one.total) for one in samples if one.row.metric == "replica"]
    assert replicas == [("reports", 20_000, log.barriers[0].index)]
    assert {(one.stream.source, one.start_ms) for one in samples} == {("log", 10_000), ("reports", 20_000)}
    assert all(row.finding != "samples" for row in Operator().take(log_frame(log), reports)), "if no windows are wanted"


def test_findings_are_the_logs_digest_and_the_replicas_verdicts():
    log = simple()
    at = log.barrier()
    rows = Operator().take(log_frame(log), frame(*(report_row(log.report(at, node)) for node in REPLICAS)))
    (barrier,) = (row for row in rows if row.finding == "barrier")
    assert (barrier.log, barrier.shard, barrier.offset, barrier.index) == (OM_LOG, 0, at.offset, at.index)
    assert barrier.chain == at.chain
    slots, sums = digests.to_sparse(digests.from_bytes(barrier.value))
    assert dict(zip(slots, (one % 2**64 for one in sums), strict=True)) == digest(at.rows)
    assert told(rows) == [(node, "equal", at.offset) for node in REPLICAS]
    assert {(row.log, row.shard, row.offset, row.index, row.chain) for row in rows if row.finding == "verdict"} == {
        (OM_LOG, 0, at.offset, at.index, None)
    }


def test_nothing_found_gives_no_frame_where_nobody_waits():
    log = simple()
    operator = Operator(deadlines=False)
    assert list(operator.started().handleInputRows(operator.key, iter([log_frame(log)]), None)) == []


def test_what_a_micro_batch_leaves_is_there_in_the_next():
    """Reports before, with and after their barriers: the store forgets them when they have been judged."""
    log = simple()
    first = log.barrier()
    operator = Operator()
    assert operator.take(frame(report_row(log.report(first, "om1"), 1), report_row(log.report(first, "om2"), 2))) == []
    assert len(operator.kept("report")) == 2
    assert told(operator.take(log_frame(log))) == [("om1", "equal", first.offset), ("om2", "equal", first.offset)]
    assert not operator.kept("report")
    assert told(operator.take(frame(report_row(log.report(first, "om3"))))) == [("om3", "equal", first.offset)]
    read = len(log.values)
    second = log.barrier()
    assert [row.offset for row in operator.take(log_frame(log, read))] == [second.offset]


def test_missing_reports_are_judged_at_their_deadline():
    log = simple()
    at = log.barrier()
    operator = Operator()
    operator.take(log_frame(log), now_ms=100)
    assert operator.waits_until_ms == 100 + LIMITS.report_timeout_ms
    assert operator.wake(1299) == []
    assert operator.waits_until_ms == 1300, "a clock that is behind is asked again"
    assert told(operator.wake(1300)) == [(node, "unknown", at.offset) for node in REPLICAS]
    assert operator.waits_until_ms == NO_DEADLINE
    assert operator.wake(10**6) == []


def test_missing_reports_are_judged_with_the_rows_of_others():
    """A partition with rows needs no wake-up. Its rows are taken first, then what is missing is judged."""
    log = simple()
    at = log.barrier()
    operator = Operator()
    operator.take(log_frame(log), now_ms=100)
    found = told(operator.take(frame(report_row(log.report(at, "om2"))), now_ms=5000))
    assert found == [("om1", "unknown", at.offset), ("om2", "equal", at.offset), ("om3", "unknown", at.offset)]


def test_a_wake_up_makes_no_state():
    """Whoever may write wake-ups could name partitions that do not exist."""
    operator = Operator()
    assert operator.wake(10**6) == []
    assert operator.waits_until_ms is None
    assert operator.state.maps["kept"].rows == {}


def test_ticks_are_no_news():
    log = simple()
    operator = Operator()
    operator.take(log_frame(log))
    read = len(log.values)
    assert operator.news == read
    log.tick()
    operator.take(log_frame(log, read))
    assert operator.news == 0
    at = log.barrier()
    operator.take(log_frame(log, read + 1), frame(report_row(log.report(at, REPLICAS[0]))))
    assert operator.news == 2
    operator.wake(10**6)
    assert operator.news == 0, "what it says then is a verdict"


def test_a_barrier_at_which_all_have_reported_waits_for_nothing():
    log = simple()
    at = log.barrier()
    operator = Operator()
    operator.take(log_frame(log), now_ms=100)
    waits: list[int | None] = []
    for number, node in enumerate(REPLICAS):
        operator.take(frame(report_row(log.report(at, node), number)), now_ms=200)
        waits.append(operator.waits_until_ms)
    assert waits == [1300, 1300, NO_DEADLINE]
    assert operator.wake(1500) == []
    together = Operator()
    reports = frame(*(report_row(log.report(at, node), number) for number, node in enumerate(REPLICAS)))
    assert len(verdicts(together.take(log_frame(log), reports))) == len(REPLICAS)
    assert together.waits_until_ms == NO_DEADLINE


def test_a_deadline_is_kept_over_a_restart():
    log = simple()
    log.barrier()
    operator = Operator()
    operator.take(log_frame(log), now_ms=100)
    operator.wake(1000)
    assert operator.waits_until_ms == 1300


def test_without_deadlines_nothing_is_due():
    log = simple()
    at = log.barrier()
    operator = Operator(deadlines=False)
    (verdict,) = verdicts(operator.take(log_frame(log), frame(report_row(log.report(at))), now_ms=5))
    assert verdict.decided_at_ms == 5
    assert verdicts(operator.take(frame(report_row(log.report(at, "om2"))), now_ms=10**6))[0].node == "om2"
    assert operator.waits_until_ms is None


def test_the_clock_is_the_machines():
    assert abs(clock_ms() - time.time() * 1000) < 60_000


def test_stored_bytes_are_judged_when_all_members_have_reported():
    log = ordinary_pipeline(shard=3)
    at = log.barriers[-1]
    operator = Operator(DN_LOG, 3)
    operator.take(log_frame(log, name=DN_LOG))
    first, second, third = (report_row(log.block_report(at, node)) for node in MEMBERS)
    assert operator.take(frame(first)) == operator.take(frame(second)) == []
    assert operator.kept("blocks") == [(at.offset, "dn1", ""), (at.offset, "dn2", "")]
    rows = operator.take(frame(third))
    assert [(one.node, one.verdict, one.basis, one.log) for one in verdicts(rows)] == [
        (node, "equal", "replicas:blocks", DN_LOG) for node in MEMBERS
    ]
    assert not operator.kept("blocks")


def test_a_barrier_behind_late_validation_has_no_digest():
    log = simple()
    log.request_batch(requests=2)
    at = log.barrier()
    operator = Operator()
    (barrier,) = operator.take(log_frame(log))
    assert (barrier.finding, barrier.offset, barrier.value, barrier.chain) == ("barrier", at.offset, None, at.chain)
    # It has one when a majority of the replicas has reported the same, and is found again in the next micro-batch.
    reported = [report_row(log.report(at, node), n) for n, node in enumerate(REPLICAS)]
    rows = [row for one in reported for row in operator.take(frame(one))]
    assert {(one.node, one.verdict, one.basis) for one in verdicts(rows)} == {
        (node, "equal", "replicas:incremental") for node in REPLICAS
    }
    assert not operator.kept("report")


def test_kept_barriers_are_dropped_with_their_sums(monkeypatch: pytest.MonkeyPatch):
    log = simple()
    barriers = [log.barrier() for _ in range(5)]
    operator = Operator()
    monkeypatch.setattr(f"{__name__}.LIMITS", MatchingLimits(report_timeout_ms=1000, kept_barriers=2))
    operator.take(log_frame(log))
    assert operator.kept("barrier") == [(at.offset, "", "") for at in barriers[-2:]]


def test_a_broken_log_stays_broken_over_a_restart():
    log = simple()
    log.append_value(b"garbage")
    operator = Operator()
    rows = operator.take(log_frame(log))
    assert {(one.node, one.verdict, one.basis) for one in verdicts(rows)} == {
        (node, "diverged", "log") for node in REPLICAS
    }
    at = log.barrier()
    (verdict,) = verdicts(operator.take(frame(report_row(log.report(at)))))
    assert (verdict.verdict, verdict.basis, verdict.cluster) == ("diverged", "log", CLUSTER)


def test_verdicts_on_the_object_manager_are_readable_by_its_oldest_readers():
    """A verdict on om.log has the form of the first feature level, one on another log needs the last."""
    log = simple()
    at = log.barrier()
    (verdict,) = verdicts(Operator().take(log_frame(log), frame(report_row(log.report(at)))))
    newest, *_, oldest = registry.versions("Verdict")
    assert verdict_value(verdict)[2:10] == oldest.fingerprint
    assert decode_as(Verdict, verdict_value(verdict)) == verdict
    pipeline = Verdict(**({field.name: getattr(verdict, field.name) for field in fields(Verdict)} | {"log": DN_LOG}))
    assert verdict_value(pipeline)[2:10] == newest.fingerprint
    assert decode_as(Verdict, verdict_value(pipeline)).log == DN_LOG
    assert INITIAL < LATEST


def test_a_pipelines_log_has_its_own_column_families():
    log = PipelineLog().start()
    log.batch(log.put_block(5, 1, b"data"))
    log.barrier()
    (barrier,) = Operator(DN_LOG).take(log_frame(log, name=DN_LOG))
    assert len(barrier.value) == 8 * 256 * len(log.families)
