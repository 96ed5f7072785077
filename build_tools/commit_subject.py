"""The hook for commit messages: the subject's length and end (CONTRIBUTING.md).

    python build_tools/commit_subject.py FILE     (the file that git names to a commit-msg hook)

Exits with 1, and says what is wrong, if the subject is. It imports nothing of the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

MAX_SUBJECT_CHARACTERS = 72
"""As git's own tools show a subject whole on 80 columns."""

MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
"""Beginnings of subjects that git makes of other subjects and names."""

COMMENT = "#"


def fault_of(message: str) -> str | None:
    r"""Return what is wrong with the subject of a commit message, None if nothing is.

    >>> fault_of("Say what is so now\n\nAnd why.")
    >>> fault_of("Say what is so now.")
    "the subject ends with a full stop: 'Say what is so now.'"
    """
    lines = [line for line in message.splitlines() if not line.startswith(COMMENT)]
    subject = next((line.strip() for line in lines if line.strip()), "")
    if not subject:
        return "there is no subject"
    if subject.startswith(MADE_BY_GIT):
        return None
    if len(subject) > MAX_SUBJECT_CHARACTERS:
        return f"the subject has {len(subject)} characters, at most {MAX_SUBJECT_CHARACTERS} are taken: {subject!r}"
    if subject.endswith("."):
        return f"the subject ends with a full stop: {subject!r}"
    return None


def main(arguments: list[str]) -> int:
    """Check the message in the file named by the only argument; return the exit status."""
    if len(arguments) != 1:
        print("usage: python build_tools/commit_subject.py FILE", file=sys.stderr)
        return 2
    try:
        message = Path(arguments[0]).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    if (fault := fault_of(message)) is None:
        return 0
    print(f"{arguments[0]}: {fault}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
