"""The hook for commit messages, run by git as a contributor's git runs it, and as .pre-commit-config.yaml names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools.commit_subject import MAX_SUBJECT_CHARACTERS, fault_of

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "build_tools" / "commit_subject.py"
LONGEST = "a" * MAX_SUBJECT_CHARACTERS


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Retry rows of answered calls go early\n", None),
        (LONGEST, None),
        (LONGEST + "a", "73 characters"),
        ("ä" * 72, None),
        ("ä" * 73, "73 characters"),
        (f"short\n\n{LONGEST}{LONGEST}", None),
        ("Ends.", "full stop"),
        ("Commands: on_…", None),
        ("", "no subject"),
        ("\n  \n# a comment\n", "no subject"),
        ("# a comment\n\nThe subject\n# more", None),
        (f"Merge branch '{LONGEST}'", None),
        (f"fixup! {LONGEST}", None),
    ],
)
def test_what_is_wrong_with_a_subject(message: str, fault: str | None) -> None:
    found = fault_of(message)
    assert found is None if fault is None else found is not None and fault in found


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository whose commit-msg hook is this one."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HOOK}" "$1"\n')
    hook.chmod(0o755)
    return tmp_path


def commit(repository: Path, message: str) -> subprocess.CompletedProcess[str]:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "core.hooksPath=.git/hooks"]
    return subprocess.run(
        ["git", *who, "commit", "--quiet", "--allow-empty", "-m", message],
        cwd=repository, capture_output=True, text=True, check=False, env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip


@needs_git
def test_git_refuses_a_long_subject_and_takes_a_short_one(repository: Path) -> None:
    refused = commit(repository, LONGEST + "a")
    assert refused.returncode != 0
    assert "73 characters" in refused.stderr
    taken = commit(repository, LONGEST + "\n\n" + "why " * 40)
    assert (taken.returncode, taken.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/nowhere/at/all"], [b"\xff.txt"]])
def test_a_wrong_call_is_said(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, HOOK, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace"
    )
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_the_hook_is_among_the_local_ones() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "entry: .venv/bin/python build_tools/commit_subject.py" in config
    assert "stages: [commit-msg]" in config
    assert "default_install_hook_types: [pre-commit, commit-msg]" in config
