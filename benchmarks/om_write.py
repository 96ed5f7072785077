"""createKey + commitKey through the whole system: one broker, three nodes applying, one shard or more, on this machine.

    python -m benchmarks.om_write [--in-flight 1 50 500 4000] [--seconds 10] [--keys 1000000] [--mode leader late]
                                  [--door kafka direct] [--auth none signed] [--shards 2]

Everything is real and runs here: a broker, three node processes, the client in a process of its own. Prints a table,
and one JSON object a line: `mode`, `door`, `shards`, `in_flight`, `requests_per_second`, `p50_ms`, `p99_ms`,
`requests_per_batch`, `cpu_us_per_request` by process, and after loading `--keys` keys the peak memory of each node
(`peak_rss_mib`). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.processor_time import spent_by_process
from schemas.records.log import LEADER_MODE, REQUEST_MODES
from stratolog.cluster.request_modes import set_modes
from stratolog.configuration.credentials import write_credentials
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.faults.stack_faults import fresh_volume
from tests.support.local.stack import LocalKafka, TestStack

BUCKET = "bucket"
LOAD_TIMEOUT_S = 3600
LEVEL_WARM_UP_S = 60
"""Time of load before each level is measured: the broker's JVM compiles for so long when the kind of load changes."""
MIB = 1024 * 1024
MEASURED = ("CreateKey", "CommitKey")
KAFKA, DIRECT = "kafka", "direct"
DOORS = (KAFKA, DIRECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One measurement: requests in flight, and its end: a time, or a number of keys."""

    in_flight: int
    seconds: float
    warm_up_seconds: float
    pairs: int = 0
    door: str = KAFKA


class System:
    """A running stack, and a volume in each of its shards."""

    def __init__(self, stack: TestStack) -> None:
        self.stack = stack
        self.shards = stack.settings.shards
        self.volumes = [fresh_volume(shard, self.shards) for shard in range(self.shards)]
        self.auth = stack.settings.auth
        self.signer = stack.settings.credentials()
        self.credentials_file = stack.settings.data_dir / "bench-credentials"
        if self.signer is not None:
            write_credentials(self.credentials_file, self.signer)
        self.processes = {name: psutil.Process(node.pid) for name, node in stack.nodes.items()}
        for number, broker in stack.kafka.processes.items():
            self.processes[f"broker{number}"] = psutil.Process(broker.pid)

    def cpu_s(self) -> dict[str, float]:
        """Return processor time so far by process."""
        return spent_by_process(self.processes)

    def leader_counts(self) -> tuple[float, float]:
        """Return (requests, batches) that leaders have made effective, summed over all nodes."""
        requests = batches = 0.0
        for name in self.stack.names:
            for line in self.stack.get(name, "/metrics").text.splitlines():
                if line.startswith("stratolog_leader_requests_total{"):
                    requests += float(line.rsplit(" ", 1)[1])
                elif line.startswith("stratolog_leader_batches_total{"):
                    batches += float(line.rsplit(" ", 1)[1])
        return requests, batches

    def peak_rss_mib(self) -> dict[str, float]:
        """Return each node's peak resident memory in MiB, as the kernel measures it."""
        peaks = {}
        for name in self.stack.names:
            status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
            peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
            peaks[name] = round(peak_kib / 1024, 1)
        return peaks

    def set_mode(self, mode: str) -> None:
        """Have the measured requests executed by the leader, or by every replica."""
        with self.stack.client(credentials=self.signer) as client:
            set_modes(client, range(self.shards), MEASURED, mode)

    def measure(self, spec: Spec) -> dict[str, Any]:
        """Run the load generator in a process of its own and return its figures with the system's."""
        cpu_before, counts_before = self.cpu_s(), self.leader_counts()
        command = [
            sys.executable, "-m", "producers.bulk.load", "--json",
            "--bootstrap-servers", self.stack.settings.bootstrap_servers, "--volume", *self.volumes, "--bucket", BUCKET,
            "--in-flight", str(spec.in_flight), "--seconds", str(spec.seconds),
            "--warm-up-seconds", str(spec.warm_up_seconds), "--pairs", str(spec.pairs),
        ]  # fmt: skip
        if spec.door == DIRECT:
            command += ["--nodes", *(self.stack.address(name) for name in self.stack.names)]
        if self.signer is not None:
            command += ["--credentials", str(self.credentials_file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S)
        figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        cpu_after, counts_after = self.cpu_s(), self.leader_counts()
        requests = counts_after[0] - counts_before[0]
        batches = counts_after[1] - counts_before[1]
        figures["requests_per_batch"] = round(requests / max(batches, 1), 1)
        figures["cpu_us_per_request"] = {
            **{name: round((cpu_after[name] - cpu_before[name]) / max(requests, 1) * 1e6, 1) for name in cpu_after},
            "client": figures.pop("client_cpu_us"),
        }
        return figures


def print_table(rows: Iterable[dict[str, Any]]) -> None:
    """Print the figures for people."""
    table = Table(
        "mode",
        "door",
        "shards",
        "auth",
        "in flight",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "requests/batch",
        "processor us/request",
    )
    for row in rows:
        cpu = ", ".join(f"{name} {spent}" for name, spent in row["cpu_us_per_request"].items())
        table.add_row(
            row["mode"], row["door"], str(row["shards"]), row["auth"], str(row["in_flight"]), f"{row['requests_per_second']:,.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['requests_per_batch']:.1f}", cpu,
        )  # fmt: skip
    Console(stderr=True).print(table)


def main() -> None:
    """Start the stack, measure, print, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 50, 500, 4000])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--warm-up",
        type=float,
        default=60.0,
        help="seconds of load before anything is measured: a broker's JVM needs them",
    )
    parser.add_argument(
        "--mode", nargs="+", choices=REQUEST_MODES, default=[LEADER_MODE],
        help="who executes: the leader, or every replica (late validation); with both, they run in turn at each level",
    )  # fmt: skip
    parser.add_argument(
        "--door", nargs="+", choices=DOORS, default=[KAFKA],
        help="how requests come: through the brokers, or straight to the leader; with both, in turn at each level",
    )  # fmt: skip
    parser.add_argument("--turns", type=int, default=1, help="how often each level is measured")
    parser.add_argument("--keys", type=int, default=0, help="load so many keys in the end and report peak memory")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument(
        "--shards", type=int, default=1, help="the load is spread over them; a cluster has two by default"
    )
    parser.add_argument(
        "--auth", nargs="+", choices=("none", "signed"), default=["none"],
        help="with both, each has a stack of its own, and they run in turn at each level",
    )  # fmt: skip
    parser.add_argument("--durability", choices=("replicated", "fsync"), default="replicated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratolog-bench-") as folder, ExitStack() as running:
        systems = [begin(Path(folder) / auth, auth, arguments, running) for auth in arguments.auth]
        run(systems, arguments)


def begin(folder: Path, auth: str, arguments: argparse.Namespace, running: ExitStack) -> System:
    """Start a stack with a bucket; ``running`` ends it."""
    folder.mkdir()
    more: dict[str, Any] = {"auth": auth} if auth == "signed" else {}
    kafka = LocalKafka(folder / "kafka", brokers=arguments.brokers, jvm=LONG_RUN_JVM)
    stack = TestStack(
        folder, kafka=kafka, shards=arguments.shards, brokers=arguments.brokers, durability=arguments.durability,
        **more,
    )  # fmt: skip
    running.enter_context(kafka)
    system = System(running.enter_context(stack))
    with stack.client(credentials=system.signer) as client:
        for volume in system.volumes:
            client.create_volume(volume)
            client.create_bucket(volume, BUCKET)
    return system


def run(systems: list[System], arguments: argparse.Namespace) -> None:
    """Measure at each level, then load the keys."""
    for system in systems:
        if arguments.warm_up:
            system.measure(Spec(in_flight=500, seconds=arguments.warm_up, warm_up_seconds=0, door=arguments.door[0]))
    rows = []
    for in_flight, turn, mode, door, system in itertools.product(
        arguments.in_flight, range(arguments.turns), arguments.mode, arguments.door, systems
    ):
        system.set_mode(mode)
        warm_up_s = LEVEL_WARM_UP_S if arguments.warm_up and not turn else min(arguments.warm_up, 2)
        measured = system.measure(
            Spec(in_flight=in_flight, seconds=arguments.seconds, warm_up_seconds=warm_up_s, door=door)
        )
        rows.append({"mode": mode, "door": door, "shards": system.shards, "auth": system.auth, **measured})
        print(json.dumps(rows[-1]), flush=True)
    print_table(rows)
    system = systems[0]
    system.set_mode(LEADER_MODE)
    if arguments.keys:
        loaded = system.measure(
            Spec(
                in_flight=4000, seconds=LOAD_TIMEOUT_S, warm_up_seconds=0, pairs=arguments.keys, door=arguments.door[0]
            )
        )
        print(json.dumps({"keys_loaded": arguments.keys, **loaded, "peak_rss_mib": system.peak_rss_mib()}), flush=True)
    for one in systems:
        one.stack.wait_converged()


if __name__ == "__main__":
    main()
