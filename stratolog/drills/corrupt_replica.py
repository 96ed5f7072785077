"""``corrupt-replica``: a row changes behind a replica's back, as a failing disk or a stray hand would change it.

1. The drill stops a follower, copies its database, and changes a row of the drill's own volume in it. If the drill ends
   before the row is repaired and verified, the copy is put back.
2. A scrub finds the damage. Each claim of a leader begins with a scrub, so the drill moves the leadership. It compares
   the scans with the log, as the audit does; the Spark audit must find the damage too, if it runs.
3. The rows of the digest bucket that differs name the row.
4. The row is replaced by a healthy replica's row, if the log has not changed the row since.
5. Another scrub verifies the repair; the running audit must then say ``equal`` again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from producers.client import Client
from schemas.column_families import BUCKETS, KEY_TABLE
from schemas.records.log import Batch, Delete, Merge, Put, RequestBatch
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, SCRUBBED
from schemas.topics import OM_LOG
from spark_streaming.naming.core.row_differences import NAMED
from stratolog.cluster.leadership import move
from stratolog.cluster.verdicts import VerdictReader
from stratolog.drills.core import damage_findings, digest_findings
from stratolog.drills.core.log_digest import Sums, differing
from stratolog.drills.core.log_survey import Digest
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import BUCKET, client_of, put_key, removed, volume_name
from stratolog.drills.kit.log_reading import records_of, survey
from stratolog.drills.kit.rebuild import database_of, opened_store, scratch, stored_offset
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap, sums_of

KEYS = 8
AUDIT_TIMEOUT_S = 120.0
KEYS_TIMEOUT_S = 30.0
"""How long the audit may take from its verdict to the keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row by column family and key."""

    cf: str
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub:
    """Every node's full scan at a barrier, and the log's digest there."""

    scans: dict[str, Sums]
    log: Digest


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    damaged = cluster.follower_of(shard)
    leader = cluster.wait_leader(shard)
    healthy = [name for name in cluster.names if name not in (leader, damaged)]
    if not healthy:
        raise CouldNotRun(
            "a third node is needed, to which the leadership can be moved so that all replicas scan themselves"
        )
    settings = cluster.settings
    volume = volume_name("corrupt-replica", shard, settings.shards)
    with (
        scratch(session, settings, "corrupt-replica") as folder,
        client_of(settings) as client,
        ReportTap(settings.connection, shard) as reports,
    ):
        with session.step(f"write {KEYS} keys to /{volume}, shard {shard}"):
            remove = session.touching(f"volume {volume}, of this drill's own", lambda: removed(settings, volume))
            row = _write_keys(client, cluster, shard, volume)
        with _damaged(session, cluster, shard, damaged, folder, row) as verified:
            found = _scrub(session, cluster, shard, healthy[0], reports)
            slots = differing(found.scans[damaged], found.log.sums)
            session.find(damage_findings.scrub_names(damaged, found.scans, found.log, slots))
            _ask_the_audit(session, cluster, shard, damaged, slots, found.log, row.key)
            if len(slots) != 1:
                raise StepFailed(f"the scan of {damaged} differs in {len(slots)} buckets: nothing to repair")
            keys = _narrow(
                session, cluster, shard, damaged, healthy[0], found.log.families[slots[0] // BUCKETS], slots[0]
            )
            session.find(damage_findings.narrowed(row.key, keys))
            _repair(session, cluster, shard, damaged, leader, [Row(cf=row.cf, key=key) for key in keys])
            after = _scrub(session, cluster, shard, leader, reports)
            session.find(digest_findings.digests_equal(cluster.names, after.scans, after.log, basis=SCRUBBED))
            _ask_the_audit_again(session, cluster, shard, damaged, after.log)
            verified.append(not differing(after.scans[damaged], after.log.sums))
        with session.step("delete the drill's volume"):
            remove()


# -- the damage --------------------------------------------------------------------------------------------------------


def _write_keys(client: Client, cluster: Cluster, shard: int, volume: str) -> Row:
    """Write a few keys, wait until every node has them, and return the row of one of them."""
    client.create_volume(volume)
    client.create_bucket(volume, BUCKET)
    for number in range(KEYS):
        put_key(client, volume, BUCKET, f"key-{number}", 1 + number)
    for name in cluster.names:
        cluster.wait_caught_up(name, shard)
    return Row(cf=KEY_TABLE, key=f"/{volume}/{BUCKET}/key-{KEYS // 2}".encode())


@contextmanager
def _damaged(
    session: Session, cluster: Cluster, shard: int, name: str, folder: Path, row: Row
) -> Iterator[list[bool]]:  # fmt: skip
    """Damage a row of a node, whose database is copied first.

    The copy is put back unless the caller puts True into the list that is yielded.
    """
    verified: list[bool] = []
    database, copy = database_of(cluster.settings, name, shard), folder / "saved"
    with session.step(f"stop {name}, copy its database of shard {shard}, flip a bit of a row, start it again"):
        start_again = cluster.take(session, name, ProcessFault.STOP)
        shutil.copytree(database, copy)

        def put_back() -> str:
            if verified and all(verified):
                return f"{name}'s row was repaired and verified; the copy was not needed"
            cluster.take(session, name, ProcessFault.STOP)
            shutil.rmtree(database)
            shutil.copytree(copy, database)
            cluster.start(name)
            return f"{name}'s database of shard {shard} was put back from the copy; it replays the log from there"

        done = session.touching(f"one row of {name}'s database of shard {shard}, which was copied first", put_back)
        _flip(cluster, shard, name, row)
        start_again()
        cluster.wait_led()
    yield verified
    done()


def _flip(cluster: Cluster, shard: int, name: str, row: Row) -> None:
    """Change a row of a node that does not run."""
    with opened_store(database_of(cluster.settings, name, shard)) as store:
        value = store.get(row.cf, row.key)
        if value is None:
            raise StepFailed(f"{name} does not have the row {row.key!r}")
        store.write([(row.cf, row.key, value[:-1] + bytes([value[-1] ^ 1]))])


# -- finding it --------------------------------------------------------------------------------------------------------


def _scrub(session: Session, cluster: Cluster, shard: int, new_leader: str, reports: ReportTap) -> Scrub:
    """Make every replica scan itself in full at one barrier.

    A claim begins with such a barrier, so this moves the leadership.
    """
    with session.step(
        f"move the leadership of shard {shard} to {new_leader}: every replica scans itself in full"
    ) as found:
        after = int(cluster.view(cluster.wait_leader(shard), shard)["applied_offset"])
        move(cluster.settings, shard, new_leader)
        at = cluster.wait("a scrub by every replica", lambda: reports.barrier(SCRUBBED, cluster.names, after))
        offset = next(iter(at.values())).barrier_offset
        log = survey(cluster.settings, shard, until=offset).digest_here()
        found(f"barrier at offset {offset}, index {log.index}")
    return Scrub(scans={name: sums_of(report) for name, report in at.items()}, log=log)


def _ask_the_audit(
    session: Session, cluster: Cluster, shard: int, damaged: str, slots: Sequence[int], log: Digest, key: bytes
) -> None:  # fmt: skip
    """Wait for the Spark audit's verdict on the damaged replica's scan, and for the keys, if the audit runs."""
    if not cluster.has_audit():
        return
    with session.step("wait for the Spark audit's verdict on that scan"):
        seen = _verdict(cluster, shard, damaged, log)
    places = [damage_findings.DigestBucket(difference.cf, difference.bucket) for difference in seen.differences]
    expected = [damage_findings.DigestBucket(log.families[slot // BUCKETS], slot % BUCKETS) for slot in slots]
    session.find(damage_findings.audit_names(damaged, places, expected))
    with session.step("wait until the Spark audit names the row"):
        seen = _verdict(cluster, shard, damaged, log, said=NAMED, timeout_s=KEYS_TIMEOUT_S)
    session.find(damage_findings.audit_names_row(damaged, seen.reason.partition(NAMED)[2], key))


def _ask_the_audit_again(session: Session, cluster: Cluster, shard: int, repaired: str, log: Digest) -> None:
    """Wait for the Spark audit's verdict on the scan after the repair, if the audit runs."""
    if cluster.has_audit():
        with session.step("wait for the Spark audit's verdict on the repaired replica"):
            seen = _verdict(cluster, shard, repaired, log)
        session.find(damage_findings.audit_agrees(repaired, seen.verdict, log.index))


def _verdict(
    cluster: Cluster, shard: int, node: str, log: Digest, *, said: str = "", timeout_s: float = AUDIT_TIMEOUT_S
) -> Verdict:
    """Wait until the audit knows whether a node's scan at ``log.offset`` is right, and its reason has ``said``.

    The audit says ``unknown`` while it has no report.
    """

    def decided(verdicts: VerdictReader) -> Verdict | None:
        return next(
            (
                verdict for verdict in verdicts.poll(0.5)
                if (verdict.log, verdict.shard, verdict.node, verdict.basis) == (OM_LOG, shard, node, SCRUBBED)
                and verdict.barrier_offset == log.offset and verdict.verdict in (EQUAL, DIVERGED)
                and said in verdict.reason
            ), None,
        )  # fmt: skip

    with VerdictReader(cluster.settings.connection, since_ms=log.timestamp_ms) as reader:
        found: Verdict = cluster.wait(
            f"the audit's verdict on the scan of {node} at offset {log.offset}",
            lambda: decided(reader),
            timeout_s,
        )
    return found


def _narrow(
    session: Session, cluster: Cluster, shard: int, damaged: str, peer: str, cf: str, slot: int
) -> list[bytes]:  # fmt: skip
    """Compare the rows of a digest bucket on two nodes at one index; return the keys that differ."""
    with session.step(f"compare the rows of {cf} bucket {slot % BUCKETS} on {damaged} and {peer}") as found:
        path = f"/v1/shards/{shard}/rows"

        def both() -> tuple[dict[str, int], dict[str, int]] | None:
            one, other = (cluster.get(name, path, cf=cf, bucket=slot % BUCKETS) for name in (damaged, peer))
            if one["index"] != other["index"]:
                return None
            rows = [{row["key"]: row["hash"] for row in answer["rows"]} for answer in (one, other)]
            return rows[0], rows[1]

        mine, theirs = cluster.wait("both nodes at one index", both)
        keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        found(f"{len(keys)} of {len(theirs)} rows differ")
    return [bytes.fromhex(key) for key in keys]


# -- repairing it ------------------------------------------------------------------------------------------------------


def _repair(session: Session, cluster: Cluster, shard: int, damaged: str, peer: str, rows: Sequence[Row]) -> None:
    """Stop a replica, give it a healthy replica's rows, and start it again."""
    with session.step(f"stop {damaged}, give it {len(rows)} row of {peer}, start it again") as found:
        start_again = cluster.take(session, damaged, ProcessFault.STOP)
        values, offset = [], -1
        for row in rows:
            answer = cluster.get(peer, f"/v1/shards/{shard}/row", cf=row.cf, key=row.key.hex())
            values.append(None if answer["value"] is None else bytes.fromhex(answer["value"]))
            offset = max(offset, int(answer["offset"]))
        with opened_store(database_of(cluster.settings, damaged, shard)) as store:
            _check_untouched(cluster, shard, stored_offset(store), offset, rows)
            store.write([(row.cf, row.key, value) for row, value in zip(rows, values, strict=True)])
        start_again()
        cluster.wait_led()
        cluster.wait_caught_up(damaged, shard)
        found("the running digest never left out the right row, so it needs no repair")


def _check_untouched(cluster: Cluster, shard: int, since: int, until: int, rows: Sequence[Row]) -> None:
    """Raise StepFailed if the log changes one of the rows behind offset ``since``, the damaged replica's position.

    The healthy replica's row may then be newer than the damaged one.
    """
    wanted = {(row.cf, row.key) for row in rows}
    for entry in records_of(cluster.settings, shard, until):
        record = entry.record
        if entry.offset <= since or not entry.reading.takes_effect:
            continue
        if isinstance(record, RequestBatch):
            raise StepFailed(
                f"requests are validated late at offset {entry.offset}: what they change is not in the log"
            )
        operations = record.operations if isinstance(record, Batch) else []
        touched = [one for one in operations if isinstance(one, Put | Delete | Merge) and (one.cf, one.key) in wanted]
        if touched:
            raise StepFailed(
                f"the log changes {touched[0].key!r} at offset {entry.offset}: rebuild the replica instead"
            )
