"""Files whose methods are awaited: one thread at a time in each, and what a second caller, an abort or a cancelled wait meets."""

import asyncio
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from producers.errors import RequestFailed, RetryableError
from producers.files.async_key_files import AsyncKeyFile
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

DATA = some_bytes(10 * KIB)
WAIT_S = 30.0


@pytest.fixture
def world(make):
    made = make(replicas=1)
    made.put(DATA)
    return made


@pytest.fixture
def workers():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def opens(world, workers):
    """Return what makes a file that is not open yet."""

    def begin(mode="rb", path="/v/b/k"):
        return AsyncKeyFile(lambda: world.client.open(path, mode), lambda: workers)

    return begin


def test_a_file_that_is_not_open_says_how_to_open_it(opens):
    file = opens()
    for use in (lambda: file.file, file.tell):
        with pytest.raises(ValueError, match="the file is not open: use it in 'async with', or await it"):
            use()

    async def close():
        await file.close()

    with pytest.raises(ValueError, match="not open"):
        asyncio.run(close())


def test_a_file_is_opened_once_however_often_it_is_awaited(world, workers):
    opened = []

    def opens():
        opened.append(world.client.open("/v/b/k"))
        return opened[-1]

    async def run():
        file = AsyncKeyFile(opens, lambda: workers)
        assert await file is file
        await asyncio.gather(file._open(), file._open())
        async with file:
            pass
        together = AsyncKeyFile(opens, lambda: workers)
        await asyncio.gather(together._open(), together._open())
        await together.close()

    asyncio.run(run())
    assert len(opened) == 2
    assert all(file.closed for file in opened)


def test_a_key_that_cannot_be_opened_says_so_each_time(opens):
    async def run():
        file = opens(path="/v/b/none")
        for _ in range(2):
            with pytest.raises(RequestFailed, match="KEY_NOT_FOUND"):
                await file

    asyncio.run(run())


def test_a_file_is_for_reading_or_for_writing(opens):
    async def run():
        async with opens() as reading, opens("wb", "/v/b/new") as writing:
            for one in (reading.write(b"x"), reading.flush(), reading.hsync(), reading.abort()):
                with pytest.raises(io.UnsupportedOperation, match="/v/b/k is open for reading"):
                    await one
            for one in (writing.read(), writing.readinto(bytearray(1)), writing.pread(1, 0)):
                with pytest.raises(io.UnsupportedOperation, match="/v/b/new is open for writing"):
                    await one
            with pytest.raises(io.UnsupportedOperation, match="/v/b/new is open for writing"):
                writing.seek(0)

    asyncio.run(run())


def test_reads_go_on_where_the_last_one_ended(opens):
    async def run():
        async with opens() as file:
            assert (await file.read(0), file.tell()) == (b"", 0)
            assert (await file.read(10), file.tell()) == (DATA[:10], 10)
            assert file.seek(-3, os.SEEK_END) == len(DATA) - 3
            buffer = bytearray(b"?" * 5)
            assert await file.readinto(buffer) == 3
            assert (bytes(buffer), file.tell()) == (DATA[-3:] + b"??", len(DATA))
            assert await file.read() == b""
            assert file.seek(-5, os.SEEK_CUR) == len(DATA) - 5
            assert await file.read() == DATA[-5:]
            assert (await file.pread(4, 100), file.tell()) == (DATA[100:104], len(DATA))
            file.seek(1)
            words = memoryview(bytearray(8)).cast("I")
            assert await file.readinto(words) == 8
            assert words.tobytes() == DATA[1:9]

    asyncio.run(run())


def test_what_is_written_is_there_after_the_block_and_not_if_an_exception_ended_it(world, opens):
    async def run():
        async with opens("wb", "/v/b/new") as file:
            assert await file.write(b"one") == 3
            await file.flush()
            await file.hsync()
            assert file.tell() == 3

        async def fail():
            async with opens("wb", "/v/b/none") as file:
                await file.write(b"one")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

        async def fail_reading():
            async with opens() as file:
                files.append(file)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_reading()

    files: list[Any] = []
    asyncio.run(run())
    assert world.get("/v/b/new") == b"one"
    assert ("v", "b", "none") not in world.cluster.keys
    assert files[0].file.closed


def test_calls_take_turns_in_their_order(world, opens, monkeypatch):
    inside, most, order = set(), [], []

    async def run():
        async with opens() as file:
            real = file.file.pread

            def pread(size, offset):
                inside.add(offset)
                most.append(len(inside))
                found = real(size, offset)
                order.append(offset)
                inside.discard(offset)
                return found

            monkeypatch.setattr(file.file, "pread", pread)
            found = await asyncio.gather(*(file.pread(1, offset) for offset in range(20)))
            assert found == [DATA[offset : offset + 1] for offset in range(20)]

    asyncio.run(run())
    assert (order, set(most)) == (list(range(20)), {1})


def test_a_turn_ends_though_its_thread_raised_or_there_is_none(world, opens, workers):
    async def run():
        async with opens() as file:
            with pytest.raises(TypeError):
                await file.pread("no number", 0)
            assert await file.pread(1, 0) == DATA[:1]
            others, file._workers = file._workers, closed
            with pytest.raises(RuntimeError, match="shutdown"):
                await file.pread(1, 0)
            file._workers = others
            assert await file.pread(1, 0) == DATA[:1]

    ended = ThreadPoolExecutor(1)
    ended.shutdown()

    def closed():
        return ended

    asyncio.run(run())


def test_closing_again_says_how_the_key_ended(world, opens):
    async def run():
        file = await opens("wb", "/v/b/new")
        await file.write(b"one")
        await asyncio.gather(file.close(), file.close())
        await file.close()
        failed = await opens("wb", "/v/b/failed")
        failed.file.interrupt("enough")
        for _ in range(2):
            with pytest.raises(RetryableError, match="enough"):
                await failed.close()

    asyncio.run(run())
    assert world.get("/v/b/new") == b"one"
    assert ("v", "b", "failed") not in world.cluster.keys


def test_an_abort_ends_a_write_that_is_under_way(world, opens, monkeypatch):
    begun = threading.Event()
    interrupted: list[Any] = []

    async def run():
        file = await opens("wb", "/v/b/new")
        enough = threading.Event()

        def write(_):
            begun.set()
            assert enough.wait(WAIT_S)
            raise RetryableError("WRITE_FAILED", interrupted[0])

        def interrupt(reason):
            interrupted.append(reason)
            enough.set()

        monkeypatch.setattr(file.file, "write", write)
        monkeypatch.setattr(file.file, "interrupt", interrupt)
        writing = asyncio.ensure_future(file.write(b"one"))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        await file.abort()
        with pytest.raises(RetryableError, match="/v/b/new was aborted"):
            await writing
        assert file.file.closed
        assert interrupted == ["/v/b/new was aborted"]

    asyncio.run(run())
    assert ("v", "b", "new") not in world.cluster.keys


def test_an_abort_while_nothing_is_under_way_interrupts_nothing(world, opens, monkeypatch):
    async def run():
        file = await opens("wb", "/v/b/new")
        monkeypatch.setattr(file.file, "interrupt", lambda _: pytest.fail("nothing is under way"))
        await file.write(b"one")
        await file.abort()
        assert file.file.closed

    asyncio.run(run())
    assert ("v", "b", "new") not in world.cluster.keys
