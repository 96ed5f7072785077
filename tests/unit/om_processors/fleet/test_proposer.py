"""How a node's own loops propose requests, as a broker in this process gets them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from om_processors.fleet import proposer
from om_processors.fleet.proposer import REPEAT_MS, Proposer
from replicated_db.core.tables.memory import ManualClock, SequenceIds
from schemas.codecs.codec import decode_as
from schemas.codecs.registry import registry
from schemas.records.messages import ExpireOpenKeys, PurgeBlocks, Request, RequestBody
from schemas.topics import MAX_MESSAGE_BYTES, OM_REQUESTS
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.local.secret import SECRET

SHARD = 2
PURGE = PurgeBlocks(shard=SHARD, rows=[b"row"])


class Case:
    """A proposer of the node om1."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        broker.create(OM_REQUESTS)
        self.clock = ManualClock(now_ms=77, elapsed=0)
        self.noted: list[str] = []
        self.proposer = Proposer(
            broker.bootstrap_servers, node="om1", shards=PARTITIONS, clock=self.clock, ids=SequenceIds(),
            log=self.noted.append, secret=SECRET,
        )  # fmt: skip

    def sent(self) -> list[tuple[Request, bytes, bytes]]:
        """Return the requests of the shard, each with its key and its value."""
        self.proposer.close()
        messages = self.broker.read(OM_REQUESTS, self.broker.count(OM_REQUESTS, SHARD), SHARD)
        found = [(message.key() or b"", message.value() or b"") for message in messages]
        return [(decode_as(Request, value), key, value) for key, value in found]


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_broker() as broker:
        yield Case(broker)


def test_a_request_goes_to_its_shard_with_a_proof(case: Case):
    assert case.proposer.propose("a", PURGE)
    ((request, key, value),) = case.sent()
    assert (request.body, request.caller, request.first_sent_at_ms) == (PURGE, "om/om1", 77)
    assert (request.client_id, request.answered_below, request.reply_partition) == (bytes(15) + b"\x01", 0, 0)
    assert SECRET.proves(key, value)
    assert case.noted == []


def test_each_request_has_a_number_of_its_own(case: Case):
    bodies: list[RequestBody] = [PURGE, ExpireOpenKeys(shard=SHARD, modified_before_ms=1, rows=[b"row"])]
    assert all(case.proposer.propose(number, body) for number, body in enumerate(bodies))
    assert [(request.call_id, request.body) for request, _, _ in case.sent()] == [(1, bodies[0]), (2, bodies[1])]


def test_a_request_has_the_oldest_form_that_can_say_it(case: Case):
    """Until finalize a node of the older software may lead the shard."""
    case.proposer.propose("a", PURGE)
    ((_, _, value),) = case.sent()
    assert value[2:10] in {version.fingerprint for version in registry.versions("Request")[1:]}


def test_the_same_is_proposed_again_after_a_while(case: Case):
    assert case.proposer.is_due("a")
    assert case.proposer.propose("a", PURGE)
    case.clock.elapsed = REPEAT_MS - 1
    assert not case.proposer.is_due("a")
    assert not case.proposer.propose("a", PURGE)
    assert case.proposer.is_due("b")
    case.clock.elapsed = REPEAT_MS
    assert case.proposer.is_due("a")
    assert case.proposer.propose("a", PURGE)
    assert len(case.sent()) == 2


def test_what_it_remembers_is_bounded(case: Case, monkeypatch: pytest.MonkeyPatch):
    """Beyond the limit it forgets what it proposed longest ago; that is repeated too early, which does no harm."""
    monkeypatch.setattr(proposer, "MAX_REMEMBERED", 2)
    for key in ("a", "b"):
        assert case.proposer.propose(key, PURGE)
    assert not case.proposer.is_due("a")
    assert case.proposer.propose("c", PURGE)
    assert [case.proposer.is_due(key) for key in ("a", "b", "c")] == [True, False, False]


def test_a_request_that_cannot_be_sent_is_noted(case: Case):
    assert not case.proposer.propose("a", PurgeBlocks(shard=SHARD, rows=[bytes(MAX_MESSAGE_BYTES)]))
    (noted,) = case.noted
    assert noted.startswith("PurgeBlocks not proposed: ")
