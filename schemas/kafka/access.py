"""Who may do what on the brokers: the one table that their ACLs, and a page of the reference, are made from. Pure.

Principals: a process that proves itself by a certificate is ``ROLE:NAME`` (``om:om1``), by the certificate's subject; a
user who has a password is his name alone. A user's name has no colon, so no user can be taken for a process. A client's
certificate (``client:NAME``) is for nodes and datanodes: on the brokers it has no rights. What is not in the table is
refused. Brokers, and the operator (``admin:operator``), may do everything.

Rules that the table keeps:

1. Nodes of the Object Manager alone write ``om.log``, ``om.audit`` and all responses.
2. Datanodes alone write ``dn.log`` and what datanodes report.
3. A user writes requests, and reads the responses of no other user.
4. The audit reads both logs and the reports on them; it writes verdicts and windows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique

from schemas.topics import (
    DN_AUDIT,
    DN_HEARTBEATS,
    DN_LOG,
    LEADER_GROUP,
    OM_AUDIT,
    OM_LOG,
    OM_REJECTED,
    OM_REQUESTS,
    OM_RESPONSES,
    OM_STATS,
    OM_VERDICTS,
    RESPONSES_OF,
)

NAME = "NAME"
"""Stands in a resource's name for the principal's own."""
CLUSTER = "kafka-cluster"
"""Kafka's name of the cluster as a resource."""
RULES_OF_NAMES = "RULE:^CN=([^,:]+),OU=([a-z]+),O=stratolog$/$2:$1/"
"""Brokers' ``ssl.principal.mapping.rules``. A certificate that no rule fits has its whole subject as its name: it may
do nothing. So may a client's: brokers do not look at the list of revoked certificates, so it must not give the rights
of the user of that name, who has a password (decision 0107).
"""


@unique
class KafkaResource(StrEnum):
    """What a right is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


@unique
class KafkaOperation(StrEnum):
    """Kafka's operations; READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe configs"


@unique
class KafkaPrincipal(StrEnum):
    """Kinds of principals; all but USER are the roles in certificates."""

    OM = "om"
    DATANODE = "datanode"
    AUDIT = "audit"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRight:
    """What a kind of principal may do on one resource, and ``why``. ``is_prefix``: on all whose names begin so."""

    resource: KafkaResource
    name: str
    operations: tuple[KafkaOperation, ...]
    is_prefix: bool = False
    why: str

    def of(self, name: str) -> KafkaRight:
        """Return the right of the principal called ``name``."""
        return KafkaRight(
            resource=self.resource, name=self.name.replace(NAME, name), operations=self.operations,
            is_prefix=self.is_prefix, why=self.why,
        )  # fmt: skip


def _topic(name: str, *operations: KafkaOperation, why: str, is_prefix: bool = False) -> KafkaRight:
    return KafkaRight(resource=KafkaResource.TOPIC, name=name, operations=operations, is_prefix=is_prefix, why=why)


def _group(name: str, *operations: KafkaOperation, why: str, is_prefix: bool = True) -> KafkaRight:
    return KafkaRight(resource=KafkaResource.GROUP, name=name, operations=operations, is_prefix=is_prefix, why=why)


_READ, _WRITE = KafkaOperation.READ, KafkaOperation.WRITE
_SETTINGS = KafkaOperation.DESCRIBE_CONFIGS
_CHECKS_BROKERS = KafkaRight(
    resource=KafkaResource.CLUSTER,
    name=CLUSTER,
    operations=(_SETTINGS,),
    why="checks the brokers' settings at its start",
)
_UNUSED_GROUP = _group("stratolog-", KafkaOperation.DESCRIBE, why="clients name a group that they never join")

ACCESS: Mapping[KafkaPrincipal, tuple[KafkaRight, ...]] = {
    KafkaPrincipal.OM: (
        _topic(OM_LOG, _READ, _WRITE, KafkaOperation.DELETE, _SETTINGS, why="the log: leads, follows, trims"),
        _topic(OM_REQUESTS, _READ, _WRITE, _SETTINGS, why="executes requests; a leader makes some of its own"),
        _topic(OM_RESPONSES, _WRITE, why="answers"),
        _topic(RESPONSES_OF, _WRITE, is_prefix=True, why="answers each user where that user alone reads"),
        _topic(OM_AUDIT, _READ, _WRITE, _SETTINGS, why="reports of replicas, and the other members' reports"),
        _topic(OM_REJECTED, _WRITE, why="keeps what nobody can execute"),
        _topic(OM_VERDICTS, _READ, why="trims no further than the audit has come"),
        _topic(DN_HEARTBEATS, _READ, why="places blocks"),
        _topic(DN_LOG, KafkaOperation.ALTER, why="adds partitions for new pipelines"),
        _topic(DN_AUDIT, KafkaOperation.ALTER, why="adds partitions for new pipelines"),
        _group(LEADER_GROUP, _READ, is_prefix=False, why="its assignment says who may claim a shard"),
        _group(f"om-follower-{NAME}-", _READ, KafkaOperation.DELETE, why="follows the log; removes former starts' groups"),
        _UNUSED_GROUP,
        _CHECKS_BROKERS,
    ),
    KafkaPrincipal.DATANODE: (
        _topic(DN_LOG, _READ, _WRITE, KafkaOperation.DELETE, _SETTINGS, why="the pipelines' log: leads, follows, trims"),
        _topic(DN_HEARTBEATS, _WRITE, why="says how it is"),
        _topic(DN_AUDIT, _READ, _WRITE, _SETTINGS, why="reports of replicas and blocks, and the other members' reports"),
        _topic(OM_VERDICTS, _READ, why="trims no further than the audit has come"),
        _group(
            f"dn-follower-{NAME}-", _READ, KafkaOperation.DELETE,
            why="follows the pipelines' log; removes former starts' groups",
        ),
        _UNUSED_GROUP,
        _CHECKS_BROKERS,
    ),
    KafkaPrincipal.AUDIT: (
        _topic(OM_LOG, _READ, why="recomputes what every replica must hold"),
        _topic(DN_LOG, _READ, why="the same for datanodes"),
        _topic(OM_AUDIT, _READ, why="compares it with what replicas report"),
        _topic(DN_AUDIT, _READ, why="the same for datanodes"),
        _topic(OM_VERDICTS, _READ, _WRITE, why="says whether they are equal"),
        _topic(OM_STATS, _READ, _WRITE, why="windows of throughput; wakes up by what it writes"),
        _group("spark-kafka-", _READ, why="Spark's readers, each with a name of its own"),
        _group("stratolog-", _READ, why="its own readers, which join no group"),
    ),
    KafkaPrincipal.USER: (
        _topic(OM_REQUESTS, _WRITE, why="asks"),
        _topic(f"{RESPONSES_OF}{NAME}", _READ, why="reads the answers, its own alone"),
        _group(LEADER_GROUP, KafkaOperation.DESCRIBE, is_prefix=False, why="finds the nodes to read from"),
        _group("stratolog-client-", _READ, why="a client names a group that it never joins"),
    ),
}  # fmt: skip


def principal_of(kind: KafkaPrincipal, name: str) -> str:
    """Return a principal as brokers name it.

    >>> principal_of(KafkaPrincipal.OM, "om1"), principal_of(KafkaPrincipal.USER, "alice")
    ('User:om:om1', 'User:alice')
    """
    return f"User:{name}" if kind is KafkaPrincipal.USER else f"User:{kind}:{name}"


def rights_of(kind: KafkaPrincipal, name: str) -> tuple[KafkaRight, ...]:
    """Return what one principal may do."""
    return tuple(right.of(name) for right in ACCESS[kind])


def super_users(operator: str, brokers: Iterable[str]) -> str:
    """Return the brokers' setting ``super.users``: who may do everything."""
    return ";".join([f"User:admin:{operator}", *(f"User:broker:{name}" for name in brokers)])
