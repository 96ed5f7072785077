"""The Object Manager as a service of ``replicated_db``: a proposal in, operations and an encoded Response out. Pure."""

from __future__ import annotations

from om_processors.errors import OMError
from om_processors.execution.commands import command
from om_processors.execution.execute import execute
from om_processors.namespace.access import ACCESS_RULES
from om_processors.namespace.context import Contexts, Result
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Executed, Proposal, Refusal
from replicated_db.core.tables.column_families import Families, families
from replicated_db.core.tables.merge import ADD_INT64
from schemas import result_codes as codes
from schemas.codecs.codec import encode_at
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.features import INITIAL
from schemas.records.messages import SHARD_COMMANDS, Request, Response

OM_FAMILIES: Families = families(OM_COLUMN_FAMILIES[1:], [ADD_INT64])

_COMMANDS = frozenset(SHARD_COMMANDS)

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
        """Execute a request; a refused one changes nothing and is answered with its result code."""
        request: Request = proposal.body
        status, message, result = codes.OK, "", None
        try:
            if type(request.body) in _COMMANDS:
                command(request.body, transaction, self._shard)  # type: ignore[arg-type]  # its type says that it is one
            else:
                context = self._contexts.at(timestamp_ms, transaction.index)
                result = execute(request, transaction, context, ACCESS_RULES, proposal.standing)
        except OMError as error:
            status, message = error.status, error.message
        return executed(request, transaction, self._shard, status, message, result)

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode the answer to a refusal by the replicated database itself."""
        return refusal_response(proposal.body, self._shard, STATUS_OF[refusal], message, index)


def executed(
    request: Request, transaction: Transaction, shard: int, status: str, message: str, result: Result
) -> Executed:
    """Return what an execution comes to: the encoded answer, and whether its changes are kept (``status`` is OK)."""
    response = Response(
        client_id=request.client_id, call_id=request.call_id, shard=shard, index=transaction.index, status=status,
        message=message, result=result,
    )  # fmt: skip
    return Executed(response=encode_at(response, transaction.feature_level), keep=status == codes.OK)


def refusal_response(request: Request, shard: int, status: str, message: str, index: int = -1) -> bytes:
    """Encode an error response in its first version, which readers of every level know and which lacks nothing here."""
    return encode_at(
        Response(
            client_id=request.client_id, call_id=request.call_id, shard=shard, index=index,
            status=status, message=message, result=None,
        ),
        INITIAL,
    )  # fmt: skip
