"""Pages are read in a window: a line of prose has at most 120 columns. Tables and code blocks are excepted."""

from __future__ import annotations

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
