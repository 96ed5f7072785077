"""Examples in docstrings that need no cluster are run. Those that do need one say ``# doctest: +SKIP``."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "build_tools")


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> list[str]:
    """Return the modules whose text has an example."""
    paths = [path for package in PACKAGES for path in sorted(package.rglob("*.py")) if ">>> " in path.read_text()]
    return [dotted(path) for path in paths]


def examples_of(name: str) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]


@pytest.mark.parametrize("name", modules())
def test_examples_of_a_module_give_what_they_show(name: str) -> None:
    shown: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in examples_of(name):
        runner.run(test, out=shown.append)
    assert "".join(shown) == ""


def test_most_modules_with_examples_have_one_that_runs() -> None:
    names = modules()
    run = [
        name
        for name in names
        if any(doctest.SKIP not in one.options for test in examples_of(name) for one in test.examples)
    ]
    assert len(run) > len(names) / 2
