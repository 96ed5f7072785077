"""Load generator: createKey + commitKey in a closed loop (used by the bench; ``python -m producers.bulk.load``).

What belongs here: generating requests as fast as they are answered, and measuring them in bounded memory. With
N in flight there are N *workers*; each opens a key, commits it, and begins the next. A request's latency runs
from its submission to the call of its callback. With one in flight the blocking methods are measured instead,
because a caller with one request at a time uses those. Requests answered during the warm-up are not counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from producers.bulk.histogram import Histogram
from producers.client import Client
from producers.errors import StratologError
from producers.requests.core.calls import Outcome, Policy
from producers.requests.keys import Submitter, ensure_places, fit_blocks, session_of
from schemas.access.credentials import parse_credentials
from schemas.kafka.connection import BadKafkaSetting, read_option
from schemas.records.messages import CommitKey, CreateKey, RequestBody, Response
from schemas.result_codes import INTERNAL_ERROR

MAX_FAILURES = 1000
"""Failed requests after which a run ends early: its figures mean nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The load to generate: ends after ``seconds`` or ``pairs`` created keys, whichever is first; 0 pairs = no limit.

    Workers are spread over ``volume`` and ``more_volumes``, each with a bucket of that name: a volume is of one shard.
    ``size`` is each key's size in bytes. ``metadata_bytes`` are random characters that each key has as metadata, so
    rows are as large as one likes, and do not compress well. Raises ValueError for a value out of range.
    """

    volume: str
    bucket: str
    in_flight: int
    seconds: float = 10.0
    warm_up_seconds: float = 1.0
    pairs: int = 0
    size: int = 4096
    metadata_bytes: int = 0
    more_volumes: tuple[str, ...] = ()

    @property
    def volumes(self) -> tuple[str, ...]:
        """All volumes in which keys are made."""
        return (self.volume, *self.more_volumes)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {self.in_flight}")
        if self.seconds <= 0 or self.warm_up_seconds < 0:
            raise ValueError(f"seconds ({self.seconds}) must be positive, warm_up_seconds not negative")
        if min(self.pairs, self.size, self.metadata_bytes) < 0:
            raise ValueError(
                f"pairs ({self.pairs}), size ({self.size}) and metadata_bytes ({self.metadata_bytes}) must not be negative"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Figures of a run. ``client_cpu_us`` is the processor time of this process per request, in microseconds."""

    in_flight: int
    requests: int
    failures: dict[str, int]
    seconds: float
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_us: float


def run_load(client: Submitter, spec: LoadSpec) -> LoadResult:
    """Generate load on a volume and bucket that exist, and return the figures.

    Keys are named after the client and the moment, so the keys of different runs differ.

    >>> run_load(client, LoadSpec(volume="v", bucket="b", in_flight=500)).requests_per_second  # doctest: +SKIP
    """
    run = _Run(client, spec)
    if spec.in_flight == 1:
        run.block()
    else:
        run.pipeline()
    return run.result()


class _Run:
    """One run. In the pipelined form all but :meth:`pipeline` runs on the client's thread, so nothing is locked."""

    def __init__(self, client: Submitter, spec: LoadSpec) -> None:
        self.client = client
        self.spec = spec
        self.histogram = Histogram()
        self.failures: Counter[str] = Counter()
        self.prefix = f"load/{client.client_id.hex()[:12]}-{time.time_ns():x}"
        self.begun_s = time.monotonic()
        self.counted_from_s = self.begun_s + spec.warm_up_seconds
        self.ends_s = self.counted_from_s + spec.seconds
        self.measured_from_s: float | None = None
        self.last_s = self.begun_s
        self.cpu_from_s = 0.0
        self.cpu_s: float
        self.pairs = 0

    def goes_on(self) -> bool:
        """Say whether a worker may begin another key."""
        if self.spec.pairs and self.pairs >= self.spec.pairs:
            return False
        return time.monotonic() < self.ends_s and self.failures.total() < MAX_FAILURES

    def next_key(self, volume: str) -> CreateKey:
        """Return the request that opens the next key."""
        self.pairs += 1
        spec = self.spec
        return CreateKey(
            volume=volume,
            bucket=spec.bucket,
            key=f"{self.prefix}/{self.pairs:09d}",
            size=spec.size,
            metadata=_random_metadata(spec.metadata_bytes),
        )

    def commit_of(self, create: CreateKey, response: Response) -> CommitKey:
        """Return the request that commits a key that was opened."""
        session = session_of(response)
        return CommitKey(
            volume=create.volume,
            bucket=create.bucket,
            key=create.key,
            session_id=session.session_id,
            size=create.size,
            blocks=fit_blocks(session.blocks, create.size),
        )

    def count(self, begun_s: float, outcome: Outcome) -> None:
        """Count a request that began at ``begun_s`` and has just ended."""
        now_s = time.monotonic()
        if isinstance(outcome, StratologError):
            self.failures[outcome.status] += 1
        elif now_s >= self.counted_from_s:
            if self.measured_from_s is None:
                self.measured_from_s = now_s
                self.cpu_from_s = time.process_time()
            self.histogram.add((now_s - begun_s) * 1000)
            self.last_s = now_s

    def block(self) -> None:
        """Run with one request in flight, and wait for each."""
        volumes = itertools.cycle(self.spec.volumes)
        while self.goes_on():
            create = self.next_key(next(volumes))
            opened = self._blocking(create)
            if opened is None:
                continue
            try:
                commit = self.commit_of(create, opened)
            except (TypeError, ValueError):
                self.failures[INTERNAL_ERROR] += 1
                continue
            self._blocking(commit)
        self.cpu_s = time.process_time()

    def _blocking(self, body: RequestBody) -> Response | None:
        begun_s = time.monotonic()
        outcome: Outcome
        try:
            outcome = self.client.submit(body).result()
        except StratologError as error:
            outcome = error
        self.count(begun_s, outcome)
        return outcome if isinstance(outcome, Response) else None

    def pipeline(self) -> None:
        """Run with many requests in flight, and wait for the end of all workers."""
        ended = threading.Semaphore(0)
        volumes = itertools.cycle(self.spec.volumes)
        workers = [_Worker(self, ended, next(volumes)) for _ in range(self.spec.in_flight)]
        for worker in workers:
            worker.begin()  # waits for room if others use the client, too
        for _ in workers:
            ended.acquire()
        self.cpu_s = time.process_time()

    def result(self) -> LoadResult:
        """Return the figures."""
        histogram = self.histogram
        from_s = self.last_s if self.measured_from_s is None else self.measured_from_s
        seconds = max(self.last_s - from_s, 1e-9)
        return LoadResult(
            in_flight=self.spec.in_flight,
            requests=histogram.count,
            failures=dict(self.failures),
            seconds=round(seconds, 3),
            requests_per_second=round(histogram.count / seconds, 1) if histogram.count > 1 else 0.0,
            p50_ms=round(histogram.percentile_ms(50), 3),
            p99_ms=round(histogram.percentile_ms(99), 3),
            max_ms=round(histogram.max_ms, 3),
            client_cpu_us=round((self.cpu_s - self.cpu_from_s) / max(histogram.count, 1) * 1e6, 1),
        )


class _Worker:
    """One of N workers, each with one request in flight."""

    __slots__ = ("begun_s", "create", "ended", "run", "volume")

    def __init__(self, run: _Run, ended: threading.Semaphore, volume: str) -> None:
        self.run = run
        self.ended = ended
        self.volume = volume
        self.begun_s: float
        self.create: CreateKey

    def begin(self) -> None:
        """Open the next key, or end."""
        if not self.run.goes_on():
            self.ended.release()
            return
        self.create = self.run.next_key(self.volume)
        self._submit(self.create, self._opened)

    def _submit(self, body: RequestBody, done: Callable[[Outcome], None]) -> None:
        self.begun_s = time.monotonic()
        try:
            self.run.client.submit_with(body, done)
        except StratologError as error:
            # The client is closed: this worker cannot go on.
            self.run.failures[error.status] += 1
            self.ended.release()

    def _opened(self, outcome: Outcome) -> None:
        self.run.count(self.begun_s, outcome)
        if isinstance(outcome, StratologError):
            self.begin()
            return
        try:
            commit = self.run.commit_of(self.create, outcome)
        except (TypeError, ValueError):
            # The server opened the key with too few blocks, or none: no commit can follow.
            self.run.failures[INTERNAL_ERROR] += 1
            self.begin()
            return
        self._submit(commit, self._committed)

    def _committed(self, outcome: Outcome) -> None:
        self.run.count(self.begun_s, outcome)
        self.begin()


def _random_metadata(count: int) -> dict[str, str]:
    """Return metadata with ``count`` random characters; none for 0."""
    return {"random": b64encode(os.urandom(count)).decode()[:count]} if count else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load generator from the command line; return 0 if no request failed."""
    options = _parser().parse_args(arguments)
    failed = False
    limit = max(*options.in_flight, Policy().max_in_flight)
    brokers = "" if options.nodes else options.bootstrap_servers
    more: dict[str, Any] = {} if options.nodes else {"kafka": dict(options.kafka)}
    signer = None if options.credentials is None else parse_credentials(options.credentials.read_text())
    with Client(
        brokers, nodes=options.nodes, caller=options.caller, max_in_flight=limit, credentials=signer, **more
    ) as client:
        ensure_places(client, [(volume, options.bucket) for volume in options.volume])
        for in_flight in options.in_flight:
            spec = LoadSpec(
                volume=options.volume[0],
                more_volumes=tuple(options.volume[1:]),
                bucket=options.bucket,
                in_flight=in_flight,
                seconds=options.seconds,
                warm_up_seconds=options.warm_up_seconds,
                pairs=options.pairs,
                size=options.size,
                metadata_bytes=options.metadata_bytes,
            )
            result = run_load(client, spec)
            failed = failed or bool(result.failures)
            print(json.dumps(asdict(result)) if options.json else _line(result), flush=True)
    return 1 if failed else 0


def _line(result: LoadResult) -> str:
    failures = ", ".join(f"{count} {status}" for status, count in sorted(result.failures.items())) or "none"
    return (
        f"{result.in_flight:>6} in flight: {result.requests_per_second:>9,.0f} requests/s, "
        f"p50 {result.p50_ms:.2f} ms, p99 {result.p99_ms:.2f} ms, failures: {failures}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.load", description="createKey + commitKey in a closed loop"
    )
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--nodes", nargs="+", default=[], help="go straight to the leaders, which these nodes name")
    parser.add_argument(
        "--kafka", type=_kafka, action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the connection, as in security.protocol=SASL_SSL; passwords are in files",
    )  # fmt: skip
    parser.add_argument("--caller", default=None)
    parser.add_argument("--credentials", type=Path, default=None, help="file with what requests are signed with")
    parser.add_argument("--volume", nargs="+", default=["load"], help="workers are spread over them")
    parser.add_argument("--bucket", default="load")
    parser.add_argument("--in-flight", type=_counts, default=[1, 50, 500, 4000], help="for example 1,50,500,4000")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number in flight")
    parser.add_argument("--warm-up-seconds", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=0, help="stop after so many keys; 0 = no limit")
    parser.add_argument("--size", type=int, default=4096, help="size of each key in bytes")
    parser.add_argument("--metadata-bytes", type=int, default=0, help="random characters in each key's metadata")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _kafka(text: str) -> tuple[str, str]:
    """Read NAME=VALUE of ``kafka.*`` settings."""
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise BadKafkaSetting("must be NAME=VALUE, as in security.protocol=SASL_SSL")
        return read_option(name, value)
    except BadKafkaSetting as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
