"""One scheduler for everything that runs in a simulated cluster, and simulated time.

A task is a greenlet: real shell code (``LeaderLoop``, ``Follower``) that would run on a thread of its own. It gives way only in a port
call (:meth:`Scheduler.wait`), so between two port calls a step is atomic, and whoever picks the next task decides every interleaving. Nothing
here knows randomness: the pick comes in as a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

MAX_IDLE_MS = 60_000
"""With nothing runnable, time goes on to the next deadline by itself, but not over a longer silence."""


class Killed(BaseException):
    """The process of this task has crashed: thrown where it waits."""


class Task:
    """Code of one process. ``owner`` says whether it may run (a paused process does not)."""

    __slots__ = ("_body", "crashed", "done", "dying", "error", "glet", "name", "owner", "ready", "wake_ms")

    def __init__(self, hub: Any, owner: Any, name: str, body: Callable[[], None]) -> None:
        self.owner = owner
        self.name = name
        self.error: BaseException | None = None
        self.done = False
        self.dying = False
        self.crashed = False
        self.ready: Callable[[], Any] | None = None
        self.wake_ms = 0
        self._body = body
        self.glet = greenlet(self._run, parent=hub)

    def _run(self) -> None:
        try:
            self._body()
        except Killed:
            self.crashed = not self.dying
        except BaseException as error:  # judged by whoever resumed the task
            self.error = error
        self.done = True


class Scheduler:
    """Tasks, and the time that they share."""

    def __init__(self) -> None:
        self.hub = getcurrent()
        self.now_ms = 1_000
        self.tasks: list[Task] = []
        self.current: Task | None = None

    def start(self, owner: Any, name: str, body: Callable[[], None]) -> Task:
        """Add a task; it runs when it is picked."""
        task = Task(self.hub, owner, name, body)
        self.tasks.append(task)
        return task

    def wait(self, ready: Callable[[], Any] | None = None, wait_ms: float = 0) -> None:
        """Give way; come back when ``ready`` holds or ``wait_ms`` have passed."""
        task = self.current
        if task is None:
            return
        if task.dying:
            raise Killed
        task.ready = ready
        task.wake_ms = self.now_ms + int(wait_ms)
        self.hub.switch()
        if task.dying:
            raise Killed

    def resume(self, task: Task) -> None:
        """Let a task run to its next port call."""
        self.current = task
        try:
            task.glet.switch()
        finally:
            self.current = None
        if task.done:
            self.tasks.remove(task)

    def kill(self, task: Task) -> None:
        """End a task where it waits."""
        task.dying = True
        if task.glet:
            previous, self.current = self.current, task
            try:
                task.glet.throw(Killed)
            finally:
                self.current = previous
        task.done = True
        if task in self.tasks:
            self.tasks.remove(task)

    def pick(self, number: int) -> Task | None:
        """Return a runnable task, after letting idle time pass if there is none; None if all wait for something else."""
        awake = [task for task in self.tasks if task.owner.running]
        found = self._runnable(awake)
        if not found and awake:
            next_ms = min(task.wake_ms for task in awake)
            if next_ms <= self.now_ms + MAX_IDLE_MS:
                self.now_ms = next_ms
                found = self._runnable(awake)
        return found[number % len(found)] if found else None

    def _runnable(self, awake: list[Task]) -> list[Task]:
        now_ms = self.now_ms
        return [task for task in awake if task.wake_ms <= now_ms or (task.ready is not None and task.ready())]

    def close(self) -> None:
        """End all tasks."""
        for task in list(self.tasks):
            self.kill(task)
