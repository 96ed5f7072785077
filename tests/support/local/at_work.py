"""Loops on threads of their own for the time of a block: loads, readers, and what watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from transport.waiting.deadline import Deadline

HANGS_S = 120.0


@contextmanager
def at_work(*loops: Callable[[Event], object]) -> Iterator[None]:
    """Have each loop run on a thread until the end of the block, when the event that it gets is set.

    Then the first error of a loop is raised; an AssertionError if one does not end.
    """
    ended, errors = Event(), list[BaseException]()

    def guarded(loop: Callable[[Event], object]) -> None:
        try:
            loop(ended)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [Thread(target=guarded, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        deadline = Deadline.after_s(HANGS_S)
        for thread in threads:
            thread.join(deadline.left_s)
        assert not any(thread.is_alive() for thread in threads), "a loop hangs"
    if errors:
        raise errors[0]
