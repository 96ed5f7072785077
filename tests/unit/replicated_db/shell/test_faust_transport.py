"""How long a follower bears being told that its position lies beyond the end of the log, and having nothing to fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faust.types import TP

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


def transport_of(tmp_path: Path, **more: Any) -> Any:
    """The transport of an app that has not started."""
    return make_app(
        "idle", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=1, data_dir=tmp_path, fatal=print, **more
    ).transport


def test_all_partitions_are_followed_unless_some_are_named(tmp_path: Path):
    everything, some = transport_of(tmp_path), transport_of(tmp_path, follows=[("log", 0)])
    everything.follow("log", 1)
    assert all(everything.follows(TP(topic, number)) for topic in ("log", "audit") for number in (0, 1))
    assert [some.follows(TP("log", 0)), some.follows(TP("log", 1)), some.follows(TP("audit", 0))] == [
        True, False, False,
    ]  # fmt: skip
    some.follow("log", 1)
    some.follow("log", 1)
    assert some.follows(TP("log", 1))
    assert not some.follows(TP("audit", 1))


def test_a_partition_rests_until_it_is_woken(tmp_path: Path):
    transport = transport_of(tmp_path)
    transport.wake("log", 0)
    assert not transport.rests(TP("log", 0))
    transport.rest("log", 0)
    assert [transport.rests(TP("log", 0)), transport.rests(TP("log", 1))] == [True, False]
    assert transport.follows(TP("log", 0)), "it is followed all the same"
    transport.wake("log", 0)
    assert not transport.rests(TP("log", 0))


def test_partitions_that_are_added_later_have_no_place_in_the_group(tmp_path: Path):
    assert transport_of(tmp_path).is_placed(TP("log", 10**6))
    some = transport_of(tmp_path, placed=2)
    assert [some.is_placed(TP("log", number)) for number in (0, 1, 2)] == [True, True, False]


def test_without_a_wish_the_groups_offset_will_do(tmp_path: Path):
    assert transport_of(tmp_path).next_offset(TP("log", 0)) is None
