"""Executing a request: preExecute, then authorize, validate and operations (design, section 4).

Pure: everything that differs from one execution to another is an argument. A refused request raises OMError; the caller
then drops the transaction, and the error is the response.

    prepared = pre_execute(request, context)     the leader's choices, as a value that could be logged
    result   = apply_request(prepared, tx)       the same on every replica with equal state
"""

from __future__ import annotations

from functools import lru_cache

from om_processors.errors import OMError
from om_processors.execution.levels import require_level
from om_processors.execution.requests import HANDLERS
from om_processors.namespace import ids
from om_processors.namespace.context import (
    ALLOW_ALL,
    Authorizer,
    PreExecuteContext,
    RequestPreparation,
    Result,
    RowTransaction,
)
from replicated_db.core.execution.service import shortened
from schemas.features import ACCESS_CONTROL, LATEST, level_of_command
from schemas.records.identity import ProvenCaller
from schemas.records.messages import WITHOUT_VOLUME, Request, RequestBody, shard_of_request
from schemas.result_codes import NOT_SUPPORTED_OPERATION, WRONG_SHARD
from schemas.sharding import shard_of

SHARD_CACHE_ENTRIES = 4096


_shard_of = lru_cache(maxsize=SHARD_CACHE_ENTRIES)(shard_of)


def _no_handler(body: RequestBody) -> OMError:
    return OMError(NOT_SUPPORTED_OPERATION, f"no handler for requests of type {type(body).__name__}")


def pre_execute(
    request: Request, context: PreExecuteContext, standing: ProvenCaller | None = None
) -> RequestPreparation:
    """Check a request without looking at the state, and choose its time, ids and blocks.

    ``standing`` is what the leader has found out about the caller.

    Raises OMError: NOT_SUPPORTED_OPERATION, INVALID_*, WRONG_SHARD for a volume of another shard.
    """
    body, shard, index = request.body, context.shard, context.index
    try:
        if type(body) not in HANDLERS:
            raise _no_handler(body)
        handler = HANDLERS[type(body)]
        handler.check(body)
        if type(body) in WITHOUT_VOLUME:
            if (its_shard := shard_of_request(body, context.shards)) != shard:
                raise OMError(WRONG_SHARD, f"{type(body).__name__} of shard {its_shard} sent to shard {shard}")
        elif (its_shard := _shard_of(volume := body.volume, context.shards)) != shard:  # type: ignore[union-attr]
            raise OMError(WRONG_SHARD, f"volume /{volume} lives in shard {its_shard}, not in {shard}")
        if handler.admit is not None:
            handler.admit(body, context)
        object_id = ids.object_id(shard, index)
        return RequestPreparation(
            body=body,
            caller=request.caller,
            index=index,
            now_ms=context.now_ms,
            object_id=object_id,
            session_id=object_id | ids.SESSION_SUB,  # ids.session_id
            blocks=handler.blocks(body, context, object_id) if handler.blocks is not None else [],
            standing=standing,
        )
    except OMError as error:
        # The leader alone answers this, in both modes, so the text may be cut here. Later messages quote names that
        # have been checked, and are not cut.
        raise OMError(error.status, shortened(error.message)) from error


def apply_request(prepared: RequestPreparation, tx: RowTransaction, authorizer: Authorizer = ALLOW_ALL) -> Result:
    """Authorize and validate a prepared request against the state, write its operations, return its result.

    Raises OMError if the request is refused, also if it needs a later feature level than the shard's; ValueError if the
    transaction was minted for another index.
    """
    if prepared.index != tx.index:
        raise ValueError(f"a request prepared for index {prepared.index} meets a transaction of index {tx.index}")
    body, level = prepared.body, tx.feature_level
    if prepared.standing is not None:
        require_signing(level)
    if level < LATEST:
        require_its_level(level, body)
    authorizer.authorize(prepared, tx)
    if type(body) not in HANDLERS:
        raise _no_handler(body)
    return HANDLERS[type(body)].apply(body, prepared, tx)


def require_its_level(level: int, body: RequestBody) -> None:
    """Raise OMError unless a request, with all that it says, may be executed: an earlier version lacks its fields."""
    require_level(level, level_of_command(body), type(body).__name__)


def require_signing(level: int) -> None:
    """Raise OMError unless signed requests may be executed: below that level no replica could be told who called."""
    require_level(level, ACCESS_CONTROL, "a signed request")


def execute(
    request: Request, tx: RowTransaction, context: PreExecuteContext, authorizer: Authorizer = ALLOW_ALL,
    standing: ProvenCaller | None = None,
) -> Result:  # fmt: skip
    """Execute a request as the leader does: :func:`pre_execute`, then :func:`apply_request`."""
    return apply_request(pre_execute(request, context, standing), tx, authorizer)
