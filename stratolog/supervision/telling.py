"""What the supervisor remembers of what it has started again: its file, and what people are told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stratolog.local import state
from stratolog.supervision.core.restarts import Restarts, as_json, from_json


def read_restarts(data_dir: Path) -> dict[str, Restarts]:
    """Return what is remembered of the processes of a stack, by name; nothing if the file is missing or damaged."""
    try:
        return from_json(json.loads((data_dir / state.RESTARTS_FILE).read_text()))
    except (OSError, ValueError, RecursionError):
        return {}


def write_restarts(data_dir: Path, book: dict[str, Restarts]) -> None:
    """Replace what is remembered; raises UserError if the directory cannot be written."""
    path = data_dir / state.RESTARTS_FILE
    scratch = path.with_suffix(f".{os.getpid()}")
    with state.writing(data_dir):
        scratch.write_text(json.dumps(as_json(book), indent=2) + "\n")
        scratch.replace(path)


def is_left_alone(data_dir: Path) -> bool:
    """Say whether a stack has had a supervisor, and has none."""
    return (data_dir / state.SUPERVISOR_FILE).exists() and state.supervisor_of(data_dir) is None


def shown(one: Restarts) -> dict[str, Any]:
    """Return what is remembered of a process, as ``status --json`` tells it; times in UTC."""
    return {
        "times": one.times,
        "died_at": _utc(one.died_s),
        "started_at": _utc(one.started_s) if one.times else None,
        "due_at": _utc(one.due_s) if one.is_dead else None,
        "why": one.why,
    }


def restart_lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each process that has died, of what :func:`shown` returned."""
    for name, one in sorted(found.items()):
        often = f"was started again {one['times']} time{'s' if one['times'] != 1 else ''}"
        due = f", and is due at {one['due_at']}" if one["due_at"] else ""
        yield f"{name} died at {one['died_at']}, {often}{due}: {one['why'] or 'it has said nothing'}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
