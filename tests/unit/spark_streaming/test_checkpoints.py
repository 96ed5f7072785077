"""A query's checkpoint and a log that was trimmed past it; the files are such as Spark 4 writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from spark_streaming.records import checkpoints
from spark_streaming.records.checkpoints import committed_offsets, first_lost

OFFSETS = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"om.log":{"0":%d,"1":7}}\n-\n{"om.audit":{"0":3}}\n'
)


def checkpoint_in(folder: Path, ends: list[int], committed: int) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, end in enumerate(ends):
        (folder / "offsets" / str(number)).write_text(OFFSETS % end)
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < committed:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


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
