"""The rules between packages (design, section 2), held by reading the imports of every source file.

1. Imports point down only: ``MAY_IMPORT``.
2. What is pure imports nothing but what is listed in ``PURE_STANDARD`` and ``PURE_THIRD_PARTY`` and calls no built-in
   that does I/O: no clock, no randomness, no threads, no files. Purity is a path: every folder called ``core``, and
   ``PURE_FOLDERS``. What is pure imports only what is pure.
3. Modules form no circle by their imports, rooms (folders) neither; rooms hold a dozen modules at most, and say what lives there.
4. Nobody imports relatively or by a computed name, so that these checks see all; ``stratolog/__init__.py`` alone loads
   the SDK lazily.

An import for the type checker alone counts like any other. A rule is one test, which names every place that breaks it:
a test for each file and rule would be three thousand, each collected by every worker.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "schemas": frozenset(),
    "transport": frozenset({"schemas"}),
    "replicated_db": frozenset({"schemas", "transport"}),
    "om_processors": frozenset({"schemas", "transport", "replicated_db"}),
    "datanode_processors": frozenset({"schemas", "transport", "replicated_db"}),
    "producers": frozenset({"schemas", "transport"}),
    "spark_streaming": frozenset({"schemas", "transport"}),
    "stratolog": frozenset(
        {
            "schemas",
            "transport",
            "replicated_db",
            "om_processors",
            "datanode_processors",
            "producers",
            "spark_streaming",
        }
    ),
}

PURE_FOLDERS = frozenset({"om_processors/namespace", "om_processors/execution"})
"""Rooms that are pure as a whole; so is every folder that is called ``core``, wherever it is."""

MOST_MODULES = 12
"""How many modules a folder may have, beside its ``__init__``."""

PURE_STANDARD = frozenset(
    {
        "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "hashlib", "heapq", "hmac",
        "itertools", "math", "operator", "re", "string", "struct", "types", "typing", "unicodedata",
    }
)  # fmt: skip
PURE_THIRD_PARTY = frozenset({"xxhash", "sortedcontainers", "crc32c", "numpy", "h11"})
PURE_ERRORS = frozenset({"om_processors", "datanode_processors", "producers"})
"""Packages whose ``errors`` module the core uses too."""

IO_BUILTINS = frozenset({"open", "input", "print", "exec", "eval", "compile", "breakpoint", "__import__"})

SCHEMAS_EXTRA = frozenset({"io", "json", "pathlib", "fastavro", "avro", "ssl", "base64", "cryptography", "warnings"})
"""``schemas`` reads its own files at import and is the only place that knows Avro. ``ssl``: contexts, and no connection.
``cryptography``: secrets that are encrypted in their files, for all packages (decision 0075). ``warnings``:
names that settings had before (decision 0093)."""

LAZY = frozenset({"stratolog/__init__.py", "stratolog/cli.py"})
"""On top of everything, and import what is asked for, below 'stratolog' alone."""


@dataclass(frozen=True)
class Source:
    """What the rules ask of one file, which is parsed and walked through once."""

    docstring: str | None
    imports: tuple[tuple[int, str, int], ...]
    """Line, dotted name and level of every import, wherever in the file."""
    names: frozenset[str]
    """Dotted names that are imported: modules, and what is imported from them."""
    computed: tuple[int, ...]
    """Lines where a module is loaded by a name that only run time knows."""
    io_calls: tuple[tuple[int, str], ...]
    """Line and name of every call of a built-in that does I/O."""
    classes: tuple[str, ...]


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text(), path)
    imports: list[tuple[int, str, int]] = []
    names: set[str] = set()
    computed: list[int] = []
    io_calls: list[tuple[int, str]] = []
    classes: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports += ((node.lineno, alias.name, 0) for alias in node.names)
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                imports.append((node.lineno, node.module or "", node.level))
                if node.module:
                    names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            case ast.Attribute(attr="import_module" | "__import__") | ast.Name(id="import_module" | "__import__"):
                computed.append(node.lineno)
            case ast.Call(func=ast.Name(id=name)) if name in IO_BUILTINS:
                io_calls.append((node.lineno, name))
            case ast.ClassDef():
                classes.append(node.name)
    return Source(
        docstring=ast.get_docstring(tree), imports=tuple(imports), names=frozenset(names), computed=tuple(computed),
        io_calls=tuple(io_calls), classes=tuple(classes),
    )  # fmt: skip


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def is_pure(path: Path) -> bool:
    """Say whether a file must be pure: its folder says so. A package's ``errors`` are part of its core."""
    parts = path.relative_to(ROOT).parts
    return (
        "core" in parts[:-1]
        or any(named(path).startswith(f"{folder}/") for folder in PURE_FOLDERS)
        or (len(parts) == 2 and parts[1] == "errors.py" and parts[0] in PURE_ERRORS)
    )


def pure_modules() -> list[Path]:
    return [path for path in ALL_SOURCES if is_pure(path)]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


ALL_SOURCES = [path for package in MAY_IMPORT for path in sources(package)]
FOLDERS = sorted({path.parent for path in ALL_SOURCES})


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES: Mapping[str, Path] = {dotted(path): path for path in ALL_SOURCES if path.name != "__init__.py"}
"""Every module by its dotted name; a package's ``__init__`` is looked into by other tests, and is no room."""


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return module if "." not in rest else f"{package}.{rest.rpartition('.')[0]}"


def imported_modules(path: Path) -> set[str]:
    """Return our own modules that a file imports: as themselves, by a name in them, or from their folder."""
    return set(source(path).names & MODULES.keys())


def test_imports_point_down_only() -> None:
    wrong = []
    for path in ALL_SOURCES:
        package = path.relative_to(ROOT).parts[0]
        wrong += [
            f"{named(path)}:{line} imports {name}"
            for line, name, _ in source(path).imports
            if (top := name.partition(".")[0]) in MAY_IMPORT and top not in MAY_IMPORT[package] | {package}
        ]
    assert wrong == []


def test_imports_are_absolute_and_literal() -> None:
    wrong = []
    for path in ALL_SOURCES:
        wrong += [f"{named(path)}:{line} imports relatively" for line, _, level in source(path).imports if level]
        if named(path) not in LAZY:
            wrong += [f"{named(path)}:{line} imports by a computed name" for line in source(path).computed]
    assert wrong == []


def test_the_core_is_pure() -> None:
    allowed = PURE_STANDARD | PURE_THIRD_PARTY | set(MAY_IMPORT)
    assert [wrong for path in pure_modules() for wrong in forbidden_imports(path, allowed) + io_calls(path)] == []


def test_schemas_need_no_clock_no_chance_no_network() -> None:
    allowed = PURE_STANDARD | {"xxhash", "crc32c"} | SCHEMAS_EXTRA | {"schemas"}
    assert [wrong for path in sources("schemas") for wrong in forbidden_imports(path, allowed)] == []


def test_only_schemas_know_avro() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in ALL_SOURCES
        if "schemas" not in path.parts
        for line, name, _ in source(path).imports
        if name.partition(".")[0] in {"fastavro", "avro"}
    ]
    assert wrong == []


def test_the_core_imports_nothing_of_its_package_but_the_core() -> None:
    wrong = [
        f"{named(path)} imports {module}"
        for path in pure_modules()
        for package in path.relative_to(ROOT).parts[:1]
        for module in sorted(imported_modules(path))
        if (module.partition(".")[0] not in {package, "schemas"} and not is_pure(MODULES[module]))
        or (module.partition(".")[0] == package and not is_pure(MODULES[module]))
    ]
    assert wrong == []


def test_no_two_rooms_import_each_other() -> None:
    """A room is a folder; a module right below its package is a room of its own."""
    graph = {room: set[str]() for room in map(room_of, MODULES)}
    for module, path in MODULES.items():
        graph[room_of(module)] |= {room_of(target) for target in imported_modules(path)} - {room_of(module)}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"rooms import each other in a circle: {' <- '.join(error.args[1])}")
    assert len(order) == len(graph)


def test_no_two_modules_import_each_other() -> None:
    graph = {module: imported_modules(path) - {module} for module, path in MODULES.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' <- '.join(error.args[1])}")
    assert len(order) == len(graph)


def test_a_class_name_occurs_once() -> None:
    """One word, one thing: a search for a class finds it, and nothing else."""
    found = Counter(name for path in ALL_SOURCES for name in source(path).classes)
    assert [name for name, count in found.items() if count > 1] == []


def test_a_folder_says_what_lives_there_and_holds_no_more_than_a_dozen_modules() -> None:
    modules = {
        named(folder): sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")
        for folder in FOLDERS
    }
    assert {folder: found for folder, found in modules.items() if len(found) > MOST_MODULES} == {}
    assert [named(folder) for folder in FOLDERS if not source(folder / "__init__.py").docstring] == []


def forbidden_imports(path: Path, allowed: Collection[str]) -> list[str]:
    return [
        f"{named(path)}:{line} imports {name}"
        for line, name, _ in source(path).imports
        if name.partition(".")[0] not in allowed
    ]


def io_calls(path: Path) -> list[str]:
    return [f"{named(path)}:{line} calls {name}" for line, name in source(path).io_calls]


def test_the_lists_name_what_exists() -> None:
    assert [folder for folder in PURE_FOLDERS if not (ROOT / folder).is_dir()] == []
    assert {package: (ROOT / package / "errors.py").exists() for package in PURE_ERRORS} == dict.fromkeys(
        PURE_ERRORS, True
    )
    assert len(pure_modules()) > 60
    assert len(ALL_SOURCES) > 500
    assert sys.stdlib_module_names >= PURE_STANDARD


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time", ["time"]),
        ("from os import path", ["os"]),
        ("def f():\n    import random as r", ["random"]),
        ("if TYPE_CHECKING:\n    import threading", ["threading"]),
        ("import dataclasses, socket", ["socket"]),
        ("from replicated_db.core.tables.merge import MergeOperator", []),
    ],
)
def test_the_check_itself_sees_imports_everywhere(text: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    allowed = PURE_STANDARD | set(MAY_IMPORT)
    assert [name for _, name, _ in source(path).imports if name.partition(".")[0] not in allowed] == found
