"""The states of a diff job, and what leads from one to another.

========== ========= ========== ========= =========
state      on_start  on_cancel  on_finish on_fail
========== ========= ========== ========= =========
QUEUED     RUNNING   CANCELLED            FAILED
RUNNING              CANCELLING DONE      FAILED
CANCELLING           CANCELLING CANCELLED CANCELLED
DONE                                      FAILED
FAILED                          FAILED    FAILED
CANCELLED            CANCELLED            CANCELLED
========== ========= ========== ========= =========

An empty field: the event is refused. A job that is DONE fails when a snapshot of it is deleted: its entries then
describe what nobody can look at any more. One that fails so while it runs takes the end of its run, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class JobState(Enum):
    """What a job is doing."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    """It was told to stop, and has not noticed yet."""
    DONE = "DONE"
    """Its entries can be read."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class JobEvent(Enum):
    """What happens to a job."""

    START = "on_start"
    CANCEL = "on_cancel"
    FINISH = "on_finish"
    FAIL = "on_fail"


TABLE: Mapping[JobState, Mapping[JobEvent, JobState]] = {
    JobState.QUEUED: {
        JobEvent.START: JobState.RUNNING,
        JobEvent.CANCEL: JobState.CANCELLED,
        JobEvent.FAIL: JobState.FAILED,
    },
    JobState.RUNNING: {
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.FINISH: JobState.DONE,
        JobEvent.FAIL: JobState.FAILED,
    },
    JobState.CANCELLING: {
        JobEvent.CANCEL: JobState.CANCELLING,
        JobEvent.FINISH: JobState.CANCELLED,
        JobEvent.FAIL: JobState.CANCELLED,
    },
    JobState.DONE: {JobEvent.FAIL: JobState.FAILED},
    JobState.FAILED: {JobEvent.FINISH: JobState.FAILED, JobEvent.FAIL: JobState.FAILED},
    JobState.CANCELLED: {JobEvent.CANCEL: JobState.CANCELLED, JobEvent.FAIL: JobState.CANCELLED},
}

UNFINISHED = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING})
"""States of jobs that will be in another state soon."""


class RefusedEvent(Exception):
    """The event cannot happen in the job's state."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """Return the state that an event leads to; raises RefusedEvent.

    >>> next_state(JobState.RUNNING, JobEvent.CANCEL).name
    'CANCELLING'
    """
    found = TABLE[state].get(event)
    if found is None:
        raise RefusedEvent(f"a job that is {state.value} takes no {event.value}")
    return found
