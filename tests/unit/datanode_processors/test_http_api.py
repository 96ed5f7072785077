"""The pages of a datanode, asked over a real socket from the web server that Faust runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faust
import httpx
import pytest

from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.http_api import DatanodeHttpApi
from datanode_processors.pipeline.chunk_store import ChunkStore
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES
from datanode_processors.repair.scrubber import ScrubCounts
from datanode_processors.repair.transfer import import_container
from datanode_processors.status import DatanodeStatus
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.web.scan_threads import ScansBusy
from schemas import stream_errors as codes
from schemas.codecs.block_rows import encode_block_row
from schemas.column_families import BLOCK_TABLE
from schemas.sharding import MAX_PIPELINES
from tests.support.datanodes.block_nodes import BLOCK, CELL, CONTAINER, DATA, KEY, Node, row_of
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of

SHARD = 9


class Site:
    """A datanode's web server on a thread of its own; ``preparing`` is what an upgrade's preparation raises."""

    def __init__(self, folder: Path, *, member: bool) -> None:
        self.node = Node("dn1", folder, member=member)
        self.preparing: Exception | None = None
        self.fatal: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(folder), self._loop).result(30)

    async def _start(self, folder: Path) -> int:
        config = DatanodeConfig(
            node="dn1", cluster="test", host="127.0.0.1", port=0, http_port=0, bootstrap_servers="",
            data_dir=folder / "dn1",
        )  # fmt: skip
        node = self.node
        status = DatanodeStatus(
            config, node.store, node.pipelines, node.server.snapshot, lambda: 7, lambda: self.preparing is None,
            TransferDesk("dn1", {}, lambda _: False, note=lambda _: None),
            lambda: ScrubCounts(rounds=1, blocks=2, bytes=3, bad_cells=4, errors=5),
        )  # fmt: skip
        app = faust.App("pages", broker="kafka://127.0.0.1:1", store="memory://", loop=self._loop)
        store = ChunkStore(folder / "rows", DN_FAMILIES.names, node.store)
        identity = Identity(cluster="test", shard=SHARD, shards=MAX_PIPELINES, node="dn1")
        self.rows = Replica(identity, DN_FAMILIES, store, threading.RLock())
        self._pages = DatanodeHttpApi({SHARD: self.rows}, status, self._prepare, self.fatal.append)
        self._pages.attach(app)
        app.finalize()
        app.web.init_server()
        site: Any = app.web  # the driver for aiohttp
        self._server, listening = HttpServer(site.web_app), listen("127.0.0.1", 0)
        await self._server.start(listening)
        return port_of(listening)

    def _prepare(self) -> dict[str, Any]:
        if self.preparing is not None:
            raise self.preparing
        return {"prepared": True}

    def ask(self, path: str, method: str = "GET") -> httpx.Response:
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=30, trust_env=False)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._pages.close()
        self.rows.store.close()
        self.node.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, member=True)
    yield made
    made.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Site]:
    """A datanode that is a member of nothing, and has a copy."""
    made = Site(tmp_path, member=False)
    import_container(made.node.store, CONTAINER, [(KEY, encode_block_row(row_of()), [DATA])])
    yield made
    made.close()


def test_health_names_the_pipelines_that_are_not_healthy(site: Site) -> None:
    answer = site.ask("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    site.node.replica.on_failed(KEY, "a cell is wrong")
    answer = site.ask("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unhealthy", "pipelines": {"3": "a cell is wrong"}, "copies": []}


def test_a_damaged_copy_is_not_healthy_either(holder: Site) -> None:
    assert holder.ask("/health").status_code == 200
    holder.node.pipelines.upkeep.damaged(CONTAINER, BLOCK, "it is damaged")
    answer = holder.ask("/health")
    assert (answer.status_code, answer.json()["pipelines"]) == (503, {})
    assert len(answer.json()["copies"]) == 1
    told = holder.ask("/status").json()
    assert told["copies"]["unhealthy_blocks"] == 1
    assert told["scrub"] == {"rounds": 1, "blocks": 2, "bytes": 3, "bad_cells": 4, "errors": 5}


def test_a_shard_that_is_not_there_is_a_bad_query(site: Site) -> None:
    for shard in ("5", "x"):
        answer = site.ask(f"/v1/shards/{shard}/digest")
        assert (answer.status_code, answer.json()["error"]) == (400, codes.INVALID_REQUEST)


def test_replicas_can_be_compared_by_digest_rows_and_row(site: Site) -> None:
    answer = site.ask(f"/v1/shards/{SHARD}/digest")
    assert (answer.status_code, answer.json()["digest"], answer.json()["scrubbed"]) == (200, "0" * 16, False)
    assert site.ask(f"/v1/shards/{SHARD}/digest?scrub=true").json()["scrubbed"]
    answer = site.ask(f"/v1/shards/{SHARD}/rows?cf={BLOCK_TABLE}&bucket=3")
    assert (answer.status_code, answer.json()["rows"], answer.json()["truncated"]) == (200, [], False)
    answer = site.ask(f"/v1/shards/{SHARD}/row?cf={BLOCK_TABLE}&key={KEY.hex()}")
    assert (answer.status_code, answer.json()["value"]) == (200, None)
    answer = site.ask(f"/v1/shards/{SHARD}/rows?cf=none")
    assert (answer.status_code, answer.json()["error"]) == (400, codes.INVALID_REQUEST)
    assert "'none'" in answer.json()["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(BlockError(codes.TIMED_OUT, "containers are open"), codes.TIMED_OUT), (ScansBusy("two run"), codes.OVERLOADED)],
)
def test_what_is_not_possible_now_is_said_so(site: Site, error: Exception, code: str) -> None:
    site.preparing = error
    answer = site.ask("/v1/prepare-upgrade", "POST")
    assert (answer.status_code, answer.json()["error"]) == (503, code)
    assert answer.json()["message"] in str(error)
    site.preparing = None
    answer = site.ask("/v1/prepare-upgrade", "POST")
    assert (answer.status_code, answer.json()) == (200, {"prepared": True})
    assert not site.fatal


def test_a_store_that_cannot_be_read_ends_the_process(site: Site) -> None:
    site.preparing = StoreFailure("no such file")
    assert site.ask("/v1/prepare-upgrade", "POST").status_code == 500
    assert site.fatal == [site.preparing]


def test_figures_count_what_is_here(holder: Site) -> None:
    with holder.node.store.open_writer(CONTAINER + 256, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
    before = holder.node.store.fsyncs.files
    store = holder.ask("/status").json()["store"]
    assert (store["containers"], store["closed_containers"], store["blocks"]) == (2, 1, 2)
    assert (store["used_bytes"], store["file_fsyncs"]) == (len(DATA) + CELL, before)
    assert holder.ask("/status").json()["heartbeats"] == 7
    assert (holder.ask("/status").json()["installing"], holder.ask("/status").json()["transfers"]) == (
        [], {"open": 0, "served_bytes": 0},
    )  # fmt: skip
    found = holder.ask("/metrics").text
    assert 'stratolog_datanode_installing{datanode="dn1"} 0.0' in found
    assert f'stratolog_datanode_used_bytes{{datanode="dn1"}} {float(len(DATA) + CELL)}' in found
    assert f'stratolog_datanode_file_fsyncs_total{{datanode="dn1"}} {float(before)}' in found
    assert 'stratolog_datanode_copies{datanode="dn1"} 2.0' in found
