"""Findings on kills of an install, and on leaders that change meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replicated_db.core.bootstrap.pace import size_words
from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.wording import named
from stratolog.drills.installs.core.stages import InstallStage


def never_mixed(kills: int, wrong: Sequence[str]) -> Finding:
    """Judge what kills left: the old replica before the journal, the new one from then on, each whole."""
    return Finding(
        question="after each kill the replica was the old one or the new one, and whole", holds=kills > 0 and not wrong,
        seen=named(wrong) or f"{kills} kills, each looked at in a copy",
    )  # fmt: skip


def every_stage(found: Mapping[InstallStage, int], stages: Sequence[InstallStage]) -> str | None:
    """Return which stages no kill has met, in words; None if all were met."""
    missed = [stage.value for stage in stages if not found.get(stage)]
    return f"no kill met the stages: {', '.join(missed)}" if missed else None


def not_fetched_again(kept_bytes: int, again: int) -> Finding:
    """Judge whether content that a killed process had fetched was of use to the next one."""
    return Finding(
        question="what was fetched before a kill was not fetched again", holds=kept_bytes > 0 and not again,
        seen=f"{again} contents came twice" if again else f"{size_words(kept_bytes)} were kept over kills",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSight:
    """A candidate's folder at one moment: its mark, its whole contents, whether there is a tree.

    ``whole`` is digest -> inode, time and bytes of a file: one that came anew is another one.
    """

    peer: str
    term: int
    leader: str
    whole: Mapping[str, tuple[int, int, int]]
    tree: bool

    @property
    def mark(self) -> tuple[str, int, str]:
        """Whose listing the candidate follows: peer, term, leader."""
        return self.peer, self.term, self.leader


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """A change of the leader while files came: the candidate just before it, and after it.

    ``peer_lost``: the old leader was killed, and had served; else the leadership was moved.
    """

    old_leader: str
    new_leader: str
    peer_lost: bool
    before: CandidateSight
    after: CandidateSight

    @property
    def kept_bytes(self) -> int:
        """Bytes of contents that are after the change what they were before it."""
        return sum(file[2] for digest, file in self.after.whole.items() if self.before.whole.get(digest) == file)


def changed_during(changes: Sequence[LeaderChange], wanted: int) -> Finding:
    """Judge whether the leader changed often enough while files came."""
    said = [
        f"{change.old_leader} to {change.new_leader} ({'SIGKILL' if change.peer_lost else 'moved'})"
        for change in changes
    ]
    return Finding(
        question=f"the leader changed {wanted} times during the transfer",
        holds=len(changes) >= wanted and all(change.old_leader != change.new_leader for change in changes),
        seen=", ".join(said) or "it did not",
    )


def goes_on(changes: Sequence[LeaderChange]) -> Finding:
    """Judge whether a transfer went on where the leadership was moved, and its peer stayed."""
    moved = [change for change in changes if not change.peer_lost]
    wrong = [
        f"{change.before.mark} became {change.after.mark}"
        for change in moved
        if change.before.mark != change.after.mark
    ]
    kept = sum(change.kept_bytes for change in moved)
    had = sum(bytes_of(change.before) for change in moved)
    return Finding(
        question="with the serving peer alive the transfer goes on", holds=bool(moved) and not wrong and kept == had,
        seen=named(wrong) or f"{size_words(kept)} of {size_words(had)} that were whole are still there",
    )  # fmt: skip


def marked_anew(changes: Sequence[LeaderChange]) -> Finding:
    """Judge the marks: where the serving peer was lost there is another one, and no tree of the old."""
    lost = [change for change in changes if change.peer_lost]
    wrong = [f"{change.before.mark} stayed" for change in lost if change.before.mark == change.after.mark]
    wrong += [f"a tree of {change.before.mark} stayed" for change in lost if change.after.tree]
    return Finding(
        question="with the serving peer lost the candidate follows another listing, from no tree",
        holds=not wrong and bool(lost), seen=named(wrong) or "; ".join(_mark_words(change) for change in lost),
    )  # fmt: skip


def kept_whole(changes: Sequence[LeaderChange]) -> Finding:
    """Judge whether content that the next listing needs, too, was kept where the serving peer was lost."""
    lost = [change for change in changes if change.peer_lost]
    kept, had = sum(change.kept_bytes for change in lost), sum(bytes_of(change.before) for change in lost)
    return Finding(
        question="whole files that the next listing has, too, were kept", holds=kept > 0,
        seen=f"{size_words(kept)} of {size_words(had)} that were whole",
    )  # fmt: skip


def bytes_of(sight: CandidateSight) -> int:
    """Return the bytes of all whole contents."""
    return sum(file[2] for file in sight.whole.values())


def _mark_words(change: LeaderChange) -> str:
    after = change.after
    return f"{change.before.peer}'s of term {change.before.term}, then {after.peer}'s of term {after.term}"
