"""Trimming of ``dn.log``: each pipeline's leader trims its partition, by the rules of every log (``replicated_db``).

A base is a request of the leader to itself. Members are asked at the addresses that the Object Manager named last.
"""

from __future__ import annotations

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import LogPipelineBase
from datanode_processors.pipeline.pipeline_table import PipelineTable
from replicated_db.shell.database.host import DatabaseHost
from replicated_db.shell.trimming.log_trimmer import Addresses
from replicated_db.shell.trimming.log_trimming import LogTrimming


def pipeline_trimming(host: DatabaseHost, pipelines: PipelineTable) -> LogTrimming:
    """Have the pipelines trimmed that a datanode leads."""

    def ask_base(partition: int, _index: int) -> str:
        try:
            pipelines.member(partition).proposals.submit(LogPipelineBase(partition))
        except BlockError as error:
            return error.message
        return ""

    def addresses(partition: int) -> Addresses:
        members = pipelines.member(partition).opened.members
        return {one.datanode: one.http_address for one in members if one.http_address}

    return host.trim_with(ask_base, addresses)
