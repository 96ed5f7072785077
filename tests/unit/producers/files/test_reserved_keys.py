"""Small keys in reserved blocks: one request each once their bucket is busy, and the ordinary way whenever that fails.

Times are those of a :class:`Clock`, which stands still unless a test moves it: a bucket is busy after BUSY_KEYS keys.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from om_processors.namespace.access import ACCESS_RULES
from producers.async_client import AsyncClient
from producers.blocks.core.write_ways import CommitWay
from producers.client import CLOSE_TIMEOUT_MS
from producers.errors import ClientClosed, NotFound, OutcomeUnknown, RequestFailed, RetryableError, TooManyInFlight
from producers.files.block_reservations import BlockReservations
from producers.files.core.block_stock import BUSY_KEYS, BUSY_S, CLOSED_S, FRESH_S, RESERVED_BLOCKS
from producers.files.key_files import KeyOutput
from producers.requests.core.calls import Call, Policy
from schemas.access.acl import parse_acl
from schemas.codecs.codec import decode, decode_as
from schemas.column_families import OPEN_KEY_TABLE
from schemas.features import BLOCK_RESERVATIONS
from schemas.records.identity import ProvenCaller
from schemas.records.messages import (
    CommitKey,
    CommitReserved,
    DeleteKey,
    ExpireOpenKeys,
    ReleaseBlocks,
    Request,
    RequestBody,
    ReserveBlocks,
)
from schemas.records.rows import KeyInfo
from schemas.result_codes import INVALID_KEY_NAME, KEY_NOT_FOUND, OK, QUOTA_EXCEEDED
from schemas.small_objects import SMALL_FILE_BYTES
from tests.support.sdk.datanodes import KIB, World
from tests.support.sdk.written import fresh_bytes, some_bytes

SIZE = 20 * KIB


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Writing:
    """A world, and a client of it that writes small keys."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world = world
        self.client = world.client
        self.clock = clock
        self.data: dict[str, bytes] = {}
        self._count = 0

    def write(self, key: str, data: bytes | None = None, *, bucket: str = "b", **more: Any) -> KeyOutput:
        data = fresh_bytes(SIZE) if data is None else data
        file: KeyOutput = self.client.open(f"/v/{bucket}/{key}", "wb", **{"size": len(data), **more})
        with file:
            file.write(data)
        self.data[f"/v/{bucket}/{key}"] = data
        return file

    def write_some(self, count: int = BUSY_KEYS, *, bucket: str = "b", size: int = SIZE) -> list[str]:
        """Write some keys, and wait for the answers to what the client asked on its own; return the keys."""
        self._count += 1
        keys = [f"{self._count}-{number}" for number in range(count)]
        for key in keys:
            self.write(key, fresh_bytes(size), bucket=bucket)
        self.settle()
        return keys

    def settle(self) -> None:
        """Wait for the answers to all that was sent before: they come in order."""
        with suppress(RequestFailed):
            self.client.call(DeleteKey(volume="v", bucket="b", key="none"))

    def pass_time(self, passed_s: float) -> None:
        self.clock.now_s += passed_s

    def bodies(self) -> list[RequestBody]:
        return [decode_as(Request, value).body for value in self.world.cluster.seen]

    def kinds(self, key: str) -> list[str]:
        """Return the kinds of the requests for a key, in order."""
        return [type(body).__name__ for body in self.bodies() if getattr(body, "key", None) == key]

    def count(self, kind: type) -> int:
        return sum(isinstance(body, kind) for body in self.bodies())

    def reservations(self) -> list[KeyInfo]:
        """Return the rows of reservations, and of keys that are open."""
        return [decode(value) for value in self.world.cluster.tables.tables[OPEN_KEY_TABLE].values()]

    def check(self) -> None:
        """All keys that were written are read right, and no two have a block in common."""
        for path, data in self.data.items():
            assert self.world.get(path) == data, path
        used = Counter(block.local_id for row in self.world.cluster.keys.values() for block in row.blocks)
        assert set(used.values()) <= {1}


Begin = Callable[..., Writing]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all reservations."""
    found = Clock()
    defaults = BlockReservations.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "now_s", found)
    return found


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Iterator[Begin]:
    """Return a factory of worlds whose small blocks travel together."""
    made: list[World] = []

    def make(**settings: Any) -> Writing:
        made.append(World(tmp_path / str(len(made)), **{"small": True, **settings}))
        return Writing(made[-1], clock)

    yield make
    for world in made:
        world.connection.lost = lambda _call: False
        world.close()


@pytest.fixture
def busy(begin: Begin) -> Writing:
    """A client whose bucket is busy, with a reservation."""
    writing = begin()
    writing.write_some()
    assert writing.count(ReserveBlocks) == 1
    return writing


ORDINARY = ["CreateKey", "CommitKey"]
RESERVED = ["CommitReserved"]


# -- the way of one request --------------------------------------------------------------------------------------------


def test_the_first_keys_are_created_and_the_later_ones_are_one_request_each(begin: Begin) -> None:
    writing = begin()
    for number in range(BUSY_KEYS):
        file = writing.write(f"first-{number}")
        assert (writing.kinds(f"first-{number}"), file.requests) == (ORDINARY, 2)
    writing.settle()
    for number in range(2 * RESERVED_BLOCKS):
        file = writing.write(f"later-{number}", metadata={"n": f"{number}"}, replication="RATIS/ONE")
        writing.settle()
        assert (writing.kinds(f"later-{number}"), file.requests) == (RESERVED, 1)
        row = writing.world.key(f"later-{number}")
        assert (row.size, row.inline, row.metadata, row.replication) == (SIZE, False, {"n": f"{number}"}, "RATIS/ONE")
    writing.check()
    assert writing.count(ReserveBlocks) == 1 + 2 * RESERVED_BLOCKS // RESERVED_BLOCKS
    assert writing.count(ReleaseBlocks) == 0, "reservations that are used up end by themselves"
    for number in (0, RESERVED_BLOCKS, 2 * RESERVED_BLOCKS - 1):
        writing.world.check_replicas(writing.data[f"/v/b/later-{number}"], f"later-{number}")


@pytest.mark.parametrize("size", [1, 64 * KIB, 64 * KIB + 1, SMALL_FILE_BYTES - 1, SMALL_FILE_BYTES])
@pytest.mark.parametrize("pieces", [1, 7])
def test_any_small_size_is_one_request_however_it_is_written(busy: Writing, size: int, pieces: int) -> None:
    data = some_bytes(size)
    piece = size // pieces + 1
    with busy.client.open("/v/b/k", "wb") as file:
        for at in range(0, size, piece):
            file.write(memoryview(data)[at : at + piece])
        assert file.tell() == size
    assert busy.kinds("k") == RESERVED
    assert busy.world.get() == data
    busy.world.check_replicas(data)


def test_many_small_writes_are_one_key(busy: Writing) -> None:
    data = some_bytes(5000)
    with busy.client.open("/v/b/k", "wb") as file:
        for at in range(len(data)):
            file.write(data[at : at + 1])
    assert busy.kinds("k") == RESERVED
    assert busy.world.get() == data


def test_locations_and_statistics(busy: Writing) -> None:
    with busy.client.open("/v/b/k", "wb") as file:
        file.write(b"hello")
        assert (file.locations(), file.statistics().blocks, file.requests) == ([], 0, 0), "nothing is written yet"
    assert file.locations() == busy.world.key().blocks
    assert [(block.offset, block.length) for block in file.locations()] == [(0, 5)]
    assert file.locations()[0].bcs_id > 0
    found = file.statistics()
    assert (found.bytes, found.blocks, found.failed_blocks) == (5, 1, 0)


def test_a_key_replaces_another_one_whichever_way_they_went(busy: Writing) -> None:
    for data, options in ((b"one", {}), (b"two", {"small_block_bytes": 0}), (b"three", {})):
        busy.write("k", data, options=busy.world.with_options(**options))
    assert busy.kinds("k") == [*RESERVED, *ORDINARY, *RESERVED]
    busy.check()


def test_the_awaited_way(busy: Writing) -> None:
    async def run() -> None:
        client = AsyncClient(
            "memory:0", read_from=[busy.world.om.address], open_pipeline=lambda _: busy.client.pipeline,
            streams=busy.world.options,
        )  # fmt: skip
        async with client:
            for number in range(BUSY_KEYS + 5):
                async with client.open(f"/v/b/{number}", "wb") as file:
                    await file.write(b"hello")
                await client.create_volume(f"vol-{number}")
            assert busy.kinds(f"{BUSY_KEYS + 4}") == RESERVED
            async with client.open(f"/v/b/{BUSY_KEYS + 4}") as found:
                assert await found.read() == b"hello"

    before = busy.count(ReleaseBlocks)
    asyncio.run(run())
    assert busy.count(ReleaseBlocks) > before, "closing gave its reservations back"


# -- what goes the ordinary way ----------------------------------------------------------------------------------------


def test_a_key_that_grows_beyond_a_small_file_is_created(busy: Writing) -> None:
    data = some_bytes(SMALL_FILE_BYTES + 1)
    with busy.client.open("/v/b/k", "wb") as file:
        for at in range(0, len(data), 100 * KIB):
            file.write(data[at : at + 100 * KIB])
    assert [busy.kinds("k")[0], busy.kinds("k")[-1]] == ORDINARY
    assert "CommitReserved" not in busy.kinds("k")
    assert busy.world.get() == data


@pytest.mark.parametrize("method", ["flush", "hsync"])
def test_bytes_that_were_flushed_are_on_datanodes(busy: Writing, method: str) -> None:
    with busy.client.open("/v/b/k", "wb") as file:
        getattr(file, method)()
        assert busy.kinds("k") == [], "nothing was written yet"
        file.write(b"hello")
        getattr(file, method)()
        assert busy.kinds("k") == ["CreateKey"]
        file.write(b" world")
        assert sum(block.length for block in file.locations()) == (5 if method == "hsync" else 0)
    assert busy.kinds("k") == ORDINARY
    assert busy.world.get() == b"hello world"


def test_a_key_without_bytes_is_created(busy: Writing) -> None:
    busy.write("k", b"")
    assert busy.kinds("k") == ORDINARY
    busy.check()


def test_what_is_small_enough_for_the_tables_is_put_there(begin: Begin) -> None:
    writing = begin(inline_bytes=4 * KIB)
    for number in range(2 * BUSY_KEYS):
        writing.write(f"inline-{number}", bytes(4 * KIB))
    writing.settle()
    assert writing.count(ReserveBlocks) == 0, "these need no blocks"
    writing.write_some(size=4 * KIB + 1)
    writing.write("inline", bytes(4 * KIB))
    writing.write("block", bytes(4 * KIB + 1))
    assert (writing.kinds("inline"), writing.kinds("block")) == (["PutKey"], RESERVED)
    writing.check()


WITHOUT: list[dict[str, Any]] = [
    {"commit_way": CommitWay.THROUGH_LOG},
    {"small_block_bytes": 0},
    {"small_block_bytes": SIZE - 1},
    {"block_bytes": SIZE - 1},
]


@pytest.mark.parametrize("options", WITHOUT[:-1], ids=str)
def test_options_of_a_client_for_which_no_block_is_reserved(begin: Begin, options: dict[str, Any]) -> None:
    writing = begin(**options)
    for key in writing.write_some(2 * BUSY_KEYS):
        assert "CommitReserved" not in writing.kinds(key)
    assert writing.count(ReserveBlocks) == 0
    writing.check()


@pytest.mark.parametrize("options", WITHOUT, ids=str)
def test_options_of_one_key_of_a_busy_bucket(busy: Writing, options: dict[str, Any]) -> None:
    busy.write("k", options=busy.world.with_options(**options))
    assert [busy.kinds("k")[0], busy.kinds("k")[-1]] == ORDINARY
    busy.write("other")
    assert busy.kinds("other") == RESERVED
    busy.check()


def test_a_block_of_the_cluster_that_is_too_small_is_not_used(begin: Begin) -> None:
    writing = begin(block_bytes=64 * KIB)
    writing.write_some()
    data = some_bytes(64 * KIB + 1)
    writing.write("large", data)
    writing.write("small", data[:-1])
    assert "CommitReserved" not in writing.kinds("large")
    assert writing.kinds("small") == RESERVED
    writing.check()


def test_a_bucket_that_is_not_busy_reserves_nothing(begin: Begin) -> None:
    writing = begin()
    for number in range(3 * BUSY_KEYS):
        writing.write(f"{number}")
        writing.pass_time(BUSY_S / (BUSY_KEYS - 1) * 1.01)
    writing.settle()
    assert writing.count(ReserveBlocks) == 0


def test_buckets_are_busy_by_themselves(busy: Writing) -> None:
    busy.client.create_bucket("v", "c")
    assert all(busy.kinds(key) == ORDINARY for key in busy.write_some(bucket="c"))
    busy.write("k", bucket="c")
    assert busy.kinds("k") == RESERVED
    assert {row.bucket.rstrip("-0") for row in busy.reservations()} == {"b", "c"}
    busy.check()


def test_a_reservation_is_not_used_when_it_is_old(busy: Writing) -> None:
    before = {block.local_id for row in busy.reservations() for block in row.blocks}
    busy.pass_time(FRESH_S + 1)
    busy.write_some(BUSY_KEYS + 1)
    busy.write("k")
    assert busy.kinds("k") == RESERVED
    assert busy.world.key().blocks[0].local_id not in before
    assert busy.count(ReleaseBlocks) == 1
    assert not before & {block.local_id for row in busy.reservations() for block in row.blocks}


# -- reservations that are refused -------------------------------------------------------------------------------------


def refuse_by_quota(writing: Writing) -> None:
    writing.client.set_bucket_property("v", "b", quota_in_bytes=RESERVED_BLOCKS * SMALL_FILE_BYTES - 1)


def refuse_by_level(writing: Writing) -> None:
    writing.world.cluster.level = BLOCK_RESERVATIONS - 1


def refuse_by_rights(writing: Writing) -> None:
    """The writer may replace keys, and create none."""
    cluster = writing.world.cluster
    for number in range(BUSY_KEYS):
        writing.write(f"mine-{number}")
        writing.pass_time(BUSY_S)
    cluster.put(replace(cluster.volumes["v"], owner="bob", acls=[parse_acl("user:ann:r")]))
    cluster.put(replace(cluster.buckets["v", "b"], owner="bob", acls=[parse_acl("user:ann:rw")]))
    cluster.authorizer = ACCESS_RULES
    cluster.standing = ProvenCaller(administrator=False, groups=[], generation=1, token=0)


@pytest.mark.parametrize("refuse", [refuse_by_quota, refuse_by_level, refuse_by_rights])
def test_where_no_block_can_be_reserved_keys_are_created(begin: Begin, refuse: Callable[[Writing], None]) -> None:
    writing = begin()
    refuse(writing)

    def asks() -> bool:
        """Write as many keys as make the bucket busy; return whether blocks were asked for meanwhile."""
        before = writing.count(ReserveBlocks)
        for number in range(BUSY_KEYS):
            file = writing.write(f"mine-{number}")
            assert file.requests == 2
            writing.settle()
        return writing.count(ReserveBlocks) > before

    assert asks()
    assert not asks()
    closed_s = CLOSED_S
    for _ in range(3):
        writing.pass_time(closed_s - 0.5)
        assert not asks()
        writing.pass_time(0.5)
        assert asks()
        closed_s *= 2
    assert writing.reservations() == []
    writing.check()


def test_blocks_are_reserved_once_the_cluster_can(begin: Begin) -> None:
    writing = begin()
    writing.world.cluster.level = BLOCK_RESERVATIONS - 1
    writing.write_some()
    writing.world.cluster.level = BLOCK_RESERVATIONS
    writing.pass_time(CLOSED_S)
    writing.write_some()
    writing.write("k")
    assert writing.kinds("k") == RESERVED


# -- reservations that the cluster does not know any more --------------------------------------------------------------


def expire(writing: Writing) -> None:
    rows = sorted(writing.world.cluster.tables.tables[OPEN_KEY_TABLE])
    now_ms = writing.world.cluster.index
    writing.client.call(ExpireOpenKeys(shard=0, modified_before_ms=now_ms, rows=rows))


def release(writing: Writing) -> None:
    for row in sorted(writing.world.cluster.tables.tables[OPEN_KEY_TABLE]):
        session = int(row.rsplit(b"/", 1)[1])
        writing.client.call(ReleaseBlocks(volume="v", bucket="b", session_id=session))


@pytest.mark.parametrize("forget", [expire, release])
def test_a_key_whose_reservation_is_gone_is_created(busy: Writing, forget: Callable[[Writing], None]) -> None:
    forget(busy)
    assert busy.reservations() == []
    file = busy.write("k", metadata={"a": "b"})
    assert (busy.kinds("k"), file.requests) == ([*RESERVED, *ORDINARY], 3)
    assert busy.world.key().metadata == {"a": "b"}
    assert (file.statistics().bytes, file.statistics().blocks) == (SIZE, 1)
    assert file.locations() == busy.world.key().blocks
    busy.write("next")
    assert busy.kinds("next") == ORDINARY, "nothing is reserved for a while"
    busy.pass_time(CLOSED_S)
    busy.write_some()
    busy.write("later")
    assert busy.kinds("later") == RESERVED
    busy.check()


def test_a_bucket_that_was_made_anew_knows_no_reservation_of_before(busy: Writing) -> None:
    for key in busy.world.cluster.keys:
        busy.client.delete_key(*key)
    busy.data.clear()
    busy.client.delete_bucket("v", "b")
    with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"):
        busy.write("k")
    busy.client.create_bucket("v", "b")
    busy.pass_time(CLOSED_S)
    busy.write_some()
    busy.write("k")
    assert busy.kinds("k") == [*RESERVED, *RESERVED, *ORDINARY]
    busy.check()


# -- commits that are refused ------------------------------------------------------------------------------------------


def test_a_quota_refuses_the_key_and_the_caller_is_told(busy: Writing) -> None:
    busy.client.set_bucket_property("v", "b", quota_in_bytes=BUSY_KEYS * SIZE + SIZE - 1)
    file = busy.client.open("/v/b/k", "wb")
    file.write(bytes(SIZE))
    for _ in range(2):
        with pytest.raises(RequestFailed) as refused:
            file.close()
        assert refused.value.status == QUOTA_EXCEEDED
    assert (busy.kinds("k"), file.requests, file.locations()) == (RESERVED, 1, [])
    assert ("v", "b", "k") not in busy.world.cluster.keys
    busy.settle()
    assert busy.count(ReleaseBlocks) == 0, "the reservation is not to blame"
    busy.write("smaller", bytes(SIZE - 1))
    busy.check()


def test_a_name_that_is_refused_is_told_by_close(busy: Writing) -> None:
    file = busy.client.open("/v/b/.snapshot/k", "wb")
    file.write(b"x")
    with pytest.raises(RequestFailed) as refused:
        file.close()
    assert refused.value.status == INVALID_KEY_NAME
    busy.write("k")
    assert busy.kinds("k") == RESERVED
    busy.check()


# -- blocks that cannot be written -------------------------------------------------------------------------------------


def reserved_partition(writing: Writing) -> int:
    (name,) = {block.pipeline for row in writing.reservations() for block in row.blocks}
    return int(name.rpartition("-")[2])


@pytest.mark.parametrize("how", ["closed", "dead"])
def test_a_key_whose_reserved_block_cannot_be_written_goes_elsewhere(begin: Begin, how: str) -> None:
    writing = begin(pipelines=2, commit_timeout_ms=2_000)
    writing.write_some()
    partition = reserved_partition(writing)
    rows = writing.reservations()
    before = {block.local_id for row in rows for block in row.blocks}
    if how == "closed":
        writing.world.logs[partition].closed = True
    else:
        for node in writing.world.members(partition):
            node.stop()
    file = writing.write("k")
    assert "CommitReserved" not in writing.kinds("k")
    assert [block.pipeline for block in writing.world.key().blocks] == [f"pipeline-{3 - partition}"]
    assert file.locations() == writing.world.key().blocks
    writing.settle()
    assert writing.count(ReleaseBlocks) >= len(rows), "and one that was asked for meanwhile, if it was of that pipeline"
    assert not before & {block.local_id for row in writing.reservations() for block in row.blocks}
    assert writing.world.get() == writing.data["/v/b/k"]


def test_a_block_that_is_refused_in_one_exchange_becomes_a_stream(busy: Writing) -> None:
    """One exchange does not go well; the block is written as a stream, and is still one request."""
    busy.world.nodes["dn12"].pipelines.deaf = True
    file = busy.write("k")
    assert (busy.kinds("k"), file.requests) == (RESERVED, 1)
    busy.check()


# -- keys that are given up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["interrupt", "abort"])
def test_another_thread_may_end_a_key_while_its_block_is_written(begin: Begin, how: str) -> None:
    writing = begin(commit_timeout_ms=60_000)
    writing.write_some()
    begun, going = threading.Event(), threading.Event()

    def stall(_put: Any) -> None:
        begun.set()
        going.wait(60)

    writing.world.logs[1].refuse = stall
    file = writing.client.open("/v/b/k", "wb")
    file.write(b"data")
    raised: list[Exception] = []

    def close() -> None:
        try:
            file.close()
        except (RetryableError, ClientClosed) as error:
            raised.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    assert begun.wait(60)
    if how == "interrupt":
        file.interrupt("no longer wanted")
    else:
        file.abort()
    thread.join(60)
    ended = not thread.is_alive()
    going.set()
    thread.join()
    writing.world.logs[1].refuse = None
    assert ended, "it did not wait for the datanodes"
    assert ("no longer wanted" if how == "interrupt" else "was aborted") in str(raised[0])
    writing.settle()
    assert writing.kinds("k") == []
    assert ("v", "b", "k") not in writing.world.cluster.keys
    for key in writing.write_some():
        assert writing.kinds(key) == RESERVED
    writing.check()
    first = min(block.local_id for row in writing.reservations() for block in row.blocks)
    used = {block.local_id for row in writing.world.cluster.keys.values() for block in row.blocks}
    assert first not in used, "the block of the key that was given up"
    writing.client.close()
    assert writing.reservations() == []


def test_an_interrupt_while_the_answer_is_awaited_and_the_reservation_is_gone(busy: Writing) -> None:
    """The refusal says that nothing was committed; the key is not created for somebody who has given up."""
    release(busy)
    file = busy.client.open("/v/b/k", "wb")
    file.write(b"hello")
    apply = busy.world.cluster.apply

    def interrupted(body: RequestBody) -> Any:
        if isinstance(body, CommitReserved):
            file.interrupt("given up")
        return apply(body)

    busy.world.cluster.apply = interrupted  # type: ignore[method-assign]
    with pytest.raises(RetryableError, match="is not committed.*given up"):
        file.close()
    assert busy.kinds("k") == RESERVED


def test_an_interrupt_while_the_answer_is_awaited_and_the_key_is_there(busy: Writing) -> None:
    file = busy.client.open("/v/b/k", "wb")
    file.write(b"hello")
    apply = busy.world.cluster.apply

    def interrupted(body: RequestBody) -> Any:
        if isinstance(body, CommitReserved):
            file.interrupt("given up")
        return apply(body)

    busy.world.cluster.apply = interrupted  # type: ignore[method-assign]
    file.close()
    assert busy.world.get() == b"hello"


def test_an_exception_in_the_block_sends_nothing_and_uses_no_block(busy: Writing) -> None:
    reserved = busy.reservations()[0].blocks

    def fail() -> None:
        with busy.client.open("/v/b/k", "wb") as file:
            file.write(b"hello")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    forgotten = busy.client.open("/v/b/k", "wb")
    forgotten.write(b"x")
    del forgotten
    assert busy.kinds("k") == []
    busy.write("next")
    assert busy.world.key("next").blocks[0].local_id == reserved[0].local_id


# -- answers that do not come ------------------------------------------------------------------------------------------


def test_a_commit_that_is_sent_again_is_the_same_bytes(begin: Begin) -> None:
    writing = begin(policy=Policy(silence_ms=50))
    writing.write_some()
    lost: list[bytes] = []

    def lose(call: Call) -> bool:
        if isinstance(call.body, CommitReserved) and len(lost) < 2:
            lost.append(call.value)
            return True
        return False

    writing.world.connection.lost = lose
    file = writing.write("k")
    assert (set(writing.kinds("k")), file.requests) == ({"CommitReserved"}, 1)
    assert len(set(lost)) == 1
    writing.check()


@pytest.mark.parametrize("arrives", [True, False])
def test_nobody_knows_the_outcome_and_the_block_is_given_to_nobody_else(begin: Begin, *, arrives: bool) -> None:
    writing = begin(policy=Policy(deadline_ms=3_000, silence_ms=1_000))
    writing.write_some()
    lost: list[bytes] = []

    def lose(call: Call) -> bool:
        if isinstance(call.body, CommitReserved):
            lost.append(call.value)
            return True
        return False

    writing.world.connection.lost = lose
    file = writing.client.open("/v/b/k", "wb")
    file.write(b"hello")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            file.close()
    assert file.requests == 1
    writing.world.connection.lost = lambda _call: False
    if arrives:
        assert writing.world.cluster.execute(lost[0], 0).status == OK
    writing.write_some(RESERVED_BLOCKS + 1)
    if arrives:
        assert writing.world.get() == b"hello"
    writing.check()
    unknown = decode_as(Request, lost[0]).body
    assert isinstance(unknown, CommitReserved)
    blocks = {block.local_id for row in writing.world.cluster.keys.values() for block in row.blocks}
    assert (unknown.blocks[0].local_id in blocks) is arrives
    writing.client.close()
    assert unknown.session_id in {body.session_id for body in writing.bodies() if isinstance(body, ReleaseBlocks)}
    assert writing.reservations() == []
    if not arrives:
        assert writing.world.cluster.execute(lost[0], 0).status == KEY_NOT_FOUND


# -- many threads, and the end -----------------------------------------------------------------------------------------


def test_many_threads_share_the_reservations(begin: Begin) -> None:
    writing = begin(pipelines=2)
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for step in range(20):
                writing.write(f"{number}-{step}", fresh_bytes(1 + 997 * number + step))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    rows = writing.world.cluster.keys
    assert len(writing.data) == len(rows) == 320
    assert writing.count(CommitReserved) > 160, "most found a block"
    used: set[int] = set()
    for path, data in writing.data.items():
        (block,) = rows["v", "b", path.rpartition("/")[2]].blocks
        assert block.local_id not in used
        used.add(block.local_id)
        for node in writing.world.members(block.container_id % 256):
            assert node.blocks.bytes_of(block)[: block.length] == data, path
    for path in list(writing.data)[::40]:
        assert writing.world.get(path) == writing.data[path]
    assert writing.client.close() == []
    assert writing.reservations() == []


def test_a_reservation_that_comes_while_the_client_is_closed_is_given_back(begin: Begin) -> None:
    writing = begin()
    connection = writing.world.connection
    for number in range(BUSY_KEYS - 1):
        writing.write(f"{number}")
    executed = writing.world.cluster.execute
    asked = threading.Event()

    def hold(value: bytes, shard: int) -> Any:
        answer = executed(value, shard)
        if isinstance(decode_as(Request, value).body, ReserveBlocks):
            connection.held = True
            asked.set()
        return answer

    writing.world.cluster.execute = hold  # type: ignore[method-assign]
    writing.write("last")
    assert asked.wait(60)
    assert len(writing.reservations()) == 1
    threading.Timer(0.2, connection.release).start()
    assert writing.client.close() == []
    assert writing.reservations() == []


def test_closing_waits_for_nobody_who_does_not_answer(busy: Writing) -> None:
    """It gives up RELEASE_WAIT_S after it began, long before the time that calls of its user would have."""
    busy.write("k")
    busy.world.connection.lost = lambda _call: True
    began_s = time.monotonic()
    assert busy.client.close() == [], "what the client asked on its own is not its user's business"
    assert time.monotonic() - began_s < CLOSE_TIMEOUT_MS / 1000 / 2
    assert busy.client.close() == []


def test_what_the_user_asked_is_told_when_nobody_answers(busy: Writing) -> None:
    body = DeleteKey(volume="v", bucket="b", key="1-0")
    busy.world.connection.lost = lambda _call: True
    future = busy.client.submit(body)
    assert busy.client.close(timeout_ms=50) == [body]
    with pytest.raises(OutcomeUnknown):
        future.result()


def test_an_awaited_client_closes_likewise(busy: Writing) -> None:
    async def run() -> float:
        client = AsyncClient(
            "memory:0", read_from=[busy.world.om.address], open_pipeline=lambda _: busy.client.pipeline,
            streams=busy.world.options,
        )  # fmt: skip
        await client.connect()
        for number in range(BUSY_KEYS):
            async with client.open(f"/v/b/{number}", "wb") as file:
                await file.write(b"hello")
        await client.create_volume("later")
        busy.world.connection.lost = lambda _call: True
        began_s = time.monotonic()
        assert await client.close() == []
        return time.monotonic() - began_s

    assert asyncio.run(run()) < CLOSE_TIMEOUT_MS / 1000 / 2


def test_an_awaited_client_waits_for_its_files_no_longer_than_it_was_told(busy: Writing) -> None:
    """A thread of it waited for an answer until the call's deadline, and the end of the client for the thread."""

    async def run() -> None:
        client = AsyncClient(
            "memory:0", read_from=[busy.world.om.address], open_pipeline=lambda _: busy.client.pipeline,
            streams=busy.world.options,
        )  # fmt: skip
        await client.connect()
        file = await client.open("/v/b/k", "wb")
        await file.write(b"hello")
        sent = asyncio.Event()
        told = asyncio.get_running_loop().call_soon_threadsafe

        def lose(_call: Call) -> bool:
            told(sent.set)
            return True

        busy.world.connection.lost = lose
        closing = asyncio.ensure_future(file.close())
        await sent.wait()
        (unanswered,) = await client.close(timeout_ms=50)
        assert isinstance(unanswered, CommitKey)
        with pytest.raises(OutcomeUnknown):
            await closing

    asyncio.run(run())


# -- commits that the thread of an exchange sends ----------------------------------------------------------------------


def test_a_commit_has_the_context_in_which_its_key_is_written(busy: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that the application has begun, or has chosen not to sample, is seen whoever sends the commit."""
    current: ContextVar[str] = ContextVar("current", default="none")
    seen: list[tuple[str, str]] = []
    submit = busy.client.submit

    def noting(body: RequestBody) -> Any:
        if isinstance(body, CommitReserved):
            seen.append((current.get(), threading.current_thread().name))
        return submit(body)

    monkeypatch.setattr(busy.client, "submit", noting)
    current.set("the application's")
    busy.write("k")
    ((context, thread),) = seen
    assert context == "the application's"
    assert thread.startswith("stratolog-small")


def test_a_commit_without_room_among_the_calls_in_flight_waits_on_its_own_thread(
    busy: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, refused = busy.client.submit, []

    def full_for_others(body: RequestBody) -> Any:
        if isinstance(body, CommitReserved) and threading.current_thread() is not threading.main_thread():
            refused.append(body)
            raise TooManyInFlight("TOO_MANY_IN_FLIGHT", "2 requests in flight are the limit")
        return submit(body)

    monkeypatch.setattr(busy.client, "submit", full_for_others)
    assert busy.write("k").requests == 1
    assert (len(refused), busy.kinds("k")) == (1, RESERVED)
    busy.check()


def test_a_reservation_on_a_pipeline_that_nobody_knows_is_not_used(
    busy: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, asked = busy.client.streams.directory.pipeline, []

    def unknown_at_first(name: str) -> Any:
        asked.append(name)
        if len(asked) == 1:
            raise RetryableError("NO_SUCH_PIPELINE", f"no node lists {name}")
        return pipeline(name)

    monkeypatch.setattr(busy.client.streams.directory, "pipeline", unknown_at_first)
    busy.write("k")
    assert busy.kinds("k") == ORDINARY
    busy.settle()
    assert busy.count(ReleaseBlocks) == 1
    busy.check()
