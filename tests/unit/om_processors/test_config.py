"""What a node's configuration and its brokers' topics must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from om_processors import startup
from om_processors.config import NodeConfig
from replicated_db.shell.startup import Topics, WrongSetting
from schemas.sharding import MAX_PIPELINES
from schemas.small_objects import MAX_INLINE_BYTES
from schemas.topics import OM_AUDIT, OM_LOG, OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from tests.support.local.secret import SECRET


def config(**more: Any) -> NodeConfig:
    fields: dict[str, Any] = {
        "node": "om1", "cluster": "test", "address_host": "host", "address_port": 22, "bootstrap_servers": "b:1",
        "replicas": ("om1", "om2"), "data_dir": Path("nowhere"), "datanodes": (), "secret": SECRET,
        "http_hosts": frozenset(),
    }  # fmt: skip
    return NodeConfig(**(fields | more))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"node": "om3"}, "node 'om3' is not one of replicas om1, om2"),
        ({"pipelines": ()}, "setting 'pipelines': must be a list of names, not ()"),
        (
            {"pipelines": ("p",) * (MAX_PIPELINES + 1)},
            f"setting 'pipelines': must be at most {MAX_PIPELINES} names, not {MAX_PIPELINES + 1}",
        ),
        ({"inline_bytes": -1}, "setting 'inline_bytes': must be in 0..262144, not -1"),
        ({"inline_bytes": MAX_INLINE_BYTES + 1}, "setting 'inline_bytes': must be in 0..262144, not 262145"),
        ({"auth": "open"}, "setting 'auth': must be none or signed, not 'open'"),
        ({"leader_watchdog_ms": True}, "setting 'leader_watchdog_ms': must be a whole number, not True"),
        ({"log_level": "LOUD"}, "setting 'log_level': must be DEBUG, INFO, WARNING or ERROR, not 'LOUD'"),
    ],
)
def test_a_setting_that_is_wrong_is_named(wrong: dict[str, Any], said: str):
    with pytest.raises(ValueError, match="^") as caught:
        config(**wrong)
    assert str(caught.value) == said


def test_what_a_node_does_unless_it_is_told():
    found = config(pipelines=tuple(f"p{number}" for number in range(MAX_PIPELINES)))
    assert found.address == "host:22"
    assert (found.peers, found.node_addresses) == ((), ())
    assert (found.bootstrap_bytes_per_s, found.trim_log_after_ms) == (0, 0), "no bound, and nothing is trimmed"
    assert found.inline_bytes == 16 * 1024


@pytest.mark.parametrize("wrong", [None, OM_REQUESTS, OM_LOG])
def test_requests_and_the_log_have_a_partition_for_each_shard(monkeypatch: pytest.MonkeyPatch, wrong: str | None):
    partitions = {OM_REQUESTS: 2, OM_LOG: 2, OM_AUDIT: 5, OM_REJECTED: 5, OM_RESPONSES: 5}
    if wrong is not None:
        partitions[wrong] = number = 1 if wrong == OM_REQUESTS else 3
    found = Topics(log_topic_id="id", partitions=partitions, min_session_timeout_ms=1)
    asked: list[tuple[Any, ...]] = []

    def check(*given: Any) -> Topics:
        asked.append(given)
        return found

    monkeypatch.setattr("replicated_db.shell.startup.check_topics", check)
    if wrong is None:
        assert startup.check_topics("b:1", 2) is found
    else:
        with pytest.raises(WrongSetting, match=f"topic {wrong}: {number} partitions, but the settings say 2 shards"):
            startup.check_topics("b:1", 2)
    ((servers, log, others, wanted),) = asked
    assert (servers, log) == ("b:1", OM_LOG)
    assert {*others} == {OM_REQUESTS, OM_RESPONSES, OM_AUDIT, OM_REJECTED}
    assert {*wanted} == {OM_REQUESTS, OM_AUDIT}
