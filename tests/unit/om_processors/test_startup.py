"""Checks before a node takes part that need no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.startup import allowed_session_timeout_ms, check_topics
from replicated_db.shell import startup
from replicated_db.shell.startup import Topics, WrongSetting
from schemas.topics import OM_LOG, OM_REQUESTS


@pytest.mark.parametrize(
    ("wanted", "allowed", "found"), [(2_000, 500, 2_000), (2_000, 2_000, 2_000), (2_000, 6_000, 6_000)]
)
def test_a_session_time_out_that_the_brokers_do_not_allow_is_theirs(wanted: int, allowed: int, found: int):
    notes: list[str] = []
    config: Any = SimpleNamespace(session_timeout_ms=wanted)
    topics = Topics(log_topic_id="t", partitions={}, min_session_timeout_ms=allowed)
    assert allowed_session_timeout_ms(config, topics, notes.append) == found
    assert [("group.min.session.timeout.ms" in note) for note in notes] == ([] if found == wanted else [True])


@pytest.mark.parametrize(
    ("requests", "log", "refusal"),
    [
        (2, 2, None),
        (3, 2, None),
        (1, 2, "topic om.requests: 1 partitions, but the settings say 2 shards$"),
        (2, 1, "topic om.log: 1 partitions, but the settings say 2 shards$"),
        (3, 3, "topic om.log: 3 partitions, but .* brokers take none away again. .*restore a backup"),
    ],
)
def test_partitions_of_requests_that_somebody_has_added_are_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, requests: int, log: int, refusal: str | None
):
    found = Topics(log_topic_id="t", partitions={OM_REQUESTS: requests, OM_LOG: log}, min_session_timeout_ms=1)
    monkeypatch.setattr(startup, "check_topics", lambda *_: found)
    if refusal is None:
        assert check_topics("", 2) is found
        return
    with pytest.raises(WrongSetting, match=refusal):
        check_topics("", 2)
