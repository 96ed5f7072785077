"""The table of who may do what on the brokers: its four rules, and that every topic has its writers."""

from __future__ import annotations

import re

import pytest

from schemas import topics
from schemas.kafka.access import (
    ACCESS,
    RULES_OF_NAMES,
    KafkaOperation,
    KafkaPrincipal,
    KafkaResource,
    principal_of,
    rights_of,
    super_users,
)

WRITE, READ = KafkaOperation.WRITE, KafkaOperation.READ
OURS = {value for name, value in vars(topics).items() if re.fullmatch(r"(OM|DN)_[A-Z]+", name)}


def may(kind: KafkaPrincipal, name: str, operation: KafkaOperation, topic: str) -> bool:
    return any(
        right.resource is KafkaResource.TOPIC
        and operation in right.operations
        and (topic.startswith(right.name) if right.is_prefix else topic == right.name)
        for right in rights_of(kind, name)
    )


def writers(topic: str) -> set[KafkaPrincipal]:
    return {kind for kind in KafkaPrincipal if may(kind, "x1", WRITE, topic)}


def readers(topic: str) -> set[KafkaPrincipal]:
    return {kind for kind in KafkaPrincipal if may(kind, "x1", READ, topic)}


OM, DATANODE, AUDIT, USER = KafkaPrincipal.OM, KafkaPrincipal.DATANODE, KafkaPrincipal.AUDIT, KafkaPrincipal.USER


@pytest.mark.parametrize(
    ("topic", "written_by", "read_by"),
    [
        (topics.OM_LOG, {OM}, {OM, AUDIT}), (topics.OM_AUDIT, {OM}, {OM, AUDIT}), (topics.OM_RESPONSES, {OM}, set()),
        (topics.OM_REQUESTS, {OM, USER}, {OM}), (topics.OM_REJECTED, {OM}, set()),
        (topics.OM_VERDICTS, {AUDIT}, {OM, DATANODE, AUDIT}), (topics.OM_STATS, {AUDIT}, {AUDIT}),
        (topics.DN_LOG, {DATANODE}, {DATANODE, AUDIT}), (topics.DN_AUDIT, {DATANODE}, {DATANODE, AUDIT}),
        (topics.DN_HEARTBEATS, {DATANODE}, {OM}),
        ("om.responses.x1", {OM}, {USER}), ("om.responses.x2", {OM}, set()),
    ],
)  # fmt: skip
def test_who_writes_and_who_reads(topic, written_by, read_by):
    assert writers(topic) == written_by
    assert readers(topic) == read_by


def test_every_topic_of_ours_has_a_writer():
    assert [topic for topic in OURS if not writers(topic)] == []


def test_a_user_reads_no_other_users_responses_even_by_a_longer_name():
    assert may(USER, "alice", READ, "om.responses.alice")
    assert not may(USER, "ali", READ, "om.responses.alice")
    assert not any(right.is_prefix for right in rights_of(USER, "a") if right.resource is KafkaResource.TOPIC)


def test_a_group_of_followers_is_its_members_own():
    groups = [right.name for right in rights_of(OM, "om1") if right.resource is KafkaResource.GROUP]
    assert "om-follower-om1-" in groups
    assert not [name for name in groups if "om2".startswith(name)]


def test_nobody_in_the_table_may_change_settings_or_rights():
    dangerous = {KafkaOperation.ALTER}
    found = {
        (kind, right.name) for kind, rights in ACCESS.items() for right in rights if dangerous & set(right.operations)
    }
    assert found == {(OM, topics.DN_LOG), (OM, topics.DN_AUDIT)}
    cluster = [right for rights in ACCESS.values() for right in rights if right.resource is KafkaResource.CLUSTER]
    assert {operation for right in cluster for operation in right.operations} == {KafkaOperation.DESCRIBE_CONFIGS}


def java_principal(subject: str) -> str:
    """Apply the rules as a broker does: the first that fits."""
    for pattern, replacement in re.findall(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/", RULES_OF_NAMES):
        if match := re.match(pattern, subject):
            return match.expand(re.sub(r"\$(\d)", r"\\\1", replacement))
    return subject


@pytest.mark.parametrize(
    ("subject", "principal"),
    [
        ("CN=om1,OU=om,O=stratolog", principal_of(OM, "om1")),
        ("CN=dn1,OU=datanode,O=stratolog", principal_of(DATANODE, "dn1")),
        ("CN=alice,OU=client,O=stratolog", "User:client:alice"),
        ("CN=om:om1,OU=client,O=stratolog", "User:CN=om:om1,OU=client,O=stratolog"),
        ("CN=om1,OU=om,O=other", "User:CN=om1,OU=om,O=other"),
        ("CN=om1,OU=om,O=stratolog,C=DE", "User:CN=om1,OU=om,O=stratolog,C=DE"),
    ],
)
def test_a_certificates_subject_becomes_a_principal(subject, principal):
    assert f"User:{java_principal(subject)}" == principal


def test_a_clients_certificate_has_no_rights_on_the_brokers():
    """It may be revoked, and brokers do not look at the list: so it must not name a user, who has some."""
    named = f"User:{java_principal('CN=alice,OU=client,O=stratolog')}"
    assert named not in {principal_of(kind, name) for kind in ACCESS for name in ("alice", "client:alice")} - {
        principal_of(USER, "client:alice")
    }
    assert topics.USER_NAME.fullmatch("client:alice") is None


def test_no_users_name_is_a_processs():
    assert topics.USER_NAME.fullmatch("om:om1") is None
    assert super_users("operator", ["broker-1"]) == "User:admin:operator;User:broker:broker-1"
