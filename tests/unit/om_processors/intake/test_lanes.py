"""Lanes of requests: turns, order, and whose requests are refused first."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from om_processors.intake.core.lanes import TURN_REQUESTS, Lanes
from om_processors.intake.direct_calls import AnswerWay
from om_processors.intake.gateway import Received


class Way:
    """A way back that is not gone."""

    def answer(self, shard: int, responses: Sequence[bytes]) -> None:
        raise AssertionError("nothing is answered here")

    def reject(self, message: str) -> None:
        raise AssertionError("nothing is rejected here")


def requests(count: int, way: Way | None = None) -> list[Received]:
    return [Received(offset=-1 if way else number, value=b"%d" % number, way=way) for number in range(count)]


def taken(lanes: Lanes[Received], count: int) -> list[Received]:
    return [lanes.take() for _ in range(count)]


def test_a_flood_does_not_hold_up_another_client() -> None:
    lanes, flood, other = Lanes[Received](), Way(), Way()
    lanes.extend(requests(10_000, flood))
    taken(lanes, 100)
    lanes.extend(requests(1, other))
    assert other in {one.way for one in taken(lanes, TURN_REQUESTS + 1)}
    assert len(lanes) == 10_001 - 100 - TURN_REQUESTS - 1


def test_the_brokers_have_half_of_a_leader_that_is_asked_for_too_much() -> None:
    lanes, ways = Lanes[Received](), [Way() for _ in range(5)]
    lanes.extend(requests(10_000))
    for way in ways:
        lanes.extend(requests(10_000, way))
    found = taken(lanes, 100 * TURN_REQUESTS)
    assert sum(one.way is None for one in found) == 50 * TURN_REQUESTS
    assert {sum(one.way is way for one in found) for way in ways} == {10 * TURN_REQUESTS}


@pytest.mark.parametrize("seed", range(20))
def test_each_lane_keeps_its_order_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    lanes, ways = Lanes[Received](), [None, *(Way() for _ in range(4))]
    put: dict[AnswerWay | None, int] = dict.fromkeys(ways, 0)
    seen: dict[AnswerWay | None, list[int]] = {way: [] for way in ways}
    for _ in range(2_000):
        if rng.random() < 0.3:
            way, count = rng.choice(ways), rng.randrange(1, 40)
            lanes.extend(Received(offset=-1, value=b"%d" % number, way=way)
                         for number in range(put[way], put[way] + count))  # fmt: skip
            put[way] += count
        elif lanes:
            one = lanes.take_surplus() if rng.random() < 0.2 else lanes.take()
            seen[one.way].append(int(one.value))
        assert len(lanes) == sum(put.values()) - sum(map(len, seen.values()))
        assert len(lanes._direct) <= 5, "an empty lane does not stay"
    while lanes:
        one = lanes.take()
        seen[one.way].append(int(one.value))
    assert seen == {way: list(range(count)) for way, count in put.items()}
    for take in (lanes.take, lanes.take_surplus):
        with pytest.raises(IndexError):
            take()


def test_the_longest_lane_is_refused_first() -> None:
    lanes, flood, other = Lanes[Received](), Way(), Way()
    lanes.extend([*requests(3, other), *requests(5), *requests(100, flood)])
    assert {lanes.take_surplus().way for _ in range(95)} == {flood}
    assert len(lanes) == 13


def test_the_next_leader_reads_the_brokers_requests_again() -> None:
    lanes, way = Lanes[Received](), Way()
    lanes.extend([*requests(7), *requests(3, way)])
    taken(lanes, 1)
    lanes.keep_direct()
    assert {one.way for one in taken(lanes, len(lanes))} == {way}
