"""What ``debug log`` says of requests under late validation, and the replica in memory that tells what became of them."""

from __future__ import annotations

from collections import Counter

from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode
from schemas.records import messages as m
from schemas.records.log import LATE_MODE, RequestBatch
from stratolog.cluster.request_modes import request_types
from stratolog.commands.debug import _described
from stratolog.commands.late_replay import Replay
from tests.support.om.late_world import CLUSTER, LateWorld


def late_log() -> LateWorld:
    world = LateWorld(LATE_MODE)
    world.do(m.CreateVolume(volume="vol1"))
    for body in (m.CreateVolume(volume="vol1"), m.CreateVolume(volume="NO"), m.DeleteVolume(volume="vol1")):
        world.submit(world.request(body))
    world.settle()
    return world


def described(world: LateWorld, statuses: bool) -> list[str]:
    replay = Replay(cluster=CLUSTER, shard=0, shards=1)
    found = []
    for entry in world.log.entries:
        record = decode(entry.value)
        told = replay.offer(entry.offset, entry.value, record)
        line = _described(
            Entry(offset=entry.offset, timestamp_ms=0, value=entry.value),
            record,
            Reading.COUNTS,
            told if statuses else None,
        )
        if isinstance(record, RequestBatch):
            assert line["kind"] == "RequestBatch"
            found.append(f"{line['index']}: {line['results']}")
    assert replay.replica.digests == world.nodes["n1"].replica.digests
    return found


def test_without_executing_only_the_leaders_own_refusals_are_known():
    world = late_log()
    first = world.leader.index - 3
    assert described(world, statuses=False) == [
        f"{first}..{first}: 1 requests", f"{first + 1}..{first + 3}: 3 requests, 1 refused before they were logged",
    ]  # fmt: skip


def test_executing_tells_which_were_invalid():
    world = late_log()
    first = world.leader.index - 3
    assert described(world, statuses=True) == [
        f"{first}..{first}: 1 OK", f"{first + 1}..{first + 3}: 1 INVALID_VOLUME_NAME, 1 OK, 1 VOLUME_ALREADY_EXISTS",
    ]  # fmt: skip
    assert world.nodes["n1"].replica.late.invalid == 2


def test_every_request_type_has_a_mode_and_no_command_has():
    counted = Counter(request_types())
    assert counted["CreateKey"] == counted["DeleteVolume"] == 1
    assert not counted["Finalize"]
