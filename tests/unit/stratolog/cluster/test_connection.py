"""Through which nodes a command's requests go."""

from __future__ import annotations

import pytest

from schemas.settings.values import NodeAddress
from stratolog.cluster.connection import doors
from stratolog.configuration.settings import Settings

OWN = (NodeAddress(name="om1", host="one.example", port=9871), NodeAddress(name="om2", host="two.example", port=9872))
DEFAULT = ["127.0.0.1:9871", "127.0.0.1:9872", "127.0.0.1:9873"]
NAMED = ["one.example:9871", "two.example:9872"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, DEFAULT),
        ({"nodes": OWN}, NAMED),
        ({"nodes": OWN, "bootstrap_servers": "one.example:9092"}, NAMED),
        ({"nodes": OWN, "node_bootstrap_servers": "one.example:9093"}, NAMED),
        ({"bootstrap_servers": "one.example:9092"}, []),
        ({"node_bootstrap_servers": "one.example:9093"}, []),
    ],
)
def test_brokers_that_are_named_alone_do_not_go_with_the_default_nodes(
    given: dict[str, object], expected: list[str]
) -> None:
    """On this machine the default nodes may be those of another cluster."""
    assert doors(Settings().with_values(**given)) == expected
