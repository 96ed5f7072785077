"""Do the fast tests notice? Samples mutants of packages or modules and runs the unit tests of their room on each.

    python -m tests.mutation.run producers --sample 25 --seed 1                 what `make mutants` does
    python -m tests.mutation.run datanode_processors/repair/verifier.py         all mutants of one module

The tree is copied once, and one mutant at a time is written into the copy. The tests of its room run first
(``datanode_processors/repair/x.py``: ``tests/unit/datanode_processors/repair``, a file named after the module before the others), then
those of the whole package. A mutant that makes them hang is killed, too. One line a mutant, one JSON object a target; survivors go into
a file as diffs. Each is to be read: a test is missing, or the mutant is equivalent.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutation.mutants import OWN_OPERATORS, Mutant, Source, is_another, skipped_spans, within

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0
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
NOT_SLOW = ("-m", "not slow and not integration", "-k", "not the_judge_of_the_campaign")


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
    folder = ROOT / "tests/unit" / room
    named = sorted(str(path.relative_to(ROOT)) for path in folder.glob(f"**/test_*{stem}*.py"))
    properties = [
        f"tests/properties/{name}"
        for below, names in PROPERTIES.items()
        for name in names
        if module.startswith(f"{below}/")
    ]
    first = [*named, f"tests/unit/{room}", *properties]
    package = f"tests/unit/{Path(module).parts[0]}"
    return [first] if first[-1] == package else [first, [package]]


def survives(tree: Path, module: str, *, room_only: bool) -> bool:
    """Return whether all tests of a module pass in ``tree``; one that hangs does not."""
    for paths in tests_of(module)[: 1 if room_only else None]:
        command = [sys.executable, "-m", "pytest", *paths, *NOT_SLOW, "-x", "-q", "-p", "no:cacheprovider"]
        with subprocess.Popen(
            command, cwd=tree, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:]).replace(str(ROOT), str(tree)), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True,
        ) as tests:  # fmt: skip
            try:
                code = tests.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = 1
            finally:  # what the tests left behind goes with them
                try:
                    os.killpg(tests.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if code != 0:
            return False
    return True


def modules_below(target: str) -> list[str]:
    path = ROOT / target
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [str(module.relative_to(ROOT)) for module in found]


def copied(folder: str) -> Path:
    """Copy what the tests need into a folder of their own."""
    tree = Path(folder) / "tree"
    shutil.copytree(
        ROOT,
        tree,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv", "build", ".stratolog", "*_cache", "__pycache__"),
    )
    return tree


def judge(target: str, options: argparse.Namespace, tree: Path) -> dict[str, object]:
    """Try a target's mutants, all or as many as are asked for, and return the figures."""
    began_s = time.monotonic()
    every = [(module, mutant) for module in modules_below(target) for mutant in mutants_of((ROOT / module).read_text())]
    chosen = random.Random(options.seed).sample(every, min(options.sample or len(every), len(every)))
    tried = killed = 0
    for module, mutant in sorted(chosen, key=lambda one: (one[0], one[1].line)):
        original, mutated = (ROOT / module).read_text(), mutant.text()
        if not is_another(mutated, original):
            continue
        (tree / module).write_text(mutated)
        try:
            survived = survives(tree, module, room_only=options.room_only)
        finally:
            (tree / module).write_text(original)
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(folder)
        for target in options.targets:
            one_a_room = {str(Path(module).parent): module for module in modules_below(target)}
            if not one_a_room or not all(survives(tree, module, room_only=True) for module in one_a_room.values()):
                sys.exit(f"error: {target}: no module, or its tests fail without a mutant")
            print(json.dumps(judge(target, options, tree)), flush=True)


if __name__ == "__main__":
    main()
