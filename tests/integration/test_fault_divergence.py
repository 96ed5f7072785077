"""Rows changed behind replicas' backs, and a leader that lies: who notices, what is named, who goes on, how it is repaired.

Each test leaves the stack whole: every replica unflagged and equal to what the log alone gives.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from producers import Client
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import BUCKETS, KEY_TABLE
from schemas.records.log import Put
from schemas.records.messages import AuditReport
from schemas.records.rows import KeyInfo
from stratolog.drills.kit.load import put_key
from tests.support.faults.stack_faults import (
    AuditTap,
    assert_log_agrees,
    bystander,
    database,
    fresh_volume,
    lie_as_leader,
    restart_log_sums,
)
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import read_log, unsigned
from tests.support.logs.logbuilder import row_hash, slot_of

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
SHARDS = 2
SHARD = 0
BUCKET = "bucket"


STACK = {"nodes": 3, "shards": SHARDS, "barrier_interval_ms": 200, "scrub_interval_ms": 1_500}


@pytest.fixture
def volume(stack: TestStack, client: Client) -> str:
    """A volume of shard SHARD with a few keys, applied everywhere."""
    stack.wait_led()
    name = fresh_volume(SHARD, SHARDS)
    client.create_volume(name)
    client.create_bucket(name, BUCKET)
    for number in range(5):
        put_key(client, name, BUCKET, f"key-{number}", 0)
    stack.wait_converged()
    return name


def key_row(volume: str, key: str) -> bytes:
    return f"/{volume}/{BUCKET}/{key}".encode()


def take_down(stack: TestStack, nodes: Sequence[str]) -> None:
    """Kill one node, or stop all: what leads nothing is not missed, and what leads hands over at once."""
    if len(nodes) == 1:
        stack.kill_node(nodes[0])
    else:
        assert set(nodes) == set(stack.nodes)
        stack.stop_nodes()


def change_row(stack: TestStack, nodes: Sequence[str], row: bytes) -> tuple[bytes, bytes]:
    """With the nodes down, change a row of keyTable in the RocksDB of each; return the old and the new value.

    Each flags itself soon after its start: the first pass of its rolling scrub finds the row.
    """
    take_down(stack, nodes)
    old = new = b""
    for node in nodes:
        with database(stack, node, SHARD) as store:
            found = store.get(KEY_TABLE, row)
            assert found is not None
            old = found
            new = encode(replace(decode_as(KeyInfo, old), metadata={"changed": "behind its back"}))
            store.write([(KEY_TABLE, row, new)])
    for node in nodes:
        stack.start_node(node)
    stack.wait("they flag themselves", lambda: flagged(stack) == set(nodes))
    return old, new


def rebuild(stack: TestStack, node: str) -> None:
    """Give a node an empty disk; it replays the log."""
    stack.kill_node(node)
    shutil.rmtree(stack.settings.node_folder(node))
    stack.start_node(node)
    stack.wait_converged()


def flagged(stack: TestStack) -> set[str]:
    return {name for name in stack.nodes if stack.shard(name, SHARD).get("flagged")}


def assert_whole(stack: TestStack, client: Client) -> None:
    """Assert that nobody is flagged, everybody serves, and the log gives what the replicas hold."""
    stack.wait("nobody is flagged", lambda: not flagged(stack))
    name = fresh_volume(SHARD, SHARDS)
    client.create_volume(name)
    stack.wait_converged()
    for node in stack.nodes:
        assert stack.get(node, f"/v1/volumes/{name}").status_code == 200
        assert stack.get(node, "/health").status_code == 200
    assert_log_agrees(stack, SHARD)


def scrub(stack: TestStack, tap: AuditTap) -> tuple[int, dict[str, dict[int, int]]]:
    """Return offset and digests by node of a scrub barrier that comes from now on."""
    after = read_log(stack.settings.bootstrap_servers, SHARD).position.offset
    found = stack.wait("a scrub by all nodes", lambda: tap.barrier(SHARD, "scrubbed", stack.names, after))
    offset = next(iter(found.values())).barrier_offset
    return offset, {node: unsigned(report.slots, report.sums) for node, report in found.items()}


def incremental(tap: AuditTap, offset: int) -> list[dict[int, int]]:
    found = [report for report in tap.reports(SHARD, "incremental") if report.barrier_offset == offset]
    return [unsigned(report.slots, report.sums) for report in found]


def evidence_of(tap: AuditTap, after: int) -> dict[str, AuditReport]:
    """Return evidence by node, about records behind offset ``after``."""
    found = tap.reports(SHARD, "evidence")
    return {report.node: report for report in found if report.evidence and report.evidence.offset > after}


def rows_of_slot(stack: TestStack, slot: int) -> dict[str, dict[str, int]]:
    """Return each node's rows of a digest bucket: key in hex -> hash."""
    found = {}
    for node in stack.nodes:
        answer = stack.get(node, f"/v1/shards/{SHARD}/rows", cf=KEY_TABLE, bucket=slot % BUCKETS).json()
        found[node] = {row["key"]: row["hash"] for row in answer["rows"]}
    return found


def test_a_followers_row_is_changed(stack: TestStack, client: Client, volume: str, fault_round: int) -> None:
    damaged = bystander(stack)
    healthy = [name for name in stack.names if name != damaged]
    row = key_row(volume, "key-1")
    slot = slot_of(KEY_TABLE, row)
    old, new = change_row(stack, [damaged], row)
    with AuditTap(stack.settings.bootstrap_servers) as tap:
        # Not touched: only a scan sees it, and ends its service. Scrub, log and rows name replica, family, bucket, key.
        evidence = stack.shard(damaged, SHARD)["evidence"]
        assert (evidence["claim"], evidence["cf"], evidence["leader"]) == ("scan", KEY_TABLE, "")
        assert_serves_no_more(stack, damaged, volume)
        offset, scrubbed = scrub(stack, tap)
        truth = read_log(stack.settings.bootstrap_servers, SHARD).sums(up_to_offset=offset)
        assert [scrubbed[name] for name in healthy] == [truth, truth]
        differing = {s for s in {*truth, *scrubbed[damaged]} if truth.get(s) != scrubbed[damaged].get(s)}
        assert differing == {slot}
        assert incremental(tap, offset) == [truth] * 3, "an incremental digest cannot see it"
        rows = rows_of_slot(stack, slot)
        assert rows[damaged][row.hex()] == row_hash(KEY_TABLE, row, new)
        assert rows[damaged] == {**rows[healthy[0]], row.hex(): row_hash(KEY_TABLE, row, new)}
        assert rows[healthy[0]] == rows[healthy[1]]
        # Touched: the replica itself names the key.
        leader = stack.wait_leader(SHARD)
        after = read_log(stack.settings.bootstrap_servers, SHARD).position.offset
        client.delete_key(volume, BUCKET, "key-1")
        stack.wait("its evidence is published", lambda: evidence_of(tap, after))
        assert set(evidence_of(tap, after)) == {damaged}
        named = evidence_of(tap, after)[damaged].evidence
        expected = {
            "cf": KEY_TABLE, "key": row, "claim": "prev", "leader": leader,
            "claimed": row_hash(KEY_TABLE, row, old), "own": row_hash(KEY_TABLE, row, new),
        }  # fmt: skip
        assert {name: getattr(named, name) for name in expected} == expected
    assert_serves_no_more(stack, damaged, volume)
    put_key(client, volume, BUCKET, "afterwards", 3)
    for name in healthy:
        assert stack.get(name, f"/v1/volumes/{volume}/buckets/{BUCKET}/keys").status_code == 200
    # The flag is durable; a rebuilt replica is whole.
    stack.kill_node(damaged)
    stack.start_node(damaged)
    stack.wait("it answers", lambda: stack.status(damaged))
    assert_serves_no_more(stack, damaged, volume)
    rebuild(stack, damaged)
    assert_whole(stack, client)


def assert_serves_no_more(stack: TestStack, node: str, volume: str) -> None:
    for consistency in ("stale", "session", "linearizable"):
        answer = stack.get(node, f"/v1/volumes/{volume}", consistency=consistency)
        assert (answer.status_code, answer.json()["error"]) == (503, "REPLICA_FLAGGED")
    assert stack.get(node, "/health").status_code == 503
    assert node not in stack.leaders(SHARD)


@pytest.mark.slow
def test_a_node_whose_row_is_changed_does_not_lead(
    stack: TestStack, client: Client, volume: str, fault_round: int
) -> None:
    damaged = bystander(stack)
    change_row(stack, [damaged], key_row(volume, "key-2"))
    predecessor = stack.wait_leader(SHARD)
    stack.stop_node(predecessor)
    assert stack.wait_leader(SHARD, other_than=predecessor) != damaged
    client.delete_key(volume, BUCKET, "key-2")
    put_key(client, volume, BUCKET, "afterwards", 3)
    stack.start_node(predecessor)
    stack.wait_led()
    assert flagged(stack) == {damaged}
    assert_serves_no_more(stack, damaged, volume)
    rebuild(stack, damaged)
    assert_whole(stack, client)


@pytest.mark.slow
def test_all_replicas_are_changed_alike(stack: TestStack, client: Client, volume: str, fault_round: int) -> None:
    row = key_row(volume, "key-3")
    slot = slot_of(KEY_TABLE, row)
    old, new = change_row(stack, stack.names, row)
    answers = [stack.get(name, f"/v1/shards/{SHARD}/digest", scrub="true").json() for name in stack.names]
    scanned = [unsigned(answer["slots"], answer["sums"]) for answer in answers]
    truth = read_log(stack.settings.bootstrap_servers, SHARD).sums()
    one = scanned[0]
    assert scanned == [one] * 3, "they agree with each other"
    assert {s for s in {*truth, *one} if truth.get(s) != one.get(s)} == {slot}, "and not with the log"
    assert signed_difference(one, truth, slot) == signed_change(row, old, new)
    assert not stack.leaders(SHARD)
    # The rows are put right: each finds that in its first pass, and serves again.
    take_down(stack, stack.names)
    for node in stack.names:
        with database(stack, node, SHARD) as store:
            store.write([(KEY_TABLE, row, old)])
    for node in stack.names:
        stack.start_node(node)
    stack.wait_led()
    assert_whole(stack, client)


def signed_difference(one: dict[int, int], other: dict[int, int], slot: int) -> int:
    return (one.get(slot, 0) - other.get(slot, 0)) % (1 << 64)


def signed_change(row: bytes, old: bytes, new: bytes) -> int:
    return (row_hash(KEY_TABLE, row, new) - row_hash(KEY_TABLE, row, old)) % (1 << 64)


@pytest.mark.slow
def test_a_leader_claims_a_false_prev(stack: TestStack, client: Client, volume: str, fault_round: int) -> None:
    liar = bystander(stack)
    honest = [name for name in stack.names if name != liar]
    row = key_row(volume, "key-4")
    stack.kill_node(liar)
    value: list[bytes] = []
    lie = 4711

    def operation(_: Any) -> Put:
        found = read_log(stack.settings.bootstrap_servers, SHARD).rows()[KEY_TABLE, row]
        value[:] = [found]
        return Put(cf=KEY_TABLE, key=row, value=encode(replace(decode_as(KeyInfo, found), owner="liar")), prev=lie)

    with AuditTap(stack.settings.bootstrap_servers) as tap:
        offset = lie_as_leader(stack, liar, SHARD, operation)
        stack.wait("both followers' evidence", lambda: set(evidence_of(tap, offset - 1)) >= set(honest))
        for name in honest:
            evidence = evidence_of(tap, offset - 1)[name].evidence
            assert evidence is not None
            assert (evidence.leader, evidence.offset, evidence.operation) == (liar, offset, 0)
            assert (evidence.cf, evidence.key, evidence.claim, evidence.claimed) == (KEY_TABLE, row, "prev", lie)
            assert evidence.own == row_hash(KEY_TABLE, row, value[0])
    # A majority has the same row: the leader was wrong. They go on without it.
    stack.wait("the honest ones unflag", lambda: not flagged(stack))
    assert stack.wait_leader(SHARD) in honest
    put_key(client, volume, BUCKET, "afterwards", 3)
    stack.wait_converged()
    log = read_log(stack.settings.bootstrap_servers, SHARD)
    one = stack.get(honest[0], f"/v1/shards/{SHARD}/digest", scrub="true").json()
    assert unsigned(one["slots"], one["sums"]) != log.sums(), "the log's sums believe the lie"
    # The liar reads its own lie, which the others have settled: it holds what they hold at the next barrier.
    with AuditTap(stack.settings.bootstrap_servers) as tap:
        stack.start_node(liar)
        stack.wait("the liar's evidence", lambda: liar in evidence_of(tap, offset - 1))
    put_key(client, volume, BUCKET, "later", 3)
    stack.wait("the liar unflags", lambda: not flagged(stack))
    stack.wait_converged()
    restart_log_sums(stack.settings.bootstrap_servers, client, SHARD)
    assert_whole(stack, client)
