"""Prose fits in a window of 120 columns: lines of pages (but tables and code blocks), docstrings and comments.

A rule is one test, which names every line that breaks it: a test for each file would be a thousand.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 120
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]

PACKAGES = (
    "benchmarks",
    "build_tools",
    "datanode_processors",
    "examples",
    "om_processors",
    "producers",
    "replicated_db",
    "schemas",
    "spark_streaming",
    "stratolog",
    "transport",
)
"""Folders whose docstrings and comments are held to COLUMNS."""
SOURCES = [path for package in PACKAGES for kind in ("*.py", "*.pyx") for path in sorted((ROOT / package).rglob(kind))]


def too_long(text: str) -> list[str]:
    """Return the lines of prose with more than COLUMNS columns, each with its number."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|") and len(line) > COLUMNS:
            found.append(f"{number}: {line}")
    return found


def lines_of_comments(source: str) -> set[int]:
    """Return the numbers of the lines that hold docstrings or comments of their own."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type: ignore|fmt:)", token.string):
            found.add(token.start[0])
    return found


def lines_of_cython_comments(source: str) -> set[int]:
    """Return the same for Cython, which Python cannot parse: its strings of three quotes are docstrings."""
    found = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    for text in re.finditer(r'"""(?s:.*?)"""', source):
        found.update(range(source.count("\n", 0, text.start()) + 1, source.count("\n", 0, text.end()) + 2))
    return found


def too_long_comments(path: Path) -> list[str]:
    """Return the lines of docstrings and comments with more than COLUMNS columns, each with its number."""
    source = path.read_text()
    lines = source.splitlines()
    if not any(len(line) > COLUMNS for line in lines):
        return []  # most files: to parse them would only say which lines are prose
    numbers = lines_of_comments(source) if path.suffix == ".py" else lines_of_cython_comments(source)
    return [f"{number}: {lines[number - 1]}" for number in sorted(numbers) if len(lines[number - 1]) > COLUMNS]


def test_what_is_looked_into_is_there() -> None:
    assert len(PAGES) > 100
    assert len(SOURCES) > 700


def test_lines_of_prose_fit_in_a_window() -> None:
    wrong = {str(page.relative_to(ROOT)): too_long(page.read_text()) for page in PAGES}
    assert {page: lines for page, lines in wrong.items() if lines} == {}


def test_the_check_sees_prose_alone() -> None:
    long = "x" * (COLUMNS + 1)
    text = f"{long}\n| {long} |\n```\n{long}\n```\n  - {long}\n{'x' * COLUMNS}\n"
    assert too_long(text) == [f"1: {long}", f"6:   - {long}"]


def test_docstrings_and_comments_fit_in_a_window() -> None:
    wrong = {str(path.relative_to(ROOT)): too_long_comments(path) for path in SOURCES}
    assert {path: lines for path, lines in wrong.items() if lines} == {}


def test_the_check_of_sources_sees_docstrings_and_comments_alone(tmp_path: Path) -> None:
    long = "x" * COLUMNS
    python, cython = tmp_path / "a.py", tmp_path / "a.pyx"
    python.write_text(f'"""{long}"""\n# {long}\nvalue = "{long}"\nvalue = "{long}"  # noqa: X1\nvalue = 1  # {long}\n')
    cython.write_text(f'cdef int f():\n    """A\n    {long}\n    """\n    # {long}\n    x = "{long}"\n')
    assert [line.split(":")[0] for line in too_long_comments(python)] == ["1", "2", "5"]
    assert [line.split(":")[0] for line in too_long_comments(cython)] == ["3", "5"]
