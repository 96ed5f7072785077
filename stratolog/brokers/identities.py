"""Certificates of the local stack's processes for Kafka, and where users' passwords lie.

::

    DATA_DIR/authority/              the cluster's authority (stratolog.security.authority)
    DATA_DIR/kafka-users/NAME.password   0600: passwords of users that ``admin kafka-user`` made, sealed

A process proves itself to the brokers by the certificate of its role and name; people's commands by that of the
operator.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from schemas.kafka.connection import CA_FILE, CERTIFICATE_FILE, KEY_FILE, KEY_PASSWORD_FILE, PROTOCOL, SSL
from schemas.security.certificates import PeerIdentity, Role
from stratolog.brokers.secure_listeners import OPERATOR, BrokerIdentity
from stratolog.security.authority import Authority, open_authority
from stratolog.security.key_encryption import KeyEncryption
from stratolog.security.private_files import make_private_folder

AUTHORITY = "authority"
USERS_FOLDER = "kafka-users"
AUDIT_NAME = "audit"


def authority_of(data_dir: Path, cluster: str, key_file: Path | None = None) -> Authority:
    """Open the authority of a stack, or make it; raises UsageError.

    ``key_file`` has the key under which private keys are encrypted.
    """
    keys = None if key_file is None else KeyEncryption(key_file)
    return open_authority(data_dir / AUTHORITY, cluster=cluster, now_s=int(time.time()), keys=keys)


def broker_name(number: int) -> str:
    """Return the name of a broker, counted from 1."""
    return f"broker-{number}"


def broker_identities(authority: Authority, count: int) -> tuple[BrokerIdentity, ...]:
    """Certify the brokers of a stack; return what each proves itself by. Raises UsageError."""
    found = []
    for number in range(1, count + 1):
        holder = PeerIdentity(name=broker_name(number), role=Role.BROKER)
        issued = authority.certify(holder, now_s=int(time.time()))
        encrypted = authority.keys is not None
        found.append(
            BrokerIdentity(
                name=holder.name, key_store=authority.key_store(holder) if encrypted else issued.path,
                trust_store=authority.ca_file, password_file=authority.keys.path if authority.keys else None,
            )
        )  # fmt: skip
    return tuple(found)


def member_options(
    authority: Authority, role: Role, name: str, hosts: Iterable[str] = ()
) -> Mapping[str, str]:  # fmt: skip
    """Certify a process, which others reach at ``hosts``; return the ``kafka.*`` settings by which it reaches brokers.

    Raises UsageError.
    """
    issued = authority.certify(PeerIdentity(name=name, role=role), hosts, now_s=int(time.time()))
    found = {
        PROTOCOL: SSL,
        CA_FILE: str(authority.ca_file),
        CERTIFICATE_FILE: str(issued.path),
        KEY_FILE: str(issued.path),
    }
    return found if authority.keys is None else found | {KEY_PASSWORD_FILE: str(authority.keys.path)}


def operator_options(authority: Authority) -> Mapping[str, str]:
    """Return the ``kafka.*`` settings of people's commands. Raises UsageError."""
    return member_options(authority, Role.ADMIN, OPERATOR)


def password_file(data_dir: Path, user: str) -> Path:
    """Return where a user's password is; makes the folder. Raises UsageError."""
    make_private_folder(data_dir / USERS_FOLDER)
    return data_dir / USERS_FOLDER / f"{user}.password"
