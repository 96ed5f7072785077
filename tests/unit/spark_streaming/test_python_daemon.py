"""The process that forks Spark's Python workers: what it takes out of each task."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest
from pyspark import daemon

from spark_streaming.records import python_daemon
from spark_streaming.records.session import SparkSettings, _queries


def test_spark_starts_this_daemon_wherever_the_package_lies():
    settings = SparkSettings(jars=(), work_dir=Path("/nowhere"))
    assert _queries(settings)["spark.python.daemon.module"] == python_daemon.__name__


def test_it_runs_pysparks_own_manager_with_its_own_tasks(monkeypatch: pytest.MonkeyPatch):
    ran: list[object] = []
    monkeypatch.setattr(daemon, "manager", lambda: ran.append(daemon.worker_main))
    monkeypatch.setattr(daemon, "worker_main", None)
    monkeypatch.setattr(gc, "freeze", lambda: ran.append("frozen"))
    python_daemon.main()
    frozen, task = ran
    assert frozen == "frozen"
    assert callable(task)


def test_before_a_task_archives_are_forgotten_and_found_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = tmp_path / "large.jar"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("found_in_a_jar.py", "HERE = 1\n")
    monkeypatch.syspath_prepend(str(archive))
    importers = sys.path_importer_cache
    assert importlib.util.find_spec("found_in_a_jar") is not None
    assert isinstance(importers[str(archive)], zipimporter)
    folders = {path for path, importer in importers.items() if not isinstance(importer, zipimporter)}
    seen: list[set[str]] = []

    def task(infile: object, outfile: object) -> None:
        seen.append(set(importers))
        importlib.invalidate_caches()  # as PySpark's worker does

    python_daemon.without_archives(task, importers)(io.BytesIO(), io.BytesIO())
    assert str(archive) not in seen[0]
    assert seen[0] >= folders
    assert importlib.import_module("found_in_a_jar").HERE == 1
    sys.modules.pop("found_in_a_jar")


def test_what_a_task_raises_passes_through():
    def task(infile: object, outfile: object) -> None:
        raise SystemExit(-1)

    with pytest.raises(SystemExit):
        python_daemon.without_archives(task, {})(io.BytesIO(), io.BytesIO())
