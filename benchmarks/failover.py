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
import time
from pathlib import Path

from producers import Client
from stratolog.drills.kit.aftermath import judge_listings, judge_log
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core.judging import Aftermath
from stratolog.drills.kit.load import Load
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.local.stack import LocalKafka, TestStack
from transport.waiting.deadline import Deadline

VOLUME = "failover"
WRITERS = 4
"""Keys that are created and committed at a time."""
SETTLE_S = 2.0
"""Time of load between a recovery and the next kill."""
RECOVERY_TIMEOUT_S = 120.0


def one_kill(stack: TestStack, load: Load) -> tuple[str, float]:
    """Kill the leader and wait for the first answer to a request for a new key; return (leader, milliseconds)."""
    leader = stack.wait_leader(0)
    stack.kill_node(leader)
    killed_s = time.monotonic()
    known, since = set(load.journal.keys), len(load.journal.acks)
    deadline = Deadline.after_s(RECOVERY_TIMEOUT_S)
    while (first := next((ack for ack in load.journal.acks[since:] if ack.key not in known), None)) is None:
        if deadline.has_passed:
            raise TimeoutError(f"no write was acknowledged within {RECOVERY_TIMEOUT_S:.0f} s\n{stack.logs()}")
        time.sleep(0.005)
    return leader, first.at_ms - killed_s * 1000


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


def judge(stack: TestStack, load: Load) -> dict[str, int]:
    """Return the state of the acknowledged writes, on every replica and in the log."""
    stack.wait_converged()
    found, cluster = Aftermath(), Cluster(settings=stack.settings)
    for name in stack.names:
        judge_listings(found, cluster, name, [load.journal])
    judge_log(found, stack.settings, 0, [load.journal])
    return {
        "acknowledged": len(load.journal.acknowledged),
        "lost": found.lost,
        "executed_twice": found.duplicated,
    }


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
            load = Load(client, [VOLUME], in_flight=WRITERS, keys_per_s=0).start()
            for number in range(1, options.kills + 1):
                time.sleep(SETTLE_S)
                leader, failover_ms = one_kill(stack, load)
                times_ms.append(failover_ms)
                print(json.dumps({"kill": number, "leader": leader, "failover_ms": round(failover_ms)}), flush=True)
                stack.start_node(leader)
                wait_caught_up(stack, leader)
            held = hold(stack, options.hold_s, options.busy) if options.hold_s else {}
            load.stop()
            figures = judge(stack, load)
    summary = {
        "kills": len(times_ms), "session_timeout_ms": options.session_timeout_ms,
        "p50_ms": round(statistics.median(times_ms or [0])), "max_ms": round(max(times_ms, default=0)), **held,
        **figures, "failed_requests": len(load.journal.failures),
    }  # fmt: skip
    print(json.dumps(summary), flush=True)
    return 1 if figures["lost"] or figures["executed_twice"] else 0


if __name__ == "__main__":
    sys.exit(main())
