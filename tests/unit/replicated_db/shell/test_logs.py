"""Log lines: JSON for programs, plain at a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.shell import logs


def written(log_format: str, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        root = logging.getLogger()
        patch.setattr(root, "handlers", [])
        patch.setattr(root, "level", root.level)
        logs.configure("om1", "INFO", log_format, stream)
        logs.Notes({}).info('shard 1: "quoted" 100 %', shard=1, offset=7)
        logging.getLogger("other").debug("not logged")
    return stream.getvalue()


def test_json_lines_have_the_events_fields():
    line = json.loads(written("auto"))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO", "logger": "stratolog.node", "node": "om1", "message": 'shard 1: "quoted" 100 %', "shard": 1, "offset": 7,
    }  # fmt: skip


def test_a_person_at_a_terminal_reads_text():
    for text in (written("plain"), written("auto", terminal=True)):
        assert text.endswith('om1 INFO stratolog.node: shard 1: "quoted" 100 %\n')
    assert written("json", terminal=True).startswith("{")


def test_a_traceback_is_a_field():
    formatter = logs.JsonLines("om1")
    try:
        raise ValueError("bad")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    text = formatter.format(record)
    assert "\n" not in text
    assert "ValueError: bad" in json.loads(text)["traceback"]


def test_a_note_about_a_shard_says_where_the_shard_is(caplog: pytest.LogCaptureFixture):
    position: Any = SimpleNamespace(term=3, index=17)
    replicas: Any = {1: SimpleNamespace(position=position)}
    notes = logs.Notes(replicas)
    with caplog.at_level(logging.WARNING):
        notes.info("not heard", shard=1)
        notes.warning("one", shard=1, offset=5)
        notes.warning("two", shard=2)
        notes.warning("three", shard=1, term=9)
    assert [(one.levelname, one.getMessage(), one.__dict__["fields"]) for one in caplog.records] == [
        ("WARNING", "one", {"term": 3, "index": 17, "shard": 1, "offset": 5}), ("WARNING", "two", {"shard": 2}),
        ("WARNING", "three", {"term": 9, "index": 17, "shard": 1}),
    ]  # fmt: skip
