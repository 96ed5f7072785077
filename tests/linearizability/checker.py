"""Runs the checker: builds the Go program once, hands it histories, and returns its verdicts.

Go is needed, 1.21 or newer, and on the first run the module proxy (or a filled module cache) for porcupine, which ``checker/go.sum`` pins.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent / "checker"
GO_ELSEWHERE = Path("/usr/local/go/bin")
"""Where Go's own archive installs it; often not on the PATH."""
BUILD_TIMEOUT_S = 300
CHECK_TIMEOUT_S = 60
"""For one volume's part of one history; in practice it takes milliseconds."""

LINEARIZABLE, ILLEGAL = "linearizable", "illegal"


class CheckerError(Exception):
    """The checker cannot be built or does not accept its input; the message says what is needed or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checker says of one history; ``illegal`` says per volume which return nothing explains."""

    history: str
    verdict: str
    operations: int
    unknown_outcomes: int
    volumes: int
    elapsed_ms: int
    illegal: list[dict[str, Any]]


def find_go() -> str:
    """Return the go command; raises CheckerError saying what to install."""
    found = shutil.which("go") or shutil.which("go", path=str(GO_ELSEWHERE))
    if found is None:
        raise CheckerError("Go 1.21 or newer is needed to check histories: install it and put 'go' on the PATH")
    return found


@cache
def build(folder: Path) -> Path:
    """Build the checker into ``folder`` and return the program."""
    program = folder / "checker"
    folder.mkdir(parents=True, exist_ok=True)
    command = [find_go(), "build", "-buildvcs=false", "-o", str(program), "."]
    home = os.environ.get("HOME", str(folder))
    done = subprocess.run(
        command, cwd=SOURCE, env={**os.environ, "HOME": home}, capture_output=True, text=True,
        timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise CheckerError(f"the checker does not build (is the Go module proxy reachable?):\n{done.stderr}")
    return program


def check(program: Path, histories: Sequence[Path], *, report: Path | None = None) -> list[Verdict]:
    """Return a verdict for each history; with ``report``, what is illegal is written there."""
    command = [str(program), "-timeout", f"{CHECK_TIMEOUT_S}s"]
    if report is not None:
        command += ["-report", str(report)]
    done = subprocess.run([*command, *map(str, histories)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise CheckerError(done.stderr.strip() or f"the checker ended with status {done.returncode}")
    return [Verdict(**{"illegal": [], **json.loads(line)}) for line in done.stdout.splitlines()]
