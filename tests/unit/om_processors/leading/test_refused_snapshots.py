"""A CreateSnapshot that is refused is part of the batch that is being built, and ends nobody's."""

from __future__ import annotations

from typing import Any

import pytest

from replicated_db.core.leading.leader import Wait
from schemas.codecs.codec import decode_as
from schemas.records.identity import ProvenCaller
from schemas.records.messages import CreateBucket, CreateSnapshot, CreateVolume, Response
from tests.support.om.late_world import LateWorld

STRANGER = ProvenCaller(administrator=False, groups=[], generation=3, token=0)
PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


@pytest.fixture
def world() -> LateWorld:
    world = LateWorld()
    for body in (CreateVolume(volume="vol1"), CreateBucket(**PLACE), CreateSnapshot(**PLACE, snapshot="snap1")):
        world.submit(world.request(body))
    world.settle()
    return world


@pytest.mark.parametrize(
    ("body", "standing", "status"),
    [
        (CreateSnapshot(volume="nosuch", bucket="bucket1", snapshot=""), None, "VOLUME_NOT_FOUND"),
        (CreateSnapshot(volume="vol1", bucket="nosuch", snapshot=""), None, "BUCKET_NOT_FOUND"),
        (CreateSnapshot(**PLACE, snapshot="snap1"), None, "FILE_ALREADY_EXISTS"),
        (CreateSnapshot(**PLACE, snapshot="-"), None, "INVALID_SNAPSHOT_ERROR"),
        (CreateSnapshot(**PLACE, snapshot="snap2"), STRANGER, "PERMISSION_DENIED"),
    ],
)  # fmt: skip
def test_a_refused_snapshot_ends_no_batch(
    world: LateWorld, body: CreateSnapshot, standing: ProvenCaller | None, status: str
) -> None:
    sent = []
    for number in range(20):
        for one in (
            world.request(CreateVolume(volume=f"more{number}")),
            world.request(body, standing=standing, caller="eve"),
        ):
            sent.append(one)
            assert world.leader.take(one, world.clock.elapsed_ms()) is None
        if number == 9:  # behind what is in flight, too
            world.seal()
            assert world.leader.in_flight == 1
    assert world.leader.building == 20
    world.settle()
    found = [decode_as(Response, world.answers[one.reply_to]).status for one in sent]
    assert found == ["OK", status] * 20


def test_what_is_refused_is_judged_behind_what_was_executed(world: LateWorld) -> None:
    """Its bucket is made in the batch that is being built: so the snapshot is none that is refused."""
    world.submit(world.request(CreateBucket(volume="vol1", bucket="bucket2")))
    wanted = world.request(CreateSnapshot(volume="vol1", bucket="bucket2", snapshot="snap1"))
    assert world.leader.take(wanted, world.clock.elapsed_ms()) is Wait.SEAL
    world.seal()
    assert world.leader.take(wanted, world.clock.elapsed_ms()) is Wait.SETTLE
    world.deliver()
    world.submit(wanted)
    world.settle()
    assert decode_as(Response, world.answers[wanted.reply_to]).status == "OK"


def test_a_repeated_snapshot_is_answered_in_the_midst_of_a_batch(world: LateWorld) -> None:
    first = world.sent[-1]
    world.submit(world.request(CreateVolume(volume="vol2")))
    said = world.leader.take(first, world.clock.elapsed_ms())
    assert said is not None
    assert not isinstance(said, Wait)
    assert decode_as(Response, said.response).status == "OK"
