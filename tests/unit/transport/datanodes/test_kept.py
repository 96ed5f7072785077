"""Connections that are kept: bounded by address, age and number, and those of one process alone. Real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from schemas.codecs.codec import encode
from schemas.records.datanode import BlockWatched, StreamError, WatchBlock
from schemas.records.packets import Kind, encode_frame
from schemas.stream_errors import BAD_FRAME, FAILED, OVERLOADED, STOPPING, TIMED_OUT
from tests.support.local.forked import in_child
from tests.support.sdk.datanode_peer import CALLER, WAIT_S, Peer
from transport.datanodes.connection import DatanodeConnection
from transport.datanodes.core.failures import UNREACHABLE, DatanodeFailed
from transport.datanodes.kept import ConnectionPool, PoolCall

WATCH = WatchBlock(partition=1, container_id=257, local_id=1, length=1, bcs_id=0, timeout_ms=0)
WATCHED = BlockWatched(datanode="dn1", bcs_id=3, length=1, satisfied=True)
ANSWER = encode_frame(Kind.REPLY, encode(WATCHED), sequence=1)
Pool = ConnectionPool[DatanodeConnection]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Iterator[ConnectionPool[DatanodeConnection]]:
    with closing(Pool(per_address=2, total=3, age_s=10.0, clock=clock)) as made:
        yield made


def refused(code: str) -> bytes:
    return encode_frame(Kind.ERROR, encode(StreamError(code=code, message="as if", datanode="dn1", offset=0, hint="")))


def is_open(connection: DatanodeConnection) -> bool:
    return connection.fileno() >= 0


# -- what is kept


def test_the_one_that_was_kept_last_is_taken_first(pool: Pool, talks: Any) -> None:
    (first, peer), (second, _) = talks(), talks()
    second.address = first.address
    pool.give_back(first)
    pool.give_back(second)
    assert [pool.take(peer.address) for _ in range(3)] == [second, first, None]


def test_an_address_has_so_many_and_all_together_so_many(pool: Pool, talks: Any) -> None:
    same = [talks()[0] for _ in range(3)]
    for connection in same:
        connection.address = "dn1:1"
        pool.give_back(connection)
    assert [is_open(one) for one in same] == [True, True, False], "what comes last to an address is closed"
    others = [talks()[0] for _ in range(2)]
    for connection in others:
        pool.give_back(connection)
    assert len(pool) == 3
    assert [is_open(one) for one in (*same, *others)] == [False, True, False, True, True], "the oldest of all made room"


def test_what_nobody_has_used_for_long_is_closed(pool: Pool, talks: Any, clock: Clock) -> None:
    (old, _), (young, _) = talks(), talks()
    pool.give_back(old)
    clock.now_s += 9.0
    pool.give_back(young)
    clock.now_s += 1.0
    assert pool.take(old.address) is None
    assert not is_open(old)
    assert pool.take(young.address) is young


def test_a_connection_is_for_the_datanode_that_is_meant(pool: Pool, talks: Any) -> None:
    connection, _ = talks()
    pool.give_back(connection)
    taken = pool.take(connection.address, "dn1")
    assert taken is not None
    assert taken is connection
    pool.give_back(taken)
    assert pool.take(connection.address, "dn9") is None
    assert not is_open(connection), "another datanode was at this address before"
    assert len(pool) == 0


def test_a_connection_on_which_something_is_open_is_not_kept(pool: Pool, talks: Any) -> None:
    connection, _ = talks()
    connection.send_request(WATCH)
    pool.give_back(connection)
    assert (len(pool), is_open(connection)) == (0, False)


def test_after_the_end_nothing_is_kept(pool: Pool, talks: Any) -> None:
    (kept, _), (late, _) = talks(), talks()
    pool.give_back(kept)
    pool.close()
    pool.give_back(late)
    pool.close()
    assert [is_open(kept), is_open(late), len(pool)] == [False, False, 0]


def test_threads_share_it(talks: Any) -> None:
    pool = Pool(per_address=4)
    connections = [talks()[0] for _ in range(4)]
    for connection in connections:
        connection.address = "dn1:1"
        pool.give_back(connection)
    taken_twice: list[bool] = []
    in_use: set[DatanodeConnection] = set()

    def work() -> None:
        for _ in range(500):
            if (one := pool.take("dn1:1")) is not None:
                taken_twice.append(one in in_use)
                in_use.add(one)
                in_use.discard(one)
                pool.give_back(one)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert taken_twice
    assert not any(taken_twice)
    assert len(pool) == 4
    pool.close()


# -- another process


def test_a_forked_process_has_none_of_them_and_they_stay_usable(pool: Pool, talks: Any) -> None:
    connection, peer = talks()
    pool.give_back(connection)

    def look() -> bool:
        return pool.take(connection.address) is None and len(pool) == 0 and not is_open(connection)

    assert in_child(look)
    taken = pool.take(connection.address)
    assert taken is not None
    assert taken is connection
    taken.send_request(WATCH)
    peer.say(ANSWER)
    assert taken.answered(taken.receive(10_000)) == WATCHED


def test_a_fork_while_the_pool_is_in_use_leaves_a_pool_that_can_be_used(pool: Pool, talks: Any) -> None:
    connection, _ = talks()
    pool.give_back(connection)
    with pool._lock:  # as a thread of the first process may hold it for ever
        assert in_child(lambda: pool.take(connection.address) is None)


def test_a_connection_that_was_taken_before_the_fork_is_of_no_use_in_the_new_process(pool: Pool, talks: Any) -> None:
    connection, peer = talks()

    def use() -> bool:
        for do in (lambda: connection.send_request(WATCH), lambda: connection.receive(1_000), connection.receive_now):
            with pytest.raises(DatanodeFailed, match="of process") as caught:
                do()
            assert caught.value.status == UNREACHABLE
        connection.interrupt()
        assert not connection.is_idle
        pool.give_back(connection)
        return len(pool) == 0 and not is_open(connection)

    assert in_child(use)
    connection.send_request(WATCH)
    peer.say(ANSWER)
    assert connection.answered(connection.receive(10_000)) == WATCHED, "nothing was sent or shut there"


# -- calls


def call(pool: Pool, peer: Peer, sends: list[DatanodeConnection] | None = None) -> PoolCall[DatanodeConnection]:
    def send(connection: DatanodeConnection) -> None:
        if sends is not None:
            sends.append(connection)
        connection.send_request(WATCH)

    return PoolCall(pool, peer.address, "dn1", lambda: DatanodeConnection(peer.address, CALLER, datanode="dn1"), send)


def watched(connection: DatanodeConnection) -> Any:
    return connection.answered(connection.receive(10_000))


def test_a_call_is_answered_and_its_connection_kept(pool: Pool, listens: Any) -> None:
    peer = listens()
    made = call(pool, peer)
    assert peer.came.wait(WAIT_S)
    peer.say(ANSWER)
    assert made.finish(watched) == WATCHED
    made.abandon()  # nothing is left to be closed
    assert len(pool) == 1


@pytest.mark.parametrize("code", [FAILED, BAD_FRAME, STOPPING, TIMED_OUT, OVERLOADED])
def test_a_fresh_connection_is_not_asked_again_and_kept_only_after_the_datanodes_own_refusal(
    pool: Pool, listens: Any, code: str
) -> None:
    peer = listens()
    made = call(pool, peer)
    assert peer.came.wait(WAIT_S)
    peer.say(refused(code))
    with pytest.raises(DatanodeFailed, match="as if"):
        made.finish(watched)
    assert len(pool) == (code == OVERLOADED)


def test_a_kept_connection_that_has_ended_is_replaced_and_step_says_that_the_answer_is_still_to_come(
    pool: Pool, listens: Any, talks: Any
) -> None:
    kept, gone = talks()
    also, _ = talks()
    peer = listens()
    kept.address = also.address = peer.address
    pool.give_back(also)
    pool.give_back(kept)
    sends: list[DatanodeConnection] = []
    made = call(pool, peer, sends)
    gone.socket.close()
    assert made.step(watched) is None
    assert (sends[0], is_open(kept), is_open(also)) == (kept, False, False), "the others are as old"
    assert peer.came.wait(WAIT_S)
    peer.say(ANSWER)
    assert made.step(watched) == WATCHED
    assert len(sends) == 2
    made.release().close()


def test_a_wait_that_is_ended_by_something_else_closes_the_connection(pool: Pool, listens: Any) -> None:
    made = call(pool, listens())
    connection = made.connection

    def stop(_: DatanodeConnection) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.finish(stop)
    assert not is_open(connection)
    assert len(pool) == 0
