"""Snapshot diffs from the client and the command to two nodes, over Faust's own web server with its guard."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from om_processors.serving.snapshot_diff_api import OPEN_POSTS
from om_processors.snapdiff.diff_job import DiffJob
from producers import AsyncClient
from producers.errors import NotFound, RequestFailed, RetryableError
from producers.reads.read_views import SnapshotDiffEntry
from producers.reads.reads import Reads
from producers.reads.snapshot_diffs import SnapshotDiffProgress
from producers.requests.engine import RequestEngine, RequestSettings
from replicated_db.shell.follower import make_app
from stratolog.cli import build_app
from stratolog.local.ports import free_ports
from tests.support.local.secret import SECRET
from tests.support.om.diff_node import ENTRIES, DiffNode
from tests.support.sdk.memory import MemoryCluster, MemoryConnection, client_to
from transport.web.http_guard import HttpGuard

PLACE = ("vol1", "bucket1")
FOUND = [(one["kind"], one["key"], one.get("to_key")) for one in ENTRIES]


class Served:
    """A node whose pages Faust serves, on a thread of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.pages = DiffNode(folder, name)
        self.pages.change()
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._app: Any = None
        self.start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    async def _start(self) -> None:
        self._app = make_app(
            "test", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=self.port, data_dir=self.pages.folder,
            fatal=lambda _: None, guard=HttpGuard(SECRET, [], OPEN_POSTS),
        )  # fmt: skip
        self.pages.api.attach(self._app)
        self._app.web.init_server()
        await self._app.web.start_server()

    def stop(self) -> None:
        """Stop listening; the jobs stay."""
        app, self._app = self._app, None
        if app is not None:
            asyncio.run_coroutine_threadsafe(app.web.stop_server(), self._loop).result(30)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.pages.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Served]]:
    found = {name: Served(tmp_path / name, name) for name in ("om1", "om2")}
    yield found
    for node in found.values():
        node.close()


@pytest.fixture
def reads(nodes: dict[str, Served]) -> Iterator[Reads]:
    found = Reads([node.address for node in nodes.values()], deadline_ms=5_000)
    yield found
    found.close()


def diff(reads: Reads, older: str = "one", newer: str | None = None, **options: Any) -> Iterator[SnapshotDiffEntry]:
    return reads.snapshot_diff(*PLACE, older, newer, consistency="stale", **options).entries()


def listed(found: Iterator[SnapshotDiffEntry]) -> list[tuple[str, str, str | None]]:
    return [(one.kind, one.key, one.to_key) for one in found]


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_entries_page_by_page(reads: Reads, page_size: int) -> None:
    seen: list[SnapshotDiffProgress] = []
    assert listed(diff(reads, page_size=page_size, on_progress=seen.append)) == FOUND
    assert seen[-1].state == "DONE"
    assert seen[-1].found == {"DELETE": 1, "RENAME": 1, "CREATE": 1, "MODIFY": 1}


def test_both_clients_pass_on_what_they_are_asked(nodes: dict[str, Served]) -> None:
    def pipeline(settings: RequestSettings) -> RequestEngine:
        return RequestEngine(settings, connect=lambda *_: MemoryConnection(MemoryCluster()))

    async def awaited(addresses: list[str]) -> list[SnapshotDiffEntry]:
        async with AsyncClient("memory:0", open_pipeline=pipeline, read_from=addresses) as client:
            with pytest.raises(NotFound):
                await client.cancel_snapshot_diff("0" * 32)
            return [entry async for entry in client.snapshot_diff(*PLACE, "one", consistency="stale", page_size=2)]

    addresses = [node.address for node in nodes.values()]
    assert listed(iter(asyncio.run(awaited(addresses)))) == FOUND
    client, _ = client_to(MemoryCluster(), read_from=addresses)
    with client:
        assert listed(client.snapshot_diff(*PLACE, "one", consistency="stale", page_size=2)) == FOUND
        assert listed(client.snapshot_diff(*PLACE, "one", "one", consistency="stale")) == []
        with pytest.raises(NotFound):
            client.cancel_snapshot_diff("0" * 32)


def test_a_node_that_is_gone_is_replaced_by_another(nodes: dict[str, Served], reads: Reads) -> None:
    for node in nodes.values():
        node.pages.node.snapshot("two")
    seen: list[SnapshotDiffProgress] = []
    found = diff(reads, "one", "two", page_size=1, on_progress=seen.append)
    first = [next(found), next(found)]
    gone = seen[-1].node
    nodes[gone].stop()
    assert listed(iter(first)) + listed(found) == FOUND
    assert seen[-1].node != gone


def test_the_present_is_not_compared_twice(nodes: dict[str, Served], reads: Reads) -> None:
    seen: list[SnapshotDiffProgress] = []
    found = diff(reads, page_size=1, on_progress=seen.append)
    next(found)
    nodes[seen[-1].node].stop()
    with pytest.raises(RetryableError, match="the job is lost, and the bucket has changed since"):
        list(found)


def test_a_snapshot_that_is_deleted_between_pages(nodes: dict[str, Served], reads: Reads) -> None:
    rows = [node.pages.node.snapshot("two") for node in nodes.values()]
    found = diff(reads, "one", "two", page_size=1)
    next(found)
    for node, row in zip(nodes.values(), rows, strict=True):
        node.pages.node.delete(row)
    with pytest.raises(NotFound, match="FILE_NOT_FOUND.*snapshot two of bucket /vol1/bucket1 has been deleted"):
        list(found)


def test_errors_name_what_is_wrong(reads: Reads) -> None:
    with pytest.raises(NotFound, match="FILE_NOT_FOUND.*absent"):
        list(diff(reads, "absent"))
    with pytest.raises(RequestFailed, match="INVALID_SNAPSHOT_ERROR"):
        list(diff(reads, "One!"))
    with pytest.raises(NotFound, match="bucket /vol1/nowhere"):
        list(reads.snapshot_diff("vol1", "nowhere", "one", None, consistency="stale").entries())
    with pytest.raises(NotFound, match="no node has a snapshot diff 0{32}"):
        reads.cancel_snapshot_diff("0" * 32)


def test_a_job_that_is_done_cannot_be_cancelled(reads: Reads) -> None:
    seen: list[SnapshotDiffProgress] = []
    list(diff(reads, on_progress=seen.append))
    with pytest.raises(RequestFailed, match="DONE takes no on_cancel"):
        reads.cancel_snapshot_diff(seen[-1].job)


def test_a_job_is_cancelled_while_it_runs(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    check = DiffJob._on_rows

    def held(self: DiffJob, rows: int) -> None:
        assert go.wait(30)
        check(self, rows)

    def stop(progress: SnapshotDiffProgress) -> None:
        if progress.state == "RUNNING":
            assert reads.cancel_snapshot_diff(progress.job).state == "CANCELLING"
            go.set()

    monkeypatch.setattr(DiffJob, "_on_rows", held)
    with pytest.raises(RequestFailed, match="SNAPSHOT_DIFF_CANCELLED.*was cancelled"):
        list(diff(reads, on_progress=stop))


def test_only_diffs_are_open(nodes: dict[str, Served]) -> None:
    base = f"http://{nodes['om1'].address}"
    begin = f"{base}/v1/volumes/vol1/buckets/bucket1/snapshot-diffs"
    assert httpx.post(begin, params={"from": "one", "consistency": "stale"}).status_code == 200
    assert httpx.post(begin, params={"from": "one"}, headers={"Origin": "http://elsewhere"}).status_code == 403
    assert httpx.post(f"{base}/v1/shards/0/transfer").status_code == 403
    assert httpx.delete(f"{base}/v1/snapshot-diffs/{'0' * 32}").status_code == 403
    assert httpx.get(begin).status_code == 405


def command(nodes: dict[str, Served], *arguments: str) -> Any:
    environment = {
        "STRATOLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1", "COLUMNS": "200",
        "STRATOLOG_NODES": ",".join(f"{name}={node.address}" for name, node in nodes.items()),
    }  # fmt: skip
    words = ("sh", "snapshot", "diff", "/vol1/bucket1", *arguments)
    return CliRunner(env=environment).invoke(build_app(), words)


def test_the_command(nodes: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = command(nodes, "one", "--consistency", "stale")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "Difference between snapshot: one and the present of /vol1/bucket1",
        "-\t./b", "R\t./a -> ./a2", "+\t./d", "M\t./c",
    ]  # fmt: skip
    as_json = command(nodes, "one", "--consistency", "stale", "--json", "--page-size", "1")
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == [
        {"kind": kind, "key": key, "to_key": to} for kind, key, to in FOUND
    ]
    nothing = command(nodes, "one", "one", "--consistency", "stale")
    assert len(nothing.stdout.splitlines()) == 1


def test_the_command_says_why_not(nodes: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        (("absent", "--consistency", "stale"), "absent"),
        (("--cancel", "0" * 32, "--consistency", "stale"), "no node has a snapshot diff"),
        (("--cancel", "xyz", "--consistency", "stale"), "'xyz' is no id of a snapshot diff"),
    ):
        assert words in str(command(nodes, *arguments).exception)
