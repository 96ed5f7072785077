"""A history: what clients called, when, and what came back; written as the JSON lines that the checker reads."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class Operation:
    """One call. ``returned_ns`` and ``result`` are None if the outcome is unknown: it may have its effect at any time, or never."""

    client: int
    op: str
    arguments: dict[str, Any]
    called_ns: int
    returned_ns: int | None = None
    result: dict[str, Any] | None = None
    node: str = ""

    @property
    def code(self) -> str | None:
        return None if self.result is None else str(self.result["code"])

    def to_line(self) -> str:
        return json.dumps(
            {
                "client": self.client, "op": self.op, "args": self.arguments, "call": self.called_ns,
                "return": self.returned_ns, "result": self.result, "node": self.node,
            }
        )  # fmt: skip


@dataclass(slots=True)
class History:
    """Operations of all clients; threads add to it."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, client: int, op: str, node: str = "", **arguments: Any) -> Operation:
        """Note a call, now. It is part of the history once :meth:`returned` or :meth:`unknown` says so."""
        return Operation(client=client, op=op, arguments=arguments, called_ns=time.monotonic_ns(), node=node)

    def returned(self, operation: Operation, code: str, **result: Any) -> None:
        operation.returned_ns = time.monotonic_ns()
        operation.result = {"code": code, **result}
        self._add(operation)

    def unknown(self, operation: Operation) -> None:
        self._add(operation)

    def _add(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)

    def written_since(self, moment_ns: int, volume: str) -> int:
        """Return how many writes to a volume were called after a moment and succeeded."""
        with self._lock:
            return sum(
                one.called_ns > moment_ns and one.code == "OK" and not one.node and one.arguments["volume"] == volume
                for one in self.operations
            )

    def save(self, path: Path) -> Path:
        with self._lock:
            ordered = sorted(self.operations, key=lambda one: one.called_ns)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(one.to_line() + "\n" for one in ordered))
        return path
