"""A whole secure stack, as ``stratolog up --secure`` starts it: one broker, one node, three datanodes, users with passwords."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import KafkaConnection, connection
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import TlsFiles
from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.brokers.identities import authority_of, member_options
from stratolog.configuration.settings import Settings
from stratolog.local import stack, state
from stratolog.local.jars import default_cache_dir
from stratolog.local.ports import free_ports
from tests.support.command import warm

ROOT = Path(__file__).parents[3]
ANSWER_S = 20.0


def secure_settings(folder: Path, **more: Any) -> Settings:
    """Return the settings of a stack that nobody has started yet."""
    ports = free_ports(8)
    numbers = range(1, 4)
    return replace(
        Settings(
            data_dir=folder, cache_dir=default_cache_dir(), bootstrap_servers=f"127.0.0.1:{ports[0]}", shards=1, audit=False, ui=False, secure=True,
            auth="none", explicit=frozenset({"auth"}),
            nodes=(NodeAddress(name="om1", host="127.0.0.1", port=ports[1]),),
            datanodes=tuple(
                DatanodeAddress(name=f"dn{n}", host="127.0.0.1", port=ports[2 * n], http_port=ports[2 * n + 1])
                for n in numbers
            ),
            datanode_reserve_bytes=0,
        ),
        **more,
    )  # fmt: skip


@dataclass(frozen=True)
class SecureStack:
    settings: Settings

    @classmethod
    def start(cls, folder: Path, **more: Any) -> SecureStack:
        """Start a stack with two users of the brokers; ``more`` are settings."""
        found = cls(stack.up(secure_settings(folder, **more), detached=False))
        for user in ("alice", "bob"):
            file = str(found.password_file(user))
            assert found.stratolog("admin", "kafka-user", "add", user, "--password-file", file).returncode == 0
        return found

    def close(self) -> None:
        stack.down(self.settings, remove_data=True)

    def member(self, name: str) -> state.StackMember:
        found = state.read_state(self.settings.data_dir)
        assert found is not None
        return next(member for member in found.members if member.name == name)

    def stratolog(self, *words: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
        environment = {**variables, "PYTHONPATH": str(ROOT), "STRATOLOG_DATA_DIR": str(self.settings.data_dir)}
        return warm.run(*words, env=environment, cwd=self.settings.data_dir, timeout_s=180)

    # -- who asks --------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> str:
        """Where users reach the broker."""
        return self.settings.bootstrap_servers

    @property
    def node_servers(self) -> str:
        """Where those reach it who have certificates."""
        return str(self.settings.node_bootstrap_servers)

    def user(self, name: str) -> Mapping[str, object]:
        return {
            "security.protocol": "SASL_SSL", "ssl.ca.location": str(self.authority.ca_file), "sasl.username": name,
            "sasl.password.file": str(self.password_file(name)),
        }  # fmt: skip

    def password_file(self, name: str) -> Path:
        """The user's own file: the cluster's copy in the data directory is encrypted."""
        folder = self.settings.data_dir.with_name(f"{self.settings.data_dir.name}-users")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{name}.password"

    def tls(self, name: str, role: Role = Role.CLIENT) -> TlsFiles:
        """Return the files by which somebody proves himself to nodes and datanodes."""
        issued = self.authority.certify(PeerIdentity(name=name, role=role), now_s=int(time.time()))
        return TlsFiles(
            ca=self.authority.ca_file, certificate=issued.path, key_encryption=self.settings.key_encryption_file
        )  # fmt: skip

    @property
    def authority(self):
        return authority_of(self.settings.data_dir, self.settings.cluster, self.settings.key_encryption_file)

    def as_user(self, name: str) -> KafkaConnection:
        return connection(self.servers, self.user(name))

    def as_member(self, role: Role, name: str) -> KafkaConnection:
        return connection(self.node_servers, dict(member_options(self.authority, role, name)))


def write_error(brokers: KafkaConnection, topic: str) -> KafkaError | None:
    """Write a record that nobody can read; return with what the brokers refuse it."""
    producer = Producer(client_settings(brokers, {"message.timeout.ms": 15_000, "log_level": 0}))
    told: list[KafkaError | None] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        told.append(error)

    producer.produce(topic, b"forged", partition=0, on_delivery=report)
    producer.flush(ANSWER_S)
    assert told, f"nothing was said about a record for {topic}"
    return told[0]


def read_error(brokers: KafkaConnection, topic: str, group: str = "stratolog-client-test") -> KafkaError | None:
    """Read a topic's beginning; return with what the brokers refuse it, None if it could be read.

    Of a topic that a client may not even see, librdkafka says nothing where partitions are assigned; so it is asked.
    """
    own = {
        "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
        "enable.partition.eof": True,
    }  # fmt: skip
    consumer = Consumer(client_settings(brokers, own))
    try:
        unseen: KafkaError | None = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].error
        if unseen is not None:
            return unseen
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(ANSWER_S)
        assert message is not None, f"{topic}: neither a record nor a word"
        error = message.error()
        return None if error is None or error.code() == KafkaError._PARTITION_EOF else error
    finally:
        consumer.close()
