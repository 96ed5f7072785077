"""Who asks for a read index, and by which record the askers are answered."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from replicated_db.core.leading.leader import Effective
from replicated_db.shell import read_index
from replicated_db.shell.read_index import NotLeading, ReadIndex, ReadIndexes
from tests.support.replicated.kit import Shard


@pytest.fixture(scope="module")
def records() -> list[Effective]:
    """Effective records of one claim, in order."""
    shard, found = Shard(), []
    for _ in range(3):
        shard.append(shard.leader.tick())
        found += shard.deliver()
    return found


@pytest.fixture
def indexes() -> ReadIndexes:
    found = ReadIndexes(3)
    found.open()
    return found


def refused(future: Future[ReadIndex]) -> str:
    assert future.done(), "nobody would ever answer"
    error = future.exception()
    assert isinstance(error, NotLeading)
    return str(error)


def test_who_asks_where_nobody_leads_is_refused_at_once():
    indexes = ReadIndexes(3)
    assert refused(indexes.ask()) == "shard 3 is not led here"
    assert not indexes.are_asked


def test_askers_beyond_the_limit_are_refused(indexes: ReadIndexes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_index, "MAX_WAITING_TICKS", 2)
    asked = [indexes.ask() for _ in range(3)]
    assert [future.done() for future in asked] == [False, False, True]
    assert refused(asked[2]) == "shard 3 is not led here"
    assert indexes.take() == asked[:2]
    assert not indexes.ask().done()


def test_who_gives_up_does_not_disturb_the_others(indexes: ReadIndexes, records: list[Effective]):
    asked = [indexes.ask(), indexes.ask()]
    assert not asked[0].cancel()
    indexes.wait_for(records[0].record.seq, indexes.take())
    indexes.on_effective(records[0])
    assert all(future.result(0) for future in asked)


def test_askers_are_answered_by_their_record_or_a_later_one(indexes: ReadIndexes, records: list[Effective]):
    seqs = [one.record.seq for one in records]
    assert seqs == sorted(set(seqs))
    early = indexes.ask()
    assert indexes.are_asked
    indexes.wait_for(seqs[1], indexes.take())
    assert not indexes.are_asked
    late = indexes.ask()
    indexes.wait_for(seqs[2], indexes.take())
    indexes.on_effective(records[0])
    assert not early.done()
    indexes.on_effective(records[1])
    assert early.result(0) == ReadIndex(offset=records[1].offset, record_hash=records[1].record_hash)
    assert not late.done()
    indexes.on_effective(records[2])
    assert late.result(0).offset == records[2].offset


def test_one_record_answers_all_that_wait_for_earlier_ones(indexes: ReadIndexes, records: list[Effective]):
    asked = []
    for one in records[:2]:
        asked.append(indexes.ask())
        indexes.wait_for(one.record.seq, indexes.take())
    indexes.on_effective(records[2])
    assert [future.result(0).offset for future in asked] == [records[2].offset] * 2


def test_an_end_of_the_leadership_fails_all_that_ask_and_all_that_wait(indexes: ReadIndexes, records: list[Effective]):
    waits = indexes.ask()
    indexes.wait_for(records[0].record.seq, indexes.take())
    asks = indexes.ask()
    indexes.close()
    assert {refused(waits), refused(asks)} == {"shard 3 lost its leader"}
    assert not indexes.are_asked
    assert refused(indexes.ask()) == "shard 3 is not led here"
    indexes.close()
    indexes.open()
    indexes.on_effective(records[0])
    assert indexes.take() == []
    assert not indexes.ask().done()
