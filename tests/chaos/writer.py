"""A client process: creates, commits, puts, replaces and deletes keys with many requests in flight, and journals each of them before and after.

    python -m tests.chaos.writer --bootstrap-servers A:P --volume V --bucket B --journal FILE [--in-flight N] [--rate KEYS_PER_S]

SIGTERM: begins no more keys, waits for what is in flight, ends with status 0. SIGKILL is what the journal is made for.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from producers import Client
from producers.errors import NotConnected, OutcomeUnknown, StratologError
from producers.requests.core.calls import Outcome
from producers.requests.keys import fit_blocks, session_of
from schemas.records.messages import CommitKey, CreateKey, DeleteKey, KeySession, PutKey, RequestBody, Response
from tests.chaos import journal
from tests.chaos.journal import COMMIT, CREATE, DELETE

DEADLINE_MS = 120_000
CLOSE_TIMEOUT_MS = 150_000
CONNECT_S = 60.0
"""How long brokers may be down when the writer starts."""
IDLE_S = 0.05


class Writer:
    """Keys one after the other in ``in_flight`` chains of requests (``journal.CHAINS``)."""

    def __init__(self, client: Client, lines: journal.Writing, *, volume: str, bucket: str, in_flight: int) -> None:
        self._client = client
        self._lines = lines
        self._volume = volume
        self._bucket = bucket
        self._in_flight = in_flight
        self._name = client.client_id.hex()
        self._room = threading.Semaphore(in_flight)
        self.stop = threading.Event()

    def run(self, rate: float) -> None:
        """Write until told to stop, at most ``rate`` keys a second (0 = as fast as they are answered)."""
        number, due_s = 0, time.monotonic()
        while not self.stop.is_set():
            if not self._room.acquire(timeout=IDLE_S):
                continue
            number += 1
            self._go_on(number, journal.chain_of(number), None)
            if rate:
                due_s = max(due_s + 1 / rate, time.monotonic() - 1)
                self.stop.wait(max(0.0, due_s - time.monotonic()))
        for _ in range(self._in_flight):
            self._room.acquire()

    def _go_on(self, number: int, steps: str, session: KeySession | None) -> None:
        """Do the rest of a key's steps; ``session`` is what the last one has opened."""
        if not steps:
            self._room.release()
            return
        step, rest = steps[0], steps[1:]

        def then(response: Response) -> None:
            self._go_on(number, rest, session_of(response) if step == CREATE else None)

        self._send(number, step, self._body(number, step, session), then)

    def _body(self, number: int, step: str, session: KeySession | None) -> RequestBody:
        volume, bucket, key = self._volume, self._bucket, journal.key_of(self._name, number)
        if step == CREATE:
            return CreateKey(volume=volume, bucket=bucket, key=key, size=journal.size_of(number))
        if step == DELETE:
            return DeleteKey(volume=volume, bucket=bucket, key=key)
        data = journal.data_of(self._name, number, step)
        if data is not None:
            return PutKey(volume=volume, bucket=bucket, key=key, data=data)
        assert session is not None, f"{step} follows {CREATE}"
        size = journal.size_of(number, COMMIT)
        return CommitKey(
            volume=volume, bucket=bucket, key=key, session_id=session.session_id, size=size,
            blocks=fit_blocks(session.blocks, size),
        )  # fmt: skip

    def _send(self, number: int, step: str, body: RequestBody, then: Callable[[Response], None]) -> None:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Response):
                self._lines.acknowledged(number, step, outcome.call_id, outcome.index)
                then(outcome)
                return
            note = self._lines.unknown if isinstance(outcome, OutcomeUnknown) else self._lines.refused
            note(number, step, outcome.status)
            self._room.release()

        self._lines.tried(number, step)
        try:
            self._client.submit_with(body, done)
        except StratologError as error:
            done(error)


def connected(bootstrap_servers: str, max_in_flight: int, nodes: Sequence[str] = ()) -> Client:
    """Connect, straight to ``nodes`` too if any are given, while brokers are down too: where nobody listens a client says so at once, and it is tried again."""
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return Client(
                bootstrap_servers, nodes=nodes, caller="chaos", deadline_ms=DEADLINE_MS, max_in_flight=max_in_flight,
                connect_timeout_ms=int(CONNECT_S * 1000),
            )  # fmt: skip
        except NotConnected:
            if time.monotonic() >= deadline_s:
                raise


def main() -> int:
    """Write until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="")
    parser.add_argument(
        "--nodes", default="", help="addresses of nodes, with commas between: requests go straight there"
    )
    parser.add_argument("--volume", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--journal", required=True, type=Path)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    nodes = list(filter(None, options.nodes.split(",")))
    client = connected(options.bootstrap_servers, 2 * options.in_flight + 16, nodes)
    client.close_timeout_ms = CLOSE_TIMEOUT_MS
    with client:
        lines = journal.Writing(options.journal, client.client_id.hex(), options.volume, options.bucket)
        writer = Writer(client, lines, volume=options.volume, bucket=options.bucket, in_flight=options.in_flight)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            writer.stop.set()

        signal.signal(signal.SIGTERM, stop)
        writer.run(options.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
