"""Prose is read in a window: a line of it has at most 120 columns. Tables and code blocks of pages are excepted.

Prose is the pages, and the docstrings and comments of PACKAGES.
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
PACKAGES = (
    "datanode_processors",
)  # fmt: skip
"""One line each. The other packages still have longer lines."""
MODULES = [module for package in PACKAGES for module in sorted((ROOT / package).rglob("*.py"))]


def too_long(text: str) -> list[str]:
    """Return the lines of prose with more than COLUMNS columns, each with its number."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|") and len(line) > COLUMNS:
            found.append(f"{number}: {line}")
    return found


def too_long_in_code(source: str) -> list[str]:
    """Return the lines of docstrings and comments with more than COLUMNS columns, each with its number."""
    prose = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone: a docstring, also of a constant or a field.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = source.splitlines()
    return [f"{number}: {lines[number - 1]}" for number in sorted(prose) if len(lines[number - 1]) > COLUMNS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_fit_in_a_window(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_the_check_sees_prose_alone() -> None:
    long = "x" * (COLUMNS + 1)
    text = f"{long}\n| {long} |\n```\n{long}\n```\n  - {long}\n{'x' * COLUMNS}\n"
    assert too_long(text) == [f"1: {long}", f"6:   - {long}"]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_docstrings_and_comments_fit_in_a_window(module: Path) -> None:
    assert too_long_in_code(module.read_text()) == []


def test_the_check_sees_docstrings_and_comments_alone() -> None:
    long = "x" * COLUMNS
    source = f'"""Short.\n\n{long}x\n"""\na = "{long}"\n"""{long}"""\nb = 1  # {long}\n# short\n'
    assert too_long_in_code(source) == [f"3: {long}x", f'6: """{long}"""', f"7: b = 1  # {long}"]
