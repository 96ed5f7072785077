"""docs/limits.md names limits that exist, with the defaults that they have."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROW = re.compile(r"\| `([A-Za-z_.]+)` \| `([a-z_.]+)` \| ([0-9.,_]+) \| (.+) \|")


def rows() -> list[Any]:
    found = [ROW.fullmatch(line) for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert all(found), "a row that cannot be read"
    return [pytest.param(*match.groups(), id=f"{match[2]}.{match[1]}") for match in found if match]


def value_of(name: str, module: str) -> Any:
    """Return a module's constant, or the default of a field of one of its dataclasses."""
    place: Any = importlib.import_module(module)
    if "." not in name:
        return getattr(place, name)
    cls, field = name.split(".")
    return next(found.default for found in dataclasses.fields(getattr(place, cls)) if found.name == field)


@pytest.mark.parametrize(("name", "module", "default", "beyond"), rows())
def test_a_limit_has_the_default_that_is_documented(name: str, module: str, default: str, beyond: str):
    assert f"{value_of(name, module):,}" == default
    assert beyond.strip()


def test_the_page_is_not_empty():
    names = {row.values[0] for row in rows()}
    assert {
        "Settings.max_queued_requests",
        "Policy.max_in_flight",
        "LeaderLimits.max_in_flight",
        "MAX_MESSAGE_BYTES",
    } <= names
