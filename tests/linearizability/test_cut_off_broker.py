"""Three brokers, one of them cut off from the others but reachable by one node: reads there are right or refused, never old.

The broker that is cut off is the one that leads the log's partition. It does not know that it was replaced, and serves its old end of the log to
whoever reaches it: one node, which reaches no other broker. (Kafka's own end offset would make that node's reads "linearizable" and old.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from schemas.settings.values import NodeAddress
from tests.chaos.brokers import leader_of_log
from tests.chaos.campaign import NODE_PORT, broker_hosts
from tests.linearizability.campaign import Campaign, clients_of
from tests.linearizability.checker import ILLEGAL, LINEARIZABLE
from tests.linearizability.history import History
from tests.linearizability.recorder import Reader, crowd
from tests.support.faults import netns
from tests.support.local.stack import LocalKafka, TestStack

SHARD = 0
BROKERS = 3
ALONE = "om1"
"""The node that reaches the broker that is cut off, and no other."""
PATIENCE_S = 180.0
STALE_READS = 10
DEADLINES_MS = (10_000, 60_000, 60_000)
"""Of the writers: an outage of some twenty seconds is to leave few unknown outcomes, each of which the checker must consider."""

reason = cache(netns.why_not)


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason():
        pytest.skip(reason())


pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def network() -> Iterator[netns.Network]:
    with netns.Network() as found:
        yield found


@pytest.fixture
def stack(network: netns.Network, tmp_path: Path) -> Iterator[TestStack]:
    """Brokers and ``om1`` have hosts of their own; the other nodes, the clients and this test are on the machine."""
    kafka = LocalKafka(tmp_path / "kafka", listeners=broker_hosts(network, BROKERS))
    alone = network.add(ALONE)
    with ExitStack() as started:
        started.enter_context(kafka)
        stack = TestStack(tmp_path, nodes=3, kafka=kafka, brokers=BROKERS, shards=1, barrier_interval_ms=500)
        nodes = tuple(
            replace(node, host=alone.address, port=NODE_PORT)
            if node.name == ALONE
            else NodeAddress(name=node.name, host=network.machine.address, port=node.port)
            for node in stack.settings.nodes
        )
        # Their addresses are not this machine's, but nobody else reaches that network.
        stack.settings = replace(stack.settings, nodes=nodes, auth_none_anywhere=True)
        stack.launchers[ALONE] = alone.launcher
        stack.patience_s = PATIENCE_S
        yield started.enter_context(stack)


def let_lead(stack: TestStack, wanted: bool) -> None:
    """Make the node that will be alone the shard's leader, or not."""
    for _ in range(5):
        leader = stack.wait_leader(SHARD)
        if (leader == ALONE) is wanted:
            return
        others = [name for name in stack.names if name != ALONE] if wanted else [ALONE]
        for name in others:
            stack.stop_node(name)
        stack.wait_leader(SHARD, other_than=None if wanted else ALONE)
        for name in others:
            stack.start_node(name)
        stack.wait_led()
    pytest.fail(f"{ALONE} {'never leads' if wanted else 'always leads'}")


@pytest.mark.parametrize("leads", [False, True], ids=["the node follows", "the node leads"])
def test_reads_hold_with_a_broker_cut_off_but_reachable_by_one_node(
    stack: TestStack, network: netns.Network, program: Path, tmp_path: Path, leads: bool
) -> None:
    let_lead(stack, leads)
    stack.wait_converged()
    cut_off = network.hosts[f"kafka{leader_of_log(stack, SHARD)}"]
    rest = [host for name, host in network.hosts.items() if name.startswith("kafka") and host is not cut_off]
    with clients_of(stack, DEADLINES_MS) as clients:
        campaign = Campaign(stack, clients, out=tmp_path / "histories", program=program, seed=time.time_ns())
        history, volumes = campaign.begin()
        readers = campaign.readers(history, volumes)
        old = History()
        stale = next(r for r in campaign.readers(old, volumes, "stale") if r.node == ALONE)
        alone = next(reader for reader in readers if reader.node == ALONE)
        with crowd(campaign.writers(history, volumes), [*readers, stale]):
            stack.wait("writes before", lambda: history.written_since(0, volumes[SHARD]) > 50)
            network.cut(cut_off, [*rest, network.machine])
            network.cut(network.hosts[ALONE], rest)
            cut_ns = time.monotonic_ns()
            try:
                stack.wait("writes by the others", lambda: written_elsewhere(stack, history, volumes, cut_ns))
                answered = stale.answered
                stack.wait("stale reads", lambda: stale.answered > answered + STALE_READS)
            finally:
                network.heal()
            healed_ns = time.monotonic_ns()
            stack.wait("reads of all nodes again", lambda: answered_since(history, readers, healed_ns))
        stack.wait_converged()
        for reader in readers:
            stack.wait(f"a last reading of {reader.node}", reader.read_all)
        honest = campaign.judge(history, "honest")
        assert honest.verdict == LINEARIZABLE, honest
        assert alone.refused > 0, "the node that was cut off never had to refuse a read"
        fooled = campaign.judge(History([*history.operations, *old.operations]), "fooled")
        assert fooled.verdict == ILLEGAL, "its stale reads were not stale: nothing was cut off"
        print(f"{honest.operations} operations, {alone.refused} reads refused by {ALONE}: {honest.verdict}")


def written_elsewhere(stack: TestStack, history: History, volumes: list[str], since_ns: int) -> bool:
    """Say whether others lead by now and writes succeed."""
    leaders = [name for name in stack.leaders(SHARD) if name != ALONE]
    return bool(leaders) and history.written_since(since_ns, volumes[SHARD]) > 30


def answered_since(history: History, readers: list[Reader], since_ns: int) -> bool:
    """Say whether every node has answered a linearizable read that was asked after a moment."""
    nodes = {one.node for one in list(history.operations) if one.called_ns > since_ns}
    return nodes >= {reader.node for reader in readers}
