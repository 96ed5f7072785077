"""The Object Manager as a service of ``replicated_db``: a proposal in, operations and an encoded Response out. Pure."""

from __future__ import annotations

from om_processors.commands import command
from om_processors.context import Contexts
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

OM_FAMILIES: Families = families(OM_COLUMN_FAMILIES[1:], [ADD_INT64])

STATUS_OF = {
    Refusal.EXPIRED: codes.REQUEST_EXPIRED,
    Refusal.CALL_ID_REUSED: codes.CALL_ID_REUSED,
    Refusal.TOO_LARGE: codes.REQUEST_TOO_LARGE,
    Refusal.FAILED: codes.INTERNAL_ERROR,
    Refusal.PREPARED: codes.PREPARED,
}


class OMService:
    """Executes requests of one shard."""

    def __init__(self, contexts: Contexts) -> None:
        """Make the service of the shard of ``contexts``."""
        self._contexts = contexts
        self._shard = contexts.shard

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a request; a refused one keeps nothing and is answered with its result code."""
        request: Request = proposal.body
        status, message, result = codes.OK, "", None
        try:
            if isinstance(request.body, ShardCommand):
                command(request.body, transaction, self._shard)
            else:
                context = self._contexts.at(timestamp_ms, transaction.index)
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
