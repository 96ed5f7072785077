"""How far replicas are behind, while some partitions do not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from om_processors.leading import log_ends
from om_processors.leading.log_ends import ONE_TIMEOUT_S, LogEnds

SHARDS = 8


class Brokers:
    """Ends of 10 everywhere, but for partitions that take all the time they are given and do not answer; those of ``leaderless`` have no leader."""

    def __init__(self, silent: set[int], leaderless: set[int]) -> None:
        self.silent, self.leaderless = silent, leaderless
        self.now_s = 0.0
        self.asked: list[int] = []

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
    monkeypatch.setattr(log_ends, "time", SimpleNamespace(monotonic=lambda: brokers.now_s))
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


def test_one_with_a_leader_that_does_not_answer_is_not_leaderless(monkeypatch: pytest.MonkeyPatch):
    ends = ask(monkeypatch, Brokers({2}, set()), 2)
    assert ends.lags[2] is None
    assert ends.leaderless == frozenset()
