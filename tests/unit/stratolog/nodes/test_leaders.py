"""Who leads, by what nodes say of themselves."""

from __future__ import annotations

import pytest

from stratolog.nodes.core.leaders import Status, is_led, leader_of, view_of, views_in


def status(role: str, leader: str | None, shard: int = 0) -> Status:
    return {"shards": [{"shard": shard, "role": role, "leader": leader}]}


LED = {"om1": status("leader", "om1"), "om2": status("follower", "om1")}


@pytest.mark.parametrize(
    ("statuses", "leader", "led"),
    [
        (LED, "om1", True),
        ({**LED, "om3": None}, "om1", False),
        ({**LED, "om3": status("follower", "om2")}, "om1", False),
        ({**LED, "om3": status("leader", "om1")}, None, False),
        ({"om1": status("follower", None), "om2": status("follower", None)}, None, False),
        ({"om1": status("leader", "om1", shard=1)}, None, False),
        ({}, None, False),
    ],
)
def test_one_leader_that_all_know(statuses: dict[str, Status], leader: str | None, led: bool):
    assert leader_of(statuses, 0) == leader
    assert is_led(statuses, 0) is led


def test_views_of_nodes_that_do_not_answer_are_empty():
    assert views_in(None) == []
    assert view_of(None, 0) == {}
    assert view_of(LED["om1"], 1) == {}
