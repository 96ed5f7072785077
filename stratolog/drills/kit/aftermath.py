"""The judge: what must hold after a fault under load. Acknowledged writes are there, once, and all replicas agree.

:func:`judge_load` judges a drill's load on a stack where others may write too, by the reports at one barrier.
:func:`judge_listings` and :func:`judge_log` are for campaigns and tests, where nobody but the journals' clients writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from schemas.records.verdict_words import INCREMENTAL
from stratolog.configuration.settings import Settings
from stratolog.drills.core import digest_findings, install_findings
from stratolog.drills.core.install_findings import ScannedDigest
from stratolog.drills.core.log_digest import differing, unsigned
from stratolog.drills.core.log_survey import Survey
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.core.journal import Journal
from stratolog.drills.kit.core.judging import Aftermath, LogCount, judge_listing
from stratolog.drills.kit.load import Load, listed, own_load, usage
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap, sums_of

SLOTS_NAMED = 9
SCAN_TIMEOUT_S = 120.0
"""A scan of a million rows on a busy machine takes many seconds."""


@contextmanager
def judged_load(
    session: Session, cluster: Cluster, drill: str, shard: int
) -> Iterator[tuple[Load, Callable[[], Survey]]]:  # fmt: skip
    """Write to a volume of the drill's own in ``shard``; yield the load, and what stops and judges it (judge_load).

    The volume is deleted however the drill ends.
    """
    since = int(cluster.view(cluster.wait_leader(shard), shard)["applied_offset"])
    with (
        ReportTap(cluster.settings.connection, shard) as reports,
        own_load(session, cluster, drill, shard) as load,
    ):
        yield load, lambda: judge_load(session, cluster, shard, load, reports, since)


def judge_load(session: Session, cluster: Cluster, shard: int, load: Load, reports: ReportTap, since: int) -> Survey:
    """Stop the load, wait for a later report of every replica, read the log, and judge; return the log's survey.

    ``since`` is an offset before the fault.
    """
    journal = load.journal
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
        found(f"barrier at offset {at}, {len(journal.acknowledged)} writes acknowledged")
    with session.step("read the log from its first record, by the nodes' rule and by the auditor's") as found:
        count, told = LogCount([journal], alone=False), Aftermath()
        client = load.client.client_id
        seen = survey(cluster.settings, shard, until=at, client_id=client, since=since, observe=count.take)
        count.tell(told, f"the log of shard {shard}")
        found(f"{seen.end_offset + 1} records, {seen.void_records} of them void since the drill began")
    with session.step("list what every node has"):
        listings = {name: listed(cluster, name, load.volume) for name in cluster.names}
        counters = {name: usage(cluster, name, load.volume) for name in cluster.names}
    session.find(
        *write_findings.writes_hold(journal, listings, told),
        write_findings.applied_once(seen.calls, seen.late_calls, told.told("duplicated"), listings, counters),
        digest_findings.digests_equal(
            cluster.names, {name: sums_of(report) for name, report in barrier.items()}, seen.digest_here(),
            basis=INCREMENTAL,
        ),
        digest_findings.rules_agree(seen.rules_differ),
    )  # fmt: skip
    session.figures["acknowledged_writes"] = len(journal.acknowledged)
    return seen


def judge_at_rest(session: Session, cluster: Cluster, shard: int, load: Load) -> None:
    """Stop the load, and judge it by full scans: for a log that cannot be read from its first record."""
    with session.step("stop the load, and scan every replica"):
        load.stop()
        scans = scan_all(cluster, shard)
        listings = {name: listed(cluster, name, load.volume) for name in cluster.names}
    session.find(install_findings.scans_equal(scans), *write_findings.writes_hold(load.journal, listings))
    session.figures["acknowledged_writes"] = len(load.journal.acknowledged)


def scan_all(cluster: Cluster, shard: int) -> dict[str, ScannedDigest]:
    """Return every node's digest by a full scan, once all have applied what the leader had."""
    for name in cluster.names:
        cluster.wait_caught_up(name, shard)
    found = {}
    for name in cluster.names:
        answer = cluster.get(name, f"/v1/shards/{shard}/digest", scrub="true")
        found[name] = ScannedDigest(
            index=int(answer["index"]), scanned=answer["digest"], incremental=answer["incremental"]["digest"]
        )
    return found


def judge_listings(
    found: Aftermath, cluster: Cluster, node: str, journals: Sequence[Journal], consistency: str = "stale"
) -> None:  # fmt: skip
    """Compare what a node lists of the journals' buckets."""
    for volume, bucket in sorted({(journal.volume, journal.bucket) for journal in journals}):
        own = [journal for journal in journals if (journal.volume, journal.bucket) == (volume, bucket)]
        keys = listed(cluster, node, volume, bucket, consistency)
        judge_listing(found, f"{node}, {consistency}, {volume}/{bucket}", keys, own)


def judge_log(
    found: Aftermath, settings: Settings, shard: int, journals: Sequence[Journal], *, alone: bool = True
) -> Survey:  # fmt: skip
    """Read a shard's log, and compare it with the journals of those that wrote to the shard."""
    count = LogCount(journals, alone=alone)
    seen = survey(settings, shard, observe=count.take)
    count.tell(found, f"the log of shard {shard}")
    if seen.rules_differ is not None:
        found.note("divergent", [f"shard {shard}: the two reading rules differ on offset {seen.rules_differ}"])
    return seen


def judge_digests(found: Aftermath, cluster: Cluster, node: str, shard: int, seen: Survey) -> None:
    """Compare a node's digests, kept and scanned, with the log's sum; nobody writes meanwhile."""
    answer = cluster.get(node, f"/v1/shards/{shard}/digest", SCAN_TIMEOUT_S, scrub="true")
    scrubbed, kept = (unsigned(one["slots"], one["sums"]) for one in (answer, answer["incremental"]))
    log = seen.digest_here()
    wrong = sorted({*differing(scrubbed, log.sums), *differing(kept, log.sums)})
    if wrong or answer["index"] != log.index:
        words = f"{node}, shard {shard}: index {answer['index']} of {log.index}, slots {wrong[:SLOTS_NAMED]}"
        found.note("divergent", [words])
