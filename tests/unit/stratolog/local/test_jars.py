"""Jars: the cache, and the errors of Maven. The fetch itself is in tests/integration/test_broker_jars.py."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path

import pytest

from stratolog.errors import Unavailable, UserError
from stratolog.local import jars


def pom(name: str) -> str:
    return (resources.files("stratolog.local") / "poms" / f"{name}.xml").read_text()


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_versions_are_those_of_the_poms() -> None:
    assert f"<artifactId>kafka_2.13</artifactId>\n      <version>{jars.KAFKA_VERSION}</version>" in pom("kafka")
    versions = re.findall(
        r"<groupId>org.apache.spark</groupId>\s+<artifactId>.*\s+<version>(.*)</version>", pom("spark")
    )
    assert versions == [jars.SPARK_VERSION] * 3
    assert re.findall(r"<groupId>io.delta</groupId>\s+<artifactId>.*\s+<version>(.*)</version>", pom("delta")) == [
        jars.DELTA_VERSION, jars.DELTA_VERSION
    ]  # fmt: skip


def test_the_python_side_of_spark_has_the_same_version() -> None:
    pyspark = pytest.importorskip("pyspark")
    assert pyspark.__version__ == jars.SPARK_VERSION


def test_what_is_in_the_cache_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "jars" / f"kafka-{jars.KAFKA_VERSION}"
    folder.mkdir(parents=True)
    assert jars.kafka_jars(tmp_path) == folder


def test_spark_jars_are_listed_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "jars" / f"spark-{jars.SPARK_VERSION}"
    folder.mkdir(parents=True)
    for name in ("b.jar", "a.jar", "notes.txt"):
        (folder / name).touch()
    assert jars.spark_jars(tmp_path) == [folder / "a.jar", folder / "b.jar"]
    folder.rename(folder.with_name(f"delta-{jars.DELTA_VERSION}"))
    assert [jar.name for jar in jars.delta_jars(tmp_path)] == ["a.jar", "b.jar"]


def test_the_cache_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOLOG_CACHE_DIR", str(tmp_path))
    assert jars.default_cache_dir() == tmp_path
    monkeypatch.delenv("STRATOLOG_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert jars.default_cache_dir() == Path("/home/somebody/.cache/stratolog")


def test_without_maven_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="'mvn' not found: install Maven"):
        jars.kafka_jars(tmp_path / "cache")


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo cannot resolve; echo broken >&2; exit 3", Unavailable, r"exit 3\):\ncannot resolve\nbroken"),
        ("exit 0", UserError, "fetched no jar"),
    ],
)
def test_a_failed_fetch_leaves_nothing(
    script: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "mvn", script)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(kind, match=words):
        jars.kafka_jars(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache" / "jars") == [f"kafka-{jars.KAFKA_VERSION}.lock"]
