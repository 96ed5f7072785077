"""What the trimming of a datanode's logs asks of its pipelines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors import trimming as module
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import LogPipelineBase
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.trimming import pipeline_trimming
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.trimming.log_trimmer import no_holds
from schemas import stream_errors as codes
from schemas.records.datanode import Member

PARTITION = 3


class Asked:
    """What a log's trimming is made of."""

    def __init__(self, _: Any, __: Any, ask_base: Any, addresses: Any, holds: Any) -> None:
        self.ask_base, self.addresses, self.holds = ask_base, addresses, holds


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "LogTrimming", Asked)
    table = PipelineTable("dn1")
    members = [
        Member(datanode=name, address="", http_address=address, rack="/r")
        for name, address in [("dn1", "h:1"), ("dn2", "")]
    ]
    submitted: list[Any] = []
    pipeline: Any = SimpleNamespace(
        opened=SimpleNamespace(members=members), proposals=SimpleNamespace(submit=submitted.append), submitted=submitted
    )
    table.put(PARTITION, pipeline)
    config = DatanodeConfig(
        node="dn1", cluster="test", host="h", port=1, http_port=1, bootstrap_servers="", data_dir=Path()
    )
    pipelines: Any = SimpleNamespace(table=table, loops={})
    asked: Any = pipeline_trimming(config, "", pipelines, ManualClock(), no_holds)
    asked.pipeline = pipeline
    return asked


def test_a_base_is_a_request_of_the_leader_to_itself(made: Any) -> None:
    assert made.ask_base(PARTITION, 7) == ""
    assert made.pipeline.submitted == [LogPipelineBase(PARTITION)]


def test_why_no_base_is_logged_is_said(made: Any) -> None:
    def refuse(_: Any) -> None:
        raise BlockError(codes.NOT_LEADER, "partition 3 is not led here")

    made.pipeline.proposals.submit = refuse
    assert made.ask_base(PARTITION, 7) == "partition 3 is not led here"
    assert "no member" in made.ask_base(PARTITION + 1, 7)


def test_members_are_asked_where_the_object_manager_named_an_address(made: Any) -> None:
    assert made.addresses(PARTITION) == {"dn1": "h:1"}
