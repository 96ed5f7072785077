"""The jars, fetched for real, by two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratolog.local.jars import SPARK_VERSION, spark_jars

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def test_two_processes_fetch_once(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from stratolog.local.jars import spark_jars; spark_jars(Path({str(tmp_path)!r}))"
    both = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    names = [jar.name for jar in spark_jars(tmp_path)]
    assert len(names) == 5
    assert f"spark-sql-kafka-0-10_2.13-{SPARK_VERSION}.jar" in names
    left = sorted(os.listdir(tmp_path / "jars"))
    assert left == [f"spark-{SPARK_VERSION}", f"spark-{SPARK_VERSION}.lock"]
