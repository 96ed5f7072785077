"""The Object Manager's executor for late validation (design, section 6). Pure.

It runs the same request code as the leader (``execute``), in two parts. ``prepare`` does what only a leader may do
(preExecute), and returns the bytes that are logged. ``execute`` is what every replica does with those bytes. If
preExecute refuses, the refusal is logged: it takes an index and has a retry row, as on the leader, and no replica
judges the request again.
"""

from __future__ import annotations

from om_processors.errors import OMError
from om_processors.execution.execute import apply_request, pre_execute, require_its_level, require_signing
from om_processors.execution.service import STATUS_OF, executed, refusal_response
from om_processors.namespace.access import ACCESS_RULES
from om_processors.namespace.context import Contexts, RequestPreparation, Result
from replicated_db.core.errors import BrokenLog
from replicated_db.core.execution.service import Executed, Proposal, Refusal, error_text
from replicated_db.core.execution.transaction import Transaction
from schemas import result_codes as codes
from schemas.codecs.codec import Undecodable, decode_as, encode_at
from schemas.records.messages import PreparedRequest, Request


class OMExecutor:
    """Prepares and executes logged requests of one shard."""

    def __init__(self, contexts: Contexts) -> None:
        """Make the executor of the shard of ``contexts``."""
        self._contexts = contexts
        self._shard = contexts.shard

    def prepare(self, proposal: Proposal, timestamp_ms: int, index: int, feature_level: int) -> bytes:
        """Run preExecute and encode its choices, or its refusal."""
        request: Request = proposal.body
        context = self._contexts.at(timestamp_ms, index)
        try:
            prepared = pre_execute(request, context, proposal.standing)
            if prepared.standing is not None:  # below that level its field would not be written
                require_signing(feature_level)
            require_its_level(feature_level, request.body)  # the same of a request's fields
        except OMError as error:
            return _refused(request, error.status, error.message, feature_level)
        except Exception as error:  # as on the leader, it becomes the answer
            return _refused(request, STATUS_OF[Refusal.FAILED], error_text(error), feature_level)
        return encode_at(
            PreparedRequest(
                request=encode_at(request, feature_level), object_id=prepared.object_id, session_id=prepared.session_id,
                blocks=prepared.blocks, status=codes.OK, message="", standing=prepared.standing,
            ),
            feature_level,
        )  # fmt: skip

    def execute(self, prepared: bytes, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Authorize, validate and execute a prepared request; a refused one changes nothing.

        Raises BrokenLog if the bytes are not a prepared request.
        """
        logged, request = _decoded(prepared)
        status, message = logged.status, logged.message
        result: Result = None
        if status == codes.OK:
            try:
                result = apply_request(
                    RequestPreparation(
                        body=request.body, caller=request.caller, index=transaction.index, now_ms=timestamp_ms,
                        object_id=logged.object_id, session_id=logged.session_id, blocks=logged.blocks,
                        standing=logged.standing,
                    ),
                    transaction,
                    ACCESS_RULES,
                )  # fmt: skip
            except OMError as error:
                status, message = error.status, error.message
        return executed(request, transaction, self._shard, status, message, result)

    def refuse(self, prepared: bytes, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode the answer to a refusal by the replicated database itself."""
        return refusal_response(_decoded(prepared)[1], self._shard, STATUS_OF[refusal], message, index)


def _refused(request: Request, status: str, message: str, level: int) -> bytes:
    encoded = encode_at(request, level)
    return encode_at(
        PreparedRequest(request=encoded, object_id=0, session_id=0, blocks=[], status=status, message=message), level
    )


def _decoded(prepared: bytes) -> tuple[PreparedRequest, Request]:
    try:
        logged = decode_as(PreparedRequest, prepared)
        return logged, decode_as(Request, logged.request)
    except Undecodable as error:
        raise BrokenLog(f"a logged request: {error}") from error
