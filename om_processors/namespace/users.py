"""Rows of identityTable: users and delegation tokens (decision 0071). Only shard 0 has any. Pure.

Keys, UTF-8::

    user/NAME              UserRow
    token/OWNER/NUMBER     TokenRow, NUMBER in 20 decimal digits

Names of users have no ``/``.
"""

from __future__ import annotations

from collections.abc import Iterator

from om_processors.namespace.context import ReadView, RowTransaction
from om_processors.namespace.tables import prefix_stop
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import IDENTITY_TABLE
from schemas.records.identity import TokenRow, UserRow

USERS = b"user/"


def user_key(user: str) -> bytes:
    """Return a user's key in identityTable."""
    return USERS + user.encode()


def token_prefix(owner: str) -> bytes:
    """Return the prefix of a user's tokens in identityTable."""
    return f"token/{owner}/".encode()


def token_key(owner: str, number: int) -> bytes:
    """Return a token's key in identityTable.

    >>> token_key("alice", 17)
    b'token/alice/00000000000000000017'
    """
    return token_prefix(owner) + b"%020d" % number


def get_user(view: ReadView, user: str) -> UserRow | None:
    """Return a user's row, or None."""
    value = view.get(IDENTITY_TABLE, user_key(user))
    return None if value is None else decode_as(UserRow, value)


def get_token(view: ReadView, owner: str, number: int) -> TokenRow | None:
    """Return a token's row, or None."""
    value = view.get(IDENTITY_TABLE, token_key(owner, number))
    return None if value is None else decode_as(TokenRow, value)


def users(view: ReadView) -> Iterator[UserRow]:
    """Iterate over all users, by name."""
    return (decode_as(UserRow, value) for _, value in view.iterate(IDENTITY_TABLE, USERS, prefix_stop(USERS)))


def tokens_of(view: ReadView, owner: str) -> list[TokenRow]:
    """Return a user's tokens, oldest first."""
    prefix = token_prefix(owner)
    return [decode_as(TokenRow, value) for _, value in view.iterate(IDENTITY_TABLE, prefix, prefix_stop(prefix))]


def put_user(tx: RowTransaction, row: UserRow) -> None:
    """Write a user's row."""
    tx.put(IDENTITY_TABLE, user_key(row.user), encode(row))


def put_token(tx: RowTransaction, row: TokenRow) -> None:
    """Write a token's row."""
    tx.put(IDENTITY_TABLE, token_key(row.owner, row.number), encode(row))


def delete_token(tx: RowTransaction, row: TokenRow) -> None:
    """Remove a token's row."""
    tx.delete(IDENTITY_TABLE, token_key(row.owner, row.number))
