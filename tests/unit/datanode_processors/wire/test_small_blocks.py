"""Whole small blocks in one exchange: real servers, sockets and block files; commits and watches that are kept in memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.fsync import CLOSE
from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.small_blocks import STORED, check_opening, child_error, joined, small_blocks
from datanode_processors.wire.counters import EXCHANGE_STEPS
from datanode_processors.wire.wire import read_error, read_record
from schemas import stream_errors as codes
from schemas.codecs.codec import decode
from schemas.conversation import conversation
from schemas.records.datanode import (
    BlockOutcome,
    BlocksCommitted,
    BlocksWritten,
    OpenBlocks,
    PutBlocks,
    Route,
    WatchBlocks,
    WholeBlock,
    WriteBlocks,
)
from schemas.records.packets import MAX_BLOCKS_TOGETHER, MAX_BYTES_TOGETHER, Kind
from tests.support.datanodes.streams import (
    CELL,
    CONTAINER,
    PARTITION,
    Behind,
    Client,
    Datanode,
    Proxy,
    blocks_together,
    write_block,
)

LIMITS = WireLimits(stop_grace_s=0.2, linger_s=0.2, exchange_timeout_s=1.0)


def chain(nodes: list[Any]) -> list[Route]:
    return [
        Route(datanode=node.name, address=node.address, children=[nodes[number + 1].name] if number < len(nodes) - 1 else [])
        for number, node in enumerate(nodes)
    ]  # fmt: skip


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Datanode]]:
    made = [Datanode(f"dn{number}", tmp_path, LIMITS, fsync=CLOSE) for number in (1, 2, 3)]
    for node in made:
        node.pipelines.leader = made[0].pipelines
    yield made
    for node in made:
        node.stop()


def ask(node: Any, request: Any) -> BlocksWritten:
    """Send one request on a connection of its own; raises the ERROR that comes."""
    client = Client(node.address)
    try:
        return answer_of(client, request)
    finally:
        client.close()


def answer_of(client: Client, request: Any) -> BlocksWritten:
    frame = client.request(request)
    if frame.header.kind is Kind.ERROR:
        error = read_error(frame)
        raise BlockError(error.code, error.message, error.offset, error.hint, error.datanode)
    written = read_record(frame, BlocksWritten)
    assert isinstance(written, BlocksWritten)
    return written


BLOCKS = [(1, b"one" * 5000), (2, os.urandom(3 * CELL + 17)), (3, b"x"), (4, os.urandom(CELL))]


def test_blocks_are_on_every_replica_and_committed_once(nodes: list[Datanode]) -> None:
    written = ask(nodes[0], blocks_together(chain(nodes), BLOCKS))
    assert [outcome.code for outcome in written.outcomes] == [""] * 4
    assert [outcome.bcs_id for outcome in written.outcomes] == [1, 2, 3, 4]
    assert set(written.watched) == {"dn1", "dn2", "dn3"}
    for node in nodes:
        for block, data in BLOCKS:
            assert node.bytes_of(block) == data
            assert node.store.stored_length(CONTAINER, block) == len(data)
    assert [len(batch.blocks) for batch in nodes[0].pipelines.batches] == [4]
    assert not nodes[1].pipelines.batches
    assert not nodes[2].pipelines.batches


def test_the_steps_of_an_exchange_are_counted_also_of_one_that_failed(nodes: list[Datanode]) -> None:
    begun_s = time.monotonic()
    ask(nodes[0], blocks_together(chain(nodes), BLOCKS))
    lasted_s = time.monotonic() - begun_s
    nodes[2].stop()
    with pytest.raises(BlockError):
        ask(nodes[0], blocks_together(chain(nodes), [(9, b"data")]))
    root, middle, leaf = (node.server.snapshot() for node in nodes)
    assert root.exchange_steps == {"store": 2, "below": 1, "commit": 1, "watch": 1}
    assert leaf.exchange_steps == {"store": 1, "below": 0, "commit": 0, "watch": 0}
    assert (root.exchanges, root.exchanged_blocks) == (2, len(BLOCKS) + 1)
    assert all(root.exchange_seconds[step] > 0 for step in EXCHANGE_STEPS)
    assert sum(root.exchange_seconds[step] for step in ("commit", "watch")) < lasted_s
    assert middle.exchange_seconds["store"] > 0
    assert (middle.exchange_seconds["commit"], middle.exchange_seconds["watch"]) == (0, 0), "that is the root's"


def test_each_file_is_fsynced_and_the_directory_once(nodes: list[Datanode]) -> None:
    before = [(node.store.fsyncs.files, node.store.fsyncs.directories) for node in nodes]
    ask(nodes[0], blocks_together(chain(nodes), BLOCKS))
    for node, (files, directories) in zip(nodes, before, strict=True):
        assert node.store.fsyncs.files - files == 4
        # The container's own directory is new: its entry is stored too.
        assert node.store.fsyncs.directories - directories == 2
    ask(nodes[0], blocks_together(chain(nodes), [(9, b"later")]))
    assert nodes[2].store.fsyncs.directories - before[2][1] == 3


def test_connections_are_kept_from_one_exchange_to_the_next(nodes: list[Datanode]) -> None:
    client = Client(nodes[0].address)
    for number in range(5):
        answer_of(client, blocks_together(chain(nodes), [(number + 1, b"data")]))
    client.close()
    for node in nodes[1:]:
        assert node.server.snapshot().connections <= 2  # one to write, one for the watch


def test_an_exchange_may_be_repeated_and_a_stream_may_follow(nodes: list[Datanode]) -> None:
    request = blocks_together(chain(nodes), [(1, b"same bytes")])
    first, second = ask(nodes[0], request), ask(nodes[0], request)
    assert not first.outcomes[0].code
    assert not second.outcomes[0].code
    assert write_block(nodes[0].address, chain(nodes), b"same bytes and more") is None
    assert nodes[2].bytes_of(1) == b"same bytes and more"


def test_what_one_block_meets_is_no_other_blocks_fault(nodes: list[Datanode]) -> None:
    nodes[2].pipelines.closed.add(8)
    mixed = blocks_together(chain(nodes), [(1, b"good"), (2, b"bad")])
    opening = decode(mixed.opening)
    assert isinstance(opening, OpenBlocks)
    blocks = [opening.blocks[0], replace(opening.blocks[1], container_id=8)]
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"good"), (2, b"bad")], blocks=blocks))
    assert [outcome.code for outcome in written.outcomes] == ["", codes.CONTAINER_CLOSED]
    assert sorted(nodes[0].pipelines.committed) == [1]


def test_a_full_disk_of_one_member_is_that_blocks_outcome(
    nodes: list[Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: int, path: Path) -> None:
        raise BlockError(codes.DISK_FULL, f"{size} bytes do not fit: {path}")

    monkeypatch.setattr(nodes[1].store.space, "take", full)
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"data")]))
    assert written.outcomes[0].code == codes.DISK_FULL
    assert written.outcomes[0].bcs_id == 0
    assert not nodes[0].pipelines.committed


def test_after_an_fsync_that_failed_the_block_is_not_stored(
    nodes: list[Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {"left": 1}
    sync = nodes[1].store.fsyncs.file

    def file(descriptor: int) -> None:
        if failing["left"]:
            failing["left"] -= 1
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(nodes[1].store.fsyncs, "file", file)
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"a"), (2, b"b")]))
    assert sorted(outcome.code for outcome in written.outcomes) == ["", codes.FAILED]
    assert len(nodes[0].pipelines.committed) == 1
    lost = next(number for number in (1, 2) if number not in nodes[0].pipelines.committed)
    assert nodes[1].store.stored_length(CONTAINER, lost) == 0


def test_a_member_whose_watch_fails_is_not_named(nodes: list[Datanode]) -> None:
    nodes[2].pipelines.deaf = True
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"data")]))
    assert not written.outcomes[0].code
    assert set(written.watched) == {"dn1", "dn2"}


@pytest.mark.parametrize("dead", [1, 2])
def test_a_dead_member_is_named_and_nothing_is_committed(nodes: list[Datanode], dead: int) -> None:
    routes = chain(nodes)
    ask(nodes[0], blocks_together(routes, [(1, b"before")]))
    nodes[dead].stop()
    with pytest.raises(BlockError) as caught:
        ask(nodes[0], blocks_together(routes, [(2, b"data")]))
    assert caught.value.code == codes.DOWNSTREAM_FAILED
    assert caught.value.datanode == f"dn{dead + 1}"
    assert sorted(nodes[0].pipelines.committed) == [1]


def test_a_member_that_has_come_back_is_reached_again(nodes: list[Datanode], tmp_path: Path) -> None:
    ask(nodes[0], blocks_together(chain(nodes), [(1, b"before")]))
    nodes[1].stop()
    again = Datanode("dn2", tmp_path, LIMITS, fsync=CLOSE)
    again.pipelines.leader = nodes[0].pipelines
    try:
        written = ask(nodes[0], blocks_together(chain([nodes[0], again, nodes[2]]), [(2, b"after")]))
        assert set(written.watched) == {"dn1", "dn2", "dn3"}
        assert again.bytes_of(2) == b"after"
    finally:
        again.stop()


def test_a_member_that_is_silent_is_named(nodes: list[Datanode]) -> None:
    proxy = Proxy(nodes[2].address)
    behind = [nodes[0], nodes[1], Behind(nodes[2], proxy)]
    ask(nodes[0], blocks_together(chain(behind), [(1, b"before")]))
    proxy.answering.clear()
    begun_s = time.monotonic()
    with pytest.raises(BlockError) as caught:
        ask(nodes[0], blocks_together(chain(behind), [(2, b"data")]))
    proxy.close()
    assert (caught.value.code, caught.value.datanode) == (codes.DOWNSTREAM_FAILED, "dn3")
    assert time.monotonic() - begun_s < 8 * LIMITS.exchange_timeout_s
    assert sorted(nodes[0].pipelines.committed) == [1]


def test_a_damaged_link_is_noticed(nodes: list[Datanode]) -> None:
    data = os.urandom(CELL)
    proxy = Proxy(nodes[1].address, flip_at=CELL // 2)
    try:
        with pytest.raises(BlockError) as caught:
            ask(nodes[0], blocks_together(chain([nodes[0], Behind(nodes[1], proxy), nodes[2]]), [(1, data)]))
    finally:
        proxy.close()
    assert caught.value.code == codes.DOWNSTREAM_FAILED
    assert caught.value.datanode == "dn2"
    assert not nodes[0].pipelines.committed
    assert not nodes[2].path(1).exists()


def test_a_member_of_an_older_version_is_said_so(nodes: list[Datanode], monkeypatch: pytest.MonkeyPatch) -> None:
    own_hello = conversation.own_hello

    def older(name: str, cluster: str) -> Any:
        hello = own_hello(name, cluster)
        return replace(hello, max_version=1) if name == "dn2" else hello

    monkeypatch.setattr("datanode_processors.wire.connection.own_hello", older)
    with pytest.raises(BlockError) as caught:
        ask(nodes[0], blocks_together(chain(nodes), [(1, b"data")]))
    assert (caught.value.code, caught.value.hint, caught.value.datanode) == (
        codes.DOWNSTREAM_FAILED, codes.UNSUPPORTED_VERSION, "dn2"
    )  # fmt: skip


def test_two_exchanges_of_one_block_do_not_mix(nodes: list[Datanode]) -> None:
    ones, twos = b"1" * 200_000, b"2" * 200_000
    found: list[str] = []

    def write(data: bytes) -> None:
        try:
            found.extend(outcome.code for outcome in ask(nodes[0], blocks_together(chain(nodes), [(1, data)])).outcomes)
        except BlockError as error:
            found.append(error.code)

    threads = [threading.Thread(target=write, args=(data,)) for data in (ones, twos)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each may meet the other at a datanode, and be refused there: then it goes on as a stream.
    assert len(found) == 2
    assert set(found) <= {"", codes.OVERLOADED, codes.DOWNSTREAM_FAILED}
    for node in nodes:
        assert node.bytes_of(1) in (ones, twos)


# ------------------------------------------------------------------------------------------------ bad requests


def opening_of(**changes: Any) -> OpenBlocks:
    opening = decode(blocks_together([Route(datanode="dn1", address="h:1", children=[])], BLOCKS).opening)
    assert isinstance(opening, OpenBlocks)
    return replace(opening, **changes)


SIZE = sum(len(data) for _, data in BLOCKS)
ONE = WholeBlock(container_id=CONTAINER, local_id=1, length=1, checksums=bytes(4))


@pytest.mark.parametrize(
    ("opening", "size", "said"),
    [
        (opening_of(blocks=[]), 0, "0 blocks together"),
        (opening_of(blocks=[ONE] * (MAX_BLOCKS_TOGETHER + 1)), 65, "65 blocks together"),
        (opening_of(blocks=[ONE, ONE]), 2, "stands twice"),
        (opening_of(blocks=[replace(ONE, length=0, checksums=b"")]), 0, "at least 1"),
        (opening_of(blocks=[replace(ONE, length=-5)]), 0, "at least 1"),
        (opening_of(blocks=[replace(ONE, local_id=-1)]), 1, "63 bits"),
        (opening_of(blocks=[replace(ONE, checksums=bytes(8))]), 1, "8 bytes of checksums"),
        (opening_of(bytes_per_checksum=1), SIZE, "bytes_per_checksum 1"),
        (opening_of(), SIZE - 1, f"with {SIZE - 1} bytes of data"),
        (opening_of(), MAX_BYTES_TOGETHER + 1, "at most"),
    ],
)
def test_a_request_that_is_wrong_in_itself_is_refused(opening: OpenBlocks, size: int, said: str) -> None:
    with pytest.raises(BlockError, match=said) as caught:
        check_opening(opening, size)
    assert caught.value.code == codes.INVALID_REQUEST


def test_bytes_that_do_not_have_their_checksum_are_refused() -> None:
    data = bytearray(b"".join(data for _, data in BLOCKS))
    assert [small.block.local_id for small in small_blocks(opening_of(), memoryview(data))] == [1, 2, 3, 4]
    data[len(BLOCKS[0][1]) + CELL] ^= 1
    with pytest.raises(BlockError, match=f"block {CONTAINER}/2: its bytes at {CELL} ") as caught:
        list(small_blocks(opening_of(), memoryview(data)))
    assert caught.value.code == codes.CHECKSUM_MISMATCH


def test_outcomes_are_joined_and_the_first_failure_stays() -> None:
    own, below = BlockOutcome(code="A", message="a", bcs_id=0), BlockOutcome(code="B", message="b", bcs_id=0)
    assert joined([STORED, own, STORED], [STORED, below, below], "dn2") == [STORED, own, below]
    with pytest.raises(BlockError, match="1 outcomes of 2 blocks") as caught:
        joined([STORED, STORED], [STORED], "dn2")
    assert caught.value.datanode == "dn2"
    deeper = child_error("dn2", BlockError(codes.DOWNSTREAM_FAILED, "gone", datanode="dn3"))
    assert (deeper.code, deeper.datanode) == (codes.DOWNSTREAM_FAILED, "dn3")


@pytest.mark.parametrize(
    "request_",
    [
        WriteBlocks(opening=b"", data=b""),
        WriteBlocks(opening=b"nonsense", data=b"x"),
        WriteBlocks(opening=bytes(100_000), data=b"x"),
        blocks_together([Route(datanode="dn9", address="h:1", children=[])], [(1, b"x")]),
        blocks_together([Route(datanode="dn1", address="h:1", children=["dn2"])], [(1, b"x")]),
    ],
)  # fmt: skip
def test_the_connection_goes_on_after_a_request_that_is_refused(nodes: list[Datanode], request_: WriteBlocks) -> None:
    client = Client(nodes[0].address)
    with pytest.raises(BlockError) as caught:
        answer_of(client, request_)
    assert caught.value.code == codes.INVALID_REQUEST
    assert not answer_of(client, blocks_together(chain(nodes), [(1, b"good")])).outcomes[0].code
    client.close()
    assert nodes[0].bytes_of(1) == b"good"


def test_a_server_without_such_files_refuses(tmp_path: Path) -> None:
    node = Datanode("dn1", tmp_path, LIMITS)
    node.server._small_blocks._files = None
    try:
        with pytest.raises(BlockError, match="takes no small blocks together"):
            ask(node, blocks_together(chain([node]), [(1, b"x")]))
    finally:
        node.stop()


# ------------------------------------------------------------------------------------------------------ commit and watch


def refuse_watches(node: Datanode, before: Callable[[], None] = lambda: None) -> None:
    """Have a datanode refuse to be watched, after ``before``."""
    real = node.pipelines.handle

    def handle(request: Any) -> Any:
        if isinstance(request, WatchBlocks):
            before()
            raise BlockError(codes.BLOCK_DELETED, "as if")
        return real(request)

    node.pipelines.handle = handle  # type: ignore[method-assign]


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_whoever_refuses_a_watch_is_not_named(nodes: list[Datanode], refusing: int) -> None:
    refuse_watches(nodes[refusing])
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"data")], watch_timeout_ms=5_000))
    assert not written.outcomes[0].code
    assert set(written.watched) == {"dn1", "dn2", "dn3"} - {nodes[refusing].name}


def test_a_member_that_goes_before_it_is_watched_is_not_named(nodes: list[Datanode]) -> None:
    real = nodes[0].pipelines.handle

    def handle(request: Any) -> Any:
        if isinstance(request, PutBlocks):
            nodes[2].stop()
        return real(request)

    nodes[0].pipelines.handle = handle  # type: ignore[method-assign]
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"data")], watch_timeout_ms=5_000))
    assert not written.outcomes[0].code
    assert set(written.watched) == {"dn1", "dn2"}


@pytest.mark.parametrize(("asked_ms", "waited_ms"), [(-1, 0), (0, 0), (700, 700), (5_000, 5_000), (600_000, 5_000)])
def test_what_is_committed_is_watched_up_to_its_index_for_no_longer_than_the_limit(
    nodes: list[Datanode], asked_ms: int, waited_ms: int
) -> None:
    heard: list[Any] = []
    real = nodes[0].pipelines.handle

    def handle(request: Any) -> Any:
        if isinstance(request, PutBlocks | WatchBlocks):
            heard.append(request)
        return real(request)

    nodes[0].pipelines.handle = handle  # type: ignore[method-assign]
    nodes[0].pipelines.closed.add(8)
    blocks = [(1, b"one"), (2, b"refused"), (3, b"three")]
    opening = decode(blocks_together(chain(nodes[:1]), blocks).opening)
    assert isinstance(opening, OpenBlocks)
    mixed = [opening.blocks[0], replace(opening.blocks[1], container_id=8), opening.blocks[2]]
    ask(nodes[0], blocks_together(chain(nodes[:1]), blocks, blocks=mixed, watch_timeout_ms=asked_ms))
    put, watch = heard
    assert [block.local_id for block in put.blocks] == [1, 3]
    assert (watch.timeout_ms, watch.bcs_id, watch.partition) == (waited_ms, 2, PARTITION)
    assert [(block.local_id, block.length) for block in watch.blocks] == [(1, 3), (3, 5)]


def test_what_nobody_has_stored_is_neither_committed_nor_watched(nodes: list[Datanode]) -> None:
    nodes[1].pipelines.closed.add(CONTAINER)
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"one"), (2, b"two")]))
    assert [(one.code, one.bcs_id) for one in written.outcomes] == [(codes.CONTAINER_CLOSED, 0)] * 2
    assert (written.datanode, written.leader, written.watched) == ("dn1", "", [])
    assert not nodes[0].pipelines.batches


@pytest.mark.parametrize("outcomes", [0, 1, 3])
def test_a_leader_that_does_not_say_what_became_of_each_block_has_failed(nodes: list[Datanode], outcomes: int) -> None:
    committed = BlocksCommitted(leader="dn1", outcomes=[STORED] * outcomes)
    nodes[0].pipelines.handle = lambda request: committed  # type: ignore[method-assign]
    with pytest.raises(BlockError, match="answers PutBlocks with a BlocksCommitted") as caught:
        ask(nodes[0], blocks_together(chain(nodes), [(1, b"one"), (2, b"two")]))
    assert caught.value.code == codes.FAILED


def test_a_block_that_its_leader_refuses_is_not_watched(nodes: list[Datanode]) -> None:
    real = nodes[0].pipelines.handle
    watched: list[WatchBlocks] = []

    def handle(request: Any) -> Any:
        if isinstance(request, WatchBlocks):
            watched.append(request)
        answer = real(request)
        if isinstance(request, PutBlocks):
            refusal = BlockOutcome(code=codes.CHECKSUM_MISMATCH, message="as if", bcs_id=0)
            return replace(answer, outcomes=[refusal, *answer.outcomes[1:]][: len(request.blocks)])
        return answer

    nodes[0].pipelines.handle = handle  # type: ignore[method-assign]
    written = ask(nodes[0], blocks_together(chain(nodes), [(1, b"one"), (2, b"two")]))
    assert [outcome.code for outcome in written.outcomes] == [codes.CHECKSUM_MISMATCH, ""]
    assert [[block.local_id for block in one.blocks] for one in watched] == [[2]]
    watched.clear()
    written = ask(nodes[0], blocks_together(chain(nodes), [(3, b"three")]))
    assert (written.watched, watched) == ([], [])


def test_who_is_not_the_root_says_what_is_stored_and_commits_nothing(nodes: list[Datanode]) -> None:
    routes = chain(nodes[:2])
    written = ask(nodes[1], blocks_together(routes, [(1, b"one"), (2, b"two")]))
    assert (written.datanode, written.leader, written.watched) == ("dn2", "", [])
    assert written.outcomes == [BlockOutcome(code="", message="", bcs_id=0)] * 2
    assert not nodes[1].pipelines.batches
