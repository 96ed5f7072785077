"""The demo's checks of a stack: each question becomes a :class:`Finding` with an answer that a person can act on.

Nothing here starts or stops anything. A question without an answer in time counts as no, and the finding says so:
``unknown`` is never ``equal``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from producers.bulk.ingest import IngestSummary
from producers.bulk.listing import Listing, ListingDifference, actual_listing, differences, expected_listing
from producers.bulk.read_back import read_back
from producers.bulk.tree_layout import TreeLayout
from producers.errors import StratologError
from producers.reads.reads import Reads
from schemas.records.verdict_words import EQUAL, INCREMENTAL, SCRUBBED, UNKNOWN
from schemas.topics import OM_LOG
from stratolog.cluster.connection import client_of
from stratolog.cluster.core.findings import Finding
from stratolog.cluster.verdicts import VerdictReader
from stratolog.configuration.settings import Settings
from stratolog.local.processes import wait_until
from stratolog.nodes.answers import node_statuses
from stratolog.nodes.core.leaders import leader_of, views_in
from stratolog.nodes.node_http import http_to, url_of
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.waiting.deadline import Deadline

SCAN_TIMEOUT_S = 300.0
SPREAD_TIMEOUT_S = 60.0
CONVERGE_TIMEOUT_S = 120.0
LISTING_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.25
REPLICAS = 3
"""Datanodes that hold each block of RATIS/THREE."""
NAMED_DIFFERENCES = 3
"""Differing keys of a replica that are named at most."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStanding:
    """Where a replica stands: what its node says of the shard in ``/status``."""

    node: str
    shard: int
    role: str
    leader: str
    index: int
    offset: int
    digest: str
    flagged: bool


# -- replicas ----------------------------------------------------------------------------------------------------------


def replicas(settings: Settings) -> list[ReplicaStanding]:
    """Return where all replicas stand, by shard and node; those of a silent node are left out."""
    found = []
    for name, status in node_statuses(settings).items():
        found += [
            ReplicaStanding(
                node=name, shard=view["shard"], role=view["role"], leader=view["leader"], index=view["applied_index"],
                offset=view["applied_offset"], digest=view["digest"], flagged=view["flagged"],
            )
            for view in views_in(status)
        ]  # fmt: skip
    return sorted(found, key=lambda replica: (replica.shard, replica.node))


def leaders(settings: Settings) -> dict[int, str]:
    """Return the node that leads each shard, by its own word; shards without exactly one are left out."""
    statuses = node_statuses(settings)
    led = {shard: leader_of(statuses, shard) for shard in range(settings.shards)}
    return {shard: node for shard, node in led.items() if node is not None}


def check_spread(settings: Settings, *, report: Callable[[str], None], timeout_s: float = SPREAD_TIMEOUT_S) -> Finding:
    """Wait until different nodes lead the shards, as far as there are enough nodes."""
    wanted = min(settings.shards, len(settings.nodes))
    told: list[dict[int, str]] = []

    def is_spread() -> bool:
        led = leaders(settings)
        if len(led) == settings.shards and len(set(led.values())) < wanted and led not in told:
            told.append(led)
            report(f"{_names(led)}: waiting until they are led by different nodes")
        return len(led) == settings.shards and len(set(led.values())) >= wanted

    holds = wait_until(is_spread, timeout_s, interval_s=POLL_INTERVAL_S)
    found = _names(leaders(settings))
    return Finding(question="the shards are led by different nodes", holds=holds, seen=found or "no leaders")


def _names(led: Mapping[int, str]) -> str:
    return ", ".join(f"shard {shard} by {node}" for shard, node in sorted(led.items()))


def converged(settings: Settings) -> dict[int, int] | None:
    """Return each shard's index if all its replicas stand there, unflagged and with equal digests; else None."""
    found = replicas(settings)
    if len(found) != settings.shards * len(settings.nodes):
        return None
    indexes = {}
    for shard in range(settings.shards):
        own = [replica for replica in found if replica.shard == shard]
        if any(replica.flagged for replica in own) or len({(replica.index, replica.digest) for replica in own}) != 1:
            return None
        indexes[shard] = own[0].index
    return indexes


def check_converged(settings: Settings, *, timeout_s: float = CONVERGE_TIMEOUT_S) -> Finding:
    """Wait until all replicas stand at one index with one digest per shard."""
    holds = wait_until(lambda: converged(settings) is not None, timeout_s, interval_s=POLL_INTERVAL_S)
    standing = [f"shard {r.shard} {r.node} index {r.index} digest {r.digest}" for r in replicas(settings)]
    found = "one index and one digest per shard" if holds else f"not after {timeout_s:.0f} s: {'; '.join(standing)}"
    return Finding(question="the replicas have converged", holds=holds, seen=found)


def check_digests(settings: Settings, shard: int) -> Finding:
    """Scan a shard in full on every node; all scans and incremental digests must be equal, at one index."""
    name = f"shard {shard}: full scans and digests of all replicas are equal"
    deadline = Deadline.after_s(CONVERGE_TIMEOUT_S)
    while True:
        try:
            found = {node.name: _digest(node.address, shard) for node in settings.nodes}
        except httpx.HTTPError as error:
            return Finding(question=name, holds=False, seen=f"no answer: {type(error).__name__}: {error}")
        same_index = len({answer["index"] for answer in found.values()}) == 1
        if same_index or deadline.has_passed:
            break
    parts = {json_digest(part) for answer in found.values() for part in (answer, answer["incremental"])}
    said = ", ".join(
        f"{node} index {answer['index']} scan {answer['digest']} digest {answer['incremental']['digest']}"
        for node, answer in found.items()
    )
    if same_index and len(parts) == 1:
        answer = next(iter(found.values()))
        return Finding(question=name, holds=True, seen=f"{answer['digest']} at index {answer['index']}")
    return Finding(question=name, holds=False, seen=said)


def json_digest(part: Json) -> tuple[tuple[int, int], ...]:
    """Return a digest slot by slot, so that two can be compared; empty slots do not count."""
    return tuple(sorted((slot, total) for slot, total in zip(part["slots"], part["sums"], strict=True) if total))


def _digest(address: str, shard: int) -> Json:
    url = url_of(address, f"/v1/shards/{shard}/digest")
    answer = http_to(address).get(url, params={"scrub": "true"}, timeout=SCAN_TIMEOUT_S)
    return dict(answer.raise_for_status().json())


# -- the tree ----------------------------------------------------------------------------------------------------------


def check_ingest(summary: IngestSummary) -> Finding:
    """Say whether every file became a key."""
    found = f"{summary.keys:,} keys, {summary.skipped_files:,} skipped, {summary.failed_files:,} failed"
    if summary.failures:
        first = summary.failures[0]
        found += f"; the first: {first.relative_path}: {first.status}: {first.message}"
    return Finding(
        question="every file of the tree was ingested", holds=summary.complete and summary.keys > 0, seen=found
    )


def check_contents(settings: Settings, layout: TreeLayout) -> Finding:
    """Read every key back from each of its replicas, and compare the bytes with the SHA-256 that was written."""
    name = "every file reads back from each datanode's replica with its SHA-256"
    with client_of(settings) as client:
        read = read_back(client, layout)
    found = f"{read.keys:,} keys, {read.inline:,} of them inline, {read.replicas:,} replicas, {read.bytes:,} bytes read, {read.wrong_replicas:,} wrong"
    for wrong in read.wrong[:NAMED_DIFFERENCES]:
        found += f"; replica {wrong.replica} of {wrong.path}: {wrong.reason}"
    whole = read.wrong_replicas == 0 and read.replicas > 0 and read.fewest_replicas in (REPLICAS, None)
    return Finding(question=name, holds=whole, seen=found)


def check_listings(
    settings: Settings, tree: Path, layout: TreeLayout, leave_out: Collection[str] = ()
) -> list[Finding]:
    """Compare what each node lists (all pages, linearizable) with the tree as it is now, key by key.

    ``leave_out`` are directories of the tree that were not ingested.
    """
    expected = expected_listing(tree, layout, leave_out)
    return [_check_listing(settings, node.name, expected, layout) for node in settings.nodes]


def _check_listing(settings: Settings, node: str, expected: Listing, layout: TreeLayout) -> Finding:
    name = f"{node} lists the tree exactly: names, sizes, modification times, SHA-256"
    reads = Reads([url_of(settings.node(node).address)], deadline_ms=int(LISTING_TIMEOUT_S * 1000), tls=settings.tls())
    try:
        found = differences(expected, actual_listing(reads, layout, consistency="linearizable"))
    except StratologError as error:
        return Finding(question=name, holds=False, seen=str(error))
    finally:
        reads.close()
    if found:
        return Finding(question=name, holds=False, seen=_named(found))
    return Finding(question=name, holds=True, seen=f"{len(expected):,} keys")


def _named(found: Sequence[ListingDifference]) -> str:
    """Name the first differences of a listing."""
    parts = []
    for difference in found[:NAMED_DIFFERENCES]:
        path = "/".join(("", *difference.key))
        if difference.actual is None:
            parts.append(f"{path} is missing")
        elif difference.expected is None:
            parts.append(f"{path} is no file of the tree")
        else:
            parts.append(f"{path} is {difference.actual}, the file {difference.expected}")
    return f"{len(found):,} keys differ: {'; '.join(parts)}"


# -- the audit ---------------------------------------------------------------------------------------------------------


def await_verdicts(
    settings: Settings, reader: VerdictReader, *, timeout_s: float
) -> tuple[list[Finding], LatestVerdicts]:
    """Wait until the running audit finds every replica ``equal`` where it stands, or one ``diverged``; judge each.

    Each replica needs two verdicts, on its incremental digest and on a full scan. Both must be at the log's last index,
    where the replicas have converged. A verdict that is missing after ``timeout_s`` is ``unknown``.
    """
    latest = LatestVerdicts(OM_LOG)
    indexes: Mapping[int, int] = {}
    pairs = [(shard, node.name) for shard in range(settings.shards) for node in settings.nodes]
    for verdicts in reader.until(Deadline.after_s(timeout_s)):
        latest.take(verdicts)
        if any(found.diverged for _, found in latest.subjects()):
            break
        if verdicts:
            indexes = converged(settings) or indexes
            if indexes and all(is_equal(latest, shard, node, indexes[shard]) for shard, node in pairs):
                break
    return [_check_verdict(latest, shard, node, indexes.get(shard)) for shard, node in pairs], latest


def is_equal(latest: LatestVerdicts, shard: int, node: str, index: int) -> bool:
    """Say whether a replica is ``equal`` at ``index``, by digest and by full scan, and never was ``diverged``."""
    found = [latest.of(OM_LOG, shard, node, basis) for basis in (INCREMENTAL, SCRUBBED)]
    return all(one is not None and (one.verdict, one.index) == (EQUAL, index) for one in found) and not any(
        said.diverged and subject.shard == shard and subject.node in (node, "") for subject, said in latest.subjects()
    )


def _check_verdict(latest: LatestVerdicts, shard: int, node: str, index: int | None) -> Finding:
    name = f"Spark: shard {shard}, {node} equals what the log alone gives"
    if index is None:
        return Finding(question=name, holds=False, seen="unknown: the replicas stand at no common index")
    scanned = latest.of(OM_LOG, shard, node, SCRUBBED)
    if scanned is not None and is_equal(latest, shard, node, index):
        found = f"equal at barrier {scanned.barrier_offset}, index {index}, incremental and scrubbed"
        return Finding(question=name, holds=True, seen=found)
    parts = [
        f"{subject.basis}: diverged at index {said.diverged.index}: {said.diverged.reason}"
        for subject, said in latest.subjects()
        if subject.shard == shard and said.diverged is not None
    ]
    for basis in (INCREMENTAL, SCRUBBED):
        verdict = latest.of(OM_LOG, shard, node, basis)
        if verdict is None or verdict.index != index:
            at = "none" if verdict is None else f"{verdict.verdict} at index {verdict.index}"
            parts.append(f"{basis}: {UNKNOWN} at index {index} (latest: {at})")
        else:
            parts.append(f"{basis}: {verdict.verdict} {verdict.reason}".rstrip())
    return Finding(question=name, holds=False, seen="; ".join(parts))
