"""The rules between tests, held by reading their imports: who needs what another test has finds it in ``tests/support``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
ROOMS = sorted(path for path in SUPPORT.iterdir() if path.is_dir() and path.name != "__pycache__")
MOST_MODULES = 12
"""How many modules a room may have, beside its ``__init__``: as in the packages (``test_architecture``)."""


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return every node of a source that a rule looks at: each file is parsed and walked through once."""
    return tuple(
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
    )


def imported(source: str) -> Iterator[str]:
    """Yield the dotted names that a source imports, wherever in it: modules, and what is imported from them."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports(path: Path) -> list[str]:
    """Return the imports that a file of tests may not have."""
    ours = [name for name in imported(path.read_text()) if name.startswith("tests.")]
    wrong = [name for name in ours if any(part.startswith("test_") for part in name.split(".")[:-1])]
    wrong += [name for name in ours if name.rpartition(".")[2].startswith("test_") and is_module(name)]
    if path.is_relative_to(SUPPORT):
        wrong += [name for name in ours if not name.startswith("tests.support.")]
    return wrong


def is_module(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()


def test_nobody_imports_a_test_module_and_support_imports_no_tests() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 200
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := wrong_imports(path))}
    assert wrong == {}


def clocks_replaced(source: str) -> Iterator[int]:
    """Yield the lines that replace a function of ``time`` itself, so for every thread of the process.

    A consumer's or a server's thread of another test then takes an instant that was meant for this one. A test gives
    the module that it tests a ``time`` of its own.
    """
    for node in nodes(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            target = node.args[0]
            named = target.value if isinstance(target, ast.Constant) else None
            if ast.unparse(target) == "time" or (isinstance(named, str) and ".time." in named):
                yield node.lineno


def test_no_test_replaces_the_clock_of_the_whole_process() -> None:
    found = {str(path.relative_to(ROOT)): list(clocks_replaced(path.read_text())) for path in TESTS.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ('monkeypatch.setattr(time, "monotonic", now)', [1]),
        ('monkeypatch.setattr("package.module.time.sleep", now)', [1]),
        ('monkeypatch.setattr(module, "time", own)', []),
        ('monkeypatch.setattr("package.module.time", own)', []),
    ],
)
def test_a_replaced_clock_is_seen(line: str, lines: list[int]) -> None:
    assert list(clocks_replaced(line)) == lines


def test_rooms_of_support_import_each_other_without_circles() -> None:
    graph = {
        room.name: {
            name.split(".")[2]
            for path in room.glob("*.py")
            for name in imported(path.read_text())
            if name.startswith("tests.support.")
        }
        - {room.name}
        for room in ROOMS
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"rooms import each other in a circle: {' <- '.join(error.args[1])}")
    assert sorted(order) == sorted(graph)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_lives_there_and_holds_no_more_than_a_dozen_modules(room: Path) -> None:
    modules = [path.name for path in room.glob("*.py") if path.name != "__init__.py"]
    assert 0 < len(modules) <= MOST_MODULES, sorted(modules)
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), room.name
    page = (SUPPORT / "README.md").read_text()
    assert [name for name in modules if f"`{room.name}/{name.removesuffix('.py')}`" not in page] == []


def test_modules_of_support_live_in_rooms() -> None:
    assert [path.name for path in SUPPORT.glob("*.py")] == []


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("from tests.properties.test_placement import fleets", "unit/test_x.py"),
        ("def f():\n    from tests.properties import test_placement", "unit/test_x.py"),
        ("import tests.properties.test_placement", "chaos/judge.py"),
        ("from tests.chaos.journal import Journal", "support/om/x.py"),
        ("from tests.golden import avro_values", "support/om/x.py"),
    ],
)
def test_the_check_itself_sees_what_is_wrong(
    source: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.SUPPORT", tmp_path / "support")
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert len(wrong_imports(path)) == 1
    path.write_text("from tests.support.om.om_world import World\nimport tests.support.local.stack")
    assert wrong_imports(path) == []
