from __future__ import annotations

from typing import get_args

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import apply_request, execute, pre_execute
from om_processors.execution.requests import HANDLERS
from om_processors.namespace.context import ReadView, RequestPreparation
from schemas import result_codes
from schemas.codecs.codec import decode, encode
from schemas.records.messages import (
    AllocateBlock,
    CreateBucket,
    CreateKey,
    CreateVolume,
    DeleteVolume,
    LogDigestBase,
    Request,
    RequestBody,
    SetDatanodeState,
)
from schemas.sharding import shard_of
from tests.support.om.dict_transaction import DictTables, DictTransaction
from tests.support.om.om_world import World, request_of


def test_every_request_type_has_a_handler():
    assert set(HANDLERS) == set(get_args(RequestBody))
    assert all(handler.body is body for body, handler in HANDLERS.items())


def test_a_foreign_volume_is_refused():
    shards = 4
    for number in range(20):
        volume = f"vol{number}"
        home = shard_of(volume, shards)
        World(shard=home, shards=shards).do(CreateVolume(volume=volume))
        error = World(shard=(home + 1) % shards, shards=shards).refusal(CreateVolume(volume=volume))
        assert error.status == "WRONG_SHARD"
        assert error.message == f"volume /{volume} lives in shard {home}, not in {(home + 1) % shards}"


@pytest.mark.parametrize(
    "body",
    [
        AllocateBlock(
            volume="vol1", bucket="bucket1", key="k", session_id=1, excluded_pipelines=["p1", "p2", "\x01" * 1_000_000]
        ),
        SetDatanodeState(datanode="\x01" * 1_000_000, state="IN_SERVICE"),
        CreateKey(volume="vol1", bucket="bucket1", key="k", size=1, replication="\x01" * 1_000_000),
        CreateBucket(volume="vol1", bucket="bucket2", layout="\x01" * 1_000_000),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_refusal_does_not_repeat_the_request(body: RequestBody):
    """It is logged, kept for ten minutes and sent: 1 MB of request must not become 4 MB of each."""
    world = World().make()
    assert len(world.refusal(body).message) < 1_200


def test_digest_base_is_not_executed():
    body = LogDigestBase(shard=0, index=1, slots=[], sums=[], basis="oracle")
    assert World().refusal(body).status == "NOT_SUPPORTED_OPERATION"
    prepared = RequestPreparation(body=body, caller="ann", index=1, now_ms=1, object_id=1, session_id=1, blocks=[])
    with pytest.raises(OMError, match="NOT_SUPPORTED_OPERATION"):
        apply_request(prepared, DictTransaction(DictTables(), 1))


def test_a_type_without_handler_is_refused(monkeypatch):
    monkeypatch.setattr("om_processors.execution.execute.HANDLERS", {})
    error = World().refusal(CreateVolume(volume="vol1"))
    assert (error.status, "CreateVolume" in error.message) == ("NOT_SUPPORTED_OPERATION", True)


def test_pre_execute_reads_no_state_and_repeats():
    world = World().make()
    request = request_of(CreateKey(volume="vol1", bucket="missing", key="k", size=150))
    prepared = pre_execute(request, world.context())
    assert prepared == pre_execute(request, world.context())
    assert len(prepared.blocks) == 2


def test_a_prepared_request_executes_alike_on_every_replica():
    first, second = World().make(), World().make()
    request = request_of(CreateKey(volume="vol1", bucket="bucket1", key="k", size=150))
    first.index = 7
    prepared = pre_execute(request, first.context())
    results = []
    for world in (first, second):
        tx = DictTransaction(world.tables, 7)
        results.append(apply_request(prepared, tx))
        tx.commit()
    assert results[0] == results[1]
    assert first.tables.rows() == second.tables.rows()


def test_execute_is_pre_execute_and_apply():
    worlds = World().make(), World().make()
    request = request_of(CreateKey(volume="vol1", bucket="bucket1", key="k", size=150))
    together, apart = (DictTransaction(world.tables, world.index) for world in worlds)
    one = execute(request, together, worlds[0].context())
    two = apply_request(pre_execute(request, worlds[1].context()), apart)
    assert one == two
    assert together.writes == apart.writes


def test_index_of_transaction_and_prepared_must_agree():
    world = World().make()
    prepared = pre_execute(request_of(DeleteVolume(volume="vol1")), world.context())
    with pytest.raises(ValueError, match="index 2 meets a transaction of index 3"):
        apply_request(prepared, DictTransaction(world.tables, 3))


class OwnersOnly:
    """Volumes may be changed by their owners."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        row = view.get("volumeTable", f"/{getattr(prepared.body, 'volume', '')}".encode())
        if row is not None and decode(row).owner != prepared.caller:
            raise OMError("PERMISSION_DENIED", f"{prepared.caller} does not own it")


def test_an_authorizer_decides_before_the_state_is_validated():
    world = World(authorizer=OwnersOnly())
    world.do(CreateVolume(volume="vol1"), caller="ann")
    assert world.refusal(CreateVolume(volume="vol1"), caller="eve").status == "PERMISSION_DENIED"
    assert world.refusal(DeleteVolume(volume="vol1"), caller="eve").status == "PERMISSION_DENIED"
    world.do(DeleteVolume(volume="vol1"), caller="ann")


def test_a_request_executes_the_same_after_the_wire():
    request = request_of(CreateKey(volume="vol1", bucket="bucket1", key="ключ/a", size=150, metadata={"a": "b"}))
    decoded = decode(encode(request))
    assert isinstance(decoded, Request)
    worlds = World().make(), World().make()
    for world, sent in zip(worlds, (request, decoded), strict=True):
        tx = DictTransaction(world.tables, world.index)
        execute(sent, tx, world.context())
        tx.commit()
    assert worlds[0].tables.rows() == worlds[1].tables.rows()


def test_statuses_are_known_to_clients():
    raised = {
        "VOLUME_NOT_FOUND", "VOLUME_ALREADY_EXISTS", "VOLUME_NOT_EMPTY", "BUCKET_NOT_FOUND", "BUCKET_ALREADY_EXISTS",
        "BUCKET_NOT_EMPTY", "KEY_NOT_FOUND", "KEY_ALREADY_EXISTS", "QUOTA_EXCEEDED", "QUOTA_ERROR", "INVALID_REQUEST",
        "INVALID_VOLUME_NAME", "INVALID_BUCKET_NAME", "INVALID_KEY_NAME", "WRONG_SHARD", "NOT_SUPPORTED_OPERATION",
    }  # fmt: skip
    assert all(getattr(result_codes, code) == code for code in raised)
