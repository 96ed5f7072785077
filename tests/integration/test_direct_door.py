"""The direct door on a real stack: requests and lookups, leaders that come and go, and calls through both doors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from producers import Client, NotFound
from producers.errors import StratologError
from producers.requests.core.calls import Outcome
from schemas.records.messages import AddNode, CreateKey, CreateVolume
from tests.support.local.forked import begin_child, found_by
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow]
NODES = 3
BUCKET = ("vol1", "bucket1")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    with TestStack(tmp_path_factory.mktemp("door"), nodes=NODES, shards=1, brokers=1) as found:
        found.wait_led()
        with Client(found.settings.bootstrap_servers) as client:
            client.create_volume(BUCKET[0])
            client.create_bucket(*BUCKET)
        yield found


def addresses(stack: TestStack) -> list[str]:
    return [f"{node.host}:{node.port}" for node in stack.settings.nodes]


@pytest.fixture
def direct(stack: TestStack, all_nodes_run: None) -> Iterator[Client]:
    del all_nodes_run
    with Client(nodes=addresses(stack), caller="direct") as client:
        yield client


def test_what_is_written_by_one_door_is_read_by_the_other(stack: TestStack, direct: Client):
    with Client(stack.settings.bootstrap_servers, read_from=addresses(stack)) as kafka:
        for number in range(20):
            for client, name in ((direct, f"direct{number}"), (kafka, f"kafka{number}")):
                session = client.create_key(*BUCKET, name, size=0)
                client.commit_key(*BUCKET, name, session.session_id, size=0, blocks=[])
        for name in ("direct7", "kafka7"):
            one, other = direct.key_info(*BUCKET, name), kafka.key_info(*BUCKET, name)
            assert one.info == other.info
        names = [entry.key for entry in direct.list_keys(*BUCKET, prefix="direct")]
    assert len(names) == 20
    for consistency in ("stale", "session", "linearizable"):
        found = direct.key_infos(*BUCKET, ["direct0", "none", "kafka19"], consistency=consistency)
        assert [view is not None for view in found] == [True, False, True]
    with pytest.raises(NotFound, match="key 'none'"):
        direct.key_info(*BUCKET, "none")


@pytest.mark.parametrize("doors", ["direct", "kafka", "both"])
def test_forked_processes_share_a_client_and_neither_its_id_nor_its_connections(
    stack: TestStack, all_nodes_run: None, doors: str
):
    del all_nodes_run
    brokers = "" if doors == "direct" else stack.settings.bootstrap_servers
    nodes = [] if doors == "kafka" else addresses(stack)
    with Client(brokers, nodes=nodes, read_from=addresses(stack)) as client:

        def work(who: str) -> bool:
            for n in range(20):
                key = f"{doors}/{who}/{n}"
                client.put_key(*BUCKET, key, key.encode())
                client.delete_key(*BUCKET, key)
                client.put_key(*BUCKET, key, key.encode() * 2)
                with client.open(f"/{BUCKET[0]}/{BUCKET[1]}/{key}") as file:
                    assert file.read() == key.encode() * 2
            return True

        def work_and_close(who: str) -> bool:
            return work(who) and client.close() == []

        assert work("before")
        children = [begin_child(partial(work_and_close, f"child{n}")) for n in range(4)]
        assert work("parent")
        assert [found_by(child) for child in children] == [True] * 4
        assert work("after")
        assert len(list(client.list_keys(*BUCKET, prefix=f"{doors}/"))) == 7 * 20


def test_commands_of_operators_come_with_their_proof(stack: TestStack, direct: Client):
    with pytest.raises(StratologError, match="cluster_secret"):
        direct.call(AddNode(shard=0, node="om1"))
    with Client(nodes=addresses(stack), cluster_secret=stack.settings.secret()) as operator:
        assert operator.call(AddNode(shard=0, node="om1")).status == "OK"


@pytest.mark.parametrize("doors", ["direct", "both"])
def test_nothing_is_lost_or_doubled_when_leaders_are_killed(stack: TestStack, all_nodes_run: None, doors: str):
    del all_nodes_run
    brokers = stack.settings.bootstrap_servers if doors == "both" else ""
    outcomes: dict[int, Outcome] = {}
    stop = threading.Event()
    with Client(brokers, nodes=addresses(stack)) as client:

        def write() -> None:
            number = 0
            while not stop.is_set():
                body = CreateKey(volume=BUCKET[0], bucket=BUCKET[1], key=f"{doors}/{number}", size=0)
                client.submit_with(body, partial(outcomes.__setitem__, number))
                number += 1
                while client.in_flight > 200:
                    time.sleep(0.002)

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            before = len(outcomes)
            while len(outcomes) < before + 500:
                time.sleep(0.01)
            leader = stack.wait_leader(0)
            stack.kill_node(leader)
            before = len(outcomes)
            while len(outcomes) < before + 500:
                time.sleep(0.01)
            stack.start_node(leader)
        stop.set()
        writer.join()
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, StratologError)]
    assert failed == []
    sessions = [outcome.result.session_id for outcome in outcomes.values()]  # type: ignore[union-attr]
    assert len(set(sessions)) == len(outcomes), "each call had one effect"
    stack.wait_converged()


def test_a_moved_leader_names_the_next_one(stack: TestStack, direct: Client):
    leader = stack.wait_leader(0)
    direct.call(CreateVolume(volume="before"))
    stack.stop_node(leader)
    begun_s = time.monotonic()
    for number in range(20):
        direct.call(CreateVolume(volume=f"after{number}"))
    assert time.monotonic() - begun_s < 30
    assert stack.wait_leader(0) in set(stack.names) - {leader}
    stack.start_node(leader)


def test_without_brokers_calls_wait_and_are_answered_when_they_are_back(stack: TestStack, direct: Client):
    stack.kafka.kill_broker(1)
    waiting = direct.submit(CreateVolume(volume="patient"))
    time.sleep(1)
    assert not waiting.done()
    stack.kafka.start_broker(1)
    assert waiting.result(60).status == "OK"
