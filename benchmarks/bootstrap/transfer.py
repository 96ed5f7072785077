"""Installing a large database while it is written: rounds of what is missing against full copies; the circle.

``transfer`` installs as fast as it goes. ``circle`` installs under a throttle (``bootstrap_bytes_per_s``) at which a
full copy lasts so long that what was written meanwhile needs a further round, and so on: the vicious circle of a copy
that begins anew. The number of rounds is bounded all the same (MAX_ROUNDS), and the log has the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bootstrap.figures import Round, Samples, Sizes, rounds_of, time_of
from benchmarks.bootstrap.running import (
    BUCKET,
    SHARD,
    VOLUME,
    LeaderSampler,
    database_bytes,
    fill,
    follower,
    load,
    read_events,
    recorded_command,
    running_stack,
    say,
    seen,
    set_settings,
    wait_caught_up,
    wipe,
)
from replicated_db.core.bootstrap.bootstrap_machine import LAST_ROUND_BYTES
from tests.support.local.stack import TestStack

ROW_BYTES = 64 * 1024
"""Metadata of each key that fills the database."""
ROUNDS, FULL_COPY = "rounds", "full copies"
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """How the load and the windows are: requests in flight, metadata of a key in bytes, seconds."""

    in_flight: int
    metadata_bytes: int
    window_s: float
    warm_up_s: float
    repeats: int


class LargeDatabase:
    """A stack whose database is filled, with its snapshots."""

    def __init__(self, stack: TestStack, sizes: Sizes, emit: Emit) -> None:
        self.stack = stack
        self._emit = emit
        begun_s = time.monotonic()
        keys = -(-sizes.database_bytes // ROW_BYTES)
        with stack.client() as client:
            for number in range(sizes.snapshots):
                fill(stack, -(-keys // sizes.snapshots), ROW_BYTES)
                client.create_snapshot(VOLUME, BUCKET, f"snapshot-{number}")
        stack.wait_converged(600)
        size = database_bytes(stack.settings.node_folder(stack.wait_leader(SHARD)))
        took_s = round(time.monotonic() - begun_s, 1)
        say(f"a database of {size / 1e9:.2f} GB with {sizes.snapshots} snapshots is filled: {took_s} s")
        emit({"part": "fill", "bytes": size, "keys": keys, "snapshots": sizes.snapshots, "seconds": took_s})

    def install(self, part: str, way: str, spec: TransferSpec) -> None:
        """Wipe a follower under load, have it install, and tell the figures."""
        stack = self.stack
        leader, victim = stack.wait_leader(SHARD), follower(stack)
        sampler = LeaderSampler(stack, leader)
        try:
            time.sleep(spec.window_s)
            all_s = time.time()
            wipe(stack, victim)
            stopped_s = time.time()
            time.sleep(spec.window_s)
            events_file = stack.folder / f"events-{time.time_ns()}.jsonl"
            words = ["--full"] if way == FULL_COPY else []
            started_s = time.time()
            stack.start_node(victim, recorded_command(victim, events_file, *words))
            caught_up_s = wait_caught_up(stack, victim, leader)
            time.sleep(spec.window_s)
        finally:
            sampler.close()
        if stack.wait_leader(SHARD) != leader:
            raise RuntimeError(f"{leader} was deposed meanwhile: the figures would mean nothing")
        events = read_events(events_file)
        said = seen(stack, victim)["installed"]
        samples = sampler.samples
        rounds = rounds_of(events)
        for one in rounds:
            self._emit({"part": part, "way": way, **round_figures(one, samples)})
        begun_s, ended_s = rounds[0].asked_s, time_of(events, "round")
        checked_s = time_of(events, "checked")
        before = samples.rate("requests", stopped_s, started_s)
        during = samples.rate("requests", begun_s, ended_s)
        after = samples.rate("requests", time.time() - spec.window_s, time.time())
        self._emit(
            {
                "part": part, "way": way, "round": "all", "rounds": said["rounds"], "bytes": said["fetched_bytes"],
                "fetch_s": round(ended_s - begun_s, 2), "check_s": round(checked_s - ended_s, 2),
                "install_s": said["took_s"], "caught_up_s": round(caught_up_s - started_s, 2),
                "all_nodes_per_s": round(samples.rate("requests", all_s - spec.window_s, all_s)),
                "before_per_s": round(before), "during_per_s": round(during),
                "checking_per_s": round(samples.rate("requests", ended_s, checked_s)), "after_per_s": round(after),
                "kept": round(during / max(before, 1e-9), 3),
                "last_round_small": rounds[-1].fetched_bytes <= LAST_ROUND_BYTES,
                "failures": [event["reason"] for event in events if event["event"] == "failed"],
            }
        )  # fmt: skip


def round_figures(one: Round, samples: Samples) -> dict[str, Any]:
    """Return a round's figures; ``behind`` is what the leader has written since the checkpoint, when the round ends."""
    behind = samples.at(one.ended_s, "offset") - one.offset
    return {
        "round": one.number, "listed_bytes": one.listed_bytes, "fetched_bytes": one.fetched_bytes,
        "seconds": round(one.ended_s - one.asked_s, 2), "listing_s": round(one.listed_s - one.asked_s, 2),
        "behind_records": max(0, round(behind)),
        "behind_requests": round(samples.at(one.ended_s, "requests") - samples.at(one.asked_s, "requests")),
    }  # fmt: skip


@contextmanager
def large_database(sizes: Sizes, folder: Path | None, emit: Emit) -> Iterator[LargeDatabase]:
    """Run a stack with a filled database."""
    with running_stack(3, folder, bootstrap_records=1) as stack:
        yield LargeDatabase(stack, sizes, emit)


def transfer(database: LargeDatabase, spec: TransferSpec) -> None:
    """Install as fast as it goes, both ways in turn."""
    _both_ways(database, "transfer", spec)


def circle(database: LargeDatabase, sizes: Sizes, spec: TransferSpec) -> None:
    """Install under the throttle, both ways in turn."""
    stack = database.stack
    set_settings(stack, bootstrap_bytes_per_s=sizes.throttle_bytes_per_s)
    for name in stack.names:
        stack.stop_node(name)
        stack.start_node(name)
        stack.wait_led()
    stack.wait_converged(600)
    _both_ways(database, "circle", spec)


def _both_ways(database: LargeDatabase, part: str, spec: TransferSpec) -> None:
    with load(database.stack, spec.in_flight, spec.metadata_bytes):
        say(f"{part}: {spec.warm_up_s:.0f} s of load before anything is measured")
        time.sleep(spec.warm_up_s)
        for number in range(spec.repeats):
            for way in (ROUNDS, FULL_COPY):
                say(f"{part}: {way}, {number + 1} of {spec.repeats}")
                database.install(part, way, spec)
