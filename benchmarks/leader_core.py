"""Processor time of the leader's and a follower's own work, without Kafka: decode, execute, encode, apply on RocksDB.

    python -m benchmarks.leader_core [--requests 40000] [--batch 500] [--pause-ms 1] [--profile]

Prints one JSON object a line: `step`, `us_per_request` (process time, microseconds). It shows the effect of a change of
the hot path without a measurement of the whole system. With ``--pause-ms`` the process sleeps before each batch, as it
does between two requests of a caller who waits for each: the same code takes longer then, because caches are cold and
a virtual processor has to be woken.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.intake.gateway import Gateway, Received
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.leading.leader import Leader, LeaderLimits, Proposal, claim_for
from replicated_db.core.tables.memory import ManualClock, MemoryLog, SequenceIds
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import decode, encode
from schemas.privilege import MIN_SECRET_BYTES, ClusterSecret
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateVolume,
    KeySession,
    Request,
    RequestBody,
    Response,
)

CLIENT = b"benchmark-client"


class Bench:
    """A leader and a follower on RocksDB, over a log in memory."""

    def __init__(self, folder: Path, batch: int, pause_s: float = 0.0) -> None:
        self.batch = batch
        self._pause_s = pause_s
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.log = MemoryLog(self.clock)
        self.leader_replica = self._replica(folder, "a")
        self.follower = self._replica(folder, "b")
        claim = encode(claim_for(self.leader_replica, SequenceIds().nonce(), "", 0))
        offset = self.log.append(claim)
        self.leader_replica.offer(offset, claim)
        limits = LeaderLimits(max_batch_requests=batch, scrub_interval_ms=10**12)
        service = OMService(Contexts(shard=0, shards=1, pipelines=("p1", "p2")))
        self.leader = Leader(
            self.leader_replica, service, limits, claim_offset=offset, claim_time_ms=self.clock.wall_ms(), elapsed_ms=0
        )
        self.appender = self.log.appender()
        self.gateway = Gateway(shard=0, node="a", secret=ClusterSecret(bytes(MIN_SECRET_BYTES)))
        self.calls = 0
        self.spent: dict[str, float] = {}
        # Without a Genesis the shard is at the first feature level, and its values have older schemas than a new
        # shard's.
        if (genesis := self.leader.genesis("bench", ["a", "b"])) is not None:
            self.appender.append(genesis.token, genesis.value)

    def _replica(self, folder: Path, node: str) -> Replica:
        identity = Identity(cluster="bench", shard=0, shards=1, node=node)
        return Replica(identity, OM_FAMILIES, RocksStore(folder / node, OM_FAMILIES.names))

    def timed(self, step: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        self.spent[step] = self.spent.get(step, 0.0) + time.process_time() - begun
        return result

    def run(self, bodies: list[RequestBody]) -> list[Response]:
        """Run one batch through every step."""
        if self._pause_s:
            time.sleep(self._pause_s)
        values = self.timed("client encode", lambda: [encode(self._request(body)) for body in bodies])
        proposals: list[Any] = self.timed(
            "gateway",
            lambda: [self.gateway.admit(Received(offset=0, value=value), 0) for value in values],
        )
        self.timed("execute", lambda: self._execute(proposals))
        appends = self.timed("seal and encode", self.leader.seal)
        for append in appends:
            self.appender.append(append.token, append.value)
        effective = [
            self.timed("leader apply", partial(self.leader.on_report, report)) for report in self.appender.poll(0)
        ]
        replies = [reply.response for group in effective for one in group for reply in one.replies]
        for offset in range(self.follower.read_offset + 1, len(self.log.entries)):
            value = self.log.entries[offset].value
            record = self.timed("follower decode", partial(decode, value))
            self.timed("follower apply", partial(self.follower.offer, offset, value, record))
        return self.timed("client decode", lambda: [decode(reply) for reply in replies])  # type: ignore[no-any-return]

    def _request(self, body: RequestBody) -> Request:
        self.calls += 1
        return Request(
            client_id=CLIENT, call_id=self.calls, first_sent_at_ms=self.clock.wall_ms(), answered_below=0,
            reply_partition=0, caller="bench", body=body,
        )  # fmt: skip

    def _execute(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            if self.leader.take(proposal, 0) is not None:
                raise RuntimeError("a fresh request was answered as a repeated one")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="sleep before each batch")
    parser.add_argument("--profile", action="store_true", help="print the functions that take the time")
    arguments = parser.parse_args()
    gc.set_threshold(50_000, 20, 50)  # as a node does
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.batch, arguments.pause_ms / 1000)
        bench.run([CreateVolume(volume="vol")])
        bench.run([CreateBucket(volume="vol", bucket="bucket")])
        bench.spent.clear()
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        run_pairs(bench, arguments.requests, arguments.batch)
        profile.disable()
        for step, seconds in bench.spent.items():
            print(json.dumps({"step": step, "us_per_request": round(seconds / arguments.requests * 1e6, 2)}))
        if arguments.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def run_pairs(bench: Bench, requests: int, batch: int) -> None:
    """Create and commit keys, one batch of each in turn."""
    for number in range(requests // (2 * batch)):
        keys = [f"load/some-prefix-of-the-run/{number:06d}/{i:06d}" for i in range(batch)]
        opened = bench.run([CreateKey(volume="vol", bucket="bucket", key=key, size=4096) for key in keys])
        commits: list[RequestBody] = []
        for key, response in zip(keys, opened, strict=True):
            if not isinstance(response.result, KeySession):
                raise RuntimeError(f"{response.status}: {response.message}")
            commits.append(
                CommitKey(
                    volume="vol", bucket="bucket", key=key, session_id=response.result.session_id, size=4096, blocks=[]
                )
            )
        for response in bench.run(commits):
            if response.status != "OK":
                raise RuntimeError(f"{response.status}: {response.message}")


if __name__ == "__main__":
    main()
