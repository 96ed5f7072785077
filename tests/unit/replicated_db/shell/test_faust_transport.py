"""How long a follower bears being told that its position lies beyond the end of the log, and having nothing to fetch."""

from __future__ import annotations

from pathlib import Path

from replicated_db.shell.follower import make_app
from replicated_db.shell.kafka.faust_transport import BEYOND_END_PAUSE_S, BEYOND_END_WAIT_S, BeyondEnd

STEP_S = 0.5


def first_that_lasts(told: BeyondEnd, begin_s: float, end_s: float) -> float | None:
    """Tell it every STEP_S; return after how long it was said to last."""
    for step in range(int((end_s - begin_s) / STEP_S)):
        if told.lasts(["log/0"], begin_s + step * STEP_S):
            return step * STEP_S
    return None


def test_what_is_said_again_and_again_lasts():
    assert first_that_lasts(BeyondEnd(), 100.0, 200.0) == BEYOND_END_WAIT_S + STEP_S


def test_a_broker_that_knew_better_begins_it_anew():
    told = BeyondEnd()
    assert first_that_lasts(told, 0.0, BEYOND_END_WAIT_S) is None
    again_s = BEYOND_END_WAIT_S + BEYOND_END_PAUSE_S + 1
    assert first_that_lasts(told, again_s, again_s + 100) == BEYOND_END_WAIT_S + STEP_S


def test_partitions_are_told_apart():
    told = BeyondEnd()
    for second in range(int(BEYOND_END_WAIT_S)):
        assert not told.lasts(["log/0"], float(second))
    assert not told.lasts(["log/1"], BEYOND_END_WAIT_S + 1)
    assert told.lasts(["log/0", "log/1"], BEYOND_END_WAIT_S + 1)


def test_a_follower_that_has_nothing_to_fetch_stays_in_its_group(tmp_path: Path):
    """aiokafka leaves the group of a consumer that has not asked for records so long, and does not join again while nothing is asked for."""
    app = make_app(
        "idle", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=1, data_dir=tmp_path, fatal=print, follows=()
    )
    assert app.conf.broker_max_poll_interval > 365 * 86_400
