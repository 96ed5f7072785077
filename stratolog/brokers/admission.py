"""A process of a secure stack is let in: it gets a certificate, and its principal its rights on the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient

from schemas.kafka.access import KafkaPrincipal
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import KafkaConnection
from schemas.security.certificates import Role
from stratolog.brokers.access_rules import ensure_access
from stratolog.brokers.identities import AUDIT_NAME, authority_of, member_options
from stratolog.configuration.settings import KAFKA_PREFIX, PREFIX, Settings

ROLES: Mapping[KafkaPrincipal, Role] = {
    KafkaPrincipal.OM: Role.OM, KafkaPrincipal.DATANODE: Role.DATANODE, KafkaPrincipal.AUDIT: Role.AUDIT,
}  # fmt: skip


def admit(
    settings: Settings, kind: KafkaPrincipal, name: str = AUDIT_NAME, hosts: Iterable[str] = ()
) -> Mapping[str, str]:  # fmt: skip
    """Return the ``kafka.*`` settings of a process of the stack; those of the stack itself if its brokers are open.

    Raises UsageError, Unavailable.
    """
    if not settings.secure:
        return dict(settings.kafka)
    options = member_options(
        authority_of(settings.data_dir, settings.cluster, settings.key_encryption_file), ROLES[kind], name, hosts
    )  # fmt: skip
    ensure_access(admin_of(settings.connection), [(kind, name)])
    return options


def admin_of(brokers: KafkaConnection) -> AdminClient:
    """Return a quiet administrator's client."""
    return AdminClient(client_settings(brokers, {"log_level": 0}))


def as_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return ``kafka.*`` settings as variables of the environment, which win over a settings file. None is a secret."""
    return {f"{PREFIX}{KAFKA_PREFIX.upper()}{name.replace('.', '_').upper()}": value for name, value in options.items()}
