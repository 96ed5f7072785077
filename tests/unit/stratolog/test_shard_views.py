"""Who leads a shard, by what nodes say."""

from __future__ import annotations

from typing import Any

import pytest

from stratolog.shard_views import is_agreed, leader_of, leads, view_in, views_in

STATUS: Any = {"node": "om1", "shards": [{"shard": 0, "role": "leader"}, {"shard": 1, "role": "follower"}]}


def views(**roles: str) -> dict[str, dict[str, Any]]:
    """Views in which all that answer know om1; a role of "" is that of a node that does not answer."""
    return {name: {"role": role, "leader": "om1"} if role else {} for name, role in roles.items()}


def test_a_view_is_found_by_its_shard():
    assert views_in(STATUS) == STATUS["shards"]
    assert view_in(STATUS, 1) == {"shard": 1, "role": "follower"}
    assert view_in(STATUS, 2) == view_in(None, 0) == {}
    assert views_in(None) == []


def test_a_node_leads_if_it_says_so():
    assert leads(view_in(STATUS, 0))
    assert not leads(view_in(STATUS, 1))
    assert not leads({})


@pytest.mark.parametrize(
    ("roles", "leader", "agreed"),
    [
        ({"om1": "leader", "om2": "follower"}, "om1", True),
        ({"om1": "leader", "om2": ""}, "om1", False),
        ({"om1": "leader", "om2": "leader"}, None, False),
        ({"om1": "follower", "om2": "follower"}, None, False),
        ({}, None, False),
    ],
)
def test_one_leads_or_none(roles: dict[str, str], leader: str | None, agreed: bool):
    assert leader_of(views(**roles)) == leader
    assert is_agreed(views(**roles)) == agreed


def test_nodes_that_know_different_leaders_do_not_agree():
    known = {"om1": {"role": "leader", "leader": "om1"}, "om2": {"role": "follower", "leader": "om3"}}
    assert leader_of(known) == "om1"
    assert not is_agreed(known)
    assert not is_agreed({"om1": {"role": "leader", "leader": None}})
