"""A query's checkpoint and a log that was trimmed past it; the files are such as Spark 4 writes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from spark_streaming.records import checkpoints
from spark_streaming.records.checkpoints import begin_anew_if_damaged, committed_offsets, damage, first_lost

OFFSETS = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"om.log":{"0":%d,"1":7}}\n-\n{"om.audit":{"0":3}}\n'
)


def checkpoint_in(folder: Path, ends: list[int], committed: int) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, end in enumerate(ends):
        (folder / "offsets" / str(number)).write_text(OFFSETS % end)
        if number < committed:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "metadata").write_text('{"id":"5a364b65"}')
    state = folder / "state" / "0" / "0"
    state.mkdir(parents=True)
    for version in range(1, len(ends) + 1):
        (state / f"{version}.changelog").write_bytes(bytes(range(256)) * 5)
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        data = file.read_bytes()
        crcs = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + crcs)
    return folder


def empty(folder: Path) -> None:
    for one in folder.iterdir():
        one.unlink()


def cut(path: Path, length: int = 0) -> None:
    path.write_bytes(path.read_bytes()[:length])


def at(found: dict[TopicPartition, int]) -> dict[str, int]:
    return {f"{one.topic}/{one.partition}": offset for one, offset in found.items()}


def test_the_last_committed_batch_counts(tmp_path: Path):
    folder = checkpoint_in(tmp_path / "c", [10, 20, 30], committed=2)
    assert at(committed_offsets(folder)) == {"om.log/0": 20, "om.log/1": 7, "om.audit/0": 3}


@pytest.mark.parametrize("text", ["", "v1\n{}\nno json\n", 'v1\n{}\n{"om.log":5}\n', "v1\n{}\n[1]\n"])
def test_foreign_files_say_nothing(tmp_path: Path, text: str):
    folder = checkpoint_in(tmp_path / "c", [10], committed=1)
    (folder / "offsets" / "0").write_text(text)
    assert committed_offsets(folder) == {}
    assert committed_offsets(tmp_path / "none") == {}


def test_what_would_be_missed():
    committed = {TopicPartition("om.log", 0): 20, TopicPartition("om.log", 1): 7}
    assert first_lost(committed, {TopicPartition("om.log", 0): 20, TopicPartition("om.log", 1): 0}) is None
    assert first_lost(committed, {TopicPartition("om.log", 1): 8}) == (
        "om.log/1 begins at offset 8, and had been read up to 7"
    )


def test_a_trimmed_log_sets_the_checkpoint_and_its_output_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    starts = {TopicPartition("om.log", 0): 20}
    monkeypatch.setattr(checkpoints, "log_starts", lambda _servers, _partitions: starts)
    folder = checkpoint_in(tmp_path / "c", [20], committed=1)
    output = tmp_path / "output" / "verdicts"
    output.mkdir(parents=True)
    older = tmp_path / "c.before-trim"
    older.mkdir()
    begin = checkpoints.begin_anew_if_trimmed
    assert begin("x", folder, ["om.log"], [output]) is None
    assert folder.exists()
    starts[TopicPartition("om.log", 0)] = 21
    assert begin("x", folder, ["dn.log"], [output]) is None, "another topic"
    assert begin("x", folder, ["om.log"], [output]) is not None
    assert not folder.exists()
    assert not output.exists()
    assert (older / "offsets" / "0").exists()
    assert begin("x", folder, ["om.log"], [output]) is None


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the last offsets are empty": (lambda c: cut(c / "offsets/1"), "offsets/1 is torn"),
    "the last offsets are cut": (lambda c: cut(c / "offsets/1", 80), "offsets/1 is torn"),
    "the last offsets are lost": (lambda c: (c / "offsets/1").unlink(), "offsets/1 is lost"),
    "the planned offsets are empty": (lambda c: cut(c / "offsets/2"), "offsets/2 is torn"),
    "the last commit is lost": (lambda c: (c / "commits/1").unlink(), "commits/1 is lost"),
    "the last commit is empty": (lambda c: cut(c / "commits/1"), "commits/1 is torn"),
    "no commit is left": (lambda c: empty(c / "commits"), "commits/1 is lost"),
    "no offsets are left": (lambda c: empty(c / "offsets"), "offsets/1 is lost"),
    "the metadata is empty": (lambda c: cut(c / "metadata"), "metadata is torn"),
    "the metadata is lost": (lambda c: (c / "metadata").unlink(), "metadata is lost"),
    "the state is torn": (lambda c: cut(c / "state/0/0/2.changelog", 600), "state/0/0/2.changelog is torn"),
    "checksums are empty": (lambda c: cut(c / "offsets/.1.crc"), "offsets/1 is torn"),
}


@pytest.mark.parametrize(("harm", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_torn_checkpoint_is_set_aside_with_what_belongs_to_it(
    tmp_path: Path, harm: Callable[[Path], object], said: str
):
    """Spark ended at every start; with lost offsets, after the stack had said that the audit runs."""
    folder = checkpoint_in(tmp_path / "c", [10, 20, 30], committed=2)
    output = tmp_path / "verdicts"
    output.mkdir()
    assert damage(folder) is None
    assert begin_anew_if_damaged(folder, [output]) is None
    harm(folder)
    assert begin_anew_if_damaged(folder, [output]) == said
    assert [one.exists() for one in (folder, output)] == [False, False]
    assert (tmp_path / "c.damaged" / "state").is_dir()
    assert begin_anew_if_damaged(folder, [output]) is None


def test_what_a_killed_query_leaves_behind_is_no_damage(tmp_path: Path):
    """Half of a file under a passing name, and state that is ahead of the last committed micro-batch."""
    assert damage(tmp_path / "none") is None
    (tmp_path / "fresh").mkdir()
    assert damage(tmp_path / "fresh") is None
    folder = checkpoint_in(tmp_path / "c", [10, 20, 30, 40], committed=3)
    cut(folder / "state/0/0/4.changelog", 100)
    assert damage(folder) is None, "version 4 comes after micro-batch 3, which is run again"
    for name in (".5.0b1f.tmp", "..5.0b1f.tmp.crc"):
        (folder / "offsets" / name).write_bytes(b"crc")
    assert damage(folder) is None


def test_so_many_bytes_of_a_checkpoint_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = checkpoint_in(tmp_path / "c", [10], committed=1)
    cut(folder / "state/0/0/1.changelog", 100)
    monkeypatch.setattr(checkpoints, "MAX_CHECKED_BYTES", 0)
    assert damage(folder) is None
