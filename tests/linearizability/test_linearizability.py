"""Histories of a real stack under faults are linearizable; reads that are stale, planted or real, are found out."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producers import Client
from tests.linearizability.campaign import FAULTS, SETTINGS, Campaign, clients_of
from tests.linearizability.checker import ILLEGAL, LINEARIZABLE
from tests.linearizability.history import History, Operation
from tests.linearizability.recorder import BUCKETS, COMMITS, Reader, Writer
from tests.support.faults.stack_faults import bystander
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]
HISTORIES = len(FAULTS)
STALE_ATTEMPTS = 20
STALE_READERS = 8


STACK = {"nodes": 3, **SETTINGS}


@pytest.fixture(scope="module")
def clients(stack: TestStack) -> Iterator[list[Client]]:
    with clients_of(stack) as found:
        yield found


@pytest.fixture(scope="module")
def campaign(
    stack: TestStack, clients: list[Client], program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Campaign:
    return Campaign(stack, clients, out=tmp_path_factory.mktemp("histories"), program=program, seed=time.time_ns())


def test_histories_under_faults_are_linearizable(campaign: Campaign, stack: TestStack, fault_round: int) -> None:
    verdicts = [verdict for _, verdict in campaign.run(HISTORIES)]
    print(campaign.table())
    assert [verdict.verdict for verdict in verdicts] == [LINEARIZABLE] * HISTORIES, verdicts
    assert set(campaign.tallies) == set(FAULTS)
    assert all(tally.reads > 0 for tally in campaign.tallies.values())
    assert sum(tally.by_door for tally in campaign.tallies.values()) > 0
    assert sum(tally.by_pages for tally in campaign.tallies.values()) > 0
    assert sum(tally.puts for tally in campaign.tallies.values()) > 0


@pytest.mark.slow
def test_a_lie_planted_in_a_recorded_history_is_found(campaign: Campaign, stack: TestStack) -> None:
    stack.wait_led()
    history, volumes = campaign.begin()
    writer, readers = campaign.writers(history, volumes)[-1], campaign.readers(history, volumes)
    place = {"volume": volumes[0], "bucket": BUCKETS[0]}
    for _ in range(3):
        writer.put(**place, key="k1")
        stack.wait(
            "an answer of every node", lambda: all(reader.read("key_info", **place, key="k1") for reader in readers)
        )
    assert campaign.judge(history, "honest").verdict == LINEARIZABLE
    first, *_, last = [one for one in history.operations if one.op == "key_info"]
    assert first.result is not None
    lie = copy.deepcopy(history.operations)
    next(one for one in lie if one.called_ns == last.called_ns).result = dict(first.result)
    verdict = campaign.judge(History(lie), "planted")
    assert verdict.verdict == ILLEGAL
    assert verdict.illegal[0]["call"] == last.called_ns


@pytest.mark.slow
def test_a_stale_read_from_a_paused_follower_is_found(
    campaign: Campaign, stack: TestStack, clients: list[Client]
) -> None:
    """A follower that wakes up answers a ``stale`` read before it has caught up. It may be too quick: then it is tried again."""
    for _ in range(STALE_ATTEMPTS):
        stack.wait_led()
        history, stale, linearizable = record_waking_follower(campaign, stack)
        assert campaign.judge(History([*history.operations, *linearizable]), "waking").verdict == LINEARIZABLE
        latest = max(one.arguments["size"] for one in history.operations if one.op in COMMITS)
        if all(one.result == {"code": "OK", "size": latest} for one in stale):
            continue
        verdict = campaign.judge(History([*history.operations, *stale]), "stale")
        assert verdict.verdict == ILLEGAL
        assert verdict.illegal[0]["operation"].startswith("key_info")
        return
    pytest.fail("the follower was never seen to be stale")


def record_waking_follower(
    campaign: Campaign, stack: TestStack
) -> tuple[History, list[Operation], list[Operation]]:  # fmt: skip
    """Freeze a follower, write, ask it while it is frozen, wake it; return the writes, its stale and its linearizable reads."""
    shard = 0
    history, volumes = campaign.begin()
    place = {"volume": volumes[shard], "bucket": BUCKETS[0]}
    writer = campaign.writers(history, volumes)[-1]
    writer.put(**place, key="k1")
    stack.wait_converged()
    frozen = bystander(stack)
    reads = {"stale": History(), "linearizable": History()}
    readers = [
        next(r for r in campaign.readers(seen, volumes, consistency) if r.node == frozen)
        for consistency, seen in reads.items()
        for _ in range(STALE_READERS)
    ]
    for reader in readers:
        reader.door_share = 0.0  # its questions are to lie in sockets that are connected
    stack.wait("connections", lambda: all(reader.read("key_info", **place, key="k1") for reader in readers))
    for seen in reads.values():
        seen.operations.clear()
    stack.pause_node(frozen)
    try:
        write_and_ask(writer, readers, place, wake=lambda: stack.resume_node(frozen))
    finally:
        stack.resume_node(frozen)
    for reader in readers:
        reader.close()
    return history, reads["stale"].operations, reads["linearizable"].operations


def write_and_ask(writer: Writer, readers: list[Reader], place: dict[str, str], wake: Callable[[], None]) -> None:
    for _ in range(20):
        writer.put(**place, key="k1")
    threads = [
        threading.Thread(target=reader.read, args=("key_info",), kwargs={**place, "key": "k1"}) for reader in readers
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # for the questions to lie in the sockets; if they do not yet, it is another attempt
    wake()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
