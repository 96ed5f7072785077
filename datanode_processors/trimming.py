"""Trimming of ``dn.log``: each pipeline's leader trims its partition, by the rules of every log (``replicated_db``).

A base is a request of the leader to itself. Members are asked at the addresses that the Object Manager named last.
"""

from __future__ import annotations

from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import LogPipelineBase
from datanode_processors.pipelines import Pipelines
from replicated_db.core.ports import Clock
from replicated_db.shell.trimming.log_trimmer import Addresses, Holds, LogTrimmer
from replicated_db.shell.trimming.log_trimming import LogTrimming
from schemas.topics import DN_LOG


def pipeline_trimming(
    config: DatanodeConfig, topic_id: str, pipelines: Pipelines, clock: Clock, holds: Holds
) -> LogTrimming:  # fmt: skip
    """Return the trimming of the pipelines that a datanode leads."""

    def ask_base(partition: int, _index: int) -> str:
        try:
            pipelines.table.member(partition).proposals.submit(LogPipelineBase(partition))
        except BlockError as error:
            return error.message
        return ""

    def addresses(partition: int) -> Addresses:
        members = pipelines.table.member(partition).opened.members
        return {one.datanode: one.http_address for one in members if one.http_address}

    trimmer = LogTrimmer(
        config.bootstrap_servers, DN_LOG, DN_LOG, cluster=config.cluster, topic_id=topic_id, secret=config.secret, tls=config.tls,
        clock=clock,
    )  # fmt: skip
    return LogTrimming(trimmer, pipelines.loops, ask_base, addresses, holds)
