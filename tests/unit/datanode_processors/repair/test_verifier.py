"""What the verifier does with a container that is closed, and with blocks that are damaged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair.committed_files import CommittedFiles
from datanode_processors.repair.core.repairs import Repairs
from datanode_processors.repair.core.verify_queue import LookThrough
from datanode_processors.repair.verifier import PEER_TIMEOUT_S
from datanode_processors.wire.peer import Peer
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.conversation.conversation import Event
from schemas.records.datanode import BlockRow, Member, OpenPipeline, ReadBlock
from tests.support.datanodes.block_nodes import BLOCK, CELL, CONTAINER, DATA, KEY, PARTITION, Node, row_of
from tests.support.datanodes.streams import hello_frame
from tests.support.local.waiting import eventually
from transport.waiting.deadline import Deadline


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node("dn1", tmp_path)
    yield made
    made.stop()


def close(node: Node) -> None:
    replica: Any = node.replica
    node.replica.close()
    CommittedFiles(node.store, note=lambda text, **_: node.notes.append(text)).close(replica, CONTAINER)


def test_a_closed_container_whose_blocks_are_deleted_is_not_reported(node: Node):
    node.replica.put(row_of(deleted=True))
    node.replica.put(row_of(deleted=True), BLOCK + 1)
    for _ in range(2):
        close(node)
        assert node.store.containers() == []
        assert not node.path.parent.exists()
    node.write()  # a file that a deletion left behind
    close(node)
    assert node.store.containers() == []
    assert not node.path.parent.exists()


def test_what_is_emptied_is_not_made_again_at_a_start(node: Node, monkeypatch: pytest.MonkeyPatch):
    replica: Any = node.replica
    node.replica.put(row_of(deleted=True))
    node.replica.close()
    closed: list[int] = []
    monkeypatch.setattr(node.store, "close_container", closed.append)
    node.pipelines.verifier._look_through(replica)
    assert closed == []
    node.write(DATA, BLOCK + 1)
    node.pipelines.verifier._look_through(replica)
    assert closed == [CONTAINER]


def test_a_closed_container_that_has_a_block_stays(node: Node):
    node.write()
    node.write(DATA, BLOCK + 1)
    node.replica.put(row_of(deleted=True), BLOCK + 1)
    close(node)
    (usage,) = node.store.containers()
    assert (usage.container_id, usage.closed, usage.blocks) == (CONTAINER, True, 1)


def test_a_closed_container_that_lost_its_file_stays_closed(node: Node):
    close(node)
    (usage,) = node.store.containers()
    assert (usage.closed, usage.blocks) == (True, 0)


# ------------------------------------------------------------------------------------------------- repairs


Pair = tuple[Node, Node]
SHORT = DATA[: 4 * CELL]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two members of one pipeline; the first has a short block committed and nothing stored, the other all bytes."""
    nodes = Node("dn1", tmp_path), Node("dn2", tmp_path)
    for node in nodes:
        node.replica.opened = opened(*nodes)
        node.replica.put(row_of(SHORT))
    nodes[1].write()
    verifier: Any = nodes[0].pipelines.verifier
    verifier._pipelines[PARTITION] = nodes[0].replica
    yield nodes
    verifier.stop()
    for node in nodes:
        node.stop()


def opened(*nodes: Node, addresses: tuple[str, ...] = ()) -> OpenPipeline:
    """Return the pipeline of these members."""
    of = addresses or tuple(node.address for node in nodes)
    members = [
        Member(datanode=node.name, address=address, http_address="", rack="/r")
        for node, address in zip(nodes, of, strict=True)
    ]
    return OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=members)


def is_right(node: Node, data: bytes = DATA) -> bool:
    return not node.replica.unhealthy and node.path.exists() and node.path.read_bytes() == data


@pytest.mark.parametrize("found", ["a longer length", "a wrong cell"])
def test_what_is_found_while_a_repair_ends_is_repaired_too(pair: Pair, found: str):
    node, _ = pair
    verifier: Any = node.pipelines.verifier
    replica: Any = node.replica
    was_verified = replica.on_verified
    ends: list[int] = []

    def verified(key: bytes, length: int) -> None:
        if not ends:
            ends.append(length)
            finding = threading.Thread(target=find, daemon=True)
            finding.start()
            finding.join(0.2)  # with the verifier's lock it cannot be done, and comes right behind
        was_verified(key, length)

    def find() -> None:
        if found == "a longer length":
            for one in pair:
                one.replica.put(row_of())
            verifier._verify(replica, KEY)  # PutBlock 2 is applied
        else:
            node.damage(2)
            verifier.repair(replica, KEY, 2)

    replica.on_verified = verified
    verifier.start()
    verifier.verify(replica, KEY)
    eventually(lambda: ends and is_right(node, DATA if found == "a longer length" else SHORT), timeout_s=10)


def test_a_verification_of_an_older_length_does_not_make_a_damaged_block_healthy(pair: Pair):
    node, _ = pair
    verifier: Any = node.pipelines.verifier
    replica: Any = node.replica
    node.write(SHORT)
    judge = verifier._files.wrong_cells

    def judged(container_id: int, local_id: int, row: BlockRow) -> list[int]:
        wrong: list[int] = judge(container_id, local_id, row)
        verifier._files.wrong_cells = judge
        verifier.repair(replica, KEY, 1)  # a reader finds a cell wrong just then
        return wrong

    verifier._files.wrong_cells = judged
    verifier._verify(replica, KEY)
    assert KEY in node.replica.unhealthy
    assert (PARTITION, KEY) in verifier._repairs


@pytest.mark.parametrize("cell", [None, 3])
def test_a_list_of_repairs_that_is_full_is_no_reason_to_look_again_and_again(pair: Pair, cell: int | None):
    node, _ = pair
    verifier: Any = node.pipelines.verifier
    replica: Any = node.replica
    verifier._repairs = Repairs(limit=1)
    assert verifier._repairs.add((PARTITION, b"another"), float("inf"))
    if cell is None:
        verifier._verify(replica, KEY)
    else:
        verifier.repair(replica, KEY, cell)
    verifier._stopping = True
    assert verifier._next_to_verify() is None
    verifier._stopping = False
    assert verifier._queue.take(has_room=False) is None, "there is no room yet"
    verifier._repairs = Repairs(limit=1)
    assert verifier._next_to_verify() == LookThrough(PARTITION), "now there is"


class Slow:
    """A datanode that greets, and then takes a request and gives nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = 0
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            self._kept.append(sock)
            sock.sendall(hello_frame("dn2", "test"))

    def close(self) -> None:
        with suppress(OSError):  # it may be closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._kept:
            sock.close()


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.close()


def test_a_peer_that_gives_nothing_does_not_hold_up_other_blocks(pair: Pair, slow: Slow):
    node, peer = pair
    verifier: Any = node.pipelines.verifier
    node.replica.opened = opened(node, peer, addresses=(node.address, slow.address))
    verifier.start()
    verifier.verify(node.replica, KEY)
    eventually(lambda: slow.asked == 1)
    node.replica.opened = opened(node, peer)
    node.replica.put(row_of(SHORT), BLOCK + 1)
    peer.replica.put(row_of(SHORT), BLOCK + 1)
    peer.write(DATA, BLOCK + 1)
    verifier.verify(node.replica, block_key(CONTAINER, BLOCK + 1))
    path = node.path.with_name(f"{BLOCK + 1}.block")
    eventually(lambda: path.exists() and path.read_bytes() == SHORT, timeout_s=PEER_TIMEOUT_S / 2)
    eventually(lambda: node.replica.unhealthy.keys() == {KEY}, timeout_s=PEER_TIMEOUT_S / 4)
    slow.close()
    eventually(lambda: is_right(node, SHORT))


def test_a_peer_that_was_silent_is_asked_after_the_others(pair: Pair, slow: Slow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datanode_processors.repair.verifier.PEER_TIMEOUT_S", 0.2)
    node, peer = pair
    verifier: Any = node.pipelines.verifier
    other = Node("dn3", node.path.parent)
    node.replica.opened = opened(node, other, peer, addresses=(node.address, slow.address, peer.address))
    verifier.start()
    verifier.verify(node.replica, KEY)
    eventually(lambda: is_right(node, SHORT))
    assert [member.datanode for member in verifier._peers(node.replica)] == ["dn2", "dn3"]
    for one in pair:
        one.replica.put(row_of())
    verifier.verify(node.replica, KEY)
    eventually(lambda: is_right(node))
    assert slow.asked == 1
    other.stop()


def test_a_peer_that_trickles_has_timed_out(node: Node, monkeypatch: pytest.MonkeyPatch):
    node.write()
    clock = [0.0]
    monkeypatch.setattr("datanode_processors.wire.peer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    request = ReadBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=BLOCK, offset=0, length=len(DATA), bcs_id=0, committed_only=True
    )  # fmt: skip
    with Peer(node.address, own="dn9", cluster="test", timeout_s=5.0) as peer:
        receive, got = peer.receive_by, []

        def receive_slowly(deadline: Deadline) -> Event:
            clock[0] += 1
            return receive(deadline)

        def read() -> None:
            for offset, _, _ in peer.read_block(request):
                got.append(offset)
                clock[0] += 100.0  # the reader's own time

        monkeypatch.setattr(peer, "receive_by", receive_slowly)
        with pytest.raises(BlockError, match="bytes a second") as caught:
            read()
    assert caught.value.code == codes.TIMED_OUT
    assert len(got) == 5


def test_two_repairs_of_one_block_are_one():
    repairs = Repairs(limit=2)
    assert repairs.add((1, b"a"), 5.0)
    assert repairs.add((1, b"a"), 6.0, cell=3)
    assert repairs.add((1, b"b"), 7.0)
    assert not repairs.add((1, b"c"), 7.0)
    assert repairs.take(4.0) is None
    first = repairs.take(9.0)
    assert first is not None
    assert first.place == (1, b"a")
    second = repairs.take(9.0)
    assert second is not None
    assert second.place == (1, b"b")
    assert repairs.take(9.0) is None
    assert not repairs.waits_for((1, b"a"), 3), "somebody is at work on it"
    repairs.fail(first, 9.0)
    assert repairs.waits_for((1, b"a"), 3)
    repairs.hurry((1, b"a"), 9.0)
    assert repairs.next_due_s() == 9.25, "a cell that nobody has is not tried at each look"
    assert repairs.add((1, b"b"), 9.0)
    assert not repairs.finish(second, 9.5, whole=True), "found once more"
    assert repairs.next_due_s() == 9.25
    assert repairs.take(9.4) is not None
