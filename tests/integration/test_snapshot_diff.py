"""Snapshot diffs on a real cluster: entries from every node, jobs that are lost, cancelled, or left by their snapshots."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from producers import (
    AsyncClient,
    Client,
    NotFound,
    RequestFailed,
    RetryableError,
    SnapshotDiffEntry,
    SnapshotDiffProgress,
)
from stratolog.cli import build_app
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

STACK = {"nodes": 3, "shards": 1, "barrier_interval_ms": 200}
KEYS = 2_000
PLACE = ("diffs", "bucket")
Entry = tuple[str, str, str | None]


def put(client: Client, name: str) -> None:
    session = client.create_key(*PLACE, name, size=0).session_id
    client.commit_key(*PLACE, name, session, size=0, blocks=[])


def listed(found: Any) -> list[Entry]:
    return [(one.kind, one.key, one.to_key) for one in found]


EXPECTED: list[Entry] = [
    ("DELETE", "key-0001", None),
    ("RENAME", "key-0002", "moved/key"),
    ("CREATE", "new/a", None),
    ("CREATE", "new/\u00e9", None),
    ("MODIFY", "key-0003", None),
]


@pytest.fixture(scope="module")
def changed(stack: TestStack, client: Client) -> Client:
    """A bucket with two snapshots and five changes between them; afterwards one more."""
    client.create_volume("diffs")
    client.create_bucket(*PLACE)
    client.create_bucket("diffs", "neighbour")
    for number in range(KEYS):
        put(client, f"key-{number:04}")
    client.create_snapshot(*PLACE, "one")
    client.delete_key(*PLACE, "key-0001")
    client.rename_key(*PLACE, "key-0002", "moved/key")
    put(client, "key-0003")
    put(client, "new/a")
    put(client, "new/\u00e9")
    session = client.create_key("diffs", "neighbour", "other", size=0).session_id
    client.commit_key("diffs", "neighbour", "other", session, size=0, blocks=[])
    client.create_snapshot(*PLACE, "two")
    put(client, "later")
    return client


def test_every_node_finds_the_same_entries(stack: TestStack, changed: Client) -> None:
    for name in stack.nodes:
        with Client(stack.settings.bootstrap_servers, read_from=[stack.address(name)]) as client:
            seen: list[SnapshotDiffProgress] = []
            found = client.snapshot_diff(*PLACE, "one", "two", on_progress=seen.append)
            assert listed(found) == EXPECTED
            assert (seen[-1].node, seen[-1].state) == (name, "DONE")
            # Far fewer rows are read than there are: the files tell which.
            assert seen[-1].rows < 100
            assert listed(client.snapshot_diff(*PLACE, "one", "two", page_size=2)) == EXPECTED
            assert ("CREATE", "later", None) in listed(client.snapshot_diff(*PLACE, "one"))
            assert listed(client.snapshot_diff(*PLACE, "two")) == [("CREATE", "later", None)]
            assert listed(client.snapshot_diff(*PLACE, "two", "two")) == []
            backwards = {("CREATE", "key-0001", None), ("RENAME", "moved/key", "key-0002")}
            assert backwards <= set(listed(client.snapshot_diff(*PLACE, "two", "one")))


def test_awaited(stack: TestStack, changed: Client) -> None:
    async def main() -> list[SnapshotDiffEntry]:
        servers, nodes = stack.settings.bootstrap_servers, [stack.address(name) for name in stack.nodes]
        async with AsyncClient(servers, read_from=nodes) as client:
            return [entry async for entry in client.snapshot_diff(*PLACE, "one", "two")]

    assert listed(asyncio.run(main())) == EXPECTED


def command(stack: TestStack, *arguments: str) -> str:
    environment = {"STRATOLOG_CONFIG": str(stack.settings_file), "COLUMNS": "200"}
    result = CliRunner(env=environment).invoke(build_app(), arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


def test_the_command(stack: TestStack, changed: Client) -> None:
    shown = command(stack, "sh", "snapshot", "diff", "/diffs/bucket", "one", "two")
    assert shown.splitlines()[1:] == [
        "-\t./key-0001", "R\t./key-0002 -> ./moved/key", "+\t./new/a", "+\t./new/\u00e9", "M\t./key-0003",
    ]  # fmt: skip
    as_json = command(stack, "sh", "snapshot", "diff", "/diffs/bucket", "two", "--json")
    assert [json.loads(line) for line in as_json.splitlines()] == [{"kind": "CREATE", "key": "later", "to_key": None}]


def test_errors_name_what_is_wrong(stack: TestStack, changed: Client) -> None:
    with pytest.raises(NotFound, match=r"FILE_NOT_FOUND: .*absent"):
        list(changed.snapshot_diff(*PLACE, "absent"))
    with pytest.raises(NotFound, match=r"FILE_NOT_FOUND: .*absent"):
        list(changed.snapshot_diff(*PLACE, "one", "absent"))
    with pytest.raises(NotFound, match="bucket /diffs/nowhere"):
        list(changed.snapshot_diff("diffs", "nowhere", "one"))
    with pytest.raises(RequestFailed, match="INVALID_SNAPSHOT_ERROR"):
        list(changed.snapshot_diff(*PLACE, "One!"))
    with pytest.raises(NotFound, match="no node has a snapshot diff 0{32}"):
        changed.cancel_snapshot_diff("0" * 32)


def test_a_job_that_is_done_cannot_be_cancelled(changed: Client) -> None:
    seen: list[SnapshotDiffProgress] = []
    list(changed.snapshot_diff(*PLACE, "one", "two", on_progress=seen.append))
    with pytest.raises(RequestFailed, match="DONE takes no on_cancel"):
        changed.cancel_snapshot_diff(seen[-1].job)


def test_jobs_over_http(stack: TestStack, changed: Client) -> None:
    base = f"http://{stack.address('om1')}"
    begin = f"{base}/v1/volumes/diffs/buckets/bucket/snapshot-diffs"
    begun = httpx.post(begin, params={"from": "one", "to": "two"}).json()
    again = httpx.post(begin, params={"from": "one", "to": "two"}).json()
    assert begun["job"] == again["job"]
    job = f"{base}/v1/snapshot-diffs/{begun['job']}"
    stack.wait("the job", lambda: httpx.get(job).json()["state"] == "DONE")
    page = httpx.get(job, params={"limit": 2}).json()
    assert [entry["key"] for entry in page["entries"]] == ["key-0001", "key-0002"]
    rest = httpx.get(job, params={"start_after": page["next_after"]}).json()
    assert len(rest["entries"]) == 3
    assert not rest["truncated"]
    assert rest["found"] == {"DELETE": 1, "RENAME": 1, "CREATE": 2, "MODIFY": 1}
    for parameters in ({"start_after": "xyz"}, {"limit": "0"}, {"limit": "1001"}, {"start_after": "00" * 10_000}):
        assert httpx.get(job, params=parameters).status_code == 400, parameters
    assert httpx.get(f"{base}/v1/snapshot-diffs/nothing").status_code == 404
    assert httpx.post(begin).status_code == 400
    assert httpx.post(begin, params={"from": "one"}, headers={"Origin": "http://elsewhere"}).status_code == 403
    # Everything else that is posted still needs the cluster's secret.
    assert httpx.post(f"{base}/v1/shards/0/transfer").status_code == 403
    assert httpx.post(f"{base}/v1/snapshot-diffs/{begun['job']}/cancel/x").status_code == 403


def test_a_job_whose_node_is_killed_goes_on_elsewhere(stack: TestStack, changed: Client, all_nodes_run: None) -> None:
    seen: list[SnapshotDiffProgress] = []
    found = changed.snapshot_diff(*PLACE, "one", "two", page_size=2, on_progress=seen.append)
    first = [next(found), next(found)]
    stack.kill_node(seen[-1].node)
    assert listed([*first, *found]) == EXPECTED
    assert seen[-1].node in stack.nodes
    now = changed.snapshot_diff(*PLACE, "one", page_size=1, on_progress=seen.append)
    next(now)
    stack.kill_node(seen[-1].node)
    with pytest.raises(RetryableError, match="the job is lost, and the bucket has changed since"):
        list(now)


def test_a_snapshot_that_is_deleted_takes_its_diffs_along(
    stack: TestStack, changed: Client, all_nodes_run: None
) -> None:

    def gone(name: str) -> bool:
        key = b"/diffs/bucket/three".hex()
        row: dict[str, Any] = stack.get(name, "/v1/shards/0/row", cf="snapshotTable", key=key).json()
        return row["value"] is None

    changed.create_snapshot(*PLACE, "three")
    found = changed.snapshot_diff(*PLACE, "one", "three", page_size=1)
    next(found)
    changed.delete_snapshot(*PLACE, "three")
    stack.wait("the deletion on every node", lambda: all(gone(name) for name in stack.nodes))
    with pytest.raises(NotFound, match=r"snapshot three of bucket /diffs/bucket has been deleted"):
        list(found)


def test_what_a_killed_node_leaves_is_gone_when_it_runs_again(
    stack: TestStack, changed: Client, all_nodes_run: None
) -> None:
    name = next(iter(stack.nodes))
    with Client(stack.settings.bootstrap_servers, read_from=[stack.address(name)]) as client:
        seen: list[SnapshotDiffProgress] = []
        list(client.snapshot_diff(*PLACE, "one", on_progress=seen.append))
    left = stack.settings.data_dir / "nodes" / name / "snapshot-diffs" / seen[-1].job
    stack.kill_node(name)
    assert left.is_dir()
    stack.start_node(name)
    stack.wait_led()
    stack.wait("the start", lambda: stack.status(name))
    assert not left.exists()
    assert stack.get(name, f"/v1/snapshot-diffs/{seen[-1].job}").status_code == 404
