"""Users who log in to the brokers with a password (SCRAM-SHA-512): made, given another password, removed.

A password is 32 random bytes, made here and written into a file that its owner alone may read; the brokers get it over
TLS, and keep it salted and hashed. It is never shown. Adding a user twice, or after a crash in the middle, ends with
one user, one file and one topic of responses.

Rotation: the brokers take the new password at once for new connections, and connections that are open stay. The file is
replaced right after, and a client that is refused reads it again (``producers/requests/transport.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from schemas.kafka.access import KafkaPrincipal
from schemas.security.sealed import is_sealed
from schemas.topics import USER_NAME, responses_topic
from stratolog.brokers.access_rules import ADMIN_TIMEOUT_S, ensure_access, remove_access, require_to_describe
from stratolog.errors import Unavailable, UsageError
from stratolog.security.key_encryption import KeyEncryption, password_purpose
from stratolog.security.private_files import read_private, write_private

PASSWORD_BYTES = 32
ITERATIONS = 8_192
"""How often SCRAM hashes a password; more protects weak passwords, and these have 256 random bits."""
RESPONSE_PARTITIONS = 1


def check_name(name: str) -> str:
    """Return a user's name; raises UsageError for one that no user may have."""
    if not USER_NAME.fullmatch(name):
        raise UsageError(f"a user's name has letters, digits and '-', at most 63, not {name!r}")
    return name


def add_user(
    admin: AdminClient, name: str, password_file: Path, topic_settings: Mapping[str, str], copies: int,
    keys: KeyEncryption | None = None,
) -> bool:  # fmt: skip
    """Make a user with his topic of responses and his rights; return whether he is new.

    With ``keys`` the file is sealed. A user who is there keeps his password, and must have his file. Raises
    UsageError, Unavailable.
    """
    check_name(name)
    is_new = name not in users(admin)
    if is_new or read_private(password_file) is None:
        set_password(admin, name, password_file, keys)
    _ensure_topic(admin, str(responses_topic(name)), topic_settings, copies)
    ensure_access(admin, [(KafkaPrincipal.USER, name)])
    return is_new


def set_password(admin: AdminClient, name: str, password_file: Path, keys: KeyEncryption | None = None) -> None:
    """Give a user a new password: to the brokers first, then into the file. Raises Unavailable, UsageError.

    With ``keys`` the file is sealed; without them it is what a user's program reads.

    If the file cannot be written, the brokers have a password that nobody knows: give the command again.
    """
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    _alter(admin, UserScramCredentialUpsertion(name, info, password.encode()), name)
    content = password.encode()
    write_private(password_file, content if keys is None else keys.seal(password_purpose(name), content))


def password_of(name: str, password_file: Path, keys: KeyEncryption | None) -> bytes:
    """Return a user's password from the cluster's copy; raises UsageError."""
    content = read_private(password_file)
    if content is None:
        raise UsageError(f"there is no {password_file}: 'stratolog admin kafka-user rotate {name}' makes a password")
    if keys is not None:
        return keys.open(password_purpose(name), content, password_file)
    if is_sealed(content):
        raise UsageError(f"{password_file} is encrypted, and no 'key_encryption_file' is named")
    return content


def remove_user(admin: AdminClient, name: str, password_file: Path) -> bool:
    """Remove a user, his rights, his file and his topic; return whether he was there.

    His open connections lose their rights at once. Raises Unavailable.
    """
    was_there = name in users(admin)
    remove_access(admin, KafkaPrincipal.USER, check_name(name))
    if was_there:
        _alter(admin, UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512), name)
    topic = str(responses_topic(name))
    try:
        admin.delete_topics([topic], operation_timeout=ADMIN_TIMEOUT_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise Unavailable(f"topic {topic}: {error.args[0].str()}") from error
    password_file.unlink(missing_ok=True)
    return was_there


def users(admin: AdminClient, *, may_ask: bool = False) -> list[str]:
    """Return the names of all users who have a password; raises Unavailable.

    ``may_ask``: the caller has made sure that it may (``are_acls_kept`` does).
    """
    if not may_ask:
        require_to_describe(admin)
    asked: Any = admin.describe_user_scram_credentials(request_timeout=ADMIN_TIMEOUT_S)
    try:
        found = asked.result()
    except KafkaException as error:
        raise Unavailable(f"the brokers' users: {error.args[0].str()}") from error
    return sorted(found)


def _alter(admin: AdminClient, change: UserScramCredentialUpsertion | UserScramCredentialDeletion, name: str) -> None:
    try:
        admin.alter_user_scram_credentials([change], request_timeout=ADMIN_TIMEOUT_S)[name].result()
    except KafkaException as error:
        raise Unavailable(f"user {name}: {error.args[0].str()}") from error


def _ensure_topic(admin: AdminClient, topic: str, settings: Mapping[str, str], copies: int) -> None:
    new = NewTopic(topic, num_partitions=RESPONSE_PARTITIONS, replication_factor=copies, config=dict(settings))
    try:
        admin.create_topics([new], operation_timeout=ADMIN_TIMEOUT_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise Unavailable(f"topic {topic}: {error.args[0].str()}") from error
