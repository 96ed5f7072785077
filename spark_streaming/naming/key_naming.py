"""Names the keys of the buckets in which a replica differs, beside the audit: a thread that asks the replicas.

A verdict goes out first without keys: no replica may hold it up. What the thread finds is told by the same verdict once
more, with the keys in its ``reason``; a reader takes the last one. Verdicts on the same buckets that follow have the
keys from the start, until the buckets are looked at again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from schemas.records.messages import Difference, Verdict
from schemas.records.verdict_words import DIVERGED
from spark_streaming.naming.core.row_differences import MASK, BucketRows, Look, joined, lasting, look, settled, words
from spark_streaming.naming.replica_rows import NoRows, ReplicaRows

WAITING = 64
"""Most verdicts whose keys are still to be named; of further ones the next verdict on the replica is named."""

NAMED_BUCKETS = 8
"""Most buckets of a verdict whose keys are named; each costs every replica the reading of a column family."""

LOOKS = 4
"""How often replicas are asked that are not at one index."""

LOOK_PAUSE_S = 0.5

AGAIN_SECONDS = 60.0
"""How long what was found of a replica's buckets is repeated before it is looked for again."""

CHANGED_SECONDS = 5.0
"""How long it is repeated if the buckets are the same, and what is wrong in them is not: another key, or a counter."""

KEPT_SUBJECTS = 1_024
"""Most replicas of partitions of which it is remembered what was found."""

STOP_SECONDS = 2.0


log = logging.getLogger("stratolog.audit")


class _Subject(NamedTuple):
    log: str
    shard: int
    node: str


class _Found(NamedTuple):
    slots: frozenset[tuple[str, int]]
    damage: frozenset[tuple[str, int, int]]
    words: str
    at_s: float


class KeyNaming:
    """Takes verdicts from the audit, and hands them back with keys. Call :meth:`start` once, :meth:`stop` at the end.

    ``on_named`` is called on its own thread with each verdict whose keys have been named.
    """

    def __init__(self, rows: ReplicaRows, on_named: Callable[[Verdict], None]) -> None:
        self._rows = rows
        self._on_named = on_named
        self._waiting: queue.Queue[Verdict] = queue.Queue(WAITING)
        self._found: dict[_Subject, _Found] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="key-naming", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Name no more; an answer that is under way is not waited for longer than STOP_SECONDS."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def take(self, verdict: Verdict) -> Verdict:
        """Return a verdict as it may go out now: with the keys, if they are known. Else they are looked for."""
        if verdict.verdict != DIVERGED or not verdict.differences or not self._rows.knows(verdict.log, verdict.node):
            return verdict
        if (known := self._known(verdict)) is not None:
            return _with(verdict, known)
        with suppress(queue.Full):
            self._waiting.put_nowait(verdict)
        return verdict

    def _known(self, verdict: Verdict) -> str | None:
        """Return what was found of a verdict's buckets, None if they are to be looked at."""
        found = self._found.get(_subject(verdict))
        if found is None or found.slots != _slots(verdict):
            return None
        kept_s = AGAIN_SECONDS if found.damage == _damage(verdict) else CHANGED_SECONDS
        return found.words if time.monotonic() - found.at_s < kept_s else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                verdict = self._waiting.get(timeout=LOOK_PAUSE_S)
            except queue.Empty:
                continue
            # Of a replica at a barrier a second several wait while the first is looked at. Each gets the keys: whoever
            # waits for those of one verdict would wait for ever.
            try:
                if (known := self._known(verdict)) is None:
                    self._name(verdict)
                else:
                    self._tell(verdict, known)
            except Exception:  # of one verdict; the next ones are named all the same
                log.exception("the keys of a verdict on %s are not named", verdict.node)

    def _name(self, verdict: Verdict) -> None:
        silent: dict[str, str] = {}
        parts = [self._bucket(verdict, one, silent) for one in verdict.differences[:NAMED_BUCKETS]]
        if verdict.differing_slots > NAMED_BUCKETS:
            parts.append(f"{verdict.differing_slots - NAMED_BUCKETS} buckets more")
        found = joined(parts)
        while len(self._found) >= KEPT_SUBJECTS:
            self._found.pop(next(iter(self._found)))
        self._found[_subject(verdict)] = _Found(_slots(verdict), _damage(verdict), found, time.monotonic())
        self._tell(verdict, found)

    def _tell(self, verdict: Verdict, found: str) -> None:
        if not self._stopping.is_set():
            self._on_named(replace(_with(verdict, found), decided_at_ms=time.time_ns() // 1_000_000))

    def _bucket(self, verdict: Verdict, difference: Difference, silent: dict[str, str]) -> str:
        """Say which keys of a bucket differ, or why nobody knows; nodes in ``silent`` are not asked again."""
        looks: list[Look] = []
        for number in range(LOOKS):
            if number and self._stopping.wait(LOOK_PAUSE_S):
                break
            try:
                looks.append(self._look(verdict, difference, silent))
            except NoRows as error:
                return f"{difference.cf} bucket {difference.bucket}: not known ({error})"
            if (keys := settled(looks)) is not None:
                return words(difference, keys)
        return words(difference, lasting(looks))

    def _look(self, verdict: Verdict, difference: Difference, silent: dict[str, str]) -> Look:
        """Ask all replicas once; raises NoRows if the one that differs does not answer, or none of the others."""
        found: dict[str, BucketRows] = {}
        for node in (verdict.node, *self._rows.others(verdict.log, verdict.node)):
            try:
                if node not in silent:
                    found[node] = self._rows.ask(verdict.log, node, verdict.shard, difference)
            except NoRows as error:
                silent[node] = str(error)
        own = found.pop(verdict.node, None)
        if own is None or not found:
            reasons = silent.get(verdict.node) or "; ".join(silent.values())
            raise NoRows(reasons or "there is no other replica to compare with")
        return look(own, list(found.values()), difference, verdict.index)


def _subject(verdict: Verdict) -> _Subject:
    return _Subject(verdict.log, verdict.shard, verdict.node)


def _slots(verdict: Verdict) -> frozenset[tuple[str, int]]:
    return frozenset((one.cf, one.bucket) for one in verdict.differences)


def _damage(verdict: Verdict) -> frozenset[tuple[str, int, int]]:
    """Return by how much each bucket differs: the same while nothing else is wrong, whatever is written beside it."""
    return frozenset((one.cf, one.bucket, (one.replica_sum - one.log_sum) & MASK) for one in verdict.differences)


def _with(verdict: Verdict, found: str) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason}; {found}" if verdict.reason else found)
