"""What the trimming of a datanode's logs asks of its pipelines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import LogPipelineBase
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.trimming import pipeline_trimming
from schemas import stream_errors as codes
from schemas.records.datanode import Member

PARTITION = 3


class Asked:
    """A host, which is told how its logs are trimmed."""

    def trim_with(self, ask_base: Any, addresses: Any) -> Asked:
        self.ask_base, self.addresses = ask_base, addresses
        return self


@pytest.fixture
def made() -> Any:
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
    host: Any = Asked()
    asked: Any = pipeline_trimming(host, table)
    assert asked is host
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
