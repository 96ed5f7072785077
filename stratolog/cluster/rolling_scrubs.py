"""What nodes say of their rolling scrubs, in words: within how long a row that changed on the disk is found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from stratolog.nodes.core.leaders import Status, views_in


def rolling_scrub_words(said: Mapping[str, Any], now_ms: int) -> str:
    """Return what a node says of one replica's scan (``rolling_scrub`` of its status), in words.

    >>> last = {"ended_at_ms": 88_000, "rows": 7, "took_s": 1.25, "differing_slots": 0}
    >>> rolling_scrub_words({"within_ms": 300_000, "last_pass": last}, 100_000)
    'a row that changes at rest is found within 300 s; all 7 rows read 12 s ago (in 1.2 s): as the digest says'
    """
    last = said["last_pass"]
    if last is None:
        return f"a row that changes at rest is found within {_within_s(said, 0)} s; the first pass runs"
    slots = int(last["differing_slots"])
    found = f"{slots} digest buckets DIFFER" if slots else "as the digest says"
    age_s = max(0, now_ms - int(last["ended_at_ms"])) // 1000
    return (
        f"a row that changes at rest is found within {_within_s(said, float(last['took_s']))} s; all {last['rows']} "
        f"rows read {age_s} s ago (in {float(last['took_s']):.1f} s): {found}"
    )


def _within_s(said: Mapping[str, Any], took_s: float) -> str:
    """Return the stated time; two passes, if a pass of this replica alone takes more than half of it."""
    return f"{max(int(said['within_ms']) / 1000, 2 * took_s):.0f}"


def rolling_scrubs_in(name: str, status: Status) -> Iterator[str]:
    """Yield a line for each replica of a node that is scanned."""
    now_ms = time.time_ns() // 1_000_000
    for view in views_in(status):
        if said := view.get("rolling_scrub"):
            yield f"{name}, shard {view['shard']}: {rolling_scrub_words(said, now_ms)}"
