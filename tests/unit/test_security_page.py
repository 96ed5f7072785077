"""docs/security.md: every threat has a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
TABLE = re.compile(r"^\| threat \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)


def threats() -> list[tuple[str, str]]:
    """Return each threat and what its line says of a test."""
    rows = [line for table in TABLE.findall(PAGE.read_text()) for line in table.splitlines()]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return [(cell[0], cell[-1].strip(" |")) for cell in cells]


def test_every_threat_names_a_test_that_exists() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    found = threats()
    assert len(found) > 10
    named: list[str] = []
    for threat, test in found:
        named = named if test in ("the same", "likewise") else re.findall(r"`(\w+)`", test)
        assert named, f"{threat}: {test}"
        assert set(named) <= there, f"{threat}: {test}"
