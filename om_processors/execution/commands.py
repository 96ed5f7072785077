"""Operators' commands: requests that change how a shard is run.

Each logs a control record right before its batch. Pure.

Each command is idempotent: if nothing is left to change, it answers OK and logs nothing. So an operator may repeat a
command over several shards that was interrupted.
"""

from __future__ import annotations

from functools import singledispatch

from om_processors.errors import OMError
from om_processors.execution.levels import require_level
from om_processors.execution.requests import LATE_REQUEST_TYPES
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from replicated_db.core.errors import DigestsDiffer, NotSettled
from replicated_db.core.execution.service import shortened
from replicated_db.core.execution.transaction import CHECKPOINT_NAME, Transaction
from schemas import features
from schemas import result_codes as codes
from schemas.records.log import FORCED, LATE_MODE, REQUEST_MODES, FeatureLevel, Members, Mode, Prepared
from schemas.records.messages import (
    OWN_DIGESTS,
    AddNode,
    CancelPrepare,
    Finalize,
    LogDigestBase,
    Prepare,
    RemoveNode,
    SetRequestMode,
    ShardCommand,
)

MAX_MEMBERS = 31
"""Nodes that hold a replica of a shard."""

MAX_NODE_NAME_CHARACTERS = 63
MAX_BASIS_CHARACTERS = 200
"""The basis of a digest base."""


def command(body: ShardCommand, transaction: Transaction, shard: int) -> None:
    """Carry out a command on shard ``shard``.

    Raises OMError: WRONG_SHARD, NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION, INVALID_REQUEST, INDEX_MOVED,
    DIGESTS_DIFFER.
    """
    try:
        _command(body, transaction, shard)
    except OMError as error:
        raise OMError(error.status, shortened(error.message)) from error


def _command(body: ShardCommand, transaction: Transaction, shard: int) -> None:
    name = type(body).__name__
    if body.shard != shard:
        raise OMError(codes.WRONG_SHARD, f"{name} of shard {body.shard} sent to shard {shard}")
    require_level(transaction.feature_level, features.level_of_command(body), name)
    _carry_out(body, transaction)


@singledispatch
def _carry_out(body: object, transaction: Transaction) -> None:  # noqa: ARG001 - the registered ones use it
    raise OMError(codes.NOT_SUPPORTED_OPERATION, f"no command of type {type(body).__name__}")


@_carry_out.register
def _(body: LogDigestBase, transaction: Transaction) -> None:
    is_own = body.index == OWN_DIGESTS
    if is_own:
        # The Members record that belongs to a base needs this level.
        require_level(transaction.feature_level, features.OPERATIONS, "a base of the log")
        if body.slots or body.sums:
            raise OMError(codes.INVALID_REQUEST, "a base of the leader's own digests is asked for without sums")
    elif body.index != transaction.index - 1:
        raise OMError(
            codes.INDEX_MOVED, f"the digests are of index {body.index}, the shard is at {transaction.index - 1}"
        )
    if len(body.basis) > MAX_BASIS_CHARACTERS:
        raise OMError(codes.INVALID_REQUEST, f"the basis has {len(body.basis)} characters, over {MAX_BASIS_CHARACTERS}")
    try:
        if is_own:
            transaction.base(body.basis)
        else:
            transaction.digest_base(body.slots, body.sums, body.basis, forced=body.basis.startswith(FORCED))
    except NotSettled as error:
        raise OMError(codes.INDEX_MOVED, f"{error}: ask again") from error
    except DigestsDiffer as error:
        message = (
            f"{error}. Nothing was logged: replicas that agree with the leader would be flagged, and could lead no "
            "more. "
            "Rebuild the replicas that are wrong first; 'stratolog admin digest-base --force' logs it all the same"
        )
        raise OMError(codes.DIGESTS_DIFFER, message) from error


@_carry_out.register
def _(body: AddNode, transaction: Transaction) -> None:
    replicas = transaction.state.replicas
    if not 1 <= len(body.node) <= MAX_NODE_NAME_CHARACTERS:
        raise OMError(
            codes.INVALID_REQUEST, f"a node's name has 1 to {MAX_NODE_NAME_CHARACTERS} characters, not {len(body.node)}"
        )
    if body.node in replicas:
        return
    if len(replicas) >= MAX_MEMBERS:
        raise OMError(codes.INVALID_REQUEST, f"there are {len(replicas)} members already, at most {MAX_MEMBERS}")
    transaction.control(Members, replicas=[*replicas, body.node])


@_carry_out.register
def _(body: RemoveNode, transaction: Transaction) -> None:
    replicas = transaction.state.replicas
    if body.node not in replicas:
        return
    if len(replicas) == 1:
        raise OMError(codes.INVALID_REQUEST, f"{body.node} is the last member of the shard")
    transaction.control(Members, replicas=[name for name in replicas if name != body.node])


@_carry_out.register
def _(body: Prepare, transaction: Transaction) -> None:
    in_force = transaction.state.prepared
    if in_force is not None and in_force != body.checkpoint:
        raise OMError(codes.INVALID_REQUEST, f"the shard is prepared already, with the checkpoint {in_force}")
    if in_force is None and body.checkpoint.startswith(CHECKPOINT_PREFIX):
        raise OMError(
            codes.INVALID_REQUEST,
            f"illegal checkpoint name {body.checkpoint!r}: names that begin with {CHECKPOINT_PREFIX!r} are those of "
            "snapshots",
        )
    if not CHECKPOINT_NAME.fullmatch(body.checkpoint):
        raise OMError(codes.INVALID_REQUEST, f"illegal checkpoint name {body.checkpoint!r}")
    if in_force is None:
        transaction.control(Prepared, prepared=True, checkpoint=body.checkpoint)
    # A repeated command takes the checkpoint again: the batch may have been lost with the leader that logged the
    # record.
    transaction.checkpoint(body.checkpoint)


@_carry_out.register
def _(body: CancelPrepare, transaction: Transaction) -> None:  # noqa: ARG001 - chosen by its type
    if transaction.state.prepared is not None:
        transaction.control(Prepared, prepared=False, checkpoint="")


@_carry_out.register
def _(body: Finalize, transaction: Transaction) -> None:
    level = transaction.state.feature_level
    if body.level > features.LATEST:
        raise OMError(
            codes.INVALID_REQUEST,
            f"feature level {body.level} is not known to the leader's software, which knows {features.LATEST}",
        )
    if body.level < level:
        raise OMError(codes.INVALID_REQUEST, f"the shard is at feature level {level} already: levels only rise")
    if body.level > level:
        transaction.control(FeatureLevel, level=body.level)


@_carry_out.register
def _(body: SetRequestMode, transaction: Transaction) -> None:
    if body.request_type not in LATE_REQUEST_TYPES:
        known = ", ".join(LATE_REQUEST_TYPES)
        raise OMError(
            codes.INVALID_REQUEST, f"no mode can be set for requests of type {body.request_type!r}; for: {known}"
        )
    if body.mode not in REQUEST_MODES:
        raise OMError(codes.INVALID_REQUEST, f"mode {body.mode!r} is none of {', '.join(REQUEST_MODES)}")
    # Below that level the requests themselves cannot be written to the log, so the leader would have to refuse them.
    needed = features.level_of_type(body.request_type)
    require_level(transaction.feature_level, needed, f"a mode of {body.request_type}")
    if (body.mode == LATE_MODE) != (body.request_type in transaction.state.late):
        transaction.control(Mode, request_type=body.request_type, mode=body.mode)
