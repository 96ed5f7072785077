"""What a node executes of a log whose requests it validates itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution import late
from om_processors.execution.late import OMExecutor
from om_processors.execution.service import STATUS_OF
from om_processors.namespace.context import Contexts
from replicated_db.core.errors import BrokenLog
from replicated_db.core.execution.service import Refusal
from schemas.codecs.codec import decode_as, encode
from schemas.features import LATEST
from schemas.records.messages import CreateVolume, DeleteVolume, PreparedRequest, Response
from tests.support.om.dict_transaction import DictTables, DictTransaction
from tests.support.om.om_world import request_of


def prepared(request: bytes) -> bytes:
    return encode(PreparedRequest(request=request, object_id=0, session_id=0, blocks=[], status="OK", message=""))


@pytest.mark.parametrize("logged", [b"", b"nonsense", prepared(b""), prepared(b"nonsense"), prepared(prepared(b""))])
def test_a_logged_request_that_cannot_be_read_breaks_the_log(logged: bytes):
    """No replica can go on: another one may have read it."""
    contexts: Any = SimpleNamespace(shard=0)
    executor = OMExecutor(contexts)
    with pytest.raises(BrokenLog, match="^a logged request: "):
        executor.execute(logged, DictTransaction(DictTables(), 1), 0)  # type: ignore[arg-type]


SHARD = 0


@pytest.fixture
def executor() -> OMExecutor:
    return OMExecutor(Contexts(shard=SHARD, shards=1, pipelines=("p1",)))


def proposal(body: Any) -> Any:
    return SimpleNamespace(body=request_of(body), standing=None)


def answer(executor: OMExecutor, logged: bytes) -> Response:
    transaction: Any = DictTransaction(DictTables(), 5)
    found = executor.execute(logged, transaction, 1_000)
    assert not transaction.writes
    return decode_as(Response, found.response)


def test_what_was_refused_before_it_was_logged_is_answered_so_by_every_replica(executor: OMExecutor):
    logged = executor.prepare(proposal(CreateVolume(volume="NO")), 1_000, 5, LATEST)
    found = answer(executor, logged)
    assert (found.status, found.shard, found.index) == ("INVALID_VOLUME_NAME", SHARD, 5)
    assert found.message


def test_a_defect_before_it_was_logged_becomes_the_answer(executor: OMExecutor, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(late, "pre_execute", fails)
    found = answer(executor, executor.prepare(proposal(CreateVolume(volume="vol1")), 1_000, 5, LATEST))
    assert (found.status, found.message) == (STATUS_OF[Refusal.FAILED], "ZeroDivisionError: oops")


def test_what_a_replica_finds_illegal_changes_nothing(executor: OMExecutor):
    logged = executor.prepare(proposal(DeleteVolume(volume="vol9")), 1_000, 5, LATEST)
    assert answer(executor, logged).status == "VOLUME_NOT_FOUND"


def test_a_refusal_of_the_database_is_answered_to_who_asked(executor: OMExecutor):
    request = request_of(CreateVolume(volume="vol1"))
    logged = executor.prepare(SimpleNamespace(body=request), 1_000, 5, LATEST)  # type: ignore[arg-type]
    found = decode_as(Response, executor.refuse(logged, Refusal.TOO_LARGE, "why", 6))
    assert (found.client_id, found.call_id, found.shard, found.index) == (request.client_id, request.call_id, SHARD, 6)
    assert (found.status, found.message) == (STATUS_OF[Refusal.TOO_LARGE], "why")
