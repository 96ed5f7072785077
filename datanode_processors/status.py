"""What a datanode says of itself: health, status, and metrics in Prometheus' text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from prometheus_client.core import Metric

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.pipeline.pipeline import Pipeline
from datanode_processors.pipelines import Pipelines
from datanode_processors.repair.scrubber import ScrubCounts
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.wire.counters import StreamCounts
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from schemas.features import LATEST
from transport.web.metrics import Metrics, family

Json = dict[str, Any]

_PIPELINE_METRICS: tuple[tuple[str, str, str, Callable[[Pipeline], float]], ...] = (
    ("applied_index", "gauge", "Managed index applied.", lambda p: p.replica.position.index),
    ("applied_offset", "gauge", "Offset of the last record that took effect.", lambda p: p.replica.position.offset),
    ("term", "gauge", "Current term.", lambda p: p.replica.position.term),
    ("leading", "gauge", "1 if this datanode leads the pipeline.", lambda p: int(p.loop.leading)),
    ("records_applied_total", "counter", "Records that took effect since start.", lambda p: p.replica.records_applied),
    ("records_void_total", "counter", "Void records read since start.", lambda p: p.replica.records_void),
    ("flagged", "gauge", "1 if the replica has found a divergence.", lambda p: int(p.replica.evidence is not None)),
    (
        "unhealthy_blocks",
        "gauge",
        "Blocks whose committed bytes are missing or wrong here.",
        lambda p: len(p.unhealthy),
    ),
    ("leader_requests_total", "counter", "Requests executed as leader.", lambda p: p.loop.requests),
    ("leader_batches_total", "counter", "Batches made effective as leader.", lambda p: p.loop.batches),
    ("refused_overloaded_total", "counter", "Requests refused with OVERLOADED.", lambda p: p.proposals.refused),
)


class DatanodeStatus:
    """Reads the figures of the other parts; changes nothing."""

    def __init__(
        self, config: DatanodeConfig, blocks: BlockStore, pipelines: Pipelines, streams: Callable[[], StreamCounts],
        heartbeats: Callable[[], int], prepared: Callable[[], bool], transfers: TransferDesk,
        scrubbed: Callable[[], ScrubCounts], block_tokens: BlockTokenGuard | None = None,
        rolling_scrub: Callable[[int], Json | None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``rolling_scrub`` says of a partition what the scan of its rows knows."""
        self._config = config
        self._blocks = blocks
        self._pipelines = pipelines
        self._streams = streams
        self._heartbeats = heartbeats
        self._prepared = prepared
        self._transfers = transfers
        self._scrubbed = scrubbed
        self._block_tokens = block_tokens
        self._rolling_scrub = rolling_scrub
        self._metrics = Metrics(self._families)

    def health(self) -> tuple[int, Json]:
        """Return 200 if every pipeline and every copy here is healthy, else 503 with the ones that are not."""
        reports = self._pipelines.reports()
        faults = {str(report.partition): report.fault for report in reports if not report.healthy}
        damaged = self._pipelines.upkeep.named_damage()
        if not faults and not damaged:
            return 200, {"status": "ok"}
        return 503, {"status": "unhealthy", "pipelines": faults, "copies": damaged}

    def status(self) -> Json:
        """Return the datanode, its pipelines, its copies, its streams and its store."""
        config, containers, streams = self._config, self._blocks.containers(), self._streams()
        return {
            "datanode": config.node, "cluster": config.cluster, "address": config.address,
            "http_address": config.http_address, "rack": config.rack, "pid": os.getpid(),
            "upgrade_prepared": self._prepared(), "known_feature_level": LATEST,
            "pipelines": [
                {**pipeline.status(), "rolling_scrub": self._rolling_scrub(pipeline.partition)}
                for pipeline in self._pipelines.all()
            ],
            "installing": self._pipelines.installs.status(),
            "transfers": {"open": self._transfers.open_transfers, "served_bytes": self._transfers.served_bytes},
            "copies": self._pipelines.upkeep.status(), "scrub": asdict(self._scrubbed()),
            "streams": {
                "connections": streams.connections, "active": streams.streams, "opened": streams.streams_opened,
                "completed": streams.streams_completed, "failed": streams.streams_failed,
                "reclaimed": streams.streams_reclaimed, "requests": streams.requests, "packets": streams.packets,
                "bytes_in": streams.bytes_in, "bytes_out": streams.bytes_out,
                "exchanges": streams.exchanges, "exchanged_blocks": streams.exchanged_blocks,
            },
            "store": {
                "fsync": self._blocks.fsync, "capacity_bytes": self._blocks.capacity_bytes(),
                "free_bytes": self._blocks.free_bytes(), "used_bytes": sum(one.used_bytes for one in containers),
                "containers": len(containers), "closed_containers": sum(one.closed for one in containers),
                "blocks": sum(one.blocks for one in containers), "file_fsyncs": self._blocks.fsyncs.files,
                "directory_fsyncs": self._blocks.fsyncs.directories,
                "fetched_bytes": self._pipelines.fetched_bytes,
            },
            "block_tokens": {"demanded": False} if self._block_tokens is None else self._block_tokens.status(),
            "forwarded_requests": self._pipelines.forwarded, "heartbeats": self._heartbeats(),
        }  # fmt: skip

    def metrics(self) -> str:
        """Return the metrics as Prometheus' text, with those of the process."""
        return self._metrics.text()

    def _families(self) -> Iterable[Metric]:
        node = {"datanode": self._config.node}
        pipelines = self._pipelines.all()
        for name, kind, text, value in _PIPELINE_METRICS:
            samples = [({**node, "partition": str(pipeline.partition)}, value(pipeline)) for pipeline in pipelines]
            yield family(f"stratolog_datanode_{name}", kind, text, samples)
        streams = self._streams()
        for name, kind, text, of_node in _NODE_METRICS:
            yield family(f"stratolog_datanode_{name}", kind, text, [(node, of_node(self, streams))])
        steps = [({**node, "step": step}, spent_s) for step, spent_s in streams.exchange_seconds.items()]
        yield family(*_EXCHANGE_SECONDS, steps)
        counted = [({**node, "step": step}, times) for step, times in streams.exchange_steps.items()]
        yield family(*_EXCHANGE_STEPS, counted)
        for name, text, by_peer in _PEER_METRICS:
            samples = [({**node, "peer": peer}, figure) for peer, figure in by_peer(streams).items()]
            yield family(f"stratolog_datanode_{name}", "counter", text, samples)


_NODE_METRICS: tuple[tuple[str, str, str, Callable[[DatanodeStatus, StreamCounts], float]], ...] = (
    ("connections", "gauge", "Connections now.", lambda _, s: s.connections),
    ("streams", "gauge", "Streams now.", lambda _, s: s.streams),
    ("streams_opened_total", "counter", "Streams opened.", lambda _, s: s.streams_opened),
    ("streams_completed_total", "counter", "Streams that ended well.", lambda _, s: s.streams_completed),
    ("streams_failed_total", "counter", "Streams that failed.", lambda _, s: s.streams_failed),
    ("streams_reclaimed_total", "counter", "Streams whose client vanished.", lambda _, s: s.streams_reclaimed),
    ("requests_total", "counter", "Requests answered.", lambda _, s: s.requests),
    ("packets_total", "counter", "Packets taken.", lambda _, s: s.packets),
    ("exchanges_total", "counter", "Exchanges of small blocks.", lambda _, s: s.exchanges),
    ("exchanged_blocks_total", "counter", "Blocks in exchanges of small blocks.", lambda _, s: s.exchanged_blocks),
    (
        "block_tokens_refused_total", "counter", "Requests refused for want of a block token that allows them.",
        lambda d, _: 0 if d._block_tokens is None else d._block_tokens.refused,
    ),
    ("forwarded_requests_total", "counter", "Requests sent on to a leader.", lambda d, _: d._pipelines.forwarded),
    ("fetched_bytes_total", "counter", "Bytes fetched from peers.", lambda d, _: d._pipelines.fetched_bytes),
    (
        "installing", "gauge", "Pipelines that wait for a checkpoint.",
        lambda d, _: len(d._pipelines.installs.status()),
    ),
    (
        "checkpoint_bytes_sent_total", "counter", "Bytes of checkpoints sent.",
        lambda d, _: d._transfers.served_bytes,
    ),
    (
        "copies", "gauge", "Containers of pipelines that the datanode is no member of.",
        lambda d, _: len(d._pipelines.upkeep.here()),
    ),
    (
        "unhealthy_copy_blocks", "gauge", "Blocks of copies that are damaged here.",
        lambda d, _: d._pipelines.upkeep.unhealthy_blocks(),
    ),
    ("file_fsyncs_total", "counter", "fsyncs of block files.", lambda d, _: d._blocks.fsyncs.files),
    ("used_bytes", "gauge", "Bytes of all block files.", lambda d, _: d._blocks.used_bytes()),
    ("free_bytes", "gauge", "Bytes that may be written.", lambda d, _: d._blocks.free_bytes()),
)  # fmt: skip

_EXCHANGE_SECONDS = (
    "stratolog_datanode_exchange_seconds_total", "counter",
    "Seconds that exchanges of small blocks took: store here, wait for those below, commit, watch.",
)  # fmt: skip
_EXCHANGE_STEPS = (
    "stratolog_datanode_exchange_steps_total", "counter", "Exchanges of small blocks that had this step.",
)  # fmt: skip
_PEER_METRICS: tuple[tuple[str, str, Callable[[StreamCounts], dict[str, int]]], ...] = (
    ("bytes_in_total", "Bytes received, by peer.", lambda s: s.bytes_in),
    ("bytes_out_total", "Bytes sent, by peer.", lambda s: s.bytes_out),
)

FAMILIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    *(
        (f"stratolog_datanode_{name}", kind, text, ("datanode", "partition"))
        for name, kind, text, _ in _PIPELINE_METRICS
    ),
    *((f"stratolog_datanode_{name}", kind, text, ("datanode",)) for name, kind, text, _ in _NODE_METRICS),
    *((f"stratolog_datanode_{name}", "counter", text, ("datanode", "peer")) for name, text, _ in _PEER_METRICS),
    *((*metric, ("datanode", "step")) for metric in (_EXCHANGE_SECONDS, _EXCHANGE_STEPS)),
)
"""Name, kind, meaning and labels of each metric of a datanode."""
