"""Settings and log on who the members are."""

from __future__ import annotations

import pytest

from om_processors.leading.core.membership import MembershipCheck
from replicated_db.core.applying.replica import KnownMembers
from replicated_db.core.errors import WrongCluster


def check() -> MembershipCheck:
    return MembershipCheck("om1", ("om1", "om2"))


def known(*changes: tuple[int, str]) -> list[KnownMembers]:
    return [KnownMembers(offset=offset, names=tuple(names.split())) for offset, names in changes]


def test_nothing_is_said_before_the_log_of_the_start_is_read():
    checked = check()
    checked.look(0, -1, 10, [])
    checked.look(0, 8, 20, known((1, "om7")))
    with pytest.raises(
        WrongCluster, match="shard 0: the members are om7 in the log but om1, om2 in this node's settings"
    ):
        checked.look(0, 9, 20, known((1, "om7")))


def test_a_fresh_shard_is_checked_at_its_genesis():
    checked = check()
    checked.look(0, -1, 0, [])
    with pytest.raises(WrongCluster):
        checked.look(0, 1, 2, known((1, "om1 om2 om3 om4")))


def test_members_may_change_while_the_node_runs_as_long_as_it_is_one():
    checked = check()
    checked.look(0, 9, 10, known((1, "om2 om1")))
    checked.look(0, 10, 11, known((1, "om2 om1"), (10, "om1 om2 om3")))
    checked.look(0, 11, 12, known((1, "om2 om1"), (10, "om1 om2 om3"), (11, "om1")))
    with pytest.raises(WrongCluster, match="shard 0: om1 is no member any more; the members are om2"):
        checked.look(0, 12, 13, known((11, "om1"), (12, "om2")))


def test_what_is_logged_while_a_node_still_reads_what_was_there_is_not_held_against_it():
    """A node more is added while this one replays: by the next look it has read both, and its settings are those of its start."""
    checked = check()
    checked.look(0, 3, 10, known((1, "om1 om2")))
    checked.look(0, 12, 13, known((1, "om1 om2"), (11, "om1 om2 om3")))
    checked.look(0, 13, 14, known((1, "om1 om2"), (11, "om1 om2 om3")))


def test_what_was_logged_before_a_node_was_started_is():
    checked = check()
    checked.look(0, 3, 10, known((1, "om1 om2")))
    with pytest.raises(WrongCluster, match="the members are om1, om3, om4 in the log"):
        checked.look(0, 12, 13, known((1, "om1 om2"), (9, "om1 om3 om4"), (11, "om1 om2")))


def test_one_that_is_removed_while_it_replays_stops():
    checked = check()
    checked.look(0, 3, 10, known((1, "om1 om2")))
    with pytest.raises(WrongCluster, match="om1 is no member any more; the members are om2"):
        checked.look(0, 12, 13, known((1, "om1 om2"), (11, "om2")))


def test_each_shard_is_checked_by_itself():
    checked = check()
    checked.look(0, 9, 10, known((1, "om1 om2")))
    with pytest.raises(WrongCluster, match="shard 1"):
        checked.look(1, 9, 10, known((1, "om1 om3")))


@pytest.mark.parametrize("logged", ["om1 om2 om3", "om1"])
def test_a_node_that_is_restarted_while_another_is_added_or_removed_goes_on(logged: str):
    check().look(0, 9, 10, known((1, logged)))


def test_one_that_is_started_with_the_settings_of_before_it_was_removed_stops():
    with pytest.raises(WrongCluster, match="the members are om2 in the log"):
        check().look(0, 9, 10, known((1, "om2")))


def test_what_is_logged_right_at_the_end_that_a_node_found_is_news():
    """The end is the offset of the next record: what comes there was not there when the node was started."""
    checked = check()
    checked.look(0, 3, 10, known((1, "om1 om2")))
    checked.look(0, 12, 13, known((1, "om1 om2"), (10, "om1 om3 om4")))
    with pytest.raises(WrongCluster, match="the members are om1, om3, om4 in the log"):
        check().look(0, 9, 10, known((1, "om1 om2"), (9, "om1 om3 om4")))
