"""What a node calls itself in the leaders' group: its name, and the address at which it answers reads.

The group's coordinator, a broker, tells both to whoever asks who its members are. So clients find nodes to read from with
the brokers' addresses alone, and a node that comes back at another address is found there.
"""

from __future__ import annotations

SEPARATOR = "@"
"""Between name and address; neither may hold it (names: ``stratolog.configuration.settings_values``)."""


def member_name(node: str, address: str) -> str:
    """Return the ``client.id`` of a node in the leaders' group; ``address`` is ``host:port`` of its HTTP API.

    >>> member_name("om1", "127.0.0.1:9871")
    'om1@127.0.0.1:9871'
    """
    return f"{node}{SEPARATOR}{address}" if address else node


def node_and_address(client_id: str) -> tuple[str, str]:
    """Return name and address of a member; the address of older software's, which tells none, is empty.

    >>> node_and_address("om1@127.0.0.1:9871"), node_and_address("om1")
    (('om1', '127.0.0.1:9871'), ('om1', ''))
    """
    node, _, address = client_id.partition(SEPARATOR)
    return node, address
