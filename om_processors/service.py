"""The Object Manager as a service of ``replicated_db``: a proposal in, operations and an encoded Response out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from om_processors.commands import command
from om_processors.context import Allocation, PreExecuteContext
from om_processors.errors import OMError
from om_processors.execute import execute
from replicated_db.column_families import Families, families
from replicated_db.leader import Executed, Proposal, Refusal
from replicated_db.merge import ADD_INT64
from replicated_db.transaction import Transaction
from schemas import result_codes as codes
from schemas.codec import encode_at
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.features import INITIAL
from schemas.messages import Request, Response, ShardCommand

BLOCK_SIZE_BYTES = 256 * 1024 * 1024
"""Size of an allocated block, as Ozone's default."""

Choose = Callable[[], Allocation]
"""Says what blocks may be allocated on now."""

OM_FAMILIES: Families = families(OM_COLUMN_FAMILIES[1:], [ADD_INT64])

STATUS_OF = {
    Refusal.EXPIRED: codes.REQUEST_EXPIRED,
    Refusal.CALL_ID_REUSED: codes.CALL_ID_REUSED,
    Refusal.TOO_LARGE: codes.REQUEST_TOO_LARGE,
    Refusal.FAILED: codes.INTERNAL_ERROR,
    Refusal.PREPARED: codes.PREPARED,
}


def always(pipelines: Iterable[str]) -> Choose:
    """Return a choice that is always the same: the pipelines of the settings, by position."""
    found = Allocation(pipelines=tuple(enumerate(pipelines)), closed_containers=frozenset())
    return lambda: found


class OMService:
    """Executes requests of one shard."""

    def __init__(
        self, *, shard: int, shards: int, pipelines: tuple[str, ...], choose: Choose | None = None,
        block_bytes: int = BLOCK_SIZE_BYTES,
    ) -> None:  # fmt: skip
        """Make the service of a shard.

        ``choose`` says which pipelines take blocks now, and must not block; without it all ``pipelines`` do, by position.
        """
        self._shard = shard
        self._shards = shards
        self._choose = choose or always(pipelines)
        self._block_bytes = block_bytes

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a request; a refused one keeps nothing and is answered with its result code."""
        request: Request = proposal.body
        status, message, result = codes.OK, "", None
        try:
            if isinstance(request.body, ShardCommand):
                command(request.body, transaction, self._shard)
            else:
                context = PreExecuteContext(
                    shard=self._shard, shards=self._shards, now_ms=timestamp_ms, index=transaction.index,
                    allocation=self._choose(), block_size_bytes=self._block_bytes,
                )  # fmt: skip
                result = execute(request, transaction, context)
        except OMError as error:
            status, message = error.status, error.message
        response = Response(
            client_id=request.client_id, call_id=request.call_id, shard=self._shard, index=transaction.index,
            status=status, message=message, result=result,
        )  # fmt: skip
        return Executed(response=encode_at(response, transaction.feature_level), keep=status == codes.OK)

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode an answer of the replicated database's own."""
        return refusal_response(proposal.body, self._shard, STATUS_OF[refusal], message, index)


def refusal_response(request: Request, shard: int, status: str, message: str, index: int = -1) -> bytes:
    """Encode an error response, in its first version: readers of every level know that, and it lacks nothing here."""
    return encode_at(
        Response(
            client_id=request.client_id, call_id=request.call_id, shard=shard, index=index,
            status=status, message=message, result=None,
        ),
        INITIAL,
    )  # fmt: skip
