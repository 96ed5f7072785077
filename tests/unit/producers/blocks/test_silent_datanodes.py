"""Which datanodes a client remembers as silent: the rules of ``core/silent_datanodes``, and any order of events."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.blocks.core.silent_datanodes import (
    FIRST_PAUSE_S,
    FORGET_S,
    LAST_PAUSE_S,
    MAX_PROBES,
    MAX_REMEMBERED,
    PROBE_LOST_S,
    Place,
    SilentDatanodes,
)
from producers.blocks.datanodes import Datanodes
from schemas.records.datanode import Member

PLACE = ("dn1", "h:1")
OTHER = ("dn2", "h:2")


def places(count: int) -> list[Place]:
    return [(f"dn{number}", "h:1") for number in range(count)]


def test_a_silent_datanode_is_silent_at_its_address_until_it_answers() -> None:
    known = SilentDatanodes()
    known.on_silent(PLACE, 0.0)
    assert known.silent([PLACE, OTHER, ("dn1", "h:9")], 1.0) == {PLACE}
    known.on_answered(PLACE)
    assert known.silent([PLACE], 1.0) == set()
    assert len(known) == 0


def test_nobody_is_silent_for_longer_than_somebody_finds_it_so() -> None:
    known = SilentDatanodes()
    known.on_silent(PLACE, 0.0)
    assert known.silent([PLACE], FORGET_S - 0.1) == {PLACE}
    assert known.silent([PLACE], FORGET_S) == set()
    assert known.due([PLACE], FORGET_S) == []


def test_pauses_between_probes_grow_and_begin_anew_after_an_answer() -> None:
    known = SilentDatanodes()
    now_s, pauses = 0.0, []
    known.on_silent(PLACE, now_s)
    pause_s = FIRST_PAUSE_S
    for _ in range(6):
        assert known.due([PLACE], now_s + pause_s - 0.01) == []
        now_s += pause_s
        assert known.due([PLACE], now_s) == [PLACE]
        pauses.append(pause_s)
        known.on_silent(PLACE, now_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)
    assert pauses[-1] == LAST_PAUSE_S
    known.on_answered(PLACE)
    known.on_silent(PLACE, now_s)
    assert known.due([PLACE], now_s + FIRST_PAUSE_S) == [PLACE]


def test_many_that_find_a_datanode_silent_at_once_do_not_put_off_its_probe() -> None:
    known = SilentDatanodes()
    for tenth in range(10):
        known.on_silent(PLACE, tenth / 10)
    assert known.due([PLACE], FIRST_PAUSE_S) == [PLACE]


def test_one_probe_at_a_time_and_a_lost_one_is_made_again() -> None:
    known = SilentDatanodes()
    known.on_silent(PLACE, 0.0)
    assert known.due([PLACE], 1.0) == [PLACE]
    assert known.due([PLACE], 1.0 + PROBE_LOST_S - 0.1) == []
    assert known.silent([PLACE], 2.0) == {PLACE}, "nobody waits for the probe"
    assert known.due([PLACE], 1.0 + PROBE_LOST_S) == [PLACE]


def test_a_suspect_is_probed_and_counts_as_there() -> None:
    known = SilentDatanodes()
    known.on_silent(OTHER, 0.0)
    assert known.suspect([PLACE, OTHER], 0.1) == [PLACE]
    assert known.suspect([PLACE], 0.2) == []
    assert known.silent([PLACE], 0.2) == set()
    known.on_silent(PLACE, 0.3)
    assert known.silent([PLACE], 0.3) == {PLACE}


def test_few_are_probed_at_once() -> None:
    known = SilentDatanodes()
    assert known.suspect(places(MAX_PROBES + 3), 0.0) == places(MAX_PROBES)


def test_those_found_silent_last_are_remembered() -> None:
    known = SilentDatanodes()
    named = places(MAX_REMEMBERED + 1)
    for place in named[:-1]:
        known.on_silent(place, 0.0)
    known.on_silent(named[0], 0.5)
    known.on_silent(named[-1], 1.0)
    assert len(known) == MAX_REMEMBERED
    assert known.silent(named, 1.0) == set(named) - {named[1]}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["silent", "answered", "due", "suspect"]), st.integers(0, MAX_REMEMBERED + 5), st.floats(0, 20)
    ),
    max_size=200,
)


@given(EVENTS)
def test_any_order_of_events_is_bounded_and_everybody_gets_out(events: list[tuple[str, int, float]]) -> None:
    known, now_s = SilentDatanodes(), 0.0
    named = places(MAX_REMEMBERED + 6)
    for event, number, later_s in events:
        now_s += later_s
        place = named[number]
        if event == "silent":
            known.on_silent(place, now_s)
            assert known.silent([place], now_s) == {place}
        elif event == "answered":
            known.on_answered(place)
            assert known.silent([place], now_s) == set()
        else:
            claimed = (known.due if event == "due" else known.suspect)(named, now_s)
            assert len(claimed) <= MAX_PROBES
            assert (known.silent(claimed, now_s) == set(claimed)) is (event == "due" or not claimed)
        assert len(known) <= MAX_REMEMBERED
    silent = known.silent(named, now_s)
    # Whoever is silent is probed within the longest pause, whatever was lost; or it is forgotten.
    for place in silent:
        later_s = now_s + max(LAST_PAUSE_S, PROBE_LOST_S)
        assert known.due([place], later_s) == [place] or place not in known.silent([place], later_s)
        known.on_answered(place)
    assert known.silent(named, now_s + FORGET_S) == set()


def test_who_lets_the_time_pass_is_silent_and_who_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.blocks.datanodes.PROBE_TIMEOUT_MS", 200)
    with closing(socket.create_server(("127.0.0.1", 0))) as listens, closing(Datanodes()) as datanodes:
        host, port = listens.getsockname()
        member = Member(datanode="dn1", address=f"{host}:{port}", http_address="", rack="")
        assert datanodes.answers([member], timeout_ms=50) == set()
        assert datanodes.silent.among([member]) == set(), "it had less time than a probe gives"
        assert datanodes.answers([member], timeout_ms=200) == set()
        assert datanodes.silent.among([member]) == {"dn1"}
        listens.close()
        assert datanodes.answers([member], timeout_ms=2_000) == set()
        assert datanodes.silent.among([member]) == set()
