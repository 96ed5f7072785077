"""A shard's log, record by record: the reader's position, and the sums that its claims give. Pure.

A DigestBase replaces the sums. If it gives others than the log's operations, that is remembered (:class:`BaseChange`):
from then on the replicas are compared with what the base says.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streaming.records.core.reading import (
    BARRIER,
    BATCH,
    DIGEST_BASE,
    REQUEST_BATCH,
    LogBroken,
    LogTooNew,
    Ruling,
    read,
)
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.digests import MAX_DIFFERENCES, Sums
from spark_streaming.verdicts.core.inputs import LogRow
from spark_streaming.verdicts.core.shard_state import BaseChange, ChangedSlot, LogStanding


def follow(audited: AuditedShard, row: LogRow) -> Ruling:
    """Read the next record; if it counts, add what it claims to the state. Raises LogBroken."""
    audited.state.position, ruling = read(audited.state.position, row.header)
    if ruling is Ruling.OPENS_BASE:
        _set_sums(audited, row)
    elif ruling is Ruling.COUNTS:
        _check_genesis(audited, row)
        _apply(audited, row)
    return ruling


def base_to_tell(audited: AuditedShard, row: LogRow) -> BaseChange | None:
    """Return the change by a DigestBase that is to be told now, with who asked for it as far as the log says.

    The batch right behind the base answers its command. Without one the next barrier is the moment.
    """
    base, kind = audited.state.base, row.header.kind
    if base is None or base.is_told or kind not in (BATCH, REQUEST_BATCH, BARRIER):
        return None
    base.is_told = True
    base.asked_by = row.base_asked_by
    return base


def _check_genesis(audited: AuditedShard, row: LogRow) -> None:
    header, genesis = row.header, row.header.genesis
    if genesis is None:
        return
    if is_newer(audited.families, genesis.column_families):
        extra = ", ".join(genesis.column_families[len(audited.families) :])
        raise LogTooNew(header.offset, f"unknown column families {extra}: upgrade the audit")
    if not _are_known(audited.families, genesis.column_families):
        named = list(genesis.column_families)
        raise LogBroken(header.offset, f"column families {named}, this auditor's {list(audited.families)}")
    if genesis.shard != audited.shard:
        raise LogBroken(header.offset, f"Genesis of shard {genesis.shard} on partition {audited.shard}")


def _are_known(families: tuple[str, ...], named: Sequence[str]) -> bool:
    """Say whether a log's column families are the first of the auditor's."""
    return bool(named) and families[: len(named)] == tuple(named)


def is_newer(families: tuple[str, ...], named: Sequence[str]) -> bool:
    """Say whether a log names all of the auditor's column families, and further ones behind them."""
    return len(named) > len(families) and tuple(named[: len(families)]) == families


def _apply(audited: AuditedShard, row: LogRow) -> None:
    header, state = row.header, audited.state
    if header.kind == BATCH:
        if row.unknown_families:
            raise LogBroken(header.offset, f"unknown column families: {', '.join(row.unknown_families)}")
        digests.add_changes(state.sums, row.slot, row.next, row.prev)
    elif header.kind == DIGEST_BASE:
        before = state.sums
        _set_sums(audited, row)
        if state.standing is LogStanding.SUMMED:
            _compare(audited, row, before)
    state.pass_record(header.kind or "")


def _compare(audited: AuditedShard, row: LogRow, before: Sums) -> None:
    """Remember in which slots a DigestBase is not what the log's operations gave."""
    state = audited.state
    changed = (before != state.sums).nonzero()[0]
    if not len(changed):
        return
    named = tuple(
        ChangedSlot(int(slot), digests.signed(before[slot]), digests.signed(state.sums[slot]))
        for slot in changed[:MAX_DIFFERENCES]
    )
    state.base = BaseChange(
        offset=row.header.offset, index=row.header.index, slots=len(changed), named=named, basis=row.base_basis,
        leader=state.position.leader,
    )  # fmt: skip


def _set_sums(audited: AuditedShard, row: LogRow) -> None:
    try:
        audited.state.sums = digests.from_sparse(len(audited.families), row.base_slots, row.base_sums)
    except ValueError as error:
        raise LogBroken(row.header.offset, f"malformed DigestBase: {error}") from error
