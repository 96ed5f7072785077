"""What a node logs, and in which form: JSON lines for programs, plain text for a person at a terminal.

A JSON line has ``time`` (UTC), ``level``, ``logger``, ``node`` and ``message``. If the event concerns a shard, it also
has ``shard``, and the ``term`` and ``index`` at which the shard's replica stands. Further fields are the event's own.
Every line is one object; a traceback is its field ``traceback``. Write-audit lines are a log of their own
(``write_audit``).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from replicated_db.core.applying.replica import Replica

AUTO, PLAIN = "auto", "plain"

Note = Callable[..., None]
"""Logs a message; ``shard=`` and other keywords become fields."""

log = logging.getLogger("stratolog.node")


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "node": self._node,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(node: str, level: str, log_format: str, stream: TextIO = sys.stderr) -> None:
    """Make the process log to ``stream``; ``auto`` is plain on a terminal and JSON elsewhere."""
    handler = logging.StreamHandler(stream)
    if log_format == PLAIN or (log_format == AUTO and stream.isatty()):
        handler.setFormatter(logging.Formatter(f"%(asctime)s {node} %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(JsonLines(node))
    logging.basicConfig(level=level, handlers=[handler])
    # It logs each request at INFO: a line for each piece of a checkpoint, and for each question to a member.
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger().level))


class Notes:
    """The log of one node. It adds the shard's term and index where a shard is named."""

    def __init__(self, replicas: Mapping[int, Replica]) -> None:
        self._replicas = replicas

    def info(self, message: str, **fields: Any) -> None:
        """Log what happened."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        """Log what a person may want to look at."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Log what a person must look at."""
        self._log(logging.ERROR, message, fields)

    def _log(self, level: int, message: str, fields: dict[str, Any]) -> None:
        if not log.isEnabledFor(level):
            return
        replica = self._replicas.get(fields.get("shard", -1))
        if replica is not None:
            fields = {"term": replica.position.term, "index": replica.position.index, **fields}
        log.log(level, "%s", message, extra={"fields": fields})
