"""Failover: from the SIGKILL of a shard's leader to the first write acknowledged by another, many times over.

    python -m benchmarks.failover [--kills 20] [--session-timeout-ms 2000] [--brokers 1]
    python -m benchmarks.failover --kills 0 --hold-s 300 --busy 10     is a leader deposed only because of the load?

Everything is real: brokers, three node processes, writers that keep going. The time of a failover runs from the end of
the leader's process to the first answer to a request that was sent after it. Prints one JSON object for each kill
(`failover_ms`), then one for all: `p50_ms`, `max_ms`, and the state of the data by the writers' journals
(`acknowledged`, `lost`, `executed_twice`). With ``--hold-s`` no leader is killed for so long, while ``--busy``
processes keep the processors busy. ``false_terms`` are the claims that were made all the same, ``load`` is the
machine's load average at the end. Exit status 1 if an acknowledged write is missing anywhere or was executed twice; no
time is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

from producers import Client
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.faults.stack_faults import listed
from tests.support.local.stack import LocalKafka, TestStack
from tests.support.logs.judged_log import read_log

VOLUME, BUCKET = "failover", "bucket"
WRITERS = 4
SETTLE_S = 2.0
"""Time of load between a recovery and the next kill."""
RECOVERY_TIMEOUT_S = 120.0


class Writers:
    """Threads that open and commit keys one after the other; ``acknowledged`` holds the answered commits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._answers: list[tuple[float, float]] = []
        self.acknowledged: dict[str, int] = {}
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int) -> None:
        for number in count():
            if self._stop.is_set():
                return
            key = f"writer-{writer}/{number:07d}"
            begun_s = time.monotonic()
            try:
                session = self._client.create_key(VOLUME, BUCKET, key, size=0)
                with self._lock:
                    self._answers.append((begun_s, time.monotonic()))
                self._client.commit_key(VOLUME, BUCKET, key, session.session_id, size=0, blocks=[])
            except Exception as error:  # reported at the end: an unknown outcome is a failure of this benchmark
                self.failures.append(f"{type(error).__name__}: {error}")
                continue
            self.acknowledged[key] = 0
            self._stop.wait(0.002)

    def first_answer_after(self, moment_s: float) -> float | None:
        """Return when the first request that began after a moment was answered, None if none has been answered."""
        with self._lock:
            return min((ended for begun, ended in self._answers if begun > moment_s), default=None)

    def stop(self) -> None:
        """Stop the writers, each after its current request."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def one_kill(stack: TestStack, writers: Writers) -> tuple[str, float]:
    """Kill the leader and wait for the next answer; return (leader, milliseconds)."""
    leader = stack.wait_leader(0)
    stack.kill_node(leader)
    killed_s = time.monotonic()
    deadline_s = killed_s + RECOVERY_TIMEOUT_S
    while (answered_s := writers.first_answer_after(killed_s)) is None:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no write was acknowledged within {RECOVERY_TIMEOUT_S:.0f} s\n{stack.logs()}")
        time.sleep(0.005)
    return leader, (answered_s - killed_s) * 1000


def wait_caught_up(stack: TestStack, node: str) -> None:
    """Wait until a restarted node has applied what another node had applied just now; the load goes on."""
    other = next(name for name in stack.nodes if name != node)
    index = stack.shard(other, 0)["applied_index"]
    stack.wait(
        f"{node} has caught up", lambda: stack.shard(node, 0).get("applied_index", -1) >= index, RECOVERY_TIMEOUT_S
    )


def hold(stack: TestStack, seconds: float, busy: int) -> dict[str, float]:
    """Let the load continue with ``busy`` processes beside it; return the number of claims, and the load average."""
    term = stack.shard(stack.wait_leader(0), 0)["term"]
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        time.sleep(seconds)
        load = os.getloadavg()[0]
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    return {"false_terms": stack.shard(stack.wait_leader(0), 0)["term"] - term, "load": round(load, 1)}


def judge(stack: TestStack, writers: Writers) -> dict[str, int]:
    """Return the state of the acknowledged writes, on every replica and in the log."""
    stack.wait_converged()
    missing = {
        key
        for name in stack.names
        for found in [listed(stack, name, VOLUME, BUCKET)]
        for key, size in writers.acknowledged.items()
        if found.get(key) != size
    }
    log = read_log(stack.kafka.bootstrap_servers, 0)
    twice = sum(effects > 1 for effects in log.results_by_call().values())
    return {"acknowledged": len(writers.acknowledged), "lost": len(missing), "executed_twice": twice}


def main() -> int:
    """Run the kills and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--session-timeout-ms", type=int, default=2000)
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--hold-s", type=float, default=0, help="seconds without a kill, beside --busy processes")
    parser.add_argument("--busy", type=int, default=10)
    options = parser.parse_args()
    times_ms = []
    with tempfile.TemporaryDirectory(prefix="stratolog-failover-") as folder:
        kafka = LocalKafka(Path(folder) / "kafka", brokers=options.brokers, jvm=LONG_RUN_JVM)
        stack = TestStack(
            Path(folder), kafka=kafka, shards=1, brokers=options.brokers, session_timeout_ms=options.session_timeout_ms
        )
        with kafka, stack, Client(stack.settings.bootstrap_servers) as client:
            client.create_volume(VOLUME)
            client.create_bucket(VOLUME, BUCKET)
            writers = Writers(client)
            for number in range(1, options.kills + 1):
                time.sleep(SETTLE_S)
                leader, failover_ms = one_kill(stack, writers)
                times_ms.append(failover_ms)
                print(json.dumps({"kill": number, "leader": leader, "failover_ms": round(failover_ms)}), flush=True)
                stack.start_node(leader)
                wait_caught_up(stack, leader)
            held = hold(stack, options.hold_s, options.busy) if options.hold_s else {}
            writers.stop()
            figures = judge(stack, writers)
    summary = {
        "kills": len(times_ms), "session_timeout_ms": options.session_timeout_ms,
        "p50_ms": round(statistics.median(times_ms or [0])), "max_ms": round(max(times_ms, default=0)), **held,
        **figures, "failed_requests": len(writers.failures),
    }  # fmt: skip
    print(json.dumps(summary), flush=True)
    return 1 if figures["lost"] or figures["executed_twice"] else 0


if __name__ == "__main__":
    sys.exit(main())
