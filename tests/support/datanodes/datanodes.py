"""Real datanodes for tests: N processes on free ports, in a directory of the test's own, against brokers that the test has.

    with Datanodes(tmp_path, kafka, count=3) as nodes:
        nodes.open_pipeline(0)                             # dn1, dn2, dn3 on partition 0 of dn.log
        data = os.urandom(200_000)
        nodes.write(block := nodes.block(0, 1), data)      # a stream to all members, then PutBlock to the leader
        nodes.watch(block, len(data))                      # satisfied on all members
        nodes.kill("dn1"); nodes.wait_leader(0, other_than="dn1"); nodes.start("dn1")

Topics are made with the log contract's settings; ``partitions`` is how many pipelines there may be. Datanodes can be killed (SIGKILL), stopped
(SIGTERM), paused, resumed and started again by name. Every process is tethered to the test run, and ports are drawn at random, so two
runs do not meet. ``close`` (or the context manager) ends everything, and deletes the data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.records.datanode import (
    BlockCommitted,
    BlockInfo,
    BlockWatched,
    GetBlock,
    Member,
    OpenPipeline,
    PutBlock,
    ReadBlock,
    Route,
    WatchBlock,
)
from schemas.records.packets import CELL_BYTES, Kind
from schemas.security.certificates import Role
from schemas.security.tls import TlsFiles
from schemas.topics import (
    BOUNDED_RETENTION_MS,
    DN_AUDIT,
    DN_HEARTBEATS,
    DN_LOG,
    LOG_SETTINGS,
    MAX_MESSAGE_BYTES,
    UNCOMPRESSED,
)
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, log_tail, spawn, wait_until
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.streams import Client
from tests.support.local.pausing import pause
from tests.support.local.stack import NO_AUTHORITIES, LocalKafka
from tests.support.security.certified import Certified

CLUSTER = "test"
OBJECT_MANAGER = "om1"
"""Who administers datanodes that speak TLS."""
TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 35.0
MAX_LEADERS = 10
"""How many may lose their leadership before a commit is given up: on a machine that is overloaded they do."""

POLL_S = 0.05
WATCHDOG_MS = 1_500
LOG_LINES = 40
PROCESS = Path(__file__).with_name("datanode_process.py")
ROOT = Path(__file__).parents[3]


def _paths(files: TlsFiles) -> dict[str, str]:
    return {"ca": str(files.ca), "certificate": str(files.certificate)}


@cache
def _http() -> httpx.Client:
    return httpx.Client(timeout=10.0, trust_env=False)


@dataclass(frozen=True)
class Block:
    """A block's ids and where it lies."""

    partition: int
    container_id: int
    local_id: int


def create_topics(kafka: LocalKafka, *, partitions: int = 8, replication_factor: int = 1) -> None:
    """Create dn.log, dn.audit and dn.heartbeats with the contract's settings, unless they are there."""
    bounded = {"retention.ms": str(BOUNDED_RETENTION_MS), "max.message.bytes": str(MAX_MESSAGE_BYTES), **UNCOMPRESSED}
    in_sync = {"min.insync.replicas": "2"} if replication_factor >= 3 else {}
    topics = [
        NewTopic(DN_LOG, partitions, replication_factor, config={**LOG_SETTINGS, **in_sync}),
        NewTopic(DN_AUDIT, partitions, replication_factor, config=bounded),
        NewTopic(DN_HEARTBEATS, 1, replication_factor, config=bounded),
    ]
    for future in kafka.admin.create_topics(topics, operation_timeout=30).values():
        try:
            future.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def led() -> bool:
        found = kafka.admin.list_topics(timeout=10).topics
        return all(
            name in found and all(partition.leader >= 0 for partition in found[name].partitions.values())
            for name in (DN_LOG, DN_AUDIT, DN_HEARTBEATS)
        )

    assert wait_until(led, 30), "the datanodes' topics have no leaders"


class Datanodes:
    """Datanodes ``dn1``... in ``folder``; keywords are fields of DatanodeConfig for all of them, ``racks`` one per datanode."""

    def __init__(
        self, folder: Path, kafka: LocalKafka, *, count: int = 3, partitions: int = 8, racks: Mapping[str, str] | None = None,
        certified: Certified | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """``certified``: the datanodes speak TLS alone; ``ask`` is then an Object Manager's, and administers."""
        self.folder = folder
        self.certified = certified
        self._secure_http: httpx.Client | None = None
        self.kafka = kafka
        self.partitions = partitions
        self.names = [f"dn{number}" for number in range(1, count + 1)]
        ports = free_ports(2 * count)
        self.ports = dict(zip(self.names, ports[:count], strict=True))
        self.http_ports = dict(zip(self.names, ports[count:], strict=True))
        self.racks = dict.fromkeys(self.names, "/default-rack") | dict(racks or {})
        self.options = {"cluster": CLUSTER, "pipeline_watchdog_ms": WATCHDOG_MS, "datanode_reserve_bytes": 0, **options}
        self.processes: dict[str, Process] = {}
        self.pipelines: dict[int, list[str]] = {}

    # -- life ------------------------------------------------------------------------------------------------------

    def start_all(self) -> Self:
        """Create the topics and start every datanode; returns once all answer."""
        try:
            create_topics(self.kafka, partitions=self.partitions)
            for name in self.names:
                self.start(name, wait=False)
            for name in self.names:
                self.wait_up(name)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.processes.clear()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def data_dir(self, name: str) -> Path:
        return self.folder / "data" / name

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def config(self, name: str) -> dict[str, Any]:
        """Return the fields of a datanode's DatanodeConfig."""
        return {
            "node": name, "host": "127.0.0.1", "port": self.ports[name], "http_port": self.http_ports[name],
            "bootstrap_servers": self.kafka.bootstrap_servers, "data_dir": str(self.data_dir(name)),
            "rack": self.racks[name], **self.options,
            **({} if self.certified is None else {"tls": _paths(self.certified.files(name, Role.DATANODE))}),
        }  # fmt: skip

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a datanode that does not run; with ``wait``, return once it answers."""
        assert name not in self.processes or not self.processes[name].is_running(), f"{name} runs already"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **NO_AUTHORITIES}
        command = [sys.executable, str(PROCESS), json.dumps(self.config(name))]
        self.processes[name] = spawn(command, log=self.log_file(name), detached=False, env=environment)
        if wait:
            self.wait_up(name)

    def wait_up(self, name: str) -> None:
        self.wait(f"{name} answers", lambda: self.status(name) is not None)

    def kill(self, name: str) -> None:
        """SIGKILL; returns once the process is gone."""
        self.processes.pop(name).kill()

    def stop(self, name: str) -> None:
        """SIGTERM; returns once the process is gone; an AssertionError if it did not obey."""
        process = self.processes.pop(name)
        process.signal(signal.SIGTERM)
        if not process.wait(TIMEOUT_S):
            process.kill()
            raise AssertionError(f"{name} did not stop\n{self.logs()}")

    def pause(self, name: str) -> None:
        """SIGSTOP; returns once the datanode has stopped."""
        pause(self.processes[name].pid)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        assert self.processes[name].signal(signal.SIGCONT)

    # -- what they say ---------------------------------------------------------------------------------------------

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def http_address(self, name: str) -> str:
        return f"127.0.0.1:{self.http_ports[name]}"

    def get(self, name: str, path: str, **parameters: Any) -> Any:
        """GET JSON from a datanode's HTTP server."""
        if self.certified is None:
            return _http().get(f"http://{self.http_address(name)}{path}", params=parameters).json()
        return self._https().get(f"https://{self.http_address(name)}{path}", params=parameters).json()

    def _https(self) -> httpx.Client:
        if self._secure_http is None:
            assert self.certified is not None
            context = self.certified.tls(OBJECT_MANAGER, Role.OM).client()
            self._secure_http = httpx.Client(timeout=10.0, trust_env=False, verify=context)
        return self._secure_http

    def status(self, name: str) -> dict[str, Any] | None:
        """Return ``/status``, None if the datanode does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            found: dict[str, Any] = self.get(name, "/status")
            return found
        return None

    def pipeline(self, name: str, partition: int) -> dict[str, Any]:
        """Return what a datanode says of a pipeline; empty if it does not answer or does not know it."""
        found = self.status(name) or {}
        return next((one for one in found.get("pipelines", []) if one["shard"] == partition), {})

    def leader(self, partition: int) -> str | None:
        """Return the running member that says that it leads (a paused one does not answer in time: do not ask then)."""
        for name in self.pipelines[partition]:
            process = self.processes.get(name)
            if (
                process is not None
                and name not in self.paused()
                and self.pipeline(name, partition).get("role") == "leader"
            ):
                return name
        return None

    def paused(self) -> set[str]:
        """Return the datanodes that a SIGSTOP holds."""
        found = set()
        for name, process in self.processes.items():
            with suppress(OSError, IndexError):
                if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    found.add(name)
        return found

    def wait(self, what: str, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Poll until ``condition`` returns something true, and return that; AssertionError with logs if it never does."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [condition()]
            return bool(found[0])

        if not wait_until(holds, timeout_s, interval_s=POLL_S):
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.logs()}")
        return found[0]

    def wait_leader(self, partition: int, *, other_than: str | None = None) -> str:
        """Wait for a leader whose PipelineOpened is applied, and return its name."""

        def found() -> str | None:
            name = self.leader(partition)
            if name is None or name == other_than or self.pipeline(name, partition).get("state") == "OPENING":
                return None
            return name

        return str(self.wait(f"a leader of partition {partition} (not {other_than})", found))

    def wait_converged(self, partition: int, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Wait until the members stand at one index with one digest, and return one's view."""
        members = list(names or self.pipelines[partition])

        def equal() -> dict[str, Any] | None:
            views = [self.pipeline(name, partition) for name in members]
            if not all(views) or len({(view["applied_index"], view["digest"]) for view in views}) != 1:
                return None
            return views[0]

        converged: dict[str, Any] = self.wait(f"equal digests of {', '.join(members)}", equal)
        return converged

    def logs(self, lines: int = LOG_LINES) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {name}\n{log_tail(self.log_file(name), lines)}" for name in self.names)

    # -- pipelines and blocks --------------------------------------------------------------------------------------

    def members(self, names: Sequence[str] | None = None) -> list[Member]:
        return [
            Member(
                datanode=name, address=self.address(name), http_address=self.http_address(name), rack=self.racks[name]
            )
            for name in names or self.names
        ]

    def open_pipeline(
        self, partition: int = 0, names: Sequence[str] | None = None, *, wait: bool = True, generation: int = 1
    ) -> str:
        """Open a pipeline on these datanodes (all); with ``wait``, return its leader's name once it leads."""
        members = self.members(names)
        self.pipelines[partition] = [member.datanode for member in members]
        request = OpenPipeline(
            pipeline=f"pipeline-{partition}", partition=partition, generation=generation, members=members
        )
        for member in members:
            self.ask(member.datanode, request)
        return self.wait_leader(partition) if wait else ""

    def ask(self, name: str, request: Any) -> Any:
        """Ask one datanode; raises BlockError."""
        with self.peer(name, REQUEST_TIMEOUT_S) as peer:
            return peer.request(request)

    def peer(self, name: str, timeout_s: float) -> Peer:
        """Return a connection to a datanode; raises BlockError."""
        tls = None if self.certified is None else WireTls(self.certified.tls(OBJECT_MANAGER, Role.OM))
        own = "test" if tls is None else OBJECT_MANAGER
        return Peer(
            self.address(name), own=own, cluster=str(self.options["cluster"]), timeout_s=timeout_s, tls=tls
        )  # fmt: skip

    @staticmethod
    def block(partition: int, number: int, container: int = 1) -> Block:
        """Return ids of a block: ``number`` counts blocks, ``container`` containers of the pipeline, both from 1."""
        return Block(partition=partition, container_id=container * 256 + partition, local_id=number)

    def routes(self, primary: str, partition: int, among: Sequence[str] | None = None) -> list[Route]:
        """Return a star: the primary sends to all other members, or to those of ``among``."""
        others = [name for name in among or self.pipelines[partition] if name != primary]
        return [
            Route(datanode=primary, address=self.address(primary), children=others),
            *(Route(datanode=name, address=self.address(name), children=[]) for name in others),
        ]

    def send(
        self, block: Block, data: bytes, *, offset: int = 0, primary: str | None = None,
        routes: Sequence[Route] | None = None, end: bool = True,
    ) -> None:  # fmt: skip
        """Stream bytes of a block to the members (``routes``: only to these), without committing them."""
        primary = primary or self.pipelines[block.partition][0]
        routes = routes if routes is not None else self.routes(primary, block.partition)
        client = Client(routes[0].address, str(self.options["cluster"]))
        try:
            client.open(
                routes, block=block.local_id, offset=offset, container_id=block.container_id, partition=block.partition
            )
            step = 16 * CELL_BYTES
            for at in range(0, len(data), step):
                client.data(data[at : at + step], offset=offset + at)
                if at % (8 * step) == 0:
                    client.until_end()  # keeps what waits in the sockets small
            if end:
                client.send(Kind.END, offset=offset + len(data))
            client.until_end()
        finally:
            client.close()

    @staticmethod
    def put_block(block: Block, data: bytes, *, length: int | None = None, wait_effective: bool = True) -> PutBlock:
        """Return the PutBlock of the first ``length`` bytes of a block's bytes (all)."""
        length = len(data) if length is None else length
        return PutBlock(
            partition=block.partition, container_id=block.container_id, local_id=block.local_id, length=length,
            bytes_per_checksum=CELL_BYTES, checksums=checksums_of(data[:length], CELL_BYTES), wait_effective=wait_effective,
        )  # fmt: skip

    def commit(self, block: Block, data: bytes, *, to: str | None = None, **options: Any) -> BlockCommitted:
        """PutBlock, to the member ``to``, or to the leader, and to the next one if that has lost its leadership; raises BlockError."""
        request = self.put_block(block, data, **options)
        for _ in range(MAX_LEADERS):
            try:
                answer = self.ask(to or self.wait_leader(block.partition), request)
                break
            except BlockError as error:
                if to or error.code != stream_errors.NOT_LEADER:
                    raise
        else:
            raise AssertionError(f"{MAX_LEADERS} leaders one after the other lost their leadership")
        assert isinstance(answer, BlockCommitted)
        return answer

    def write(self, block: Block, data: bytes, **options: Any) -> BlockCommitted:
        """Stream a block to all members and commit it."""
        self.send(block, data)
        return self.commit(block, data, **options)

    def watch(
        self,
        block: Block,
        length: int,
        *,
        bcs_id: int = 0,
        names: Sequence[str] | None = None,
        timeout_ms: int = 20_000,
    ) -> list[BlockWatched]:
        """Ask each member for its watch, one after another, and return the answers."""
        request = WatchBlock(
            partition=block.partition, container_id=block.container_id, local_id=block.local_id, length=length,
            bcs_id=bcs_id, timeout_ms=timeout_ms,
        )  # fmt: skip
        return [self.ask(name, request) for name in names or self.pipelines[block.partition]]

    def info(self, name: str, block: Block) -> BlockInfo | None:
        """Return a member's committed state of a block, None if it has none."""
        try:
            answer = self.ask(
                name, GetBlock(partition=block.partition, container_id=block.container_id, local_id=block.local_id)
            )
        except BlockError as error:
            if error.code == "NO_SUCH_BLOCK":
                return None
            raise
        assert isinstance(answer, BlockInfo)
        return answer

    def read(self, name: str, block: Block, length: int, *, offset: int = 0, bcs_id: int = 0) -> bytes:
        """Read committed bytes from one member, checksums verified; raises BlockError."""
        request = ReadBlock(
            partition=block.partition, container_id=block.container_id, local_id=block.local_id, offset=offset,
            length=length, bcs_id=bcs_id, committed_only=True,
        )  # fmt: skip
        found = bytearray()
        first = offset
        with self.peer(name, REQUEST_TIMEOUT_S) as peer:
            for at, data, _ in peer.read_block(request):
                first = at if not found else first
                found += data
        return bytes(found[offset - first : offset - first + length])

    def block_file(self, name: str, block: Block) -> Path:
        """Return where a datanode keeps a block's bytes."""
        return self.data_dir(name) / "containers" / str(block.container_id) / f"{block.local_id}.block"
