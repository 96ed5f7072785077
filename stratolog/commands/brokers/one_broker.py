"""One broker of a secure cluster, in this process: the very broker that ``up --secure`` starts, in a container.

Where the brokers listen is in the settings: users at ``bootstrap_servers``, processes with certificates at
``node_bootstrap_servers``, the first address of each is broker 1's. The controllers speak among themselves at the hosts
of the latter, at CONTROLLER_PORT.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from stratolog.brokers.identities import broker_name
from stratolog.brokers.secure_listeners import BrokerIdentity
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local.jars import kafka_jars
from stratolog.local.kafka import KafkaCluster, Listener, check_java
from stratolog.security.private_files import be_private

CONTROLLER_PORT = 29_093
NEEDED = ("node_bootstrap_servers", "tls_ca_file", "tls_certificate_file", "key_encryption_file")


def named_cluster_id(cluster: str) -> str:
    """Return Kafka's id for a cluster of a name: brokers on different machines agree on it without a file.

    >>> len(named_cluster_id("stratolog")), named_cluster_id("stratolog") == named_cluster_id("stratolog")
    (22, True)
    """
    number = 0
    # An id that begins with a hyphen would be read as an option.
    while True:
        name = f"{cluster}.{number}.kafka.stratolog"
        if not (found := urlsafe_b64encode(uuid5(NAMESPACE_DNS, name).bytes).decode().rstrip("=")).startswith("-"):
            return found
        number += 1


def broker_cluster(settings: Settings, number: int, jars: Path) -> KafkaCluster:
    """Return the brokers as broker ``number`` knows them, with its own keys; raises UsageError for wrong settings."""
    servers, ca, own, key = (getattr(settings, name) for name in NEEDED)
    if missing := [name for name in NEEDED if getattr(settings, name) is None]:
        raise UsageError(
            f"a broker that knows who asks needs the settings {', '.join(NEEDED)}: without {', '.join(missing)} it "
            "does not start"
        )
    users, nodes = settings.bootstrap_servers.split(","), servers.split(",")
    if not len(users) == len(nodes) == settings.brokers:
        raise UsageError(
            f"there are {settings.brokers} brokers, and the settings 'bootstrap_servers' and 'node_bootstrap_servers' "
            f"name {len(users)} and {len(nodes)}"
        )
    if not 1 <= number <= settings.brokers:
        raise UsageError(f"there is no broker {number}: the setting 'brokers' is {settings.brokers}")
    listeners = []
    for for_users, for_nodes in zip(users, nodes, strict=True):
        host, _, port = for_users.rpartition(":")
        other, _, node_port = for_nodes.rpartition(":")
        if host != other:
            raise UsageError(f"a broker is at one host, and the settings say {for_users} and {for_nodes}")
        listeners.append(Listener(broker=int(port), controller=CONTROLLER_PORT, nodes=int(node_port), host=host))
    # The others' keys are theirs: only their names matter here.
    identities = tuple(
        BrokerIdentity(
            name=broker_name(one), key_store=own.with_suffix(".p12"), trust_store=ca, password_file=key
        )
        for one in range(1, settings.brokers + 1)
    )  # fmt: skip
    return KafkaCluster(
        folder=settings.data_dir / "kafka", jars=jars, listeners=tuple(listeners), identities=identities,
        heap_mib=settings.broker_heap_mib, cluster_id=named_cluster_id(settings.cluster),
    )  # fmt: skip


def run_broker(settings: Settings, number: int) -> None:
    """Become broker ``number``, formatted at the first start; returns only by an error.

    Raises UsageError for wrong settings, Unavailable without Java or if the data directory cannot be formatted.
    """
    check_java()
    cluster = broker_cluster(settings, number, kafka_jars(settings.cache_dir))
    be_private(cluster.folder)
    cluster.format([number])
    command = cluster.broker_command(number)
    os.execv(command[0], command)
