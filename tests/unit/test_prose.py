"""Prose is read in a window: its lines have at most 120 columns. In pages, tables and code blocks are excepted; in source
files, docstrings and comments are prose.
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
PACKAGES = ("replicated_db",)
SOURCES = [source for package in PACKAGES for source in sorted((ROOT / package).rglob("*.py"))]


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


def too_long_in_source(text: str) -> list[str]:
    """Return the lines of docstrings and comments with more than COLUMNS columns, each with its number."""
    numbers = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone documents what precedes it: a module, class, function, attribute or constant.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    return [f"{number}: {lines[number - 1]}" for number in sorted(numbers) if len(lines[number - 1]) > COLUMNS]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_docstrings_and_comments_fit_in_a_window(source: Path) -> None:
    assert too_long_in_source(source.read_text()) == []


def test_the_check_of_sources_sees_docstrings_and_comments_alone() -> None:
    long = "x" * COLUMNS
    text = f'"""Head.\n\n{long}y\n"""\nx = "{long}"\n# {long}\n\nX = 1\n"""{long}"""\ny = 2  # {long}\n# {"x" * 100}\n'
    assert too_long_in_source(text) == [f"3: {long}y", f"6: # {long}", f'9: """{long}"""', f"10: y = 2  # {long}"]


def test_every_package_has_sources() -> None:
    assert all(any((ROOT / package).rglob("*.py")) for package in PACKAGES)
