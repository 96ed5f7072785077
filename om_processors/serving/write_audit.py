"""Write-audit lines: each request, its sender and its result; on the leader, after the batch's answers have left.

One JSON object a line: ``time``, ``node``, ``shard``, ``term``, ``index``, ``client``, ``call``, ``user``, ``type``,
the names that the request is about, ``result``. The lines have a file of their own, of bounded size (MAX_FILE_BYTES,
KEPT_FILES old ones). The lines of a batch are written together; the setting ``write_audit`` switches them on. A leader
that dies or is deposed between append and answer writes no line for its batches in flight. The log is the complete
record; this file is a readable excerpt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from om_processors.serving.request_metrics import executed, status_of
from replicated_db.core.leading.leader import Effective
from schemas.records.messages import Request

FILE_NAME = "write-audit.log"
MAX_FILE_BYTES = 64 * 1024 * 1024
KEPT_FILES = 4
"""Most old files that are kept beside the current one."""

NAMES = ("volume", "bucket", "key", "from_key", "to_key", "snapshot", "to", "shard", "node", "checkpoint", "level")
"""Fields of request bodies that name the request's objects."""


class WriteAudit:
    """The lines of one node."""

    def __init__(self, node: str, folder: Path) -> None:
        self._node = node
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = RotatingFileHandler(
            folder / FILE_NAME, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8"
        )

    def write(self, shard: int, effective: Effective, now_ms: int) -> None:
        """Write the lines of a batch; several shards' threads call it."""
        lines = "\n".join(self._lines(shard, effective, now_ms))
        if lines:
            record = logging.LogRecord("stratolog.write_audit", logging.INFO, "", 0, lines, None, None)
            self._handler.handle(record)

    def _lines(self, shard: int, effective: Effective, now_ms: int) -> Iterator[str]:
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        for index, reply in executed(effective):
            request: Request = reply.proposal.body
            yield json.dumps(
                {
                    "time": time, "node": self._node, "shard": shard, "term": effective.record.term, "index": index,
                    "client": request.client_id.hex(), "call": request.call_id, "user": request.caller,
                    "type": type(request.body).__name__, **_names(request.body), "result": status_of(reply.response),
                },
                ensure_ascii=False,
            )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def _names(body: object) -> dict[str, Any]:
    return {name: getattr(body, name) for name in NAMES if hasattr(body, name)}
