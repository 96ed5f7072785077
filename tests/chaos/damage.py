"""Damage to files at rest, and what a node says when it finds it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stratolog.drills.kit.rebuild import database_of
from tests.chaos.campaign import Chaos

FLIP = 0x40


def flip_bit(path: Path, offset: int) -> None:
    """Flip one bit of the byte at an offset, in place, as a failing disk would."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ FLIP]))


def shard_folder(chaos: Chaos, node: str, shard: int = 0) -> Path:
    """Return where a node keeps a shard's RocksDB."""
    return database_of(chaos.stack.settings, node, shard)


def wipe(chaos: Chaos, node: str, shard: int = 0) -> None:
    """Remove a shard's database of a node that does not run: it is rebuilt from the log."""
    assert node not in chaos.stack.nodes, f"{node} runs"
    shutil.rmtree(shard_folder(chaos, node, shard))


class LogMark:
    """What a node writes to its log from now on."""

    def __init__(self, chaos: Chaos, node: str) -> None:
        self._path = chaos.stack.log_file(node)
        self._from = self._path.stat().st_size if self._path.exists() else 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """Iterate over the log's lines that are JSON; libraries write others."""
        with self._path.open("rb") as file:
            file.seek(self._from)
            for line in file:
                with suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict):
                        yield found


def wait_stopped(chaos: Chaos, node: str, mark: LogMark) -> str:
    """Wait until a node has ended by itself, and return the line in which it says why: one of a StopProcess."""
    process = chaos.stack.nodes[node]
    chaos.stack.wait(f"{node} stops by itself", lambda: not process.is_running())
    chaos.stack.nodes.pop(node)
    said = [line["message"] for line in mark.lines() if line["level"] == "CRITICAL"]
    assert said, f"{node} ended without a word\n{chaos.stack.logs()}"
    assert said[-1].startswith("stop: "), f"{node} ended with a defect: {said[-1]}\n{chaos.stack.logs()}"
    return str(said[-1])


def truncate(path: Path, keep_bytes: int) -> None:
    os.truncate(path, keep_bytes)
