"""The nodes of a cluster as the brokers know them: the members of the leaders' group.

What belongs here: the one question to the group's coordinator. A node is a member while it may lead, under a name that
holds the address of its HTTP API (``schemas/leader_names.py``). The question joins no group and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, MemberDescription

from producers.errors import NOT_CONNECTED, NotConnected
from producers.reads.node_addresses import address_of
from producers.requests.listeners import check_listening
from producers.requests.transport import common_settings
from schemas.kafka.connection import Brokers
from schemas.kafka.troubles import ConnectionTroubles
from schemas.leader_names import node_and_address
from schemas.topics import LEADER_GROUP
from transport.waiting.deadline import Deadline

LEAST_S = 0.1
"""The shortest time for the brokers' answer, even at the deadline."""


class NoNode(NotConnected):
    """The brokers have answered: no node may lead."""


def known_nodes(brokers: Brokers, timeout_s: float) -> list[str]:
    """Return what :func:`find_nodes` does, or nothing if no node is in the group."""
    try:
        return find_nodes(brokers, timeout_s)
    except NoNode:
        return []


def find_nodes(brokers: Brokers, timeout_s: float) -> list[str]:
    """Return the addresses of the nodes in the leaders' group, as the brokers know them.

    Raises NoNode if the group has no node, and another NotConnected if no broker answers in time.
    """
    deadline = Deadline.after_s(timeout_s)
    check_listening(str(brokers), deadline)
    troubles = ConnectionTroubles(brokers)
    admin = AdminClient(common_settings(brokers, troubles))
    members: Sequence[MemberDescription] = ()
    try:
        asked = admin.describe_consumer_groups([LEADER_GROUP], request_timeout=max(deadline.left_s, LEAST_S))
        members = asked[LEADER_GROUP].result(deadline.left_s + 1).members
    except (KafkaException, TimeoutError) as error:
        admin.poll(0)
        if not _is_unknown_group(error):
            raise NotConnected(
                NOT_CONNECTED,
                f"brokers {brokers} do not tell which nodes there are (or give read_from): {troubles or error}",
            ) from error
    found = sorted(node_and_address(member.client_id) for member in members)
    if not found:
        raise NoNode(
            NOT_CONNECTED, "no node is in the group of those that may lead; give read_from to read from others"
        )
    addresses = [address for _, address in found if is_address(address)]
    if not addresses:
        names = ", ".join(node for node, _ in found)
        raise NotConnected(NOT_CONNECTED, f"nodes {names} do not tell the brokers where they are: give read_from")
    return addresses


def _is_unknown_group(error: Exception) -> bool:
    """Whether brokers say that there is no such group: Kafka 4 forgets one without members, or never had it."""
    told = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(told, KafkaError) and told.code() == KafkaError.GROUP_ID_NOT_FOUND


def is_address(told: str) -> bool:
    """Whether a member's name holds an address: older software's does not, and a stranger's may hold anything."""
    try:
        address_of(told)
    except ValueError:
        return False
    return True
