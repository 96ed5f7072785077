"""What a datanode's configuration refuses, and its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.fsync import CLOSE, FSYNC_POLICIES
from datanode_processors.config import DatanodeConfig
from schemas.settings.table import LOG_LEVELS


def config(**changes: Any) -> DatanodeConfig:
    given: dict[str, Any] = {
        "node": "dn1", "cluster": "c", "host": "h", "port": 7, "http_port": 8, "bootstrap_servers": "b:1",
        "data_dir": Path("d"),
    }  # fmt: skip
    return DatanodeConfig(**{**given, **changes})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("node", ""), ("node", "a/b"), ("datanode_fsync", "sometimes"), ("rack", ""), ("rack", "r1"),
        ("log_level", "info"), ("pipeline_watchdog_ms", 199), ("datanode_reserve_bytes", -1),
        ("barrier_interval_ms", -1), ("datanode_scrub_interval_ms", -1), ("block_scrub_interval_ms", -1),
        ("scrub_within_ms", -1), ("datanode_max_streams", 0), ("datanode_max_streams", 1025),
        ("datanode_heartbeat_interval_ms", 0), ("container_bytes", "1g"), ("bootstrap_bytes_per_s", 1),
    ],
)  # fmt: skip
def test_what_no_datanode_can_run_with_is_refused_and_the_field_named(field: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        config(**{field: wrong})
    assert str(wrong) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("pipeline_watchdog_ms", 200),
        ("datanode_reserve_bytes", 0),
        ("barrier_interval_ms", 0),
        ("datanode_scrub_interval_ms", 0),
        ("block_scrub_interval_ms", 0),
        ("scrub_within_ms", 0),
        ("datanode_max_streams", 1),
    ],
)
def test_the_least_that_is_allowed(field: str, least: int) -> None:
    assert getattr(config(**{field: least}), field) == least


def test_every_policy_and_level_is_allowed() -> None:
    assert {config(datanode_fsync=policy).datanode_fsync for policy in FSYNC_POLICIES} == set(FSYNC_POLICIES)
    assert {config(log_level=level).log_level for level in LOG_LEVELS} == set(LOG_LEVELS)


def test_what_is_not_said_has_a_default() -> None:
    made = config()
    assert (made.address, made.http_address) == ("h:7", "h:8")
    assert (made.rack, made.datanode_fsync, made.secret, made.http_hosts) == ("/default-rack", CLOSE, None, frozenset())
    assert (made.pipeline_watchdog_ms, made.datanode_heartbeat_interval_ms, made.barrier_interval_ms) == (
        3_000, 1_000, 1_000,
    )  # fmt: skip
    assert (made.datanode_scrub_interval_ms, made.block_scrub_interval_ms) == (43_200_000, 86_400_000)
    assert (made.datanode_reserve_bytes, made.container_bytes, made.datanode_max_streams) == (1 << 30, 5 << 30, 256)


def test_block_tokens_need_tls() -> None:
    with pytest.raises(ValueError, match="block_tokens: the keys of block tokens travel in TLS alone"):
        config(block_tokens=True)
