"""A key's bytes into a local file: whole or not at all, whoever else writes it, and there to stay."""

import hashlib
import io
import os
import threading

import pytest

from producers.bulk.key_copy import COPY_BYTES, Copied, copy, get_file


class Paused(io.BytesIO):
    """Gives its bytes once it may."""

    def __init__(self, data):
        super().__init__(data)
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def read(self, size=-1, /):
        self.asked.set()
        assert self.go_on.wait(30)
        return super().read(size)


def test_two_threads_write_one_file(tmp_path):
    found: dict[str, object] = {}

    def get(key, name):
        try:
            found[name] = get_file(key, tmp_path / "f").bytes
        except BaseException as error:
            found[name] = error

    keys = {name: Paused(name.encode() * 100) for name in ("first", "second", "third")}
    threads = [threading.Thread(target=get, args=(key, name)) for name, key in keys.items()]
    for thread in threads:
        thread.start()
    for key in keys.values():
        assert key.asked.wait(30)
    keys["first"].close()  # this one fails, and takes no other's file with it
    for key in keys.values():
        key.go_on.set()
    for thread in threads:
        thread.join()
    assert isinstance(found.pop("first"), ValueError)
    assert found == {"second": 600, "third": 500}
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() in {b"second" * 100, b"third" * 100}


def test_bytes_and_name_are_on_the_disk_in_this_order(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    for name, real in (("fsync", fsync), ("replace", replace)):

        def noted(*arguments, name=name, real=real, **more):
            where = arguments[0] if name == "replace" else os.readlink(f"/proc/self/fd/{arguments[0]}")
            done.append((name, os.path.basename(where), os.path.getsize(where) if name == "fsync" else 0))
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, noted)
    data = os.urandom(COPY_BYTES + 5)
    assert get_file(io.BytesIO(data), tmp_path / "f").bytes == len(data)  # type: ignore[arg-type]
    (first, part, size), (second, replaced, _), (third, folder, _) = done
    assert (first, second, third, size) == ("fsync", "replace", "fsync", len(data))
    assert part == replaced
    assert folder == tmp_path.name
    assert (tmp_path / "f").read_bytes() == data


def test_what_fails_leaves_what_was_there(tmp_path):
    target = tmp_path / ("long" * 60)
    target.write_bytes(b"old")
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        get_file(closed, target)  # type: ignore[arg-type]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
    get_file(io.BytesIO(b"new"), target)  # type: ignore[arg-type]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_copy_tells_its_pieces_and_what_it_copied():
    told: list[int] = []
    data = os.urandom(2 * COPY_BYTES + 7)
    target = io.BytesIO()
    copied = copy(io.BytesIO(data), target, told.append)
    assert target.getvalue() == data
    assert told == [COPY_BYTES, COPY_BYTES, 7]
    assert (copied.bytes, copied.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert copy(io.BytesIO(b""), target, told.append).bytes == 0
    assert len(told) == 3, "nothing is told of nothing"


def test_the_rate_is_in_millions_of_bytes_per_second():
    assert Copied(bytes=3_000_000, sha256="", seconds=2.0).mb_per_second == 1.5
    assert Copied(bytes=0, sha256="", seconds=0.0).mb_per_second == 0.0


def test_a_folder_that_may_be_written_and_not_read_gets_its_file_all_the_same(tmp_path, monkeypatch):
    """It cannot be synced then."""
    real = os.open

    def refuse(path, flags, *more):
        if flags & os.O_DIRECTORY:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    get_file(io.BytesIO(b"data"), tmp_path / "f")  # type: ignore[arg-type]
    assert (tmp_path / "f").read_bytes() == b"data"


def test_no_descriptor_is_left_of_a_folder_that_was_synced(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        get_file(io.BytesIO(b"data"), tmp_path / "f")  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before
