"""A database of many small keys: the pause that a snapshot makes, replay against install, the restart of a node.

The three parts are about one database that grows from one to the next.
"""

from __future__ import annotations

import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bootstrap.figures import Sizes, pause, percentile, rounds_of, time_of
from benchmarks.bootstrap.running import (
    BUCKET,
    NO_INSTALL,
    READY_TIMEOUT_S,
    SHARD,
    VOLUME,
    database_bytes,
    fill,
    follower,
    memory_mib,
    read_events,
    recorded_command,
    running_stack,
    say,
    set_settings,
    wait_caught_up,
    wipe,
)
from producers import Client, StratologError
from producers.requests.core.calls import Outcome
from producers.requests.keys import session_of
from schemas.records.messages import CommitKey, CreateKey
from tests.support.local.stack import TestStack

SETTLE_S = 30.0
"""How long a restarted node is watched for its peak of memory."""
PROBE_WARM_UP_S = 10.0
AT_ONCE, PREPARED = "at once", "prepared"
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSpec:
    """How many snapshots are taken, how many requests are in flight then, and the time between two snapshots."""

    in_flight: int
    snapshots: int
    interval_s: float


class ManyKeys:
    """A stack whose database grows on demand."""

    def __init__(self, stack: TestStack, emit: Emit) -> None:
        self.stack = stack
        self._emit = emit
        self._keys = 0

    def grow(self, keys: int) -> None:
        """Write keys until there are so many."""
        if keys <= self._keys:
            return
        figures = fill(self.stack, keys - self._keys)
        self._keys = keys
        self.stack.wait_converged(READY_TIMEOUT_S)
        say(f"{keys:,} keys are written, at {figures['requests_per_second']:,.0f} requests/s")
        self._emit(
            {
                "part": "fill", "keys": keys, "seconds": figures["seconds"],
                "requests_per_s": round(figures["requests_per_second"]), "bytes": self._database_bytes(),
            }
        )  # fmt: skip

    def _database_bytes(self) -> int:
        return database_bytes(self.stack.settings.node_folder(self.stack.wait_leader(SHARD)))


@contextmanager
def many_keys(folder: Path | None, emit: Emit) -> Iterator[ManyKeys]:
    """Run a stack of a leader and a follower."""
    with running_stack(2, folder) as stack:
        yield ManyKeys(stack, emit)


# -- snapshot ----------------------------------------------------------------------------------------------------------


class ProbeLoad:
    """Creates and commits keys with a number of requests in flight, and keeps when each began and ended."""

    def __init__(self, client: Client, in_flight: int) -> None:
        self._client = client
        self._stop = threading.Event()
        self._ended = threading.Semaphore(0)
        self._in_flight = in_flight
        self._number = 0
        self._begun_s = array("d")
        self._ended_s = array("d")
        self.failures: list[str] = []

    def start(self) -> None:
        """Send the first requests."""
        for _ in range(self._in_flight):
            self._create()

    def stop(self) -> list[tuple[float, float]]:
        """Stop, and return (begun, ended) of all requests."""
        self._stop.set()
        for _ in range(self._in_flight):
            self._ended.acquire()
        return list(zip(self._begun_s, self._ended_s, strict=True))

    def _create(self) -> None:
        if self._stop.is_set():
            self._ended.release()
            return
        self._number += 1
        body = CreateKey(volume=VOLUME, bucket=BUCKET, key=f"probe/{id(self)}/{self._number:09d}", size=0)
        self._client.submit_with(body, partial(self._created, time.time(), body))

    def _created(self, begun_s: float, body: CreateKey, outcome: Outcome) -> None:
        self._count(begun_s, outcome)
        if isinstance(outcome, StratologError):
            self._create()
            return
        session = session_of(outcome).session_id
        commit = CommitKey(volume=VOLUME, bucket=BUCKET, key=body.key, session_id=session, size=0, blocks=[])
        self._client.submit_with(commit, partial(self._committed, time.time()))

    def _committed(self, begun_s: float, outcome: Outcome) -> None:
        self._count(begun_s, outcome)
        self._create()

    def _count(self, begun_s: float, outcome: Outcome) -> None:
        if isinstance(outcome, StratologError):
            self.failures.append(str(outcome))
            return
        self._begun_s.append(begun_s)
        self._ended_s.append(time.time())


def snapshot(keys: ManyKeys, sizes: Sizes, spec: SnapshotSpec, emit: Emit) -> None:
    """Take snapshots under load; tell how long each takes, and what requests under way saw, with and without.

    First by leaders that take them at once, then by leaders that write their newest rows to files before.
    """
    keys.grow(sizes.snapshot_keys)
    for way in (AT_ONCE, PREPARED):
        _start_anew(keys.stack, way)
        emit({"part": "snapshot", "way": way, "keys": sizes.snapshot_keys, **_pauses(keys.stack, spec)})
    _start_anew(keys.stack, PREPARED)


def _start_anew(stack: TestStack, way: str) -> None:
    more = ["--unprepared"] if way == AT_ONCE else []
    for name in stack.names:
        stack.stop_node(name)
        stack.start_node(name, recorded_command(name, stack.folder / "events.jsonl", *more))
        stack.wait_led()
    stack.wait_converged(READY_TIMEOUT_S)


def _pauses(stack: TestStack, spec: SnapshotSpec) -> dict[str, Any]:
    windows: list[tuple[float, float]] = []
    calm: list[tuple[float, float]] = []
    with stack.client() as client, stack.client() as writer:
        probe = ProbeLoad(writer, spec.in_flight)
        probe.start()
        time.sleep(PROBE_WARM_UP_S)
        for number in range(spec.snapshots):
            time.sleep(spec.interval_s / 2)
            calm_s = time.time()
            time.sleep(spec.interval_s / 2)
            asked_s = time.time()
            client.create_snapshot(VOLUME, BUCKET, f"pause-{number}")
            windows.append((asked_s, time.time()))
            calm.append((calm_s, calm_s + windows[-1][1] - asked_s))
        time.sleep(spec.interval_s / 2)
        calls = probe.stop()
        for number in range(spec.snapshots):
            client.delete_snapshot(VOLUME, BUCKET, f"pause-{number}")
    if probe.failures:
        raise RuntimeError(f"{len(probe.failures)} requests failed: {probe.failures[0]}")
    took_ms = [(ended - begun) * 1000 for begun, ended in windows]
    with_snapshot = [pause(calls, *window) for window in windows]
    without = [pause(calls, *window) for window in calm]
    return {
            "in_flight": spec.in_flight, "snapshots": spec.snapshots,
            "requests_per_s": round(len(calls) / (calls[-1][1] - calls[0][0])),
            "taken_p50_ms": percentile(took_ms, 50), "taken_max_ms": percentile(took_ms, 100),
            "p99_ms": round(statistics.median(one.p99_ms for one in with_snapshot), 2),
            "p99_without_ms": round(statistics.median(one.p99_ms for one in without), 2),
            "longest_p50_ms": percentile((one.max_ms for one in with_snapshot), 50),
            "longest_p99_ms": percentile((one.max_ms for one in with_snapshot), 99),
            "longest_without_p50_ms": percentile((one.max_ms for one in without), 50),
            "longest_without_p99_ms": percentile((one.max_ms for one in without), 99),
            "all_p99_ms": percentile(((ended - begun) * 1000 for begun, ended in calls), 99),
        }  # fmt: skip


# -- replay ------------------------------------------------------------------------------------------------------------


def replay(keys: ManyKeys, sizes: Sizes, repeats: int, emit: Emit) -> None:
    """Lose a follower's disk; have it replay the log from offset 0, and then install. Nobody writes meanwhile."""
    keys.grow(sizes.replay_keys)
    times: dict[str, list[float]] = {"install": [], "replay": []}
    for _ in range(repeats):
        for way in ("install", "replay"):
            figures = _made_anew(keys.stack, way)
            times[way].append(figures["seconds"])
            emit({"part": "replay", "way": way, "keys": sizes.replay_keys, **figures})
    medians = {way: statistics.median(found) for way, found in times.items()}
    emit(
        {
            "part": "replay", "way": "ratio", "keys": sizes.replay_keys, "replay_s": medians["replay"],
            "install_s": medians["install"], "times": round(medians["replay"] / medians["install"], 2),
        }
    )  # fmt: skip


def _made_anew(stack: TestStack, way: str) -> dict[str, Any]:
    leader, victim = stack.wait_leader(SHARD), follower(stack)
    wipe(stack, victim)
    set_settings(stack, bootstrap_records=1 if way == "install" else NO_INSTALL)
    events_file = stack.folder / f"events-{time.time_ns()}.jsonl"
    started_s = time.time()
    say(f"{way}: {victim} starts without a database")
    stack.start_node(victim, recorded_command(victim, events_file))
    ended_s = wait_caught_up(stack, victim, leader)
    stack.wait_converged(READY_TIMEOUT_S)
    figures: dict[str, Any] = {
        "seconds": round(ended_s - started_s, 2),
        "offset": stack.shard(victim, 0)["applied_offset"],
    }
    events = read_events(events_file)
    if way == "replay":
        return figures
    rounds = rounds_of(events)
    fetched_s, checked_s = time_of(events, "round"), time_of(events, "checked")
    return {
        **figures, "rounds": len(rounds), "start_s": round(rounds[0].asked_s - started_s, 2),
        "bytes": sum(one.fetched_bytes for one in rounds),
        "fetch_s": round(fetched_s - rounds[0].asked_s, 2), "check_s": round(checked_s - fetched_s, 2),
        "rest_s": round(ended_s - checked_s, 2),
    }  # fmt: skip


# -- restart -----------------------------------------------------------------------------------------------------------


def restart(keys: ManyKeys, sizes: Sizes, repeats: int, emit: Emit) -> None:
    """Restart the follower, after SIGTERM and after SIGKILL: seconds until it serves reads, and memory."""
    keys.grow(sizes.restart_keys)
    for _ in range(repeats):
        for signal in ("SIGTERM", "SIGKILL"):
            emit({"part": "restart", "after": signal, "keys": sizes.restart_keys, **_restarted(keys.stack, signal)})


def _restarted(stack: TestStack, signal: str) -> dict[str, Any]:
    leader, node = stack.wait_leader(SHARD), follower(stack)
    if signal == "SIGTERM":
        stack.stop_node(node)
    else:
        stack.kill_node(node)
    database = stack.settings.node_folder(node) / f"shard-{SHARD}"
    wal_bytes = sum(path.stat().st_size for path in database.glob("*.log"))
    started_s = time.time()
    process = stack.start_node(node)
    stale_s = _served(stack, node, "stale", started_s)
    latest_s = _served(stack, node, "linearizable", started_s)
    memory = memory_mib(process.pid)
    caught_up_s = wait_caught_up(stack, node, leader) - started_s
    time.sleep(SETTLE_S)
    return {
        "stale_read_s": stale_s, "linearizable_read_s": latest_s, "caught_up_s": round(caught_up_s, 2),
        "wal_bytes": wal_bytes, **memory, "later": memory_mib(process.pid),
    }  # fmt: skip


def _served(stack: TestStack, node: str, consistency: str, started_s: float) -> float:
    """Wait for a read, and return how long after the start it was answered, in seconds."""
    import httpx

    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            if stack.get(node, f"/v1/volumes/{VOLUME}", consistency=consistency).status_code == 200:
                return round(time.time() - started_s, 2)
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise RuntimeError(f"{node} did not serve\n{stack.logs()}")
