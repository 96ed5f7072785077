"""Exchanges of small blocks, without datanodes: who is asked, what an answer means, and what becomes of failed ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import BlocksInParts
from producers.blocks.silent_members import SilentMembers
from producers.blocks.small_blocks import SmallBlocks
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas.codecs.codec import decode_as
from schemas.records.datanode import BlockOutcome, BlocksWritten, Member, OpenBlocks, TokenedRequest
from schemas.records.rows import BlockLocation

MEMBERS = tuple(
    Member(datanode=f"dn{number}", address=f"dn{number}:1", http_address="", rack=rack)
    for number, rack in ((1, "/a"), (2, "/b"), (3, "/b"))
)
NAMES = [member.datanode for member in MEMBERS]
PIPELINE = PipelineView(pipeline="p1", partition=1, state="OPEN", members=MEMBERS)
WAIT_S = 30.0


def location(number: int = 1) -> BlockLocation:
    return BlockLocation(container_id=7, local_id=number, offset=0, length=0, pipeline="p1")


def outcome(bcs_id: int = 5, code: str = "") -> BlockOutcome:
    return BlockOutcome(bcs_id=bcs_id, code=code, message="")


def opened(request: BlocksInParts) -> OpenBlocks:
    return decode_as(OpenBlocks, request.opening)


class Datanodes:
    """Answers an exchange with what ``answer`` returns or raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, BlocksInParts]] = []
        self.answer: Callable[[BlocksInParts], BlocksWritten] = self.good
        self.watched: list[str] = NAMES
        self.leader = "dn2"
        self.probed: list[str] = []
        self.silent = SilentMembers(lambda member: self.probed.append(member.datanode))

    def good(self, request: BlocksInParts) -> BlocksWritten:
        return BlocksWritten(
            datanode="dn1", outcomes=[outcome(5 + number) for number, _ in enumerate(opened(request).blocks)], watched=self.watched,
            leader=self.leader,
        )  # fmt: skip

    def ask_small(self, member: Member, request: BlocksInParts) -> BlocksWritten:
        self.asked.append((member.datanode, request))
        return self.answer(request)


class Site:
    def __init__(self) -> None:
        self.datanodes = Datanodes()
        datanodes: Any = self.datanodes
        self.small = SmallBlocks(datanodes)
        self.waited: list[object] = []

    def write(
        self, data: bytes = b"data", number: int = 1, rack: str = "/b", token: bytes = b"",
        still: Callable[[object], None] | None = None, follow: Any = None,
    ) -> int | None:  # fmt: skip
        return self.small.write(
            location(number), PIPELINE, [data], b"sums", StreamOptions(rack=rack), still or self.waited.append, token,
            follow,
        )  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.small.close()


def test_a_block_is_written_with_its_bytes_and_the_entry_is_told(site: Site) -> None:
    assert (site.small.written, site.small.batches) == (0, 0)
    assert site.write(b"data") == 5
    ((_, request),) = site.datanodes.asked
    (block,) = opened(request).blocks
    assert (block.container_id, block.local_id, block.length, block.checksums) == (7, 1, 4, b"sums")
    assert (opened(request).partition, b"".join(request.data)) == (1, b"data")
    assert (site.small.written, site.small.batches) == (1, 1)
    assert site.waited == []


@pytest.mark.parametrize(
    ("answer", "watched"),
    [(outcome(5), NAMES[:2]), (outcome(5, "CONTAINER_CLOSED"), NAMES), (outcome(0), NAMES), (outcome(-1), NAMES)],
)
def test_anything_but_a_block_that_every_member_holds_becomes_a_stream(
    site: Site, answer: BlockOutcome, watched: list[str]
) -> None:  # fmt: skip
    site.datanodes.answer = lambda _: BlocksWritten(datanode="dn1", outcomes=[answer], watched=watched, leader="dn1")
    assert site.write() is None
    assert (site.small.written, site.small.batches) == (0, 1)
    site.datanodes.answer = site.datanodes.good
    assert site.write() == 5, "the next one is tried again: the exchange itself went well"


@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_with_another_number_of_outcomes_is_none(site: Site, count: int) -> None:
    site.datanodes.answer = lambda _: BlocksWritten(
        datanode="dn1", outcomes=[outcome()] * count, watched=NAMES, leader="dn1"
    )
    assert site.write() is None
    assert site.write() is None
    assert len(site.datanodes.asked) == 1, "an exchange that fails closes the way for a while"


def test_a_datanode_that_fails_closes_the_way_for_a_while(site: Site) -> None:
    def fail(_: BlocksInParts) -> BlocksWritten:
        raise DatanodeError("TIMED_OUT", "no answer")

    site.datanodes.answer = fail
    assert site.write() is None
    assert site.write() is None
    assert len(site.datanodes.asked) == 1


def test_nobody_is_asked_while_a_member_is_silent(site: Site) -> None:
    site.datanodes.silent.on_silent(MEMBERS[2])
    assert site.write() is None
    assert site.datanodes.asked == []
    site.datanodes.silent.on_answered(MEMBERS[2])
    assert site.write() == 5


def test_whoever_waits_long_has_the_members_probed_and_leaves_once_one_is_silent(site: Site) -> None:
    ended = threading.Event()

    def hang(request: BlocksInParts) -> BlocksWritten:
        assert ended.wait(WAIT_S)
        return site.datanodes.good(request)

    def find_silent(member: Member) -> None:
        if member.datanode == "dn3":
            site.datanodes.silent.on_silent(member)

    site.datanodes.answer = hang
    site.datanodes.silent = SilentMembers(find_silent)
    try:
        assert site.write() is None
    finally:
        ended.set()
    assert site.waited, "it was told what is waited for"


def test_a_defect_leaves_nobody_waiting(site: Site) -> None:
    def fail(_: BlocksInParts) -> BlocksWritten:
        raise ZeroDivisionError

    site.datanodes.answer = fail
    assert site.write() is None


def test_the_nearest_member_is_asked_and_of_those_the_one_that_led_last(site: Site) -> None:
    for _ in range(20):
        site.write(rack="/a")
    assert {name for name, _ in site.datanodes.asked} == {"dn1"}, "the leader is in another rack"
    site.datanodes.asked.clear()
    for leader in ("dn2", "dn3"):
        site.datanodes.leader = leader
        site.write(rack="/b")
        site.datanodes.asked.clear()
        for _ in range(10):
            site.write(rack="/b")
        assert {name for name, _ in site.datanodes.asked} == {leader}


def test_without_a_known_leader_near_members_share_the_work(site: Site) -> None:
    site.datanodes.leader = ""
    for _ in range(60):
        site.write(rack="/b")
    assert {name for name, _ in site.datanodes.asked} == {"dn2", "dn3"}


def test_blocks_that_gather_go_together_in_their_order(site: Site) -> None:
    go_on = threading.Event()

    def slow(request: BlocksInParts) -> BlocksWritten:
        assert go_on.wait(WAIT_S)
        return site.datanodes.good(request)

    site.datanodes.answer = slow
    found: dict[int, int | None] = {}
    threads = []
    for number in range(1, 5):
        data = b"%d" % number * number

        def write(number: int = number, data: bytes = data) -> None:
            found[number] = site.write(data, number)

        threads.append(threading.Thread(target=write, daemon=True))
        threads[-1].start()
        while len(site.datanodes.asked) + sum(len(way.waiting) for way in site.small._batches._ways.values()) < number:
            pass
    go_on.set()
    for thread in threads:
        thread.join(WAIT_S)
    first, second = (request for _, request in site.datanodes.asked)
    assert [block.local_id for block in opened(first).blocks] == [1]
    assert [block.local_id for block in opened(second).blocks] == [2, 3, 4]
    assert b"".join(second.data) == b"223334444"
    assert found == {1: 5, 2: 5, 3: 6, 4: 7}
    assert (site.small.written, site.small.batches) == (4, 2)


def test_who_waits_is_told_for_what_and_may_leave(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.blocks.small_blocks.LOOK_S", 0.001)
    go_on = threading.Event()

    def slow(request: BlocksInParts) -> BlocksWritten:
        assert go_on.wait(WAIT_S)
        return site.datanodes.good(request)

    def still(why: object) -> None:
        raise InterruptedError(str(why))

    site.datanodes.answer = slow
    with pytest.raises(InterruptedError, match="block 7/1 is being written on p1"):
        site.small.write(location(), PIPELINE, [b"data"], b"", StreamOptions(), still)
    go_on.set()


def test_the_tokens_of_all_blocks_go_with_the_exchange(site: Site) -> None:
    site.datanodes.answer = lambda _: BlocksWritten(datanode="dn1", outcomes=[outcome()], watched=NAMES, leader="")
    assert site.write(token=b"token") == 5
    ((_, request),) = site.datanodes.asked
    assert decode_as(TokenedRequest, request.opening).tokens == b"token"


def test_a_client_that_is_closed_writes_none(site: Site) -> None:
    site.small.close()
    assert site.write() is None
    assert site.write() is None
    assert site.datanodes.asked == []


# -- what follows a block


def test_what_follows_is_begun_by_the_thread_of_the_exchange_and_its_end_is_waited_for(site: Site) -> None:
    ending: Future[int] = Future()
    begun: list[tuple[int, str]] = []

    def follow(bcs_id: int) -> Future[int]:
        begun.append((bcs_id, threading.current_thread().name))
        threading.Timer(0.4, ending.set_result, (1,)).start()  # beyond LOOK_S
        return ending

    assert site.write(follow=follow) == 5
    assert ending.done()
    ((bcs_id, thread),) = begun
    assert bcs_id == 5
    assert thread.startswith("stratolog-small")
    assert site.waited == [], "from the commit on nothing ends the wait"


def test_a_block_whose_follower_begins_nothing_is_told_at_once(site: Site) -> None:
    assert site.write(follow=lambda _: None) == 5


@pytest.mark.parametrize("answer", [outcome(5, "CONTAINER_CLOSED"), outcome(0)])
def test_nothing_follows_a_block_that_is_to_be_a_stream(site: Site, answer: BlockOutcome) -> None:
    site.datanodes.answer = lambda _: BlocksWritten(datanode="dn1", outcomes=[answer], watched=NAMES, leader="dn1")
    begun: list[int] = []
    assert site.write(follow=begun.append) is None
    assert begun == []


def test_what_follows_the_blocks_of_a_batch_leaves_together(site: Site) -> None:
    events: list[str] = []

    @contextmanager
    def together() -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    site.small = SmallBlocks(cast(Any, site.datanodes), together)
    first, going = threading.Event(), threading.Event()

    def hold_the_first(request: BlocksInParts) -> BlocksWritten:
        if not first.is_set():
            first.set()
            assert going.wait(WAIT_S)
        return site.datanodes.good(request)

    site.datanodes.answer = hold_the_first

    def follow(_: int) -> None:
        events.append("follow")

    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(site.write, number=1, follow=follow)]
        assert first.wait(WAIT_S)
        futures += [threads.submit(site.write, number=number, follow=follow) for number in (2, 3, 4)]
        (batches,) = site.small._batches._ways.values()
        while len(batches.waiting) < 3:
            time.sleep(0.001)
        going.set()
        assert all(future.result(WAIT_S) for future in futures)
    assert events == ["begin", "follow", "end", "begin", "follow", "follow", "follow", "end"]


@pytest.mark.parametrize("leaves", ["silent", "interrupted"])
def test_nothing_follows_the_block_of_one_who_has_left(site: Site, leaves: str) -> None:
    ended, answered = threading.Event(), threading.Event()
    begun: list[int] = []

    def hang(request: BlocksInParts) -> BlocksWritten:
        assert ended.wait(WAIT_S)
        return site.datanodes.good(request)

    def still(_: object) -> None:
        if leaves == "silent":
            site.datanodes.silent.on_silent(MEMBERS[2])
        else:
            raise ValueError("the key was interrupted")

    @contextmanager
    def together() -> Iterator[None]:
        yield
        answered.set()

    site.small = SmallBlocks(cast(Any, site.datanodes), together)
    site.datanodes.answer = hang
    try:
        if leaves == "silent":
            assert site.write(follow=begun.append, still=still) is None
        else:
            with pytest.raises(ValueError, match="interrupted"):
                site.write(follow=begun.append, still=still)
    finally:
        ended.set()
    assert answered.wait(WAIT_S)
    assert begun == []


def test_a_member_that_becomes_silent_does_not_end_the_wait_for_what_follows(site: Site) -> None:
    ending: Future[int] = Future()

    def follow(_: int) -> Future[int]:
        site.datanodes.silent.on_silent(MEMBERS[2])
        threading.Timer(0.6, ending.set_result, (1,)).start()
        return ending

    assert site.write(follow=follow) == 5


def test_a_failed_end_of_what_follows_is_an_end(site: Site) -> None:
    ending: Future[int] = Future()
    ending.set_exception(ValueError("refused"))
    assert site.write(follow=lambda _: ending) == 5


def test_a_defect_in_what_follows_leaves_nobody_waiting(site: Site) -> None:
    def follow(_: int) -> None:
        raise RuntimeError("a defect")

    assert site.write(follow=follow) == 5


def test_nothing_follows_a_block_whose_thread_could_not_be_started(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool queues what it is given before it says that there are no more threads: another one may come to it."""
    submit = site.small._senders.submit
    begun: list[int] = []
    queued: list[Future[Any]] = []

    def refuse(*arguments: Any) -> None:
        queued.append(submit(*arguments))
        raise RuntimeError("can't start new thread")

    going = threading.Event()
    site.datanodes.answer = lambda request: (going.wait(WAIT_S), site.datanodes.good(request))[1]
    monkeypatch.setattr(site.small._senders, "submit", refuse)
    try:
        assert site.write(follow=begun.append) is None
    finally:
        going.set()
    queued[0].result(WAIT_S)
    assert begun == []
