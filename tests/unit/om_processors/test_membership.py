"""Settings and log on who the members are."""

from __future__ import annotations

import pytest

from om_processors.membership import MembershipCheck
from replicated_db.errors import WrongCluster


def check() -> MembershipCheck:
    return MembershipCheck("om1", ("om1", "om2"))


def test_nothing_is_said_before_the_log_of_the_start_is_read():
    checked = check()
    checked.look(0, -1, 10, ())
    checked.look(0, 8, 20, ("om7",))
    with pytest.raises(
        WrongCluster, match="shard 0: the members are om7 in the log but om1, om2 in this node's settings"
    ):
        checked.look(0, 9, 20, ("om7",))


def test_a_fresh_shard_is_checked_at_its_genesis():
    checked = check()
    checked.look(0, -1, 0, ())
    with pytest.raises(WrongCluster):
        checked.look(0, 1, 2, ("om1", "om2", "om3"))


def test_members_may_change_while_the_node_runs_as_long_as_it_is_one():
    checked = check()
    checked.look(0, 9, 10, ("om2", "om1"))
    checked.look(0, 10, 11, ("om1", "om2", "om3"))
    checked.look(0, 11, 12, ("om1",))
    with pytest.raises(WrongCluster, match="shard 0: om1 is no member any more; the members are om2"):
        checked.look(0, 12, 13, ("om2",))


def test_each_shard_is_checked_by_itself():
    checked = check()
    checked.look(0, 9, 10, ("om1", "om2"))
    with pytest.raises(WrongCluster, match="shard 1"):
        checked.look(1, 9, 10, ("om1",))
