"""The inputs of a shard's audit: records of the log, and the replicas' reports. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.records.messages import Evidence
from spark_streaming.records.core.reading import Header
from spark_streaming.verdicts.core.digests import Hashes


class ReportKey(NamedTuple):
    """Node and basis of a report; a barrier has one report for each."""

    node: str
    basis: str


class ReportPlace(NamedTuple):
    """Where a report belongs: the barrier that it names, and its :class:`ReportKey` at that barrier."""

    offset: int
    node: str
    basis: str

    @property
    def key(self) -> ReportKey:
        """Return node and basis."""
        return ReportKey(self.node, self.basis)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogRow:
    """A log record as the transforms hand it over: header, changes of a batch, digest and basis of a DigestBase.

    ``base_asked_by``: of a batch whose first request asked for the DigestBase before it, the client's id in
    hexadecimal.
    """

    header: Header
    slot: Hashes
    next: Hashes
    prev: Hashes
    unknown_families: tuple[str, ...] = ()
    base_slots: Sequence[int] | Hashes = ()
    base_sums: Sequence[int] | Hashes = ()
    base_basis: str = ""
    base_asked_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaReport:
    """A replica's report, or the readable rest of one that could not be decoded (``error``)."""

    partition: int
    offset: int
    cluster: str
    node: str
    shard: int
    basis: str
    barrier_offset: int
    index: int
    chain: bytes
    slots: Sequence[int] | Hashes
    sums: Sequence[int] | Hashes
    flagged: bool
    evidence: Evidence | None
    error: str | None = None

    @property
    def key(self) -> ReportKey:
        """Return node and basis."""
        return ReportKey(self.node, self.basis)

    @property
    def place(self) -> ReportPlace:
        """Return the barrier that the report names, with node and basis."""
        return ReportPlace(self.barrier_offset, self.node, self.basis)
