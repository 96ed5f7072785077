"""The write throughput without the audit and beside it, in turns on one stack."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.audit.running import audit, now_s
from benchmarks.bootstrap.running import BUCKET, VOLUME, load_command
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.local.stack import LocalKafka, TestStack

IN_FLIGHT = 4000
LOAD_SECONDS = 15
FIRST_SECONDS = 30
"""The broker's JVM compiles for so long."""
TURNS = 2
LOAD_TIMEOUT_S = 600
LEVEL_TIMEOUT_S = 600
LOOK_SECONDS = 0.5

WAYS: Mapping[str, Mapping[str, Any] | None] = {"none": None, "default": {}, "nice 0": {"audit_nice": 0}}
"""The audit's settings in each turn; None: there is none."""


def measure_writes(folder: Path, settings: Mapping[str, Any], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield a row for each turn: `audit`, `turn`, `requests_per_second`, `p50_ms`, `p99_ms`."""
    kafka = LocalKafka(folder / "kafka", brokers=1, jvm=LONG_RUN_JVM)
    stack = TestStack(folder, kafka=kafka)
    with kafka, stack:
        with stack.client() as client:
            client.create_volume(VOLUME)
            client.create_bucket(VOLUME, BUCKET)
        say("the broker's JVM warms up")
        _load(stack, FIRST_SECONDS)
        for turn in range(TURNS):
            for name, changed in WAYS.items():
                say(f"turn {turn}, audit: {name}")
                with ExitStack() as open_:
                    if changed is not None:
                        running = open_.enter_context(
                            audit(
                                folder / "audit",
                                stack.settings.bootstrap_servers,
                                shards=stack.settings.shards,
                                **{**settings, **changed},
                            )
                        )
                        _wait_level(running.health, running.check, stack)
                    found = _load(stack, LOAD_SECONDS)
                yield {"audit": name, "turn": turn, **found}


def _load(stack: TestStack, seconds: float) -> dict[str, Any]:
    command = load_command(stack, "--in-flight", IN_FLIGHT, "--seconds", seconds, "--warm-up-seconds", 3)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S)
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: figures[name] for name in ("requests_per_second", "p50_ms", "p99_ms")}


def _wait_level(health: Callable[[], dict[str, Any]], check: Callable[[], None], stack: TestStack) -> None:
    """Wait until the audit has judged what all shards had when this was called."""
    shards = range(stack.settings.shards)
    wanted = {shard: max(stack.shard(name, shard)["applied_index"] for name in stack.names) for shard in shards}
    until_s = now_s() + LEVEL_TIMEOUT_S
    while True:
        check()
        reached = dict.fromkeys(wanted, 0)
        for one in health().get("verdicts", {}).values():
            reached[one["shard"]] = max(reached.get(one["shard"], 0), one["index"])
        if all(reached[shard] >= index for shard, index in wanted.items()):
            return
        if now_s() > until_s:
            raise TimeoutError(f"the audit is at {reached}, and not at {wanted}, after {LEVEL_TIMEOUT_S} s")
        time.sleep(LOOK_SECONDS)
