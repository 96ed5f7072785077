"""The public SDK under the name ``stratolog``, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import producers
import producers.errors
import stratolog

ROOT = Path(__file__).parents[3]
HEAVY = ("faust", "mode", "aiokafka", "rocksdict", "pyspark", "pandas", "pyarrow", "numpy", "sortedcontainers")


@pytest.mark.parametrize("name", stratolog.__all__)
def test_every_name_is_that_of_the_sdk(name: str) -> None:
    homes = [vars(producers).get(name), vars(producers.errors).get(name)]
    assert getattr(stratolog, name) in homes
    assert name in dir(stratolog)


def test_the_lists_of_names_agree() -> None:
    """A name is exported in four places: type checkers read two of them, and run time the others."""
    assert stratolog.__all__ == producers.__all__
    for module in (stratolog, producers):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = [alias.name for node in froms if node.module not in {"__future__", "typing"} for alias in node.names]
        assert sorted(imported) == module.__all__, module.__name__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'stratolog' has no attribute 'Nonsense'"):
        _ = stratolog.Nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("statement", ["import stratolog.cli", "from stratolog import Client, AsyncClient"])
def test_the_client_and_the_command_need_no_extra(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
