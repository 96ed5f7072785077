"""Configurations of nodes as the settings make them: their slices, and where block tokens are on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.settings.declaring import slice_of
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import datanode_config, has_block_tokens, node_config
from stratolog.configuration.settings import DECLARED, Settings
from stratolog.errors import UsageError
from tests.support.local.other_settings import ANOTHER

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


def told(folder: Path, **more: str) -> Settings:
    """Return settings that all differ from their defaults, but for those that need files of their own."""
    given = {name: value for name, value in ANOTHER.items() if not name.startswith(("tls_", "kafka"))}
    given |= {"data_dir": str(folder), "cluster_secret_file": str(folder / "secret"), "block_tokens": "false", **more}
    del given["key_encryption_file"]
    settings = load_settings(environment={f"STRATOLOG_{name.upper()}": value for name, value in given.items()})
    make_secret(settings.secret_file)
    return settings


def test_a_node_and_a_datanode_are_told_all_of_their_settings(tmp_path: Path):
    settings = told(tmp_path)
    for config in (node_config(settings, "a"), datanode_config(settings, "d1")):
        wanted = slice_of(type(config), settings)
        assert {name: getattr(config, name) for name in wanted} == wanted
        assert [name for name, value in wanted.items() if value == DECLARED[name].default] == []


def test_a_datanode_that_would_count_as_dead_between_heartbeats_is_refused(tmp_path: Path):
    with pytest.raises(
        UsageError, match="'datanode_heartbeat_interval_ms' is 1001: it must be at most 'datanode_timeout_ms', .* 1000"
    ):
        told(tmp_path, datanode_heartbeat_interval_ms="1001", datanode_timeout_ms="1000")
