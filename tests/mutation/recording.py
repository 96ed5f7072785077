"""Which lines of a package each of its tests runs, seen by coverage.py with one context a test, and kept in a file.

The file is JSON: of each test module a digest of what it was recorded from, and of each of its tests the lines. A test
module is recorded again when it has changed, and all are when the package or ``tests/support`` have.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import coverage
import pytest

Lines = dict[str, list[int]]
"""Of each module the lines that a test ran."""


class Contexts:
    """A plugin of pytest: while a test runs, with its fixtures, coverage's context is its name.

    ``failed`` are the tests that did not pass.
    """

    def __init__(self, seen: coverage.Coverage) -> None:
        self._seen = seen
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._seen.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._seen.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


class LastBegun:
    """A plugin of pytest: a file has the name of the test that began last. With ``-x`` it is the one that failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)


class Recording:
    """The kept file of one package."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def stale(self, digests: dict[str, str]) -> list[str]:
        """Return the test modules that are to be recorded, given the digest of each as it is now; forgets those gone."""
        self._kept = {path: entry for path, entry in self._kept.items() if path in digests}
        return [path for path, digest in digests.items() if self._kept.get(path, {}).get("digest") != digest]

    def add(self, digests: dict[str, str], tests: dict[str, Lines], failed: Iterable[str]) -> None:
        """Keep what the tests of the modules in ``digests`` ran; modules of ``failed`` tests are recorded again."""
        again = {test.partition("::")[0] for test in failed}
        for path, digest in digests.items():
            mine = {test: lines for test, lines in tests.items() if test.partition("::")[0] == path}
            self._kept[path] = {"digest": "" if path in again else digest, "tests": mine}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._kept))

    def tests(self) -> dict[str, Lines]:
        """Return the lines of every test."""
        return {test: lines for entry in self._kept.values() for test, lines in entry["tests"].items()}


def digests_of(root: Path, package: str, test_modules: Iterable[str]) -> dict[str, str]:
    """Return of each test module the digest of its text, the package's and ``tests/support``'s."""
    shared = blake2b(digest_size=16)
    for path in sorted([*(root / package).rglob("*.py"), *(root / "tests/support").rglob("*.py")]):
        shared.update(f"{path.relative_to(root)}\n{path.read_text()}".encode())
    found = {}
    for test_module in test_modules:
        own = shared.copy()
        own.update((root / test_module).read_bytes())
        found[test_module] = own.hexdigest()
    return found


def record(tree: Path, package: str, arguments: list[str], result: Path) -> int:
    """Run tests of a package in ``tree``, which is the working directory; ``result`` gets JSON.

    That is ``lines``, by test, and ``failed``: the tests that fail here, which are left out. There is no result if
    tests cannot be collected. Returns pytest's exit code.
    """
    seen = coverage.Coverage(data_file=None, config_file=False, include=[f"{tree}/{package}/*"])
    contexts = Contexts(seen)
    seen.start()
    try:
        code = int(pytest.main(arguments, plugins=[contexts]))
    finally:
        seen.stop()
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return code
    lines = lines_by_test(seen.get_data(), tree)
    passed = {test: found for test, found in lines.items() if test not in contexts.failed}
    result.write_text(json.dumps({"lines": passed, "failed": sorted(contexts.failed)}))
    return code


def lines_by_test(data: coverage.CoverageData, tree: Path) -> dict[str, Lines]:
    """Return what coverage saw, by test instead of by line."""
    tests: dict[str, Lines] = {}
    for file in data.measured_files():
        module = str(Path(file).relative_to(tree))
        for line, contexts in data.contexts_by_lineno(file).items():
            for test in filter(None, contexts):
                tests.setdefault(test, {}).setdefault(module, []).append(line)
    return tests
