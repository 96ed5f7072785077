"""Users, delegation tokens and access control lists: the requests about them, and rows (decisions 0071 and 0072)."""

from __future__ import annotations

from dataclasses import field
from typing import get_args

from schemas.records.record import record
from schemas.records.rows import Acl

# ---- requests


@record
class CreateUser:
    """Makes a user, or changes its groups and whether it is an administrator; the secret of a user stays."""

    user: str
    administrator: bool = False
    groups: list[str] = field(default_factory=list)


@record
class RotateUser:
    """Gives a user a new secret; the one before is taken for ``overlap_ms`` more."""

    user: str
    overlap_ms: int


@record
class RemoveUser:
    """Forgets a user and its tokens; objects keep their owners' names."""

    user: str


UserRequest = CreateUser | RotateUser | RemoveUser
"""Requests about users: for operators and administrators. They live in the system shard."""

USER_REQUESTS: tuple[type, ...] = get_args(UserRequest)
"""Their classes."""


@record
class GetDelegationToken:
    """Makes a token that lets its holder act as the caller; ``renewer`` may renew and cancel it, too."""

    renewer: str = ""


@record
class RenewDelegationToken:
    """Lets a token live longer, up to its greatest age."""

    owner: str
    number: int


@record
class CancelDelegationToken:
    """Ends a token."""

    owner: str
    number: int


TokenRequest = GetDelegationToken | RenewDelegationToken | CancelDelegationToken
"""Requests of users about delegation tokens. They live in the system shard."""

TOKEN_REQUESTS: tuple[type, ...] = get_args(TokenRequest)
"""Their classes."""


@record
class ChangeAcl:
    """Changes the access control list of one object (``schemas.access.acl``); ``name`` is a key's or a prefix."""

    kind: str
    volume: str
    bucket: str
    name: str
    change: str
    acls: list[Acl]


# ---- rows, and what leaders find out


@record
class UserRow:
    """Row of identityTable: a user. ``generation`` and the one before are those of its secrets; 0 = there is none."""

    user: str
    generation: int
    previous_generation: int
    previous_until_ms: int
    administrator: bool
    groups: list[str]
    creation_time_ms: int
    modification_time_ms: int


@record
class TokenRow:
    """Row of identityTable: a delegation token, derived from the owner's secret of ``generation``."""

    owner: str
    number: int
    generation: int
    renewer: str
    issue_time_ms: int
    max_time_ms: int
    expiry_time_ms: int


@record
class PrefixInfo:
    """Row of prefixTable: the access control list of a prefix of keys' names."""

    volume: str
    bucket: str
    prefix: str
    acls: list[Acl]
    object_id: int
    update_id: int


@record
class ProvenCaller:
    """What the leader has found out about a caller whose signature it has checked."""

    administrator: bool
    groups: list[str]
    generation: int
    """Generation of the user's secret."""
    token: int
    """Number of the delegation token that signed; 0 for the user's own secret."""
