"""requirements-dev.lock: what `make install` installs on Python 3.11 is one version of each library, and what pyproject.toml allows."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "requirements-dev.lock").read_text().splitlines() if not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

NOT_LOCKED = {"mutation"}
"""Extras that `make install` leaves out; what installs them takes the lock as a constraint."""


def locked() -> dict[str, Version]:
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in LINES)}


def wanted() -> list[Requirement]:
    extras = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name not in NOT_LOCKED}
    lists = [PROJECT["dependencies"], *extras.values()]
    return [Requirement(text) for requirements in lists for text in requirements]


def test_each_line_is_one_version_and_no_address() -> None:
    assert len(LINES) == len(locked())
    assert not [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)]


def test_all_that_is_wanted_is_locked_at_a_version_that_is_allowed() -> None:
    versions = locked()
    for requirement in wanted():
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def requires_python(name: str) -> SpecifierSet:
    """Return which versions of Python a library takes; any, if it is not installed here or does not say."""
    try:
        return SpecifierSet(metadata(name)["Requires-Python"] or "")
    except PackageNotFoundError:
        return SpecifierSet()


def test_every_locked_version_takes_the_first_python_of_its_kind() -> None:
    """Debian 12's Python is 3.11.2: a library that asks for 3.11.5 leaves its users without an installation."""
    refusing = {name: str(asked) for name in locked() if "3.11.0" not in (asked := requires_python(name))}
    assert not refusing
    assert "3.0" not in requires_python("pytest")  # what is installed here has been read


def test_the_installation_takes_it_for_its_own_python_alone() -> None:
    text = (ROOT / "Makefile").read_text()
    assert '"--constraint $(LOCK)" if sys.version_info[:2] == (3, 11) else ""' in text
    assert text.count("-m pip install --quiet $(LOCKED) --editable") == 2
    installed = re.search(r"--editable '\.\[om,datanode,ui,tracing,spark,dev\]'", text)
    assert installed
    assert not NOT_LOCKED & set(re.findall(r"\w+", installed[0]))


def test_the_client_does_without_the_reference_codec() -> None:
    assert "avro-python3" not in {Requirement(text).name for text in PROJECT["dependencies"]}
    for extra in ("om", "datanode", "dev"):
        assert "avro-python3" in {Requirement(text).name for text in PROJECT["optional-dependencies"][extra]}, extra
