"""How the log of a restored shard begins (decision 0048).

The new log goes on where the backup's ended, as if its next leader had written to other offsets: a claim of the next
term, a DigestBase of the restored rows, and the new members. It is trimmed right before the base. So it is a trimmed
log like any other: nodes, auditor and tools know how to read it, and terms, indexes, chain and batch time go on rising.

Indexes go on INDEX_GAP later. Ids come from indexes, and the cluster that was backed up may have given out more of them
since. Datanodes may hold blocks of those ids.

All of it is a function of the backup and of the new topic. So a restore that was interrupted writes the same records
again, and recognizes those that it has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from replicated_db.core.log.position import Position
from replicated_db.core.tables.digests import DigestSlots, next_chain
from schemas.codecs.codec import encode_at
from schemas.features import OPERATIONS
from schemas.records.log import NONCE_BYTES, DigestBase, LeaderClaim, Members

INDEX_GAP = 2**36
"""Indexes that a restored shard leaves out: more than the old cluster can have used since the backup."""

MAX_INDEX = 2**44 - 1
"""Highest managed index: ids have 44 bits for it."""

CLAIMER = "restore"
"""The name under which a restore claims; no node has led by it."""

BASE_OFFSET = 1
"""Offset of the base, to which the new log is trimmed: the claim lies before it."""


class TooManyRestores(ValueError):
    """A shard has no indexes left for another gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """The first records of a new log, at the offsets from 0 on, and the position from which they are applied."""

    before: Position
    values: tuple[bytes, bytes, bytes]


def new_log(
    position: Position, sums: DigestSlots, members: Sequence[str], *, topic_id: str, backup: str, created_at_ms: int,
    level: int,
) -> NewLog:  # fmt: skip
    """Return how a log begins that goes on from ``position``, with rows of these digest sums.

    ``backup`` names the backup, ``created_at_ms`` is when it was made, and ``level`` the shard's feature level. Raises
    TooManyRestores.
    """
    index = position.index + INDEX_GAP
    if index + INDEX_GAP > MAX_INDEX:
        raise TooManyRestores(f"index {position.index} leaves no room: {MAX_INDEX} is the highest")
    before = replace(position, topic_id=topic_id, offset=-1, record_hash=bytes(len(position.record_hash)), index=index)
    sealed = partial(encode_at, level=max(level, OPERATIONS))  # Members records came with that level
    term, nonce = position.term + 1, _nonce(position, topic_id, members)
    claim = sealed(LeaderClaim(term=term, nonce=nonce, node=CLAIMER, address="", claimed_at_ms=created_at_ms))
    chain = next_chain(position.chain, claim)
    base = sealed(
        DigestBase(
            term=term, nonce=nonce, seq=1, prev_chain=chain, index=index, slots=sums.numbers, sums=sums.sums,
            basis=f"restored from backup {backup}",
        )
    )  # fmt: skip
    chain = next_chain(chain, base)
    known = sealed(Members(term=term, nonce=nonce, seq=2, prev_chain=chain, index=index, replicas=list(members)))
    return NewLog(before=before, values=(claim, base, known))


def _nonce(position: Position, topic_id: str, members: Sequence[str]) -> bytes:
    """Return the claim's nonce: another one for each log, position and set of members."""
    said = "\n".join([topic_id, *members]).encode()
    return sha256(position.encode() + said).digest()[:NONCE_BYTES]
