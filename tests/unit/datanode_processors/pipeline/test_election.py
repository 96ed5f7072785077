"""Who claims when: by the list, by silence that one has waited through oneself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.pipeline.core.election import MAX_STEP_MS, Silence, claim_after_ms, tick_interval_ms

MEMBERS = ["a", "b", "c"]
names = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=7, unique=True)


def test_before_the_first_claim_the_list_decides():
    assert [claim_after_ms(MEMBERS, me, "", 1000) for me in MEMBERS] == [0, 1000, 2000]


def test_after_a_leader_the_next_in_the_list_comes_first():
    assert [claim_after_ms(MEMBERS, me, "c", 1000) for me in MEMBERS] == [1000, 2000, 0]


def test_all_come_behind_a_leader_that_is_no_member():
    assert [claim_after_ms(MEMBERS, me, "gone", 1000) for me in MEMBERS] == [1000, 2000, 3000]


def test_a_stranger_never_claims():
    assert claim_after_ms(MEMBERS, "d", "a", 1000) is None


@given(members=names, leader=st.sampled_from("abcdefgh") | st.just(""), timeout_ms=st.integers(1, 10_000))
def test_no_two_members_are_due_at_once(members: list[str], leader: str, timeout_ms: int):
    due = [claim_after_ms(members, me, leader, timeout_ms) for me in members]
    assert len(set(due)) == len(members)
    assert None not in due


def test_silence_grows_until_something_takes_effect():
    silence = Silence(1000, applied=5)
    assert silence.look(1100, 5) == 100
    assert silence.look(1250, 5) == 250
    assert silence.look(1300, 6) == 0
    assert silence.look(1400, 6) == 100


def test_something_unread_in_the_log_breaks_the_silence():
    silence = Silence(0, applied=0)
    silence.look(100, 0)
    silence.broken()
    assert silence.look(150, 0) == 50


def test_a_paused_process_has_waited_through_one_step_only():
    silence = Silence(0, applied=0)
    assert silence.look(3_600_000, 0) == MAX_STEP_MS


@given(st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=50))
def test_silence_is_never_more_than_what_was_looked_at(looks: list[tuple[int, bool]]):
    now, applied, silent = 0, 0, 0
    silence = Silence(now, applied)
    for elapsed, something in looks:
        now += elapsed
        applied += something
        silent = 0 if something else silent + min(elapsed, MAX_STEP_MS)
        assert silence.look(now, applied) == silent


def test_an_idle_leader_shows_itself_several_times_in_a_time_out():
    assert tick_interval_ms(2000) * 3 < 2000
    assert tick_interval_ms(1) == 1
