"""The audit on a real broker: verdicts of the stream and of the batch job, however many partitions, through a kill."""

from __future__ import annotations

import dataclasses
import json
import runpy
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from rich.console import Console

from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import decode
from schemas.features import LATEST
from schemas.records.log import Batch, Checkpoint, Delete, Merge, Put
from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.batch.audit_once import audit_once
from spark_streaming.configuration.audit_config import config_from
from spark_streaming.dashboard import follow
from spark_streaming.jobs.audit_stream import Reporter
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.wake_ups import WakeUps
from spark_streaming.verdicts.query import start
from spark_streaming.verdicts.sinks import FindingSink
from spark_streaming.windows.core.reading_windows import LatestWindows, rows_of
from tests.support.audit.running_audit import LAST_WORDS, ROOT, Job, Topics
from tests.support.audit.spark import spark
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import REPLICAS, At, ordinary_log, total_hex
from tests.support.logs.pipelinelog import MEMBERS, PipelineLog, ordinary_pipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(kafka_broker: LocalKafka, tmp_path: Path) -> Callable[..., Topics]:
    return lambda shards, pipelines=0: Topics(kafka_broker, tmp_path, shards, pipelines)


def by_replica(result: dict[str, Any], shard: int, kind: str = "shards") -> dict[str, tuple[str, str]]:
    return {r["node"]: (r["verdict"], r["basis"]) for r in result[kind][shard]["replicas"]}


def send_pipelines(sent: Topics) -> list[PipelineLog]:
    """Partitions of dn.log, each with its own story; those between are never written to."""
    healthy, wrong, silent = (ordinary_pipeline(shard) for shard in (0, 3, 6))
    last = healthy.barriers[-1]
    sent.send(healthy, [*healthy.all_reports(), *(healthy.block_report(last, node) for node in MEMBERS)])
    # One member's row, and one bit of another's block.
    last = wrong.barriers[-1]
    rows = {**last.rows, ("blockTable", b"forged"): b"x"}
    reports = [wrong.report(last, "dn1"), wrong.report(last, "dn2", rows=rows), wrong.report(last, "dn3")]
    block, data = max(wrong.disk.items())
    disk = {**wrong.disk, block: bytes([data[0] ^ 1]) + data[1:]}
    scans = [wrong.block_report(last, "dn1"), wrong.block_report(last, "dn2"), wrong.block_report(last, "dn3", disk)]
    sent.send(wrong, [*reports, *scans])
    sent.send(silent, [*silent.all_reports(("dn1", "dn3")), silent.block_report(silent.barriers[-1], "dn3")])
    return [healthy, wrong, silent]


def check_pipelines(result: dict[str, Any], logs: list[PipelineLog]) -> None:
    assert [(p["shard"], p["broken"], p["oracle_agrees"]) for p in result["pipelines"]] == [
        (log.shard, None, True) for log in logs
    ]
    assert by_replica(result, 0, "pipelines") == dict.fromkeys(MEMBERS, ("equal", "scrubbed"))
    # Of this one nobody has reported a scrub of its rows: the worst counts.
    assert {node: said for node, (said, _) in by_replica(result, 1, "pipelines").items()} == {
        "dn1": "equal", "dn2": "diverged", "dn3": "equal",
    }  # fmt: skip
    assert by_replica(result, 2, "pipelines")["dn2"][0] == "unknown"
    blocks = [{m["node"]: m["verdict"] for m in p["blocks"]["members"]} for p in result["pipelines"]]
    assert blocks == [
        dict.fromkeys(MEMBERS, "equal"),
        {"dn1": "equal", "dn2": "equal", "dn3": "diverged"},
        {"dn1": "unknown", "dn2": "unknown", "dn3": "equal"},
    ]
    (container,) = result["pipelines"][1]["blocks"]["members"][2]["containers"]
    assert container["blocks"] == [block_key(*max(logs[1].disk)).hex()]
    for found, log in zip(result["pipelines"], logs, strict=True):
        at = log.barriers[-1]
        assert found["oracle_digest"] == found["log_digest"] == total_hex(at.rows, log.families)
        assert (found["blocks"]["log_offset"], found["blocks"]["index"]) == (at.offset, at.index)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("beside", [(), pytest.param((1,), marks=pytest.mark.slow)])
def test_audit_at_once(topics: Callable[..., Topics], beside: Sequence[int]):
    """Eight shards and three pipelines, each with its own story, with 4 shuffle partitions; the same result with 1 (slow).

    (With 1 the running audit below comes to what it must be each time.)
    """
    sent = topics(8, 7)
    pipelines = send_pipelines(sent)
    logs = [ordinary_log(shard, shards=8) for shard in range(8)]
    true, silent, wrong, false, broken, healed, late, based = logs
    sent.send(true, true.all_reports())
    sent.send(silent, silent.all_reports(("om1", "om2")))
    rows = wrong.barriers[-1].rows | {("keyTable", b"/vol/b/forged"): b"x"}
    sent.send(wrong, [wrong.report(wrong.barriers[-1], node, rows=rows) for node in REPLICAS])
    false.batch(dataclasses.replace(false.put("keyTable", b"/v/b/k", b"3"), prev=12345))
    false.barrier()
    sent.send(false, [*false.all_reports(), false.evidence_report("om2", "keyTable", b"/v/b/k")])
    last = broken.barriers[-1]
    broken.append_value(b"not a record of the log")
    sent.send(broken, broken.all_reports())
    healed.batch(dataclasses.replace(healed.put("keyTable", b"/v/b/k", b"3"), prev=12345))
    healed.barrier()
    healed.digest_base()
    healed.batch(healed.put("keyTable", b"/v/b/k", b"4"))
    healed.barrier()
    sent.send(healed, healed.all_reports())
    late.mode()
    late.request_batch(late.put("keyTable", b"/v/b/late", b"1"), requests=3)
    at = late.barrier()
    rows = late.rows | {("keyTable", b"/v/b/late"): b"of other software"}
    sent.send(late, [late.report(at, "om1"), late.report(at, "om2", rows=rows), late.report(at, "om3")])
    based.request_batch(based.put("keyTable", b"/v/b/late", b"1"))
    based.digest_base()
    based.batch(based.put("keyTable", b"/v/b/late", b"2"))
    based.barrier()
    sent.send(based, based.all_reports())

    # Replicas that never report are waited for in further passes.
    result = audit_once(spark(), config_from(sent.settings(shuffle_partitions=4)))
    for partitions in beside:
        config = config_from(sent.settings(shuffle_partitions=partitions, audit_report_timeout_ms=1))
        assert audit_once(spark(), config) == result
    assert not result["ok"]
    assert by_replica(result, 0) == dict.fromkeys(REPLICAS, ("equal", "scrubbed"))
    assert by_replica(result, 1) == {
        "om1": ("equal", "scrubbed"),
        "om2": ("equal", "scrubbed"),
        "om3": ("unknown", "incremental"),
    }
    assert by_replica(result, 2) == dict.fromkeys(REPLICAS, ("diverged", "incremental"))
    assert {r["differences"][0]["cf"] for r in result["shards"][2]["replicas"]} == {"keyTable"}
    assert by_replica(result, 3) == dict.fromkeys(REPLICAS, ("diverged", "incremental"))
    assert by_replica(result, 4) == dict.fromkeys(REPLICAS, ("diverged", "log"))
    assert by_replica(result, 5) == dict.fromkeys(REPLICAS, ("equal", "incremental"))
    alone = "replicas:incremental"
    assert by_replica(result, 6) == {"om1": ("equal", alone), "om2": ("diverged", alone), "om3": ("equal", alone)}
    assert by_replica(result, 7) == dict.fromkeys(REPLICAS, ("equal", "incremental"))
    assert [s["oracle_agrees"] for s in result["shards"]] == [True, True, True, False, True, True, None, None]
    assert [s["late"] for s in result["shards"]] == [False] * 6 + [True] * 2
    assert result["shards"][4]["broken"].startswith(f"offset {last.offset + 1}: ")
    for shard, log in enumerate(logs):
        found, true_at = result["shards"][shard], log.barriers[-1]
        assert (found["barrier_offset"], found["index"]) == (true_at.offset, true_at.index)
        assert found["oracle_digest"] == (None if found["late"] else total_hex(true_at.rows))
        assert found["log_chain"] == true_at.chain.hex()
        assert found["false_counters"] == []
        assert (found["log_digest"] == total_hex(true_at.rows)) == (shard not in (3, 6))
    assert result["shards"][6]["log_digest"] is None
    check_pipelines(result, pipelines)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Job]]:
    started: list[Job] = []

    def start(settings: dict[str, Any]) -> Job:
        started.append(Job(settings, tmp_path))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.end(signal.SIGKILL)
        job.output.close()


def last_said(verdicts: list[Verdict], log: str = OM_LOG) -> dict[tuple[int, int, str, str], str]:
    return {(v.shard, v.barrier_offset, v.node, v.basis): v.verdict for v in verdicts if v.log == log}


def records_in(latest: LatestWindows) -> dict[tuple[str, int], Counter[str]]:
    """Records of each partition by their type, as the windows count them."""
    found: dict[tuple[str, int], Counter[str]] = {}
    for one in latest.windows.values():
        for row in rows_of(one, "record"):
            found.setdefault((one.log, one.shard), Counter())[row.kind] += row.count
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_micro_batch_that_newer_software_wrote_is_run_again_by_the_next_start(topics: Callable[..., Topics]):
    """An older auditor took it as read: ``diverged`` for all, and for good."""
    sent = topics(1)
    log = ordinary_log()
    log.feature_level(LATEST + 1)
    sent.send(log, ())
    config = config_from(sent.settings(shuffle_partitions=1))
    seen: list[list[tuple[str, str, str]]] = []
    for _ in range(2):
        health = JobHealth(config.health_file)
        reporter = Reporter(health, WakeUps([], 0.0))
        sink = FindingSink(
            bootstrap_servers=sent.servers, topic=sent.verdicts, output_dir=None, on_written=reporter.on_written
        )
        with pytest.raises(StreamingQueryException):
            start(spark(), config, sink, once=True).awaitTermination()
        assert f"feature level {LATEST + 1}" in (reporter.too_old or "")
        written = json.loads(config.health_file.read_text())["verdicts"].values()
        said = [(v["node"], v["verdict"], v["basis"]) for v in written]
        seen.append(sorted(one for one in said if one[2] == "log"))
    assert seen == [[(node, "unknown", "log") for node in REPLICAS]] * 2
    assert {v.verdict for v in sent.read_verdicts()} == {"unknown"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_running_audit_goes_on_after_a_kill(topics: Callable[..., Topics], jobs: Callable[[dict[str, Any]], Job]):
    """Two shards and a pipeline; the driver is killed between their halves; one replica falls silent in the second half.

    The datanodes' log is made while the audit runs. Reports that the audit has not read are gone when it starts again.
    """
    sent = topics(2)
    pipeline = ordinary_pipeline(33)
    scanned = pipeline.barriers[-1]
    logs = [ordinary_log(shard, shards=2) for shard in range(2)]
    for log in logs:
        sent.send(log, log.all_reports())
    first = {log.shard: log.barriers[-1] for log in logs}

    def reached(log: str, at: dict[int, At], *said: tuple[str, str, str]) -> Callable[[dict[str, Any]], bool]:
        """Whether the last word at each barrier is so: (node, basis, verdict).

        On a busy machine a report may be ``unknown`` for a while, because it has not been read in time.
        """
        wanted = {(shard, at[shard].offset, *one) for shard in at for one in said}
        names = ("shard", "barrier_offset", "node", "basis", "verdict")
        return lambda health: (
            wanted <= {tuple(v[name] for name in names) for v in health["verdicts"].values() if v["log"] == log}
        )

    job = jobs(sent.settings(shuffle_partitions=1, audit_window_s=1, audit_windows_trigger_ms=1000))
    healthy = [(node, basis, "equal") for node in REPLICAS for basis in ("incremental", "scrubbed")]
    job.wait_for(reached(OM_LOG, first, *healthy))
    sent.create_log(DN_LOG, 40)
    sent.send(pipeline, [*pipeline.all_reports(), pipeline.block_report(scanned, "dn1")])
    job.wait_for(reached(DN_LOG, {33: scanned}, *((node, "scrubbed", "equal") for node in MEMBERS)))
    job.end(signal.SIGKILL)
    sent.lose_reports(OM_LOG, 0)

    wrong: dict[int, Any] = {}
    for log in logs:
        log.batch(log.put("keyTable", b"/vol/b/more", b"m"), log.merge(b"/vol/b/#usedBytes", 9))
        middle, last = log.barrier(), log.barrier()
        wrong[log.shard] = (middle, last)
        rows = {**last.rows, ("keyTable", b"/vol/b/more"): b"n"}
        # The reports go first, so that most of them wait in the state for their barriers.
        reports = [log.report(middle, node) for node in REPLICAS]
        sent.send(log, [*reports, log.report(last, "om1"), log.report(last, "om2", rows=rows)])
    # The first member's report of its blocks has waited in the state; one of the others has lost a block.
    disk = {block: data for block, data in pipeline.disk.items() if block != max(pipeline.disk)}
    sent.send(pipeline, [pipeline.block_report(scanned, "dn2"), pipeline.block_report(scanned, "dn3", disk)])
    job = jobs(sent.settings(shuffle_partitions=1, audit_window_s=1, audit_windows_trigger_ms=1000))
    last_words = [(node, "incremental", said) for node, said in zip(REPLICAS, LAST_WORDS, strict=True)]
    job.wait_for(reached(OM_LOG, {shard: last for shard, (_, last) in wrong.items()}, *last_words))
    job.wait_for(reached(DN_LOG, {33: scanned}, ("dn3", "replicas:blocks", "diverged")))
    appended = {
        ((DN_LOG if isinstance(log, PipelineLog) else OM_LOG), log.shard): Counter(
            type(decode(value)).__name__ for value in log.values
        )
        for log in (*logs, pipeline)
    }
    job.wait_for(lambda health: records_in(sent.read_windows()) == appended)
    assert job.end(signal.SIGTERM) == 0
    assert job.health()["status"] == "stopped"
    assert "Traceback" not in Path(job.output.name).read_text(), "a stop interrupts no micro-batch"
    assert {one.late for one in sent.read_windows().windows.values()} == {0}

    latest = follow(
        sent.servers,
        topic=sent.verdicts,
        console=Console(file=StringIO()),
        until=lambda seen: len({(v.shard, v.node) for v in seen if v.log == OM_LOG}) == 6,
    )
    assert {(v.shard, v.node) for v in latest if v.log == OM_LOG} == {
        (shard, node) for shard in range(2) for node in REPLICAS
    }
    verdicts = sent.read_verdicts()
    said = last_said(verdicts)
    of_pipeline = last_said(verdicts, DN_LOG)
    blocks = {node: of_pipeline.pop((33, scanned.offset, node, "replicas:blocks")) for node in MEMBERS}
    assert blocks == {"dn1": "equal", "dn2": "equal", "dn3": "diverged"}
    assert of_pipeline == {
        (33, at.offset, node, basis): "equal"
        for at in pipeline.barriers
        for node in MEMBERS
        for basis in (("incremental", "scrubbed") if at.scrub else ("incremental",))
    }
    expected: dict[tuple[int, int, str, str], str] = {}
    for log in logs:
        middle, last = wrong[log.shard]
        for at in log.barriers[:-1]:
            for node in REPLICAS:
                for basis in ("incremental", "scrubbed") if at.scrub else ("incremental",):
                    expected[log.shard, at.offset, node, basis] = "equal"
        for node, verdict in zip(REPLICAS, LAST_WORDS, strict=True):
            expected[log.shard, last.offset, node, "incremental"] = verdict
    assert said == expected
    parquet = spark().read.parquet(str(job.config.output_dir / "verdicts"))
    of_shards = parquet.where("log = 'om.log'")
    # Spark reads files in any order; of a replica that was ``unknown`` for a while the last word counts.
    fields = of_shards.select("shard", "barrier_offset", "node", "basis", "verdict", "decided_at_ms").collect()
    fields.sort(key=lambda row: row.decided_at_ms)
    assert {tuple(row)[:4]: row.verdict for row in fields} == expected
    differing = of_shards.where("verdict = 'diverged'").select("differences", "differing_slots").collect()
    assert [(row.differences[0].cf, row.differing_slots) for row in differing] == [("keyTable", 1)] * 2
    digests = spark().read.parquet(str(job.config.output_dir / "barriers")).collect()
    assert {(row.shard, row.offset): row.digest for row in digests} == {
        (log.shard, at.offset): total_hex(at.rows, log.families) for log in (*logs, pipeline) for at in log.barriers
    }


@pytest.mark.parametrize("module", ["audit_stream", "audit_batch"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "missing settings"),
        ("[]", "not a JSON object"),
        ("{", "Expecting"),
        ('{"jar": 1}', "unknown settings: jar"),
        ('{"bootstrap_servers": "x", "work_dir": "x", "logs": []}', "at least one log"),
        ('{"bootstrap_servers": "x", "work_dir": "x", "logs": [{"name": "x"}]}', "is no log"),
    ],
)
def test_wrong_configuration_is_refused(tmp_path: Path, module: str, text: str, reason: str):
    from importlib import import_module

    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        import_module(f"spark_streaming.jobs.{module}").load_config(path)
    assert import_module(f"spark_streaming.jobs.{module}").main(["--config", str(path)]) == 2


def test_the_example_of_sql_over_the_log_runs(topics: Callable[..., Topics]) -> None:
    """In this process, for its session is the one that all these tests share."""
    example = runpy.run_path(str(ROOT / "examples" / "inside" / "sql_over_the_log.py"))
    kafka, log = topics(1), ordinary_log()
    kafka.send(log, ())
    example["log_view"](spark(), kafka.servers, kafka.logs[OM_LOG].topic)
    batches = [record for value in log.values if isinstance(record := decode(value), Batch)]
    (found,) = spark().sql(example["BATCHES"]).collect()
    results, last = sum(len(batch.results) for batch in batches), max(batch.last_index for batch in batches)
    assert (found.shard, found.batches, found.requests, found.last_index) == (0, len(batches), results, last)
    counted = Counter(
        (op.cf, type(op)) for batch in batches for op in batch.operations if not isinstance(op, Checkpoint)
    )
    assert {
        (row.family, kind): count
        for row in spark().sql(example["OPERATIONS"]).collect()
        for kind, count in ((Put, row.puts), (Delete, row.deletes), (Merge, row.merges))
        if count
    } == counted
