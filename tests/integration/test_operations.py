"""What operators do to a running cluster, while clients write: nothing acknowledged is lost, and the pause is told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from producers import Client
from schemas.codec import decode_as, encode
from schemas.messages import CreateVolume, Response
from schemas.result_codes import OK, OVERLOADED, retry_after_ms
from stratolog.commands.operations import move, shard_views
from stratolog.errors import UserError
from tests.support import hanging_node
from tests.support.faults import (
    PATIENCE_S,
    Load,
    RawClient,
    assert_journal_holds,
    assert_log_agrees,
    fresh_volume,
    fresh_volumes,
)
from tests.support.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
SHARDS = 2
MORE_KEYS = 30
MAX_QUEUED = 300
FLOOD = 1_500
FEW = 20


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(
        nodes=3, shards=SHARDS, barrier_interval_ms=200, watchdog_ms=1_000, max_queued_requests=MAX_QUEUED
    )


@pytest.fixture(scope="module")
def client(stack: TestStack) -> Iterator[Client]:
    found = Client(
        stack.settings.bootstrap_servers, caller="tester", read_from=[stack.address(name) for name in stack.names]
    )
    yield found
    found.close(timeout_ms=1000)


@pytest.fixture(autouse=True)
def all_nodes_run(stack: TestStack) -> None:
    for name in stack.names:
        if name not in stack.nodes:
            stack.start_node(name)
    stack.wait_led()


def load_on_all_shards(client: Client) -> Load:
    return Load(client, [fresh_volume(shard, SHARDS) for shard in range(SHARDS)])


def assert_all_agree(stack: TestStack, load: Load) -> None:
    stack.wait_converged()
    assert_journal_holds(stack, load)
    for shard in range(SHARDS):
        assert_log_agrees(stack, shard)


def wait_leads(stack: TestStack, shard: int, node: str) -> None:
    stack.wait(f"{node} leads shard {shard}", lambda: stack.leaders(shard) == [node])


def test_transfer(stack: TestStack, client: Client, fault_round: int) -> None:
    """To the node that leads nothing, on to the other shard's leader, home to the owner; then the borrower dies."""
    owner, other = stack.wait_leader(0), stack.wait_leader(1)
    third = next(name for name in stack.names if name not in (owner, other))
    load = load_on_all_shards(client)
    volume = next(iter(load.journals))
    with load:
        load.wait_more(volume, MORE_KEYS)
        for target in (third, other, owner, third):
            begun_s = time.monotonic()
            done = move(stack.settings, 0, target)
            assert done["moved"]
            assert stack.leaders(0) == [target]
            load.wait_more(volume, MORE_KEYS)
            pause_s = load.journals[volume].longest_gap_s(begun_s, time.monotonic())
            print(f"to {target}: nobody led for {done['gap_ms']:.0f} ms; writers paused for {pause_s * 1000:.0f} ms")
            views = shard_views(stack.settings, 0)
            assert [name for name, view in views.items() if view["owner"]] == [owner]
            assert views[owner]["lent_to"] == (None if target == owner else target)
            assert views[target]["borrowed_from"] == (None if target == owner else owner)
        assert not move(stack.settings, 0, third)["moved"]
        begun_s = time.monotonic()
        stack.kill_node(third)
        wait_leads(stack, 0, owner)
        load.wait_more(volume, MORE_KEYS)
        pause_s = load.journals[volume].longest_gap_s(begun_s, time.monotonic())
        print(f"borrower killed: writers paused for {pause_s * 1000:.0f} ms")
        with pytest.raises(UserError, match=f"{third} does not answer"):
            move(stack.settings, 0, third)
        load.wait_more(volume, MORE_KEYS)
        stack.start_node(third)
        stack.wait_led()
    assert_all_agree(stack, load)


def test_a_graceful_stop_hands_over(stack: TestStack, client: Client, fault_round: int) -> None:
    owner = stack.wait_leader(0)
    load = load_on_all_shards(client)
    volume = next(iter(load.journals))
    with load:
        load.wait_more(volume, MORE_KEYS)
        begun_s = time.monotonic()
        stack.stop_node(owner)
        stopped_s = time.monotonic() - begun_s
        successor = stack.wait_leader(0, other_than=owner)
        load.wait_more(volume, MORE_KEYS)
        pause_s = load.journals[volume].longest_gap_s(begun_s, time.monotonic())
        print(f"stopped in {stopped_s:.2f} s; writers paused for {pause_s * 1000:.0f} ms until {successor} led")
        stack.start_node(owner)
        stack.wait_led()
    assert_all_agree(stack, load)


def test_a_leader_whose_disk_hangs_gives_up_all_leadership(stack: TestStack, client: Client, fault_round: int) -> None:
    """Its process lives and its heartbeats go on, so only its own watchdog can notice."""
    victim = stack.wait_leader(0)
    stack.stop_node(victim)
    stack.start_node(victim, [sys.executable, str(hanging_node.__file__), victim])
    stack.wait_led()
    move(stack.settings, 0, victim)
    move(stack.settings, 1, victim)
    load = load_on_all_shards(client)
    hang = hanging_node.hang_file(stack.settings.node_config(victim).data_dir / "shard-0")
    with load:
        for volume in load.journals:
            load.wait_more(volume, MORE_KEYS)
        begun_s = time.monotonic()
        hang.touch()
        try:
            # It may not answer questions: a follower's write to that disk stands still in its event loop.
            stack.wait(
                "the others lead both shards",
                lambda: all(any(name != victim for name in stack.leaders(shard)) for shard in range(SHARDS)),
            )
            for volume in load.journals:
                load.wait_more(volume, MORE_KEYS)
            pauses = [journal.longest_gap_s(begun_s, time.monotonic()) for journal in load.journals.values()]
            print(f"pauses of the hung shard and of the other: {pauses[0]:.2f} s, {pauses[1]:.2f} s")
        finally:
            hang.unlink()
        stack.wait_led()
        for volume in load.journals:
            load.wait_more(volume, MORE_KEYS)
    assert_all_agree(stack, load)
    assert "its leader has not turned for" in stack.log_file(victim).read_text()
    stack.wait(f"{victim} may lead again", lambda: not stack.get(victim, "/v1/shards/0/fitness").json()["against"])


def test_a_full_queue_refuses_and_clients_get_through_all_the_same(stack: TestStack, fault_round: int) -> None:
    """More requests than the queue may hold wait while the leader is paused: the surplus is refused with a hint, none is lost."""
    volumes = fresh_volumes(0, SHARDS, FLOOD + FEW)
    leader = stack.wait_leader(0)
    with (
        RawClient(stack.settings.bootstrap_servers, SHARDS) as raw,
        Client(stack.settings.bootstrap_servers, caller="tester") as client,
        ThreadPoolExecutor(FEW) as pool,
    ):
        requests = [raw.request(CreateVolume(volume=volume)) for volume in volumes[:FLOOD]]
        stack.pause_node(leader)
        try:
            raw.send(*map(encode, requests), shard=0)
            created = [pool.submit(client.create_volume, volume) for volume in volumes[FLOOD:]]
        finally:
            stack.resume_node(leader)
        stack.wait("every request is answered", lambda: len(raw.answers()) >= FLOOD)
        for future in created:
            future.result(PATIENCE_S)
        answers = [decode_as(Response, value) for value in raw.answers()]
        refused = [answer for answer in answers if answer.status == OVERLOADED]
        print(f"{len(refused)} of {FLOOD} refused: {refused[0].message}")
        assert 0 < len(refused) <= FLOOD - MAX_QUEUED
        assert all((retry_after_ms(answer.message) or 0) > 0 and answer.index == -1 for answer in refused)
        # What the SDK does for its callers: the same bytes again, until there is an answer.
        left = {answer.call_id for answer in refused}
        while left:
            raw.send(*(encode(request) for request in requests if request.call_id in left), shard=0)
            wanted = len(answers) + len(left)
            stack.wait("answers", partial(lambda number: len(raw.answers()) >= number, wanted))
            answers = [decode_as(Response, value) for value in raw.answers()]
            left -= {answer.call_id for answer in answers if answer.status == OK}
        assert {answer.status for answer in answers} == {OK, OVERLOADED}
    stack.wait_converged()
    for shard in range(SHARDS):
        assert_log_agrees(stack, shard)
