"""When a certificate is to be made anew. Pure.

Whatever is not as it should be is a reason, in words, that an operator reads; no reason = the certificate stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400
CERTIFICATE_DAYS = 30
"""For how long a certificate is valid."""
AUTHORITY_DAYS = 3_650
"""For how long an authority's own certificate is valid."""
RENEWED_FRACTION = 3
"""A certificate with less than this part (1 / RENEWED_FRACTION) of its time left is renewed."""
BACKDATED_S = 3_600
"""A certificate counts from an hour before it was made: clocks of other machines may be behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A certificate as it lies there: from when to when it is valid (seconds), for which subject and hosts."""

    valid_from_s: int
    valid_until_s: int
    subject: str
    hosts: frozenset[str]
    is_issued_here: bool
    """Whether the authority, as it is now, has signed it."""
    has_its_key: bool
    """Whether the key beside it is the certificate's."""
    is_revoked: bool = False
    """Whether it is on the authority's list of those that are revoked."""


def validity(now_s: int, days: int) -> tuple[int, int]:
    """Return from when to when a certificate made now is valid."""
    return now_s - BACKDATED_S, now_s + days * DAY_S


def is_due(valid_from_s: int, valid_until_s: int, now_s: int) -> bool:
    """Say whether less than a third of a certificate's time is left."""
    return (valid_until_s - now_s) * RENEWED_FRACTION < valid_until_s - valid_from_s


def reason_to_renew(held: Held | None, *, subject: str, hosts: Iterable[str], now_s: int) -> str | None:
    """Return why a certificate must be made anew for a subject and its hosts; None if it need not."""
    if held is None:
        return "there is none that can be read"
    if not held.is_issued_here:
        return "another authority has signed it"
    if not held.has_its_key:
        return "the key beside it is another one's"
    if held.subject != subject:
        return f"it is that of {held.subject}"
    if missing := sorted(frozenset(hosts) - held.hosts):
        return f"it is not for {', '.join(missing)}"
    if held.is_revoked:
        return "it is revoked"
    if now_s >= held.valid_until_s:
        return "it has expired"
    if is_due(held.valid_from_s, held.valid_until_s, now_s):
        return "less than a third of its time is left"
    return None
