"""One file of an ingest: every event in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from producers.bulk.core.file_ingest import (
    CommitFile,
    FileEnded,
    FileEvent,
    FileIngest,
    FileState,
    FileStep,
    OpenFile,
)
from schemas.transitions import NoSuchTransition

EVENTS: dict[FileEvent, Callable[[FileIngest], FileStep]] = {
    FileEvent.BEGUN: lambda file: file.begin(),
    FileEvent.OPENED: lambda file: file.on_opened(7, []),
    FileEvent.TAKEN: lambda file: file.on_committed(),
    FileEvent.REFUSED: lambda file: file.on_refused("NO", "why"),
}
WAYS = {
    FileState.WAITING: (),
    FileState.OPENING: (FileEvent.BEGUN,),
    FileState.COMMITTING: (FileEvent.BEGUN, FileEvent.OPENED),
    FileState.COMMITTED: (FileEvent.BEGUN, FileEvent.OPENED, FileEvent.TAKEN),
    FileState.FAILED: (FileEvent.BEGUN, FileEvent.REFUSED),
}
EXPECTED: dict[tuple[FileState, FileEvent], tuple[FileStep, FileState]] = {
    (FileState.WAITING, FileEvent.BEGUN): (OpenFile(), FileState.OPENING),
    (FileState.OPENING, FileEvent.OPENED): (CommitFile(7, []), FileState.COMMITTING),
    (FileState.OPENING, FileEvent.REFUSED): (FileEnded("NO", "why"), FileState.FAILED),
    (FileState.COMMITTING, FileEvent.TAKEN): (FileEnded(None), FileState.COMMITTED),
    (FileState.COMMITTING, FileEvent.REFUSED): (FileEnded("NO", "why"), FileState.FAILED),
}


@pytest.mark.parametrize("event", FileEvent)
@pytest.mark.parametrize("state", FileState)
def test_each_event_in_each_state(state: FileState, event: FileEvent) -> None:
    file = FileIngest()
    for step in WAYS[state]:
        EVENTS[step](file)
    assert file.state is state
    if (state, event) in EXPECTED:
        assert (EVENTS[event](file), file.state) == EXPECTED[state, event]
        return
    with pytest.raises(NoSuchTransition, match=rf"{event.name} cannot happen in FileState\.{state.name}"):
        EVENTS[event](file)
    assert file.state is state
