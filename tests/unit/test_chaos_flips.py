"""The proxy of the campaign of flipped bits: it flips what it says, and an install through it notices each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.shell.bootstrap import bootstrap as bootstrap_module
from replicated_db.shell.bootstrap import peer_calls
from tests.chaos.installs import bit_flips
from tests.chaos.installs.bit_flips import DAMAGED, LISTING, MOST, PIECE, VIEW, Flips
from tests.chaos.installs.flipping_proxy import FlippingProxy
from tests.support.replicated.transfers import Log, RocksNode, serving


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RocksNode, RocksNode]]:
    monkeypatch.setattr(peer_calls, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(bootstrap_module, "SEARCH_PAUSE_S", 0.01)
    log = Log()
    log.write(200, checkpoint="snapshot-1")
    source = RocksNode(tmp_path / "n1", log.log, "n1").catch_up()
    asker = RocksNode(tmp_path / "n2", log.log, "n2")
    yield source, asker
    source.close()
    asker.close()


@pytest.mark.parametrize("kind", [PIECE, LISTING, VIEW, ""])
def test_each_flip_is_noticed_by_an_install(
    nodes: tuple[RocksNode, RocksNode], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_flips, "FLIP_SHARE", 1.0)
    source, asker = nodes
    flips = Flips(random.Random(kind))
    flips.begin(kind)
    with serving(source.desk(), "n1") as peer, FlippingProxy(peer.address, flips.twist) as proxy:
        asker.install(ServingPeer("n1", proxy.address), searches=9)
    assert flips.done == MOST.get(kind, 0)
    assert sum(DAMAGED.get(kind, "nothing") in note for note in asker.notes) == flips.done
    assert flips.sent
    assert asker.catch_up().scanned() == source.scanned()


def test_a_node_that_is_gone_is_gone_behind_its_proxy(nodes: tuple[RocksNode, RocksNode]) -> None:
    source, asker = nodes
    with serving(source.desk(), "n1") as good, FlippingProxy("127.0.0.1:1", Flips(random.Random(1)).twist) as proxy:
        found = asker.install(ServingPeer("n3", proxy.address), good)
    assert found.peer == "n1"
    assert any("n3 at" in note and "does not answer" in note for note in asker.notes)
