"""Do the fast tests notice? Samples mutants of packages or modules and runs the unit tests of their room on each.

    python -m tests.mutation.run producers --sample 25 --seed 1                 what `make mutants` does
    python -m tests.mutation.run datanode_processors/repair/verifier.py         all mutants of one module

The tree is copied once, and one mutant at a time is written into the copy. The tests of its room run first, then those
of the whole package. The room of ``datanode_processors/repair/x.py`` is ``tests/unit/datanode_processors/repair``; its
files named after the module run before the others. A mutant that makes the tests hang is killed, too. There is one line
a mutant, and one JSON object a target; survivors go into a file as diffs. Each is to be read: either a test is missing,
or the mutant is equivalent.

Unit tests start no Java, so they cannot compute an expression of Spark. With ``--spark`` a survivor in a module that
imports PySpark is also tried on the batch tests that compare Spark with a model of it: a session, and no broker.
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
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.mutants import OWN_OPERATORS, Mutant, Source, is_another, skipped_spans, within

ROOT = Path(__file__).parents[2]
POLL_S = 0.05
FIRST_TIMEOUT_S = 900.0
TIMEOUT_S, TIMEOUT_FACTOR = 20.0, 3.0
"""Tests that take longer than so many times what they take without a mutant, and so long in addition, hang."""
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


def mutants_of(text: str) -> Iterator[Mutant]:
    """Yield all mutants of a module that are worth a test."""
    source, tree = Source(text), get_ast(text)
    spans = skipped_spans(source)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        starts = [start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
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


def run_tests(tree: Path, paths: list[str]) -> NoReturn:
    """Run tests in ``tree``, in a process of their own that has the libraries already, and end it."""
    code = 1
    try:
        os.setsid()
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
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile(
            "mutants", deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=phases, database=None
        )
        code = int(
            pytest.main([*NOT_SLOW, *paths, "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"])
        )
    finally:
        os._exit(code)


def passes(tree: Path, paths: list[str], timeout_s: float) -> bool:
    """Return whether tests pass in ``tree``; if they hang they do not."""
    child, deadline = os.fork(), time.monotonic() + timeout_s
    if not child:
        run_tests(tree, paths)
    ended = status = 0
    while not ended and time.monotonic() < deadline:
        time.sleep(POLL_S)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):  # what the tests left behind goes with them
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    return bool(ended) and os.waitstatus_to_exitcode(status) == 0


class Trials:
    """Mutants in a copy of the tree, one at a time."""

    def __init__(self, folder: str, *, room_only: bool, with_spark: bool) -> None:
        self._tree = Path(folder) / "tree"
        self._room_only = room_only
        self._with_spark = with_spark
        self._timeouts_s: dict[frozenset[str], float] = {}
        shutil.copytree(
            ROOT,
            self._tree,
            symlinks=True,
            ignore=shutil.ignore_patterns(".git", ".venv", "build", ".stratolog", ".*_cache"),
        )
        compileall.compile_dir(self._tree, quiet=2)

    def check(self, module: str) -> None:
        """Run the tests of a module without a mutant, as a measure; ends the program if they fail."""
        for paths in self._runs(module):
            if frozenset(paths) not in self._timeouts_s:
                began_s = time.monotonic()
                if not passes(self._tree, paths, FIRST_TIMEOUT_S):
                    sys.exit(f"error: the tests of {module} fail without a mutant")
                self._timeouts_s[frozenset(paths)] = TIMEOUT_S + TIMEOUT_FACTOR * (time.monotonic() - began_s)

    def survives(self, module: str, text: str) -> bool:
        """Return whether all tests pass with ``text`` as the module's."""
        place = self._tree / module
        place.write_text(text)
        try:
            return all(passes(self._tree, paths, self._timeouts_s[frozenset(paths)]) for paths in self._runs(module))
        finally:
            shutil.copy2(ROOT / module, place)

    def _runs(self, module: str) -> list[list[str]]:
        runs = tests_of(module)[: 1 if self._room_only else None]
        if self._with_spark and "from pyspark" in (ROOT / module).read_text():
            runs.append(list(SPARK_TESTS))
        return runs


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
    for module, mutant in sorted(chosen, key=lambda one: (one[0], one[1].line)):
        original, mutated = (ROOT / module).read_text(), mutant.text()
        if not is_another(mutated, original):
            continue
        trials.check(module)
        survived = trials.survives(module, mutated)
        tried += 1
        killed += not survived
        print(f"{'SURVIVED' if survived else 'killed  '} {module}:{mutant.line} {mutant.operator}", flush=True)
        if survived:
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
    parser.add_argument("--survivors", type=Path, default=Path("survivors.diff"), help="file that gets their diffs")
    parser.add_argument("--room-only", action="store_true", help="do not try a survivor on the package's other tests")
    parser.add_argument("--spark", action="store_true", help="try survivors in modules of PySpark on Spark, too")
    options = parser.parse_args()
    for library in WARM:
        import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trials = Trials(folder, room_only=options.room_only, with_spark=options.spark)
        for target in options.targets:
            print(json.dumps(judge(target, options, trials)), flush=True)


if __name__ == "__main__":
    main()
