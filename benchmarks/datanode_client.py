"""One client of ``benchmarks.datanode``, in a process of its own: JSON lines, commands on stdin, answers on stdout.

It writes blocks with the SDK's block writer, without the Object Manager. As in ``KeyWriter``, the watch of one block
goes on while the next block is written. Times are ``time.monotonic()``, which all processes of a machine share.

Arguments: cluster, brokers, and for TLS the files of the authority and of the client's certificate.

    {"do": "write", "view": {...}, "container_id": 256, "first": 1, "blocks": 4, "block_bytes": ..., "options": {...},
     "start_at": ...}
    {"do": "flushes", ...}      one block, ``flushes`` times ``flush_bytes`` and hsync
    {"do": "closes", ...}       ``blocks`` small blocks, one after another
    {"do": "plain", ...}        the same bytes to a topic, with the settings of the log's appender
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from producers.blocks.block_writer import BlockWriter
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import Answer, Datanodes
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas.conversation.conversation import Event
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.datanode import Member, PutBlock
from schemas.records.rows import BlockLocation
from schemas.security.tls import ProcessTls, TlsFiles
from transport.datanodes.connection import DatanodeConnection

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes that the writer gets at once, and a message of the plain producer: a chunk of the old way."""
PIECES = 4
"""Number of different pieces, used in turn."""

Command = Mapping[str, Any]
Json = dict[str, Any]


class Waits:
    """The client's waits, in order, of the kinds ``stream``, ``put`` and ``watch``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: list[str] = []

    def add(self, kind: str) -> None:
        """Note a wait."""
        with self._lock:
            self._kinds.append(kind)

    def take(self) -> tuple[int, int]:
        """Return (waits, blocking points) since the last call: consecutive waits of one kind are one blocking point."""
        with self._lock:
            kinds, self._kinds = self._kinds, []
        points = sum(before != after for before, after in pairwise(kinds)) + bool(kinds)
        return len(kinds), points


class CountingDatanodes(Datanodes):
    """Connections that note each wait for an answer."""

    def __init__(self, waits: Waits, cluster: str, tls: ProcessTls | None) -> None:
        super().__init__(cluster=cluster, peer="bench", tls=tls)
        self._waits = waits

    def connect(self, member: Member, *, timeout_ms: int | None = None) -> DatanodeConnection:
        """Open a connection that counts its waits."""
        connection = super().connect(member, timeout_ms=timeout_ms)
        receive = connection.receive_patiently

        def counted(
            timeout_ms: int, *, look_ms: int | None = None, is_worth_it: Callable[[], bool] | None = None
        ) -> Event:
            self._waits.add("stream")
            return receive(timeout_ms, look_ms=look_ms, is_worth_it=is_worth_it)

        connection.receive_patiently = counted  # type: ignore[method-assign]
        return connection

    def ask_all(
        self, members: Sequence[Member], request: Any, expect: type[Answer], *, timeout_ms: int,
        enough: Callable[[Mapping[str, Answer | DatanodeError]], bool] = lambda _: False, tokens: bytes = b"",
    ) -> dict[str, Answer | DatanodeError]:  # fmt: skip
        """As in Datanodes."""
        self._waits.add("put" if isinstance(request, PutBlock) else "watch")
        return super().ask_all(members, request, expect, timeout_ms=timeout_ms, enough=enough, tokens=tokens)


def put_pieces(writer: BlockWriter, pieces: Sequence[bytes], size: int) -> None:
    """Write so many bytes, of pieces of PIECE_BYTES in turn."""
    done = 0
    while done < size:
        piece = memoryview(pieces[done // PIECE_BYTES % len(pieces)])[: size - done]
        while len(piece):
            taken = writer.put(piece, keep=True)
            writer.push()
            if not taken:
                writer.wait_for_room()
            piece = piece[taken:]
            done += taken


class Client:
    """Executes the commands."""

    def __init__(self, cluster: str, bootstrap_servers: Brokers, tls: ProcessTls | None = None) -> None:
        self._waits = Waits()
        self._datanodes = CountingDatanodes(self._waits, cluster, tls)
        self._bootstrap_servers = bootstrap_servers
        self._pieces = [os.urandom(PIECE_BYTES) for _ in range(PIECES)]
        self._producer: Producer | None = None

    def run(self, command: Command) -> Json:
        """Execute one, and return its figures with the times of its beginning and end and its processor time."""
        execute = {"write": self._write, "flushes": self._flushes, "closes": self._closes, "plain": self._plain}
        wait_s = float(command.get("start_at", 0)) - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        cpu_s, began_s = time.process_time(), time.monotonic()
        figures = execute[str(command["do"])](command)
        return {"began": began_s, "ended": time.monotonic(), "cpu_s": time.process_time() - cpu_s, **figures}

    def _writer(self, command: Command, number: int) -> BlockWriter:
        view = command["view"]
        pipeline = PipelineView(
            pipeline=view["pipeline"], partition=view["partition"], state="OPEN",
            members=tuple(Member(**member) for member in view["members"]),
        )  # fmt: skip
        location = BlockLocation(
            container_id=command["container_id"], local_id=command["first"] + number, offset=0,
            length=command["block_bytes"], pipeline=pipeline.pipeline,
        )  # fmt: skip
        options = StreamOptions(**command["options"])
        return BlockWriter(location, pipeline, self._datanodes, options)

    def _write(self, command: Command) -> Json:
        closing: BlockWriter | None = None
        closes_ms, resumed = [], 0
        for number in range(command["blocks"]):
            writer = self._writer(command, number)
            put_pieces(writer, self._pieces, command["block_bytes"])
            began_s = time.monotonic()
            writer.finish()
            closes_ms.append((time.monotonic() - began_s) * 1000)
            if closing is not None:
                closing.settle()
            closing = writer
            resumed += writer.resumed
        if closing is not None:
            closing.settle()
        self._waits.take()
        return {"bytes": command["blocks"] * command["block_bytes"], "closes_ms": closes_ms, "resumed": resumed}

    def _flushes(self, command: Command) -> Json:
        writer = self._writer(command, 0)
        put_pieces(writer, self._pieces, command["flush_bytes"])
        writer.hsync()
        flushes_ms, waits, points = [], 0, 0
        for _ in range(command["flushes"]):
            put_pieces(writer, self._pieces, command["flush_bytes"])
            self._waits.take()
            began_s = time.monotonic()
            writer.hsync()
            flushes_ms.append((time.monotonic() - began_s) * 1000)
            some, distinct = self._waits.take()
            waits, points = waits + some, points + distinct
        writer.finish()
        writer.settle()
        self._waits.take()
        return {"latencies_ms": flushes_ms, "waits": waits, "points": points}

    def _closes(self, command: Command) -> Json:
        closes_ms, waits, points = [], 0, 0
        for number in range(command["blocks"]):
            writer = self._writer(command, number)
            put_pieces(writer, self._pieces, command["block_bytes"])
            self._waits.take()
            began_s = time.monotonic()
            writer.finish()
            writer.settle()
            closes_ms.append((time.monotonic() - began_s) * 1000)
            some, distinct = self._waits.take()
            waits, points = waits + some, points + distinct
        return {"latencies_ms": closes_ms, "waits": waits, "points": points}

    def _plain(self, command: Command) -> Json:
        if self._producer is None:
            self._producer = Producer(client_settings(self._bootstrap_servers, {**command["settings"]}))
        failed: list[str] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())

        count = command["bytes"] // PIECE_BYTES
        for number in range(count):
            self._producer.produce(
                command["topic"], self._pieces[number % PIECES], partition=command["partition"], on_delivery=report
            )
            self._producer.poll(0)
        self._producer.flush()
        if failed:
            raise RuntimeError(f"{len(failed)} messages failed, the first: {failed[0]}")
        return {"bytes": count * PIECE_BYTES}


def main() -> None:
    """Read commands until the end of input; an error ends the process."""
    tls = ProcessTls(TlsFiles(ca=Path(sys.argv[3]), certificate=Path(sys.argv[4]))) if len(sys.argv) > 4 else None
    client = Client(sys.argv[1], sys.argv[2], tls)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(client.run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
