"""Requests for pipelines and datanodes, and the purge of deleted blocks: each answer, and what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.execute import execute
from om_processors.execution.requests.fleet import MAX_DATANODES, MAX_PURGED_ROWS
from om_processors.namespace import tables
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.registry import registry
from schemas.column_families import DELETED_TABLE, KEY_TABLE, OPEN_KEY_TABLE
from schemas.datanode_states import DATANODE_STATES
from schemas.features import DELETION_GRACE, OPERATIONS, PIPELINE_GENERATIONS
from schemas.records.datanode import Member
from schemas.records.messages import (
    CommitKey,
    CreateKey,
    CreatePipeline,
    DeleteKey,
    PurgeBlocks,
    RemoveDatanode,
    RequestBody,
    RetirePipeline,
    SetDatanodeState,
)
from schemas.records.rows import KeyInfo
from tests.support.om.dict_transaction import DictTransaction
from tests.support.om.fleets import pipeline_row
from tests.support.om.om_world import World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


def member(name: str, **more: str) -> Member:
    return Member(**({"datanode": name, "address": f"{name}:1", "http_address": f"{name}:2", "rack": "/r1"} | more))


def create(partition: int = 0, *names: str) -> CreatePipeline:
    return CreatePipeline(partition=partition, members=[member(name) for name in names or ("dn1", "dn2", "dn3")])


def state(datanode: str, wanted: str, changed_at_ms: int = 0) -> SetDatanodeState:
    return SetDatanodeState(datanode=datanode, state=wanted, changed_at_ms=changed_at_ms)


def test_a_pipeline_is_created_and_retired():
    world = World()
    world.do(create(0))
    (row,) = tables.pipelines(world.tables)
    assert (row.pipeline, row.partition, row.generation, row.state) == ("pipeline-0", 0, 1, "OPEN")
    assert [one.datanode for one in row.members] == ["dn1", "dn2", "dn3"]
    assert row.opened_at_ms == world.now_ms
    world.do(RetirePipeline(partition=0, reason="dn1 is dead"))
    assert tables.pipelines(world.tables) == [replace(row, state="CLOSED")]
    before = world.tables.rows()
    world.do(RetirePipeline(partition=0, reason="again"))
    assert world.tables.rows() == before
    assert world.writes == []


def test_a_late_retirement_ends_no_later_generation():
    """The process that decided it stood still; another leader retired the pipeline, and opened it again."""
    world = World()
    world.do(create(0))
    late = RetirePipeline(partition=0, reason="dn1 is dead", generation=1)
    world.do(late)
    world.do(replace(create(0), generation=2))
    refused = world.refusal(late)
    assert (refused.status, refused.message) == ("INVALID_REQUEST", "pipeline-0 is of generation 2, not 1")
    assert tables.pipelines(world.tables)[0].state == "OPEN"
    for generation in (-1, 3):
        assert world.refusal(replace(late, generation=generation)).status == "INVALID_REQUEST"
    world.do(replace(late, generation=2))
    world.do(replace(late, generation=2))
    assert world.writes == [], "it is closed already"


def test_a_late_creation_opens_no_later_generation():
    world = World()
    assert "the next generation of pipeline-0 is 1, not 2" in world.refusal(replace(create(0), generation=2)).message
    world.do(replace(create(0), generation=1))
    world.do(RetirePipeline(partition=0, reason=""))
    again = replace(create(0), generation=2)
    world.do(again)
    world.do(RetirePipeline(partition=0, reason=""))
    assert "the next generation of pipeline-0 is 3, not 2" in world.refusal(again).message
    world.do(create(0))
    assert tables.pipelines(world.tables)[0].generation == 3, "an operator, and older software, name none"


def test_pipelines_are_listed_by_partition():
    world = World()
    for partition in (200, 3, 31):
        stored(world, partition)
    assert [row.partition for row in tables.pipelines(world.tables)] == [3, 31, 200]


def stored(world: World, partition: int) -> None:
    """A row that is there, however it came."""
    tx = world.begin()
    tables.put_pipeline(tx, pipeline_row(partition, ["dn8", "dn9"], "CLOSED"))
    tx.commit()


@pytest.mark.parametrize("partition", [1, 2, 254, 255])
def test_no_partition_but_the_next_is_given_to_a_new_pipeline(partition: int):
    world = World()
    refused = world.refusal(create(partition))
    assert refused.status == "INVALID_REQUEST"
    assert refused.message == f"partition {partition} is not the next one: that is 0"
    world.do(create(0))
    assert partition == 1 or "that is 1" in world.refusal(create(partition)).message
    world.do(create(1))


def test_a_partition_that_was_passed_over_is_the_next_one():
    """A request for 255 was taken once, and ended all pipelines."""
    world = World()
    for partition in (0, 255):
        stored(world, partition)
    assert "that is 1" in world.refusal(create(2)).message
    for partition in range(1, 255):
        world.do(create(partition))
    assert len(tables.pipelines(world.tables)) == 256
    assert world.refusal(create(254)).status == "PIPELINE_ALREADY_EXISTS"


def test_a_closed_pipeline_is_opened_again_by_its_members():
    world = World()
    world.do(create(0))
    assert world.refusal(create(0)).status == "PIPELINE_ALREADY_EXISTS", "it is open"
    world.do(RetirePipeline(partition=0, reason=""))
    moved = [member(name, address=f"{name}:77", rack="/r7") for name in ("dn3", "dn1", "dn2")]
    world.do(CreatePipeline(partition=0, members=moved))
    (row,) = tables.pipelines(world.tables)
    assert (row.pipeline, row.generation, row.state, row.opened_at_ms) == ("pipeline-0", 2, "OPEN", world.now_ms)
    found = [(one.datanode, one.address, one.rack) for one in row.members]
    assert found == [(name, f"{name}:77", "/r7") for name in ("dn1", "dn2", "dn3")], (
        "in the order of the first generation"
    )
    for generation in range(3, 600):
        world.do(RetirePipeline(partition=0, reason=""))
        world.do(create(0))
        assert tables.pipelines(world.tables)[0].generation == generation
    world.do(RetirePipeline(partition=0, reason=""))
    world.do(state("dn2", "DECOMMISSIONING"))
    assert "datanode dn2 is DECOMMISSIONING" in world.refusal(create(0)).message


def test_before_finalize_no_pipeline_is_opened_again():
    world = World()
    world.do(create(0))
    world.do(RetirePipeline(partition=0, reason=""))
    tx = world.begin()
    tx.feature_level = PIPELINE_GENERATIONS - 1
    with pytest.raises(OMError) as refused:
        execute(request_of(create(0)), tx, world.context())
    assert refused.value.status == "PIPELINE_ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (create(-1), "INVALID_REQUEST", "partition -1 of a pipeline is not in 0..255"),
        (create(256), "INVALID_REQUEST", "partition 256"),
        (CreatePipeline(partition=0, members=[]), "INVALID_REQUEST", "1 to 7 datanodes, not 0"),
        (create(0, *(f"d{n}" for n in range(8))), "INVALID_REQUEST", "1 to 7 datanodes, not 8"),
        (create(0, "dn1", "dn1"), "INVALID_REQUEST", "are distinct: 'dn1', 'dn1'"),
        (create(0, "d" * 64), "INVALID_REQUEST", "1 to 63 characters, not 64"),
        (CreatePipeline(partition=0, members=[member("d", address="")]), "INVALID_REQUEST", "address of datanode d has"),
        (CreatePipeline(partition=0, members=[member("d", rack="/" * 301)]), "INVALID_REQUEST", "rack of datanode d"),
        (RetirePipeline(partition=5, reason=""), "PIPELINE_NOT_FOUND", "there is no pipeline-5"),
        (RetirePipeline(partition=256, reason=""), "INVALID_REQUEST", "partition 256"),
        (RetirePipeline(partition=0, reason="x" * 301), "INVALID_REQUEST", "the reason has 301 characters"),
        (state("", "IN_SERVICE"), "INVALID_REQUEST", "1 to 63 characters, not 0"),
        (state("dn1", "GONE"), "INVALID_REQUEST", "state 'GONE' is none of IN_SERVICE"),
        (RemoveDatanode(datanode=""), "INVALID_REQUEST", "1 to 63 characters, not 0"),
        (PurgeBlocks(shard=0, rows=[]), "INVALID_REQUEST", "1 to 500 rows are purged at once, not 0"),
        (PurgeBlocks(shard=0, rows=[b"%d" % n for n in range(MAX_PURGED_ROWS + 1)]), "INVALID_REQUEST", "not 501"),
        (PurgeBlocks(shard=0, rows=[b"a", b"a"]), "INVALID_REQUEST", "named twice"),
        (PurgeBlocks(shard=3, rows=[b"a"]), "WRONG_SHARD", "PurgeBlocks of shard 3 sent to shard 0"),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(body: RequestBody, status: str, words: str):
    error = World().refusal(body)
    assert error.status == status
    assert words in error.message


def test_a_partition_is_one_set_of_datanodes_for_ever():
    world = World()
    world.do(create(0))
    world.do(RetirePipeline(partition=0, reason=""))
    for names in (("dn4",), ("dn1", "dn2"), ("dn1", "dn2", "dn4"), ("dn1", "dn2", "dn3", "dn4")):
        refused = world.refusal(create(0, *names))
        assert refused.status == "PIPELINE_ALREADY_EXISTS"
        assert "opened again by dn1, dn2, dn3" in refused.message


def test_datanodes_that_leave_join_no_pipeline():
    world = World()
    world.do(state("dn2", "DECOMMISSIONING"))
    assert "datanode dn2 is DECOMMISSIONING" in world.refusal(create()).message
    world.do(state("dn2", "IN_SERVICE"))
    world.do(create())


def test_what_is_reached_must_still_be_wanted():
    allowed = {
        ("DECOMMISSIONING", "DECOMMISSIONED"), ("ENTERING_MAINTENANCE", "IN_MAINTENANCE"),
    }  # fmt: skip
    for before in DATANODE_STATES:
        for after in DATANODE_STATES:
            world = World()
            reached_from = {reached: wanted for wanted, reached in allowed}.get(before)
            for step in filter(None, (reached_from, before)):
                world.do(state("dn1", step))
            reached = after in ("DECOMMISSIONED", "IN_MAINTENANCE")
            if before == after or not reached or (before, after) in allowed:
                world.do(state("dn1", after))
                rows = tables.datanodes(world.tables)
                assert [row.state for row in rows] == ([after] if rows else [])
            else:
                assert f"datanode dn1 is {before}" in world.refusal(state("dn1", after)).message


def since_ms(world: World, datanode: str) -> int:
    row = tables.get_datanode(world.tables, datanode)
    assert row is not None
    return row.changed_at_ms


@pytest.mark.parametrize(
    ("wanted", "reached"), [("DECOMMISSIONING", "DECOMMISSIONED"), ("ENTERING_MAINTENANCE", "IN_MAINTENANCE")]
)
def test_a_state_that_an_earlier_leaving_reached_is_late(wanted: str, reached: str):
    """An operator wipes a datanode that is DECOMMISSIONED, and would wipe what nobody else has."""
    world = World()
    world.do(state("dn1", wanted))
    late = state("dn1", reached, since_ms(world, "dn1"))
    world.do(state("dn1", "IN_SERVICE"))
    assert "datanode dn1 is IN_SERVICE since 0" in world.refusal(late).message
    world.do(state("dn1", wanted))
    refused = world.refusal(late)
    assert (refused.status, since_ms(world, "dn1") > late.changed_at_ms) == ("INVALID_REQUEST", True)
    assert f"what changed at {late.changed_at_ms} has passed" in refused.message
    world.do(replace(late, changed_at_ms=since_ms(world, "dn1")))
    assert [row.state for row in tables.datanodes(world.tables)] == [reached]


def test_a_state_that_is_so_already_writes_nothing():
    world = World()
    world.do(state("dn1", "IN_SERVICE"))
    assert tables.datanodes(world.tables) == []
    world.do(state("dn1", "DECOMMISSIONING"))
    world.do(state("dn1", "DECOMMISSIONING"))
    assert world.writes == []


def test_datanodes_with_a_state_are_bounded():
    world = World()
    for number in range(MAX_DATANODES):
        world.do(state(f"dn{number}", "DECOMMISSIONING"))
    assert "256 datanodes have a state" in world.refusal(state("one-more", "DECOMMISSIONING")).message
    world.do(state("dn7", "IN_SERVICE"))
    world.do(state("one-more", "DECOMMISSIONING"))
    assert len(tables.datanodes(world.tables)) == MAX_DATANODES


def decommissioned(world: World, datanode: str) -> None:
    for wanted in ("DECOMMISSIONING", "DECOMMISSIONED"):
        world.do(state(datanode, wanted))
    world.gone |= {datanode}


def test_a_cluster_may_lose_any_number_of_datanodes_in_its_life():
    world = World()
    for number in range(MAX_DATANODES + 44):
        decommissioned(world, f"dn{number}")
        world.do(RemoveDatanode(datanode=f"dn{number}"))
        assert tables.datanodes(world.tables) == []
    world.do(create(0, "dn0"))
    assert "datanode dn0 is IN_SERVICE" in world.refusal(RemoveDatanode(datanode="dn0")).message


def test_a_datanode_in_service_has_no_row():
    world = World()
    world.do(state("dn1", "DECOMMISSIONING"))
    world.do(state("dn1", "IN_SERVICE"))
    assert tables.datanodes(world.tables) == []
    world.level = DELETION_GRACE - 1
    for wanted in ("DECOMMISSIONING", "IN_SERVICE"):
        world.do(state("dn1", wanted))
    assert [row.state for row in tables.datanodes(world.tables)] == ["IN_SERVICE"], "older software keeps it"
    world.level = DELETION_GRACE
    world.do(state("dn1", "IN_SERVICE"))
    assert tables.datanodes(world.tables) == [], "what was kept goes when it is said again"


def test_only_who_is_decommissioned_and_gone_is_removed():
    world = World()
    removal = RemoveDatanode(datanode="dn1")
    world.do(create(0))
    decommissioned(world, "dn1")
    assert "dn1 is a member of pipeline-0, which is open" in world.refusal(removal).message
    world.do(RetirePipeline(partition=0, reason=""))
    world.gone = frozenset()
    assert "datanode 'dn1' is not gone, as far as this node knows" in world.refusal(removal).message
    world.gone = frozenset({"dn1"})
    for wanted in ("IN_SERVICE", "DECOMMISSIONING", "ENTERING_MAINTENANCE"):
        world.do(state("dn1", wanted))
        assert f"datanode dn1 is {wanted}: only one that is DECOMMISSIONED" in world.refusal(removal).message
    decommissioned(world, "dn1")
    world.do(removal)
    assert tables.datanodes(world.tables) == []
    assert "datanode dn1 is IN_SERVICE" in world.refusal(removal).message


@pytest.mark.parametrize(
    "body",
    [
        replace(create(), generation=1), RetirePipeline(partition=0, reason="", generation=1),
        state("dn1", "IN_SERVICE", 1), RemoveDatanode(datanode="dn1"),
    ],
    ids=lambda body: type(body).__name__,
)  # fmt: skip
def test_before_finalize_no_row_is_named_and_no_datanode_removed(body: RequestBody):
    """A replica of older software would not read what is named, and close another generation."""
    world = World()
    world.do(create(0))
    world.gone, world.level = frozenset({"dn1"}), DELETION_GRACE - 1
    refused = world.refusal(body)
    assert refused.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert "needs feature level 12, the shard is at 11" in refused.message


def test_purging_forgets_what_is_there():
    world = World().make()
    for key in ("a", "b"):
        session = world.session(CreateKey(**PLACE, key=key, size=10))
        world.do(CommitKey(**PLACE, key=key, session_id=session.session_id, size=10))
        world.do(DeleteKey(**PLACE, key=key))
    first, second = sorted(world.tables.tables[DELETED_TABLE])
    world.do(PurgeBlocks(shard=0, rows=[first, b"/vol1/bucket1/never/1"]))
    assert list(world.tables.tables[DELETED_TABLE]) == [second]
    assert world.writes == [("delete", DELETED_TABLE, first)]


@pytest.mark.parametrize(
    "body",
    [create(), RetirePipeline(partition=0, reason=""), state("dn1", "IN_SERVICE"), PurgeBlocks(shard=0, rows=[b"a"])],
    ids=lambda body: type(body).__name__,
)
def test_each_waits_for_its_feature_level(body: RequestBody):
    world = World()
    world.index += 1
    tx = world.begin()
    tx.feature_level = OPERATIONS
    with pytest.raises(OMError) as caught:
        execute(request_of(body), tx, world.context())
    assert caught.value.status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert "needs feature level 3, the shard is at 2" in caught.value.message


def test_shard_0_alone_has_pipelines():
    world = World(shard=1, shards=2)
    for body in (create(), RetirePipeline(partition=0, reason=""), state("dn1", "IN_SERVICE")):
        assert world.refusal(body).status == "WRONG_SHARD"
    world.do(PurgeBlocks(shard=1, rows=[b"a"]))


# ---- committed indexes


def committed(world: World, *bcs_ids: int) -> None:
    session = world.session(CreateKey(**PLACE, key="k", size=100 * len(bcs_ids)))
    blocks = [replace(block, bcs_id=bcs_id) for block, bcs_id in zip(session.blocks, bcs_ids, strict=True)]
    body: dict[str, Any] = {**PLACE, "key": "k", "session_id": session.session_id, "size": 100 * len(bcs_ids)}
    world.do(CommitKey(**body, blocks=blocks))


def test_a_commit_keeps_each_blocks_index():
    world = World().make()
    committed(world, 5, 0, 7)
    info = tables.get_key(world.tables, tables.key_key("vol1", "bucket1", "k"))
    assert info is not None
    assert [block.bcs_id for block in info.blocks] == [5, 0, 7]
    world.do(DeleteKey(**PLACE, key="k"))
    (row,) = world.tables.tables[DELETED_TABLE].values()
    assert [block.bcs_id for block in decode_as(KeyInfo, row).blocks] == [5, 0, 7]


def test_a_negative_index_is_refused():
    world = World().make()
    session = world.session(CreateKey(**PLACE, key="k", size=100))
    blocks = [replace(session.blocks[0], bcs_id=-1)]
    body = CommitKey(**PLACE, key="k", session_id=session.session_id, size=100, blocks=blocks)
    assert "negative committed index -1" in world.refusal(body).message


@pytest.mark.parametrize("level", [OPERATIONS - 1, OPERATIONS])
def test_before_finalize_rows_are_of_the_version_that_older_software_reads(level: int, monkeypatch: pytest.MonkeyPatch):
    begin = World.begin

    def older(self: World) -> DictTransaction:
        tx = begin(self)
        tx.feature_level = level
        return tx

    world = World().make()
    monkeypatch.setattr(World, "begin", older)
    session = world.session(CreateKey(**PLACE, key="k", size=100))
    (opened,) = world.tables.tables[OPEN_KEY_TABLE].values()
    blocks = [replace(session.blocks[0], bcs_id=9)]
    world.do(CommitKey(**PLACE, key="k", session_id=session.session_id, size=100, blocks=blocks))
    (row,) = world.tables.tables[KEY_TABLE].values()
    world.do(DeleteKey(**PLACE, key="k"))
    (deleted,) = world.tables.tables[DELETED_TABLE].values()
    fingerprint = registry.version("KeyInfo", 1).fingerprint
    for value in (opened, row, deleted):
        assert value[2:10] == fingerprint
        info = decode_as(KeyInfo, value)
        assert encode(info) != value
        assert [block.bcs_id for block in info.blocks] == [0]
