"""Nobody fills another user's topic of responses: refusals to it are counted."""

from __future__ import annotations

import pytest

from om_processors.intake.core.foreign_topics import MAX_REFUSALS_PER_S, MAX_TOPICS, ForeignRefusals, may_name
from schemas.records.identity import ProvenCaller

ALICES = "om.responses.alice"


@pytest.mark.parametrize(
    ("user", "administrator", "groups", "may"),
    [
        ("alice", False, [], True),
        ("mallory", False, [], False),
        ("mallory", False, ["staff"], False),
        ("mallory", False, ["staff", "alice"], True),
        ("ali", False, ["ce"], False),
        ("a/b", False, ["a/b"], False),
        ("root", True, [], True),
    ],
)
def test_responses_go_to_ones_own_topic_that_of_a_group_or_where_an_administrator_says(
    user: str, administrator: bool, groups: list[str], may: bool
) -> None:
    standing = ProvenCaller(administrator=administrator, groups=groups, generation=1, token=0)
    assert may_name(ALICES, user, standing) is may


def test_so_many_refusals_are_written_to_a_topic_in_a_second_and_no_more() -> None:
    refusals = ForeignRefusals()
    assert sum(refusals.may_write(ALICES, 1_000 + number % 1_000) for number in range(5_000)) == MAX_REFUSALS_PER_S
    assert refusals.may_write("om.responses.bob", 1_999), "another topic has its own share"
    assert refusals.may_write(ALICES, 2_000), "and the next second another one"
    assert refusals.may_write(ALICES, 1_999), "a clock that was set back stops nothing"


def test_topics_without_end_take_no_memory() -> None:
    refusals = ForeignRefusals()
    assert sum(refusals.may_write(f"om.responses.u{number}", 5_000) for number in range(10_000)) == MAX_TOPICS
    assert refusals.may_write("om.responses.u0", 5_001), "one that was counted is counted on"
    assert refusals.may_write("om.responses.u9999", 6_000)
