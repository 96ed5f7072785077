"""What a leader reads again where others have appended behind its own last record."""

from __future__ import annotations

from threading import Event

import pytest

from replicated_db.core.applying.replica import Offered
from replicated_db.core.errors import AheadOfLog
from replicated_db.core.leading.leader import claim_for
from replicated_db.core.log.reading import Reading
from replicated_db.shell.claiming import Claimer
from schemas.codecs.codec import encode
from schemas.records.log import Tick
from tests.support.replicated.kit import CHAIN, LIMITS, Kit, Shard, put


class Foreign:
    """A shard whose leader, n1, has one batch in the log, and behind it a record of nobody's, which counts for nobody."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.shard.do(put(b"a", b"1"))
        self.shard.catch_up()
        self.void = self.shard.log.append(encode(Tick(term=1, nonce=b"?" * 16, seq=1, prev_chain=CHAIN)))
        self.offered: list[Offered] = []
        self.claimer = Claimer(
            self.shard.replica, self.shard.log, Kit(), LIMITS, clock=self.shard.clock, ids=self.shard.ids,
            address="", on_turn=lambda _: None, on_offered=self.offered.append,
        )  # fmt: skip

    def claim(self) -> int:
        """Let n2 claim; return the claim's offset."""
        node = self.shard.nodes["n2"]
        return self.shard.log.append(encode(claim_for(node.replica, b"2" * 16, "", self.shard.clock.wall_ms())))

    def lose_void(self) -> None:
        del self.shard.log.entries[self.void :]


@pytest.fixture
def foreign() -> Foreign:
    return Foreign()


def test_what_has_not_been_read_is_offered(foreign: Foreign):
    foreign.claimer.read_foreign(foreign.void + 1)
    assert [one.reading for one in foreign.offered] == [Reading.TWIN]
    assert foreign.shard.replica.read_offset == foreign.void


def test_what_has_been_read_is_not_offered_again(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.claimer.read_foreign(foreign.void + 1)
    assert foreign.offered == []


def test_another_void_record_in_its_place_changes_nothing(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.lose_void()
    foreign.shard.log.append(encode(Tick(term=1, nonce=b"!" * 16, seq=1, prev_chain=CHAIN)))
    foreign.claimer.read_foreign(foreign.void + 1)
    assert foreign.offered == []


def test_a_claim_that_has_not_been_read_is_offered(foreign: Foreign):
    foreign.lose_void()
    foreign.claimer.read_foreign(foreign.claim() + 1)
    assert [one.reading for one in foreign.offered] == [Reading.VALID_CLAIM]


def test_a_claim_in_the_place_of_what_was_read_stops_the_leader(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.lose_void()
    claim = foreign.claim()
    with pytest.raises(AheadOfLog, match="shard 0: the log has lost records that this leader had read behind its own"):
        foreign.claimer.read_foreign(claim + 2)
    assert foreign.offered == []


def test_a_claim_behind_what_was_read_is_offered(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.claimer.read_foreign(foreign.claim() + 1)
    assert [one.reading for one in foreign.offered] == [Reading.VALID_CLAIM]


def test_a_claimer_knows_its_own_claims(foreign: Foreign):
    """By them a leader tells a record of its own from one of a node with the same name."""
    foreign.shard.log.auto = True
    foreign.shard.catch_up()
    before = foreign.shard.ids.count
    assert foreign.claimer.claim(foreign.shard.log.appender(), Event()) is not None
    own = (foreign.shard.ids.seed << 64 | before + 1).to_bytes(16, "big")
    assert foreign.claimer.has_claimed(own)
    assert not foreign.claimer.has_claimed(b"?" * 16)
