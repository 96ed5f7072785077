"""The id that brokers give their Kafka cluster, as processes tell each other: whose brokers a process is at.

Two clusters may have one name, as many shards and one address after another, but never one id. It travels in a header
of each answer of HTTP, the one that opens the direct door among them, and as a number in the HELLO of datanodes. A
process of older software tells none, and is taken for one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xxhash import xxh3_64_intdigest

BROKERS_HEADER = "X-Stratolog-Brokers"
MAX_ID_CHARACTERS = 200
"""Most characters of an id; Kafka's own have 22."""


def brokers_id(told: str | None) -> str:
    """Return what brokers tell as a header can carry it; empty if they tell none.

    >>> brokers_id("4L6g3nShT-eMCtK--X86sw"), brokers_id("our own"), brokers_id(None)
    ('4L6g3nShT-eMCtK--X86sw', 'our?own', '')
    """
    return re.sub(r"[^A-Za-z0-9._-]", "?", told or "")[:MAX_ID_CHARACTERS]


def brokers_header(own: str) -> Mapping[str, str]:
    """Return the header that tells an id; none if it is empty."""
    return {BROKERS_HEADER: own} if own else {}


def brokers_mark(own: str) -> int:
    """Return the number that stands for an id in HELLO; 0 if it is empty.

    >>> brokers_mark(""), brokers_mark("4L6g3nShT-eMCtK--X86sw") > 0
    (0, True)
    """
    return (xxh3_64_intdigest(own.encode()) or 1) if own else 0
