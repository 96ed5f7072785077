"""A node's name in the leaders' group: the node's name, and the address at which it answers reads.

A broker coordinates the group, and tells the members' names to every client that asks. So the brokers' addresses are
enough for clients to find nodes to read from, also a node that came back at another address.
"""

from __future__ import annotations

SEPARATOR = "@"
"""Between name and address; neither may contain it (names: ``schemas.settings.values``)."""


def member_name(node: str, address: str) -> str:
    """Return the ``client.id`` of a node in the leaders' group; ``address`` is ``host:port`` of its HTTP API.

    >>> member_name("om1", "127.0.0.1:9871")
    'om1@127.0.0.1:9871'
    """
    return f"{node}{SEPARATOR}{address}" if address else node


def node_and_address(client_id: str) -> tuple[str, str]:
    """Return name and address of a member; the address is empty for older software, which does not tell it.

    >>> node_and_address("om1@127.0.0.1:9871"), node_and_address("om1")
    (('om1', '127.0.0.1:9871'), ('om1', ''))
    """
    node, _, address = client_id.partition(SEPARATOR)
    return node, address
