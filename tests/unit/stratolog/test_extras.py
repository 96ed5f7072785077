"""What is missing of the installation is said first, and with its remedy."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from stratolog.commands.stack import check_installed
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.extras import EXTRAS, check_extras, libraries_of, missing_extra

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_libraries_are_those_of_the_extra(extra: str) -> None:
    brought = " ".join(tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra])
    # mode comes with faust.
    assert [name for name in EXTRAS[extra] if name.replace("_", "-") not in brought and name != "mode"] == []


def test_a_missing_library_names_its_extra() -> None:
    with (
        pytest.raises(Unavailable, match="rocksdict is not installed: install stratolog with the extra 'om'"),
        libraries_of("om"),
    ):
        raise ModuleNotFoundError("No module named 'rocksdict'", name="rocksdict")
    with pytest.raises(ModuleNotFoundError), libraries_of("om"):
        raise ModuleNotFoundError("No module named 'ours'", name="om_processors.ours")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("x", name="rocksdict"), "rocksdict is not installed: this needs stratolog with the extra 'om' or 'datanode'"),
        (ModuleNotFoundError("x", name="pyspark.sql"), "pip install 'stratolog[spark]'"),
        (ModuleNotFoundError("x", name="stratolog.nonsense"), None),
        (ModuleNotFoundError("x"), None),
        (KeyError("rocksdict"), None),
    ],
)  # fmt: skip
def test_an_error_anywhere(error: Exception, words: str | None) -> None:
    """A drill, or ``sh --at``, in a client's installation ended in a traceback."""
    said = missing_extra(error)
    assert (said is None) if words is None else (words in str(said))


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` started brokers before it learnt that there were no nodes to start."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("faust", "pyspark") else object())
    with pytest.raises(Unavailable) as refused:
        check_extras(["om", "spark"])
    assert str(refused.value).startswith("not installed: faust, pyspark; ")
    assert "pip install 'stratolog[om,spark]'" in str(refused.value)
    assert "--no-audit" in str(refused.value)
    check_extras([])


def test_a_stack_that_is_to_be_traced_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "opentelemetry" else object())
    check_installed(Settings())
    with pytest.raises(Unavailable, match=r"not installed: opentelemetry; .*'stratolog\[tracing\]'"):
        check_installed(replace(Settings(), trace_endpoint="http://127.0.0.1:4318"))
