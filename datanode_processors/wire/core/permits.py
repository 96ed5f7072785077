"""Who may ask a datanode for what, by the peer's certificate (decision 0073). Pure.

It is asked on TLS connections alone: on a plain one nobody is known, and nothing is refused here.

1. Administrative requests, which open, close, copy and delete, are for Object Manager nodes.
2. What members say to each other is for datanodes. A datanode that forwards a stream or a request must be a member of
   the pipeline, and a forwarded request names its own sender.
3. Bytes are written and read by clients and operators, and read by datanodes. A peer without a certificate may do so
   only if it is let in at all, which is a setting of its own.
4. What is in no row is refused: a new request is for nobody until somebody has written here whom it is for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from datanode_processors.errors import BlockError
from schemas import stream_errors
from schemas.records.datanode import (
    BlockTokenKeys,
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    FetchContainer,
    Forwarded,
    GetBlock,
    ListContainer,
    OpenPipeline,
    OpenStream,
    PutBlock,
    PutBlocks,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
    WatchBlocks,
    WriteBlocks,
    WriteChunk,
)
from schemas.security.certificates import PeerIdentity, Role

_OM = frozenset({Role.OM})
_DATANODE = frozenset({Role.DATANODE})
_WRITERS = frozenset({Role.CLIENT, Role.ADMIN})
_READERS = _WRITERS | _DATANODE

MAY: Mapping[type, frozenset[Role]] = {
    OpenPipeline: _OM,
    ClosePipeline: _OM,
    CloseContainer: _OM,
    FetchContainer: _OM,
    DeleteBlocks: _OM,
    BlockTokenKeys: _OM,
    Forwarded: _DATANODE,
    OpenStream: _WRITERS | _DATANODE,
    PutBlock: _WRITERS,
    WriteChunk: _WRITERS,
    WatchBlock: _WRITERS,
    WriteBlocks: _WRITERS | _DATANODE,
    WatchBlocks: _WRITERS | _DATANODE,
    PutBlocks: _WRITERS,
    GetBlock: _READERS,
    ReadBlock: _READERS,
    SalvageBlock: _READERS,
    ListContainer: frozenset({Role.DATANODE, Role.ADMIN}),
}
"""Roles that may send a request."""
NEEDS_NO_TOKEN = frozenset({Role.OM, Role.DATANODE, Role.ADMIN})
"""Roles that need no block tokens: what they may ask for, they may ask for about every block (decision 0074)."""


def check_request(identity: PeerIdentity | None, request: object) -> None:
    """Raise PERMISSION_DENIED unless a peer may send a request; a peer without a certificate counts as a client."""
    role = Role.CLIENT if identity is None else identity.role
    if role not in MAY.get(type(request), frozenset()):
        who = "a peer without a certificate" if identity is None else str(identity)
        raise BlockError(stream_errors.PERMISSION_DENIED, f"a {type(request).__name__} is not for {who} to send")
    if isinstance(request, Forwarded) and identity is not None and request.by != identity.name:
        raise BlockError(
            stream_errors.PERMISSION_DENIED, f"a request forwarded by {request.by!r} comes from {identity}"
        )


def check_member(identity: PeerIdentity | None, partition: int, members: Collection[str]) -> None:
    """Raise PERMISSION_DENIED for a datanode that forwards to a pipeline of which it is no member."""
    if identity is not None and identity.role is Role.DATANODE and identity.name not in members:
        raise BlockError(
            stream_errors.PERMISSION_DENIED,
            f"{identity} is no member of the pipeline of partition {partition}: {', '.join(sorted(members))} are",
        )
