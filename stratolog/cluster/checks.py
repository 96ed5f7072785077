"""What the demo holds a stack against, each question as one :class:`Check` with an answer that a person can act on.

Nothing here starts or stops anything. A question that cannot be answered in time is answered with no, and says so:
``unknown`` is never ``equal``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from producers.bulk.ingest import IngestSummary
from producers.bulk.listing import Listing, ListingDifference, actual_listing, differences, expected_listing
from producers.bulk.read_back import read_back
from producers.bulk.tree_layout import Placement
from producers.errors import StratologError
from producers.reads.reads import Reads
from stratolog.cluster.connection import client_of
from stratolog.cluster.verdicts import INCREMENTAL, SCRUBBED, UNKNOWN, Latest, VerdictReader
from stratolog.configuration.settings import Settings
from stratolog.local.processes import wait_until
from stratolog.local.stack import node_status
from stratolog.shard_views import leader_of, view_in, views_in

SCAN_TIMEOUT_S = 300.0
SPREAD_TIMEOUT_S = 60.0
CONVERGE_TIMEOUT_S = 120.0
LISTING_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.25
REPLICAS = 3
"""Datanodes that hold each block of RATIS/THREE."""
NAMED_DIFFERENCES = 3
"""At most so many differing keys of a replica are named."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question, whether it is answered with yes, and what was found."""

    name: str
    holds: bool
    found: str


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
    for node in settings.nodes:
        found += [
            ReplicaStanding(
                node=node.name, shard=view["shard"], role=view["role"], leader=view["leader"], index=view["applied_index"],
                offset=view["applied_offset"], digest=view["digest"], flagged=view["flagged"],
            )
            for view in views_in(node_status(node.address))
        ]  # fmt: skip
    return sorted(found, key=lambda replica: (replica.shard, replica.node))


def leaders(settings: Settings) -> dict[int, str]:
    """Return the node that leads each shard, by its own word; shards without exactly one are left out."""
    statuses = {node.name: node_status(node.address) for node in settings.nodes}
    led = {
        shard: leader_of({name: view_in(status, shard) for name, status in statuses.items()})
        for shard in range(settings.shards)
    }
    return {shard: node for shard, node in led.items() if node is not None}


def check_spread(settings: Settings, *, report: Callable[[str], None], timeout_s: float = SPREAD_TIMEOUT_S) -> Check:
    """Wait until the shards are led by different nodes, as far as there are nodes enough."""
    wanted = min(settings.shards, len(settings.nodes))
    told: list[dict[int, str]] = []

    def spread() -> bool:
        led = leaders(settings)
        if len(led) == settings.shards and len(set(led.values())) < wanted and led not in told:
            told.append(led)
            report(f"{_names(led)}: waiting until they are led by different nodes")
        return len(led) == settings.shards and len(set(led.values())) >= wanted

    holds = wait_until(spread, timeout_s, interval_s=POLL_INTERVAL_S)
    found = _names(leaders(settings))
    return Check(
        name="the shards are led by different nodes", holds=holds, found=found if holds else f"{found or 'no leaders'}"
    )


def _names(led: Mapping[int, str]) -> str:
    return ", ".join(f"shard {shard} by {node}" for shard, node in sorted(led.items()))


def converged(settings: Settings) -> dict[int, int] | None:
    """Return each shard's index if all replicas of it stand there, with equal digests and not flagged; else None."""
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


def check_converged(settings: Settings, *, timeout_s: float = CONVERGE_TIMEOUT_S) -> Check:
    """Wait until all replicas stand at one index with one digest per shard."""
    holds = wait_until(lambda: converged(settings) is not None, timeout_s, interval_s=POLL_INTERVAL_S)
    standing = [f"shard {r.shard} {r.node} index {r.index} digest {r.digest}" for r in replicas(settings)]
    found = "one index and one digest per shard" if holds else f"not after {timeout_s:.0f} s: {'; '.join(standing)}"
    return Check(name="the replicas have converged", holds=holds, found=found)


def check_digests(settings: Settings, shard: int) -> Check:
    """Scan a shard in full on every node: all scans and all incremental digests are equal, at one index."""
    name = f"shard {shard}: full scans and digests of all replicas are equal"
    deadline_s = time.monotonic() + CONVERGE_TIMEOUT_S
    while True:
        try:
            found = {node.name: _digest(node.address, shard) for node in settings.nodes}
        except httpx.HTTPError as error:
            return Check(name=name, holds=False, found=f"no answer: {type(error).__name__}: {error}")
        same_index = len({answer["index"] for answer in found.values()}) == 1
        if same_index or time.monotonic() >= deadline_s:
            break
    parts = {json_digest(part) for answer in found.values() for part in (answer, answer["incremental"])}
    said = ", ".join(
        f"{node} index {answer['index']} scan {answer['digest']} digest {answer['incremental']['digest']}"
        for node, answer in found.items()
    )
    if same_index and len(parts) == 1:
        answer = next(iter(found.values()))
        return Check(name=name, holds=True, found=f"{answer['digest']} at index {answer['index']}")
    return Check(name=name, holds=False, found=said)


def json_digest(part: Json) -> tuple[tuple[int, int], ...]:
    """Return a digest slot by slot, so that two can be compared; empty slots do not count."""
    return tuple(sorted((slot, total) for slot, total in zip(part["slots"], part["sums"], strict=True) if total))


def _digest(address: str, shard: int) -> Json:
    url = f"http://{address}/v1/shards/{shard}/digest"
    answer = httpx.get(url, params={"scrub": "true"}, timeout=SCAN_TIMEOUT_S)
    return dict(answer.raise_for_status().json())


# -- the tree ----------------------------------------------------------------------------------------------------------


def check_ingest(summary: IngestSummary) -> Check:
    """Say whether every file became a key."""
    found = f"{summary.keys:,} keys, {summary.skipped_files:,} skipped, {summary.failed_files:,} failed"
    if summary.failures:
        first = summary.failures[0]
        found += f"; the first: {first.relative_path}: {first.status}: {first.message}"
    return Check(name="every file of the tree was ingested", holds=summary.complete and summary.keys > 0, found=found)


def check_contents(settings: Settings, placement: Placement) -> Check:
    """Read every key back from each of its replicas, and compare the bytes with the SHA-256 that was written."""
    name = "every file reads back from each datanode's replica with its SHA-256"
    with client_of(settings) as client:
        read = read_back(client, placement)
    found = f"{read.keys:,} keys, {read.replicas:,} replicas, {read.bytes:,} bytes read, {read.wrong_replicas:,} wrong"
    for wrong in read.wrong[:NAMED_DIFFERENCES]:
        found += f"; replica {wrong.replica} of {wrong.path}: {wrong.reason}"
    whole = read.wrong_replicas == 0 and read.replicas > 0 and read.fewest_replicas == REPLICAS
    return Check(name=name, holds=whole, found=found)


def check_listings(
    settings: Settings, tree: Path, placement: Placement, leave_out: Collection[str] = ()
) -> list[Check]:
    """Compare what each node lists (all pages, linearizable) with the tree as it is now, key by key.

    ``leave_out`` are directories of the tree that were not ingested.
    """
    expected = expected_listing(tree, placement, leave_out)
    return [_check_listing(node.name, node.address, expected, placement) for node in settings.nodes]


def _check_listing(node: str, address: str, expected: Listing, placement: Placement) -> Check:
    name = f"{node} lists the tree exactly: names, sizes, modification times, SHA-256"
    reads = Reads([f"http://{address}"], deadline_ms=int(LISTING_TIMEOUT_S * 1000))
    try:
        found = differences(expected, actual_listing(reads, placement, consistency="linearizable"))
    except StratologError as error:
        return Check(name=name, holds=False, found=str(error))
    finally:
        reads.close()
    if found:
        return Check(name=name, holds=False, found=_named(found))
    return Check(name=name, holds=True, found=f"{len(expected):,} keys")


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


def await_verdicts(settings: Settings, reader: VerdictReader, *, timeout_s: float) -> tuple[list[Check], Latest]:
    """Wait until the running audit finds every replica ``equal`` where it stands, or one ``diverged``; judge each.

    Asked for are its verdicts on the incremental digest and on a full scan, both at the index at which the replicas have
    converged, the last one of the log. What has not come by ``timeout_s`` is ``unknown``.
    """
    latest = Latest()
    indexes: Mapping[int, int] = {}
    pairs = [(shard, node.name) for shard in range(settings.shards) for node in settings.nodes]
    for verdicts in reader.until(time.monotonic() + timeout_s):
        latest.take(verdicts)
        if latest.diverged:
            break
        if verdicts:
            indexes = converged(settings) or indexes
            if indexes and all(latest.is_equal(shard, node, indexes[shard]) for shard, node in pairs):
                break
    return [_check_verdict(latest, shard, node, indexes.get(shard)) for shard, node in pairs], latest


def _check_verdict(latest: Latest, shard: int, node: str, index: int | None) -> Check:
    name = f"Spark: shard {shard}, {node} equals what the log alone gives"
    if index is None:
        return Check(name=name, holds=False, found="unknown: the replicas stand at no common index")
    if latest.is_equal(shard, node, index):
        verdict = latest.verdicts[shard, node, SCRUBBED]
        found = f"equal at barrier {verdict.barrier_offset}, index {index}, incremental and scrubbed"
        return Check(name=name, holds=True, found=found)
    parts = [
        f"{key[2]}: diverged at index {v.index}: {v.reason}" for key, v in latest.diverged.items() if key[0] == shard
    ]
    for basis in (INCREMENTAL, SCRUBBED):
        verdict_or_none = latest.of(shard, node, basis)
        if verdict_or_none is None or verdict_or_none.index != index:
            at = "none" if verdict_or_none is None else f"{verdict_or_none.verdict} at index {verdict_or_none.index}"
            parts.append(f"{basis}: {UNKNOWN} at index {index} (latest: {at})")
        else:
            parts.append(f"{basis}: {verdict_or_none.verdict} {verdict_or_none.reason}".rstrip())
    return Check(name=name, holds=False, found="; ".join(parts))
