"""What became of every request that the clients journaled: on every replica, and in the log alone.

The figures are those of the kit (``stratolog.drills.kit.core.judging``). The campaigns' own witness is the bytes of inline keys,
read from each replica by its direct door (linearizable) and, of some, over HTTP.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from schemas.result_codes import OK
from schemas.sharding import shard_of
from stratolog.drills.kit.aftermath import judge_digests, judge_listings, judge_log
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core.journal import Journal, longest_gap_ms
from stratolog.drills.kit.core.judging import Aftermath, judge_data
from tests.support.local.stack import TestStack
from tests.support.om.raw_door import RawDoor

DOOR_TIMEOUT_S = 120.0
CONVERGE_TIMEOUT_S = 300.0
LOOKED_UP = 200
"""So many keys are asked for at once by the direct door."""
OVER_HTTP = 100
"""Of so many keys of a place the bytes are read over HTTP, too."""


def judge(stack: TestStack, journals: Sequence[Journal]) -> Aftermath:
    """Compare everything; call when the clients have ended and all nodes run. Waits until the replicas are at one index."""
    shards = range(stack.settings.shards)
    by_shard = {shard: [one for one in journals if shard_of(one.volume, len(shards)) == shard] for shard in shards}
    found = Aftermath(
        acknowledged=sum(len(journal.acks) for journal in journals),
        unknown=sum(journal.unknown for journal in journals),
        refused=sum(len(journal.refusals) for journal in journals),
        longest_gap_ms=max(map(longest_gap_ms, by_shard.values())),
    )
    found.note("unexpected", [line for journal in journals for line in journal.refusals])
    stack.wait_converged(CONVERGE_TIMEOUT_S)
    cluster = Cluster(settings=stack.settings)
    for node in stack.names:
        for consistency in ("linearizable", "stale"):
            judge_listings(found, cluster, node, journals, consistency)
        found.read_back = _judge_bytes(found, stack, cluster, node, journals)
    stack.wait_converged(CONVERGE_TIMEOUT_S)
    for shard, own in by_shard.items():
        seen = judge_log(found, stack.settings, shard, own)
        for node in stack.names:
            judge_digests(found, cluster, node, shard, seen)
    return found


def _judge_bytes(
    findings: Aftermath, stack: TestStack, cluster: Cluster, node: str, journals: Sequence[Journal]
) -> int:
    count = 0
    for volume, bucket in sorted({(journal.volume, journal.bucket) for journal in journals}):
        own = [journal for journal in journals if (journal.volume, journal.bucket) == (volume, bucket)]
        keys = [key for journal in own for key in journal.keys]
        found = dict(_by_the_door(stack, node, volume, bucket, keys))
        count += judge_data(findings, f"{node}, direct door, {volume}/{bucket}", found, own)
        some = [key for key, data in found.items() if data is not None][-OVER_HTTP:]
        told = {key: _over_http(cluster, node, volume, bucket, key) for key in some}
        judge_data(findings, f"{node}, HTTP, {volume}/{bucket}", told, own)
    return count


def _by_the_door(
    stack: TestStack, node: str, volume: str, bucket: str, keys: Sequence[str]
) -> Iterator[tuple[str, bytes | None]]:
    with RawDoor(stack.address(node), timeout_s=DOOR_TIMEOUT_S) as door:
        for first in range(0, len(keys), LOOKED_UP):
            some = keys[first : first + LOOKED_UP]

            def answered(some: Sequence[str] = some) -> Any:
                found = door.look_up(volume, bucket, some, "linearizable", with_bytes=True)
                return found if found.status == OK else None

            rows = stack.wait(f"{node} answers lookups by its direct door", answered)
            yield from ((key, data) for key, row, data in zip(some, rows.rows, rows.data, strict=True) if row)


def _over_http(cluster: Cluster, node: str, volume: str, bucket: str, key: str) -> bytes | None:
    data = cluster.get(node, f"/v1/volumes/{volume}/buckets/{bucket}/key", name=key, bytes="true").get("data")
    return None if data is None else base64.b64decode(data)
