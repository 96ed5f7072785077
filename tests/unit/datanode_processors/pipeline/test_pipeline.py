"""What a pipeline does without a log: where no thread can be started to lead it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from datanode_processors.pipeline.core.election import Silence
from datanode_processors.pipeline.pipeline import Pipeline


class Unstartable(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_leader_whose_thread_cannot_be_started_is_tried_again_after_as_much_silence() -> None:
    silence = Silence(0, 0)
    assert silence.look(1, 0) == 1
    assert silence.look(500, 0) > 0
    notes: list[str] = []
    pipeline: Any = SimpleNamespace(
        _silence=silence, _note=lambda text, **_: notes.append(text), partition=3, opened=SimpleNamespace(pipeline="p")
    )
    assert Pipeline._started(pipeline, Unstartable()) is None
    assert silence.ms == 0
    assert notes == ["p: not led here now: can't start new thread"]
    done = threading.Event()
    thread = Pipeline._started(pipeline, threading.Thread(target=done.set, daemon=True))
    assert thread is not None
    assert done.wait(30)
