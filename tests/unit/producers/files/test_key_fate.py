"""The fate of a key that is written: every fate and event, what a call gets in each, and when another block is tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from producers.errors import (
    ClientClosed,
    DatanodeError,
    NotFound,
    OutcomeUnknown,
    RetryableError,
    StratologError,
)
from producers.files.core.failed_blocks import (
    MAX_FAILED_BLOCKS,
    MIN_FAILED_BLOCKS,
    FailedBlocks,
    KeyGivesUp,
    TryAnotherBlock,
)
from producers.files.core.key_fate import FATES, FateEvent, FateOfKey, KeyFate
from schemas.transitions import NoSuchTransition

F, E = KeyFate, FateEvent
WRONG = NoSuchTransition
FIRST = DatanodeError("TIMED_OUT", "the first", datanode="dn1")
SECOND = NotFound("KEY_NOT_FOUND", "the second")
ANSWER = NotFound("BUCKET_NOT_FOUND", "the answer")

STEPS: dict[FateEvent, Callable[[FateOfKey], None]] = {
    E.COMMIT_SENT: lambda fate: fate.on_commit_sent(),
    E.COMMIT_TAKEN: lambda fate: fate.on_commit_taken(),
    E.COMMIT_REFUSED: lambda fate: fate.on_commit_refused(ANSWER),
    E.PUT_ELSEWHERE: lambda fate: fate.on_put_elsewhere(),
    E.FAILED: lambda fate: fate.on_failure(SECOND),
    E.ABORTED: lambda fate: fate.on_abort(),
}
WAYS: dict[KeyFate, tuple[FateEvent, ...]] = {
    F.WRITING: (),
    F.COMMITTING: (E.COMMIT_SENT,),
    F.COMMITTED: (E.COMMIT_SENT, E.COMMIT_TAKEN),
    F.ABORTED: (E.ABORTED,),
    F.FAILED: (E.FAILED,),
    F.COMMIT_FAILED: (E.COMMIT_SENT, E.COMMIT_REFUSED),
    F.UNKNOWN: (E.COMMIT_SENT, E.FAILED),
}
EXPECTED: dict[KeyFate, dict[FateEvent, KeyFate | type[Exception]]] = {
    F.WRITING: {
        E.COMMIT_SENT: F.COMMITTING, E.COMMIT_TAKEN: WRONG, E.COMMIT_REFUSED: WRONG, E.FAILED: F.FAILED,
        E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: WRONG,
    },
    F.COMMITTING: {
        E.COMMIT_SENT: WRONG, E.COMMIT_TAKEN: F.COMMITTED, E.COMMIT_REFUSED: F.COMMIT_FAILED, E.FAILED: F.UNKNOWN,
        E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: F.WRITING,
    },
    F.COMMITTED: {
        E.COMMIT_SENT: ClientClosed, E.COMMIT_TAKEN: WRONG, E.COMMIT_REFUSED: WRONG, E.FAILED: F.COMMITTED,
        E.ABORTED: F.COMMITTED, E.PUT_ELSEWHERE: WRONG,
    },
    F.ABORTED: {
        E.COMMIT_SENT: ClientClosed, E.COMMIT_TAKEN: F.COMMITTED, E.COMMIT_REFUSED: F.ABORTED, E.FAILED: F.ABORTED,
        E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: F.ABORTED,
    },
    F.FAILED: {
        E.COMMIT_SENT: DatanodeError, E.COMMIT_TAKEN: WRONG, E.COMMIT_REFUSED: WRONG, E.FAILED: F.FAILED,
        E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: WRONG,
    },
    F.COMMIT_FAILED: {
        E.COMMIT_SENT: NotFound, E.COMMIT_TAKEN: WRONG, E.COMMIT_REFUSED: WRONG, E.FAILED: F.COMMIT_FAILED,
        E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: WRONG,
    },
    F.UNKNOWN: {
        E.COMMIT_SENT: OutcomeUnknown, E.COMMIT_TAKEN: F.COMMITTED, E.COMMIT_REFUSED: F.COMMIT_FAILED,
        E.FAILED: F.UNKNOWN, E.ABORTED: F.ABORTED, E.PUT_ELSEWHERE: F.FAILED,
    },
}  # fmt: skip


def fate_in(fate: KeyFate, first: BaseException = FIRST) -> FateOfKey:
    made = FateOfKey("/v/b/k")
    for event in WAYS[fate]:
        if event is E.FAILED:
            made.on_failure(first)
        else:
            STEPS[event](made)
    assert made.now is fate
    return made


@pytest.mark.parametrize("event", FateEvent)
@pytest.mark.parametrize("before", KeyFate)
def test_each_event_in_each_fate(before: KeyFate, event: FateEvent) -> None:
    fate = fate_in(before)
    expected = EXPECTED[before][event]
    if isinstance(expected, KeyFate):
        STEPS[event](fate)
        assert fate.now is expected
        assert FATES[before][event] is expected
        return
    with pytest.raises(expected):
        STEPS[event](fate)
    assert fate.now is before
    assert event not in FATES[before]


@pytest.mark.parametrize(
    ("fate", "kind", "words"),
    [
        (F.COMMITTED, ClientClosed, "/v/b/k is closed"),
        (F.ABORTED, ClientClosed, "/v/b/k is closed"),
        (F.FAILED, DatanodeError, "/v/b/k is not committed, because writing it failed: .*the first"),
        (F.COMMIT_FAILED, NotFound, "the answer"),
        (F.UNKNOWN, OutcomeUnknown, "/v/b/k may be committed: CommitKey was not waited for: .*the first"),
    ],
)
def test_what_a_call_gets(fate: KeyFate, kind: type[StratologError], words: str) -> None:
    made = fate_in(fate)
    assert made.ended is (fate in (F.COMMITTED, F.ABORTED))
    assert made.failed is not made.ended
    for _ in range(2):
        error = made.refusal()
        assert type(error) is kind
        with pytest.raises(kind, match=words):
            raise error
        assert error.__cause__ is (FIRST if fate in (F.FAILED, F.UNKNOWN) else None)


@pytest.mark.parametrize("fate", [F.WRITING, F.COMMITTING])
def test_a_call_goes_on(fate: KeyFate) -> None:
    made = fate_in(fate)
    assert made.refusal() is None
    assert not made.ended
    assert not made.failed


@pytest.mark.parametrize("first", [KeyboardInterrupt(), ValueError("odd")])
def test_whatever_failed_the_caller_may_write_the_key_anew(first: BaseException) -> None:
    error = fate_in(F.FAILED, first).refusal()
    assert type(error) is RetryableError
    assert repr(first) in str(error) or str(first) in str(error)


def test_the_first_failure_is_the_one_that_is_told() -> None:
    fate = fate_in(F.FAILED)
    fate.on_failure(SECOND)
    error = fate.refusal()
    assert error is not None
    assert error.__cause__ is FIRST


def test_what_the_commit_ends_with_is_the_last_word() -> None:
    fate = fate_in(F.UNKNOWN)
    fate.on_commit_refused(ANSWER)
    assert fate.refusal() is ANSWER


# ------------------------------------------------------------------------------------------------ blocks that failed

TIMEOUT_MS = 1_000


def verdicts(seconds: list[float]) -> list[KeyGivesUp | TryAnotherBlock]:
    """Return what is said of blocks that failed one after the other, each salvaged at one of these times."""
    blocks = FailedBlocks(TIMEOUT_MS)
    found = []
    for number, at_s in enumerate(seconds):
        blocks.on_failed(at_s)
        found.append(blocks.on_salvaged(at_s, f"pipeline-{number % 3}", kept=False))
    assert blocks.total == len(seconds)
    return found


def test_blocks_that_fail_at_once_are_tried_until_they_are_too_many() -> None:
    found = verdicts([0.0] * MAX_FAILED_BLOCKS)
    pauses = [0.0, 0.2, 0.4, 0.8, 1.6, *[2.0] * (MAX_FAILED_BLOCKS - 6)]
    assert found == [*map(TryAnotherBlock, pauses), KeyGivesUp()]


def test_blocks_that_take_long_to_fail_are_tried_until_it_took_too_long() -> None:
    assert MIN_FAILED_BLOCKS == 3
    assert isinstance(verdicts([0.0, 100.0])[-1], TryAnotherBlock)
    assert isinstance(verdicts([0.0, 1.0, 1.999])[-1], TryAnotherBlock)
    assert verdicts([0.0, 1.0, 2.0])[-1] == KeyGivesUp()


def test_a_block_that_ends_well_begins_the_row_anew() -> None:
    blocks = FailedBlocks(TIMEOUT_MS)
    for _ in range(3 * MAX_FAILED_BLOCKS):
        blocks.on_failed(0.0)
        assert blocks.on_salvaged(0.0, "pipeline-1", kept=False) == TryAnotherBlock(0)
        blocks.on_ended_well()
    assert blocks.total == 3 * MAX_FAILED_BLOCKS
    assert blocks.excluded == ["pipeline-1"]
    blocks.on_nothing_else()
    assert blocks.excluded == []


def test_a_failed_block_that_kept_bytes_begins_the_row_anew() -> None:
    """A key whose blocks all fail, but of which each keeps something, is written to its end."""
    blocks = FailedBlocks(TIMEOUT_MS)
    for number in range(3 * MAX_FAILED_BLOCKS):
        blocks.on_failed(float(number))
        assert blocks.on_salvaged(float(number), "pipeline-1", kept=True) == TryAnotherBlock(0)
    at_s = float(3 * MAX_FAILED_BLOCKS)
    found = []
    for _ in range(MAX_FAILED_BLOCKS - 1):
        blocks.on_failed(at_s)
        found.append(blocks.on_salvaged(at_s, "pipeline-1", kept=False))
    assert all(isinstance(verdict, TryAnotherBlock) for verdict in found[:2])
    assert found[-1] == KeyGivesUp(), "the last block that kept something counts as the first of its row"
