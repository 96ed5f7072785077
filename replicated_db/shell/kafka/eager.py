"""A coroutine that is begun at once, without a task of its own, as Python 3.12's eager tasks are.

Most coroutines of Faust's inner loop end without waiting for anything. A task for each of them, and for each of what
may interrupt it, costs more than all that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine that has run until it waits for something; await this object once to run the rest.

    Raises what the coroutine raises before it waits.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.is_done = False
        """Whether it has ended without waiting; ``result`` is then what it returned."""
        self.result: T | None = None
        self._awaited = self._step(partial(coroutine.send, None))

    def __await__(self) -> Generator[Any, Any, T | None]:
        awaited = self._awaited
        while not self.is_done:
            try:
                heard = yield awaited
            except BaseException as error:
                awaited = self._step(partial(self._coroutine.throw, error))
            else:
                awaited = self._step(partial(self._coroutine.send, heard))
        return self.result

    def _step(self, resume: Callable[[], Any]) -> Any:
        """Run to the next wait; return what is waited for."""
        try:
            return resume()
        except StopIteration as ended:
            self.is_done = True
            self.result = ended.value
