"""What a type checker sees of the SDK, where it is installed from a checkout: strict mypy of the examples, from a folder that is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sdk.typed_sample import FINDINGS, SAMPLE, found_in_sample

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what mypy says, in one run: it reads the SDK's types once."""
    folder = tmp_path_factory.mktemp("programs")
    for program in (ROOT / "examples").glob("*.py"):
        shutil.copy(program, folder)
    (folder / "sample.py").write_text(SAMPLE)
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *sorted(path.name for path in folder.glob("*.py"))],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout


def test_the_examples_are_typed_and_import_stratolog_alone(findings: str) -> None:
    assert [line for line in findings.splitlines() if not line.startswith("sample.py")] == []
    for program in (ROOT / "examples").glob("*.py"):
        imported = [
            line.split()[1] for line in program.read_text().splitlines() if line.startswith(("import ", "from "))
        ]
        assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "stratolog"}


def test_types_are_seen_and_a_misspelt_name_is_an_error(findings: str) -> None:
    assert found_in_sample(findings) == FINDINGS
