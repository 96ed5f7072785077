"""The ACLs of the brokers: made from the table in ``schemas/kafka/access.py``, for the principals that there are.

What the table does not give a principal is taken from it: whoever ensures the rules ends with exactly those. ACLs of
other principals are somebody else's, and stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from schemas.kafka.access import KafkaOperation, KafkaPrincipal, KafkaResource, KafkaRight, principal_of, rights_of
from stratolog.errors import Unavailable
from transport.waiting.deadline import Deadline

ADMIN_TIMEOUT_S = 30.0
SETTLE_PAUSE_S = 0.1
ANY_HOST = "*"
_ANY: Any = None
"""What a filter says for any name and any host; the library's types do not know it."""
RESOURCES = {
    KafkaResource.TOPIC: ResourceType.TOPIC, KafkaResource.GROUP: ResourceType.GROUP, KafkaResource.CLUSTER: ResourceType.BROKER,
}  # fmt: skip
OPERATIONS = {
    KafkaOperation.READ: AclOperation.READ, KafkaOperation.WRITE: AclOperation.WRITE, KafkaOperation.DELETE: AclOperation.DELETE,
    KafkaOperation.ALTER: AclOperation.ALTER, KafkaOperation.DESCRIBE: AclOperation.DESCRIBE,
    KafkaOperation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}  # fmt: skip


def ensure_access(admin: AdminClient, principals: Iterable[tuple[KafkaPrincipal, str]]) -> int:
    """Give each principal exactly its rights; return how many ACLs were made or removed. Raises Unavailable."""
    wanted: set[AclBinding] = set()
    names = []
    for kind, name in principals:
        names.append(principal_of(kind, name))
        wanted |= bindings(names[-1], rights_of(kind, name))
    try:
        there = {binding for name in names for binding in _found(admin, _filter(name))}
        _create(admin, sorted(wanted - there, key=str))
        _delete(admin, sorted(there - wanted, key=str))
        # The controller has them; the broker that is asked learns of them a little later.
        deadline = Deadline.after_s(ADMIN_TIMEOUT_S)
        while {binding for name in names for binding in _found(admin, _filter(name))} != wanted:
            if deadline.has_passed:
                raise Unavailable(f"the brokers do not apply the ACLs of {', '.join(names)}")
            time.sleep(SETTLE_PAUSE_S)
    except KafkaException as error:
        raise Unavailable(f"the brokers' ACLs: {error.args[0].str()}") from error
    return len(wanted ^ there)


def remove_access(admin: AdminClient, kind: KafkaPrincipal, name: str) -> None:
    """Take all rights from a principal. Raises Unavailable."""
    try:
        for future in admin.delete_acls([_filter(principal_of(kind, name))], request_timeout=ADMIN_TIMEOUT_S).values():
            future.result()
    except KafkaException as error:
        raise Unavailable(f"the brokers' ACLs: {error.args[0].str()}") from error


def bindings(principal: str, rights: Sequence[KafkaRight]) -> set[AclBinding]:
    """Return rights as Kafka's ACLs."""
    return {
        AclBinding(
            RESOURCES[right.resource], right.name,
            ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
            principal, ANY_HOST, OPERATIONS[operation], AclPermissionType.ALLOW,
        )
        for right in rights
        for operation in right.operations
    }  # fmt: skip


def _filter(principal: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY, _ANY, ResourcePatternType.ANY, principal, _ANY, AclOperation.ANY, AclPermissionType.ANY
    )


def _found(admin: AdminClient, wanted: AclBindingFilter) -> list[AclBinding]:
    return list(admin.describe_acls(wanted, request_timeout=ADMIN_TIMEOUT_S).result())


def _create(admin: AdminClient, missing: list[AclBinding]) -> None:
    if missing:
        for future in admin.create_acls(missing, request_timeout=ADMIN_TIMEOUT_S).values():
            future.result()


def _delete(admin: AdminClient, surplus: list[AclBinding]) -> None:
    if surplus:
        filters = [
            AclBindingFilter(
                one.restype, one.name, one.resource_pattern_type, one.principal, one.host, one.operation,
                one.permission_type,
            )
            for one in surplus
        ]  # fmt: skip
        for future in admin.delete_acls(filters, request_timeout=ADMIN_TIMEOUT_S).values():
            future.result()


def require_to_describe(admin: AdminClient) -> None:
    """Raise Unavailable unless the caller may see rights and users.

    Asking for them without that right may end the process: librdkafka frees what the refusal says twice (seen with
    confluent-kafka 2.16.1: SIGABRT, "invalid pointer"). So what the caller may do is asked for first.
    """
    try:
        cluster = admin.describe_cluster(include_authorized_operations=True, request_timeout=ADMIN_TIMEOUT_S).result()
    except KafkaException as error:
        raise Unavailable(f"the brokers' cluster: {error.args[0].str()}") from error
    if not {AclOperation.DESCRIBE, AclOperation.ALL} & set(cluster.authorized_operations or ()):
        raise Unavailable("the brokers' users and ACLs: Cluster authorization failed")


def are_acls_kept(admin: AdminClient) -> bool:
    """Whether these brokers have an authorizer; raises Unavailable."""
    require_to_describe(admin)
    try:
        _found(admin, _filter("User:nobody"))
    except KafkaException as error:
        if error.args[0].code() == KafkaError.SECURITY_DISABLED:
            return False
        raise Unavailable(f"the brokers' ACLs: {error.args[0].str()}") from error
    return True
