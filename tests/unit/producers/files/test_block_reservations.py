"""The reservations of one client in all its buckets, over a cluster that answers when a test says so."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from producers.blocks.block_tokens import NO_TOKENS
from producers.errors import CLIENT_CLOSED, ClientClosed, OutcomeUnknown
from producers.files import block_reservations
from producers.files.block_reservations import BlockReservations, Bucket, ReservedBlock, without_own
from producers.files.core.block_stock import BUSY_KEYS, BUSY_S, FRESH_S, RESERVED_BLOCKS
from schemas.records.messages import DeleteKey, KeySession, ReleaseBlocks, RequestBody, ReserveBlocks, Response
from schemas.records.rows import BlockLocation
from transport.waiting.deadline import Deadline

B: Bucket = ("v", "b")
C: Bucket = ("v", "c")
D: Bucket = ("v", "d")
LENGTH = 1000


class Cluster:
    """A client that notes requests; ReserveBlocks are answered by :meth:`grant`, ReleaseBlocks at once.

    A session is released once, and not while nobody was given it.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[ReserveBlocks, Future[Response]]] = []
        self.count = 0
        self.released: list[int] = []
        self.is_closed = False
        self.answers_releases = True
        self.room = threading.Event()
        """Whether there is room among the calls in flight."""
        self.room.set()

    def submit(self, body: RequestBody) -> Future[Response]:
        assert self.room.wait(30)
        if self.is_closed:
            raise ClientClosed(CLIENT_CLOSED, "the client is closed")
        future: Future[Response] = Future()
        if isinstance(body, ReserveBlocks):
            assert body.count == RESERVED_BLOCKS
            self.asked.append((body, future))
        else:
            assert isinstance(body, ReleaseBlocks)
            assert 1 <= body.session_id <= self.count
            assert body.session_id not in self.released
            self.released.append(body.session_id)
            if self.answers_releases:
                future.set_result(response(None))
        return future

    def grant(self) -> int:
        """Answer the oldest ReserveBlocks; return its session."""
        _, future = self.asked.pop(0)
        self.count += 1
        blocks = [
            BlockLocation(
                container_id=1, local_id=100 * self.count + number, offset=0, length=LENGTH, pipeline="pipeline-1"
            )
            for number in range(RESERVED_BLOCKS)
        ]
        future.set_result(response(KeySession(session_id=self.count, object_id=1, blocks=blocks)))
        return self.count

    def refuse(self) -> None:
        self.asked.pop(0)[1].set_exception(OutcomeUnknown("DEADLINE_EXCEEDED", "no answer"))


def response(result: KeySession | None) -> Response:
    return Response(client_id=b"", call_id=1, shard=0, index=1, status="OK", message="", result=result)


class Site:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cluster = Cluster()
        self.reservations = BlockReservations(lambda _bucket, _session: NO_TOKENS, now_s=lambda: self.now_s)

    def make_busy(self, bucket: Bucket) -> None:
        for _ in range(BUSY_KEYS):
            self.reservations.on_written(self.cluster, bucket)

    def stock(self, bucket: Bucket) -> int:
        """Have blocks reserved in a bucket; return the session."""
        self.make_busy(bucket)
        return self.cluster.grant()

    def take(self, bucket: Bucket = B, size_bytes: int = LENGTH) -> ReservedBlock:
        found = self.reservations.take(self.cluster, bucket, size_bytes)
        assert found is not None
        return found

    def close(self) -> int:
        return self.reservations.close(self.cluster, Deadline.never())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(block_reservations, "RELEASE_WAIT_S", 0.05)
    return Site()


def test_a_busy_bucket_has_blocks_for_its_keys(site: Site) -> None:
    assert not site.reservations.serves(B)
    site.make_busy(B)
    assert site.reservations.serves(B)
    assert not site.reservations.serves(C)
    assert site.reservations.take(site.cluster, B, 1) is None, "it has not come yet"
    session = site.cluster.grant()
    found = site.take()
    assert (found.bucket, found.session_id, found.location.length, found.tokens) == (B, session, LENGTH, NO_TOKENS)
    assert site.reservations.take(site.cluster, C, 1) is None


def test_a_block_that_has_no_room_for_the_key_is_not_given(site: Site) -> None:
    site.stock(B)
    assert site.reservations.take(site.cluster, B, LENGTH + 1) is None
    assert site.take(size_bytes=LENGTH).session_id == 1


def test_reservations_are_given_back_at_the_end_unless_they_are_used_up(site: Site) -> None:
    first = site.stock(B)
    for _ in range(RESERVED_BLOCKS):
        site.reservations.on_committed(site.cluster, site.take())
    second = site.cluster.grant()
    assert site.close() == len(site.cluster.asked)
    assert site.cluster.released == [second]
    assert first not in site.cluster.released
    assert site.reservations.take(site.cluster, B, 1) is None


def test_a_failed_block_has_its_reservation_given_back_with_the_next_key(site: Site) -> None:
    session = site.stock(B)
    site.reservations.on_failed(site.take())
    assert not site.reservations.serves(B)
    site.reservations.on_written(site.cluster, B)
    assert site.cluster.released == [session]


def test_what_comes_while_the_client_is_closed_is_given_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reservations, "RELEASE_WAIT_S", 60.0)
    site.make_busy(B)
    threading.Timer(0.1, site.cluster.grant).start()
    assert site.close() == 0
    assert site.cluster.released == [1]


def test_what_is_refused_while_the_client_is_closed_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_reservations, "RELEASE_WAIT_S", 60.0)
    site.make_busy(B)
    threading.Timer(0.1, site.cluster.refuse).start()
    assert site.close() == 0
    assert site.cluster.released == []


def test_closing_counts_what_has_no_answer(site: Site) -> None:
    site.stock(B)
    site.make_busy(C)
    site.cluster.answers_releases = False
    assert site.close() == 2
    assert site.close() == 2, "nothing is given back twice"
    assert site.cluster.released == [1]


def test_what_comes_after_the_end_is_not_used(site: Site) -> None:
    site.make_busy(B)
    assert site.close() == 1
    site.cluster.grant()
    assert site.reservations.take(site.cluster, B, 1) is None
    site.make_busy(B)
    assert site.cluster.asked == []


def test_a_key_that_ends_after_the_client_was_closed_raises_nothing(site: Site) -> None:
    site.stock(B)
    one, two, three = (site.take() for _ in range(3))
    site.cluster.refuse()  # it asked for more
    assert site.close() == 0
    site.cluster.is_closed = True
    site.reservations.on_unused(one)
    site.reservations.on_failed(two)
    site.reservations.on_committed(site.cluster, three)
    assert site.close() == 0


def test_a_client_that_is_closed_refuses_reservations_and_keys_go_on(site: Site) -> None:
    site.cluster.is_closed = True
    site.make_busy(B)
    assert not site.reservations.serves(B), "that was a refusal"
    assert site.close() == 0


def test_the_number_of_buckets_is_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reservations, "MAX_BUCKETS", 2)
    site.stock(B)
    site.stock(C)
    site.make_busy(D)
    assert not site.reservations.serves(D)
    assert site.reservations.take(site.cluster, D, 1) is None
    assert site.cluster.asked == []
    assert [site.take(bucket).bucket for bucket in (B, C)] == [B, C]


def test_a_bucket_in_which_nothing_is_reserved_makes_room_for_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_reservations, "MAX_BUCKETS", 2)
    site.stock(B)
    site.reservations.on_written(site.cluster, C)
    site.stock(D)
    assert site.take(D).session_id == 2
    assert site.take(B).session_id == 1


def test_a_key_that_is_written_keeps_its_bucket(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is noted, although its bucket has no other block left and others need room."""
    monkeypatch.setattr(block_reservations, "MAX_BUCKETS", 1)
    session = site.stock(B)
    found = site.take()
    site.cluster.refuse()  # it asked for more
    site.now_s += FRESH_S + BUSY_S
    assert site.reservations.take(site.cluster, B, 1) is None
    site.make_busy(C)
    assert not site.reservations.serves(C)
    site.reservations.on_committed(site.cluster, found)
    assert site.cluster.released == [session]
    site.now_s += 2 * BUSY_S
    site.make_busy(C)
    assert site.reservations.serves(C)


def test_a_users_requests_are_told_from_the_clients_own() -> None:
    own: list[RequestBody] = [
        ReserveBlocks(volume="v", bucket="b", count=1), ReleaseBlocks(volume="v", bucket="b", session_id=1)
    ]  # fmt: skip
    users = DeleteKey(volume="v", bucket="b", key="k")
    assert without_own([own[0], users, own[1]]) == [users]


def test_old_blocks_are_given_back_with_the_next_small_key_in_any_bucket(site: Site) -> None:
    session = site.stock(B)
    site.now_s += FRESH_S + 1
    site.reservations.on_written(site.cluster, C)
    assert site.cluster.released == [session]
    assert site.reservations.take(site.cluster, B, 1) is None


def test_buckets_with_old_blocks_make_room_for_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reservations, "MAX_BUCKETS", 1)
    site.stock(B)
    site.now_s += FRESH_S + 1
    site.reservations.on_written(site.cluster, C)  # gives the old ones back
    site.stock(C)
    assert site.take(C).session_id == 2


def test_closing_does_not_wait_for_room_among_the_calls_in_flight(site: Site) -> None:
    site.stock(B)
    site.cluster.room.clear()
    try:
        assert site.close() == 0
        assert site.cluster.released == []
    finally:
        site.cluster.room.set()
