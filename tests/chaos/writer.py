"""A client process: creates, commits, puts, replaces and deletes keys with many requests in flight, and journals each of them before and after.

    python -m tests.chaos.writer --bootstrap-servers A:P --volume V --bucket B --journal FILE [--in-flight N] [--rate KEYS_PER_S]

SIGTERM: begins no more keys, waits for what is in flight, ends with status 0. SIGKILL is what the journal is made for.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from producers import Client
from producers.errors import NotConnected
from stratolog.drills.kit.journal_file import JournalFile
from stratolog.drills.kit.writer import ChainWriter
from tests.chaos.forks import Forks
from transport.waiting.deadline import Deadline

DEADLINE_MS = 120_000
CLOSE_TIMEOUT_MS = 150_000
CONNECT_S = 60.0
"""How long brokers may be down when the writer starts."""


def connected(bootstrap_servers: str, max_in_flight: int, nodes: Sequence[str] = ()) -> Client:
    """Connect, straight to ``nodes`` too if any are given, while brokers are down too: where nobody listens a client says so at once, and it is tried again."""
    deadline = Deadline.after_s(CONNECT_S)
    while True:
        try:
            return Client(
                bootstrap_servers, nodes=nodes, caller="chaos", deadline_ms=DEADLINE_MS, max_in_flight=max_in_flight,
                connect_timeout_ms=int(CONNECT_S * 1000),
            )  # fmt: skip
        except NotConnected:
            if deadline.has_passed:
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
    parser.add_argument("--forks", type=float, default=0.0, help="seconds from fork to fork (tests.chaos.forks)")
    options = parser.parse_args()
    nodes = list(filter(None, options.nodes.split(",")))
    client = connected(options.bootstrap_servers, 2 * options.in_flight + 16, nodes)
    client.close_timeout_ms = CLOSE_TIMEOUT_MS
    with client:
        lines = JournalFile(options.journal, client.client_id.hex(), options.volume, options.bucket)
        writer = ChainWriter(client, lines, volume=options.volume, bucket=options.bucket, in_flight=options.in_flight)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            writer.stop.set()

        signal.signal(signal.SIGTERM, stop)
        place = (options.volume, options.bucket)
        with Forks(client, lines, options.journal, place, every_s=options.forks, rate=options.rate):
            writer.run(options.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
