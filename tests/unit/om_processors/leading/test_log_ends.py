"""How far replicas are behind, while some partitions do not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaException

from om_processors.leading import log_ends
from om_processors.leading.log_ends import ONE_TIMEOUT_S, LogEnds
from tests.support.local.waiting import deadlines_by

SHARDS = 8


class Brokers:
    """Ends of 10 everywhere, but for partitions that take all the time they are given and do not answer; those of ``leaderless`` have no leader."""

    def __init__(self, silent: set[int], leaderless: set[int]) -> None:
        self.silent, self.leaderless = silent, leaderless
        self.now_s = 0.0
        self.asked: list[int] = []
        self.asked_together = 0
        self.untold: set[int] = set()
        """Partitions that have an error in the answer about all."""

    def offsets_for_times(self, partitions: Any, timeout: float) -> Any:
        self.asked_together += 1
        assert timeout <= ONE_TIMEOUT_S
        assert {p.offset for p in partitions} == {OFFSET_END}
        if any(p.partition in self.silent for p in partitions):
            self.now_s += timeout
            raise KafkaException("timed out")
        return [
            SimpleNamespace(partition=p.partition, error=None, offset=10)
            if p.partition not in self.untold
            else SimpleNamespace(partition=p.partition, error="unknown", offset=-1)
            for p in partitions
        ]

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        self.asked.append(partition.partition)
        assert timeout <= ONE_TIMEOUT_S
        if partition.partition in self.silent:
            self.now_s += timeout
            raise KafkaException("timed out")
        return 0, 10

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {n: SimpleNamespace(leader=-1 if n in self.leaderless else 1) for n in range(SHARDS)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})


def ask(monkeypatch: pytest.MonkeyPatch, brokers: Any, rounds: int) -> LogEnds:
    replicas: Any = {shard: SimpleNamespace(read_offset=shard) for shard in range(SHARDS)}
    monkeypatch.setattr(log_ends, "Deadline", deadlines_by(lambda: brokers.now_s))
    ends = LogEnds(replicas)
    for _ in range(rounds):
        ends.ask(brokers, lambda *_: None)
    return ends


@pytest.mark.parametrize("silent", [set(), {0}, {3}, {7}, {0, 1}, {0, 1, 2, 3}])
def test_partitions_that_do_not_answer_keep_no_others_answer_away(monkeypatch: pytest.MonkeyPatch, silent: set[int]):
    ends = ask(monkeypatch, Brokers(silent, silent), 6)
    assert {shard for shard, lag in ends.lags.items() if lag is None} == silent
    assert ends.leaderless == silent
    assert all(lag == 9 - shard for shard, lag in ends.lags.items() if lag is not None)


def test_all_logs_are_one_question(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(set(), set())
    ends = ask(monkeypatch, brokers, 3)
    assert (brokers.asked_together, brokers.asked) == (3, [])
    assert ends.lags == {shard: 9 - shard for shard in range(SHARDS)}


def test_behind_a_log_that_does_not_answer_each_is_asked_for_itself_until_all_answer(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers({2}, set())
    ends = ask(monkeypatch, brokers, 1)
    assert brokers.asked_together == 1
    assert ends.lags[0] == 9, "asked again in the same round"
    ends.ask(brokers, lambda *_: None)  # type: ignore[arg-type]
    assert brokers.asked_together == 1
    brokers.silent = set()
    ends.ask(brokers, lambda *_: None)  # type: ignore[arg-type]
    assert (brokers.asked_together, None in ends.lags.values()) == (1, False)
    brokers.asked.clear()
    ends.ask(brokers, lambda *_: None)  # type: ignore[arg-type]
    assert (brokers.asked_together, brokers.asked) == (2, [])


def test_an_error_of_one_partition_in_the_answer_about_all_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(set(), set())
    brokers.untold = {5}
    ends = ask(monkeypatch, brokers, 1)
    assert ends.lags == {shard: 9 - shard for shard in range(SHARDS)}
    assert sorted(brokers.asked) == list(range(SHARDS))


def test_one_with_a_leader_that_does_not_answer_is_not_leaderless(monkeypatch: pytest.MonkeyPatch):
    ends = ask(monkeypatch, Brokers({2}, set()), 2)
    assert ends.lags[2] is None
    assert ends.leaderless == frozenset()
