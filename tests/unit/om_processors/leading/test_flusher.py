"""The thread that writes table caches while applying goes on."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

from om_processors.leading.flusher import Flusher
from tests.support.local.waiting import eventually


class Cache:
    """A replica whose cache says when it is filled, and counts how often it is written."""

    def __init__(self, error: Exception | None = None) -> None:
        self.late = SimpleNamespace(on_filled=lambda: None)
        self.flushed = 0
        self.error = error

    def flush_behind(self) -> None:
        if self.error is not None:
            raise self.error
        self.flushed += 1


def made(*caches: Any, fatal: Any = None) -> Flusher:
    return Flusher(caches, 1, fatal or (lambda _: None))


def test_every_cache_is_written_when_one_is_filled():
    caches = Cache(), Cache()

    def written(times: int) -> bool:
        return [one.flushed for one in caches] == [times] * 2

    flusher = made(*caches)
    flusher.start()
    for times in (1, 2):
        caches[1].late.on_filled()
        eventually(partial(written, times))
    flusher.stop()


def test_without_late_validation_it_never_wakes():
    cache = Cache()
    flusher = made(cache)
    flusher.start()
    (thread,) = (one for one in threading.enumerate() if one.name == "flusher")
    assert thread.daemon, "a node that ends by a failure does not wait for it"
    thread.join(0.02)
    assert cache.flushed == 0
    flusher.stop()
    assert not thread.is_alive()


def test_one_that_was_never_started_stops_all_the_same():
    made(Cache()).stop()


def test_a_cache_that_cannot_be_written_ends_the_process():
    """Earlier rows would be missing below later ones."""
    failures: list[BaseException] = []
    broken, other = Cache(OSError("disk")), Cache()
    flusher = made(broken, other, fatal=failures.append)
    flusher.start()
    broken.late.on_filled()
    eventually(lambda: failures)
    assert failures == [broken.error]
    assert other.flushed == 0
    flusher.stop()
