"""Do the fast tests notice? Samples mutants of packages or modules and runs the unit tests of their room on each.

    python -m tests.mutation.run producers --sample 25 --seed 1                 what `make mutants` does
    python -m tests.mutation.run producers --sample 90 --seed 1 --by-line       ten times as fast
    python -m tests.mutation.run datanode_processors/repair/verifier.py         all mutants of one module

The tree is copied once, and one mutant at a time is written into the copy. The tests of its room run first, then those
of the whole package. The room of ``datanode_processors/repair/x.py`` is ``tests/unit/datanode_processors/repair``; its
files named after the module run before the others. A mutant that makes the tests hang is killed, too. There is one line
a mutant, and one JSON object a target; survivors go into a file as diffs. Each is to be read: either a test is missing,
or the mutant is equivalent.

Unit tests start no Java, so they cannot compute an expression of Spark. With ``--spark`` a survivor in a module that
imports PySpark is also tried on the batch tests that compare Spark with a model of it: a session, and no broker.

With ``--by-line`` the unit tests of a package run once under coverage.py, and a mutant is tried only on the tests that
are for its line (``lines``). A mutant in a function of which no test runs the line survives untried. What was recorded
is kept below ``build/mutants``, and test modules that have changed are recorded again. A test that kills a mutant counts
if it passes alone without one: those that sum up what other tests reached do not. One that took seconds to fail, or
hung, must do so twice: a slow machine kills nothing. A survivor is tried on the fast tests of documented limits and of
examples in docstrings, too.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import difflib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.lines import LineMap, in_stages
from tests.mutation.mutants import OWN_OPERATORS, Mutant, Source, is_another, skipped_spans, within
from tests.mutation.recording import LastBegun, Recording, digests_of, record

ROOT = Path(__file__).parents[2]
POLL_S = 0.05
FIRST_TIMEOUT_S = 900.0
TIMEOUT_S, TIMEOUT_FACTOR = 20.0, 3.0
"""Tests that take longer than so many times what they take without a mutant, and so long in addition, hang."""
BY_LINE_TIMEOUT_S, TIMEOUT_OF_A_TEST_S = 60.0, 1.0
"""With ``--by-line`` tests hang that take so long, and so long for each that is chosen; most take milliseconds."""
TEST_TIMEOUT_S = 25
"""With ``--by-line``, how long one test may take: tests wait for a minute for what a mutant never does."""
SLOW_S = 4.0
"""With ``--by-line``, a test that took so long before it failed may have failed because the machine is slow."""
RECORDS = ROOT / "build" / "mutants"
RECORDED_AT_ONCE = 6
"""So many test modules are run under coverage.py before their lines are kept."""
OPERATORS = (
    *(f"ReplaceComparisonOperator_{turned}" for turned in (
        "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt",
    )),
    *(f"ReplaceBinaryOperator_{changed}" for changed in (
        "Add_Sub", "Sub_Add", "Mul_Add", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift",
    )),
    "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop",
)  # fmt: skip
"""Those of cosmic-ray's operators that say something about the code: no decorators removed, no names exchanged."""
PROPERTIES = {
    "datanode_processors/blocks": ("test_block_store.py", "test_datanode_checksums.py"),
    "om_processors/execution": ("test_om_execution.py", "test_om_walks.py", "test_late_validation.py"),
    "om_processors/fleet": ("test_placement.py",),
    "replicated_db/core": ("test_replicated_apply.py", "test_replicated_codec.py", "test_replicated_overlay.py", "test_late_validation.py"),
}  # fmt: skip
"""Rooms of which some unit tests are properties."""
SPARK_TESTS = ("tests/integration/test_audit_transforms.py", "tests/integration/test_audit_frames.py", "-m", "not slow")
"""Tests of Spark's expressions on records in memory; the selection is pytest's last, and so the one that holds."""
NOT_SLOW = ("-m", "not slow and not integration", "-k", "not the_judge_of_the_campaign")
WARM = (
    "hypothesis.stateful", "confluent_kafka.admin", "httpx", "fastavro", "typer", "rich.console", "psutil", "xdist.scheduler", "rocksdict",
    "prometheus_client", "faust", "aiohttp", "pandas", "pyspark.sql.streaming.stateful_processor",
)  # fmt: skip
"""Libraries that take longer to import than most tests to run. They are imported once; the tests' processes are forks."""

PACKAGES = {
    "schemas": (), "transport": ("schemas",), "replicated_db": ("schemas", "transport"), "producers": ("schemas", "transport"),
    "om_processors": ("schemas", "transport", "replicated_db"), "datanode_processors": ("schemas", "transport", "replicated_db"),
}  # fmt: skip
"""Our packages that tests of others use, each with those that it imports."""


def mutants_of(text: str) -> Iterator[Mutant]:
    """Yield all mutants of a module that are worth a test."""
    source, nodes = Source(text), list(ast_nodes(get_ast(text)))
    spans = skipped_spans(source)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            is_second = name == "NumberReplacer" and occurrence % 2  # it offers one more and one less of each number
            if not is_second and not within(start, spans):
                yield Mutant(name, start[0], partial(mutate_code, text, operator, occurrence))
    for own in OWN_OPERATORS:
        yield from own(source)


def tests_of(module: str) -> list[list[str]]:
    """Return the arguments of the two runs of pytest: the room of a module, then its package."""
    room, stem = Path(module).parent, Path(module).stem
    while not (ROOT / "tests/unit" / room).is_dir():
        room = room.parent
    # Files, not their folder: pytest would put those that are named in its own order.
    files = sorted((ROOT / "tests/unit" / room).rglob("test_*.py"), key=lambda path: (stem not in path.stem, path))
    properties = [
        f"tests/properties/{name}"
        for below, names in PROPERTIES.items()
        for name in names
        if module.startswith(f"{below}/")
    ]
    first = [*(str(path.relative_to(ROOT)) for path in files), *properties]
    return [first] if len(room.parts) == 1 else [first, [f"tests/unit/{room.parts[0]}"]]


def enter(tree: Path) -> None:
    """Make this process, which is a fork, one that tests ``tree``, with the libraries that it has already."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(tree)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    sys.path[:] = [str(tree) if entry in {"", str(ROOT)} else entry for entry in sys.path]
    os.environ["PYTHONPATH"] = str(tree)
    # Bytecode is there already. What is written now would have the mutant in it, and the next one may have its time.
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    # That an example fails is enough: shrinking it would take longer than all else.
    settings.register_profile(
        "mutants",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.generate],
        database=None,
    )


def in_a_fork(tree: Path, work: Callable[[], int], timeout_s: float) -> int | None:
    """Return the exit code that ``work`` ends with in a fork of its own, None if it hangs."""
    child, deadline = os.fork(), time.monotonic() + timeout_s
    if not child:
        code = 1
        try:
            enter(tree)
            code = work()
        finally:
            os._exit(code)
    ended = status = 0
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(POLL_S)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the tests left behind goes with them
            os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def arguments(tests: list[str]) -> list[str]:
    """Return pytest's arguments for tests."""
    return [*NOT_SLOW, *tests, "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]


class Tree:
    """A copy of the repository, in which one module at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tree"
        self._last = folder / "last"
        self._result = folder / "lines"
        self.last_test_s = 0.0
        """How long the test ran that began last."""
        shutil.copytree(
            ROOT,
            self.path,
            symlinks=True,
            ignore=shutil.ignore_patterns(".git", ".venv", "build", ".stratolog", ".*_cache"),
        )
        compileall.compile_dir(self.path, quiet=2)

    @contextlib.contextmanager
    def changed(self, module: str, text: str) -> Iterator[None]:
        """Have ``text`` as the module's for the block."""
        place = self.path / module
        place.write_text(text)
        try:
            yield
        finally:
            shutil.copy2(ROOT / module, place)

    def failing(self, tests: list[str], timeout_s: float, *more: str) -> str | None:
        """Return the test that fails or hangs, "" if that is the import already, and None if all pass.

        ``more`` are arguments of pytest.
        """
        self._last.write_text("")
        plugins = [LastBegun(self._last)]
        given = [*arguments(tests), *more]
        code = in_a_fork(self.path, lambda: int(pytest.main(given, plugins=plugins)), timeout_s)
        self.last_test_s = time.time() - self._last.stat().st_mtime
        if code is None:
            print(f"hangs: {self._last.read_text() or 'before the first test'}", flush=True)
        return None if code == 0 else self._last.read_text()

    def record(self, package: str, tests: list[str]) -> dict[str, Any]:
        """Return as JSON which lines of a package each test runs (``recording.record``)."""
        given = [argument for argument in arguments(tests) if argument != "-x"]
        in_a_fork(self.path, partial(record, self.path, package, given, self._result), FIRST_TIMEOUT_S)
        if not self._result.exists():
            sys.exit(f"error: coverage.py says nothing about {package}; its tests hang, or none can be collected")
        found: dict[str, Any] = json.loads(self._result.read_text())
        self._result.unlink()
        return found


class ByLine:
    """Tries the mutants of one package on the tests that are for their lines."""

    def __init__(self, tree: Tree, package: str, most: int) -> None:
        """Record what is not recorded yet. ``most`` is how many tests a mutant is tried on at most; 0: all."""
        self._tree, root = tree, tree.path
        self._most = most or None
        tests = package_tests(root, package)
        digests = digests_of(root, package, tests)
        recording = Recording(RECORDS / f"{package}.json")
        if stale := recording.stale(digests):
            print(f"recording which lines {len(stale)} test modules of {package} run", flush=True)
        while stale:
            some, stale = stale[:RECORDED_AT_ONCE], stale[RECORDED_AT_ONCE:]
            found = tree.record(package, some)
            for test in found["failed"]:
                print(f"left out, for it fails without a mutant: {test}", flush=True)
            # What is recorded stays if this program ends now.
            recording.add({path: digests[path] for path in some}, found["lines"], found["failed"])
        texts = {module: (root / module).read_text() for module in modules_below(package)}
        self._map = LineMap(texts, recording.tests(), {path: (root / path).read_text() for path in tests})
        self._pass_alone: dict[str, bool] = {}

    def killer(self, module: str, line: int, mutated: str) -> str | None:
        """Return what kills a mutant of a line: a test, or "" for the import; None if it survives."""
        tests = self._map.tests_of(module, line)[: self._most]
        for stage in (*in_stages(tests), tests_of_all(module)):
            if (found := self._killer_among(stage, module, mutated)) is not None:
                return found
        return None

    def _killer_among(self, tests: list[str], module: str, mutated: str) -> str | None:
        while True:
            tests = [test for test in tests if self._pass_alone.get(test, True)]
            failed = self._failing_with(module, mutated, tests) if tests else None
            if not failed or self._passes_alone(failed):
                return failed
            if failed not in tests:  # it is one of a whole module
                return None

    def _failing_with(self, module: str, mutated: str, tests: list[str]) -> str | None:
        """Return which of the tests fails with a mutant, if it fails for the mutant and not for a slow machine.

        One that took long is run again, alone: it must fail twice. Else it is left out for this mutant.
        """
        with self._tree.changed(module, mutated):
            while tests and (failed := self._failing(tests)) is not None:
                again = [failed] if failed else tests
                if self._tree.last_test_s < SLOW_S or self._failing(again) is not None:
                    return failed
                print(f"failed once, and passed then: {failed or 'the collection'}", flush=True)
                tests = [test for test in tests if failed and test != failed]
        return None

    def _passes_alone(self, test: str) -> bool:
        """Return whether a test passes by itself, without a mutant."""
        if test not in self._pass_alone:
            self._pass_alone[test] = self._failing([test]) is None
        return self._pass_alone[test]

    def _failing(self, tests: list[str]) -> str | None:
        timeout_s = BY_LINE_TIMEOUT_S + TIMEOUT_OF_A_TEST_S * len(tests)
        return self._tree.failing(tests, timeout_s, f"--timeout={TEST_TIMEOUT_S}")


def tests_of_all(module: str) -> list[str]:
    """Return the test modules that look at every package: at documented limits, and at examples in docstrings."""
    has_example = ">>> " in (ROOT / module).read_text()
    return ["tests/unit/test_limits.py", *(["tests/unit/test_doctests.py"] if has_example else [])]


def package_tests(root: Path, package: str) -> list[str]:
    """Return the test modules of a package, and those of its rooms' properties."""
    unit = sorted(str(path.relative_to(root)) for path in (root / "tests/unit" / package).rglob("test_*.py"))
    below = [name for room, names in PROPERTIES.items() if room.startswith(f"{package}/") for name in names]
    return [*unit, *(f"tests/properties/{name}" for name in dict.fromkeys(below))]


class Trials:
    """Mutants in a copy of the tree, one at a time."""

    def __init__(self, folder: str, *, room_only: bool, with_spark: bool, by_line: bool, most: int) -> None:
        self._tree = Tree(Path(folder))
        self._room_only = room_only
        self._with_spark = with_spark
        self._by_line = by_line
        self._most = most
        self._packages: dict[str, ByLine] = {}
        self._timeouts_s: dict[frozenset[str], float] = {}

    def killer(self, module: str, line: int, mutated: str) -> str | None:
        """Return what kills a mutant of a line: a test, or "" for the import; None if it survives."""
        if not self._by_line:
            return self._killer_of(self._runs(module), module, mutated)
        killer = self._package(module).killer(module, line, mutated)
        return self._killer_of(self._spark_runs(module), module, mutated) if killer is None else killer

    def _killer_of(self, runs: list[list[str]], module: str, mutated: str) -> str | None:
        for paths in runs:
            timeout_s = self._timeout_s(module, paths)
            with self._tree.changed(module, mutated):
                failed = self._tree.failing(paths, timeout_s)
            if failed is not None:
                return failed
        return None

    def _timeout_s(self, module: str, paths: list[str]) -> float:
        """Return after which time tests hang; ends the program if they fail without a mutant."""
        key = frozenset(paths)
        if key not in self._timeouts_s:
            began_s = time.monotonic()
            if self._tree.failing(paths, FIRST_TIMEOUT_S) is not None:
                sys.exit(f"error: the tests of {module} fail without a mutant")
            self._timeouts_s[key] = TIMEOUT_S + TIMEOUT_FACTOR * (time.monotonic() - began_s)
        return self._timeouts_s[key]

    def _package(self, module: str) -> ByLine:
        package = Path(module).parts[0]
        if package not in self._packages:
            self._packages[package] = ByLine(self._tree, package, self._most)
        return self._packages[package]

    def _runs(self, module: str) -> list[list[str]]:
        return [*tests_of(module)[: 1 if self._room_only else None], *self._spark_runs(module)]

    def _spark_runs(self, module: str) -> list[list[str]]:
        return [list(SPARK_TESTS)] if self._with_spark and "from pyspark" in (ROOT / module).read_text() else []


def warm(targets: list[str]) -> None:
    """Import what no mutant can be in: libraries, and our packages that import none of the targets' packages."""
    for library in WARM:
        import_module(library)
    packages = {Path(target).parts[0] for target in targets}
    for name, below in PACKAGES.items():
        if not packages & {name, *below}:
            for module in modules_below(name):
                if not module.endswith("__main__.py"):
                    import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def modules_below(target: str) -> list[str]:
    """Return the modules of a target; ends the program if there are none."""
    path = ROOT / target
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not found:
        sys.exit(f"error: {target} has no modules")
    return [str(module.relative_to(ROOT)) for module in found]


def judge(target: str, options: argparse.Namespace, trials: Trials) -> dict[str, object]:
    """Try a target's mutants, all or as many as are asked for, and return the figures."""
    began_s = time.monotonic()
    every = [(module, mutant) for module in modules_below(target) for mutant in mutants_of((ROOT / module).read_text())]
    chosen = random.Random(options.seed).sample(every, min(options.sample or len(every), len(every)))
    tried = killed = 0
    for module, mutant in sorted(chosen, key=lambda one: (one[0], one[1].line))[options.skip :]:
        original, mutated = (ROOT / module).read_text(), mutant.text()
        if not is_another(mutated, original):
            print(f"the same {module}:{mutant.line} {mutant.operator}", flush=True)
            continue
        mutant_s = time.monotonic()
        killer = trials.killer(module, mutant.line, mutated)
        tried += 1
        killed += killer is not None
        where = f"{module}:{mutant.line} {mutant.operator} in {time.monotonic() - mutant_s:.0f} s"
        print(f"SURVIVED {where}" if killer is None else f"killed   {where} by {killer or 'its import'}", flush=True)
        if killer is None:
            diff = difflib.unified_diff(
                original.splitlines(), mutated.splitlines(), module, mutant.operator, lineterm=""
            )
            with options.survivors.open("a") as file:
                file.write("\n".join(diff) + "\n\n")
    return {
        "target": target, "seed": options.seed, "mutants": len(every), "tried": tried, "killed": killed, "survived": tried - killed,
        "share": round(killed / tried, 3) if tried else None, "seconds": round(time.monotonic() - began_s),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", help="packages, folders or modules, from the repository's top")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants of each target (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many, which an earlier run tried")
    parser.add_argument("--survivors", type=Path, default=Path("survivors.diff"), help="file that gets their diffs")
    parser.add_argument("--room-only", action="store_true", help="do not try a survivor on the package's other tests")
    parser.add_argument("--by-line", action="store_true", help="try a mutant only on the tests that are for its line")
    parser.add_argument("--most-tests", type=int, default=0, help="with --by-line, how many for each mutant (0: all)")
    parser.add_argument("--spark", action="store_true", help="try survivors in modules of PySpark on Spark, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended: what was tried stays in the output, and --skip goes on"))
    warm(options.targets)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trials = Trials(
            folder,
            room_only=options.room_only,
            with_spark=options.spark,
            by_line=options.by_line,
            most=options.most_tests,
        )
        for target in options.targets:
            print(json.dumps(judge(target, options, trials)), flush=True)


if __name__ == "__main__":
    main()
