"""What is done when a stream fails: every status in the first state, every event in every state, and who is blamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from producers.blocks.core.stream_recovery import (
    MAX_FUTILE_RESUMES,
    PASSING_BELOW,
    PAUSE_MS,
    STATUSES,
    STRIKES,
    AskWhere,
    ErrorKind,
    GiveUp,
    Probe,
    RecoveryState,
    Resume,
    StreamRecovery,
    kind_of,
)
from producers.errors import UNREACHABLE, DatanodeError
from schemas import stream_errors
from schemas.transitions import NoSuchTransition

NAMES = ("dn1", "dn2", "dn3")
STATUSES_OF_ALL = sorted(
    {UNREACHABLE} | {value for name, value in vars(stream_errors).items() if name.isupper() and name == value}
)


def recovery(failing: set[str] | None = None) -> StreamRecovery:
    """Return the recovery of a block whose stream goes to dn1, and from there to the others."""
    made = StreamRecovery(NAMES, 2, set() if failing is None else failing)
    made.on_began("dn1", NAMES)
    return made


def error(status: str, datanode: str = "", hint: str = "") -> DatanodeError:
    return DatanodeError(status, "as if", datanode=datanode, hint=hint)


EXPECTED = {
    ErrorKind.OF_THE_BLOCK: ["BLOCK_DELETED", "CHECKSUM_MISMATCH", "CONTAINER_CLOSED", "INVALID_REQUEST", "PIPELINE_CLOSED"],
    ErrorKind.LEADER_CHANGED: ["NOT_LEADER"],
    ErrorKind.SILENT: ["TIMED_OUT"],
    ErrorKind.UNREACHABLE: ["UNREACHABLE"],
    ErrorKind.BELOW: ["DOWNSTREAM_FAILED"],
    ErrorKind.PASSING: [
        "BAD_FRAME", "BLOCK_TOKEN_EXPIRED", "BLOCK_TOKEN_INVALID", "BLOCK_TOKEN_KEY_UNKNOWN", "BLOCK_TOKEN_MISSING",
        "OVERLOADED", "STOPPING",
    ],
    ErrorKind.LASTING: [
        "DISK_FULL", "FAILED", "NOT_COMMITTED", "NO_SUCH_BLOCK", "NO_SUCH_PIPELINE", "OUT_OF_ORDER", "PERMISSION_DENIED",
        "UNSUPPORTED_VERSION", "WRONG_CLUSTER",
    ],
}  # fmt: skip


def test_each_status_is_taken_as_is_meant() -> None:
    found: dict[ErrorKind, list[str]] = {kind: [] for kind in ErrorKind}
    for status in STATUSES_OF_ALL:
        found[kind_of(error(status))].append(status)
    assert found == EXPECTED
    assert set(STATUSES) <= set(STATUSES_OF_ALL)


@pytest.mark.parametrize("status", STATUSES_OF_ALL)
def test_only_what_concerns_the_block_gives_it_up_at_once(status: str) -> None:
    made = recovery()
    step = made.on_failed(error(status, "dn2"), progress=True)
    if status in EXPECTED[ErrorKind.OF_THE_BLOCK]:
        assert step == GiveUp()
        assert made.state is RecoveryState.GIVEN_UP
    else:
        assert step == AskWhere()
        assert made.state is RecoveryState.ASKING


@pytest.mark.parametrize(
    "status", [status for status in STATUSES_OF_ALL if status not in EXPECTED[ErrorKind.OF_THE_BLOCK]]
)
def test_nobody_is_blamed_when_somebody_has_moved(status: str) -> None:
    failing = {"dn3"}
    made = recovery(failing)
    made.on_failed(error(status, "dn2"), progress=True)
    made.on_moved({"dn2", "dn3"})
    assert made.on_asked(moved=True) == Resume(0)
    assert (failing, made.avoided) == (set(), "")


WHO = {
    ("TIMED_OUT", "dn1"): Probe(NAMES),
    ("TIMED_OUT", ""): Probe(NAMES),
    ("TIMED_OUT", "dn2"): Probe(("dn2",)),
    ("UNREACHABLE", "dn1"): Probe(("dn1",)),
    ("UNREACHABLE", "dn9"): Probe(()),
    ("DOWNSTREAM_FAILED", "dn3"): Probe(("dn3",)),
    ("NOT_LEADER", "dn1"): Resume(0),
    ("STOPPING", "dn1"): Resume(0),
    ("DISK_FULL", "dn1"): Resume(0),
}


@pytest.mark.parametrize(("status", "datanode"), WHO)
def test_who_is_asked_whether_it_is_there(status: str, datanode: str) -> None:
    made = recovery()
    made.on_failed(error(status, datanode), progress=True)
    assert made.on_asked(moved=False) == WHO[status, datanode]
    assert made.avoided == ("dn1" if datanode in ("dn1", "") else "")


def blamed(
    status: str, datanode: str = "dn2", *, hint: str = "", silent: frozenset[str] = frozenset()
) -> list[set[str]]:
    """Return who is failing after each of STRIKES equal errors."""
    failing: set[str] = set()
    made = recovery(failing)
    found = []
    for _ in range(STRIKES):
        made.on_failed(error(status, datanode, hint), progress=True)
        step = made.on_asked(moved=False)
        if isinstance(step, Probe):
            made.on_probed(set(silent))
        found.append(set(failing))
    return found


def test_who_is_believed_and_how_often() -> None:
    never, at_last, at_once = [set[str]()] * STRIKES, [set[str](), set[str](), {"dn2"}], [{"dn2"}] * STRIKES
    assert blamed("NOT_LEADER", hint="dn3") == never
    for status in ("STOPPING", "OVERLOADED", "BAD_FRAME", "TIMED_OUT", "UNREACHABLE"):
        assert blamed(status) == at_last, status
    for status in EXPECTED[ErrorKind.LASTING]:
        assert blamed(status) == at_once, status
    for status in ("TIMED_OUT", "UNREACHABLE", "DOWNSTREAM_FAILED"):
        assert blamed(status, silent=frozenset({"dn2"})) == at_once, status
    for hint in PASSING_BELOW:
        assert blamed("DOWNSTREAM_FAILED", hint=hint) == at_last, hint
    for hint in ("DISK_FULL", "UNREACHABLE", "WRONG_CLUSTER"):
        assert blamed("DOWNSTREAM_FAILED", hint=hint) == at_once, hint


def test_a_changed_leader_is_followed() -> None:
    made = recovery()
    made.on_failed(error("NOT_LEADER", "dn1", hint="dn3"), progress=True)
    made.on_asked(moved=False)
    assert (made.leader_hint, made.avoided) == ("dn3", "dn1")


def test_strikes_are_forgotten_where_a_datanode_has_moved() -> None:
    failing: set[str] = set()
    made = recovery(failing)
    for _ in range(STRIKES - 1):
        made.on_failed(error("STOPPING", "dn2"), progress=True)
        made.on_asked(moved=False)
    made.on_moved({"dn2"})
    for _ in range(STRIKES - 1):
        made.on_failed(error("STOPPING", "dn2"), progress=True)
        made.on_asked(moved=False)
    assert failing == set()


def test_a_block_without_a_majority_is_given_up() -> None:
    failing = {"dn9", "an address"}
    made = recovery(failing)
    made.on_failed(error("DISK_FULL", "dn2"), progress=True)
    assert made.on_asked(moved=False) == Resume(0), "who is no member does not count"
    made.on_failed(error("TIMED_OUT", "dn1"), progress=True)
    made.on_asked(moved=False)
    assert made.on_probed({"dn1"}) == GiveUp()
    assert made.state is RecoveryState.GIVEN_UP


def test_pauses_grow_until_futile_resumes_are_too_many() -> None:
    made = recovery()

    def fail(*, progress: bool) -> Any:
        step = made.on_failed(error("NOT_LEADER"), progress=progress)
        return made.on_asked(moved=False) if step == AskWhere() else step

    futile = [fail(progress=False) for _ in range(MAX_FUTILE_RESUMES)]
    assert futile == [Resume(PAUSE_MS * count) for count in range(1, MAX_FUTILE_RESUMES + 1)]
    assert fail(progress=True) == Resume(0), "progress begins anew"
    for _ in range(MAX_FUTILE_RESUMES):
        assert isinstance(fail(progress=False), Resume)
    assert fail(progress=False) == GiveUp()


def in_state(state: RecoveryState) -> StreamRecovery:
    made = recovery()
    if state is not RecoveryState.STREAMING:
        made.on_failed(error("BLOCK_DELETED" if state is RecoveryState.GIVEN_UP else "TIMED_OUT"), progress=True)
    if state is RecoveryState.PROBING:
        made.on_asked(moved=False)
    assert made.state is state
    return made


EVENTS: dict[str, tuple[Callable[[StreamRecovery], object], set[RecoveryState]]] = {
    "on_failed": (
        lambda made: made.on_failed(error("STOPPING"), progress=True),
        {RecoveryState.STREAMING, RecoveryState.ASKING, RecoveryState.PROBING},
    ),
    "on_asked": (lambda made: made.on_asked(moved=False), {RecoveryState.ASKING}),
    "on_probed": (lambda made: made.on_probed(set()), {RecoveryState.PROBING}),
    "on_moved": (lambda made: made.on_moved({"dn1"}), set(RecoveryState)),
    "on_began": (lambda made: made.on_began("dn2", NAMES), set(RecoveryState)),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", RecoveryState)
def test_each_event_belongs_to_its_states(state: RecoveryState, event: str) -> None:
    """A round whose question raised is forgotten by the next failure; all else in the wrong state is a defect."""
    made = in_state(state)
    tell, allowed = EVENTS[event]
    if state in allowed:
        tell(made)
        return
    with pytest.raises(NoSuchTransition, match=rf"{event} cannot happen in RecoveryState\.{state.name}"):
        tell(made)
    assert made.state is state
