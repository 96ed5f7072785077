"""Small keys as files: one request for what is small, datanodes for the rest, and the way back when the cluster refuses."""

import asyncio
import io
import threading
from base64 import b64encode
from dataclasses import replace

import pytest

from producers.async_client import AsyncClient
from producers.blocks.core.write_ways import WayLeft
from producers.bulk.key_copy import get_file, put_file
from producers.errors import ClientClosed, DatanodeError, InvalidArgument, NotFound, RequestFailed, RetryableError
from producers.files.core.inline_limit import ASK_AGAIN_S, InlineLimit
from producers.files.inline_keys import InlineReader
from producers.files.key_files import KeyInput
from producers.requests.core.calls import Policy
from schemas.codecs.codec import decode_as
from schemas.column_families import INLINE_TABLE
from schemas.features import LATEST, SNAPSHOTS
from schemas.records.messages import CommitKey, CreateKey, PutKey, Request
from schemas.result_codes import (
    BUCKET_NOT_FOUND,
    INLINE_TOO_LARGE,
    NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION,
    QUOTA_EXCEEDED,
    REQUEST_TOO_LARGE,
)
from schemas.small_objects import MAX_INLINE_BYTES
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.memory import MemoryCluster, client_to
from tests.support.sdk.nodes import Node
from tests.support.sdk.written import some_bytes

LIMIT = 16 * KIB


@pytest.fixture
def world(make):
    return make(inline_bytes=LIMIT)


def sent(world, key="k"):
    """Return the kinds of the requests for a key, in order."""
    bodies = [decode_as(Request, value).body for value in world.cluster.seen]
    return [type(body).__name__ for body in bodies if getattr(body, "key", None) == key]


def write(world, data, key="k", piece=None, **more):
    with world.client.open(f"/v/b/{key}", "wb", **more) as file:
        for at in range(0, len(data), piece or max(len(data), 1)):
            assert file.write(data[at : at + (piece or len(data))]) > 0
    return file


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, LIMIT - 1, LIMIT])
@pytest.mark.parametrize("piece", [None, 700])
def test_what_is_small_is_one_request(world, size, piece):
    data = some_bytes(size)
    file = write(world, data, piece=piece, metadata={"a": "b"}, replication="RATIS/ONE")
    assert sent(world) == ["PutKey"]
    key = world.key()
    assert (key.size, key.inline, key.blocks, key.metadata, key.replication) == (
        size, size > 0, [], {"a": "b"}, "RATIS/ONE",
    )  # fmt: skip
    assert world.get() == data
    assert file.statistics().bytes == size
    assert world.cluster.allocated == []


@pytest.mark.parametrize("size", [LIMIT + 1, 300 * KIB + 17])
@pytest.mark.parametrize("piece", [None, 700, LIMIT])
def test_what_grows_past_the_limit_goes_to_datanodes(world, size, piece):
    data = some_bytes(size)
    file = write(world, data, piece=piece)
    assert sent(world) == ["CreateKey", "CommitKey"], "the block came with the key"
    assert not world.key().inline
    assert world.get() == data
    world.check_replicas(data)
    assert (file.statistics().bytes, file.statistics().blocks) == (size, 1)


def test_a_size_that_is_known_to_be_large_asks_at_once(world):
    with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"):
        world.client.open("/v/other/k", "wb", size=LIMIT + 1)
    file = world.client.open("/v/b/less", "wb", size=LIMIT + 1)
    assert sent(world, "less") == ["CreateKey"]
    file.write(b"less than was said")
    file.close()
    assert world.get("/v/b/less") == b"less than was said"
    assert sent(world, "less") == ["CreateKey", "CommitKey"], "the block came with the key"


def test_a_size_that_is_known_to_be_small_is_used_when_it_is_exceeded(world):
    data = some_bytes(LIMIT + 1)
    write(world, data, size=LIMIT)
    assert sent(world) == ["CreateKey", "CommitKey"], "the block came with the key"
    assert world.get() == data


def test_without_inline_bytes_nothing_is_put(make):
    world = make(inline_bytes=0)
    write(world, b"x")
    write(world, b"", key="empty")
    assert (sent(world), sent(world, "empty")) == (
        ["CreateKey", "AllocateBlock", "CommitKey"],
        ["CreateKey", "CommitKey"],
    )


def test_options_of_one_key(world):
    write(world, b"x" * 100, options=world.with_options(inline_bytes=99))
    assert "PutKey" not in sent(world)
    write(world, b"x" * 99, key="small", options=world.with_options(inline_bytes=99))
    assert sent(world, "small") == ["PutKey"]
    with pytest.raises(ValueError, match="inline_bytes must be at most 262144, not 262145"):
        world.with_options(inline_bytes=256 * KIB + 1)


@pytest.mark.parametrize("method", ["flush", "hsync"])
def test_flushed_bytes_are_on_datanodes(world, method):
    with world.client.open("/v/b/k", "wb") as file:
        getattr(file, method)()
        assert sent(world) == [], "nothing was written yet"
        file.write(b"hello")
        getattr(file, method)()
        assert sent(world) == ["CreateKey"]
        file.write(b" world")
        assert (file.tell(), sum(block.length for block in file.locations())) == (11, 5 if method == "hsync" else 0)
    assert world.get() == b"hello world"
    assert not world.key().inline
    world.check_replicas(b"hello world")


def test_a_text_wrapper_flushes_when_it_is_closed(world):
    with world.client.open("/v/b/k", "wb") as file, io.TextIOWrapper(file, "utf-8") as text:
        text.write("ключ")
    assert world.get() == "ключ".encode()
    assert not world.key().inline


def test_bytes_are_copied_when_they_are_written(world):
    buffer = bytearray(b"first")
    with world.client.open("/v/b/k", "wb") as file:
        file.write(buffer)
        buffer[:] = b"other"
        file.write(memoryview(buffer)[1:3])
        assert (file.tell(), file.locations()) == (7, [])
    assert world.get() == b"firstth"


def test_one_replaces_the_other(world):
    for data in (b"small", some_bytes(40 * KIB), b"small again", b""):
        write(world, data)
        assert world.get() == data
    assert world.cluster.tables.tables[INLINE_TABLE] == {}


def test_there_need_be_no_datanodes():
    """A client of a cluster without datanodes: neither writing nor reading a small key asks where datanodes are."""
    cluster = MemoryCluster(1)
    node = Node(cluster)
    client, _ = client_to(cluster, read_from=[node.address])
    client.create_volume("v")
    client.create_bucket("v", "b")
    with client.open("/v/b/k", "wb") as file:
        file.write(b"hello")
    with client.open("/v/b/k") as found:
        assert found.read() == b"hello"
    client.put_key("v", "b", "other", b"bytes", metadata={"a": "b"})
    with client.open("/v/b/other") as found:
        assert found.info is not None
        assert (found.read(), found.info.metadata) == (b"bytes", {"a": "b"})
    client.close()
    node.close()


def test_whole_files(world, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for size in (0, 5, LIMIT, LIMIT + 1):
        source.write_bytes(some_bytes(size))
        copied = put_file(world.client, "/v/b/k", source)
        with world.client.open("/v/b/k") as key:
            assert get_file(key, target).sha256 == copied.sha256
        assert world.key().inline is (0 < size <= LIMIT)


def test_the_awaited_way(world):
    async def run():
        client = AsyncClient(
            "memory:0", read_from=[world.om.address], open_pipeline=lambda _: world.client.pipeline,
            streams=world.options,
        )  # fmt: skip
        async with client:
            async with client.open("/v/b/k", "wb") as file:
                await file.write(b"hello")
            async with client.open("/v/b/k") as file:
                assert await file.read() == b"hello"
            await client.put_key("v", "b", "put", b"bytes")
            async with client.open("/v/b/put") as file:
                assert await file.read() == b"bytes"
            with pytest.raises(NotFound):
                async with client.open("/v/none/k", "wb") as file:
                    await file.write(b"x")

    asyncio.run(run())
    assert sent(world) == ["PutKey"] * 2, "the second is of a bucket that is missing"


# -- what is refused, and what fails -----------------------------------------------------------------------------------


def test_what_is_missing_is_told_when_the_file_is_closed(world):
    file = world.client.open("/v/other/k", "wb")
    file.write(b"x")
    for _ in range(2):
        with pytest.raises(NotFound) as refused:
            file.close()
        assert refused.value.status == BUCKET_NOT_FOUND
    with pytest.raises(NotFound), world.client.open("/v/other/k", "wb") as file:
        file.write(b"x")
    with pytest.raises(NotFound), world.client.open("/v/other/k", "wb") as file:
        file.write(bytes(LIMIT + 1))


def test_a_quota_refuses_the_whole_key(world):
    world.client.set_bucket_property("v", "b", quota_in_bytes=10)
    with pytest.raises(RequestFailed) as refused:
        write(world, b"x" * 11)
    assert refused.value.status == QUOTA_EXCEEDED
    with pytest.raises(NotFound):
        world.get()
    assert world.cluster.tables.tables[INLINE_TABLE] == {}


@pytest.mark.parametrize(("limit", "size"), [(0, 1), (100, 101), (100, LIMIT)])
def test_a_cluster_with_a_lower_limit_gets_the_key_on_datanodes(world, limit, size):
    world.cluster.inline_bytes = limit
    data = some_bytes(size)
    write(world, data, metadata={"a": "b"})
    assert sent(world) == ["PutKey", "CreateKey", "CommitKey"]
    assert world.get() == data
    world.check_replicas(data)
    assert world.key().metadata == {"a": "b"}
    write(world, data, key="next")
    assert "PutKey" not in sent(world, "next"), "the refusal is remembered"
    if limit:
        write(world, bytes(limit), key="smaller")
        assert sent(world, "smaller") == ["PutKey"], "of what is smaller it says nothing"


def test_a_cluster_that_is_not_finalized_gets_the_key_on_datanodes(world):
    world.cluster.level = SNAPSHOTS
    write(world, b"hello")
    assert sent(world) == ["PutKey", "CreateKey", "CommitKey"]
    assert world.get() == b"hello"
    write(world, b"", key="empty")
    assert sent(world, "empty") == ["CreateKey", "CommitKey"], "nothing is put for a while"
    with pytest.raises(RequestFailed) as refused:
        world.client.put_key("v", "b", "k", b"x")
    assert refused.value.status == NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION
    world.cluster.level = LATEST
    world.client.streams.inline_limit = InlineLimit()
    write(world, b"hello")
    assert world.key().inline


def test_metadata_that_leaves_no_room_goes_with_the_key_to_datanodes(world):
    metadata = {"k": "v" * (760 * KIB)}
    write(world, b"x" * 10 * KIB, metadata=metadata)
    assert sent(world) == ["PutKey", "CreateKey", "CommitKey"]
    assert (world.get(), world.key().metadata) == (b"x" * 10 * KIB, metadata)
    write(world, b"x" * 10 * KIB, key="next")
    assert sent(world, "next") == ["PutKey"], "nothing is remembered that holds of one key alone"


def test_a_key_that_no_request_holds_says_nothing_of_others(world):
    with pytest.raises(RequestFailed) as refused:
        write(world, b"x", metadata={"k": "v" * 2 * 1024 * KIB})
    assert refused.value.status == REQUEST_TOO_LARGE
    write(world, b"x", key="next")
    assert sent(world, "next") == ["PutKey"]


def test_an_exception_in_the_block_leaves_no_key(world):

    def fail():
        with world.client.open("/v/b/k", "wb") as file:
            file.write(b"hello")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sent(world) == []
    forgotten = world.client.open("/v/b/k", "wb")
    forgotten.write(b"x")
    del forgotten
    aborted = world.client.open("/v/b/k", "wb")
    aborted.write(b"x")
    aborted.abort()
    aborted.abort()
    aborted.close()
    with pytest.raises(ValueError, match="is closed"):
        aborted.write(b"x")
    assert sent(world) == []


def test_a_closed_writer_takes_no_more(world):
    file = write(world, b"hello")
    file.close()
    for call in (lambda: file._writer.write(b"x"), file._writer.flush, file._writer.hsync):
        with pytest.raises(ClientClosed):
            call()
    file.abort()
    assert sent(world) == ["PutKey"]
    assert file._writer.ended


def test_another_thread_may_end_the_writing(world):
    file = world.client.open("/v/b/k", "wb")
    file.write(b"hello")
    file.interrupt("the upload was cancelled")
    for call in (lambda: file.write(b"x"), file.flush, file.close, file.close):
        with pytest.raises(RetryableError, match="is not committed.*cancelled"):
            call()
    assert sent(world) == []


def test_an_interrupt_while_the_answer_is_awaited_and_the_cluster_refuses(world):
    """The refusal says that nothing was committed; the key is not opened once more for somebody who has given up."""
    world.cluster.inline_bytes = 0
    file = world.client.open("/v/b/k", "wb")
    file.write(b"hello")
    apply = world.cluster.apply

    def interrupted(body):
        if isinstance(body, PutKey):
            file.interrupt("given up")
        return apply(body)

    world.cluster.apply = interrupted
    with pytest.raises(RetryableError, match="is not committed.*given up"):
        file.close()
    assert sent(world) == ["PutKey"]


def test_datanodes_that_fail_end_a_key_that_grew(make):
    world = make(inline_bytes=LIMIT, commit_timeout_ms=500)
    for node in world.nodes.values():
        node.stop()
    file = world.client.open("/v/b/k", "wb")
    file.write(bytes(LIMIT))

    def go_on():
        file.write(b"x")
        file.close()

    with pytest.raises((DatanodeError, RetryableError)):
        go_on()
    with pytest.raises((DatanodeError, RetryableError), match="is not committed"):
        file.close()
    assert not any(isinstance(decode_as(Request, value).body, CommitKey | PutKey) for value in world.cluster.seen)


def test_a_put_that_was_sent_again_is_the_same_bytes():
    cluster = MemoryCluster(1)
    node = Node(cluster)
    client, connection = client_to(cluster, Policy(silence_ms=50), read_from=[node.address])
    client.create_volume("v")
    client.create_bucket("v", "b")
    lost: list[bytes] = []

    def lose(call):
        if call.value and isinstance(decode_as(Request, call.value).body, PutKey) and len(lost) < 2:
            lost.append(call.value)
            return True
        return False

    connection.lost = lose
    with client.open("/v/b/k", "wb") as file:
        file.write(b"hello")
    puts = [value for value in cluster.seen if isinstance(decode_as(Request, value).body, PutKey)]
    assert len(lost) == 2
    assert {*lost, *puts} == {lost[0]}
    client.close()
    node.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def test_an_inline_key_is_read_in_any_way(world):
    data = some_bytes(5000)
    write(world, data)
    with world.client.open("/v/b/k") as file:
        assert (file.size, file.failovers, file.info.inline) == (5000, 0, True)
        assert file.read(10) == data[:10]
        assert file.peek() == data[10:]
        assert file.read1(5) == data[10:15]
        assert file.seek(-7, io.SEEK_END) == 4993
        assert file.read() == data[-7:]
        assert (file.read(), file.read1(), file.peek()) == (b"", b"", b"")
        assert (file.pread(5, 4998), file.pread(5, 5000), file.pread(5, 9000)) == (data[4998:], b"", b"")
        buffer = bytearray(6000)
        file.seek(0)
        assert file.readinto(buffer) == 5000
        assert buffer[:5000] == data
        file.seek(7000)
        assert file.read() == b""
    with pytest.raises(ValueError, match="is closed"):
        file.read()


def test_lines_of_an_inline_key():
    file = KeyInput(InlineReader(b"one\ntwo\n"), "/v/b/k")
    assert list(io.TextIOWrapper(file, "utf-8")) == ["one\n", "two\n"]


def test_a_row_and_its_bytes_are_of_one_answer(world):
    """The file has what the key was when it was opened, whatever becomes of it."""
    write(world, b"first")
    file = world.client.open("/v/b/k")
    write(world, b"second!")
    world.client.delete_key("v", "b", "k")
    assert file.read() == b"first"
    asked = [query for path, query in world.om.queries if path.endswith("/key")]
    assert [query.get("bytes") for query in asked] == ["true"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"data": None}, "has 5 bytes, and the node found no bytes"),
        ({"data": b64encode(b"four").decode()}, "has 5 bytes, and the node found 4 bytes"),
        ({"data": "no base64!"}, "bytes that cannot be read"),
        ({"data": 7}, "bytes that cannot be read"),
    ],
)
def test_bytes_that_are_not_those_of_the_row_are_not_passed_on(world, monkeypatch, answer, words):
    write(world, b"hello")
    read = world.om.read
    monkeypatch.setattr(world.om, "read", lambda parts, query: read(parts, query) | answer)
    with pytest.raises(RequestFailed, match=words):
        world.client.open("/v/b/k")


def test_a_node_of_older_software_says_nothing_of_inline_keys(world, monkeypatch):
    data = some_bytes(20 * KIB)
    write(world, data)
    read = world.om.read

    def older(parts, query):
        found = read(parts, query)
        return {name: value for name, value in found.items() if name not in ("inline", "data")}

    monkeypatch.setattr(world.om, "read", older)
    assert world.get() == data
    assert world.client.key_info("v", "b", "k").info == replace(world.key(), inline=False)


def test_key_info_says_that_a_key_is_inline_and_brings_no_bytes(world):
    write(world, b"hello")
    info = world.client.key_info("v", "b", "k").info
    assert (info.inline, info.size, info.blocks) == (True, 5, [])
    assert [found.inline for found in world.client.list_keys("v", "b")] == [True]
    assert "bytes" not in world.om.queries[-2][1]


# -- put_key -----------------------------------------------------------------------------------------------------------


def test_put_key_takes_bytes_alone(world):
    for data in ("text", bytearray(b"x"), None, 7):
        with pytest.raises(TypeError, match="data must be bytes, not"):
            world.client.put_key("v", "b", "k", data)
    with pytest.raises(InvalidArgument):
        world.client.put_key("v", "b", "\udcff", b"x")
    with pytest.raises(RequestFailed) as refused:
        world.client.put_key("v", "b", "k", bytes(LIMIT + 1))
    assert refused.value.status == INLINE_TOO_LARGE
    with pytest.raises(RequestFailed) as refused:
        world.client.put_key("v", "b", "k", bytes(1024 * KIB))
    assert refused.value.status == REQUEST_TOO_LARGE


# -- what is remembered of refusals ------------------------------------------------------------------------------------


def test_a_refusal_is_remembered_for_a_while():
    limit = InlineLimit()
    assert limit.bytes_at(LIMIT, 0.0) == LIMIT
    limit.on_refused(WayLeft.NO_ROWS, 5, 2 * MAX_INLINE_BYTES, 10.0)
    assert limit.bytes_at(LIMIT, 10.0) == limit.bytes_at(LIMIT, 9.9 + ASK_AGAIN_S) == 0
    assert limit.bytes_at(LIMIT, 10.0 + ASK_AGAIN_S) == LIMIT
    limit.on_refused(WayLeft.ROW_TOO_LARGE, 5000, 10, 100.0)
    assert (limit.bytes_at(LIMIT, 101.0), limit.bytes_at(100, 101.0)) == (4999, 100)
    limit.on_refused(WayLeft.ROW_TOO_LARGE, 5, MAX_INLINE_BYTES, 100.0)
    assert limit.bytes_at(LIMIT, 101.0) == 4999, "it was refused for its metadata"
    limit.on_refused(WayLeft.ROW_TOO_LARGE, 0, MAX_INLINE_BYTES, 100.0)
    assert limit.bytes_at(LIMIT, 101.0) == 0


def test_many_threads_write_small_keys(world):
    def run(number):
        for step in range(5):
            write(world, b"%d/%d" % (number, step), key=f"{number}-{step}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key for _, _, key in world.cluster.keys} == {f"{number}-{step}" for number in range(8) for step in range(5)}
    assert world.get("/v/b/7-4") == b"7/4"
    assert not any(isinstance(decode_as(Request, value).body, CreateKey) for value in world.cluster.seen)


def test_bytes_that_are_held_are_counted_and_let_go_of_at_the_end(world):
    """A program may keep the object of a file that it has closed: it must not keep the bytes."""
    committed, aborted = (world.client.open(f"/v/b/{name}", "wb") for name in ("committed", "aborted"))
    for file in (committed, aborted):
        file.write(b"x" * 100)
        assert file._writer.held_bytes == 100
    committed.close()
    aborted._writer.abort()
    assert committed._writer._held == aborted._writer._held == []
    assert world.get("/v/b/committed") == b"x" * 100


def test_what_is_held_is_counted_where_it_is(world):
    file = world.client.open("/v/b/k", "wb")
    file.write(b"x" * 100)
    file.flush()
    writer = file._writer
    assert writer._held == [], "they are on datanodes"
    assert writer.held_bytes == writer._writer.held_bytes
    assert file.statistics().bytes == 100
    file.close()


def test_a_write_that_grew_onto_datanodes_can_be_interrupted(world):
    file = world.client.open("/v/b/k", "wb")
    file.write(some_bytes(LIMIT + 1))
    file._writer.interrupt("no longer wanted")
    with pytest.raises(RetryableError, match="no longer wanted"):
        file.flush()
    assert ("v", "b", "k") not in world.cluster.keys
