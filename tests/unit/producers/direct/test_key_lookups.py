"""Which answers of the direct door a client takes, and after which it asks over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from producers.direct.core.link_talk import LinkFailed
from producers.direct.key_lookups import page_of, rows_of
from producers.requests.listed_page import ListedPage
from schemas.records.door import DoorRows

PAGE = ListedPage(prefix="p", start_after="pa", limit=2)
ANSWER = DoorRows(status="OK", message="", shard=1, index=7, rows=[b"row a", b"row b"])
ELSEWHERE = ["NO_LEADER", "NOT_CAUGHT_UP", "REPLICA_FLAGGED", "OVERLOADED", "NOT_SUPPORTED_OPERATION"]


class Door:
    """Answers every lookup with ``outcome``; None: no node is connected."""

    def __init__(self, outcome: DoorRows | Exception | None) -> None:
        self.outcome = outcome
        self.asked: list[tuple[object, ...]] = []
        self.answers: list[Future[DoorRows]] = []

    def __call__(
        self, volume: str, bucket: str, keys: Sequence[str], consistency: str, *, with_bytes: bool = False,
        page: ListedPage | None = None,
    ) -> Future[DoorRows] | None:  # fmt: skip
        self.asked.append((volume, bucket, tuple(keys), consistency, with_bytes, page))
        if self.outcome is None:
            return None
        answer: Future[DoorRows] = Future()
        self.answers.append(answer)
        if isinstance(self.outcome, DoorRows):
            answer.set_result(self.outcome)
        elif not isinstance(self.outcome, TimeoutError):
            answer.set_exception(self.outcome)
        return answer


def answer(status: str = "OK", *rows: bytes | None, data: Sequence[bytes | None] = (), more: bool = False) -> DoorRows:
    return DoorRows(status=status, message="why", shard=1, index=7, rows=list(rows), data=list(data), more=more)


def test_a_lookup_asks_for_the_keys_and_takes_as_many_rows() -> None:
    door = Door(ANSWER)
    assert rows_of(door, "v", "b", ["x", "y"], "stale", 0.0) is ANSWER
    assert door.asked == [("v", "b", ("x", "y"), "stale", False, None)]


def test_a_lookup_with_bytes_takes_the_bytes_of_each_key() -> None:
    good = answer("OK", b"row", None, data=[b"bytes", None])
    door = Door(good)
    assert rows_of(door, "v", "b", ["x", "y"], "session", 0.0, with_bytes=True) is good
    assert door.asked == [("v", "b", ("x", "y"), "session", True, None)]


@pytest.mark.parametrize(
    ("rows", "data", "with_bytes"),
    [
        ([b"row"], [], False), ([b"row"] * 3, [], False), ([b"row"] * 2, [b"unasked"] * 2, False),
        ([b"row"] * 2, [], True), ([b"row"] * 2, [b"bytes"], True), ([b"row"], [b"bytes"] * 2, True),
    ],
)  # fmt: skip
def test_another_number_of_rows_or_bytes_is_no_answer(rows: list[bytes], data: list[bytes], with_bytes: bool) -> None:
    door = Door(answer("OK", *rows, data=data))
    assert rows_of(door, "v", "b", ["x", "y"], "stale", 0.0, with_bytes=with_bytes) is None


def test_a_listing_asks_for_the_page_and_takes_what_it_may_hold() -> None:
    for good in (ANSWER, answer("OK", b"row", more=True), answer("OK")):
        door = Door(good)
        assert page_of(door, "v", "b", PAGE, "linearizable", 0.0) is good
        assert door.asked == [("v", "b", (), "linearizable", False, PAGE)]


@pytest.mark.parametrize("bad", [answer("OK", b"1", b"2", b"3"), answer("OK", b"1", None), answer("OK", more=True)])
def test_a_page_that_is_none_is_no_answer(bad: DoorRows) -> None:
    """More rows than were asked for, a row that is missing, and an empty page with others behind it."""
    assert page_of(Door(bad), "v", "b", PAGE, "stale", 0.0) is None


@pytest.mark.parametrize("status", ELSEWHERE)
def test_what_another_node_may_answer_is_asked_over_http(status: str) -> None:
    assert rows_of(Door(answer(status)), "v", "b", ["x"], "stale", 0.0) is None
    assert page_of(Door(answer(status)), "v", "b", PAGE, "stale", 0.0) is None


@pytest.mark.parametrize("status", ["BUCKET_NOT_FOUND", "INVALID_REQUEST"])
def test_any_other_refusal_is_final(status: str) -> None:
    refused = answer(status)
    assert rows_of(Door(refused), "v", "b", ["x"], "stale", 0.0) is refused
    assert page_of(Door(refused), "v", "b", PAGE, "stale", 0.0) is refused


@pytest.mark.parametrize(
    "failure", [None, LinkFailed("broken"), TimeoutError(), UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no text")]
)
def test_without_an_answer_http_is_asked(failure: Exception | None) -> None:
    assert rows_of(Door(failure), "v", "b", ["x"], "stale", 0.0) is None
    assert page_of(Door(failure), "v", "b", PAGE, "stale", 0.0) is None


def test_a_lookup_that_is_not_answered_in_time_is_given_up() -> None:
    door = Door(TimeoutError())
    assert rows_of(door, "v", "b", ["x"], "stale", 0.0) is None
    assert page_of(door, "v", "b", PAGE, "stale", 0.0) is None
    assert [one.cancelled() for one in door.answers] == [True, True]
