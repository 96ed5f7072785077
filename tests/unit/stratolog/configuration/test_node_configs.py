"""Configurations of nodes as the settings make them: where block tokens are on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratolog.configuration.node_configs import has_block_tokens
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError

TLS: dict[str, Any] = {"tls_ca_file": Path("ca.pem")}


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ({}, False),
        ({"auth": "signed"}, False),
        (TLS, False),
        (TLS | {"auth": "none"}, False),
        (TLS | {"auth": "signed"}, True),
        (TLS | {"secure": True}, True),
        (TLS | {"block_tokens": True}, True),
        (TLS | {"secure": True, "auth": "signed", "block_tokens": False}, False),
        ({"block_tokens": False}, False),
    ],
)
def test_block_tokens_are_on_where_users_are_told_apart(given: dict[str, Any], on: bool):
    assert has_block_tokens(Settings(**given)) is on


def test_block_tokens_without_tls_are_refused_by_name():
    with pytest.raises(UsageError, match="setting 'block_tokens' is true, and 'tls_ca_file' is not given"):
        has_block_tokens(Settings(block_tokens=True))
