"""``stratolog admin datanode`` and ``admin pipeline``: what they ask a node, and what they send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from producers.errors import RequestFailed
from schemas.features import DELETION_GRACE, level_of_command
from schemas.records.messages import RemoveDatanode, RequestBody, RetirePipeline, SetDatanodeState
from schemas.result_codes import INVALID_REQUEST, NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION
from stratolog.cli import build_app
from stratolog.commands.admin import fleet

PAGES: dict[str, dict[str, Any]] = {
    "datanodes": {"datanodes": [{"datanode": "dn1", "state": "IN_SERVICE"}], "switched_off": ["dn4"]},
    "pipelines": {"pipelines": [{"pipeline": "pipeline-3", "partition": 3, "generation": 7}]},
}


class Case:
    """A cluster that is its two pages, and refuses what its level does not allow, or all with ``status``."""

    def __init__(self) -> None:
        self.pages = dict(PAGES)
        self.sent: list[RequestBody] = []
        self.level = DELETION_GRACE
        self.status = ""

    def call(self, body: RequestBody) -> Any:
        self.sent.append(body)
        if level_of_command(body) > self.level:
            raise RequestFailed(NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION, "finalize")
        if self.status:
            raise RequestFailed(self.status, "refused")
        return SimpleNamespace(index=41)

    def run(self, *words: str) -> Any:
        return CliRunner().invoke(build_app(), ["admin", *words])


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    found = Case()

    @contextmanager
    def client(*_: Any, **__: Any) -> Iterator[Any]:
        yield found

    @contextmanager
    def waiting(*_: Any, **__: Any) -> Iterator[None]:
        yield

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet, "connected_settings_of", lambda _: None)
    monkeypatch.setattr(fleet, "fleet_of", lambda _, what: found.pages[what])
    monkeypatch.setattr(fleet, "client_of", client)
    monkeypatch.setattr(fleet, "waiting", waiting)
    return found


def test_a_pipeline_is_closed_in_the_generation_that_was_seen(case: Case):
    done = case.run("pipeline", "close", "pipeline-3", "--json")
    assert json.loads(done.output) == {"pipeline": "pipeline-3", "state": "CLOSED", "index": 41}
    assert case.sent == [RetirePipeline(partition=3, reason="an operator's command", generation=7)]


def test_before_finalize_whichever_generation_there_is_is_closed(case: Case):
    case.level = DELETION_GRACE - 1
    assert case.run("pipeline", "close", "pipeline-3").exit_code == 0
    assert [one.generation for one in case.sent if isinstance(one, RetirePipeline)] == [7, 0]


def test_a_refusal_is_not_asked_again(case: Case):
    case.status = INVALID_REQUEST
    assert case.run("pipeline", "close", "pipeline-3").exit_code != 0
    assert len(case.sent) == 1


def test_a_pipeline_that_is_not_listed_is_for_the_cluster_to_refuse(case: Case):
    case.run("pipeline", "close", "pipeline-4")
    assert [one.generation for one in case.sent if isinstance(one, RetirePipeline)] == [0]


def test_a_datanode_is_removed(case: Case):
    done = case.run("datanode", "remove", "dn4", "--json")
    assert json.loads(done.output) == {"datanode": "dn4", "removed": True, "index": 41}
    assert case.sent == [RemoveDatanode(datanode="dn4")]


def test_who_is_switched_off_is_listed_and_known(case: Case):
    assert json.loads(case.run("datanode", "list", "--json").output)["switched_off"] == ["dn4"]
    done = case.run("datanode", "recommission", "dn4", "--json")
    assert json.loads(done.output)["before"] == "DECOMMISSIONED"
    assert case.sent == [SetDatanodeState(datanode="dn4", state="IN_SERVICE")]


def test_nodes_of_older_software_do_not_tell_who_is_switched_off(case: Case):
    case.pages["datanodes"] = {"datanodes": PAGES["datanodes"]["datanodes"]}
    assert json.loads(case.run("datanode", "list", "--json").output)["switched_off"] == []
    assert case.run("datanode", "recommission", "dn4").exit_code != 0
