"""What a datanode asks of others in order to repair and copy: exactly this, for a peer may refuse anything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair import verifier as verifier_module
from datanode_processors.repair.copies import Copies, closed_rows
from datanode_processors.repair.copy_actions import _is_member, ask_for
from schemas import stream_errors as codes
from schemas.records.datanode import (
    Accepted,
    BlockWatched,
    ContainerBlocks,
    ListContainer,
    Member,
    OpenPipeline,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
)
from tests.support.datanodes.block_nodes import BCS_ID, BLOCK, CONTAINER, DATA, KEY, PARTITION, Node, row_of

PLACE: dict[str, Any] = {"partition": PARTITION, "container_id": CONTAINER, "local_id": BLOCK}


class Peer:
    """A datanode that answers each request with ``answer``, or raises it, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def request(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, BlockError):
            raise self.answer
        return self.answer

    def read_block(self, request: Any) -> Iterator[tuple[int, memoryview, int]]:
        self.asked.append(request)
        yield 0, memoryview(DATA), 0


def peer_of(answer: Any = None) -> Any:
    return Peer(answer)


def test_a_copy_asks_for_all_committed_bytes_of_each_block() -> None:
    peer = peer_of()
    assert b"".join(Copies._bytes(peer, PARTITION, KEY, row_of())) == DATA
    assert peer.asked == [ReadBlock(**PLACE, offset=0, length=len(DATA), bcs_id=BCS_ID, committed_only=True)]
    for row in (row_of(b""), row_of(deleted=True)):
        assert list(Copies._bytes(peer, PARTITION, KEY, row)) == [], "there is nothing to ask for"
    assert len(peer.asked) == 1


def test_a_copy_is_repaired_from_whatever_a_source_has_right() -> None:
    asked = ask_for(CONTAINER, BLOCK)(512, 1024)
    assert asked == SalvageBlock(**PLACE, offset=512, length=1024, bcs_id=0), "whatever index it has"


def test_the_rows_of_a_container_are_asked_of_its_pipeline() -> None:
    peer = peer_of(ContainerBlocks(container_id=CONTAINER, closed=True, blocks=[]))
    assert closed_rows(peer, CONTAINER) == []
    assert peer.asked == [ListContainer(partition=PARTITION, container_id=CONTAINER)]


WATCHED = BlockWatched(datanode="dn2", bcs_id=1, length=0, satisfied=True)
NOT_A_MEMBER = BlockError(codes.NO_SUCH_PIPELINE, "no member")
DELETED = BlockError(codes.BLOCK_DELETED, "deleted")


@pytest.mark.parametrize(
    ("answer", "is_member"), [(WATCHED, True), (Accepted(detail=""), False), (NOT_A_MEMBER, False), (DELETED, True)]
)
def test_a_member_is_known_by_its_answer_to_a_watch_of_nothing(answer: Any, is_member: bool) -> None:
    peer = peer_of(answer)
    assert _is_member(peer, CONTAINER, BLOCK) == is_member
    assert peer.asked == [WatchBlock(**PLACE, length=0, bcs_id=0, timeout_ms=0)], "nobody waits for anything"


def test_a_datanode_that_cannot_tell_is_asked_another_time() -> None:
    with pytest.raises(BlockError, match="too many"):
        _is_member(peer_of(BlockError(codes.OVERLOADED, "too many")), CONTAINER, BLOCK)


def test_a_member_repairs_from_all_bytes_that_are_stored_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node("dn1", tmp_path), Node("dn2", tmp_path)
    asked: list[Any] = []

    def fetch(_: Any, __: Any, ask: Any, *given: Any, **options: Any) -> None:
        asked.append((ask(512, 1024), given, options))

    monkeypatch.setattr(verifier_module, "fetch_cells", fetch)
    verifier: Any = node.pipelines.verifier
    verifier._repairs.add((PARTITION, KEY), 0.0)
    verifier._fetch_from(other.address, (PARTITION, KEY), row_of(), [1, 2])
    ((request, given, options),) = asked
    assert request == ReadBlock(**PLACE, offset=512, length=1024, bcs_id=0, committed_only=False)
    assert given[:3] == ((CONTAINER, BLOCK), row_of(), [1, 2])
    assert options == {}, "stored under the fsync policy, as what a stream brings"
    node.stop()
    other.stop()


def test_members_are_asked_in_their_order_and_not_the_datanode_itself(tmp_path: Path) -> None:
    node = Node("dn2", tmp_path)
    members = [Member(datanode=f"dn{n}", address=f"127.0.0.1:{n}", http_address="", rack="/r") for n in (1, 2, 3)]
    node.replica.opened = OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=members)
    verifier: Any = node.pipelines.verifier
    assert [member.datanode for member in verifier._peers(node.replica)] == ["dn1", "dn3"]
    node.stop()
