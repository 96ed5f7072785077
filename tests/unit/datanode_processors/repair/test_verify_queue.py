"""What is verified next: the order, what happens without room, and what was left out."""

from __future__ import annotations

from datanode_processors.repair.core.verify_queue import CloseHere, LookThrough, VerifyBlock, VerifyQueue, VerifyStep


def taken(queue: VerifyQueue, *, has_room: bool = True) -> list[VerifyStep]:
    found = []
    while (step := queue.take(has_room=has_room)) is not None:
        found.append(step)
    return found


def test_blocks_come_before_containers_and_those_before_pipelines_each_once_and_in_order() -> None:
    queue = VerifyQueue(10)
    queue.look_through(3)
    queue.close(2, 258)
    for key in (b"b", b"a", b"b"):
        queue.verify((1, key))
    queue.close(1, 257)
    queue.look_through(3)
    assert VerifyBlock(1, b"a") in queue
    assert CloseHere(2, 258) in queue
    assert taken(queue) == [
        VerifyBlock(1, b"b"), VerifyBlock(1, b"a"), CloseHere(2, 258), CloseHere(1, 257), LookThrough(3),
    ]  # fmt: skip
    assert VerifyBlock(1, b"a") not in queue


def test_what_finds_no_room_has_its_pipeline_looked_through() -> None:
    queue = VerifyQueue(1)
    for partition in (1, 2, 3):
        queue.verify((partition, b"key"))
        queue.close(partition, 256 + partition)
    assert taken(queue) == [VerifyBlock(1, b"key"), CloseHere(1, 257), LookThrough(2), LookThrough(3)]


def test_a_pipeline_with_repairs_that_found_no_room_is_looked_through_once_there_is() -> None:
    queue = VerifyQueue(1)
    queue.leave_out(5)
    queue.leave_out(5)
    assert taken(queue, has_room=False) == []
    assert taken(queue) == [LookThrough(5)]
    assert taken(queue) == []


def test_blocks_of_one_pipeline_that_come_next_are_taken_together() -> None:
    queue = VerifyQueue(10)
    for partition, key in ((1, b"a"), (1, b"b"), (1, b"c"), (2, b"d"), (1, b"e")):
        queue.verify((partition, key))
    assert queue.take_blocks(2, 10) == []
    assert queue.take_blocks(1, 2) == [b"a", b"b"]
    assert queue.take_blocks(1, 10) == [b"c"]
    assert taken(queue) == [VerifyBlock(2, b"d"), VerifyBlock(1, b"e")]
