"""A real cluster whose log is trimmed: nobody stops, nothing is lost, the audit judges from the base on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from producers import Client
from stratolog.cluster import trimming
from stratolog.cluster.shard_log import first_offset, read_entries, read_judged
from stratolog.cluster.trimming import ShardLog, Wish
from stratolog.commands.audit import audit_once
from stratolog.drills.core.report import COULD_NOT_RUN
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import Session, run
from stratolog.drills.replay import Range
from stratolog.drills.replay import run as replay
from stratolog.errors import UserError
from stratolog.local.jars import default_cache_dir
from tests.support.faults.stack_faults import bystander, fresh_volume
from tests.support.local.stack import LocalKafka, TestStack

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("all_nodes_run")]
KEYS = 30
SHARD = ShardLog(0)
NO_AUDIT = Wish(without_audit=True)


@pytest.fixture(scope="module")
def stack(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    with TestStack(
        tmp_path_factory.mktemp("stack"), nodes=3, kafka=lease_kafka(), shards=1, barrier_interval_ms=200
    ) as found:
        yield found


def load(client: Client, volume: str) -> None:
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    for number in range(KEYS):
        session = client.create_key(volume, "bucket", f"key-{number}", size=0)
        client.commit_key(volume, "bucket", f"key-{number}", session.session_id, size=0, blocks=())


def keys_of(client: Client, volume: str) -> list[str]:
    return [info.key for info in client.list_keys(volume, "bucket")]


def trimmed(stack: TestStack, wish: Wish = NO_AUDIT) -> dict[str, Any]:
    return trimming.trim(stack.settings, SHARD, wish, wait_s=30, has_audit=False, report=print)


def digests(stack: TestStack) -> set[tuple[int, str]]:
    answers = [stack.get(name, "/v1/shards/0/digest", scrub="true").json() for name in stack.nodes]
    return {(answer["index"], answer["digest"]) for answer in answers}


@pytest.mark.slow
def test_load_trim_restart_everybody_load_and_audit(stack: TestStack, client: Client) -> None:
    before = fresh_volume(0, 1)
    load(client, before)
    done = trimmed(stack)
    assert done["records"] > 0
    assert first_offset(stack.settings, 0) == done["offset"] > 0
    for name in stack.names:
        stack.kill_node(name)
    for name in stack.names:
        stack.start_node(name)
    stack.wait_led()
    after = fresh_volume(0, 1)
    load(client, after)
    assert len(keys_of(client, before)) == len(keys_of(client, after)) == KEYS
    stack.wait("all replicas are equal", lambda: len(digests(stack)) == 1)
    settings = replace(stack.settings, cache_dir=default_cache_dir())
    result = audit_once(settings, report_timeout_ms=20_000)
    [shard] = result["shards"]
    assert result["ok"], result
    assert shard["base"] == {"offset": done["offset"], "index": done["base"]["index"]}
    assert shard["oracle_agrees"] is None
    assert {replica["verdict"] for replica in shard["replicas"]} == {"equal"}
    assert all("judged from the base of index" in replica["reason"] for replica in shard["replicas"])


def test_what_lies_below_the_start_is_told(stack: TestStack, client: Client) -> None:
    load(client, fresh_volume(0, 1))
    first = trimmed(stack)["offset"]
    judged = list(read_judged(stack.settings, 0))
    assert judged[0].entry.offset == first
    assert all(not isinstance(one.verdict, Exception) for one in judged)
    with pytest.raises(UserError, match=f"was trimmed: it begins at offset {first}, not at 0"):
        list(read_entries(stack.settings, 0, 0))
    session = Session()
    cluster = Cluster(settings=stack.settings)
    report = run(
        "replay", 0, lambda found: replay(found, cluster, 0, Range()), data_dir=stack.settings.data_dir, session=session
    )
    assert report.verdict == COULD_NOT_RUN
    assert "was trimmed and begins at offset" in report.reason


def test_explain_deletes_nothing_and_a_member_that_is_down_holds_the_log(stack: TestStack, client: Client) -> None:
    load(client, fresh_volume(0, 1))
    first = first_offset(stack.settings, 0)
    down = bystander(stack)
    stack.kill_node(down)
    done = trimming.trim(stack.settings, SHARD, NO_AUDIT, wait_s=2, has_audit=False, report=print)
    assert (done["records"], done["held_by"]) == (0, "members")
    why = next(rule["why"] for rule in done["rules"] if rule["rule"] == "members")
    assert why.startswith(f"{down} is a member and its position is not known")
    left = Wish(without_audit=True, leave_behind=(down,))
    explained = trimming.look(stack.settings, SHARD, left)
    assert explained["records"] > 0
    assert first_offset(stack.settings, 0) == first
    both = Wish(without_audit=True, leave_behind=tuple(name for name in stack.names if name not in stack.leaders(0)))
    refused = trimming.look(stack.settings, SHARD, both)
    assert (refused["records"], refused["held_by"]) == (0, "majority")
    stack.start_node(down)
    stack.wait_led()
    stack.wait("the member has caught up", lambda: trimmed(stack)["offset"] > first)
    assert first_offset(stack.settings, 0) > first


def test_strangers_learn_and_change_nothing(stack: TestStack) -> None:
    [leader] = stack.leaders(0)
    for path in ("durable-position", "trim?do=trim", "trim?do=base"):
        answer = httpx.post(f"http://{stack.address(leader)}/v1/shards/0/{path}", trust_env=False)
        assert answer.status_code == 403
    follower = bystander(stack)
    sign = stack.settings.secret().sign
    url = f"http://{stack.address(follower)}/v1/shards"
    assert httpx.post(f"{url}/0/trim", auth=sign, trust_env=False).status_code == 503
    for path in ("0/trim?do=x", "0/trim?keep_ms=-1", "0/trim?nodes=om9", "7/durable-position", "x/trim"):
        assert httpx.post(f"{url}/{path}", auth=sign, trust_env=False).status_code == 400, path
    place = httpx.post(f"{url}/0/durable-position", auth=sign, trust_env=False).json()
    assert (place["node"], place["shard"], place["flagged"]) == (follower, 0, False)


@pytest.mark.slow
def test_under_load_a_base_is_logged_and_the_log_trimmed(stack: TestStack, client: Client) -> None:
    """Requests are on their way all the time: the base waits for those before it, and nobody notices."""
    volume = fresh_volume(0, 1)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    first = first_offset(stack.settings, 0)
    stop = Event()
    written: list[str] = []

    def write() -> None:
        with stack.client(caller="writer") as own:
            while not stop.is_set():
                name = f"key-{len(written)}"
                session = own.create_key(volume, "bucket", name, size=0)
                own.commit_key(volume, "bucket", name, session.session_id, size=0, blocks=())
                written.append(name)

    writer = Thread(target=write)
    writer.start()
    try:
        stack.wait("something is written", lambda: len(written) > 10)
        for _ in range(3):
            assert trimmed(stack)["records"] > 0
            time.sleep(0.5)
    finally:
        stop.set()
        writer.join()
    assert first_offset(stack.settings, 0) > first
    assert sorted(keys_of(client, volume)) == sorted(written)[: len(keys_of(client, volume))]
    stack.wait("all replicas are equal", lambda: len(digests(stack)) == 1)
