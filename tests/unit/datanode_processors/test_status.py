"""What a datanode says of itself: each figure under its own name."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.repair.scrubber import ScrubCounts
from datanode_processors.status import FAMILIES, DatanodeStatus
from datanode_processors.wire.counters import StreamCounts
from schemas.features import LATEST
from schemas.records.datanode import PipelineReport

STREAMS = StreamCounts(
    connections=1, streams=2, streams_opened=3, streams_completed=4, streams_failed=5, streams_reclaimed=6, requests=7,
    packets=8, bytes_in={"a": 9, "b": 10}, bytes_out={"a": 11}, exchanges=38, exchanged_blocks=39,
    exchange_seconds={"store": 4.0, "watch": 0.25},
    exchange_steps={"store": 40, "watch": 41},
)  # fmt: skip
SCRUBBED = ScrubCounts(rounds=1, blocks=2, bytes=3, bad_cells=4, errors=5)


def pipeline_of(partition: int, *, leading: bool, flagged: bool) -> Any:
    replica = SimpleNamespace(
        position=SimpleNamespace(index=21, offset=22, term=23), records_applied=24, records_void=25,
        evidence=object() if flagged else None,
    )  # fmt: skip
    loop = SimpleNamespace(leading=leading, requests=26, batches=27)
    return SimpleNamespace(
        partition=partition, replica=replica, loop=loop, proposals=SimpleNamespace(refused=28), unhealthy={b"k": "why"},
        status=lambda: {"shard": partition},
    )  # fmt: skip


class World:
    """A datanode's status over parts whose figures are all different."""

    def __init__(self, folder: Path) -> None:
        self.config = DatanodeConfig(
            node="dn1", cluster="test", host="h", port=1, http_port=2, bootstrap_servers="", data_dir=folder, rack="/r"
        )
        self.blocks = BlockStore(folder)
        with self.blocks.open_writer(1, 1, 0, 512) as writer:
            writer.write(0, bytes(700))
            writer.flush()
        self.blocks.close_container(2)
        self.reports: list[PipelineReport] = []
        self.damage: list[Any] = []
        self.upkeep = SimpleNamespace(
            named_damage=lambda: self.damage, status=lambda: {"containers": 0}, here=lambda: [5, 6, 7], unhealthy_blocks=lambda: 31
        )  # fmt: skip
        self.pipelines: Any = SimpleNamespace(
            all=lambda: [pipeline_of(3, leading=True, flagged=False), pipeline_of(4, leading=False, flagged=True)],
            reports=lambda: self.reports, upkeep=self.upkeep, installs=SimpleNamespace(status=lambda: [{"shard": 9}]),
            forwarded=32, fetched_bytes=33,
        )  # fmt: skip
        self.transfers: Any = SimpleNamespace(open_transfers=34, served_bytes=35)

    def made(self, tokens: Any = None) -> DatanodeStatus:
        return DatanodeStatus(
            self.config, self.blocks, self.pipelines, lambda: STREAMS, lambda: 36, lambda: True, self.transfers,
            lambda: SCRUBBED, tokens,
        )  # fmt: skip

    def metrics(self, tokens: Any = None) -> dict[str, float]:
        """Return the datanode's own figures by name and labels."""
        lines = [line for line in self.made(tokens).metrics().splitlines() if line.startswith("stratolog_datanode_")]
        return {name: float(figure) for name, _, figure in (line.rpartition(" ") for line in lines)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_metric_of_a_pipeline_is_its_own_figure(world: World) -> None:
    found = world.metrics()
    expected = {
        "applied_index": (21, 21), "applied_offset": (22, 22), "term": (23, 23), "leading": (1, 0),
        "records_applied_total": (24, 24), "records_void_total": (25, 25), "flagged": (0, 1), "unhealthy_blocks": (1, 1),
        "leader_requests_total": (26, 26), "leader_batches_total": (27, 27), "refused_overloaded_total": (28, 28),
    }  # fmt: skip
    for name, figures in expected.items():
        for partition, figure in zip((3, 4), figures, strict=True):
            labels = f'{{datanode="dn1",partition="{partition}"}}'
            assert found[f"stratolog_datanode_{name}{labels}"] == figure, name


def test_each_metric_of_the_datanode_is_its_own_figure(world: World) -> None:
    found = world.metrics(SimpleNamespace(refused=37))
    expected = {
        "connections": 1, "streams": 2, "streams_opened_total": 3, "streams_completed_total": 4,
        "streams_failed_total": 5, "streams_reclaimed_total": 6, "requests_total": 7, "packets_total": 8,
        "exchanges_total": 38, "exchanged_blocks_total": 39,
        "block_tokens_refused_total": 37, "forwarded_requests_total": 32, "fetched_bytes_total": 33, "installing": 1,
        "checkpoint_bytes_sent_total": 35, "copies": 3, "unhealthy_copy_blocks": 31,
        "file_fsyncs_total": world.blocks.fsyncs.files, "used_bytes": 700,
    }  # fmt: skip
    for name, figure in expected.items():
        assert found[f'stratolog_datanode_{name}{{datanode="dn1"}}'] == figure, name
    assert found['stratolog_datanode_free_bytes{datanode="dn1"}'] > 0
    assert world.metrics()['stratolog_datanode_block_tokens_refused_total{datanode="dn1"}'] == 0
    labelled = {
        'bytes_in_total{datanode="dn1",peer="a"}': 9, 'bytes_in_total{datanode="dn1",peer="b"}': 10,
        'bytes_out_total{datanode="dn1",peer="a"}': 11,
        'exchange_seconds_total{datanode="dn1",step="store"}': 4.0,
        'exchange_seconds_total{datanode="dn1",step="watch"}': 0.25,
        'exchange_steps_total{datanode="dn1",step="store"}': 40,
        'exchange_steps_total{datanode="dn1",step="watch"}': 41,
    }  # fmt: skip
    for name, value in labelled.items():
        assert found[f"stratolog_datanode_{name}"] == value


def test_every_metric_is_described_and_none_besides(world: World) -> None:
    text = world.made().metrics()
    told = {tuple(line.split(" ")[2:4]) for line in text.splitlines() if line.startswith("# TYPE stratolog_datanode_")}
    assert told == {(name, kind) for name, kind, _, _ in FAMILIES}
    for name, _, words, _ in FAMILIES:
        assert f"# HELP {name} {words}" in text


def test_the_status_tells_the_datanode_its_parts_and_its_store(world: World) -> None:
    found = world.made().status()
    store = found.pop("store")
    assert found == {
        "datanode": "dn1", "cluster": "test", "address": "h:1", "http_address": "h:2", "rack": "/r", "pid": os.getpid(),
        "upgrade_prepared": True, "known_feature_level": LATEST, "pipelines": [
            {"shard": 3, "rolling_scrub": None}, {"shard": 4, "rolling_scrub": None},
        ],
        "installing": [{"shard": 9}], "transfers": {"open": 34, "served_bytes": 35}, "copies": {"containers": 0},
        "scrub": asdict(SCRUBBED),
        "streams": {
            "connections": 1, "active": 2, "opened": 3, "completed": 4, "failed": 5, "reclaimed": 6, "requests": 7,
            "packets": 8, "bytes_in": {"a": 9, "b": 10}, "bytes_out": {"a": 11}, "exchanges": 38, "exchanged_blocks": 39,
        },
        "block_tokens": {"demanded": False}, "forwarded_requests": 32, "heartbeats": 36,
    }  # fmt: skip
    assert 0 < store.pop("free_bytes") <= store.pop("capacity_bytes")
    assert store == {
        "fsync": "close", "used_bytes": 700, "containers": 2, "closed_containers": 1, "blocks": 1,
        "file_fsyncs": world.blocks.fsyncs.files, "directory_fsyncs": world.blocks.fsyncs.directories,
        "fetched_bytes": 33,
    }  # fmt: skip
    guard = SimpleNamespace(status=lambda: {"demanded": True})
    assert world.made(guard).status()["block_tokens"] == {"demanded": True}


def report(partition: int, fault: str) -> PipelineReport:
    return PipelineReport(
        partition=partition, generation=1, leading=False, applied_index=0, healthy=not fault, fault=fault
    )  # fmt: skip


def test_health_names_what_is_not_healthy_and_nothing_else(world: World) -> None:
    world.reports = [report(3, "")]
    assert world.made().health() == (200, {"status": "ok"})
    world.reports.append(report(4, "divergence"))
    assert world.made().health() == (503, {"status": "unhealthy", "pipelines": {"4": "divergence"}, "copies": []})
    world.reports, world.damage = [report(3, "")], [{"container": 7}]
    assert world.made().health() == (503, {"status": "unhealthy", "pipelines": {}, "copies": [{"container": 7}]})
