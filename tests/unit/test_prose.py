"""Prose is read in a window: a line of a page, a docstring or a comment has at most 120 columns.

Tables and code blocks of pages are excepted.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 120
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]


def too_long(text: str) -> list[str]:
    """Return the lines of prose with more than COLUMNS columns, each with its number."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|") and len(line) > COLUMNS:
            found.append(f"{number}: {line}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_fit_in_a_window(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_the_check_sees_prose_alone() -> None:
    long = "x" * (COLUMNS + 1)
    text = f"{long}\n| {long} |\n```\n{long}\n```\n  - {long}\n{'x' * COLUMNS}\n"
    assert too_long(text) == [f"1: {long}", f"6:   - {long}"]


# -- docstrings and comments -------------------------------------------------------------------------------------------

PACKAGES = (
    "build_tools",
    "examples",
    "stratolog",
)
"""Packages whose docstrings and comments are held to COLUMNS."""
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def prose_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold a comment, or a part of a docstring (a statement that is a string)."""
    found = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def too_long_in_code(source: str) -> list[str]:
    """Return the lines of docstrings and comments with more than COLUMNS columns, each with its number."""
    lines = source.split("\n")
    long = (number for number in sorted(prose_lines(source)) if len(lines[number - 1]) > COLUMNS)
    return [f"{number}: {lines[number - 1]}" for number in long]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_and_comments_fit_in_a_window(path: Path) -> None:
    assert too_long_in_code(path.read_text()) == []


def test_the_check_sees_docstrings_and_comments_alone() -> None:
    long = "x" * COLUMNS
    source = f'"""A.\n\n{long}.\n"""\nA = "{long}"\n# {long}\nB = 1  # {long}\n"""{long}"""\n# {long[2:]}\n'
    assert [line.partition(":")[0] for line in too_long_in_code(source)] == ["3", "6", "7", "8"]
