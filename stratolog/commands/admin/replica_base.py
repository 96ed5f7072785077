"""A digest base from the replicas: what ``admin digest-base --from-replicas`` logs (design, section 3).

After late validation no reader can compute a shard's rows from its log. The log's sums then start again from the rows
that a majority of the members holds, by full scans at one index.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx

from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import shard_views
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local.stack import Report
from stratolog.nodes.node_http import http_to, url_of

SCAN_TIMEOUT_S = 600.0
BASIS = "scrubs"

Json = dict[str, Any]


def log_base(settings: Settings, shard: int, attempts: int, report: Report, *, force: bool = False) -> Json:
    """Compare full scans and log what a majority holds.

    Raises UserError if there is no such majority in any attempt.
    """
    from producers.errors import RequestFailed
    from schemas.result_codes import INDEX_MOVED

    reason = ""
    with client_of(settings, operator=True) as client:
        for attempt in range(1, attempts + 1):
            report(f"attempt {attempt}: every replica of shard {shard} is scanned")
            found, reason = _majority(settings, shard)
            if found is not None:
                try:
                    client.log_digest_base(
                        shard, found["index"], slots=found["slots"], sums=found["sums"], basis=BASIS, force=force
                    )
                except RequestFailed as error:
                    if error.status != INDEX_MOVED:
                        raise
                    reason = error.message
                else:
                    return {**found, "shard": shard, "slots": len(found["slots"]), "sums": None, "attempts": attempt}
            report(f"attempt {attempt}: {reason}")
    raise UserError(
        f"shard {shard}: no digest base in {attempts} attempts ({reason}): stop the writers, repair what differs"
    )


def _majority(settings: Settings, shard: int) -> tuple[Json | None, str]:
    """Return the scan that a majority of the members agrees on at one index, or None and why there is none."""
    views = shard_views(settings, shard)
    members = next(iter(views.values()), {}).get("members") or [node.name for node in settings.nodes]
    votes: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
    scans: dict[str, Json] = {}
    for node in members:
        try:
            address = settings.node(node).address
            url = url_of(address, f"/v1/shards/{shard}/digest")
            answer = http_to(address).get(url, params={"scrub": "true"}, timeout=SCAN_TIMEOUT_S)
            scans[node] = scan = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            continue
        votes[scan["index"], scan["digest"], tuple(scan["slots"]), tuple(scan["sums"])].append(node)
    agreeing = max(votes.values(), key=len, default=[])
    if len(agreeing) < len(members) // 2 + 1:
        said = ", ".join(f"{node} {scan['digest']} at {scan['index']}" for node, scan in scans.items()) or "no answers"
        return None, f"no majority of {len(members)} members holds the same: {said}"
    scan = scans[agreeing[0]]
    return {
        "index": scan["index"],
        "digest": scan["digest"],
        "slots": scan["slots"],
        "sums": scan["sums"],
        "agreeing": agreeing,
    }, ""
