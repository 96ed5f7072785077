"""Spark's verdict on a pipeline of real datanodes: their rows as they report them, and the bytes in their block files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from datanode_processors.blocks.core.digests import container_digest
from schemas.codecs.codec import decode, encode
from schemas.records.datanode import BlockId, BlockReport, ContainerDigest, DeleteBlocks
from schemas.records.log import Barrier
from schemas.records.messages import AuditReport
from schemas.records.packets import CELL_BYTES
from schemas.topics import DN_AUDIT, DN_LOG
from spark_streaming.batch.audit_once import audit_once
from spark_streaming.configuration.audit_config import config_from
from spark_streaming.records.logs import PIPELINES
from stratolog.local.jars import spark_jars
from tests.support.audit.spark import spark
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.datanodes import CLUSTER, Block, Datanodes
from tests.support.local.stack import LocalKafka
from transport.topics.topic_tail import TopicTail
from transport.waiting.deadline import Deadline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def records_of(kafka: LocalKafka, topic: str) -> list[tuple[int, Any]]:
    """Return offset and record of all that lies in the pipeline's partition of a topic."""
    with TopicTail(kafka.bootstrap_servers, topic) as tail:
        messages = [one for some in tail.to_end(Deadline.after_s(30)) for one in some if one.partition() == 0]
    return [(message.offset() or 0, decode(message.value() or b"")) for message in messages]


def reported_barrier(kafka: LocalKafka, index: int, names: Iterable[str]) -> tuple[int, int] | None:
    """Return index and offset of the last barrier at ``index``, None while there is none, or not all of ``names`` have reported it."""
    last = max(
        (
            offset
            for offset, record in records_of(kafka, DN_LOG)
            if isinstance(record, Barrier) and record.index == index
        ),
        default=None,
    )
    reports = [record for _, record in records_of(kafka, DN_AUDIT) if isinstance(record, AuditReport)]
    reported = {report.node for report in reports if report.barrier_offset == last and report.basis == "incremental"}
    return (index, last) if last is not None and reported >= set(names) else None


def report_of(nodes: Datanodes, name: str, lengths: dict[Block, int], at: tuple[int, int]) -> BlockReport:
    """What the block files of a datanode are, read from outside."""
    containers = []
    for container in sorted({block.container_id for block in lengths}):
        blocks = sorted((block for block in lengths if block.container_id == container), key=lambda b: b.local_id)
        stored = [nodes.block_file(name, block).read_bytes()[: lengths[block]] for block in blocks]
        found = [
            (block.local_id, len(data), checksums_of(data, CELL_BYTES))
            for block, data in zip(blocks, stored, strict=True)
        ]
        containers.append(
            ContainerDigest(
                container_id=container, blocks=len(blocks), used_bytes=sum(map(len, stored)),
                digest=container_digest(container, found), unreadable=[],
            )
        )  # fmt: skip
    return BlockReport(
        cluster=CLUSTER, datanode=name, partition=0, index=at[0], log_offset=at[1],
        containers=containers, complete=True, reported_at_ms=0,
    )  # fmt: skip


def turn_over_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.slow
def test_members_and_their_block_files(lease_kafka: Callable[[], LocalKafka], tmp_path: Path):
    kafka = lease_kafka()
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers, "work_dir": str(tmp_path / "audit"),
        "logs": [dataclasses.asdict(PIPELINES)], "jars": [str(jar) for jar in spark_jars()],
        "audit_report_timeout_ms": 60_000,
    }  # fmt: skip
    with Datanodes(tmp_path / "datanodes", kafka, count=3, barrier_interval_ms=200) as nodes:
        nodes.open_pipeline(0)
        lengths: dict[Block, int] = {}
        for number in range(1, 7):
            block = nodes.block(0, number, container=1 + number % 2)
            data = os.urandom(40_000 * number)
            nodes.write(block, data)
            nodes.watch(block, len(data))
            lengths[block] = len(data)
        gone = nodes.block(0, 3, container=2)
        del lengths[gone]
        blocks = [BlockId(container_id=gone.container_id, local_id=gone.local_id)]
        nodes.ask(nodes.wait_leader(0), DeleteBlocks(partition=0, blocks=blocks))
        index = nodes.wait_converged(0)["applied_index"]

        at = nodes.wait("a barrier that all have reported", lambda: reported_barrier(kafka, index, nodes.names))
        # They may have scrubbed since, or would: they would find the damage themselves, repair it, and report that all is well.
        for name in nodes.names:
            nodes.kill(name)
        damaged = max(lengths, key=lambda block: (block.container_id, block.local_id))
        turn_over_a_bit(nodes.block_file("dn3", damaged))
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for name in nodes.names:
            report = report_of(nodes, name, lengths, at)
            producer.produce(DN_AUDIT, encode(report), key=f"0/{name}".encode(), partition=0)
        assert producer.flush(30) == 0
        result = audit_once(spark(), config_from(settings))
    (pipeline,) = result["pipelines"]
    assert pipeline["index"] == index
    assert {one["node"]: one["verdict"] for one in pipeline["replicas"]} == dict.fromkeys(nodes.names, "equal")
    members = {member["node"]: member for member in pipeline["blocks"]["members"]}
    assert {name: member["verdict"] for name, member in members.items()} == {
        "dn1": "equal", "dn2": "equal", "dn3": "diverged",
    }  # fmt: skip
    assert [one["container_id"] for one in members["dn3"]["containers"]] == [damaged.container_id]
    assert not result["ok"]
    assert pipeline["oracle_agrees"]
