"""Which rows of a digest bucket a replica has otherwise than the others. Pure.

The replicas go on while they are asked, so each answers as of an index of its own. Rules:

1. Compared are those at the same index as the replica that differs. If that is the index of the barrier, the rows of
   some may add up to the log's sum of the bucket: they hold what the log says, and the others are left out.
2. Of each key the hash that most of them have counts. Where as many have another one, neither is wrong for that.
3. If none is at the same index, all are compared, and a key may differ because of a write. Only keys that differ in
   each of several looks are named then.
4. A bucket of which a replica gives only the first rows is compared up to the last key that both give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from schemas.records.messages import Difference

MASK = (1 << 64) - 1
NAMED_KEYS = 8
"""Most keys that are named of a bucket; all are counted."""

NAMED = "rows that differ: "
"""What stands in a verdict's reason before the keys."""

KEY_CHARACTERS = 200
"""Of a key so much is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRows:
    """A replica's rows of a bucket as of ``index``: hash by key. ``is_whole``: whether these are all."""

    index: int
    rows: Mapping[bytes, int]
    is_whole: bool = True

    @property
    def sum(self) -> int:
        """The digest of the rows, unsigned."""
        return sum(self.rows.values()) & MASK


class Damage(Enum):
    """What is wrong with a row, as the others see it."""

    MISSING = "missing"
    EXTRA = "extra"
    OTHER = "another value"


class Look(NamedTuple):
    """What one look has found. ``is_settled``: whether all compared rows are of one index."""

    keys: Mapping[bytes, Damage]
    is_settled: bool


def look(replica: BucketRows, others: Sequence[BucketRows], difference: Difference, index: int) -> Look:
    """Compare a replica's rows with those of the others; ``index`` is that of the barrier, ``difference`` the log's."""
    beside = [one for one in others if one.index == replica.index]
    true = [one for one in beside if one.index == index and one.is_whole and one.sum == difference.log_sum & MASK]
    return Look(_differing(replica, true or beside or others), is_settled=bool(beside))


def _differing(replica: BucketRows, others: Sequence[BucketRows]) -> dict[bytes, Damage]:
    last = min((max(one.rows, default=b"") for one in (replica, *others) if not one.is_whole), default=None)
    found: dict[bytes, Damage] = {}
    for key in sorted(set(replica.rows).union(*(one.rows for one in others))):
        if last is not None and key > last:
            break
        if (damage := _damage(replica.rows.get(key), [one.rows.get(key) for one in others])) is not None:
            found[key] = damage
    return found


def _damage(own: int | None, others: Sequence[int | None]) -> Damage | None:
    votes = Counter(others)
    most = max(votes.values(), default=0)
    wanted = [value for value, count in votes.items() if count == most]
    if not wanted or own in wanted:
        return None
    if own is None:
        return Damage.MISSING
    return Damage.EXTRA if wanted == [None] else Damage.OTHER


def settled(looks: Sequence[Look]) -> Mapping[bytes, Damage] | None:
    """Return the keys that differ, None while another look is needed."""
    return next((one.keys for one in looks if one.is_settled), None)


def lasting(looks: Sequence[Look]) -> Mapping[bytes, Damage]:
    """Return the keys that differ in each look."""
    if not looks:
        return {}
    return {key: damage for key, damage in looks[-1].keys.items() if all(key in one.keys for one in looks)}


def words(difference: Difference, keys: Mapping[bytes, Damage]) -> str:
    """Name the keys of a bucket.

    >>> words(Difference(cf="keyTable", bucket=7, log_sum=1, replica_sum=2), {b"/v/b/k": Damage.MISSING})
    "keyTable bucket 7: '/v/b/k' (missing)"
    """
    place = f"{difference.cf} bucket {difference.bucket}"
    if not keys:
        return f"{place}: the replicas hold the same rows now"
    named = [f"{shown(key)} ({damage.value})" for key, damage in list(keys.items())[:NAMED_KEYS]]
    more = f" and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
    return f"{place}: {', '.join(named)}{more}"


def shown(key: bytes) -> str:
    """Return a key as text; what is no text is escaped."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return ascii(key[:KEY_CHARACTERS].decode("latin-1"))
    return repr(text[:KEY_CHARACTERS])


def joined(parts: Iterable[str]) -> str:
    """Return what is said of all buckets."""
    return NAMED + "; ".join(parts)
