"""benchmarks/bootstrap: from what was seen to figures."""

from __future__ import annotations

import pytest

from benchmarks.bootstrap.__main__ import FigureLog, parse, sizes_of
from benchmarks.bootstrap.figures import FULL, MIB, Samples, pause, percentile, rounds_of, scaled, time_of
from benchmarks.bootstrap.recorded_node import RecordedMachine
from benchmarks.bootstrap.running import figures_of, read_events
from replicated_db.core.bootstrap.bootstrap_machine import Checked, Fetched, Listed, PeersSeen
from replicated_db.core.bootstrap.listing import Content, ListedFile, ListedPosition, Listing
from replicated_db.core.bootstrap.peer_choice import Choice, ServingPeer, Wanted

EVENTS = [
    {"event": "asked", "time_s": 10.0, "round": 0, "fetched_bytes": 0},
    {"event": "failed", "time_s": 10.5, "round": 0, "fetched_bytes": 0, "reason": "busy"},
    {"event": "asked", "time_s": 11.0, "round": 0, "fetched_bytes": 0},
    {"event": "listed", "time_s": 12.0, "round": 1, "fetched_bytes": 0, "offset": 500, "listed_bytes": 900},
    {"event": "round", "time_s": 20.0, "round": 1, "fetched_bytes": 900},
    {"event": "asked", "time_s": 20.0, "round": 1, "fetched_bytes": 900},
    {"event": "listed", "time_s": 21.0, "round": 2, "fetched_bytes": 900, "offset": 700, "listed_bytes": 990},
    {"event": "round", "time_s": 22.0, "round": 2, "fetched_bytes": 960},
    {"event": "checked", "time_s": 25.0, "round": 2, "fetched_bytes": 960},
]


def test_a_round_lasts_from_the_question_that_was_answered_to_its_last_byte():
    first, second = rounds_of(EVENTS)
    assert (first.number, first.offset, first.listed_bytes, first.fetched_bytes) == (1, 500, 900, 900)
    assert (first.asked_s, first.listed_s, first.ended_s) == (11.0, 12.0, 20.0)
    assert (second.number, second.offset, second.listed_bytes, second.fetched_bytes) == (2, 700, 990, 60)
    assert time_of(EVENTS, "checked") == 25.0
    with pytest.raises(ValueError, match="installed"):
        time_of(EVENTS, "installed")


def test_a_round_that_did_not_end_is_none():
    assert [one.number for one in rounds_of(EVENTS[:7])] == [1]
    assert rounds_of([]) == []


def test_a_rate_is_taken_between_two_times_not_between_two_samples():
    samples = Samples()
    for second in range(11):
        samples.add(100.0 + second, {"requests": 50.0 * second if second <= 5 else 250.0 + 10 * (second - 5)})
    assert samples.rate("requests", 100.0, 105.0) == pytest.approx(50)
    assert samples.rate("requests", 100.5, 102.25) == pytest.approx(50)
    assert samples.rate("requests", 105.0, 110.0) == pytest.approx(10)
    assert samples.rate("requests", 103.0, 107.0) == pytest.approx(30)
    with pytest.raises(ValueError, match="no samples"):
        Samples().at(1.0, "requests")


def test_a_pause_counts_the_requests_that_were_under_way_and_no_others():
    calls = [(0.0, 0.9), (0.5, 1.1), (1.0, 1.25), (1.2, 1.5), (2.0, 9.0)]
    found = pause(calls, 1.05, 1.3)
    assert (found.requests, found.max_ms) == (3, 600.0)
    assert pause(calls, 1.6, 1.9).requests == 0
    assert pause([], 0.0, 1.0).max_ms == 0.0


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentiles_are_values_that_occurred(percent, expected):
    assert percentile(map(float, range(1, 101)), percent) == expected


def test_a_scale_shrinks_everything_but_the_least_throttle():
    assert scaled(1) == FULL
    small = scaled(0.001)
    assert (small.database_bytes, small.replay_keys, small.snapshots) == (2_147_484, 5_000, FULL.snapshots)
    assert small.throttle_bytes_per_s == MIB
    for wrong in (0, -1, 101):
        with pytest.raises(ValueError, match="scale"):
            scaled(wrong)


def test_given_numbers_of_keys_and_throttles_go_before_the_scale():
    sizes = sizes_of(parse(["--scale", "0.5", "--keys", "70", "--throttle", "9000000"]))
    assert (sizes.snapshot_keys, sizes.replay_keys, sizes.restart_keys) == (70, 70, 70)
    assert (sizes.throttle_bytes_per_s, sizes.database_bytes) == (9_000_000, 2**30)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [("", "without figures"), ("Traceback\nKeyError\n", "KeyError"), ('{"failures": {"TIMEOUT": 3}}', "TIMEOUT")],
)
def test_a_load_that_failed_is_no_figure(tmp_path, said, complaint):
    output = tmp_path / "fill.log"
    output.write_text(said)
    with pytest.raises(RuntimeError, match=complaint):
        figures_of(output)
    output.write_text('a warning\n{"failures": {}, "seconds": 2.5}\n')
    assert figures_of(output)["seconds"] == 2.5


def test_what_a_bootstrap_does_is_written_down_round_by_round(tmp_path, monkeypatch):
    monkeypatch.setattr(RecordedMachine, "events", tmp_path / "events.jsonl", raising=False)
    wanted = Wanted(cluster="c", shard=0, shards=1, own_offset=-1, first_offset=0, least_offset=0)
    machine = RecordedMachine(wanted, searches=1, last_round_bytes=10)
    peer = ServingPeer("om1", "127.0.0.1:1")
    machine.begin()
    machine.on(PeersSeen(Choice(usable=(peer,), refused=())))
    machine.on(Listed(listing_of("a" * 32, 30, 100), frozenset()))
    machine.on(Fetched(Content("a" * 32, 30)))
    machine.on(Listed(listing_of("b" * 32, 7, 200), frozenset()))
    machine.on(Fetched(Content("b" * 32, 7)))
    machine.on(Checked())
    events = read_events(tmp_path / "events.jsonl")
    assert [event["event"] for event in events] == ["asked", "listed", "round", "asked", "listed", "round", "checked"]
    assert [(one.number, one.offset, one.fetched_bytes) for one in rounds_of(events)] == [(1, 100, 30), (2, 200, 7)]


def listing_of(digest: str, size: int, offset: int) -> Listing:
    file = ListedFile("db/000012.sst", Content(digest, size))
    position = ListedPosition(term=1, index=1, offset=offset, record_hash=bytes(16))
    return Listing(
        transfer="f" * 32, node="om1", cluster="c", shard=0, shards=1, position=position, leader="om1", files=(file,),
        links=(), kept=frozenset(), remove=frozenset(),
    )  # fmt: skip


def test_a_part_that_fails_does_not_keep_the_others_from_being_measured(capsys):
    figures = FigureLog()

    def fails() -> None:
        raise RuntimeError("no disk")

    figures.attempt("circle", fails)
    figures.attempt("replay", lambda: figures.emit({"part": "replay", "seconds": 2}))
    assert (figures.failed, figures.rows) == (["circle"], [{"part": "replay", "seconds": 2}])
    figures.print_tables()
    said = capsys.readouterr()
    assert said.out == '{"part": "replay", "seconds": 2}\n'
    assert "circle failed" in said.err
    assert "no disk" in said.err
