"""Walking and reading a tree: real files, links, pipes, odd names."""

import hashlib
import os
import subprocess
import sys

import pytest

from producers.bulk.tree import READ_BYTES, FoundFile, Skipped, read_file, walk


def taken(root):
    return [found.relative_path for found in walk(root) if isinstance(found, FoundFile)]


def skipped(root):
    return {found.relative_path: found.reason for found in walk(root) if isinstance(found, Skipped)}


def test_files_come_in_order_with_their_paths_and_sizes(tmp_path):
    for name in ("b.txt", "a.txt", "sub/z.txt", "sub/deep/y.txt", "another/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = list(walk(tmp_path))
    assert [f.relative_path for f in found] == ["a.txt", "b.txt", "another/x.txt", "sub/z.txt", "sub/deep/y.txt"]
    assert all(isinstance(f, FoundFile) and f.size == len(f.relative_path) for f in found)


def test_names_are_kept_unchanged(tmp_path):
    names = [" lead", "trail ", "new\nline", "日本", "quote'\"", "back\\slash", "#?&%41", "-dash", "e\u0301"]
    for name in names:
        (tmp_path / name).write_text("x")
    assert sorted(taken(tmp_path)) == sorted(names)


def test_links_pipes_and_names_that_are_not_utf8_are_skipped_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked-folder").symlink_to("folder", target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    with open(os.fsencode(tmp_path) + b"/bad\xfe.txt", "wb"):
        pass
    assert taken(tmp_path) == ["file"]
    reasons = skipped(tmp_path)
    assert reasons == {
        "link": "a symbolic link",
        "dangling": "a symbolic link",
        "linked-folder": "a symbolic link",
        "pipe": "neither a regular file nor a directory",
        "bad\\xff": "its name is not UTF-8",
        "bad\\xfe.txt": "its name is not UTF-8",
    }


def test_a_tree_deeper_than_pythons_stack_is_walked(tmp_path):
    depth = sys.getrecursionlimit() + 50
    folders = [os.fspath(tmp_path)]
    (tmp_path / "file").write_text("x")
    try:
        for _ in range(depth):
            folders.append(f"{folders[-1]}/d")
            os.mkdir(folders[-1])
        (tmp_path / "file").rename(f"{folders[-1]}/file")
        assert taken(tmp_path) == ["d/" * depth + "file"]
        os.rename(f"{folders[-1]}/file", tmp_path / "file")
    finally:
        # pytest's own removal is recursive, and would fail for every later run.
        subprocess.run(["rm", "-rf", folders[1]], check=True)


def test_a_root_that_is_no_directory_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file"):
        walk(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="nothing"):
        walk(tmp_path / "nothing")


@pytest.mark.parametrize("size", [0, 1, READ_BYTES, READ_BYTES + 1])
def test_content_is_size_time_and_checksum(tmp_path, size):
    data = os.urandom(size)
    path = tmp_path / "sub" / "file"
    path.parent.mkdir()
    path.write_bytes(data)
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    content = read_file(tmp_path, "sub/file")
    assert not isinstance(content, Skipped)
    assert content.size == size
    assert content.mtime_ns == 1_700_000_000_123_456_789
    assert content.sha256 == hashlib.sha256(data).hexdigest()


def test_what_went_away_or_changed_its_kind_since_the_walk_is_skipped(tmp_path):
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("gone", "link", "pipe", "folder"):
        result = read_file(tmp_path, name)
        assert isinstance(result, Skipped), name
        assert result.relative_path == name
        assert "cannot be read" in result.reason or "no longer" in result.reason


def test_a_file_whose_bytes_cannot_be_read_is_skipped():
    result = read_file("/proc/self", "mem")
    assert isinstance(result, Skipped)
    assert "cannot be read" in result.reason


def test_a_file_whose_size_is_not_what_was_read_is_skipped():
    # /proc files say size 0 and have bytes: exactly what a file that grows while it is read looks like.
    result = read_file("/proc/self", "status")
    assert result == Skipped(relative_path="status", reason="changed while it was read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_skipped(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    assert skipped(tmp_path) == {"closed": "cannot be listed: Permission denied"}
    assert isinstance(read_file(tmp_path, "secret"), Skipped)


def test_a_folder_that_cannot_be_listed_is_skipped_and_the_rest_is_taken(tmp_path, monkeypatch):
    for name in ("a/x", "closed/y", "z/w"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    real = os.scandir

    def scan(folder):
        if folder.endswith("/closed"):
            raise PermissionError(13, "Permission denied", folder)
        return real(folder)

    monkeypatch.setattr(os, "scandir", scan)
    assert list(walk(tmp_path)) == [
        FoundFile(relative_path="a/x", size=0),
        Skipped(relative_path="closed", reason="cannot be listed: Permission denied"),
        FoundFile(relative_path="z/w", size=0),
    ]
    assert list(walk(tmp_path / "closed")) == [Skipped(relative_path=".", reason="cannot be listed: Permission denied")]


def test_a_file_that_goes_while_its_folder_is_walked_is_skipped(tmp_path):
    """The sizes are asked for one by one, after the names."""
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    walked = walk(tmp_path)
    assert next(walked) == FoundFile(relative_path="a", size=0)
    (tmp_path / "b").unlink()
    assert list(walked) == [Skipped(relative_path="b", reason="cannot be read: No such file or directory")]


def test_folders_to_leave_out_are_left_out_with_all_below_them(tmp_path):
    for name in ("in/deep/x", "in/y", "out/z", "in/out/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [one.relative_path for one in walk(tmp_path, ["out", "in/deep"])]
    assert found == ["in/y", "in/out/w"]


def test_a_file_that_is_written_while_it_is_read_is_skipped_though_its_size_is_right(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    class Digest:
        """Somebody writes the file when its first piece is hashed."""

        def update(self, piece):
            assert piece == b"old"
            path.write_bytes(b"new")
            os.utime(path, ns=(1, 1))

    monkeypatch.setattr(hashlib, "sha256", Digest)
    assert read_file(tmp_path, "f") == Skipped(relative_path="f", reason="changed while it was read")
