"""What ``stratolog up`` and ``audit --once`` tell the audit."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.table import AuditSettings
from spark_streaming.configuration.audit_config import AuditConfig, load_config
from spark_streaming.records.session import _own
from stratolog.commands import audit
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local import spawning
from stratolog.local.spawning import AUDIT_TASKS, ONE_TASK_SHARDS, audit_command, audit_tasks
from tests.support.local.other_settings import ANOTHER

DEFAULT_HEAP = f"{AuditSettings.audit_heap_mib}m"


def settings_with(folder: Path, **variables: str) -> Settings:
    return load_settings(environment={"STRATOLOG_DATA_DIR": str(folder), **variables})


def no_jars(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    jar = folder / "a.jar"
    jar.touch()
    for module in (spawning, audit):
        monkeypatch.setattr(module, "spark_jars", lambda _: [jar])


@pytest.mark.parametrize(
    ("shards", "tasks"), [(1, 1), (ONE_TASK_SHARDS, 1), (ONE_TASK_SHARDS + 1, AUDIT_TASKS), (64, AUDIT_TASKS)]
)
def test_few_shards_are_audited_by_one_task(shards: int, tasks: int):
    """The number must depend on what never changes: with another one the audit reads the logs anew."""
    assert audit_tasks(shards) == tasks


@pytest.mark.parametrize(
    ("variables", "heap"), [({}, DEFAULT_HEAP), ({"STRATOLOG_AUDIT_HEAP_MIB": "1536"}, "1536m")], ids=["unset", "set"]
)
def test_the_running_audit_has_the_heap_that_is_set(
    variables: dict[str, str], heap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    no_jars(monkeypatch, tmp_path)
    *_, option, path = audit_command(settings_with(tmp_path, **variables))
    assert (option, path) == ("--config", str(tmp_path / "audit" / "audit.json"))
    assert _own(load_config(Path(path)).spark())["spark.driver.memory"] == heap


def test_the_running_audit_is_told_all_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_jars(monkeypatch, tmp_path)
    names = [one.name for one in fields(AuditSettings)]
    settings = settings_with(tmp_path, **{f"STRATOLOG_{name.upper()}": ANOTHER[name] for name in names})
    found = load_config(Path(audit_command(settings)[-1]))
    assert {name: getattr(found, name) for name in names} == {name: getattr(settings, name) for name in names}
    assert [name for name in names if getattr(found, name) == getattr(AuditSettings, name)] == []


@pytest.mark.parametrize(
    ("variables", "heap"), [({}, DEFAULT_HEAP), ({"STRATOLOG_AUDIT_HEAP_MIB": "512"}, "512m")], ids=["unset", "set"]
)
def test_an_audit_once_has_the_same_heap(
    variables: dict[str, str], heap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found: list[AuditConfig] = []

    def run(command: list[str], folder: Path, out: Any, err: Any) -> None:
        del folder, err
        found.append(load_config(Path(command[-1])))
        out.write(json.dumps({"ok": True}).encode())

    no_jars(monkeypatch, tmp_path)
    monkeypatch.setattr(audit, "check_spark", lambda: None)
    monkeypatch.setattr(audit, "_run", run)
    assert audit.audit_once(settings_with(tmp_path, **variables), report_timeout_ms=5) == {"ok": True}
    assert [(config.driver_memory, config.audit_report_timeout_ms) for config in found] == [(heap, 5)]
    with pytest.raises(
        UsageError, match="setting 'audit_report_timeout_ms' in the command line: must be in 1..86400000"
    ):
        audit.audit_once(settings_with(tmp_path, **variables), report_timeout_ms=86_400_001)
