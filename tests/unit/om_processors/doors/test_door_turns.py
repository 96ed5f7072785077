"""Linearizable lookups share read indexes: which turn each of them goes with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from om_processors.doors.door_lookups import MAX_TURNS, DoorLookups
from om_processors.serving.consistency import LINEARIZABLE, NotReadable
from replicated_db.core.errors import StoreFailure
from schemas.codecs.codec import Undecodable
from schemas.records.door import DoorRead, DoorRows

READ = DoorRead(consistency=LINEARIZABLE, index=0, volume="vol1", bucket="bucket1", keys=["k"])


class Shard:
    """A shard whose read indexes come when the test says so; its replica answers that it may not be read."""

    def __init__(self) -> None:
        script = cast("Any", self)
        self.fatal: list[BaseException] = []
        self.lookups = DoorLookups({0: script}, script, self.fatal.append)
        self.asked: list[asyncio.Future[None]] = []
        self.answered: list[int] = []
        self.failed: list[int] = []

    async def ready(self, shard: int, consistency: str, session: dict[int, int]) -> None:
        assert (shard, consistency, session) == (0, LINEARIZABLE, {})
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]

    def refuse_flagged(self, shard: int) -> None:
        raise NotReadable("REPLICA_FLAGGED", f"shard {shard}")

    async def look_up(self, *numbers: int) -> None:
        """Let lookups arrive together, and all that follows from them happen."""
        self.lookups.ask([(READ, self._told(number)) for number in numbers])
        await settled()

    def _told(self, number: int) -> Callable[[DoorRows], None]:
        def told(rows: DoorRows) -> None:
            assert rows.status in ("REPLICA_FLAGGED", "NO_LEADER", "INTERNAL_ERROR")
            (self.failed if rows.status == "INTERNAL_ERROR" else self.answered).append(number)

        return told


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def tell(story: Callable[[Shard], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        shard = Shard()
        await story(shard)
        shard.lookups.close()

    asyncio.run(run())


def test_lookups_that_arrive_together_share_a_read_index():
    async def story(shard: Shard) -> None:
        await shard.look_up(1, 2, 3)
        assert len(shard.asked) == 1
        shard.asked[0].set_result(None)
        await settled()
        assert shard.answered == [1, 2, 3]

    tell(story)


def test_while_a_turn_waits_the_next_asks_and_no_more_than_the_limit_do():
    async def story(shard: Shard) -> None:
        for number in range(MAX_TURNS + 3):
            await shard.look_up(number)
        assert len(shard.asked) == MAX_TURNS
        shard.asked[1].set_result(None)
        await settled()
        assert shard.answered == [1], "a turn that is ready answers, whatever the one before it does"
        assert len(shard.asked) == MAX_TURNS + 1, "those that came meanwhile share the next read index"
        shard.asked[-1].set_result(None)
        await settled()
        assert shard.answered == [1, *range(MAX_TURNS, MAX_TURNS + 3)]

    tell(story)


def test_a_read_index_answers_only_those_that_came_before_it_was_asked_for():
    async def story(shard: Shard) -> None:
        await shard.look_up(1)
        shard.lookups.ask([(READ, shard._told(2))])
        shard.asked[0].set_result(None)
        await settled()
        assert shard.answered == [1]

    tell(story)


def test_a_lookup_that_comes_as_the_last_turn_ends_is_taken():
    async def story(shard: Shard) -> None:
        def once_more(_: DoorRows) -> None:
            shard.lookups.ask([(READ, shard._told(2))])

        for number in range(MAX_TURNS):
            shard.lookups.ask([(READ, once_more if number == 0 else shard._told(1))])
            await settled()
        for asked in list(shard.asked):
            asked.set_result(None)
        await settled()
        for asked in shard.asked[MAX_TURNS:]:
            asked.set_result(None)
        await settled()
        assert sorted(shard.answered) == [1, 2]

    tell(story)


def test_a_turn_without_a_leader_refuses_its_lookups_alone():
    async def story(shard: Shard) -> None:
        await shard.look_up(1)
        await shard.look_up(2)
        shard.asked[0].set_exception(NotReadable("NO_LEADER", "shard 0 has no leader"))
        await settled()
        assert shard.answered == [1]
        await shard.look_up(3)
        assert len(shard.asked) == 3, "the place is free again"

    tell(story)


@pytest.mark.parametrize("error", [KeyError("hash"), StoreFailure("the disk is gone")])
def test_an_error_of_a_turn_is_told_to_all_its_lookups_and_ends_no_other(error: Exception):
    """One kind of error was caught: any other left the lookups of the turn, and those behind it, unanswered."""

    async def story(shard: Shard) -> None:
        for number in range(MAX_TURNS + 2):
            await shard.look_up(number)
        shard.asked[0].set_exception(error)
        await settled()
        assert shard.failed == [0]
        for asked in shard.asked[1:]:
            asked.set_result(None)
        await settled()
        for asked in shard.asked[MAX_TURNS:]:
            if not asked.done():
                asked.set_result(None)
        await settled()
        assert shard.answered == list(range(1, MAX_TURNS + 2))
        assert shard.fatal == ([error] if isinstance(error, StoreFailure) else [])

    tell(story)


def test_rows_that_cannot_be_read_are_told_to_who_asks(monkeypatch: pytest.MonkeyPatch):
    async def story(shard: Shard) -> None:
        def undecodable(_: int) -> None:
            raise Undecodable("a row")

        await shard.look_up(1, 2)
        monkeypatch.setattr(shard, "refuse_flagged", undecodable)
        shard.asked[0].set_result(None)
        await settled()
        assert shard.failed == [1, 2]
        await shard.look_up(3)
        assert len(shard.asked) == 2, "the next turn begins"

    tell(story)


def test_who_closes_ends_all_turns():
    async def story(shard: Shard) -> None:
        await shard.look_up(1)
        await shard.look_up(2)
        shard.lookups.close()
        await settled()
        assert all(asked.cancelled() for asked in shard.asked)

    tell(story)
