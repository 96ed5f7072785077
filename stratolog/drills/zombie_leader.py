"""``zombie-leader``: freeze a shard's leader until another leads, then wake it: its late acts have no effect.

The leader is frozen in the middle of a burst of requests. It wakes with requests in its queue, and with readers that
wait for it. If it learns of the new claim before it appends anything, the attempt shows nothing, and the drill freezes
it again, at most ATTEMPTS times.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass

import httpx

from producers.errors import StratologError
from schemas.records.messages import Response, SetBucketProperty
from schemas.security.certificates import AN_OM
from schemas.security.tls import verify_of
from stratolog.drills.core import leader_findings
from stratolog.drills.core.leader_findings import Read
from stratolog.drills.core.log_survey import VoidRecord
from stratolog.drills.core.report import CouldNotRun
from stratolog.drills.kit.aftermath import judged_load
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import BUCKET, DEADLINE_MS, Load
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import AnswerTap
from stratolog.nodes.node_http import url_of

ATTEMPTS = 4
BURST = 600
ANSWERED_BEFORE_PAUSE = 30
READERS = 3
READS_EACH = 4
READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """One time that a leader was frozen and woken.

    ``successor`` is the leader that it named in the end, ``claimed_offset`` the offset of the claim that deposed it,
    ``appended`` its void records behind that claim.
    """

    name: str
    term: int
    successor: str
    claimed_offset: int
    appended: tuple[VoidRecord, ...]


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    servers = cluster.settings.connection
    with (
        judged_load(session, cluster, "zombie-leader", shard) as (load, judge),
        AnswerTap(servers, load.client.client_id) as answers,
    ):
        for attempt in range(1, ATTEMPTS + 1):
            frozen = _freeze_and_wake(session, cluster, shard, load, attempt)
            if frozen.appended:
                break
        seen = judge()
        session.find(leader_findings.answers_right(answers.answers(), seen.calls, seen.late_calls))
        session.figures["times_frozen"] = attempt
        if not frozen.appended:
            raise CouldNotRun(
                f"frozen {ATTEMPTS} times, the leader appended nothing after it woke, so there was nothing to void: "
                "try again"
            )
        session.find(
            leader_findings.stale_is_void(seen.void, stale_term=frozen.term, claimed_offset=frozen.claimed_offset),
            leader_findings.stepped_down(frozen.name, frozen.successor),
        )
        session.figures["void_records"] = len(frozen.appended)


def _freeze_and_wake(session: Session, cluster: Cluster, shard: int, load: Load, attempt: int) -> Frozen:
    """Freeze the leader in the middle of a burst, wait for another one, wake it, and wait until it follows."""
    name = cluster.wait_leader(shard)
    before = cluster.view(name, shard)
    with session.step(f"SIGSTOP {name}, which leads shard {shard}, in the middle of {BURST} requests") as found:
        burst = [
            load.client.submit(SetBucketProperty(volume=load.volume, bucket=BUCKET, owner=f"owner-{number}"))
            for number in range(BURST)
        ]
        burst[ANSWERED_BEFORE_PAUSE].result()
        resume = cluster.take(session, name, ProcessFault.PAUSE)
        found(f"{sum(future.done() for future in burst)} of them were answered")
    with session.step("wait for another leader, and write a key under it") as found:
        successor = cluster.wait_leader(shard, other_than=name)
        newest, size = f"newest-{attempt}", 1_000 + attempt
        load.put(newest, size)
        found(f"{successor} leads")
    with session.step(f"SIGCONT {name}, with readers of that key at its door; wait until it follows"):
        readers = _Readers(cluster, name, load.volume, newest)
        resume()
        reads = readers.join()
        cluster.wait(f"{name} follows", lambda: cluster.view(name, shard).get("role") == "follower")
        cluster.wait_led()
        cluster.wait_caught_up(name, shard)
        failed = _failed(burst)
    session.find(leader_findings.reads_right(reads, size), leader_findings.burst_answered(BURST, failed))
    with session.step("read from the log what it appended after it woke") as found:
        term, offset = int(before["term"]), int(before["applied_offset"])
        seen = survey(cluster.settings, shard, since=offset)
        claimed = next(claim.offset for claim in seen.claims if claim.term > term)
        appended = tuple(record for record in seen.void if record.term == term and record.offset > claimed)
        found(f"{len(appended)} records")
    knows = str(cluster.view(name, shard)["leader"])
    return Frozen(name=name, term=term, successor=knows, claimed_offset=claimed, appended=appended)


def _failed(burst: list[Future[Response]]) -> list[str]:
    """Wait for the answers to a burst; return what went wrong."""
    failed = []
    for future in burst:
        try:
            future.result(DEADLINE_MS / 1000)
        except (StratologError, TimeoutError) as error:
            failed.append(str(error) or "no answer")
    return failed


class _Readers:
    """Threads that read a key linearizably from one node; their first reads wait in its socket while it is frozen."""

    def __init__(self, cluster: Cluster, node: str, volume: str, key: str) -> None:
        address = cluster.settings.node(node).address
        self._url = url_of(address, f"/v1/volumes/{volume}/buckets/{BUCKET}/key")
        self._tls = cluster.settings.tls()
        self._key = key
        self._reads: list[Read] = []
        self._threads = [threading.Thread(target=self._read, daemon=True) for _ in range(READERS)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        with httpx.Client(trust_env=False, timeout=READ_TIMEOUT_S, verify=verify_of(self._tls, AN_OM)) as http:
            for _ in range(READS_EACH):
                try:
                    answer = http.get(self._url, params={"name": self._key, "consistency": "linearizable"})
                    size = answer.json().get("size") if answer.status_code == httpx.codes.OK else None
                    self._reads.append(Read(status=answer.status_code, size=size))
                except (httpx.HTTPError, ValueError):
                    self._reads.append(Read(status=0, size=None))

    def join(self) -> tuple[Read, ...]:
        """Wait for all answers."""
        for thread in self._threads:
            thread.join()
        return tuple(self._reads)
