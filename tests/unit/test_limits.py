"""docs/limits.md names limits that exist, with the defaults that they have.

One test names every row that is wrong: a test for each row would be five hundred.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROW = re.compile(r"\| `([A-Za-z_.]+)` \| `([a-z_.]+)` \| ([0-9.,_]+) \| (.+) \|")


def rows() -> list[tuple[str, str, str, str]]:
    """Return name, module, documented default and what happens beyond it, of every limit on the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = [(line, ROW.fullmatch(line)) for line in lines]
    assert [line for line, match in found if not match] == [], "rows that cannot be read"
    return [(match[1], match[2], match[3], match[4]) for _, match in found if match]


def value_of(name: str, module: str) -> Any:
    """Return a module's constant, or the default of a field of one of its dataclasses."""
    place: Any = importlib.import_module(module)
    if "." not in name:
        return getattr(place, name)
    cls, field = name.split(".")
    return next(found.default for found in dataclasses.fields(getattr(place, cls)) if found.name == field)


def test_a_limit_has_the_default_that_is_documented() -> None:
    documented = {f"{module}.{name}": default for name, module, default, _ in rows()}
    defaults = {f"{module}.{name}": f"{value_of(name, module):,}" for name, module, _, _ in rows()}
    assert defaults == documented
    assert len(documented) == len(rows()), "a limit is on the page twice"


def test_a_row_says_what_happens_beyond_the_limit() -> None:
    assert [f"{module}.{name}" for name, module, _, beyond in rows() if not beyond.strip()] == []


def test_the_page_is_not_empty() -> None:
    names = {name for name, _, _, _ in rows()}
    assert {
        "Settings.max_queued_requests",
        "Policy.max_in_flight",
        "LeaderLimits.max_in_flight",
        "MAX_MESSAGE_BYTES",
    } <= names
