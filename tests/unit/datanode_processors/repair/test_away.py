"""How long a silent datanode is left alone: longer each time, up to a limit, and not at all once it has answered."""

from __future__ import annotations

from itertools import pairwise

from datanode_processors.repair.core.away import FIRST_PAUSE_S, LAST_PAUSE_S, MAX_AWAY, Away


def pause_of(away: Away, address: str, now_s: float) -> float:
    """Return after how many seconds a datanode may be asked again, to a quarter of a second."""
    step_s = 0.25
    return next(n * step_s for n in range(10_000) if not away.is_away(address, now_s + n * step_s))


def test_each_silence_doubles_the_pause_up_to_the_limit() -> None:
    away, now_s, pauses = Away(), 1_000.0, []
    for _ in range(8):
        away.silent("dn1", now_s)
        pauses.append(pause_of(away, "dn1", now_s))
        now_s += pauses[-1]
    assert pauses[0] == FIRST_PAUSE_S
    assert all(after == min(2 * before, LAST_PAUSE_S) for before, after in pairwise(pauses))
    assert pauses[-1] == LAST_PAUSE_S


def test_who_answers_is_asked_and_begins_anew() -> None:
    away = Away()
    away.silent("dn1", 0.0)
    away.silent("dn1", 0.0)
    away.answered("dn1")
    away.answered("dn2")
    assert "dn1" not in away
    assert not away.is_away("dn1", 0.0)
    away.silent("dn1", 0.0)
    assert pause_of(away, "dn1", 0.0) == FIRST_PAUSE_S


def test_one_more_than_the_limit_has_the_one_asked_again_whose_pause_ends_first() -> None:
    away = Away()
    for number in range(MAX_AWAY):
        away.silent(f"dn{number}", 0.0)
    away.silent("dn0", 0.0)
    assert all(f"dn{number}" in away for number in range(MAX_AWAY)), "one that is known takes no room"
    away.silent("one more", 0.0)
    assert [name for name in ("dn0", "dn1", "dn2", "one more") if name in away] == ["dn0", "dn2", "one more"]
