"""The book of windows in a file, so that a restart goes on with the windows that were open."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from spark_streaming.windows.core.window_book import Amounts, RowKey, StreamWindows, WindowBook, WindowStream
from transport.files.durable_files import write_durably

log = logging.getLogger("stratolog.audit")


def save(book: WindowBook, path: Path) -> None:
    """Replace the file as a whole."""
    document = {
        "window_ms": book.window_ms,
        "batch_id": book.batch_id,
        "streams": [[*stream, held.newest_ms, held.late, _windows(held)] for stream, held in book],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(document), aside=path.with_suffix(".tmp"))


def load(path: Path, window_ms: int) -> WindowBook:
    """Return the book in the file, an empty one if there is no file.

    Windows of another length are left out: they are as full as they will be. A file that cannot be read as a book (it
    is empty or torn, after a loss of power) is put aside: windows that were open then have less than there was.
    """
    book = WindowBook(window_ms)
    if not path.exists():
        return book
    try:
        return _read(json.loads(path.read_text()), window_ms)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        log.warning("%s holds no windows (%r) and is %s now: windows begin anew", path, error, aside.name)
        return book


def _read(document: Any, window_ms: int) -> WindowBook:
    book = WindowBook(window_ms)
    book.batch_id = document["batch_id"]
    for log, shard, source, newest_ms, late, windows in document["streams"]:
        held = StreamWindows(newest_ms=newest_ms, late=late)
        if document["window_ms"] == window_ms:
            held.windows = {start_ms: dict(map(_row, rows)) for start_ms, rows in windows}
        book.streams[WindowStream(log, shard, source)] = held
    return book


def _windows(held: StreamWindows) -> list[Any]:
    return [
        [start_ms, [[*row, one.count, one.total, one.greatest, list(one.buckets.items())] for row, one in rows.items()]]
        for start_ms, rows in held.windows.items()
    ]


def _row(values: list[Any]) -> tuple[RowKey, Amounts]:
    metric, kind, status, count, total, greatest, buckets = values
    amounts = Amounts(count=count, total=total, greatest=greatest, buckets=dict(buckets))
    return RowKey(metric, kind, status), amounts
