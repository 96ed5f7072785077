"""Ingest and comparison, over a cluster in memory and real files."""

import os
import threading
from typing import Any

import pytest

from om_processors.errors import OMError
from producers.bulk import ingest as module
from producers.bulk.ingest import NAMED_FAILURES, Progress, ingest, ingest_contents
from producers.bulk.listing import actual_listing, differences, expected_listing
from producers.bulk.tree_layout import TreeLayout
from producers.client import Client
from producers.errors import OutcomeUnknown, RequestFailed
from producers.reads.reads import Reads
from schemas.records.messages import CommitKey, CreateKey, CreateVolume
from schemas.result_codes import QUOTA_EXCEEDED
from tests.support.local.waiting import eventually
from tests.support.sdk.datanodes import World
from tests.support.sdk.memory import BLOCK_BYTES, MemoryCluster, client_to
from tests.support.sdk.nodes import Node


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.fixture
def client(cluster):
    client, _ = client_to(cluster)
    yield client
    client.close(0)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    files = {
        "README": b"hello",
        "empty": b"",
        "Lib/a b.py": b"x" * 10,
        "Lib/sub/ü.py": b"y",
        "large": bytes(2 * BLOCK_BYTES + 1),
    }
    for number in range(60):
        files[f"package{number % 7}/module{number}.py"] = os.urandom(number)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "link").symlink_to("README")
    return root


def listed(cluster, **parameters):
    node = Node(cluster)
    reads = Reads([node.address], deadline_ms=10_000)
    try:
        return actual_listing(reads, **parameters)
    finally:
        reads.close()
        node.close()


def test_every_file_becomes_a_key_with_its_size_time_and_checksum(client, cluster, tree):
    summary = ingest(client, tree, max_in_flight=10)
    assert summary.complete
    assert summary.keys == 65
    assert summary.bytes == sum(
        path.stat().st_size for path in tree.rglob("*") if not path.is_symlink() and path.is_file()
    )
    assert [(skip.relative_path, skip.reason) for skip in summary.skipped] == [("link", "a symbolic link")]
    assert summary.requests == len(cluster.seen)
    assert summary.max_ms >= summary.p99_ms >= summary.p50_ms > 0
    assert summary.files_per_second > 0
    assert summary.bytes_per_second == 0, "only metadata was written"
    expected = expected_listing(tree)
    assert len(expected) == 65
    assert differences(expected, listed(cluster)) == []


def test_a_second_run_is_harmless(client, cluster, tree):
    ingest(client, tree)
    assert ingest(client, tree).complete
    assert differences(expected_listing(tree), listed(cluster)) == []


def test_volumes_and_buckets_are_those_of_the_rule(client, cluster, tree):
    layout = TreeLayout(prefix="mine", volumes=3)
    summary = ingest(client, tree, layout=layout)
    assert set(summary.places) == set(cluster.buckets)
    assert all(volume.startswith("mine-") for volume in cluster.volumes)
    assert differences(expected_listing(tree, layout), listed(cluster, layout=layout)) == []
    assert listed(cluster) == {}


def test_differences_name_what_is_missing_extra_and_changed(client, cluster, tree):
    ingest(client, tree)
    expected = expected_listing(tree)
    (tree / "README").write_bytes(b"HELLO")
    (tree / "new").write_bytes(b"n")
    (tree / "empty").unlink()
    found = differences(expected_listing(tree), listed(cluster))
    kinds = {d.key[2]: (d.expected is not None, d.actual is not None) for d in found}
    assert kinds == {"README": (True, True), "new": (True, False), "empty": (False, True)}
    assert differences(expected, listed(cluster)) == []


def test_progress_ends_with_everything_done(client, tree):
    told: list[Progress] = []
    ingest(client, tree, progress=told.append)
    assert [progress.files for progress in told] == sorted(progress.files for progress in told)
    last = told[-1]
    assert (last.files, last.bytes) == (last.files_total, last.bytes_total)
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("kind", [CreateKey, CommitKey])
def test_a_failing_request_is_named_with_its_file_and_the_others_go_on(client, cluster, tree, kind):
    real = cluster.apply

    def apply(body):
        if isinstance(body, kind) and body.key == "README":
            raise OMError(QUOTA_EXCEEDED, "no room")
        return real(body)

    cluster.apply = apply
    summary = ingest(client, tree)
    assert not summary.complete
    assert summary.keys == 64
    assert summary.failed_files == 1
    assert [(failure.relative_path, failure.status) for failure in summary.failures] == [("README", QUOTA_EXCEEDED)]
    assert "README" in summary.failures[0].message


def test_a_key_that_gets_too_few_blocks_is_a_named_failure(client, cluster, tree):
    real = cluster.apply

    def apply(body):
        result = real(body)
        if isinstance(body, CreateKey) and body.key == "large":
            result.blocks.pop()
        return result

    cluster.apply = apply
    summary = ingest(client, tree)
    assert [failure.relative_path for failure in summary.failures] == ["large"]
    assert "are needed" in summary.failures[0].message


def refuse(cluster, kind):
    """Have the cluster refuse all requests of a kind."""
    real = cluster.apply

    def apply(body):
        if isinstance(body, kind):
            raise OMError(QUOTA_EXCEEDED, "no room")
        return real(body)

    cluster.apply = apply


def test_failures_are_all_counted_and_some_are_named(client, cluster, tree):
    for number in range(NAMED_FAILURES):
        (tree / f"more{number}").write_bytes(b"x")
    refuse(cluster, CreateKey)
    summary = ingest(client, tree)
    assert summary.failed_files == 65 + NAMED_FAILURES
    assert len(summary.failures) == NAMED_FAILURES


def test_a_volume_that_cannot_be_created_ends_it(client, cluster, tree):
    refuse(cluster, CreateVolume)
    with pytest.raises(RequestFailed, match=QUOTA_EXCEEDED):
        ingest(client, tree)


def test_a_client_that_closes_in_the_middle_fails_the_rest_by_name(cluster, tree):
    client, connection = client_to(cluster)
    closed = threading.Event()

    def progress(_progress):
        if not closed.is_set():
            closed.set()
            connection.held = True
            client.close(0)

    summary = ingest(client, tree, progress=progress, max_in_flight=2)
    assert summary.keys + summary.failed_files == 65
    assert {failure.status for failure in summary.failures} <= {"CLIENT_CLOSED"}
    assert summary.failed_files > 0


def test_a_root_that_is_no_directory_and_no_room_are_refused(client, tree):
    with pytest.raises(NotADirectoryError):
        ingest(client, tree / "README")
    with pytest.raises(ValueError, match="max_in_flight"):
        ingest(client, tree, max_in_flight=0)


def test_a_with_block_that_ends_with_unanswered_requests_says_so(cluster):
    client, connection = client_to(cluster)
    connection.lost = lambda _sent: True
    assert isinstance(client, Client)
    future = client.submit(CreateVolume(volume="v1"))
    client.close_timeout_ms = 10
    with pytest.raises(OutcomeUnknown, match="CreateVolume /v1"):
        client.__exit__(None, None, None)
    assert isinstance(future.exception(timeout=10), OutcomeUnknown)


def test_one_key_at_a_time_is_enough_and_none_is_too_few(client, cluster, tree):
    for write in (lambda n: ingest(client, tree, max_in_flight=n), lambda n: ingest_contents(client, tree, writers=n)):
        with pytest.raises(ValueError, match="must be at least 1, not 0"):
            write(0)
    assert ingest(client, tree, max_in_flight=1).complete
    assert differences(expected_listing(tree), listed(cluster)) == []


class Growing:
    """A rule with a volume for each directory, in whose tree files appear behind the first look at it."""

    def __init__(self, root):
        self.root = root
        self.asked = []

    def bucket_for(self, relative_path):
        if not self.asked:
            for number in range(3):
                path = self.root / "later" / f"file{number}"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"new")
        self.asked.append(relative_path)
        return f"volume-{relative_path.partition('/')[0].lower()}", "bucket"


def test_a_place_of_files_that_appear_behind_the_survey_is_made_once(client, cluster, tmp_path):
    root = tmp_path / "growing"
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "first").write_bytes(b"1")
    layout = Growing(root)
    summary = ingest(client, root, layout=layout)
    assert summary.complete
    assert (summary.keys, summary.places) == (4, [("volume-later", "bucket"), ("volume-lib", "bucket")])
    # Of each place: does the volume exist, then volume and bucket; of each file: create and commit.
    assert summary.requests == len(cluster.seen) == 2 * 2 + 2 * 4


def test_progress_is_told_at_intervals_and_at_the_end(client, tree, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_MS", 1_000_000_000_000)
    told: list[Progress] = []
    ingest(client, tree, progress=told.append)
    assert len(told) == 2, "the first and the last"
    assert [progress.files == progress.files_total for progress in told] == [False, True]


def test_progress_is_told_while_files_are_written(client, tree, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_MS", 0)
    told: list[Progress] = []
    ingest(client, tree, progress=told.append, max_in_flight=1)
    assert len(told) >= told[-1].files_total, "after each file"
    assert len({progress.files for progress in told}) > told[-1].files_total / 2


def test_progress_is_told_while_the_last_keys_are_waited_for(cluster, tree, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_MS", 1)
    client, connection = client_to(cluster)
    real = cluster.apply
    told: list[Any] = []

    def apply(body):
        connection.held |= isinstance(body, CommitKey)
        return real(body)

    cluster.apply = apply
    thread = threading.Thread(target=ingest, args=(client, tree), kwargs={"progress": told.append}, daemon=True)
    thread.start()
    eventually(lambda: connection.held and len(told) > 2 * told[-1].files_total)
    cluster.apply = real
    connection.release()
    thread.join(30)
    assert (told[-1].files, thread.is_alive()) == (told[-1].files_total, False)
    client.close(0)


class Raising:
    """A rule that raises an error once the second file is written, and the first one's request is out."""

    def __init__(self, error, connection):
        self._rule = TreeLayout()
        self._error, self._connection = error, connection
        self._asked = []

    def bucket_for(self, relative_path):
        if len(set(self._asked)) < len(self._asked):
            eventually(lambda: self._connection.held)
            raise self._error
        self._asked.append(relative_path)
        return self._rule.bucket_for(relative_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_does_not_wait_for_the_keys_in_flight_and_an_error_does(cluster, tree, error):
    client, connection = client_to(cluster)
    real = cluster.apply
    raised: list[BaseException] = []

    def apply(body):
        connection.held |= isinstance(body, CreateKey)
        return real(body)

    def run():
        try:
            ingest(client, tree, layout=Raising(error, connection))
        except BaseException as caught:
            raised.append(caught)

    cluster.apply = apply
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: connection.held)
    thread.join(30 if error is KeyboardInterrupt else 0.3)
    assert thread.is_alive() == (error is ZeroDivisionError)
    cluster.apply = real
    connection.release()
    thread.join(30)
    assert [type(one) for one in raised] == [error]
    client.close(0)


class Changing:
    """A rule in whose tree a file becomes a pipe when the first one of its folder is written."""

    def __init__(self, path):
        self._rule = TreeLayout()
        self._path = path
        self._surveyed = []

    def bucket_for(self, relative_path):
        if relative_path in self._surveyed and self._path.is_file():
            self._path.unlink()
            os.mkfifo(self._path)
        self._surveyed.append(relative_path)
        return self._rule.bucket_for(relative_path)


@pytest.mark.parametrize("with_bytes", [False, True])
def test_what_is_no_file_any_more_after_the_survey_is_skipped_and_counts_as_done(world_or_client, tmp_path, with_bytes):
    root = tmp_path / "tree"
    root.mkdir()
    for name, size in (("a", 1), ("b", 20), ("c", 300)):
        (root / name).write_bytes(bytes(size))
    told: list[Progress] = []
    write = ingest_contents if with_bytes else ingest
    summary = write(world_or_client(with_bytes), root, layout=Changing(root / "b"), progress=told.append)
    assert (summary.keys, summary.bytes, summary.skipped_files, summary.failed_files) == (2, 301, 1, 0)
    assert (summary.bytes_per_second > 0) is with_bytes
    assert [(skip.relative_path, skip.reason) for skip in summary.skipped] == [("b", "no longer a regular file")]
    last = told[-1]
    assert (last.files, last.files_total, last.bytes) == (3, 3, 301)
    assert summary.complete


@pytest.fixture
def world_or_client(client, tmp_path):
    worlds = []

    def choose(with_bytes):
        if not with_bytes:
            return client
        worlds.append(World(tmp_path / "world"))
        return worlds[-1].client

    yield choose
    for world in worlds:
        world.close()


def test_many_skipped_files_are_counted_and_some_are_named(client, tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(NAMED_FAILURES + 3):
        (root / f"link{number:04d}").symlink_to("nowhere")
    summary = ingest(client, root)
    assert (summary.skipped_files, len(summary.skipped)) == (NAMED_FAILURES + 3, NAMED_FAILURES)
    assert summary.skipped[0].relative_path == "link0000"


class Refusing:
    """A client on which one method raises an error that is none of its own."""

    def __init__(self, client, error):
        self._client = client
        self._error = error

    def __getattr__(self, name):
        return getattr(self._client, name)

    def submit_with(self, *_):
        raise self._error

    def open(self, *_, **__):
        raise self._error


def test_an_error_of_no_kind_of_ours_ends_an_ingest_and_nobody_is_waited_for(client, tree):
    with pytest.raises(ZeroDivisionError):
        ingest(Refusing(client, ZeroDivisionError()), tree, max_in_flight=1)


def test_a_file_whose_writing_fails_by_a_defect_is_named_and_the_others_go_on(client, tree):
    refusing: Any = Refusing(client, RuntimeError("odd"))
    summary = ingest_contents(refusing, tree)
    assert (summary.failed_files, summary.keys) == (65, 0)
    assert {(failure.status, failure.message) for failure in summary.failures} == {
        ("INTERNAL_ERROR", "RuntimeError: odd")
    }


class Interrupting:
    """A client whose files are never opened, and a rule that is interrupted once one of them is being opened."""

    def __init__(self, client, error):
        self._client = client
        self._rule = TreeLayout()
        self._error = error
        self._asked: set[str] = set()
        self._written = 0
        self.opening = threading.Event()
        self.go_on = threading.Event()
        self.opened: list[str] = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def open(self, path, *_, **__):
        self.opened.append(path)
        self.opening.set()
        assert self.go_on.wait(30)
        raise OSError("too late")

    def bucket_for(self, relative_path):
        """Each file is asked for by the survey, and when it is written: the third of those is interrupted."""
        self._written += relative_path in self._asked
        if self._written == 3:
            assert self.opening.wait(30)
            raise self._error
        self._asked.add(relative_path)
        return self._rule.bucket_for(relative_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_leaves_files_that_are_being_written_and_an_error_waits_for_them(client, tree, error):
    interrupting: Any = Interrupting(client, error)
    raised: list[BaseException] = []

    def run():
        try:
            ingest_contents(interrupting, tree, layout=interrupting, writers=1)
        except BaseException as caught:
            raised.append(caught)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert interrupting.opening.wait(30)
    if error is KeyboardInterrupt:
        thread.join(10)
        assert [type(one) for one in raised] == [error], "while the file is still being opened"
    assert bool(raised) is (error is KeyboardInterrupt)
    interrupting.go_on.set()
    thread.join(30)
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("ingest")])
    assert [type(one) for one in raised] == [error]
    assert len(interrupting.opened) == (1 if error is KeyboardInterrupt else 2), "an interrupt begins nothing any more"


def test_only_volumes_of_the_layout_are_listed(client, cluster, tree):
    """Another layout of more volumes may have written beside it."""
    ingest(client, tree, layout=TreeLayout(volumes=40))
    small = TreeLayout(volumes=2)
    assert {volume for volume, _, _ in listed(cluster)} > set(small.volume_names())
    assert {volume for volume, _, _ in listed(cluster, layout=small)} <= set(small.volume_names())
    assert listed(cluster, layout=small)
