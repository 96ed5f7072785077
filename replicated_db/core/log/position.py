"""Where a replica stands in its log: one row of the transaction-info family, written with every batch.

Rows of ``transactionInfoTable`` (replica-local, in no digest)::

    #POSITION      this module's encoding of Position
    #ANCHOR        Position after the last counting record. Written with a claim, because a claim carries no chain
    #KEYINDEX      <timestamp ms>#<managed index>, for people and for tools that know Ozone's row of this name
    #DIGEST/<cf>   256 sums of 8 bytes big-endian: the incremental digest of one family
    #LISTEDSUMS    slots and sums that have changed since, 12 bytes each (``core/tables/digest_rows.py``)
    #GENESIS       the Genesis record's value
    #MEMBERS       the last Members record's value; likewise #LEVEL (FeatureLevel) and #PREPARED (Prepared)
    #MODE/<type>   the last Mode record's value for a request type
    #FLAG          the standing evidence, as an encoded AuditReport; absent if the replica is healthy
    #UNFLAGGED     what 'stratolog admin unflag' found when it last took the flag away, in JSON
    #INSTALLED     which peer's checkpoint this replica has installed last, in JSON; absent if it has read the whole log
    #BASES         the last records at which a log can begin (``core/trimming/bases.py``)
    #REQUEST       where the next leader may resume reading requests: offset, leader epoch, request hash
"""

from __future__ import annotations

import struct

from replicated_db.core.tables.digests import FIRST_CHAIN
from schemas.records.log import RequestPosition
from schemas.records.record import record

POSITION_KEY = b"#POSITION"
ANCHOR_KEY = b"#ANCHOR"
KEY_INDEX_KEY = b"#KEYINDEX"
GENESIS_KEY = b"#GENESIS"
MEMBERS_KEY = b"#MEMBERS"
LEVEL_KEY = b"#LEVEL"
PREPARED_KEY = b"#PREPARED"
MODE_PREFIX = b"#MODE/"
FLAG_KEY = b"#FLAG"
UNFLAGGED_KEY = b"#UNFLAGGED"
INSTALLED_KEY = b"#INSTALLED"
BASES_KEY = b"#BASES"
BARRIER_KEY = b"#BARRIER"
REQUEST_KEY = b"#REQUEST"

_REQUEST = struct.Struct(">qi16s")
_FIXED = struct.Struct(">q16sq16sq32sqqHHH")


@record
class Position:
    """What a replica knows of the log up to its last valid claim or counting record.

    ``offset`` is that record's offset (-1 before the first), ``record_hash`` the XXH3-128 of its value. ``topic_id``
    names the incarnation of the topic. ``term`` and ``nonce`` are the current claim's, ``seq`` is the number of its
    last counted record, ``leader`` and ``address`` are the claim's node. ``index`` and ``timestamp_ms`` are those of
    the last effective batch.
    """

    topic_id: str = ""
    offset: int = -1
    record_hash: bytes = bytes(16)
    term: int = 0
    nonce: bytes = bytes(16)
    seq: int = 0
    chain: bytes = FIRST_CHAIN
    index: int = 0
    timestamp_ms: int = 0
    leader: str = ""
    address: str = ""

    def __hash__(self) -> int:
        return hash((self.offset, self.record_hash))

    def encode(self) -> bytes:
        """Return the row's bytes."""
        topic_id, leader, address = self.topic_id.encode(), self.leader.encode(), self.address.encode()
        fixed = _FIXED.pack(
            self.offset, self.record_hash, self.term, self.nonce, self.seq, self.chain,
            self.index, self.timestamp_ms, len(topic_id), len(leader), len(address),
        )  # fmt: skip
        return fixed + topic_id + leader + address

    @classmethod
    def decode(cls, data: bytes) -> Position:
        """Restore a position; raises struct.error or UnicodeDecodeError for foreign bytes."""
        offset, record_hash, term, nonce, seq, chain, index, timestamp_ms, *lengths = _FIXED.unpack_from(data)
        texts, start = [], _FIXED.size
        for length in lengths:
            texts.append(data[start : start + length].decode())
            start += length
        return cls(
            topic_id=texts[0], offset=offset, record_hash=record_hash, term=term, nonce=nonce, seq=seq, chain=chain,
            index=index, timestamp_ms=timestamp_ms, leader=texts[1], address=texts[2],
        )  # fmt: skip

    def key_index(self) -> bytes:
        """Return the #KEYINDEX row."""
        return b"%d#%d" % (self.timestamp_ms, self.index)


def encode_request_position(position: RequestPosition) -> bytes:
    """Return the #REQUEST row."""
    return _REQUEST.pack(position.offset, position.leader_epoch, position.hash)


def decode_request_position(data: bytes) -> RequestPosition:
    """Restore the #REQUEST row."""
    offset, leader_epoch, request_hash = _REQUEST.unpack(data)
    return RequestPosition(offset=offset, leader_epoch=leader_epoch, hash=request_hash)
