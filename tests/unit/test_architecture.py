"""The rules between packages (design, section 2), held by reading the imports of every source file.

1. Imports point down only: ``MAY_IMPORT``.
2. What is pure imports nothing but what is listed in ``PURE_STANDARD`` and ``PURE_THIRD_PARTY`` and calls no built-in
   that does I/O: no clock, no randomness, no threads, no files. ``PURE`` says which modules that are; a package's shell is
   named, everything else in it is core.
3. Nobody imports relatively or by a computed name, so that these checks see all; ``stratolog/__init__.py`` alone loads
   the SDK lazily.

An import for the type checker alone counts like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "schemas": frozenset(),
    "replicated_db": frozenset({"schemas"}),
    "om_processors": frozenset({"schemas", "replicated_db"}),
    "datanode_processors": frozenset({"schemas", "replicated_db"}),
    "producers": frozenset({"schemas"}),
    "spark_streaming": frozenset({"schemas"}),
    "stratolog": frozenset(
        {"schemas", "replicated_db", "om_processors", "datanode_processors", "producers", "spark_streaming"}
    ),
}

REPLICATED_DB_SHELL = frozenset(
    {
        "rocks", "kafka_log", "system", "leader_loop", "database", "faust_transport", "follower", "fresh_consumer", "http_guard", "logs", "metrics", "node_web", "process",
        "reports", "scan_threads", "shard_pages", "startup",
    }
)  # fmt: skip
"""Modules of ``replicated_db`` that do I/O, read clocks or run threads; all others are core."""

PURE_STANDARD = frozenset(
    {
        "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "hashlib", "heapq", "hmac",
        "itertools", "math", "operator", "re", "string", "struct", "types", "typing", "unicodedata",
    }
)  # fmt: skip
PURE_THIRD_PARTY = frozenset({"xxhash", "sortedcontainers", "crc32c"})
IO_BUILTINS = frozenset({"open", "input", "print", "exec", "eval", "compile", "breakpoint", "__import__"})

SCHEMAS_EXTRA = frozenset({"io", "json", "pathlib", "fastavro", "avro"})
"""``schemas`` reads its own files at import and is the only place that knows Avro."""

LAZY = frozenset({"stratolog/__init__.py", "stratolog/cli.py"})
"""On top of everything, and import what is asked for, below 'stratolog' alone."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def pure_modules() -> list[Path]:
    """Return the files that rule 2 is about. Extend it here."""
    core = [path for path in sources("replicated_db") if path.stem not in REPLICATED_DB_SHELL]
    requests = [path for path in sources("om_processors") if path.parent.name == "requests"]
    operations = [
        ROOT / "om_processors" / f"{name}.py" for name in ("backlog", "commands", "lending", "membership", "watchdog")
    ]
    helpers = [
        ROOT / "om_processors" / f"{name}.py"
        for name in (
            "context",
            "execute",
            "fleet",
            "ids",
            "late",
            "names",
            "pipeline_making",
            "placement",
            "quota",
            "tables",
        )
    ]
    clients = [ROOT / "producers" / f"{name}.py" for name in ("calls", "errors", "stream_window", "topology")]
    datanodes = [
        ROOT / "datanode_processors" / f"{name}.py"
        for name in (
            "agenda",
            "away",
            "block_service",
            "checksums",
            "digests",
            "election",
            "errors",
            "limits",
            "repairs",
            "stream",
        )
    ]
    audit = [ROOT / "spark_streaming" / f"{name}.py" for name in ("matching", "peers", "reading", "scans")]
    return [*core, *requests, *operations, *helpers, *clients, *datanodes, *audit]


def imports(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield line, dotted name and level of every import in a file, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(), path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", node.level


def computed_imports(path: Path) -> Iterator[int]:
    """Yield the lines where a module is loaded by a name that only run time knows."""
    for node in ast.walk(ast.parse(path.read_text(), path)):
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        if isinstance(node, ast.Attribute | ast.Name) and name in {"import_module", "__import__"}:
            yield node.lineno


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


ALL_SOURCES = [path for package in MAY_IMPORT for path in sources(package)]


@pytest.mark.parametrize("path", ALL_SOURCES, ids=named)
def test_imports_point_down_only(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    allowed = MAY_IMPORT[package] | {package}
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for line, name, _ in imports(path)
        if (top := name.partition(".")[0]) in MAY_IMPORT and top not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("path", ALL_SOURCES, ids=named)
def test_imports_are_absolute_and_literal(path: Path) -> None:
    wrong = [f"{named(path)}:{line} imports relatively" for line, _, level in imports(path) if level]
    if named(path) not in LAZY:
        wrong += [f"{named(path)}:{line} imports by a computed name" for line in computed_imports(path)]
    assert wrong == []


@pytest.mark.parametrize("path", pure_modules(), ids=named)
def test_the_core_is_pure(path: Path) -> None:
    allowed = PURE_STANDARD | PURE_THIRD_PARTY | set(MAY_IMPORT)
    assert forbidden_imports(path, allowed) + io_calls(path) == []


@pytest.mark.parametrize("path", sources("schemas"), ids=named)
def test_schemas_need_no_clock_no_chance_no_network(path: Path) -> None:
    assert forbidden_imports(path, PURE_STANDARD | {"xxhash", "crc32c"} | SCHEMAS_EXTRA | {"schemas"}) == []


@pytest.mark.parametrize("path", [path for path in ALL_SOURCES if "schemas" not in path.parts], ids=named)
def test_only_schemas_know_avro(path: Path) -> None:
    wrong = [name for _, name, _ in imports(path) if name.partition(".")[0] in {"fastavro", "avro"}]
    assert wrong == []


@pytest.mark.parametrize("path", pure_modules(), ids=named)
def test_the_core_does_not_import_its_shell(path: Path) -> None:
    shell = {f"replicated_db.{name}" for name in REPLICATED_DB_SHELL}
    wrong = [f"{named(path)}:{line} imports {name}" for line, name, _ in imports(path) if name in shell]
    assert wrong == []


def forbidden_imports(path: Path, allowed: frozenset[str] | set[str]) -> list[str]:
    return [
        f"{named(path)}:{line} imports {name}"
        for line, name, _ in imports(path)
        if name.partition(".")[0] not in allowed
    ]


def io_calls(path: Path) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        f"{named(path)}:{call.lineno} calls {call.func.id}"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in IO_BUILTINS
    ]


def test_the_lists_name_what_exists() -> None:
    shell = [ROOT / "replicated_db" / f"{name}.py" for name in REPLICATED_DB_SHELL]
    missing = [named(path) for path in [*shell, *pure_modules()] if not path.exists()]
    assert missing == []
    assert sys.stdlib_module_names >= PURE_STANDARD


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", ["time"]),
        ("from os import path", ["os"]),
        ("def f():\n    import random as r", ["random"]),
        ("if TYPE_CHECKING:\n    import threading", ["threading"]),
        ("import dataclasses, socket", ["socket"]),
        ("from replicated_db.merge import MergeOperator", []),
    ],
)
def test_the_check_itself_sees_imports_everywhere(source: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    allowed = PURE_STANDARD | set(MAY_IMPORT)
    assert [name for _, name, _ in imports(path) if name.partition(".")[0] not in allowed] == found
