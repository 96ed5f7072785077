"""The settings of the audit's jobs: what is taken, what is refused and how the refusal names it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.access.credentials import auditor_credentials
from schemas.kafka.connection import connection
from schemas.privilege import ClusterSecret
from schemas.security.sealed import CREDENTIALS, sealed
from schemas.settings.declaring import OldSettingName
from schemas.topics import DN_AUDIT, DN_LOG, OM_VERDICTS
from spark_streaming.configuration.audit_config import AuditConfig, config_from, load_config
from spark_streaming.records.logs import KNOWN_LOGS, OBJECT_MANAGER, existing
from spark_streaming.records.session import SparkSettings, _own, _queries, _submitted, build_session, is_submitted
from tests.support.local.memory_broker import memory_broker

LEAST: dict[str, Any] = {"bootstrap_servers": "here:9092", "work_dir": "/srv/audit"}
POSITIVE = (
    "audit_report_timeout_ms", "audit_scan_timeout_ms", "audit_trigger_ms", "audit_records_per_trigger",
    "audit_reports_per_trigger", "shuffle_partitions", "audit_window_s", "audit_windows_trigger_ms",
)  # fmt: skip


def test_what_is_not_named_has_its_default():
    config = config_from(LEAST)
    assert config == AuditConfig(bootstrap_servers=connection("here:9092"), work_dir=Path("/srv/audit"))
    assert (config.logs, config.verdicts_topic, config.require_blocks, config.audit_windows) == (
        KNOWN_LOGS, OM_VERDICTS, False, True,
    )  # fmt: skip


def test_everything_lies_below_the_work_directory():
    config = config_from(LEAST)
    assert config.checkpoint_dir.parent == config.output_dir.parent == config.health_file.parent == Path("/srv/audit")
    assert len({config.checkpoint_dir, config.output_dir, config.health_file}) == 3


def test_another_number_of_tasks_begins_anew():
    """State is found by the number of tasks that it was made with; what belongs to the checkpoint goes with it."""
    one, two = (config_from(LEAST | {"shuffle_partitions": number}) for number in (1, 2))
    for name in ("checkpoint_dir", "output_dir", "window_state"):
        assert getattr(one, name) != getattr(two, name)
    assert one.health_file == two.health_file


def test_plain_values_become_paths_and_logs():
    log = {"name": "a", "topic": "b", "reports_topic": "c", "column_families": ["d"], "every_partition": False}
    config = config_from(LEAST | {"jars_dir": "/jars", "jars": ["/x.jar"], "logs": [log]})
    assert (config.jars_dir, config.jars) == (Path("/jars"), (Path("/x.jar"),))
    (found,) = config.logs
    assert (found.name, found.column_families) == ("a", ("d",))
    assert config_from(LEAST | {"jars_dir": None}).jars_dir is None


def test_credentials_are_in_a_file_for_its_owner_alone_sealed_or_not(tmp_path: Path):
    assert config_from(LEAST).credentials() is None
    audit = auditor_credentials(ClusterSecret(b"s" * 32))
    file, key = tmp_path / "audit.credentials", tmp_path / "key"
    config = config_from(LEAST | {"credentials_file": str(file), "key_encryption_file": str(key)})
    with pytest.raises(ValueError, match=f"credentials_file: {file}: .*No such file"):
        config.credentials()
    for content in (audit.text().encode(), sealed(b"k" * 40, CREDENTIALS, audit.text().encode(), bytes(32))):
        key.write_bytes(b"k" * 40)
        key.chmod(0o600)
        file.write_bytes(content)
        file.chmod(0o640)
        with pytest.raises(ValueError, match="others than its owner may read it"):
            config.credentials()
        file.chmod(0o600)
        found = config.credentials()
        assert found is not None
        assert found.text() == audit.text()
    key.write_bytes(b"w" * 40)
    with pytest.raises(ValueError, match="encrypted under another key"):
        config.credentials()


def test_the_limits_of_a_shard_are_the_configured_ones():
    limits = config_from(LEAST | {"audit_report_timeout_ms": 7, "audit_scan_timeout_ms": 8}).limits
    assert (limits.report_timeout_ms, limits.scan_timeout_ms) == (7, 8)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (LEAST | {"b": 1, "a": 1}, "unknown settings: a, b"),
        ({}, "missing settings: bootstrap_servers, work_dir"),
        (LEAST | {"work_dir": 7}, "work_dir must be a path, not 7"),
        (LEAST | {"checkpoint": "hdfs://there/x"}, "checkpoint must be a path, not the URI hdfs://there/x"),
        (LEAST | {"logs": []}, "logs must name at least one log"),
        (LEAST | {"addresses": []}, r"addresses must be an object, not \[\]"),
        (LEAST | {"addresses": {"om.log": "om1"}}, "addresses of om.log must be an object"),
        (LEAST | {"addresses": {"om.log": {"om1": "om1:"}}}, "'om1:' of om1 is no host:port"),
        (LEAST | {"addresses": {"om.log": {"om1": 9871}}}, "9871 of om1 is no host:port"),
        (LEAST | {"logs": [{}]}, "logs: {} is no log"),
        (LEAST | {"logs": [{"column_families": [], "colour": 1}]}, "is no log"),
        (LEAST | {"logs": [{"column_families": None}]}, "is no log"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], error: str):
    with pytest.raises(ValueError, match=error):
        config_from(values)


@pytest.mark.parametrize("name", POSITIVE)
def test_times_and_counts_are_positive_integers(name: str):
    assert getattr(config_from(LEAST | {name: 1}), name) == 1
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match=rf"^setting '{name}': must be .*, not {wrong}"):
            config_from(LEAST | {name: wrong})


@pytest.mark.parametrize("port", [-1, 65_536, 1.5, None, True])
def test_the_metrics_have_a_port_or_any(port: Any):
    assert [config_from(LEAST | {"metrics_port": one}).metrics_port for one in (0, 65_535)] == [0, 65_535]
    with pytest.raises(ValueError, match=f"^setting 'metrics_port': must be .*, not {port!r}"):
        config_from(LEAST | {"metrics_port": port})


@pytest.mark.parametrize("nice", [-1, 20, 1.5, None, True])
def test_niceness_has_its_range(nice: Any):
    assert [config_from(LEAST | {"audit_nice": one}).audit_nice for one in (0, 19)] == [0, 19]
    with pytest.raises(ValueError, match=f"^setting 'audit_nice': must be .*, not {nice!r}"):
        config_from(LEAST | {"audit_nice": nice})


def test_a_number_in_json_is_a_number():
    """In a variable it is a text; there the settings are read, and not here."""
    for name in (*POSITIVE, "audit_nice", "metrics_port"):
        with pytest.raises(ValueError, match=rf"^setting '{name}': must be given as 1, not '1'"):
            config_from(LEAST | {name: "1"})


@pytest.mark.parametrize("memory", ["1024", "0g", "1.5g", "-1g", "1gb", "1g -Xss1m", "", 1024, None])
@pytest.mark.filterwarnings("ignore::schemas.settings.declaring.OldSettingName")
def test_the_heap_under_its_old_name_is_a_number_with_its_unit(memory: Any):
    """Java would take a bare number for bytes, and not start."""
    given = {"1g": "1024m", "1536m": "1536m", "1048576k": "1024m", "1G": "1024m"}
    assert [config_from(LEAST | {"driver_memory": one}).driver_memory for one in given] == [*given.values()]
    with pytest.raises(ValueError, match=f"^driver_memory must be a number with its unit.*, not {memory!r}"):
        config_from(LEAST | {"driver_memory": memory})
    with pytest.raises(ValueError, match="setting 'audit_heap_mib': must be in 512..65536, not 256"):
        config_from(LEAST | {"driver_memory": "256m"})


def test_old_names_are_taken_and_told():
    old = {
        "report_timeout_ms": 1, "scan_timeout_ms": 2, "trigger_ms": 3, "records_per_trigger": 4,
        "reports_per_trigger": 5, "nice": 6, "windows": False, "window_seconds": 7, "windows_trigger_ms": 8,
        "driver_memory": "2g",
    }  # fmt: skip
    with pytest.warns(OldSettingName) as heard:
        found = config_from(LEAST | old)
    assert found == config_from(LEAST | {
        "audit_report_timeout_ms": 1, "audit_scan_timeout_ms": 2, "audit_trigger_ms": 3,
        "audit_records_per_trigger": 4, "audit_reports_per_trigger": 5, "audit_nice": 6, "audit_windows": False,
        "audit_window_s": 7, "audit_windows_trigger_ms": 8, "audit_heap_mib": 2048,
    })  # fmt: skip
    assert len(heard) == len(old)
    with pytest.raises(ValueError, match="'nice' is the old name of 'audit_nice', which is given, too"):
        config_from(LEAST | {"nice": 1, "audit_nice": 1})


def test_a_driver_is_on_the_loopback_unless_executors_are_elsewhere(tmp_path: Path):
    (tmp_path / "a.jar").touch()
    values = LEAST | {"jars_dir": str(tmp_path)}
    assert config_from(values).spark().driver_host == "127.0.0.1"
    elsewhere = config_from(values | {"master": "spark://there:7077", "driver_host": "audit"}).spark()
    found = _own(elsewhere)
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("audit", "0.0.0.0")


def test_under_spark_submit_no_path_or_address_of_this_machine_goes_to_the_executors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert not is_submitted()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert is_submitted()
    config = config_from(LEAST | {"jars": ["/x.jar"]})
    settings = config.spark(submitted=True)
    assert (settings.submitted, settings.jars) == (True, ())
    found = _submitted(settings) | _queries(settings)
    assert not [text for text in found.values() if "/" in text or "127.0.0.1" in text]
    named = config_from(LEAST | {"driver_host": "audit"}).spark(submitted=True)
    assert _submitted(named) == {"spark.driver.host": "audit", "spark.driver.bindAddress": "0.0.0.0"}


def test_the_checkpoint_may_lie_where_all_machines_find_it():
    config = config_from(LEAST | {"checkpoint": "/shared/audit"})
    assert (config.checkpoint_dir.parent, config.output_dir.parent) == (Path("/shared/audit"), Path("/srv/audit"))


def test_a_file_is_read(tmp_path: Path):
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(LEAST))
    assert load_config(file) == config_from(LEAST)


@pytest.mark.parametrize(
    ("text", "error"), [("[]", "not a JSON object"), ("{", "Expecting"), ("{}", "missing settings")]
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, error: str):
    file = tmp_path / "audit.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"audit\.json: .*{error}"):
        load_config(file)


# Spark's session.


def test_jars_are_named_or_those_of_a_directory(tmp_path: Path):
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    config = config_from(LEAST | {"jars_dir": str(tmp_path), "shuffle_partitions": 5, "audit_heap_mib": 2048})
    found = config.spark()
    assert found.jars == (tmp_path / "a.jar", tmp_path / "b.jar")
    assert (found.work_dir, found.shuffle_partitions, found.driver_memory) == (Path("/srv/audit/spark"), 5, "2048m")
    assert config_from(LEAST | {"jars_dir": str(tmp_path), "jars": ["/x.jar"]}).spark().jars == (Path("/x.jar"),)


@pytest.mark.parametrize("changed", [{}, {"jars_dir": "/nowhere"}])
def test_without_jars_there_is_no_session(changed: dict[str, str]):
    with pytest.raises(ValueError, match="no Spark jars"):
        config_from(LEAST | changed).spark()


def test_a_session_of_no_partitions_is_refused_before_anything_starts(tmp_path: Path):
    jar = tmp_path / "a.jar"
    with pytest.raises(FileNotFoundError, match=r"a\.jar"):
        build_session(SparkSettings(jars=(jar,), work_dir=tmp_path / "work"))
    jar.touch()
    with pytest.raises(ValueError, match="shuffle_partitions must be at least 1, not 0"):
        build_session(SparkSettings(jars=(jar,), work_dir=tmp_path / "work", shuffle_partitions=0))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("umask", "told"), [(0o022, "022"), (0o077, "077")])
def test_hadoop_makes_files_as_the_process_does(tmp_path: Path, umask: int, told: str):
    before = os.umask(umask)
    try:
        assert _queries(SparkSettings(jars=(), work_dir=tmp_path))["spark.hadoop.fs.permissions.umask-mode"] == told
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


# Which logs there are.


def test_a_log_is_audited_if_it_and_its_reports_have_topics():
    with memory_broker() as broker:
        assert existing(broker.bootstrap_servers, KNOWN_LOGS) == (OBJECT_MANAGER,)
        broker.append(DN_LOG, b"")
        assert existing(broker.bootstrap_servers, KNOWN_LOGS) == (OBJECT_MANAGER,)
        broker.append(DN_AUDIT, b"")
        assert existing(broker.bootstrap_servers, KNOWN_LOGS) == KNOWN_LOGS
