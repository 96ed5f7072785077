"""Users and delegation tokens (decision 0071). Their rows are in shard 0; no secret is anywhere in the log.

A generation and a token's number are the managed indexes of the requests that made them, so none comes twice, not even
for a user who was removed and made again. Dates are as Hadoop's: a token lasts a day, and renewed up to seven.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.namespace import users
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from schemas.access.acl import name_fault
from schemas.access.credentials import OPERATOR
from schemas.column_families import IDENTITY_TABLE
from schemas.records.identity import (
    CancelDelegationToken,
    CreateUser,
    GetDelegationToken,
    ProvenCaller,
    RemoveUser,
    RenewDelegationToken,
    RotateUser,
    TokenRow,
    UserRow,
)
from schemas.result_codes import (
    INVALID_REQUEST,
    INVALID_TOKEN,
    NOT_SUPPORTED_OPERATION,
    PERMISSION_DENIED,
    TOKEN_EXPIRED,
    USER_ALREADY_EXISTS,
    USER_NOT_FOUND,
)

MAX_GROUPS = 32
"""Most groups of a user."""
MAX_OVERLAP_MS = 30 * 24 * 3600 * 1000
"""Longest time for which the secret before a rotation is taken besides."""
MAX_TOKENS_PER_USER = 100
"""Most delegation tokens of a user that have not expired."""
TOKEN_LIFETIME_MS = 24 * 3600 * 1000
"""How long a delegation token lasts, and how much longer each renewal lets it."""
TOKEN_MAX_AGE_MS = 7 * TOKEN_LIFETIME_MS
"""After this time a delegation token cannot be renewed."""


# ---- users


def _check_user(user: str) -> None:
    if (fault := name_fault(user)) is not None:
        raise OMError(INVALID_REQUEST, fault)
    if user == OPERATOR:
        raise OMError(INVALID_REQUEST, f"{OPERATOR} is whoever has the cluster's secret, and no user of the tables")


def _check_create(body: CreateUser) -> None:
    _check_user(body.user)
    if len(body.groups) > MAX_GROUPS:
        raise OMError(INVALID_REQUEST, f"{len(body.groups)} groups of user {body.user}; at most {MAX_GROUPS}")
    for group in body.groups:
        if (fault := name_fault(group)) is not None:
            raise OMError(INVALID_REQUEST, fault)


def _create(body: CreateUser, prepared: RequestPreparation, tx: RowTransaction) -> None:
    if users.get_user(tx, body.user) is not None:
        raise OMError(USER_ALREADY_EXISTS, f"user {body.user} exists")
    row = UserRow(
        user=body.user,
        generation=prepared.index,
        previous_generation=0,
        previous_until_ms=0,
        administrator=body.administrator,
        groups=sorted(set(body.groups)),
        creation_time_ms=prepared.now_ms,
        modification_time_ms=prepared.now_ms,
    )
    users.put_user(tx, row)


def _require_user(tx: RowTransaction, user: str) -> UserRow:
    row = users.get_user(tx, user)
    if row is None:
        raise OMError(USER_NOT_FOUND, f"no user {user}")
    return row


def _check_rotate(body: RotateUser) -> None:
    _check_user(body.user)
    if not 0 <= body.overlap_ms <= MAX_OVERLAP_MS:
        raise OMError(INVALID_REQUEST, f"an overlap of {body.overlap_ms} ms is not in 0..{MAX_OVERLAP_MS}")


def _rotate(body: RotateUser, prepared: RequestPreparation, tx: RowTransaction) -> None:
    row = _require_user(tx, body.user)
    after = replace(
        row,
        generation=prepared.index,
        previous_generation=row.generation,
        previous_until_ms=prepared.now_ms + body.overlap_ms,
        modification_time_ms=prepared.now_ms,
    )
    users.put_user(tx, after)


def _remove(body: RemoveUser, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    row = _require_user(tx, body.user)
    for token in users.tokens_of(tx, row.user):
        users.delete_token(tx, token)
    tx.delete(IDENTITY_TABLE, users.user_key(row.user))


# ---- delegation tokens


def _standing_of_owner(prepared: RequestPreparation, what: str) -> ProvenCaller:
    """Return the standing of a caller that has signed with its own secret; raises OMError for anybody else."""
    standing = prepared.standing
    if standing is None:
        raise OMError(NOT_SUPPORTED_OPERATION, f"{what} is for signed requests: the nodes have 'auth = none'")
    if standing.token:
        raise OMError(PERMISSION_DENIED, f"{what} is for a user's own secret, and the request is signed by a token")
    return standing


def _check_get(body: GetDelegationToken) -> None:
    if body.renewer and (fault := name_fault(body.renewer)) is not None:
        raise OMError(INVALID_REQUEST, fault)


def _get(body: GetDelegationToken, prepared: RequestPreparation, tx: RowTransaction) -> None:
    standing = _standing_of_owner(prepared, "a delegation token")
    owner, now_ms = prepared.caller, prepared.now_ms
    if not standing.generation:
        raise OMError(PERMISSION_DENIED, f"{owner} has the cluster's secret, and needs no delegation token")
    there = 0
    for token in users.tokens_of(tx, owner):
        if token.expiry_time_ms < now_ms:
            users.delete_token(tx, token)
        else:
            there += 1
    if there >= MAX_TOKENS_PER_USER:
        raise OMError(INVALID_REQUEST, f"user {owner} has {there} delegation tokens, the most that are allowed")
    row = TokenRow(
        owner=owner,
        number=prepared.index,
        generation=standing.generation,
        renewer=body.renewer,
        issue_time_ms=now_ms,
        max_time_ms=now_ms + TOKEN_MAX_AGE_MS,
        expiry_time_ms=now_ms + TOKEN_LIFETIME_MS,
    )
    users.put_token(tx, row)


def _check_token(body: RenewDelegationToken | CancelDelegationToken) -> None:
    _check_user(body.owner)
    if body.number < 1:
        raise OMError(INVALID_REQUEST, f"no delegation token has the number {body.number}")


def _own_token(
    body: RenewDelegationToken | CancelDelegationToken, prepared: RequestPreparation, tx: RowTransaction
) -> TokenRow:
    """Return a token that is the caller's to renew and cancel."""
    standing = _standing_of_owner(prepared, "to renew or cancel a delegation token")
    row = users.get_token(tx, body.owner, body.number)
    is_whose = standing.administrator or prepared.caller in (body.owner, "" if row is None else row.renewer)
    if not is_whose:
        raise OMError(
            PERMISSION_DENIED, f"user {prepared.caller}: token {body.number} is not yours, nor to be renewed by you"
        )
    if row is None:
        raise OMError(INVALID_TOKEN, f"user {body.owner} has no delegation token {body.number}")
    return row


def _renew(body: RenewDelegationToken, prepared: RequestPreparation, tx: RowTransaction) -> None:
    row, now_ms = _own_token(body, prepared, tx), prepared.now_ms
    if now_ms > row.expiry_time_ms:
        raise OMError(TOKEN_EXPIRED, f"delegation token {row.number} of user {row.owner} has expired")
    users.put_token(tx, replace(row, expiry_time_ms=min(now_ms + TOKEN_LIFETIME_MS, row.max_time_ms)))


def _cancel(body: CancelDelegationToken, prepared: RequestPreparation, tx: RowTransaction) -> None:
    users.delete_token(tx, _own_token(body, prepared, tx))


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreateUser, check=_check_create, apply=_create),
    RequestHandler(body=RotateUser, check=_check_rotate, apply=_rotate),
    RequestHandler(body=RemoveUser, check=lambda body: _check_user(body.user), apply=_remove),
    RequestHandler(body=GetDelegationToken, check=_check_get, apply=_get),
    RequestHandler(body=RenewDelegationToken, check=_check_token, apply=_renew),
    RequestHandler(body=CancelDelegationToken, check=_check_token, apply=_cancel),
)
