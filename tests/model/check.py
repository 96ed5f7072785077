"""Check ``fencing.pml`` with Spin: exhaustively within bounds, and that each planted mutant has its counterexample.

    python3 tests/model/check.py            the runs of RUNS (about a minute) and all MUTANTS: what `make model` does
    python3 tests/model/check.py --quick    QUICK and all mutants: a few seconds
    python3 tests/model/check.py --deep     RUNS and DEEP: some four minutes and 4 GB
    python3 tests/model/check.py --rewrite  write the counterexamples' traces (NAME.trace) anew

Needs ``spin`` (Debian: ``apt-get install spin``) and ``gcc``, and of Python nothing but the standard library. Spin turns the model into a
C program, which visits every state that the bounds allow. A mutant is searched breadth first, so its trace is a shortest one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MODEL = FOLDER / "fencing.pml"
MAX_DEPTH = 100_000
MAX_MEMORY_MB = 6_000
FAILED_ASSERTION = re.compile(r"spin: fencing\.pml:(\d+), Error: assertion violated")
PROPERTY = re.compile(r"/\* .*?(I\d)\b")


class ModelError(Exception):
    """The check could not be made, or did not come out as it must; the message says what to do or what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One set of bounds; see the top of the model for what they mean."""

    name: str
    claims: int = 3
    log: int = 6
    batches: int = 2
    pipeline: int = 2
    copies: int = 0

    @property
    def defines(self) -> list[str]:
        bounds = {"CLAIMS": self.claims, "LOG": self.log, "BATCHES": self.batches, "PIPELINE": self.pipeline}
        return [f"-D{name}={value}" for name, value in {**bounds, "COPIES": self.copies}.items()]

    def __str__(self) -> str:
        return (
            f"3 candidates, {self.claims} claims, {self.batches} batches each, {self.pipeline} in flight, "
            f"{self.copies} landing twice, {self.log} records in the log"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A rule that is switched off, and the bounds in which the counterexample is looked for."""

    define: str
    what: str
    bounds: Run

    @property
    def trace(self) -> Path:
        return FOLDER / f"{self.define.lower()}.trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a search found: ``errors`` 0 means that every state within the bounds is safe."""

    states: int
    errors: int
    elapsed_s: float
    trace: str


QUICK = (Run(name="quick", claims=3, log=5),)
RUNS = (
    Run(name="copies", log=6, copies=1),
    Run(name="terms", claims=4, log=5),
    Run(name="long", log=7),
    Run(name="pipeline", claims=2, log=7, batches=3, pipeline=3, copies=1),
)
DEEP = (Run(name="deep-copies", log=7, copies=1), Run(name="deep-terms", claims=4, log=6))
MUTANTS = (
    Mutant(define="NO_NONCE", what="nonces are not compared", bounds=Run(name="twins")),
    Mutant(define="NO_CONTIGUITY", what="a report alone makes a batch effective", bounds=Run(name="stale", pipeline=1)),
    Mutant(define="NO_SEQ", what="seq is not compared", bounds=Run(name="gap")),
    Mutant(define="NO_READ_BACK", what="a report alone makes a leader", bounds=Run(name="unread")),
)


def missing_tools() -> str:
    """Say what has to be installed; empty if nothing."""
    tools = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return f"not installed: {', '.join(tools)} (Debian: apt-get install {' '.join(tools)})" if tools else ""


def search(run: Run, mutant: str | None = None) -> Verdict:
    """Visit every state within the bounds; with a mutant, until the first one that is wrong, nearest first."""
    defines = [*run.defines, *([f"-D{mutant}"] if mutant else [])]
    with tempfile.TemporaryDirectory(prefix="fencing-") as name:
        folder = Path(name)
        shutil.copy(MODEL, folder)
        _call(folder, "spin", *defines, "-a", MODEL.name)
        options = ["-O0", "-DBFS"] if mutant else ["-O2", "-DCOLLAPSE"]
        _call(folder, "gcc", "-w", "-DSAFETY", f"-DMEMLIM={MAX_MEMORY_MB}", *options, "-o", "pan", "pan.c")
        begin_s = time.monotonic()
        report = _call(folder, "./pan", "-E", "-w22", *([] if mutant else [f"-m{MAX_DEPTH}"]))
        elapsed_s = time.monotonic() - begin_s
        if mutant is None and "Search not completed" in report and "errors: 0" in report:
            raise ModelError(f"{run.name}: the search was cut short\n{report}")
        trace = "".join(_readable(_call(folder, "spin", *defines, "-t", "-T", MODEL.name))) if mutant else ""
    states = re.search(r"(\S+) states, stored", report)
    errors = re.search(r"errors: (\d+)", report)
    if states is None or errors is None or "max search depth too small" in report:
        raise ModelError(f"{run.name}: the search did not come to its end\n{report}")
    return Verdict(states=int(float(states[1])), errors=int(errors[1]), elapsed_s=elapsed_s, trace=trace)


def _call(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and command[0] != "spin":  # replaying a failed assertion is a failure to spin
        raise ModelError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _readable(replay: str) -> Iterator[str]:
    """Keep of a replayed counterexample what the model says, and the first property that failed."""
    for line in replay.splitlines():
        if failed := FAILED_ASSERTION.match(line):
            yield f"FAILS {_property(int(failed[1]))}\n"
            return
        if not line.startswith("spin:"):
            yield line + "\n"


def _property(line: int) -> str:
    """Return the property that an assertion of the model is for, in the words on top of it."""
    text = MODEL.read_text()
    name = PROPERTY.search(text.splitlines()[line - 1])
    if name is None:
        raise ModelError(f"{MODEL}:{line}: the assertion does not say which property it is for")
    words = re.search(rf" \*   {name[1]}  (.*(?:\n \*       .*)*)", text)
    return f"{name[1]}: {' '.join(words[1].replace(' *', '').split()) if words else ''}"


def check_run(run: Run) -> Verdict:
    """Search and raise ModelError unless all is safe."""
    verdict = search(run)
    if verdict.errors:
        raise ModelError(f"{run.name} ({run}): an assertion of {MODEL} fails; replay with `spin -t`")
    return verdict


def check_mutant(mutant: Mutant) -> Verdict:
    """Search and raise ModelError unless the mutant is found."""
    verdict = search(mutant.bounds, mutant.define)
    if not verdict.errors or "\nFAILS I" not in verdict.trace:
        raise ModelError(f"-D{mutant.define}: no counterexample within {mutant.bounds}: the model proves nothing")
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and print what was seen; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the fencing protocol's model with Spin.")
    parser.add_argument("--quick", action="store_true", help="small bounds")
    parser.add_argument("--deep", action="store_true", help="large bounds too")
    parser.add_argument("--rewrite", action="store_true", help="write the traces of the counterexamples anew")
    options = parser.parse_args(arguments)
    if missing := missing_tools():
        print(f"error: {missing}", file=sys.stderr)
        return 2
    try:
        for run in QUICK if options.quick else (*RUNS, *(DEEP if options.deep else ())):
            verdict = check_run(run)
            print(
                f"safe       {run.name:14} {verdict.states:>11,} states {verdict.elapsed_s:6.1f} s  {run}", flush=True
            )
        for mutant in MUTANTS:
            verdict = check_mutant(mutant)
            if options.rewrite:
                mutant.trace.write_text(verdict.trace)
            steps = len(verdict.trace.splitlines())
            print(f"found      {mutant.define:14} {verdict.states:>11,} states {verdict.elapsed_s:6.1f} s  "
                  f"{mutant.what}: {steps} lines, as in {mutant.trace.relative_to(FOLDER.parents[1])}", flush=True)  # fmt: skip
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
