"""Connections to other datanodes that are kept from one exchange to the next: real stream servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.kept_peers import MAX_KEPT_PEERS, KeptPeers, PeerCall
from datanode_processors.wire.peer import Peer
from schemas import stream_errors as codes
from schemas.records.datanode import Accepted, CloseContainer
from tests.support.datanodes.streams import CLUSTER, Datanode
from tests.support.local.waiting import eventually

CLOSE = CloseContainer(partition=3, container_id=7)
TIMEOUT_S = 30.0


class Other(Datanode):
    """A datanode that answers each request with how many it has had; ``refusing`` is what it raises instead, in order."""

    def __init__(self, folder: Path) -> None:
        super().__init__("dn2", folder, WireLimits(stop_grace_s=0.1, linger_s=0.1))
        self.heard = 0
        self.refusing: list[BlockError] = []
        taking: Any = self.pipelines
        taking.handle = self._handle

    def _handle(self, _: Any) -> Any:
        self.heard += 1
        if self.refusing:
            raise self.refusing.pop(0)
        return Accepted(detail=str(self.heard))

    @property
    def connections(self) -> int:
        return self.server.snapshot().connections


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    made = Other(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def peers() -> Iterator[KeptPeers]:
    made = KeptPeers(own="dn1", cluster=CLUSTER, timeout_s=TIMEOUT_S)
    yield made
    made.close()


def begin(peers: KeptPeers, other: Other, **changes: str) -> PeerCall:
    return peers.begin(
        changes.get("datanode", other.name), changes.get("address", other.address), lambda peer: peer.begin(CLOSE)
    )


def kept(peers: KeptPeers, other: Other) -> Peer:
    """Have a connection that has been used, and is kept."""
    begin(peers, other).answer(TIMEOUT_S)
    peer = peers.pool.take(other.address, other.name)
    assert peer is not None
    peers.pool.give_back(peer)
    return peer


def kill(peer: Peer) -> None:
    """End a connection behind the back of who keeps it."""
    peer.interrupt()


def test_exchanges_one_after_another_share_a_connection(peers: KeptPeers, other: Other) -> None:
    assert [begin(peers, other).answer(TIMEOUT_S).detail for _ in range(3)] == ["1", "2", "3"]
    assert other.connections == 1


def test_exchanges_at_once_have_a_connection_each_and_so_many_are_kept(peers: KeptPeers, other: Other) -> None:
    calls = [begin(peers, other) for _ in range(MAX_KEPT_PEERS + 2)]
    assert other.connections == MAX_KEPT_PEERS + 2
    for call in calls:
        call.answer(TIMEOUT_S)
    eventually(lambda: other.connections == MAX_KEPT_PEERS)
    peers.close()
    eventually(lambda: other.connections == 0)


def test_after_the_end_nothing_is_kept(peers: KeptPeers, other: Other) -> None:
    call = begin(peers, other)
    peers.close()
    assert call.answer(TIMEOUT_S) == Accepted(detail="1"), "what is on its way is still answered"
    eventually(lambda: other.connections == 0)
    assert peers.pool.take(other.address, other.name) is None


def test_a_connection_is_kept_for_the_datanode_and_the_address_it_was_made_to(peers: KeptPeers, other: Other) -> None:
    kept(peers, other)
    assert peers.pool.take("127.0.0.1:1", other.name) is None
    assert peers.pool.take(other.address, "dn3") is None
    with pytest.raises(BlockError, match="'dn2', not of 'dn3'"):
        begin(peers, other, datanode="dn3")
    eventually(lambda: other.connections == 0)


def test_a_kept_connection_that_has_died_is_replaced_with_all_that_are_as_old(peers: KeptPeers, other: Other) -> None:
    calls = [begin(peers, other) for _ in range(3)]
    for call in calls:
        call.answer(TIMEOUT_S)
    peer = peers.pool.take(other.address, other.name)
    assert peer is not None
    kill(peer)
    peers.pool.give_back(peer)
    assert begin(peers, other).answer(TIMEOUT_S).detail == "4"
    eventually(lambda: other.connections == 1)


@pytest.mark.parametrize("code", [codes.FAILED, codes.BAD_FRAME, codes.STOPPING])
def test_what_a_dead_connection_may_have_caused_is_asked_once_more_on_a_fresh_one(
    peers: KeptPeers, other: Other, code: str
) -> None:
    old = kept(peers, other)
    other.refusing = [BlockError(code, "as if")]
    assert begin(peers, other).answer(TIMEOUT_S).detail == "3"
    fresh = peers.pool.take(other.address, other.name)
    assert fresh is not None
    assert fresh is not old
    fresh.close()
    eventually(lambda: other.connections == 0)


def test_a_fresh_connection_that_fails_is_not_asked_again_and_not_kept(peers: KeptPeers, other: Other) -> None:
    other.refusing = [BlockError(codes.FAILED, "first")]
    with pytest.raises(BlockError, match="first"):
        begin(peers, other).answer(TIMEOUT_S)
    assert other.heard == 1
    eventually(lambda: other.connections == 0)
    kept(peers, other)
    other.refusing = [BlockError(codes.FAILED, "second"), BlockError(codes.FAILED, "third")]
    with pytest.raises(BlockError, match="third"):
        begin(peers, other).answer(TIMEOUT_S)
    assert other.heard == 4, "once more, and not again"
    eventually(lambda: other.connections == 0)


@pytest.mark.parametrize(("code", "is_kept"), [(codes.TIMED_OUT, False), (codes.OVERLOADED, True)])
@pytest.mark.parametrize("used", [False, True])
def test_a_refusal_is_told_and_its_connection_kept_if_the_exchange_is_over(
    peers: KeptPeers, other: Other, used: bool, code: str, is_kept: bool
) -> None:
    if used:
        kept(peers, other)
    other.refusing = [BlockError(code, "as if")]
    with pytest.raises(BlockError, match="as if") as caught:
        begin(peers, other).answer(TIMEOUT_S)
    assert caught.value.code == code
    assert other.heard == used + 1
    assert (peers.pool.take(other.address, other.name) is not None) == is_kept


def test_a_request_that_cannot_be_sent_is_sent_on_a_fresh_connection(peers: KeptPeers, other: Other) -> None:
    kept(peers, other)
    asked: list[Peer] = []

    def ask(peer: Peer) -> None:
        asked.append(peer)
        if len(asked) == 1:
            raise BlockError(codes.FAILED, "the connection broke")
        peer.begin(CLOSE)

    assert peers.begin(other.name, other.address, ask).answer(TIMEOUT_S).detail == "2"
    assert len(set(asked)) == 2


@pytest.mark.parametrize("used", [False, True])
def test_a_request_that_cannot_be_sent_at_all_leaves_no_connection(peers: KeptPeers, other: Other, used: bool) -> None:
    if used:
        kept(peers, other)

    def ask(_: Peer) -> None:
        raise BlockError(codes.FAILED, "the connection broke")

    with pytest.raises(BlockError, match="broke"):
        peers.begin(other.name, other.address, ask)
    eventually(lambda: other.connections == 0)


def test_an_answer_that_nobody_waits_for_any_more_closes_its_connection(peers: KeptPeers, other: Other) -> None:
    call = begin(peers, other)
    call.abandon()
    call.abandon()
    eventually(lambda: other.connections == 0)
    assert peers.pool.take(other.address, other.name) is None
    answered = begin(peers, other)
    answered.answer(TIMEOUT_S)
    answered.abandon()
    assert peers.pool.take(other.address, other.name) is not None, "what was answered is kept"


def test_a_datanode_of_an_earlier_version_is_told_from_one_that_fails(peers: KeptPeers, other: Other) -> None:
    version = kept(peers, other).version
    with closing(KeptPeers(own="dn1", cluster=CLUSTER, timeout_s=TIMEOUT_S, version=version)) as enough:
        enough.connect(other.name, other.address).close()
    with closing(KeptPeers(own="dn1", cluster=CLUSTER, timeout_s=TIMEOUT_S, version=version + 1)) as more:
        with pytest.raises(BlockError, match=f"dn2 speaks version {version}, {version + 1} is needed") as caught:
            begin(more, other)
    peers.close()
    assert caught.value.code == codes.UNSUPPORTED_VERSION
    eventually(lambda: other.connections == 0)
