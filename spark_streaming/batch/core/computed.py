"""What the batch oracle computes of a shard. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.digests import Sums


@dataclass(frozen=True, slots=True)
class LogPoint:
    """An effective record of a shard's log, and the managed index after it."""

    offset: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardDigest:
    """What the oracle says of a shard at ``index``: the sum of every slot, and how many rows are live."""

    shard: int
    index: int
    offset: int
    sums: Sums
    rows: int

    @property
    def digest(self) -> str:
        """Sum of all slots mod 2^64, 16 hex digits."""
        return digests.total(self.sums)

    def base(self) -> tuple[list[int], list[int]]:
        """Return (slots, signed sums) for a DigestBase at ``index``."""
        return digests.to_sparse(self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDifference:
    """A merged row whose operands do not give what its last Merge claims. ``value``: a counter, or a block's length."""

    shard: int
    cf: str
    key: bytes
    value: int
    claimed: int
    own: int
