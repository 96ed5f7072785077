"""Findings on bad requests: what became of them, and of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.wording import named

MAX_MESSAGE_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that was rejected, with the reason."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was answered with a result code."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node's process (None: it does not run), and the node that it takes for the leader."""

    pid: int | None
    leader: str
    term: int


def poison_refused(name: str, code: str, seen: Rejection | Answered | None) -> Finding:
    """Judge what became of a bad record: rejected or answered with ``code`` and a message."""
    word = "answered" if isinstance(seen, Answered) else "rejected"
    return Finding(
        question=f"{name} is refused with {code}",
        holds=seen is not None and seen.code == code and bool(seen.message),
        seen="nothing became of it"
        if seen is None
        else f"{word}, {seen.code}: {seen.message[:MAX_MESSAGE_CHARACTERS]}",
    )


def nothing_stopped(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> Finding:
    """Judge whether the same processes run, under the same leader in the same term."""
    wrong = [f"{node}: {one} before, {after.get(node)} after" for node, one in before.items() if after.get(node) != one]
    wrong += [f"{node} does not run" for node, one in after.items() if one.pid is None]
    standing = next(iter(after.values()), None)
    seen = "" if standing is None else f"{len(after)} nodes run on, {standing.leader} leads in term {standing.term}"
    return Finding(
        question="no process stopped and no leader stepped down", holds=not wrong and bool(after),
        seen=named(wrong) if wrong else seen,
    )  # fmt: skip


def still_writes(error: str | None) -> Finding:
    """Judge a good request after the bad ones."""
    return Finding(
        question="a good request is executed as before", holds=error is None,
        seen="a volume was created and deleted" if error is None else error,
    )  # fmt: skip
