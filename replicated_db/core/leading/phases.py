"""The phases of a leader, and the events that are legal in each: one table that the leader follows.

A leader builds one batch at a time, of one of two kinds. A batch of operations is executed on the leader's rows. Logged
requests change those rows only when they are applied, so a batch of operations waits until all logged requests have
settled. A batch of requests may be logged at any time, after whatever has been executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class LeaderPhase(Enum):
    """What a leader is doing."""

    # A member is one object, so it may be hashed as one: an Enum's own hash is a function in Python.
    __hash__ = object.__hash__

    IDLE = "nothing is being built, and no logged requests are in flight"
    EXECUTING = "a batch of operations is being built"
    LOGGING = "a batch of requests is being built"
    SETTLING = "nothing is being built; logged requests are in flight"
    DEPOSED = "nothing may be appended any more"


class LeaderEvent(Enum):
    """What happens to a leader."""

    __hash__ = object.__hash__

    EXECUTE = "a proposal is put into a batch of operations"
    LOG = "a proposal is put into a batch of requests"
    SEAL = "what is being built is appended"
    STAND_ALONE = "a record that holds no proposal is appended"
    SETTLED = "no logged requests are in flight any more"
    FAILED = "an append has failed, or its outcome is unknown"


class Wait(Enum):
    """What must happen first, so that an event becomes legal."""

    SEAL = "the batch being built must be sealed first"
    SETTLE = "what is in flight must have settled first"


_DEPOSED = dict.fromkeys((LeaderEvent.SETTLED, LeaderEvent.FAILED), LeaderPhase.DEPOSED)

TRANSITIONS: Mapping[LeaderPhase, Mapping[LeaderEvent, LeaderPhase | Wait]] = {
    LeaderPhase.IDLE: {
        LeaderEvent.EXECUTE: LeaderPhase.EXECUTING,
        LeaderEvent.LOG: LeaderPhase.LOGGING,
        LeaderEvent.SEAL: LeaderPhase.IDLE,
        LeaderEvent.STAND_ALONE: LeaderPhase.IDLE,
        LeaderEvent.FAILED: LeaderPhase.DEPOSED,
    },
    LeaderPhase.EXECUTING: {
        LeaderEvent.EXECUTE: LeaderPhase.EXECUTING,
        LeaderEvent.LOG: Wait.SEAL,
        LeaderEvent.SEAL: LeaderPhase.IDLE,
        LeaderEvent.STAND_ALONE: Wait.SEAL,
        LeaderEvent.FAILED: LeaderPhase.DEPOSED,
    },
    LeaderPhase.LOGGING: {
        LeaderEvent.EXECUTE: Wait.SEAL,
        LeaderEvent.LOG: LeaderPhase.LOGGING,
        LeaderEvent.SEAL: LeaderPhase.SETTLING,
        LeaderEvent.STAND_ALONE: Wait.SEAL,
        LeaderEvent.SETTLED: LeaderPhase.LOGGING,
        LeaderEvent.FAILED: LeaderPhase.DEPOSED,
    },
    LeaderPhase.SETTLING: {
        LeaderEvent.EXECUTE: Wait.SETTLE,
        LeaderEvent.LOG: LeaderPhase.LOGGING,
        LeaderEvent.SEAL: LeaderPhase.SETTLING,
        LeaderEvent.STAND_ALONE: LeaderPhase.SETTLING,
        LeaderEvent.SETTLED: LeaderPhase.IDLE,
        LeaderEvent.FAILED: LeaderPhase.DEPOSED,
    },
    LeaderPhase.DEPOSED: _DEPOSED,
}
"""The phase after each legal event, or what the event must wait for. An event that is not listed is illegal."""
