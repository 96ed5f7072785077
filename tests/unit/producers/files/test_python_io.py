"""Keys as files do what Python's own binary files do: each step is taken on a file of this machine too, and compared."""

from __future__ import annotations

import array
import copy
import gzip
import io
import os
import pickle
import random
import re
import sys
import threading
import weakref
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from producers.errors import RequestFailed
from producers.files.inline_keys import InlineReader
from producers.files.key_files import KeyInput, KeyOutput
from tests.support.local.forked import in_child
from tests.support.sdk.datanodes import KIB, World

LINES = b"".join(b"%d %s\n" % (n, b"x" * (n * n % 301)) for n in range(1600))
CONTENTS = {
    "lines": LINES,
    "no-newline-at-its-end": b"first\n\n\nlast",
    "one-long-line": bytes(250 * KIB),
    "empty": b"",
    "one": b"1",
}
KINDS = ["inline", "blocks"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with each content as a key in its tables, and in blocks: the long ones in two."""
    make: Any = World
    found = make(tmp_path_factory.mktemp("io") / "world", replicas=1, block_bytes=200 * KIB)
    for name, data in CONTENTS.items():
        found.put(data, f"/v/b/blocks-{name}")
        found.put(data, f"/v/b/inline-{name}", inline_bytes=256 * KIB)
    yield found
    found.close()


@pytest.fixture
def open_both(world: World, tmp_path: Path) -> Callable[..., tuple[KeyInput, BinaryIO]]:
    """Open a key, and a file of this machine with the same bytes."""

    def begin(kind: str = "blocks", name: str = "lines") -> tuple[KeyInput, BinaryIO]:
        local = tmp_path / f"{kind}-{name}"
        local.write_bytes(CONTENTS[name])
        return world.client.open(f"/v/b/{kind}-{name}"), local.open("rb")

    return begin


ERRORS = (io.UnsupportedOperation, TypeError, StopIteration, ValueError, OSError)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returned, or the kind of what it raised."""
    try:
        return call(*arguments)
    except ERRORS as error:
        return [isinstance(error, kind) for kind in ERRORS]


def filled(file: Any, method: str, buffer: Any) -> tuple[Any, Any]:
    return outcome(getattr(file, method), buffer), bytes(buffer)


STEPS: dict[str, list[Callable[[Any], Any]]] = {
    "read": [lambda f: f.read(), lambda f: f.read(None), lambda f: f.read(-1), lambda f: f.read(0), lambda f: f.read(7),
             lambda f: f.read(70_000), lambda f: f.read(10**9)],
    "lines": [lambda f: f.readline(), lambda f: f.readline(3), lambda f: f.readline(0), lambda f: f.readline(-1),
              lambda f: f.readline(None), lambda f: f.readline(10**9), next, lambda f: [next(f), next(f)]],
    "all lines": [lambda f: f.readlines(), lambda f: f.readlines(0), lambda f: f.readlines(None),
                  lambda f: f.readlines(400), lambda f: f.readlines(-1), list],
    "into": [lambda f: filled(f, "readinto", bytearray(100)), lambda f: filled(f, "readinto", bytearray(0)),
             lambda f: filled(f, "readinto", array.array("i", range(33))), lambda f: filled(f, "readinto", bytearray(90_000)),
             lambda f: filled(f, "readinto1", bytearray(0)), lambda f: filled(f, "readinto", b"no room")],
    "seek": [lambda f: f.seek(0), lambda f: f.seek(65_536), lambda f: f.seek(65_535), lambda f: f.seek(10, 1),
             lambda f: f.seek(0, 1), lambda f: f.seek(0, 2), lambda f: f.seek(5, 2), lambda f: f.seek(10**7), lambda f: f.tell()],
    "wrong": [lambda f: f.seek(1.5), lambda f: f.seek(0, 9), lambda f: f.seek(0, -1), lambda f: f.seek("0"), lambda f: f.seek(None),
              lambda f: f.read(2.0), lambda f: f.read("2"), lambda f: f.read1("2"), lambda f: f.readline(1.0),
              lambda f: f.readinto(3), lambda f: f.readinto("text"), lambda f: f.write(b"x"), lambda f: f.writelines([b"x"]),
              lambda f: f.writelines(None), lambda f: f.truncate(), lambda f: f.truncate(0), lambda f: f.read(-2), lambda f: f.read1(1.5),
              lambda f: f.peek("1"), pickle.dumps, copy.copy, copy.deepcopy],
    "about": [lambda f: f.readable(), lambda f: f.writable(), lambda f: f.seekable(), lambda f: f.isatty(), lambda f: f.closed,
              lambda f: f.mode, lambda f: iter(f) is f, lambda f: f.flush(), lambda f: isinstance(f, io.BufferedIOBase)],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONTENTS)
def test_each_step_does_what_it_does_to_a_file(open_both: Any, kind: str, name: str) -> None:
    key, local = open_both(kind, name)
    chance = random.Random(f"{kind} {name}")
    with key, local:
        for turn in range(400):
            group = chance.choice(list(STEPS))
            number = chance.randrange(len(STEPS[group]))
            step = STEPS[group][number]
            assert outcome(step, key) == outcome(step, local), (turn, group, number)
            assert key.tell() == local.tell(), (turn, group, number)
            some(key, local, chance)
            if chance.random() < 0.4:
                at = chance.randrange(len(CONTENTS[name]) + 10)
                assert key.seek(at) == local.seek(at)


def some(key: KeyInput, local: BinaryIO, chance: random.Random) -> None:
    """Take parts as large as the file likes: a part of what follows, and nothing only at the end."""
    at = local.tell()
    left = len(os.pread(local.fileno(), 10**7, at))
    for take in (key.peek, key.read1, lambda size: reads_into(key, size)):
        size = chance.choice([1, 5, 70_000])
        moves_from = key.tell()
        part = take(size)
        assert type(part) is bytes
        assert part == os.pread(local.fileno(), len(part), moves_from)
        assert bool(part) == (key.tell() < at + left or moves_from < at + left)
        assert key.tell() in (moves_from, moves_from + len(part))
    assert key.read1(0) == b""
    local.seek(key.tell())


def reads_into(key: KeyInput, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: key.readinto1(buffer)])


AFTER = [
    "read", "read1", "readall", "readline", "readlines", "peek", "tell", "flush", "fileno", "isatty", "readable", "writable",
    "seekable", "truncate", "__next__", "__iter__", "__enter__",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_was_read_and_closed_does_nothing_any_more(open_both: Any, kind: str) -> None:
    key, local = open_both(kind)
    with key, local:
        pass
    for _ in range(3):
        key.close()
    assert key.closed
    for name in [name for name in AFTER if hasattr(local, name) and name != "writable"]:
        with pytest.raises(ValueError, match="closed|fileno"):
            getattr(key, name)()
        assert outcome(getattr(local, name))[ERRORS.index(ValueError)]
    calls: list[Callable[[], Any]] = [
        lambda: key.seek(0), lambda: key.readinto(bytearray(1)), lambda: key.readinto1(bytearray(1)), lambda: key.pread(1, 0),
        lambda: key.write(b"x"), lambda: key.writelines([b"x"]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="closed|write"):
            call()


def test_what_is_not_there_is_said_to_be_unsupported(open_both: Any) -> None:
    key, local = open_both()
    with key, local:
        for call in (key.fileno, key.detach):
            with pytest.raises(io.UnsupportedOperation):
                call()
        with pytest.raises(ValueError, match="offset -1 lies before the key"):
            key.seek(-1)
        with pytest.raises(ValueError, match="lies before the key"):
            key.seek(-(10**9), io.SEEK_END)
        assert re.fullmatch(r"<(producers\.files\.key_files\.)?KeyInput name='/v/b/blocks-lines'>", repr(key))
        assert (key.name, key.mode, key.size) == ("/v/b/blocks-lines", "rb", len(LINES))
        known = weakref.ref(key)
        assert known() is key
    del key, call
    assert known() is None


@pytest.mark.parametrize("kind", KINDS)
def test_pread_takes_numbers_alone_and_moves_nothing(open_both: Any, kind: str) -> None:
    key, local = open_both(kind)
    with key, local:
        key.seek(11)
        for size, offset in [(5, -5), (5, -20), (100, -3), (-1, 0), (-1, -1)]:
            with pytest.raises(
                ValueError, match=f"{size} bytes at offset {offset} of /v/b/{kind}-lines: neither may be negative"
            ):
                key.pread(size, offset)
        wrong: list[tuple[Any, Any]] = [(1.0, 0), (1, 0.0), ("1", 0), (None, 0), (1, None)]
        for numbers in wrong:
            with pytest.raises(TypeError):
                key.pread(*numbers)
        for size, offset in [
            (0, 0),
            (5, 0),
            (70_000, 60_000),
            (10**9, 5),
            (5, len(LINES)),
            (5, len(LINES) - 2),
            (5, 10**12),
        ]:
            assert key.pread(size, offset) == os.pread(local.fileno(), min(size, 10**8), offset)
        assert key.tell() == 11


@pytest.fixture
def eager() -> Iterator[None]:
    """Have threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*tasks: Callable[[], None]) -> None:
    """Run tasks at the same time; raise what any of them raised."""
    raised: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for error in raised:
        raise error


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_a_file_get_each_byte_once_and_pread_gets_the_right_ones(open_both: Any, kind: str) -> None:
    key, local = open_both(kind, "lines" if kind == "blocks" else "no-newline-at-its-end")
    data = local.read()
    parts: list[list[bytes]] = [[], [], []]

    def take(number: int) -> None:
        chance = random.Random(number)
        while part := (key.read1 if number else key.read)(chance.randrange(1, 900)):
            parts[number].append(part)

    def look(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            offset = chance.randrange(len(data))
            assert key.pread(50, offset) == data[offset : offset + 50]

    with key, local:
        in_threads(*(lambda n=n: take(n) for n in range(3)), *(lambda n=n: look(n) for n in range(3)))
    assert Counter(b"".join(map(b"".join, parts))) == Counter(data)


def test_a_file_that_is_closed_while_others_read_ends_their_reads(open_both: Any) -> None:
    key, local = open_both()
    with local:
        begun = threading.Event()

        def read_on() -> None:
            while True:
                try:
                    assert key.pread(100, 1000) == LINES[1000:1100]
                except ValueError as error:
                    assert str(error) == "/v/b/blocks-lines is closed"  # noqa: PT017 - any other is a failure too
                    return
                begun.set()

        def close() -> None:
            assert begun.wait(30)
            key.close()

        in_threads(read_on, read_on, close)


class PacketLost(Exception):
    """A packet did not come."""


class Flaky(InlineReader):
    """Bytes in packets of a hundred; some of the packets fail once."""

    def __init__(self, data: bytes, *fails: int) -> None:
        super().__init__(data)
        self.fails = {*fails}

    def next_bytes(self, offset: int, wanted: int) -> memoryview:
        packet = offset // 100
        if packet in self.fails:
            self.fails.remove(packet)
            raise PacketLost
        return super().next_bytes(offset, wanted)[: 100 * (packet + 1) - offset]


READS: list[Callable[[KeyInput], bytes]] = [
    lambda f: f.read(), lambda f: f.read(350), lambda f: f.read(950), lambda f: part_of(f, bytearray(350), "readinto"),
    lambda f: f.read(len(f.peek())),
    lambda f: part_of(f, bytearray(2000), "readinto"), lambda f: f.read1(), lambda f: part_of(f, bytearray(350), "readinto1"),
]  # fmt: skip


def part_of(file: KeyInput, buffer: bytearray, method: str) -> bytes:
    return bytes(buffer[: getattr(file, method)(buffer)])


@pytest.mark.parametrize("number", range(len(READS)))
def test_a_read_that_fails_does_not_move(number: int) -> None:
    """Whoever asks again gets the same bytes, and loses none that the buffer had."""
    for at in (0, 7, 90):
        file = KeyInput(Flaky(LINES[:1000], 1, 2, 3, 5), "/v/b/k")
        file.seek(at // 10)  # the begin is in the buffer
        begin = file.read(at)
        failed, found = 0, [LINES[: at // 10], begin]
        while True:
            try:
                part = READS[number](file)
            except PacketLost:
                failed += 1
                assert file.tell() == sum(map(len, found))
            else:
                if not part:
                    break
                found.append(part)
        assert b"".join(found) == LINES[:1000]
        assert failed


def test_after_a_line_that_failed_the_file_is_nowhere_until_it_is_told_where() -> None:
    """Its begin is lost in Python's buffer: to go on would be to leave it out without a word."""
    reads: list[Callable[[KeyInput], object]] = [next, KeyInput.readline, KeyInput.readlines, list]
    for read in reads:
        file = KeyInput(Flaky(b"x" * 90 + b"\n" + b"y" * 50 + b"\nlast", 1), "/v/b/k")
        assert len(file.readline()) == 91
        with pytest.raises(PacketLost):
            read(file)
        ways: list[Callable[[KeyInput], object]] = [
            KeyInput.tell, KeyInput.read, KeyInput.readline, next, KeyInput.peek, lambda f: f.seek(0, io.SEEK_CUR),
            KeyInput.read1, lambda f: f.readinto(bytearray(1)),
        ]  # fmt: skip
        for way in ways:
            with pytest.raises(ValueError, match="a read of /v/b/k has failed: seek to where to go on"):
                way(file)
        with pytest.raises(ValueError, match="lies before the key"):
            file.seek(-1)
        with pytest.raises(ValueError, match="seek to where to go on"):
            file.tell()
        assert file.pread(3, 0) == b"xxx"
        assert file.seek(91) == 91
        assert list(file) == [b"y" * 50 + b"\n", b"last"]


class Stuck(InlineReader):
    """Bytes whose packets after the first come when they may."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.is_asked, self.may_come = threading.Event(), threading.Event()

    def next_bytes(self, offset: int, wanted: int) -> memoryview:
        if offset >= 100:
            self.is_asked.set()
            assert self.may_come.wait(30)
        return super().next_bytes(offset, wanted)[: max(100 - offset, 100)]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        part = self.next_bytes(offset, len(buffer))[: len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("way", ["read", "readlines", "pread"])
def test_a_forked_process_has_the_file_without_the_locks_of_threads_that_are_not_there(way: str) -> None:
    """It goes on at the same place; if another thread was moving the file, it is told where."""
    reader = Stuck(LINES[:1000])
    file = KeyInput(reader, "/v/b/k")
    first = file.readline()
    assert in_child(lambda: file.tell() == len(first) and file.readline() == LINES.splitlines(keepends=True)[1])

    def look() -> bool:
        reader.may_come.set()
        if way != "pread":
            with pytest.raises(ValueError, match="seek to where to go on"):
                file.tell()
        file.seek(len(first))
        return first + file.read() == LINES[:1000] and file.pread(9, 300) == LINES[300:309] and file.tell() == 1000

    def fork() -> None:
        assert reader.is_asked.wait(30)
        try:
            assert in_child(look)
        finally:
            reader.may_come.set()

    def use() -> None:
        getattr(file, way)(*((5, 200) if way == "pread" else ()))

    in_threads(use, fork)
    assert in_child(lambda: file.pread(9, 0) == LINES[:9])
    file.close()
    assert in_child(lambda: file.closed)


def test_a_forked_process_does_not_wait_for_a_thread_that_writes(world: World) -> None:
    entered, go_on = threading.Event(), threading.Event()
    key = world.client.open("/v/b/forked", "wb")

    def stuck(_: object) -> int:
        entered.set()
        assert go_on.wait(30)
        return 1

    key._writer.write = stuck  # type: ignore[method-assign, assignment]

    def look() -> bool:
        for call in (key.flush, lambda: key.write(b"x"), key.close):
            with pytest.raises(RequestFailed, match="WRONG_PROCESS"):
                call()
        key.abort()
        return key.closed

    def fork() -> None:
        assert entered.wait(30)
        try:
            assert in_child(look)
        finally:
            go_on.set()

    def write() -> None:
        key.write(b"x")

    in_threads(write, fork)
    key.abort()


def test_a_read_within_a_read_is_refused() -> None:
    """As a signal's handler may do: its bytes would be taken for the outer read's."""

    class Interrupted(InlineReader):
        def next_bytes(self, offset: int, wanted: int) -> memoryview:
            for again in (lambda: file.pread(1, 0), lambda: file.read(1)):
                with pytest.raises(RuntimeError):
                    again()
            return super().next_bytes(offset, wanted)

    file = KeyInput(Interrupted(b"hello"), "/v/b/k")
    assert file.read() == b"hello"
    assert file.pread(2, 1) == b"el"


def test_pythons_readers_read_keys(world: World, open_both: Any) -> None:
    key, local = open_both()
    with key, local:
        assert io.BufferedReader(key, 100).read() == local.read()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(20):
            archive.writestr(f"{number}.txt", LINES[number * 1000 :])
    world.put(packed.getvalue(), "/v/b/zip")
    with world.client.open("/v/b/zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("7.txt") == LINES[7000:]
    with world.client.open("/v/b/gz", "wb") as output, gzip.open(output, "wb") as target:
        target.write(LINES)
    with world.client.open("/v/b/gz") as file, gzip.open(file, "rt") as source:
        assert "".join(source).encode() == LINES


# -- writing

WRITES: list[Callable[[Any], Any]] = [
    lambda f: f.write(b"bytes"), lambda f: f.write(bytearray(b"more")), lambda f: f.write(memoryview(b"a view")[2:]),
    lambda f: f.write(array.array("i", range(9))), lambda f: f.write(memoryview(bytes(6)).cast("B", (2, 3))), lambda f: f.write(b""),
    lambda f: f.writelines([b"a", bytearray(b"b"), memoryview(b"c")]), lambda f: f.writelines(iter([b"1", b"2"])),
    lambda f: f.writelines([]), lambda f: f.tell(), lambda f: f.writable(), lambda f: f.isatty(), lambda f: f.closed, lambda f: f.mode,
    lambda f: f.write("text"), lambda f: f.write(3), lambda f: f.write(None), lambda f: f.writelines(None), lambda f: f.writelines("abc"),
    lambda f: f.writelines([b"d", "e"]), lambda f: f.writelines(7), lambda f: f.read(), lambda f: f.read(1), lambda f: f.read1(),
    lambda f: f.readinto(bytearray(1)), lambda f: f.readline(), lambda f: f.readlines(), next, list, lambda f: f.readable(),
    pickle.dumps, copy.copy, copy.deepcopy, lambda f: isinstance(f, io.BufferedIOBase),
]  # fmt: skip


@pytest.mark.parametrize("inline_bytes", [0, 4096], ids=["blocks", "inline"])
def test_each_write_does_what_it_does_to_a_file(world: World, tmp_path: Path, inline_bytes: int) -> None:
    chance = random.Random(inline_bytes)
    with (
        world.client.open("/v/b/w", "wb", options=world.with_options(inline_bytes=inline_bytes)) as key,
        (tmp_path / "w").open("wb") as local,
    ):
        for turn in range(300):
            number = chance.randrange(len(WRITES))
            step = WRITES[number]
            assert outcome(step, key) == outcome(step, local), (turn, number)
            assert key.tell() == local.tell(), (turn, number)
    assert world.get("/v/b/w") == (tmp_path / "w").read_bytes()


def test_what_a_key_that_is_written_has_not_is_said_to_be_unsupported(world: World) -> None:
    with world.client.open("/v/b/u", "wb") as key:
        calls: list[Callable[[], object]] = [
            lambda: key.seek(0), key.truncate, lambda: key.truncate(0), key.fileno, key.detach
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(io.UnsupportedOperation):
                call()
        assert (key.seekable(), key.readable(), key.writable()) == (False, False, True)


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("inline_bytes", [0, 4096], ids=["blocks", "inline"])
def test_a_key_that_was_written_and_closed_does_nothing_any_more(world: World, inline_bytes: int, end: str) -> None:
    key = world.client.open("/v/b/c", "wb", options=world.with_options(inline_bytes=inline_bytes))
    key.write(b"bytes")
    getattr(key, end)()
    for _ in range(3):
        key.close()
    calls: list[Callable[[], object]] = [
        key.flush, key.hsync, key.tell, key.writable, key.isatty, key.fileno, key.readline, key.__enter__, key.__iter__,
        key.truncate, lambda: key.write(b"x"), lambda: key.write(b""), lambda: key.writelines([b"x"]), lambda: key.seek(0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="closed|fileno|seek|truncate|read"):
            call()
    with pytest.raises(ValueError, match="/v/b/c is closed"):
        key.flush()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("inline_bytes", [0, 256 * KIB], ids=["blocks", "inline"])
def test_each_write_of_threads_that_share_a_file_is_whole(world: World, inline_bytes: int) -> None:
    written = [[b"%d-%05d %s\n" % (n, i, b"x" * (i % 90)) for i in range(700)] for n in range(3)]
    with world.client.open("/v/b/t", "wb", options=world.with_options(inline_bytes=inline_bytes)) as key:

        def write(lines: list[bytes]) -> None:
            for line in lines:
                assert key.write(line) == len(line)

        in_threads(*(lambda lines=lines: write(lines) for lines in written))
    with world.client.open("/v/b/t") as back:
        found = list(back)
    assert Counter(found) == Counter(line for lines in written for line in lines)
    for n, lines in enumerate(written):
        assert [line for line in found if line.startswith(b"%d-" % n)] == lines, "each thread's are in its order"


def test_an_abort_does_not_wait_for_a_write_that_is_under_way(world: World) -> None:
    """Of another thread, and of a datanode that takes no more bytes."""
    entered, go_on = threading.Event(), threading.Event()
    key = world.client.open("/v/b/a", "wb")
    assert isinstance(key, KeyOutput)
    interrupt = key._writer.interrupt

    def interrupted(reason: str) -> None:
        interrupt(reason)
        go_on.set()

    def stuck(_: object) -> int:
        entered.set()
        assert go_on.wait(30), "nobody interrupted the write"
        raise InterruptedError

    key._writer.write, key._writer.interrupt = stuck, interrupted  # type: ignore[method-assign, assignment]

    def write() -> None:
        with pytest.raises(InterruptedError):
            key.write(b"x")

    def abort() -> None:
        assert entered.wait(30)
        key.abort()

    in_threads(write, abort)
    assert key.closed
    assert ("v", "b", "a") not in world.cluster.keys
