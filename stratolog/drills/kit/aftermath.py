"""The checks after a fault under load: acknowledged writes are there, once, and all replicas agree."""

from __future__ import annotations

from schemas.records.verdict_words import INCREMENTAL
from stratolog.drills.core import digest_findings, write_findings
from stratolog.drills.core.log_survey import Survey
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import Load, listed, usage
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap, sums_of


def judge_load(session: Session, cluster: Cluster, shard: int, load: Load, reports: ReportTap, since: int) -> Survey:
    """Stop the load, wait for a later report of every replica, read the log, and judge; return the log's survey.

    ``since`` is an offset before the fault.
    """
    with session.step("stop the load, wait until every replica has reported its digest behind it") as found:
        load.stop()
        leader = cluster.wait_leader(shard)
        end = cluster.wait_caught_up(leader, shard)
        for name in cluster.names:
            cluster.wait_caught_up(name, shard)
        barrier = cluster.wait(
            f"reports of all nodes behind offset {end}", lambda: reports.barrier(INCREMENTAL, cluster.names, end - 1)
        )
        at = max(report.barrier_offset for report in barrier.values())
        found(f"barrier at offset {at}, {len(load.journal.acknowledged)} writes acknowledged")
    with session.step("read the log from its first record, by the nodes' rule and by the auditor's") as found:
        seen = survey(cluster.settings, shard, until=at, client_id=load.client.client_id, since=since)
        found(f"{seen.end_offset + 1} records, {seen.void_records} of them void since the drill began")
    with session.step("list what every node has"):
        listings = {name: listed(cluster, name, load.volume) for name in cluster.names}
        counters = {name: usage(cluster, name, load.volume) for name in cluster.names}
    session.find(
        write_findings.nothing_lost(load.journal, listings),
        write_findings.nothing_invented(load.journal, listings),
        write_findings.applied_once(seen.calls, seen.late_calls, listings, counters),
        digest_findings.digests_equal(
            cluster.names, {name: sums_of(report) for name, report in barrier.items()}, seen.digest_here(),
            basis=INCREMENTAL,
        ),
        digest_findings.rules_agree(seen.rules_differ),
    )  # fmt: skip
    session.figures["acknowledged_writes"] = len(load.journal.acknowledged)
    return seen
