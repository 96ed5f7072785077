"""What the brokers say of the nodes to which a client's calls would go straight."""

from __future__ import annotations

import logging
import queue

import pytest

from producers.direct import brokers_word
from producers.direct.brokers_word import AGAIN_S, SILENT_AGAIN_S, BrokersWord
from producers.errors import NotConnected
from tests.support.local.waiting import eventually

WAIT_S = 10.0


class Brokers:
    """Answers questions when a test says so; its clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = 0
        self._answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def monotonic(self) -> float:
        return self.now_s

    def find(self, timeout_s: float) -> list[str]:
        assert timeout_s == 5.0
        self.asked += 1
        answer = self._answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, word: BrokersWord, said: list[str] | Exception) -> None:
        """Answer the question that is asked."""
        assert word._asking
        self._answers.put(said)
        eventually(lambda: not word._asking, timeout_s=WAIT_S)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(brokers_word, "time", found)
    return found


SILENCE = NotConnected("NOT_CONNECTED", "no broker tells")


def test_until_the_brokers_have_answered_no_leader_passes(brokers: Brokers) -> None:
    word = BrokersWord(brokers.find)
    assert not word.passes("a:1")
    brokers.answer(word, ["a:1", "b:1"])
    assert word.passes("a:1")
    assert word.passes("b:1")
    assert brokers.asked == 1


def test_brokers_that_answer_and_know_nobody_let_no_leader_pass(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes that the client was given are another cluster's, and none of the brokers' own runs."""
    word = BrokersWord(brokers.find)
    assert not word.passes("x:1")
    brokers.answer(word, [])
    eventually(lambda: caplog.messages, timeout_s=WAIT_S)
    assert caplog.messages == [
        "calls go through the brokers: they know no node, and not the leader at x:1, which may be one of another cluster"
    ]
    assert not word.passes("x:1")
    brokers.now_s += AGAIN_S
    assert not word.passes("a:1")
    brokers.answer(word, ["a:1"])
    assert word.passes("a:1")


def test_a_leader_that_the_brokers_do_not_name_does_not_pass_and_is_told_once(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    word = BrokersWord(brokers.find)
    assert not word.passes("x:1")
    brokers.answer(word, ["b:1", "a:1"])
    eventually(lambda: caplog.messages, timeout_s=WAIT_S)
    (told,) = caplog.messages
    assert told == (
        "calls go through the brokers: they know the nodes a:1, b:1, and not the leader at x:1, "
        "which may be one of another cluster"
    )
    for _ in range(3):
        assert not word.passes("x:1")
        assert not word._asking, "they were asked a moment ago"
        brokers.now_s += AGAIN_S
        assert not word.passes("x:1")
        brokers.answer(word, ["a:1", "b:1"])
    assert (brokers.asked, len(caplog.messages)) == (4, 1)


def test_a_leader_that_has_joined_since_passes_without_a_word(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    word = BrokersWord(brokers.find)
    brokers.answer(word, ["a:1"])
    brokers.now_s += AGAIN_S
    assert not word.passes("b:1")
    brokers.answer(word, ["a:1", "b:1"])
    assert word.passes("b:1")
    assert caplog.messages == []


@pytest.mark.parametrize("failure", [SILENCE, RuntimeError("cannot schedule new futures after interpreter shutdown")])
def test_if_the_brokers_cannot_say_every_leader_passes_until_they_can(brokers: Brokers, failure: Exception) -> None:
    word = BrokersWord(brokers.find)
    brokers.answer(word, failure)
    assert word.passes("x:1")
    assert word.passes("")
    brokers.now_s += SILENT_AGAIN_S - 1
    assert word.passes("x:1")
    assert brokers.asked == 1
    brokers.now_s += 1
    assert word.passes("x:1"), "as before, while they are asked again"
    brokers.answer(word, ["a:1"])
    assert not word.passes("x:1")


def test_brokers_that_fall_silent_leave_what_they_have_said(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    word = BrokersWord(brokers.find)
    brokers.answer(word, ["a:1"])
    brokers.now_s += AGAIN_S
    with caplog.at_level(logging.DEBUG):
        assert not word.passes("x:1")
        brokers.answer(word, SILENCE)
    assert word.passes("a:1")
    assert not word.passes("x:1")
    assert "the brokers do not say which nodes are theirs: NOT_CONNECTED: no broker tells" in caplog.messages


def test_while_nobody_leads_nobody_is_asked_about(brokers: Brokers) -> None:
    word = BrokersWord(brokers.find)
    brokers.answer(word, ["a:1"])
    brokers.now_s += 2 * AGAIN_S
    assert not word.passes("")
    assert brokers.asked == 1
