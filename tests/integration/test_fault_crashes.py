"""Nodes that die, freeze or stop while clients write: who leads then, what was acknowledged, what replicas hold afterwards."""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from producers import Client
from producers.requests.keys import session_of
from replicated_db.core.log.reading import Reading
from schemas.codecs.codec import decode_as
from schemas.codecs.envelopes import responses_in
from schemas.records.log import LeaderClaim
from schemas.records.messages import CreateKey, Response
from schemas.topics import OM_RESPONSES
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.faults import lose_leader
from stratolog.drills.kit.load import put_key
from stratolog.drills.kit.rebuild import stored_offset
from stratolog.drills.kit.session import Session
from tests.support.faults.stack_faults import (
    Tap,
    assert_all_agree,
    assert_journal_holds,
    assert_log_agrees,
    bystander,
    database,
    fresh_volume,
    load_on_all_shards,
)
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import read_log

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.usefixtures("all_nodes_run")]
SHARDS = 2
MORE_KEYS = 30
BURST = 1_000
BURSTS = 5
ATTEMPTS = 4


STACK = {"nodes": 3, "shards": SHARDS, "barrier_interval_ms": 200}


def test_a_leader_is_killed(stack: TestStack, client: Client, fault_round: int) -> None:
    broken, healthy = 0, 1
    victim = stack.wait_leader(broken)
    if victim in stack.leaders(healthy):
        pytest.fail(f"{victim} leads both shards, though three nodes run")
    load = load_on_all_shards(client, SHARDS)
    broken_volume, healthy_volume = load.journals
    with load:
        load.wait_more(MORE_KEYS)
        lost = lose_leader(Session(), stack, broken, ProcessFault.KILL, lambda: load.wait_more(MORE_KEYS))
        lost.give_back()
        stack.wait_led()
        load.wait_more(MORE_KEYS, broken_volume)
    killed_s = lost.at_s
    assert lost.successor != victim
    again_s = min(s for ack in load.journals[broken_volume].acks if (s := ack.at_ms / 1000) > killed_s + 0.5)
    pause_s = load.journals[broken_volume].longest_gap_s(killed_s, again_s)
    healthy_pause_s = load.journals[healthy_volume].longest_gap_s(killed_s, again_s)
    print(f"broken shard paused for {pause_s:.2f} s, the other for {healthy_pause_s:.2f} s")
    assert healthy_pause_s < pause_s / 2, "the other shard paused too"
    assert_all_agree(stack, load)


@pytest.mark.slow
def test_a_follower_is_killed(stack: TestStack, client: Client, fault_round: int) -> None:
    victim = bystander(stack)
    load = load_on_all_shards(client, SHARDS)
    with load:
        load.wait_more(MORE_KEYS)
        stack.kill_node(victim)
        stored = {}
        for shard in range(SHARDS):
            with database(stack, victim, shard) as store:
                stored[shard] = stored_offset(store)
        load.wait_more(MORE_KEYS)
        stack.start_node(victim)
        load.wait_more(MORE_KEYS)
    assert_all_agree(stack, load)
    for shard, offset in stored.items():
        view = stack.shard(victim, shard)
        read = view["records_applied"] + view["records_void"]
        # It has read each record behind its stored position once, and none before it.
        assert read == view["read_offset"] - offset, f"shard {shard}: stored {offset}, {view}"
        assert offset > 0


def test_a_paused_leader_wakes(stack: TestStack, client: Client, fault_round: int) -> None:
    # On waking it may learn of its loss before it appends anything, which shows nothing: then it is paused once more, at a
    # moment when a barrier is due as soon as it wakes.
    found = pause_and_wake_a_leader(stack, client)
    for _ in range(ATTEMPTS):
        if found:
            return
        stack.wait_led()
        found = pause_and_wake_a_quiet_leader(stack, client)
    assert found, f"paused {1 + ATTEMPTS} times, it never appended anything after waking"


def pause_and_wake_a_quiet_leader(stack: TestStack, client: Client) -> list[str]:
    """Freeze a leader between a write and the barrier that follows it; return what it appended after waking."""
    shard = 0
    stale = stack.wait_leader(shard)
    stale_term = stack.shard(stale, shard)["term"]
    volume = fresh_volume(shard, SHARDS)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    put_key(client, volume, "bucket", "last", 1)
    stack.pause_node(stale)
    stack.wait_leader(shard, other_than=stale)
    put_key(client, volume, "bucket", "newest", 77)
    stack.resume_node(stale)
    stack.wait(f"{stale} follows", lambda: stack.shard(stale, shard).get("role") == "follower")
    stack.wait_converged()
    assert_log_agrees(stack, shard)
    return void_records_after_the_next_claim(stack, shard, stale_term)


def void_records_after_the_next_claim(stack: TestStack, shard: int, stale_term: int) -> list[str]:
    """Return the kinds of the records that a stale leader appended; all of them must be void."""
    log = read_log(stack.settings.bootstrap_servers, shard)
    claimed = next(j.offset for j in log.records if isinstance(j.record, LeaderClaim) and j.record.term > stale_term)
    appended = [j for j in log.records if j.offset > claimed and j.record.term == stale_term]
    found = [type(judged.record).__name__ for judged in appended]
    print(f"the stale leader appended {found}")
    assert {judged.reading for judged in appended} <= {Reading.STALE_TERM}
    return found


def pause_amid_a_burst(stack: TestStack, client: Client, leader: str, volume: str) -> list[Future[Response]]:
    """Pause a leader that has requests in its queue, which it will execute when it wakes; returns their answers.

    Other work may keep this process from pausing it in time: then it is woken at once, and gets another burst.
    """
    for turn in range(BURSTS):
        burst = [
            client.submit(CreateKey(volume=volume, bucket="bucket", key=f"burst-{turn}-{n}", size=0))
            for n in range(BURST)
        ]
        burst[BURST // 20].result()
        stack.pause_node(leader)
        if not all(answer.done() for answer in burst):
            return burst
        stack.resume_node(leader)
    raise AssertionError(f"{BURSTS} bursts of {BURST} requests were answered before {leader} was paused")


def pause_and_wake_a_leader(stack: TestStack, client: Client) -> list[str]:
    """Check everything that must hold, and return what the stale leader appended."""
    shard = 0
    stale = stack.wait_leader(shard)
    stale_term = stack.shard(stale, shard)["term"]
    volume = fresh_volume(shard, SHARDS)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    path = f"/v1/volumes/{volume}/buckets/bucket/key?name=newest"
    with Tap(stack.settings.bootstrap_servers, OM_RESPONSES) as responses:
        load = load_on_all_shards(client, SHARDS)
        with load:
            load.wait_more(MORE_KEYS)
            burst = pause_amid_a_burst(stack, client, stale, volume)
            stack.wait_leader(shard, other_than=stale)
            put_key(client, volume, "bucket", "newest", 77)
            answers: list[tuple[int, str]] = []
            readers = [
                threading.Thread(target=read_into, args=(answers, f"http://{stack.address(stale)}{path}"))
                for _ in range(3)
            ]
            for thread in readers:
                thread.start()
            stack.resume_node(stale)
            for thread in readers:
                thread.join(60)
                assert not thread.is_alive()
            sessions = {session_of(future.result(60)).session_id for future in burst}
            assert len(sessions) == BURST
            load.wait_more(MORE_KEYS)
            stack.wait(f"{stale} follows", lambda: stack.shard(stale, shard).get("role") == "follower")
        assert_all_agree(stack, load)
        assert_one_answer_for_each_call(responses)
    assert len(answers) >= len(readers)
    for status, text in answers:
        assert status in (200, 503), text
        assert status == 503 or '"size":77' in text.replace(" ", ""), text
    found = void_records_after_the_next_claim(stack, shard, stale_term)
    assert stack.shard(stale, shard)["records_void"] >= len(found)
    return found


def read_into(answers: list[tuple[int, str]], url: str) -> None:
    """Read linearizably a few times; the first question waits in the node's socket until it wakes."""
    for _ in range(4):
        answer = httpx.get(url, timeout=30)
        answers.append((answer.status_code, answer.text))


def assert_one_answer_for_each_call(tap: Tap) -> None:
    answers: dict[Any, set[bytes]] = defaultdict(set)
    for value in (response for record in tap.poll() for response in responses_in(record)):
        response = decode_as(Response, value)
        answers[response.client_id, response.call_id].add(value)
    assert answers
    assert max(map(len, answers.values())) == 1, "one call has two different answers"


@pytest.mark.slow
def test_a_graceful_stop_hands_over(stack: TestStack, client: Client, fault_round: int) -> None:
    shard = 1
    load = load_on_all_shards(client, SHARDS)
    with load:
        load.wait_more(MORE_KEYS)
        lost = lose_leader(Session(), stack, shard, ProcessFault.STOP, lambda: load.wait_more(MORE_KEYS))
        stopped_s = time.monotonic()
        lost.give_back()
    pause_s = load.journals[list(load.journals)[shard]].longest_gap_s(lost.at_s, stopped_s)
    print(f"handing over took {pause_s:.2f} s")
    assert_all_agree(stack, load)


@pytest.mark.slow
def test_all_nodes_restart_from_disk(stack: TestStack, client: Client, fault_round: int) -> None:
    load = load_on_all_shards(client, SHARDS)
    with load:
        load.wait_more(MORE_KEYS)
    before = stack.wait_converged()
    stack.stop_nodes()
    for name in stack.names:
        stack.start_node(name)
    stack.wait_led()
    after = stack.wait_converged()
    for shard in range(SHARDS):
        assert (after[shard]["digest"], after[shard]["applied_index"]) == (
            before[shard]["digest"], before[shard]["applied_index"],
        )  # fmt: skip
        assert after[shard]["records_applied"] + after[shard]["records_void"] < before[shard]["applied_offset"]
    with load_on_all_shards(client, SHARDS) as more:
        more.wait_more(MORE_KEYS)
    assert_all_agree(stack, load)
    assert_journal_holds(stack, more)


@pytest.mark.slow
def test_an_empty_disk_replays_the_log(stack: TestStack, client: Client, fault_round: int) -> None:
    load = load_on_all_shards(client, SHARDS)
    with load:
        load.wait_more(MORE_KEYS)
    stack.wait_converged()
    victim = bystander(stack)
    stack.stop_node(victim)
    shutil.rmtree(stack.settings.node_folder(victim))
    stack.start_node(victim)
    assert_all_agree(stack, load)
    for shard in range(SHARDS):
        view = stack.shard(victim, shard)
        assert view["records_applied"] + view["records_void"] == view["read_offset"] + 1
