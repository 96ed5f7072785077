"""Files ingested with their bytes, over real stream servers, and read back from each replica."""

import hashlib
import random
import threading
from collections import Counter
from dataclasses import replace

import pytest

from producers.bulk import read_back as module
from producers.bulk.ingest import ingest_contents
from producers.bulk.listing import SHA256
from producers.bulk.read_back import read_back
from producers.bulk.tree_layout import TreeLayout
from producers.errors import StratologError
from schemas.codecs.codec import decode_as
from schemas.column_families import INLINE_TABLE
from schemas.records.messages import AllocateBlock, CommitKey, CreateKey, PutKey, Request
from tests.support.local.waiting import eventually
from tests.support.sdk.datanodes import KIB, World

LAYOUT = TreeLayout(prefix="tree", volumes=1)
SIZES = {"a.txt": 0, "b.bin": 1, "lib/c.bin": 300 * KIB, "lib/deep/d.bin": 2200 * KIB, "left/e.bin": 10}


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path / "world", pipelines=2)
    yield found
    found.close()


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for number, (name, size) in enumerate(SIZES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(size))
    return root


def test_every_file_is_on_each_replica(world, tree):
    summary = ingest_contents(world.client, tree, layout=LAYOUT, writers=3, leave_out=["left"])
    taken = {name: size for name, size in SIZES.items() if not name.startswith("left/")}
    assert (summary.keys, summary.failed_files, summary.bytes) == (len(taken), 0, sum(taken.values()))
    assert summary.requests_per_second * summary.seconds == pytest.approx(2 * len(taken), rel=0.2), "not files/s"
    listed = {key: info for (_, _, key), info in world.cluster.keys.items()}
    assert {key: info.metadata[SHA256] for key, info in listed.items()} == {
        name: hashlib.sha256((tree / name).read_bytes()).hexdigest() for name in taken
    }
    found = read_back(world.client, LAYOUT, readers=3)
    with_bytes = [size for size in taken.values() if size]
    assert (found.keys, found.replicas, found.bytes) == (len(taken), 3 * len(with_bytes), 3 * sum(with_bytes))
    assert (found.wrong_replicas, found.fewest_replicas) == (0, 3)


def test_a_damaged_replica_is_named_though_others_would_do(world, tree):
    ingest_contents(world.client, tree, layout=LAYOUT, writers=2)
    damaged = next(info for (_, _, key), info in world.cluster.keys.items() if key == "lib/c.bin")
    [block] = damaged.blocks
    world.members(int(block.pipeline.removeprefix("pipeline-")))[1].blocks.damage(block, 1000, b"damage")
    found = read_back(world.client, LAYOUT)
    [wrong] = found.wrong
    assert found.wrong_replicas == 1
    assert (wrong.path, wrong.replica) == (f"/{damaged.volume}/{damaged.bucket}/lib/c.bin", 1)
    assert "CHECKSUM_MISMATCH" in wrong.reason


@pytest.mark.parametrize(
    ("blocks", "times", "words"),
    [(lambda _: [], 1, "its blocks hold 0"), (lambda blocks: blocks[1:], 3, "where 0 follows")],
)
def test_a_row_that_does_not_add_up_is_named(world, tree, blocks, times, words):
    """Also one that names nobody who could be read: it is no key without bytes."""
    ingest_contents(world.client, tree, layout=LAYOUT)
    info = next(info for (_, _, key), info in world.cluster.keys.items() if key == "lib/deep/d.bin")
    world.cluster.put(replace(info, blocks=blocks(info.blocks)))
    found = read_back(world.client, LAYOUT)
    assert found.wrong_replicas == times
    assert all(wrong.path.endswith("/lib/deep/d.bin") and words in wrong.reason for wrong in found.wrong)


def test_a_replica_that_a_pipeline_has_no_more_is_named(world, tree, monkeypatch):
    ingest_contents(world.client, tree, layout=LAYOUT)
    directory = world.client.streams.directory
    view, asked = directory.pipeline, []

    def pipeline(name):
        asked.append(name)
        found = view(name)
        reading = threading.current_thread().name.startswith("read-back")
        return replace(found, members=found.members[:2]) if reading else found

    monkeypatch.setattr(directory, "pipeline", pipeline)
    found = read_back(world.client, LAYOUT)
    assert asked
    assert {wrong.replica for wrong in found.wrong} == {2}
    assert all("has no member 2" in wrong.reason for wrong in found.wrong)


def test_a_file_that_changes_after_it_was_hashed_is_not_committed(world, tree, monkeypatch):
    path = tree / "b.bin"

    def open_changed(*arguments, **options):
        if arguments[0].endswith("/b.bin"):
            path.write_bytes(b"other")
        return client_open(*arguments, **options)

    client_open = world.client.open
    monkeypatch.setattr(world.client, "open", open_changed)
    summary = ingest_contents(world.client, tree, layout=LAYOUT, writers=1)
    [failure] = summary.failures
    assert (failure.relative_path, failure.message) == ("b.bin", "b.bin changed while it was read")
    assert "b.bin" not in {key for _, _, key in world.cluster.keys}


@pytest.mark.parametrize("writers", [0, -1])
def test_illegal_numbers_are_refused(world, tree, writers):
    with pytest.raises(ValueError, match=f"writers must be at least 1, not {writers}"):
        ingest_contents(world.client, tree, writers=writers)
    with pytest.raises(ValueError, match=f"readers must be at least 1, not {writers}"):
        read_back(world.client, LAYOUT, readers=writers)


def test_inline_keys_are_read_once(tmp_path, tree):
    world = World(tmp_path / "world", pipelines=2, inline_bytes=16 * KIB)
    before = len(world.cluster.seen)
    summary = ingest_contents(world.client, tree, layout=LAYOUT, writers=3)
    sent = Counter(type(decode_as(Request, value).body) for value in world.cluster.seen[before:])
    assert (sent[PutKey], sent[CreateKey], sent[CommitKey]) == (3, 2, 2)
    assert summary.requests == sent.total() - sent[AllocateBlock], "a small file is one request"
    found = read_back(world.client, LAYOUT)
    assert (found.keys, found.inline, found.replicas) == (5, 2, 2 + 3 * 2)
    assert (found.wrong_replicas, found.fewest_replicas) == (0, 3)
    (row,) = [row for row, data in world.cluster.tables.tables[INLINE_TABLE].items() if len(data) == 10]
    world.cluster.tables.tables[INLINE_TABLE][row] = b"other byte"
    (wrong,) = read_back(world.client, LAYOUT).wrong
    assert wrong.path.endswith("/left/e.bin")
    del world.cluster.tables.tables[INLINE_TABLE][row]
    (wrong,) = read_back(world.client, LAYOUT).wrong
    assert "found no bytes" in wrong.reason
    world.close()


def test_only_so_many_replicas_are_waited_for_and_progress_is_told_meanwhile(tmp_path, monkeypatch):
    """Memory does not grow with the number of keys: four replicas wait for each reader."""
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(12):
        (root / f"f{number:02d}").write_bytes(b"%d" % number)
    world = World(tmp_path / "world", pipelines=1, inline_bytes=16 * KIB)
    ingest_contents(world.client, root, layout=LAYOUT)
    go_on, looked_at, told = threading.Event(), [], []
    bytes_of, info_of = world.client.reads.key_with_bytes, world.client.key_info

    def key_with_bytes(*place, **more):
        assert go_on.wait(30)
        return bytes_of(*place, **more)

    def key_info(*place, **more):
        looked_at.append(place)
        return info_of(*place, **more)

    monkeypatch.setattr(world.client.reads, "key_with_bytes", key_with_bytes)
    monkeypatch.setattr(world.client, "key_info", key_info)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            read_back(world.client, LAYOUT, readers=1, progress=lambda so_far: told.append(so_far.keys))
        ),
        daemon=True,
    )
    thread.start()
    eventually(lambda: len(looked_at) >= 5)
    assert not told
    go_on.set()
    thread.join(30)
    assert len(looked_at) == 12
    assert told[0] == 5, "the fifth is one more than may wait"
    assert told == sorted(told)
    (result,) = found
    assert (result.keys, result.replicas, result.wrong_replicas) == (12, 12, 0)
    world.close()


def test_wrong_replicas_are_counted_and_some_are_named(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(module, "NAMED_FAULTS", 2)
    world = World(tmp_path / "world", pipelines=1)
    ingest_contents(world.client, tree, layout=LAYOUT)
    info_of = world.client.key_info

    def key_info(*place, **more):
        view = info_of(*place, **more)
        view.info.metadata[SHA256] = "0" * 64
        return view

    monkeypatch.setattr(world.client, "key_info", key_info)
    found = read_back(world.client, LAYOUT)
    assert (found.wrong_replicas, len(found.wrong)) == (3 * 4, 2)
    assert all("written were" in one.reason for one in found.wrong)
    world.close()


@pytest.mark.parametrize("readers", [1, 8])
def test_a_defect_while_a_replica_is_read_is_no_silence(world, tree, monkeypatch, readers):
    """With few readers it is raised in the middle, with many at the end."""
    ingest_contents(world.client, tree, layout=LAYOUT)
    raised = []

    def fail(*_, **__):
        raised.append(True)
        if len(raised) == 1:
            raise ZeroDivisionError
        raise StratologError("X", "x")

    monkeypatch.setattr(module, "_reader", fail)
    with pytest.raises(ZeroDivisionError):
        read_back(world.client, LAYOUT, readers=readers)
