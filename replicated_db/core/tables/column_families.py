"""Column families: the service's own, in the order that numbers digest slots, and two that are private to a replica.

Every row of a *digested* family counts in the state digest. The first digested family is always ``retryTable``. The
*local* families are in no digest. They differ between replicas by design: where each replica stands in the log, its
digests and flags, the order in which its retry rows age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xxhash import xxh64_intdigest

from replicated_db.core.tables.merge import MergeOperator, register

RETRY = "retryTable"
TRANSACTION_INFO = "transactionInfoTable"
RETRY_EXPIRY = "retryExpiryTable"
LOCAL_FAMILIES = (TRANSACTION_INFO, RETRY_EXPIRY)

SEED = 42
"""Seed of the row hash: the one with which Spark's ``xxhash64`` starts."""

MAX_FAMILIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """A service's digested column families, in order, and its merge operators by name.

    ``seeds`` maps a family to the XXH64 of its name; the hash of each of its rows continues from there.
    """

    names: tuple[str, ...]
    operators: Mapping[str, MergeOperator]
    positions: Mapping[str, int] = field(init=False)
    seeds: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", {name: number for number, name in enumerate(self.names)})
        object.__setattr__(self, "seeds", {name: xxh64_intdigest(name.encode(), SEED) for name in self.names})


def families(names: Sequence[str], operators: Sequence[MergeOperator] = ()) -> Families:
    """Declare a service's column families and merge operators. ``retryTable`` is added in front; do not name it.

    Raises ValueError for duplicate or reserved names, or more than MAX_FAMILIES.
    """
    everything = (RETRY, *names)
    if len(set(everything)) != len(everything) or set(names) & {*LOCAL_FAMILIES, "default"}:
        raise ValueError(f"column families must be distinct and not reserved: {names}")
    if len(everything) > MAX_FAMILIES:
        raise ValueError(f"{len(everything)} column families; at most {MAX_FAMILIES}")
    return Families(names=everything, operators=register(operators))
