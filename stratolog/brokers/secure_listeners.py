"""A broker's settings that make it know who asks.

Three listeners, all with TLS::

    USERS        SASL_SSL: users, with SCRAM-SHA-512; their passwords are kept by the controllers, salted and hashed
    NODES        SSL with certificates of clients: brokers, nodes, datanodes, the audit, operators
    CONTROLLER   the same, for the brokers among themselves

Keys and certificates are PEM files as the cluster's authority makes them, or PKCS #12 if they are encrypted: Java 17
does not read the encrypted keys of OpenSSL in PEM. No password is needed for any of this, and
none is on any command line: users are made later, over NODES.

What a stranger costs before it has proved itself is bounded: a connection has three buffers of TLS and what SCRAM
needs, and each listener has a limit of connections. Kafka shuts nobody out to make room: beyond the limit a connection
waits until another one ends. So each listener has a limit of its own, each address one, and silent connections end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.kafka.access import RULES_OF_NAMES, super_users
from schemas.kafka.connection import SCRAM
from stratolog.errors import UsageError

USERS = "USERS"
NODES = "NODES"
CONTROLLER = "CONTROLLER"
PASSWORDS = "passwords"
"""Name of what reads passwords from files for a broker."""
TLS_VERSION = "TLSv1.3"
"""What all listeners speak, and nothing else, as all other servers of a cluster."""
OPERATOR = "operator"
"""Name of the administrator as whom the local stack's commands ask."""

LOGIN_BYTES = 16 * 1024
"""Most bytes that a broker takes in one piece from a peer before its login, and allocates: Kafka's default is 512
KiB. SCRAM's messages have some hundred."""
NEW_CONNECTIONS_S = 100
"""Connections that a listener accepts in a second, on average over ten: a handshake costs a broker a millisecond."""
IDLE_MS = 120_000
"""A connection on which nothing is said for so long ends, a member's too."""
CONNECTIONS_PER_HEAP_MIB = 1
"""Connections of a listener for each MiB of a broker's heap: a stranger's takes 0.1 MiB of it, and there are three
listeners."""
ADDRESS_SHARE = 4
"""An address has at most a listener's connections divided by this one; the broker's own machine has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """What a broker proves itself by: its key and certificate in one file, and its authority's certificate.

    ``password_file``: the key store is PKCS #12, and this file is its password; None: it is PEM, in clear.
    """

    name: str
    key_store: Path
    trust_store: Path
    password_file: Path | None = None


def listener_properties(
    own: BrokerIdentity, brokers: tuple[str, ...], *, users: str, nodes: str, controller: str, heap_mib: int
) -> Mapping[str, str]:
    """Return a broker's settings; ``users``, ``nodes`` and ``controller`` are where it listens, ``host:port``.

    ``heap_mib`` is the broker's memory in MiB: connections are limited by it.
    """
    certified = {
        name: value
        for listener in (NODES, CONTROLLER)
        for name, value in {
            f"listener.name.{listener.lower()}.ssl.client.auth": "required",
            f"listener.name.{listener.lower()}.ssl.principal.mapping.rules": RULES_OF_NAMES,
        }.items()
    }
    return {
        "listeners": f"{USERS}://{users},{NODES}://{nodes},{CONTROLLER}://{controller}",
        "advertised.listeners": f"{USERS}://{users},{NODES}://{nodes}",
        "listener.security.protocol.map": f"{USERS}:SASL_SSL,{NODES}:SSL,{CONTROLLER}:SSL",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": NODES,
        "sasl.enabled.mechanisms": SCRAM,
        f"listener.name.{USERS.lower()}.sasl.enabled.mechanisms": SCRAM,
        f"listener.name.{USERS.lower()}.ssl.client.auth": "none",
        f"listener.name.{USERS.lower()}.{SCRAM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        **_key_store(own),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(own.trust_store),
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.protocol": TLS_VERSION,
        "ssl.enabled.protocols": TLS_VERSION,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": super_users(OPERATOR, brokers),
        **certified,
        **_limits(users.rpartition(":")[0], heap_mib * CONNECTIONS_PER_HEAP_MIB),
    }


def _limits(host: str, connections: int) -> Mapping[str, str]:
    """Return what bounds the connections of each listener of a broker at ``host``."""
    found = {
        "sasl.server.max.receive.size": str(LOGIN_BYTES),
        "connections.max.idle.ms": str(IDLE_MS),
        "max.connections.per.ip": str(max(connections // ADDRESS_SHARE, 1)),
        # All processes of a stack on one machine have one address: there the listeners' limits hold alone.
        "max.connections.per.ip.overrides": ",".join(
            f"{own}:{3 * connections}" for own in dict.fromkeys(("127.0.0.1", host))
        ),
    }
    for listener in (USERS, NODES, CONTROLLER):
        prefix = f"listener.name.{listener.lower()}"
        found |= {
            f"{prefix}.max.connections": str(connections),
            f"{prefix}.max.connection.creation.rate": str(NEW_CONNECTIONS_S),
        }
    return found


def _key_store(own: BrokerIdentity) -> Mapping[str, str]:
    """Return where a broker's key is. It reads the password from its file, when it starts: no setting shows it."""
    if own.password_file is None:
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(own.key_store)}
    if set(":}") & set(str(own.password_file)):
        raise UsageError(
            f"setting 'key_encryption_file': Kafka reads no file whose path has ':' or '}}': {own.password_file}"
        )
    password = f"${{{PASSWORDS}:{own.password_file.parent}:{own.password_file.name}}}"
    return {
        "config.providers": PASSWORDS,
        f"config.providers.{PASSWORDS}.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(own.key_store),
        "ssl.keystore.password": password,
        "ssl.key.password": password,
    }
