"""Checks before a node takes part that need no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.startup import allowed_session_timeout_ms
from replicated_db.shell.startup import Topics


@pytest.mark.parametrize(
    ("wanted", "allowed", "found"), [(2_000, 500, 2_000), (2_000, 2_000, 2_000), (2_000, 6_000, 6_000)]
)
def test_a_session_time_out_that_the_brokers_do_not_allow_is_theirs(wanted: int, allowed: int, found: int):
    notes: list[str] = []
    config: Any = SimpleNamespace(session_timeout_ms=wanted)
    topics = Topics(log_topic_id="t", partitions={}, min_session_timeout_ms=allowed)
    assert allowed_session_timeout_ms(config, topics, notes.append) == found
    assert [("group.min.session.timeout.ms" in note) for note in notes] == ([] if found == wanted else [True])
