"""What brokers are told: their listeners, and ACLs as Kafka takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from schemas.kafka.access import ACCESS, KafkaPrincipal, principal_of, rights_of
from schemas.topics import MAX_MESSAGE_BYTES
from stratolog.brokers.access_rules import OPERATIONS, RESOURCES, bindings
from stratolog.brokers.kafka_users import check_name
from stratolog.brokers.secure_listeners import BrokerIdentity, listener_properties
from stratolog.errors import UsageError
from stratolog.local.kafka import KafkaCluster, allocate_listeners


@pytest.mark.parametrize("kind", KafkaPrincipal)
def test_every_right_is_one_acl_for_each_operation(kind):
    made = bindings(principal_of(kind, "x1"), rights_of(kind, "x1"))
    assert len(made) == sum(len(right.operations) for right in ACCESS[kind])
    assert {one.permission_type for one in made} == {AclPermissionType.ALLOW}
    assert {one.principal for one in made} == {principal_of(kind, "x1")}
    assert not [one for one in made if one.operation in (AclOperation.ALL, AclOperation.ANY)]


def test_a_users_acls():
    made = {
        (one.restype, one.name, one.resource_pattern_type, one.operation)
        for one in bindings("User:alice", rights_of(KafkaPrincipal.USER, "alice"))
    }
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    assert made == {
        (ResourceType.TOPIC, "om.requests", literal, AclOperation.WRITE),
        (ResourceType.TOPIC, "om.responses.alice", literal, AclOperation.READ),
        (ResourceType.GROUP, "om-leaders", literal, AclOperation.DESCRIBE),
        (ResourceType.GROUP, "stratolog-client-", prefixed, AclOperation.READ),
    }


def test_all_resources_and_operations_have_kafkas_names():
    rights = [right for rights in ACCESS.values() for right in rights]
    assert {right.resource for right in rights} <= RESOURCES.keys()
    assert {operation for right in rights for operation in right.operations} <= OPERATIONS.keys()


def test_no_listener_of_a_secure_broker_is_open():
    own = BrokerIdentity(name="broker-1", key_store=Path("/k.pem"), trust_store=Path("/ca.pem"))
    found = listener_properties(
        own, ("broker-1", "broker-2"), users="h:1", nodes="h:2", controller="h:3", heap_mib=400
    )  # fmt: skip
    assert found["listeners"] == "USERS://h:1,NODES://h:2,CONTROLLER://h:3"
    assert "PLAINTEXT" not in str(found)
    assert found["inter.broker.listener.name"] == "NODES"
    for listener in ("nodes", "controller"):
        assert found[f"listener.name.{listener}.ssl.client.auth"] == "required"
    assert found["super.users"] == "User:admin:operator;User:broker:broker-1;User:broker:broker-2"
    assert "password" not in str(found).lower()


def test_what_a_stranger_costs_a_broker_is_bounded():
    own = BrokerIdentity(name="broker-1", key_store=Path("/k.pem"), trust_store=Path("/ca.pem"))
    found = listener_properties(own, ("broker-1",), users="h:1", nodes="h:2", controller="h:3", heap_mib=400)
    assert int(found["sasl.server.max.receive.size"]) == 16_384
    listeners = found["listeners"].count("://")
    for listener in ("users", "nodes", "controller"):
        assert found[f"listener.name.{listener}.max.connections"] == "400"
        assert int(found[f"listener.name.{listener}.max.connection.creation.rate"]) == 100
    # Before a login a connection holds three buffers of TLS and what it may send: all of them, half of the memory.
    assert listeners * 400 * (3 * 17 * 1024 + int(found["sasl.server.max.receive.size"])) < 400 * 2**20 / 4
    assert found["max.connections.per.ip"] == "100"
    assert found["max.connections.per.ip.overrides"] == "127.0.0.1:1200,h:1200"
    assert int(found["connections.max.idle.ms"]) < 600_000


@pytest.mark.parametrize("heap_mib", [None, 256, 1024])
def test_a_broker_reads_no_large_request_and_no_record_ends_it(heap_mib, tmp_path):
    cluster = KafkaCluster(folder=tmp_path, jars=tmp_path, listeners=allocate_listeners(1), heap_mib=heap_mib)
    # A record may claim to be as large as it likes: what it asks for is refused, and the broker goes on (decision 0106).
    assert "OutOfMemory" not in str(cluster.broker_command(1))
    assert int(cluster._properties(1)["socket.request.max.bytes"]) == 2 * MAX_MESSAGE_BYTES


@pytest.mark.parametrize("name", ["", "a b", "om:om1", "a.b", "a_b", "a/b", "a" * 64, "-a", "ä", "a\n"])
def test_a_name_that_no_user_may_have(name):
    with pytest.raises(UsageError, match="letters, digits and '-'"):
        check_name(name)
