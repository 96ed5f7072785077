"""A client that writes keys with many requests in flight, and takes note of each of them before and after.

One writer serves every load: two keys at a time in a drill, hundreds in a campaign's client process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from producers.client import Client
from producers.errors import OutcomeUnknown, StratologError
from producers.requests.core.calls import Outcome
from producers.requests.keys import fit_blocks, session_of
from schemas.records.messages import CommitKey, CreateKey, DeleteKey, KeySession, PutKey, RequestBody, Response
from stratolog.drills.kit.core.journal import CHAINS, COMMIT, CREATE, DELETE, Journal, data_of, key_of, size_of
from stratolog.drills.kit.journal_file import JournalFile
from transport.waiting.deadline import Deadline

IDLE_S = 0.05
"""How often a writer that waits for room looks whether it is to stop."""


class ChainWriter:
    """Keys one after the other in ``in_flight`` chains of requests; ``chains``: the steps of a key, by its number."""

    def __init__(
        self, client: Client, notes: Journal | JournalFile, *, volume: str, bucket: str, in_flight: int, chains: Sequence[str] = CHAINS
    ) -> None:  # fmt: skip
        self._client = client
        self._notes = notes
        self._place = (volume, bucket)
        self._in_flight = in_flight
        self._chains = chains
        self._name = client.client_id.hex()
        self._room = threading.Semaphore(in_flight)
        self.stop = threading.Event()

    def run(self, keys_per_s: float) -> None:
        """Write until told to stop, at most so many keys a second (0: as fast as they are answered).

        Returns when everything that was in flight has its outcome.
        """
        number, due = 0, Deadline.after_s(0)
        while not self.stop.is_set():
            if not self._room.acquire(timeout=IDLE_S):
                continue
            number += 1
            self._go_on(number, self._chains[number % len(self._chains)], None)
            if keys_per_s:
                due = Deadline(max(due.at_s + 1 / keys_per_s, time.monotonic() - 1))
                self.stop.wait(due.left_s)
        for _ in range(self._in_flight):
            self._room.acquire()

    def _go_on(self, number: int, steps: str, session: KeySession | None) -> None:
        """Do the rest of a key's steps; ``session`` is what the last one has opened."""
        if not steps:
            self._room.release()
            return
        step, rest = steps[0], steps[1:]

        def then(response: Response) -> None:
            self._go_on(number, rest, session_of(response) if step == CREATE else None)

        self._send(key_of(self._name, number), step, self._body(number, step, session), then)

    def _body(self, number: int, step: str, session: KeySession | None) -> RequestBody:
        (volume, bucket), key = self._place, key_of(self._name, number)
        if step == CREATE:
            return CreateKey(volume=volume, bucket=bucket, key=key, size=size_of(number))
        if step == DELETE:
            return DeleteKey(volume=volume, bucket=bucket, key=key)
        data = data_of(self._name, number, step)
        if data is not None:
            return PutKey(volume=volume, bucket=bucket, key=key, data=data)
        if session is None:
            raise ValueError(f"{step} of key {number} does not follow {CREATE}")
        return commit_of(self._place, key, size_of(number, COMMIT), session)

    def _send(self, key: str, step: str, body: RequestBody, then: Callable[[Response], None]) -> None:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Response):
                note_ack(self._notes, key, step, outcome)
                then(outcome)
                return
            note = self._notes.on_unknown if isinstance(outcome, OutcomeUnknown) else self._notes.on_refused
            note(key, step, str(outcome))
            self._room.release()

        self._notes.on_tried(key, step)
        try:
            self._client.submit_with(body, done)
        except StratologError as error:
            done(error)


def note_ack(notes: Journal | JournalFile, key: str, step: str, response: Response) -> None:
    """Take note of an acknowledgement, now."""
    at_ms = time.monotonic_ns() // 1_000_000
    notes.on_acknowledged(key, step, call_id=response.call_id, index=response.index, at_ms=at_ms)


def commit_of(place: tuple[str, str], key: str, size: int, session: KeySession) -> CommitKey:
    """Return the commit of a key of ``size`` bytes with the blocks of its session; ``place``: volume and bucket."""
    return CommitKey(
        volume=place[0], bucket=place[1], key=key, session_id=session.session_id, size=size,
        blocks=fit_blocks(session.blocks, size),
    )  # fmt: skip
