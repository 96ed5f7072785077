"""What operators do to a running cluster, while clients write: nothing acknowledged is lost, and the pause is told."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from om_processors.execution.service import OM_FAMILIES
from om_processors.serving.write_audit import FILE_NAME
from producers import Client
from producers.errors import RequestFailed
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.digests import FIRST_CHAIN, next_chain
from replicated_db.shell.process import EXIT_FATAL
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import decode_as, encode, encode_at
from schemas.features import INITIAL, LATEST
from schemas.records.log import Genesis, LeaderClaim
from schemas.records.messages import AddNode, CreateVolume, Response
from schemas.result_codes import OK, OVERLOADED, PREPARED, retry_after_ms
from schemas.settings.values import NodeAddress
from schemas.topics import OM_LOG
from stratolog.cluster.leadership import move, shard_views
from stratolog.commands.admin.members import log_members
from stratolog.commands.admin.upgrades import cancel_prepare, finalize_shards, prepare_shards
from stratolog.errors import Unavailable, UserError
from stratolog.local.ports import free_ports
from stratolog.local.stack import topic_plan
from stratolog.local.topics import ensure_topics
from tests.support.faults import hanging_node
from tests.support.faults.stack_faults import (
    PATIENCE_S,
    AuditTap,
    RawClient,
    assert_all_agree,
    assert_log_agrees,
    bystander,
    fresh_volume,
    fresh_volumes,
    load_on_all_shards,
    run_to_its_end,
)
from tests.support.local.stack import LocalKafka, TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.usefixtures("all_nodes_run")]
SHARDS = 2
MORE_KEYS = 30
MAX_QUEUED = 300
FLOOD = 1_500
FEW = 20


@pytest.fixture(scope="module")
def stack(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    """A cluster that software of the first feature level made: its logs begin with Genesis as that wrote it."""
    found = TestStack(
        tmp_path_factory.mktemp("stack"), nodes=3, kafka=lease_kafka(), shards=SHARDS, barrier_interval_ms=200,
        leader_watchdog_ms=1_000, max_queued_requests=MAX_QUEUED, write_audit=True,
    )  # fmt: skip
    ensure_topics(found.settings.bootstrap_servers, topic_plan(found.settings))
    producer = Producer({"bootstrap.servers": found.settings.bootstrap_servers})
    for shard in range(SHARDS):
        for value in first_records(found, shard):
            producer.produce(OM_LOG, value, partition=shard)
    assert producer.flush(PATIENCE_S) == 0
    with found:
        yield found


def first_records(stack: TestStack, shard: int) -> list[bytes]:
    claim = LeaderClaim(term=1, nonce=b"n" * 16, node="om1", address=stack.address("om1"), claimed_at_ms=1)
    value = encode(claim)
    genesis = Genesis(
        term=1, nonce=claim.nonce, seq=1, prev_chain=next_chain(FIRST_CHAIN, value), cluster=stack.settings.cluster,
        shard=shard, shards=SHARDS, replicas=list(stack.names), column_families=list(OM_FAMILIES.names),
    )  # fmt: skip
    return [value, encode_at(genesis, INITIAL)]


@pytest.fixture
def finalized(stack: TestStack, client: Client, all_nodes_run: None) -> None:
    finalize_shards(stack.settings, client, None, print)


def feature_levels(stack: TestStack) -> set[int]:
    return {stack.shard(name, shard).get("feature_level", 0) for name in stack.nodes for shard in range(SHARDS)}


def test_until_finalize_the_cluster_stays_at_its_level(stack: TestStack, client: Client) -> None:
    assert feature_levels(stack) == {INITIAL}, "this test comes first"
    with pytest.raises(RequestFailed, match="NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION.*needs feature level"):
        client.call(AddNode(shard=0, node="om4"))
    follower = bystander(stack)
    stack.stop_node(follower)
    with pytest.raises(
        UserError, match=f"{follower} does not answer: every node and datanode must run software that knows"
    ):
        finalize_shards(stack.settings, client, None, print)
    assert feature_levels(stack) == {INITIAL}
    stack.start_node(follower)
    stack.wait_led()
    done = finalize_shards(stack.settings, client, None, print)
    assert [(one["before"], one["level"]) for one in done] == [(INITIAL, LATEST)] * SHARDS
    stack.wait("all nodes follow", lambda: feature_levels(stack) == {LATEST})
    again = finalize_shards(stack.settings, client, None, print)
    assert [(one["before"], one["level"]) for one in again] == [(LATEST, LATEST)] * SHARDS
    stack.stop_node(follower)
    stack.start_node(follower)
    stack.wait_led()
    assert feature_levels(stack) == {LATEST}, "a restart remembers"


def moved(stack: TestStack, shard: int, node: str) -> bool:
    """Whether a shard could be moved: a node that has just come must have read the whole log in time, or the shard stays where it is."""
    try:
        return bool(move(stack.settings, shard, node))
    except (UserError, Unavailable):
        return False


def move_when_known(stack: TestStack, shard: int, node: str) -> dict[str, Any]:
    """Move a shard; ask again while brokers of a busy machine take too long to say where a log ends."""
    answers: list[dict[str, Any]] = []

    def is_moved() -> bool:
        try:
            answers.append(move(stack.settings, shard, node))
        except UserError as error:
            if "the brokers do not say where its log ends" not in str(error):
                raise
        return bool(answers)

    stack.wait(f"shard {shard} is moved to {node}", is_moved)
    return answers[0]


def wait_leads(stack: TestStack, shard: int, node: str) -> None:
    stack.wait(f"{node} leads shard {shard}", lambda: stack.leaders(shard) == [node])


def test_transfer(stack: TestStack, client: Client, fault_round: int) -> None:
    """To the node that leads nothing, on to the other shard's leader, home to the owner; then the borrower dies."""
    owner, other = stack.wait_leader(0), stack.wait_leader(1)
    third = next(name for name in stack.names if name not in (owner, other))
    load = load_on_all_shards(client, SHARDS)
    volume = next(iter(load.journals))
    with load:
        load.wait_more(MORE_KEYS, volume)
        for target in (third, other, owner, third):
            begun_s = time.monotonic()
            done = move_when_known(stack, 0, target)
            assert done["moved"]
            assert stack.leaders(0) == [target]
            load.wait_more(MORE_KEYS, volume)
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
        load.wait_more(MORE_KEYS, volume)
        pause_s = load.journals[volume].longest_gap_s(begun_s, time.monotonic())
        print(f"borrower killed: writers paused for {pause_s * 1000:.0f} ms")
        with pytest.raises(UserError, match=rf"nobody listens at \S+ \({third}\)"):
            move(stack.settings, 0, third)
        load.wait_more(MORE_KEYS, volume)
        stack.start_node(third)
        stack.wait_led()
    assert_all_agree(stack, load)


@pytest.mark.slow
def test_a_graceful_stop_hands_over(stack: TestStack, client: Client, fault_round: int) -> None:
    owner = stack.wait_leader(0)
    load = load_on_all_shards(client, SHARDS)
    volume = next(iter(load.journals))
    with load:
        load.wait_more(MORE_KEYS, volume)
        begun_s = time.monotonic()
        stack.stop_node(owner)
        stopped_s = time.monotonic() - begun_s
        successor = stack.wait_leader(0, other_than=owner)
        load.wait_more(MORE_KEYS, volume)
        pause_s = load.journals[volume].longest_gap_s(begun_s, time.monotonic())
        print(f"stopped in {stopped_s:.2f} s; writers paused for {pause_s * 1000:.0f} ms until {successor} led")
        stack.start_node(owner)
        stack.wait_led()
    assert_all_agree(stack, load)


@pytest.mark.slow
def test_a_leader_whose_disk_hangs_gives_up_all_leadership(stack: TestStack, client: Client, fault_round: int) -> None:
    """Its process lives and its heartbeats go on, so only its own watchdog can notice."""
    victim = stack.wait_leader(0)
    stack.stop_node(victim)
    stack.start_node(victim, [sys.executable, str(hanging_node.__file__), victim])
    stack.wait_led()
    move(stack.settings, 0, victim)
    move(stack.settings, 1, victim)
    load = load_on_all_shards(client, SHARDS)
    hang = hanging_node.hang_file(stack.settings.node_folder(victim) / "shard-0")
    with load:
        load.wait_more(MORE_KEYS)
        begun_s = time.monotonic()
        hang.touch()
        try:
            # It may not answer questions: a follower's write to that disk stands still in its event loop.
            stack.wait(
                "the others lead both shards",
                lambda: all(any(name != victim for name in stack.leaders(shard)) for shard in range(SHARDS)),
            )
            load.wait_more(MORE_KEYS)
            pauses = [journal.longest_gap_s(begun_s, time.monotonic()) for journal in load.journals.values()]
            print(f"pauses of the hung shard and of the other: {pauses[0]:.2f} s, {pauses[1]:.2f} s")
        finally:
            hang.unlink()
        stack.wait_led()
        load.wait_more(MORE_KEYS)
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


def requests_counted(stack: TestStack) -> Counter[tuple[str, str]]:
    """Return (type, result) -> requests, summed over nodes and shards."""
    counted: Counter[tuple[str, str]] = Counter()
    for name in stack.nodes:
        for metric in text_string_to_metric_families(stack.get(name, "/metrics").text):
            for sample in metric.samples:
                if sample.name == "stratolog_requests_total":
                    counted[sample.labels["type"], sample.labels["result"]] += int(sample.value)
    return counted


def audit_lines(stack: TestStack, volume: str) -> list[dict[str, Any]]:
    lines = []
    for name in stack.names:
        text = (stack.settings.node_folder(name) / FILE_NAME).read_text()
        lines += [{**json.loads(line), "file": name} for line in text.splitlines() if f'"{volume}"' in line]
    return lines


@pytest.mark.slow
def test_each_request_is_counted_once_and_audited_on_the_leader(
    stack: TestStack, client: Client, fault_round: int
) -> None:
    """Across a transfer and a deposed leader: the sum over the nodes is the number of requests acknowledged."""
    before = requests_counted(stack)
    load = load_on_all_shards(client, SHARDS)
    volume = next(iter(load.journals))
    with load:
        load.wait_more(MORE_KEYS, volume)
        move(stack.settings, 0, bystander(stack))
        load.wait_more(MORE_KEYS, volume)
        audited = dict(load.journals[volume].acknowledged)
        lines = audit_lines(stack, volume)
        paused = stack.wait_leader(0)
        stack.pause_node(paused)
        try:
            stack.wait_leader(0, other_than=paused)
            load.wait_more(MORE_KEYS, volume)
        finally:
            stack.resume_node(paused)
        stack.wait_led()
        load.wait_more(MORE_KEYS, volume)
    assert_all_agree(stack, load)
    keys = sum(len(journal.acknowledged) for journal in load.journals.values())
    wanted = Counter({("CreateVolume", "OK"): SHARDS, ("CreateBucket", "OK"): SHARDS})
    wanted |= Counter({("CreateKey", "OK"): keys, ("CommitKey", "OK"): keys})
    stack.wait("the deposed leader has read its own last batches", lambda: requests_counted(stack) - before == wanted)

    commits = [line for line in lines if line["type"] == "CommitKey"]
    assert {line["key"] for line in commits} >= set(audited)
    assert all(line["file"] == line["node"] and line["user"] == "tester" for line in lines)
    assert max(Counter((line["client"], line["call"]) for line in lines).values()) == 1
    assert {line["result"] for line in lines} == {"OK"}
    assert len({line["node"] for line in lines if line["shard"] == 0}) == 2, "the leader before the transfer, and after"
    assert len({line["index"] for line in lines}) == len(lines)


@pytest.mark.usefixtures("finalized")
def test_prepare_refuses_writes_and_checkpoints_every_replica(
    stack: TestStack, client: Client, fault_round: int
) -> None:
    name = f"before-{fault_round}"
    load = load_on_all_shards(client, SHARDS)
    with load, RawClient(stack.settings.bootstrap_servers, SHARDS) as raw:
        load.wait_more(MORE_KEYS)
        done = prepare_shards(stack.settings, client, name, print)
        tried = {volume: len(journal.acknowledged) for volume, journal in load.journals.items()}
        for shard in range(SHARDS):
            refused = raw.call(CreateVolume(volume=fresh_volume(shard, SHARDS)))
            assert (refused.status, refused.index) == (PREPARED, -1)
            assert f"checkpoint {name}" in refused.message
        assert {volume: len(journal.acknowledged) for volume, journal in load.journals.items()} == tried
        views = stack.wait_converged()
        assert {shard: view["applied_index"] for shard, view in views.items()} == {o["shard"]: o["index"] for o in done}
        for node in stack.names:
            for shard in range(SHARDS):
                folder = stack.settings.node_folder(node) / f"shard-{shard}.checkpoints" / name
                with closing(RocksStore(folder, OM_FAMILIES.names)) as checkpoint:
                    stored = checkpoint.get(TRANSACTION_INFO, POSITION_KEY)
                    assert stored is not None
                    assert Position.decode(stored).index == done[shard]["index"] - 1, "what was before the Prepare"
        move(stack.settings, 0, bystander(stack))
        assert raw.call(CreateVolume(volume=fresh_volume(0, SHARDS))).status == PREPARED, "the next leader knows it"
        assert prepare_shards(stack.settings, client, None, print)[0]["checkpoint"] == name, "given again"
        cancel_prepare(client)
        load.wait_more(MORE_KEYS)
    assert_all_agree(stack, load)


@pytest.mark.slow
@pytest.mark.usefixtures("finalized")
def test_a_node_is_added_and_removed(stack: TestStack, client: Client, fault_round: int) -> None:
    before, old_file = stack.settings, stack.settings_file.read_text()
    load = load_on_all_shards(
        client, SHARDS, in_flight=1, keys_per_s=8.0
    )  # the node that joins has to catch up with it
    try:
        with load:
            load.wait_more(MORE_KEYS)
            added = NodeAddress(name="om4", host="127.0.0.1", port=free_ports(1)[0])
            stack.settings = replace(before, nodes=(*before.nodes, added))
            stack.settings_file.write_text(stack.settings.to_toml())
            status, output = run_to_its_end(stack, "om4")
            assert status == EXIT_FATAL
            assert "the members are om1, om2, om3 in the log but om1, om2, om3, om4 in this node's settings" in output
            log_members(client, "om4", member=True, report=print)
            stack.start_node("om4")
            stack.wait_led()
            stack.wait("om4 may lead", lambda: not stack.get("om4", "/v1/shards/0/fitness").json()["against"])
            stack.wait("om4 leads", lambda: moved(stack, 0, "om4"))
            load.wait_more(MORE_KEYS)
            assert stack.leaders(0) == ["om4"]
        assert_all_agree(stack, load)
        with AuditTap(stack.settings.bootstrap_servers) as reports:
            client.create_volume(fresh_volume(1, SHARDS))
            stack.wait("all four report", lambda: reports.barrier(1, "incremental", stack.names))
        log_members(client, "om4", member=False, report=print)
        stack.wait("om4 stops by itself", lambda: not stack.nodes["om4"].is_running())
        assert "om4 is no member any more; the members are om1, om2, om3" in stack.log_file("om4").read_text()
    finally:
        if "om4" in stack.nodes:
            stack.kill_node("om4")
        stack.settings = before
        stack.settings_file.write_text(old_file)
    stack.wait_led()
    client.create_volume(fresh_volume(0, SHARDS))
    views = stack.wait_converged()
    assert {tuple(view["members"]) for view in views.values()} == {("om1", "om2", "om3")}
