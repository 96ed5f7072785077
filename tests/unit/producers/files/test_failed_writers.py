"""A key whose writing failed is never committed, however its file is closed; what was there before stays. Over real stream servers."""

import asyncio
import gc
import io
import random
import threading
import time

import pytest

from om_processors.errors import OMError
from producers.async_client import AsyncClient
from producers.errors import DatanodeError, OutcomeUnknown, RequestFailed, RetryableError, StratologError
from producers.files.key_writer import BegunKey, KeyWriter
from schemas.records.messages import CommitKey
from schemas.result_codes import QUOTA_EXCEEDED
from tests.chaos.failing_writers import Overwriter, counted
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

OLD = b"what was there before"


@pytest.fixture
def make(make):
    """Return a factory of worlds that give up a commit soon, and have the key already."""

    def begin(**settings):
        world = make(**{"commit_timeout_ms": 300, **settings})
        world.put(OLD)
        return world

    return begin


def unchanged(world):
    assert world.key().size == len(OLD)
    assert world.cluster.keys.keys() == {("v", "b", "k")}


def stop_all(world):
    for node in world.members():
        node.stop()


# -- a write that failed


@pytest.mark.parametrize("way", [0, 1, 2, 3])
@pytest.mark.parametrize(("first", "size"), [(0, 0), (100, 0), (300, 0), (100, 1000)])
def test_closed_in_a_finally(make, way, first, size):
    world = make(commit_way=way)
    file = world.client.open("/v/b/k", "wb", size=size * KIB)

    def write():
        try:
            file.write(some_bytes(first * KIB))
            stop_all(world)
            file.write(some_bytes(900 * KIB))
            file.flush()
        finally:
            file.close()

    with pytest.raises(StratologError, match=r"/v/b/k is not committed, because writing it failed") as caught:
        write()
    assert isinstance(caught.value.__cause__, DatanodeError), "the reason is told"
    assert file.closed
    unchanged(world)
    with pytest.raises(type(caught.value), match="is not committed"):
        file.close()
    unchanged(world)


@pytest.mark.parametrize("wrap", [lambda file: io.TextIOWrapper(file, "latin-1"), io.BufferedWriter])
def test_wrapped_within_the_with(make, wrap):
    world = make()
    data = some_bytes(900 * KIB)

    def write():
        with world.client.open("/v/b/k", "wb") as file, wrap(file) as wrapper:
            wrapper.write(data[:10].decode("latin-1") if isinstance(wrapper, io.TextIOBase) else data[:10])
            wrapper.flush()
            stop_all(world)
            wrapper.write(data.decode("latin-1") if isinstance(wrapper, io.TextIOBase) else data)
            wrapper.flush()

    with pytest.raises(StratologError):
        write()
    unchanged(world)


def test_a_failure_that_is_swallowed_fails_the_end_of_the_with(make):
    world = make()

    def write():
        with world.client.open("/v/b/k", "wb") as file:
            stop_all(world)
            with pytest.raises(StratologError):
                file.write(some_bytes(900 * KIB))
            for more in (lambda: file.write(b"x"), file.flush, file.hsync):
                with pytest.raises(StratologError, match="is not committed"):
                    more()

    with pytest.raises(StratologError, match="is not committed"):
        write()
    unchanged(world)


@pytest.mark.parametrize("method", ["flush", "hsync"])
def test_a_flush_that_failed_counts_as_well(make, method):
    world = make()
    file = world.client.open("/v/b/k", "wb")
    file.write(b"x" * 10)
    stop_all(world)
    with pytest.raises(StratologError):
        getattr(file, method)()
    with pytest.raises(StratologError, match="is not committed"):
        file.close()
    unchanged(world)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_whatever_interrupts_a_write_counts(make, monkeypatch, error):
    world = make()
    file = world.client.open("/v/b/k", "wb")
    file.write(some_bytes(200 * KIB))

    def interrupted(*_arguments, **_more):
        raise error

    monkeypatch.setattr(KeyWriter, "_write_some", interrupted)
    with pytest.raises(error):
        file.write(b"more")
    monkeypatch.undo()
    with pytest.raises(
        RetryableError, match=f"WRITE_FAILED: /v/b/k is not committed, because writing it failed: {error.__name__}"
    ):
        file.close()
    unchanged(world)


def test_an_argument_that_is_wrong_changes_nothing(make):
    world = make()
    with world.client.open("/v/b/k", "wb") as file:
        file.write(b"one")
        with pytest.raises(TypeError):
            file.write("two")
        file.write(b"three")
    assert world.get() == b"onethree"


def test_a_commit_that_is_refused_is_refused_again(make):
    world = make()
    real = world.cluster.apply

    def apply(body):
        if isinstance(body, CommitKey):
            raise OMError(QUOTA_EXCEEDED, "no room")
        return real(body)

    world.cluster.apply = apply
    file = world.client.open("/v/b/k", "wb")
    file.write(b"x")
    for _ in range(2):
        with pytest.raises(RequestFailed, match="QUOTA_EXCEEDED"):
            file.close()
    unchanged(world)
    world.cluster.apply = real
    with pytest.raises(RequestFailed):
        file.close()
    unchanged(world)


class _Waits:
    """The future of a CommitKey that takes effect while whoever waits for its answer is interrupted."""

    def __init__(self, future, ends):
        self._future = future
        self._ends = ends

    def result(self):
        return self._ends(self._future)


@pytest.fixture
def commit_waits(monkeypatch):
    """Have the wait for the answer to CommitKey end as ``ends(future)`` does."""

    def change(world, ends):
        real = world.client.submit

        def submit(body, **more):
            found = real(body, **more)
            return _Waits(found, ends) if isinstance(body, CommitKey) else found

        monkeypatch.setattr(world.client, "submit", submit)

    return change


def test_after_an_interrupted_wait_for_the_commit_nobody_says_that_nothing_was_done(make, commit_waits):
    world = make()

    def interrupted(future):
        future.result()
        raise KeyboardInterrupt

    commit_waits(world, interrupted)
    file = world.client.open("/v/b/k", "wb")
    file.write(b"new")
    with pytest.raises(KeyboardInterrupt):
        file.close()
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"/v/b/k may be committed.*KeyboardInterrupt"):
            file.close()
    assert world.get() == b"new"


@pytest.mark.parametrize("answered", [True, False])
def test_an_interrupt_during_the_commit_does_not_hide_its_answer(make, commit_waits, answered):
    world = make()
    refused = RequestFailed(QUOTA_EXCEEDED, "no room")

    def interrupted(_future):
        file.interrupt("the upload was cancelled")
        raise refused if answered else KeyboardInterrupt

    commit_waits(world, interrupted)
    file = world.client.open("/v/b/k", "wb")
    file.write(b"new")
    with pytest.raises(RequestFailed if answered else KeyboardInterrupt):
        file.close()
    with pytest.raises(RequestFailed if answered else OutcomeUnknown):
        file.close()


# -- an exception of the caller's


def test_an_exception_within_the_with_though_a_wrapper_closes_the_file(make):
    world = make()

    def write():
        with world.client.open("/v/b/k", "wb") as file, io.TextIOWrapper(file, "utf-8") as text:
            text.write("half of it")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        write()
    unchanged(world)
    assert world.get() == OLD


def test_a_wrapper_that_closes_the_file_in_a_handler_within_the_with(make):
    """The exception is dealt with: the end of the block commits."""
    world = make()
    with world.client.open("/v/b/k", "wb") as file:
        try:
            with io.TextIOWrapper(file, "utf-8") as text:
                text.write("as far as it came")
                raise RuntimeError
        except RuntimeError:
            assert file.closed
            unchanged(world)
    assert world.get() == b"as far as it came"


def test_a_with_within_a_handler_commits(make):
    world = make()
    try:
        raise RuntimeError
    except RuntimeError:
        with world.client.open("/v/b/k", "wb") as file, io.TextIOWrapper(file, "utf-8") as text:
            text.write("instead")
        assert world.get() == b"instead"
        with world.client.open("/v/b/k", "wb") as file:
            file.write(b"again")
            file.close()
            assert world.get() == b"instead", "the end of the block decides"
        assert world.get() == b"again"


@pytest.mark.parametrize("wrap", [lambda file: io.TextIOWrapper(file, "latin-1"), io.BufferedWriter])
@pytest.mark.parametrize("inside", [True, False], ids=["handler within", "handler around"])
def test_the_exception_that_was_being_handled_is_raised_again(make, wrap, inside):
    """It is the same object as when the block began, so that the two cannot be told apart."""
    world = make()

    def write():
        with world.client.open("/v/b/k", "wb") as file, wrap(file) as wrapper:
            wrapper.write("half" if isinstance(wrapper, io.TextIOBase) else b"half")
            raise  # noqa: PLE0704

    def fail():
        try:
            raise ValueError("mine")
        except ValueError as error:
            if inside:
                write()
            with world.client.open("/v/b/k", "wb") as file, wrap(file) as wrapper:
                wrapper.write("half" if isinstance(wrapper, io.TextIOBase) else b"half")
                raise error  # noqa: TRY201

    with pytest.raises(ValueError, match="mine"):
        fail()
    unchanged(world)


@pytest.mark.parametrize("wrap", [lambda file: io.TextIOWrapper(file, "latin-1"), io.BufferedWriter])
def test_a_wrapper_that_is_dropped_leaves_nothing(make, wrap):
    world = make()
    wrapper = wrap(world.client.open("/v/b/k", "wb"))
    wrapper.write("half of it" if isinstance(wrapper, io.TextIOBase) else b"half of it")
    del wrapper
    gc.collect()
    unchanged(world)


# -- asyncio


def awaited(world, body):
    """Run ``body(client)`` with an asyncio client of the world."""

    async def run():
        client = AsyncClient("memory:0", read_from=[world.om.address], open_pipeline=lambda _: world.client.pipeline,
                             streams=world.options)  # fmt: skip
        await client.connect()
        try:
            await body(client)
        finally:
            client._file_client()[0].streams.close()
            client._file_client()[1].shutdown()
            client._readers.shutdown()
            client.reads.close()

    asyncio.run(run())


def deafen(world, *, deaf):
    for node in world.members():
        node.pipelines.deaf = deaf


@pytest.fixture
def inside(monkeypatch):
    """The most threads that were in one writer at a time, and which are in any now."""
    now: set[tuple[int, int]] = set()
    most = [0]
    for name in ("write", "close", "flush", "abort"):
        real = getattr(KeyWriter, name)

        def entered(self, *arguments, real=real):
            # A writer that an earlier test dropped may be collected, and so aborted, in any thread meanwhile.
            here = id(self), threading.get_ident()
            now.add(here)
            most[0] = max(most[0], sum(writer == id(self) for writer, _ in now.copy()))
            try:
                return real(self, *arguments)
            finally:
                now.discard(here)

        monkeypatch.setattr(KeyWriter, name, entered)
    return most, now


def test_a_write_that_is_cancelled_fails_the_file(make, inside):
    world = make(commit_timeout_ms=60_000)
    most, now = inside

    async def write(client):
        file = await client.open("/v/b/k", "wb")
        deafen(world, deaf=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(file.write(b"A" * 900 * KIB), 0.3)
        with pytest.raises(RetryableError, match="a write of /v/b/k was cancelled"):
            await file.write(b"B" * 200 * KIB)
        with pytest.raises(RetryableError, match="a write of /v/b/k was cancelled"):
            await file.close()
        assert not now

    awaited(world, write)
    assert most == [1]
    unchanged(world)


def test_a_with_that_is_cancelled_ends_soon(make, inside):
    world = make(commit_timeout_ms=60_000)
    most, now = inside

    async def write(client):
        async def hang():
            async with client.open("/v/b/k", "wb") as file:
                deafen(world, deaf=True)
                await file.write(b"A" * 900 * KIB)

        task = asyncio.ensure_future(hang())
        while not now:  # noqa: ASYNC110 - the writer is on another thread
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < world.options.commit_timeout_ms / 1000 / 4

    awaited(world, write)
    assert most == [1]
    unchanged(world)


def test_a_write_that_is_cancelled_before_its_turn_was_none(make):
    world = make(commit_timeout_ms=60_000)

    async def write(client):
        async with client.open("/v/b/k", "wb") as file:
            deafen(world, deaf=True)
            first = asyncio.ensure_future(file.write(b"A" * 900 * KIB))
            await asyncio.sleep(0.2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(file.write(b"B"), 0.1)
            deafen(world, deaf=False)
            await first
            await file.write(b"C")

    awaited(world, write)
    assert world.get() == b"A" * 900 * KIB + b"C"


def test_a_close_that_is_cancelled_goes_on_and_the_next_one_says_how_it_ended(make):
    world = make(commit_timeout_ms=60_000)

    async def write(client):
        file = await client.open("/v/b/k", "wb")
        await file.write(b"new")
        deafen(world, deaf=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(file.close(), 0.2)
        unchanged(world)
        deafen(world, deaf=False)
        await file.close()
        assert world.key().size == 3

    awaited(world, write)
    assert world.get() == b"new"


def test_a_read_that_is_cancelled_does_not_move_and_leaves_the_buffer_alone(make, monkeypatch):
    world = make()
    go_on = threading.Event()

    async def read(client):
        async with client.open("/v/b/k") as file:
            real = file.file.pread
            monkeypatch.setattr(file.file, "pread", lambda *where: go_on.wait(10) and real(*where))
            buffer = bytearray(5)
            for one in (file.read(5), file.readinto(buffer)):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(one, 0.05)
            go_on.set()
            assert await file.read(5) == OLD[:5]
            assert buffer == bytes(5)
            assert await file.readinto(buffer) == 5
            assert bytes(buffer) == OLD[5:10]
            assert await file.read() == OLD[10:]

    awaited(world, read)


# -- many of them, as in the campaign of datanodes


class _World:
    """What the campaign's writers need, over these datanodes."""

    def __init__(self, world):
        self.client, self.cluster = world.client, world.cluster
        self._world = world

    def options(self, *, commit_timeout_ms, **more):
        return self._world.with_options(commit_timeout_ms=min(commit_timeout_ms, 200), **more)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [True, False], ids=["as it is", "with the bug planted"])
def test_the_judge_of_the_campaign_finds_the_bug_and_nothing_without_it(make, monkeypatch, lasting):
    if not lasting:
        monkeypatch.setattr(BegunKey, "on_failure", lambda *_: None)
        monkeypatch.setattr(KeyWriter, "_let_go", lambda *_: None)
        monkeypatch.setattr("tests.support.sdk.datanodes.BlockCluster.datanodes", False)
    world = make(pipelines=2)
    overwriter = Overwriter(_World(world), 1, random.Random(5))  # type: ignore[arg-type]
    lines = []
    for number in range(40):
        for node in world.nodes.values():
            node.pipelines.deaf = number > 4 and number % 2 == 1
        lines.append(overwriter.turn())
    found = counted(lines)
    assert found["failed"] > 5
    assert found["acknowledged"] > 5
    assert (found["problem"] == 0) is lasting
