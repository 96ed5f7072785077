"""A shard's log, record by record: the reader's position, and the sums that its claims give. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streaming.records.core.reading import BATCH, DIGEST_BASE, LogBroken, Ruling, read
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.audited_shard import AuditedShard
from spark_streaming.verdicts.core.inputs import LogRow


def follow(audited: AuditedShard, row: LogRow) -> Ruling:
    """Read the next record; if it counts, add what it claims to the state. Raises LogBroken."""
    audited.state.position, ruling = read(audited.state.position, row.header)
    if ruling is Ruling.OPENS_BASE:
        _set_sums(audited, row)
    elif ruling is Ruling.COUNTS:
        _check_genesis(audited, row)
        _apply(audited, row)
    return ruling


def _check_genesis(audited: AuditedShard, row: LogRow) -> None:
    header, genesis = row.header, row.header.genesis
    if genesis is None:
        return
    if not _are_known(audited.families, genesis.column_families):
        named = list(genesis.column_families)
        raise LogBroken(header.offset, f"column families {named}, this auditor's {list(audited.families)}")
    if genesis.shard != audited.shard:
        raise LogBroken(header.offset, f"Genesis of shard {genesis.shard} on partition {audited.shard}")


def _are_known(families: tuple[str, ...], named: Sequence[str]) -> bool:
    """Say whether a log's column families are the first of the auditor's."""
    return bool(named) and families[: len(named)] == tuple(named)


def _apply(audited: AuditedShard, row: LogRow) -> None:
    header, state = row.header, audited.state
    if header.kind == BATCH:
        if row.unknown_families:
            raise LogBroken(header.offset, f"unknown column families: {', '.join(row.unknown_families)}")
        digests.add_changes(state.sums, row.slot, row.next, row.prev)
    elif header.kind == DIGEST_BASE:
        _set_sums(audited, row)
    state.pass_record(header.kind or "")


def _set_sums(audited: AuditedShard, row: LogRow) -> None:
    try:
        audited.state.sums = digests.from_sparse(len(audited.families), row.base_slots, row.base_sums)
    except ValueError as error:
        raise LogBroken(row.header.offset, f"malformed DigestBase: {error}") from error
