"""Where a replay may begin, what a moment leaves out, and reads of a rebuilt state: no broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace import tables
from replicated_db.core.errors import StoreFailure
from replicated_db.core.log.reading import Reading
from replicated_db.shell.rocks import RocksReader, RocksStore
from schemas.codecs.codec import decode, encode
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, VOLUME_TABLE
from schemas.records.rows import BucketInfo, KeyInfo, VolumeInfo
from schemas.sharding import shard_of
from stratolog.cli import build_app
from stratolog.configuration.settings import Settings
from stratolog.configuration.state_directory import ShardPosition, is_state, read_manifest, write_manifest
from stratolog.drills.core.log_survey import LogEntry
from stratolog.drills.core.report import CouldNotRun
from stratolog.drills.kit.rebuild import TakenCheckpoint, bases_for, checkpoints_of
from stratolog.drills.point_in_time import Moment, time_of
from stratolog.errors import EXIT_OK
from tests.support.logs.logbuilder import ordinary_log

SHARDS = 2


def taken(name: str, offset: int) -> TakenCheckpoint:
    return TakenCheckpoint(node="om1", name=name, path=Path(name), offset=offset)


def test_the_nearest_checkpoint_comes_first() -> None:
    found = bases_for(50, [taken("a", 10), taken("b", 50), taken("c", 51), taken("d", 30)])
    assert [one.name for one in found] == ["b", "d", "a"]


@pytest.mark.parametrize(("there", "word"), [([], "none at all"), ([taken("c", 51)], "c at offset 51")])
def test_a_bare_replay_is_refused_with_the_reason_and_the_way_out(there: list[TakenCheckpoint], word: str) -> None:
    with pytest.raises(CouldNotRun, match="a bare replay from offset 50 is refused") as caught:
        bases_for(50, there)
    for part in (word, "sum over all rows", "stratolog admin prepare"):
        assert part in str(caught.value)


def test_checkpoints_are_those_of_the_log_that_lie_on_some_nodes_disk(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for node, name in (("om1", "both"), ("om3", "both"), ("om2", "stray")):
        (settings.node_folder(node) / "shard-1.checkpoints" / name).mkdir(parents=True)
    found = checkpoints_of(settings, 1, {"both": 7, "gone": 9})
    assert [(one.node, one.name, one.offset) for one in found] == [("om1", "both", 7), ("om3", "both", 7)]
    assert checkpoints_of(settings, 0, {"both": 7}) == []


def batches() -> list[LogEntry]:
    values = ordinary_log().values
    found = [
        LogEntry(offset=n, timestamp_ms=0, value=value, record=decode(value), reading=Reading.COUNTS)
        for n, value in enumerate(values)
    ]
    return [entry for entry in found if hasattr(entry.record, "last_index")]


def test_a_moment_leaves_out_what_came_later() -> None:
    entries: list[Any] = batches()
    middle = entries[len(entries) // 2].record
    for moment in (Moment(index=middle.last_index), Moment(time_ms=middle.timestamp_ms)):
        for entry in entries:
            later = entry.record.last_index > middle.last_index
            assert moment.is_past(entry) is later
    within = Moment(index=middle.last_index - 1)
    assert within.is_past(entries[len(entries) // 2]), "a batch takes effect as a whole"
    void = LogEntry(offset=1, timestamp_ms=0, value=b"", record=entries[-1].record, reading=Reading.STALE_TERM)
    assert not Moment(index=0).is_past(void)


def test_times() -> None:
    assert time_of("1970-01-01T00:00:01.5Z") == 1500
    assert time_of("1970-01-01T01:00:00+01:00") == 0
    assert str(Moment(time_ms=1500)) == "1970-01-01T00:00:01.500+00:00"
    assert str(Moment(index=7)) == "index 7"
    with pytest.raises(ValueError):
        time_of("yesterday")


# -- reads of a state directory ----------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> tuple[Path, str]:
    """A state directory with one of two shards, and the name of its volume."""
    volume = next(name for name in map("vol{}".format, range(100)) if shard_of(name, SHARDS) == 1)
    common: dict[str, Any] = {
        "owner": "alice",
        "object_id": 1,
        "update_id": 1,
        "creation_time_ms": 0,
        "modification_time_ms": 0,
    }
    quotas: dict[str, Any] = {"quota_in_bytes": -1, "quota_in_namespace": -1}
    store = RocksStore(tmp_path / "shard-1", OM_FAMILIES.names)
    rows = [
        (VOLUME_TABLE, f"/{volume}".encode(), VolumeInfo(volume=volume, creator="alice", **common, **quotas)),
        (
            BUCKET_TABLE, tables.bucket_key(volume, "bucket"),
            BucketInfo(volume=volume, bucket="bucket", layout="OBJECT_STORE", **common, **quotas),
        ),
        *(
            (
                KEY_TABLE, tables.key_key(volume, "bucket", key),
                KeyInfo(volume=volume, bucket="bucket", key=key, size=7, replication="R", blocks=[], metadata={}, **common),
            )
            for key in ("a", "b/c")
        ),
    ]  # fmt: skip
    store.write([(cf, key, encode(row)) for cf, key, row in rows])
    store.close()
    position = ShardPosition(index=42, offset=17, digest="00")
    write_manifest(tmp_path, cluster="c", shards=SHARDS, as_of="index 42", positions={1: position})
    return tmp_path, volume


def sh(folder: Path, *arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), ["sh", "--at", str(folder), *arguments])


def test_sh_reads_a_state_directory(state: tuple[Path, str]) -> None:
    folder, volume = state
    assert is_state(folder)
    assert read_manifest(folder).positions[1].index == 42
    listed = sh(folder, "key", "list", f"/{volume}/bucket", "--json")
    assert listed.exit_code == EXIT_OK, listed.exception
    assert [json.loads(line)["key"] for line in listed.stdout.splitlines()] == ["a", "b/c"]
    info = json.loads(sh(folder, "key", "info", f"/{volume}/bucket/b/c", "--json").stdout)
    assert (info["size"], info["positions"]) == (7, {"1": 42})
    assert json.loads(sh(folder, "volume", "info", f"/{volume}", "--json").stdout)["owner"] == "alice"
    assert json.loads(sh(folder, "bucket", "info", f"/{volume}/bucket", "--json").stdout)["bucket"] == "bucket"
    assert volume in sh(folder, "volume", "list").stdout
    assert "bucket" in sh(folder, "bucket", "list", f"/{volume}").stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("volume", "create", "/v"), "can be read only"),
        (("key", "delete", "/v/b/k"), "can be read only"),
        (("volume", "list", "--node", "om1"), "about the running stack"),
        (("volume", "info", "/nowhere"), "this state has shard 1 only"),
        (("key", "info", "/VOLUME/bucket/absent"), "KEY_NOT_FOUND"),
    ],
)
def test_what_sh_refuses_of_a_state_directory(arguments: tuple[str, ...], word: str, state: tuple[Path, str]) -> None:
    folder, volume = state
    elsewhere = next(name for name in map("no{}".format, range(100)) if shard_of(name, SHARDS) == 0)
    given = [one.replace("VOLUME", volume).replace("nowhere", elsewhere) for one in arguments]
    done = sh(folder, *given)
    assert done.exit_code != EXIT_OK
    assert word in f"{done.stderr}{done.exception}"


def test_no_state_directory(tmp_path: Path) -> None:
    done = sh(tmp_path, "volume", "list")
    assert "is no state directory" in str(done.exception)
    (tmp_path / "state.json").write_text("{}")
    assert "is not readable" in str(sh(tmp_path, "volume", "list").exception)
    position = ShardPosition(index=1, offset=1, digest="00")
    write_manifest(tmp_path, cluster="c", shards=1, as_of="index 1", positions={0: position})
    assert "does not open" in str(sh(tmp_path, "volume", "list").exception)


def test_a_reader_sees_what_is_there_and_writes_nothing(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", ["things"])
    store.write([("things", b"k", b"v"), ("things", b"l", b"w")])
    store.close()
    reader = RocksReader(tmp_path / "db", ["things"])
    assert reader.get("things", b"k") == b"v"
    assert list(reader.iterate("things", b"l")) == [(b"l", b"w")]
    reader.close()
    reader.close()
    with pytest.raises(StoreFailure, match="does not open"):
        RocksReader(tmp_path / "absent", ["things"])
