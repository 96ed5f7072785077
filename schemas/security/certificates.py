"""What a certificate says of its holder, and which holders a peer accepts. Pure.

A certificate's subject is ``O=stratolog, OU=ROLE, CN=NAME``: the authority of a cluster gives nothing else out, so
whoever trusts it may read both. NAME is that of the node, the datanode, the broker or the client; ROLE one of ``Role``.
Hosts are subject alternative names, as everywhere: they say where a server may be reached, never who it is. On one
machine all processes have the same hosts, so a peer that cares who answers asks for the role, and for the name too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Any

ORGANIZATION = "stratolog"
MAX_NAME_BYTES = 64
"""Length of a common name (X.520)."""


@unique
class Role(StrEnum):
    """What a process is for. The word is the organizational unit of its certificate."""

    OM = "om"
    DATANODE = "datanode"
    BROKER = "broker"
    AUDIT = "audit"
    DASHBOARD = "dashboard"
    ADMIN = "admin"
    CLIENT = "client"


MEMBERS = frozenset({Role.OM, Role.DATANODE})
"""Roles of the processes that keep a cluster's state."""
ADMINISTRATORS = frozenset({Role.OM, Role.ADMIN, Role.DASHBOARD})
"""Roles whose holders may do what the cluster's secret allows (decision 0033)."""
READERS = ADMINISTRATORS | MEMBERS
"""Roles whose holders read all that nodes hold, whatever users may do: members and operators."""


class WrongPeer(ValueError):
    """A peer's certificate is valid, and it is not the peer that was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Name and role of the holder of a certificate."""

    name: str
    role: Role

    def __post_init__(self) -> None:
        """Refuse names that a certificate cannot carry, or that could be read as something else."""
        if not self.name or len(self.name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"a certified name has 1 to {MAX_NAME_BYTES} bytes, not {self.name!r}")
        if not self.name.isprintable() or set(self.name) & set(',=+<>#;"\\/'):
            raise ValueError(
                f'a certified name has no control characters and none of , = + < > # ; " \\ /: {self.name!r}'
            )

    def __str__(self) -> str:
        """Return role and name, for messages."""
        return f"{self.role} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPeer:
    """Whom one wants to speak with: any holder of one of the roles, or only the one called ``name``."""

    roles: frozenset[Role]
    name: str | None = None

    def check(self, certificate: Mapping[str, Any] | None) -> PeerIdentity:
        """Return whose certificate it is (as ``ssl`` shows it); raises WrongPeer if it is not the expected peer's."""
        found = identity_of(certificate)
        if found.role not in self.roles or (self.name is not None and found.name != self.name):
            raise WrongPeer(f"the peer's certificate is that of {found}, not of {self}")
        return found

    def __str__(self) -> str:
        """Return what is expected, for messages."""
        return f"{' or '.join(sorted(self.roles))} {self.name or '(any)'}"


AN_OM = ExpectedPeer(roles=frozenset({Role.OM}))
A_MEMBER = ExpectedPeer(roles=MEMBERS)


def identity_of(certificate: Mapping[str, Any] | None) -> PeerIdentity:
    """Return the holder of a verified certificate, as ``ssl.SSLSocket.getpeercert`` shows it.

    Raises WrongPeer if there is none, or if its subject is not of the form that an authority of ours gives out.
    """
    if not certificate:
        raise WrongPeer("the peer has shown no certificate")
    subject = tuple(_attributes(certificate.get("subject", ())))
    found = dict(subject)
    if len(found) != len(subject) or found.get("organizationName") != ORGANIZATION:
        raise WrongPeer(f"the certificate's subject {subject!r} is not one of {ORGANIZATION}'s")
    try:
        return PeerIdentity(name=found["commonName"], role=Role(found["organizationalUnitName"]))
    except (KeyError, ValueError) as error:
        raise WrongPeer(f"the certificate's subject {subject!r} names no role and holder: {error}") from error


def _attributes(subject: Iterable[Iterable[tuple[str, str]]]) -> Iterable[tuple[str, str]]:
    for relative_name in subject:
        yield from relative_name
