"""Late validation on a real stack: killed with an unflushed double buffer a node gives the same answers and rows; switches; reads."""

from __future__ import annotations

from collections import Counter

import pytest

from producers import Client
from schemas import result_codes as codes
from schemas.codecs.codec import decode_as, encode
from schemas.records.log import LATE_MODE, LEADER_MODE, DigestBase, RequestBatch
from schemas.records.messages import CreateKey, DeleteKey, Request, Response
from stratolog.cluster.request_modes import request_types, set_modes
from stratolog.commands.admin.replica_base import log_base
from stratolog.commands.late_replay import Replay
from stratolog.drills.kit.load import put_key
from stratolog.drills.kit.rebuild import stored_offset
from tests.support.faults.stack_faults import RawClient, database, fresh_volume
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import read_log

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
HOUR_MS = 3_600_000
KEYS = 40


STACK = {
    "nodes": 3, "shards": 1, "barrier_interval_ms": HOUR_MS, "scrub_interval_ms": 0, "late_flush_interval_ms": HOUR_MS,
}  # fmt: skip
"""Nothing is flushed by itself: what is applied stays in the caches."""


def test_killed_with_an_unflushed_buffer(stack: TestStack, client: Client, fault_round: int) -> None:
    volume = fresh_volume(0, 1)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    set_modes(client, [0], request_types(), LATE_MODE)
    with RawClient(stack.settings.bootstrap_servers, 1) as raw:
        sent: list[Request] = []
        for n in range(KEYS):
            create = CreateKey(volume=volume, bucket="bucket", key=f"k{n}", size=10)
            sent += [raw.request(create), raw.request(DeleteKey(volume=volume, bucket="bucket", key=f"none{n}"))]
        raw.send(*map(encode, sent), shard=0)
        first = {request.call_id: raw.wait_answers(request.call_id, 1)[0] for request in sent}
        statuses = Counter(decode_as(Response, answer).status for answer in first.values())
        assert statuses == {codes.OK: KEYS, codes.KEY_NOT_FOUND: KEYS}
        before = stack.wait_converged()[0]
        leader = stack.wait_leader(0)
        for node in stack.names:
            stack.kill_node(node)
        for node in stack.names:
            with database(stack, node, 0) as store:
                behind = before["applied_offset"] - stored_offset(store)
            assert behind > 0, f"{node} had nothing unflushed"
        for node in stack.names:
            stack.start_node(node)
        stack.wait_led()
        after = stack.wait_converged()[0]
        assert (after["digest"], after["applied_index"]) == (before["digest"], before["applied_index"]), leader
        raw.send(*map(encode, sent), shard=0)
        again = {request.call_id: raw.wait_answers(request.call_id, 2) for request in sent}
    assert {call: set(answers) for call, answers in again.items()} == {call: {answer} for call, answer in first.items()}
    assert stack.wait_converged()[0]["digest"] == before["digest"]


@pytest.mark.slow
def test_both_modes_in_one_log(stack: TestStack, client: Client, fault_round: int) -> None:
    """Switched back and forth while clients write: one effect each, no id twice, a read sees its own write."""
    volume = fresh_volume(0, 1)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    invalid = stack.shard(stack.names[0], 0)["late_invalid"]
    for n in range(6):
        set_modes(client, [0], ["CreateKey", "CommitKey"][n % 2 :], LATE_MODE if n % 3 else LEADER_MODE)
        for key in range(5):
            put_key(client, volume, "bucket", f"{n}/{key}", 10)
            assert client.key_info(volume, "bucket", f"{n}/{key}").info.size == 10
    set_modes(client, [0], request_types(), LATE_MODE)
    with pytest.raises(Exception, match="KEY_NOT_FOUND"):
        client.delete_key(volume, "bucket", "none")
    set_modes(client, [0], request_types(), LEADER_MODE)
    view = stack.wait_converged()[0]
    assert view["late_types"] == []
    assert view["late_invalid"] > invalid
    keys = list(client.list_keys(volume, "bucket"))
    assert len(keys) == 30
    assert len({key.object_id for key in keys}) == 30
    replay = Replay(cluster=stack.settings.cluster, shard=0, shards=1)
    statuses: Counter[str] = Counter()
    for found in read_log(stack.settings.bootstrap_servers, 0).records:
        statuses.update(replay.offer(found.offset, found.value, found.record) or ())
    assert statuses[codes.KEY_NOT_FOUND] >= 1
    assert f"{replay.replica.digests.total():016x}" == view["digest"], "the log alone gives the replicas' rows"


@pytest.mark.slow
def test_a_digest_base_from_the_replicas(stack: TestStack, fault_round: int) -> None:
    stack.wait_converged()
    done = log_base(stack.settings, 0, 5, print)
    assert len(done["agreeing"]) == 3
    log = read_log(stack.settings.bootstrap_servers, 0)
    assert log.counting(RequestBatch)
    assert log.counting(DigestBase)[-1].basis == "scrubs"
    assert not stack.shard(stack.names[0], 0)["flagged"]
